# SPDX-License-Identifier: Apache-2.0
"""Train a weighted sum of objectives, each averaged over its targets and logged separately (`PretrainingTrainer`).

The trainer of replaced token detection also uses `TargetTrainer` and `TargetArguments`.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

import torch
from transformers import EvalPrediction

from ..training.arguments import RunArguments
from ..training.distributed import check_sharding
from ..training.flags import option
from ..training.trainer import RunTrainer
from .dynamic_masking import EpochCallback, lower_rate
from .objectives import OBJECTIVES, MultiObjectiveMaskedLM, check_objectives, count_targets
from .packing import PAIR_MODES
from .prepared_corpus import PreparedRows, ShardOrder, max_streams

__all__ = ["PretrainingArguments", "PretrainingTrainer", "TargetArguments", "TargetTrainer"]


# Upper limit of reported perplexities: a diverged loss has a perplexity of 300 digits.
MAX_PERPLEXITY = 1e6
WITH_PERPLEXITY = {"generator", *(name for name, objective in OBJECTIVES.items() if objective.has_perplexity)}


@dataclass
class TargetArguments(RunArguments):
    """`RunArguments` for pre-training, which reject values that would silently change the losses."""

    fixed: ClassVar[Mapping[str, Any]] = RunArguments.fixed | dict(
        remove_unused_columns=False, label_smoothing_factor=0.0, dataloader_drop_last=False, label_names=None
    )
    eval_steps: float | None = option(0.1, "number of steps between evaluations; below 1: share of all steps")
    ddp_find_unused_parameters: bool | None = option(False, "not needed: every parameter is used in every step")
    remove_unused_columns: bool = option(False, "must be False: the collator needs columns that the model does not have")

    needs: ClassVar = {
        "data_seed": (
            "without --train_sampling_strategy random (group_by_length uses --seed) or a --packing that makes pairs",
            lambda args: args.train_sampling_strategy == "random" or args.packing in PAIR_MODES,
        )
    }

    def __post_init__(self):
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("perplexity"):
            self.greater_is_better = False
        super().__post_init__()


WEIGHTS = []
for _name, _objective in OBJECTIVES.items():
    _weight = option(_objective.weight, f"weight of {_objective.title} ({_objective.paper})")
    WEIGHTS.append((f"{_name}_weight", float, _weight))
WeightArguments = make_dataclass("WeightArguments", WEIGHTS, bases=(TargetArguments,))


@dataclass
class PretrainingArguments(WeightArguments):
    """`TargetArguments` with a weight for each objective of `OBJECTIVES`, such as "mlm_weight"; 0 = not trained."""

    z_loss: float = option(
        0.0, "weight of the z-loss: the mean of (log Z)^2 over masked tokens, with Z = sum of exp(logits) (PaLM: 1e-4)"
    )

    def __post_init__(self):
        for name, *_ in [("z_loss",), *WEIGHTS]:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or a positive number, got {getattr(self, name)}")
        check_objectives([*self.objectives])
        super().__post_init__()

    @property
    def objectives(self) -> dict[str, float]:
        """Trained objectives and their weights."""
        weights = {}
        for name in OBJECTIVES:
            if getattr(self, f"{name}_weight") > 0:
                weights[name] = getattr(self, f"{name}_weight")
        return weights


class TargetTrainer(RunTrainer):
    """Trainer of a weighted sum of losses, each averaged over its targets.

    Targets are counted over all micro-batches and processes of a step, so that the loss does not depend on gradient
    accumulation or the number of processes.

    A subclass implements `count_targets`, `batch_sums` and `row_sums`.

    Args:
        weights (`dict[str, float]`): weight of each loss.
        statistics (`list[str]`): names of the statistics of `batch_sums` and `row_sums`; the names in `weights` come first.
    Raises:
        ValueError: if a loss has no target in the evaluation data, or if one process has several GPUs.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, model, args: TargetArguments, *, weights: dict[str, float], statistics: list[str], **kwargs):
        if args.n_gpu > 1:
            raise ValueError(f"expected one GPU in a process, got {args.n_gpu}; start a process for each GPU with torchrun")
        args.find_best_metric({"eval_loss"})
        self.objectives, self.statistics = weights, statistics
        super().__init__(model, args, compute_metrics=self.compute_metrics_of_rows, **kwargs)
        self.check_wrappers()
        self.add_callback(EpochCallback())
        self.uniform_loss = 0.0
        for name, weight in weights.items():
            classes = self.model.config.vocab_size if name in WITH_PERPLEXITY else 2
            self.uniform_loss += weight * math.log(classes)
        # Apple GPUs do not support float64.
        precision = torch.float32 if args.device.type == "mps" else torch.float64
        self._sums = torch.zeros(len(statistics), 3, dtype=precision, device=args.device)
        evaluated = {"eval": self.eval_dataset}
        if isinstance(self.eval_dataset, dict):
            evaluated = self.eval_dataset
        for dataset in evaluated.values():
            if hasattr(dataset, "__len__"):
                self._check_targets(dataset)

    def count_targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Count the targets of each loss in a batch, [losses] float32, without running the model."""
        raise NotImplementedError

    def batch_sums(self, model, inputs) -> tuple[Any, torch.Tensor]:
        """Return the model's outputs, and [statistics, 3] with gradient: (loss sum, correct, targets) of each statistic."""
        raise NotImplementedError

    def row_sums(self, model, inputs) -> torch.Tensor:
        """Return (loss sum, correct, targets) for each row of an evaluation batch, [B, statistics, 3]."""
        raise NotImplementedError

    def training_metrics(self, sums: dict[str, list[float]]) -> dict[str, float]:
        """Compute the metrics to log; `sums` maps each statistic to (loss sum, correct, targets) since the last log."""
        return {f"{name}_loss": sums[name][0] / sums[name][2] for name in self.objectives if sums[name][2]}

    def evaluation_metrics(self, statistics: torch.Tensor) -> dict[str, float]:
        """Compute the metrics of an evaluation from the `row_sums` of all R rows, [R, statistics, 3]."""
        return evaluation_metrics(statistics[:, : len(self.objectives)], self.objectives)

    def check_wrappers(self):
        """Check that the model supports the requested kind of distributed training."""
        check_sharding(self)

    def _check_targets(self, dataset):
        counts = torch.zeros(len(self.objectives))
        for row in range(len(dataset)):
            counts += self.count_targets(self.data_collator([dataset[row]]))
            if counts.all():
                return
        names = [*self.objectives]
        raise ValueError(_no_targets([names[i] for i in (counts == 0).nonzero()], len(dataset)))

    def _get_train_sampler(self, train_dataset=None):
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(getattr(dataset, "dataset", None), PreparedRows):
            return super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return ShardOrder(dataset, batch=self.args.train_batch_size, streams=max_streams(self.args), seed=seed)

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        """Return the micro-batches of a step, and the number of targets of each objective over all processes."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        if not batches:
            return batches, None
        for number, batch in enumerate(batches):
            if "masked_from" in batch:
                batches[number] = lower_rate(batch, self.masking_rate())
        batches = self.without_repeated_rows(batches)
        counts = torch.zeros(len(self.objectives), device=device)
        for batch in batches:
            if "repeated" not in batch:
                counts += self.count_targets(batch).to(device)
        if self.args.world_size > 1:
            counts = self.accelerator.gather(counts).view(-1, len(self.objectives)).sum(0)
        return batches, counts

    def masking_rate(self) -> float:
        """Return the masking rate of this step, linear from `rate` at the first step to `final_rate` at the last step."""
        options = self.data_collator.options
        progress = self.state.global_step / max(1, self.state.max_steps - 1)
        return options.rate + progress * (options.final_rate - options.rate)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        repeated = inputs.pop("repeated", None)
        outputs, sums = self.batch_sums(model, inputs)
        if repeated is not None:
            # Keep the graph: distributed training waits for the gradient of every parameter.
            sums = sums * 0
        loss = self.weighted_loss(sums, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def weighted_loss(self, sums: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
        """Compute the loss of a micro-batch from its `sums` [statistics, 3] and the target `counts` [losses] of the step."""
        if counts is None:
            counts = sums[: len(self.objectives), 2]
        weights = torch.tensor([*self.objectives.values()], device=sums.device)
        loss = (weights * sums[: len(weights), 0] / counts.clamp(min=1)).sum()
        if self.model.training:
            self._sums += sums.detach()
            # `counts` are over all processes, but distributed training averages the gradients.
            loss = loss * self.args.world_size
        return loss

    def log(self, logs: dict[str, float], *args, **kwargs):
        if "loss" in logs:
            sums = self._sums.clone()
            if self.args.world_size > 1:
                sums = self.accelerator.gather(sums).view(-1, *sums.shape).sum(0)
            logs |= self.training_metrics(dict(zip(self.statistics, sums.tolist(), strict=True)))
            self._sums.zero_()
        super().log(logs, *args, **kwargs)

    def evaluate(self, eval_dataset=None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"):
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        # Trainer calls this once for each of several evaluation sets.
        if metric_key_prefix == "eval":
            self.check_best_metric(metrics)
        return metrics

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return the statistics of each row, not logits; Trainer gathers all rows from the processes, without duplicates."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            rows = self.row_sums(model, inputs)
        return None, rows, rows[:, 0, 2]

    def compute_metrics_of_rows(self, prediction: EvalPrediction) -> dict[str, float]:
        return self.evaluation_metrics(torch.as_tensor(prediction.predictions))


class PretrainingTrainer(TargetTrainer):
    """Trainer of `MultiObjectiveMaskedLM` with L = sum over objectives of weight * sum of losses / number of targets.

    Logs "loss", "mlm_loss", "sop_loss", ...; an evaluation returns the loss, accuracy and (for objectives that predict
    tokens) perplexity of each objective. If `z_loss` is set, "z_loss" is also logged; evaluations do not include the z-loss.
    """

    args: PretrainingArguments
    model: MultiObjectiveMaskedLM

    def __init__(self, model: MultiObjectiveMaskedLM, args: PretrainingArguments, **kwargs):
        if set(model.objectives) != set(args.objectives):
            raise ValueError(
                f"the model must have heads for {', '.join(args.objectives)}, got {', '.join(model.objectives)}; "
                "load the model with objectives=args.objectives"
            )
        weights = args.objectives
        if args.z_loss:
            weights["z"] = args.z_loss
        super().__init__(model, args, weights=weights, statistics=[*weights], **kwargs)

    def count_targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return count_targets(batch, ["mlm" if name == "z" else name for name in self.objectives])

    def batch_sums(self, model, inputs) -> tuple[Any, torch.Tensor]:
        outputs = model(**inputs, output_z="z" in self.objectives)
        statistics = outputs.statistics | {"z": outputs.z_statistics}
        return outputs, torch.stack([statistics[name].sum(0) for name in self.objectives])

    def row_sums(self, model, inputs) -> torch.Tensor:
        statistics = model(**inputs).statistics
        return torch.stack([statistics[name] for name in self.args.objectives], 1)

    def evaluation_metrics(self, statistics: torch.Tensor) -> dict[str, float]:
        return evaluation_metrics(statistics, self.args.objectives)


def evaluation_metrics(statistics: torch.Tensor, weights: dict[str, float]) -> dict[str, float]:
    """Compute loss, accuracy and perplexity from rows [R, objectives, 3] of (loss sum, correct, targets)."""
    metrics: dict[str, Any] = {"loss": 0.0}
    for name, (total, correct, count) in zip(weights, statistics.double().sum(0).tolist(), strict=True):
        if not count:
            raise ValueError(_no_targets([name], len(statistics)))
        loss = total / count
        metrics["loss"] += weights[name] * loss
        metrics |= {f"{name}_loss": loss, f"{name}_accuracy": correct / count, f"{name}_targets": int(count)}
        if name in WITH_PERPLEXITY:
            metrics[f"{name}_perplexity"] = min(math.exp(min(loss, 700.0)), MAX_PERPLEXITY)
    return metrics


def _no_targets(names: list[str], rows: int) -> str:
    return f"none of the {rows} rows of evaluation data has a target of {', '.join(names)}; use more or longer texts"

# SPDX-License-Identifier: Apache-2.0
"""`TaskTrainer`, the Trainer of all tasks: several evaluation sets, task losses, and an error for NaN or infinite losses."""

import functools
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import Trainer
from transformers.trainer_utils import PredictionOutput

from ..sift import SiftArguments, SiftTrainer
from ..training.batch_size import is_split_free
from ..training.trainer import RunTrainer
from .class_weights import BalancedSampler, WeightedLoss
from .prediction_tables import write_tables
from .task import EncodedTask, EvaluationSet

__all__ = ["TaskTrainer", "check_losses", "set_prefix"]


def set_prefix(stem: str, name: str) -> str:
    """Return the prefix of an evaluation set's metrics and files: "eval" for the main set, "eval_mm" for the set "mm"."""
    return "_".join(filter(None, (stem, name)))


def check_losses(args: SiftArguments, task: EncodedTask, problem_type: str | None):
    """Check that --sift_loss and --label_smoothing_factor can be used for the task."""
    if args.sift_loss is not None and problem_type == "regression":
        raise ValueError(f"--sift_loss {args.sift_loss} has no effect on a regression (squared error): remove --sift_loss")
    if not args.label_smoothing_factor:
        return
    has_positions = task.train is not None and "start_positions" in task.train.column_names
    if has_positions or task.loss is not None or problem_type in ("regression", "multi_label_classification"):
        raise ValueError(
            f"--label_smoothing_factor {args.label_smoothing_factor:g} cannot be used for question answering, regression, "
            "multi-label classification, multiple choice with unequal numbers of choices, or with --class_weights: remove "
            "--label_smoothing_factor"
        )


class _TaskLossTrainer(Trainer):
    """Trainer that uses the task's loss, if there is one, instead of the model's loss; `SiftTrainer` adds SiFT's loss."""

    task: EncodedTask
    _loss_scale: torch.Tensor | float = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # Not `compute_loss_func`: Trainer expects it to divide by the number of items of the whole step.
        is_evaluated = isinstance(self.task.loss, WeightedLoss) and not model.training
        if self.task.loss is None or is_evaluated or "labels" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.task.loss(outputs, labels) * self._loss_scale
        if return_outputs:
            return loss, outputs
        return loss

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        super()._save(output_dir, state_dict)
        model = self.accelerator.unwrap_model(self.model)
        if hasattr(model, "peft_config") and self.args.should_save:
            # The files of an adapter contain neither the labels nor the model class.
            base = model.get_base_model()
            base.config.architectures = [type(base).__name__]
            base.config.save_pretrained(output_dir or self.args.output_dir)


class TaskTrainer(RunTrainer, SiftTrainer, _TaskLossTrainer):
    """Trainer of any transformers model on an `EncodedTask`, with SiFT if `sift_weight` is not 0.

    - `evaluate()` evaluates all sets, also during training, and returns their metrics in one dictionary.
    - Each micro-batch has a mean loss. The loss of a step is the average of these losses in all processes. Therefore, a
      token with a label has a larger weight in a micro-batch with fewer labels. In an incomplete last step of an epoch, the
      average is weighted by the number of rows of each micro-batch.
    - `num_items_in_batch` is not passed to models. For a model that accepts but ignores this argument, Trainer would add up
      the losses of the micro-batches, so that four accumulation steps would train on four times the loss.
    - A `WeightedLoss` is the weighted mean over all rows of a step in all processes; evaluation uses the model's own loss.
    - A NaN or infinite loss stops the training immediately.

    Args:
        task (`EncodedTask`): data sets, collator and metrics.
        kwargs: other arguments of `Trainer`.

    Attributes:
        predictions (`dict`): predictions of the last evaluation of each set, by the prefix of the set's metrics.
    """

    def __init__(self, model: nn.Module, args: SiftArguments, *, task: EncodedTask, **kwargs):
        config = getattr(model, "config", None)
        if args.ddp_find_unused_parameters is None and getattr(config, "model_type", None) == "deberta-ext":
            # All parameters are used in every step; by default, DistributedDataParallel would search for unused ones.
            args.ddp_find_unused_parameters = False
        # Trainer needs one set for evaluation during training; `evaluate` uses all sets of the task.
        evaluated = [measured.rows for measured in task.evaluation.values()]
        super().__init__(
            model,
            args,
            data_collator=task.collator,
            train_dataset=task.train,
            eval_dataset=next(iter(evaluated), None),
            preprocess_logits_for_metrics=self._only_logits,
            **kwargs,
        )
        self.task = task
        self.model_accepts_loss_kwargs = False
        self.predictions: dict[str, Any] = {}
        self._measured: EvaluationSet | None = None

    def get_batch_samples(self, epoch_iterator, num_batches: int, device):
        """Return a step's micro-batches; add "weight" (`weigh_rows`) or "loss_scale" (`scale_losses`) where needed."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if is_split_free(self.args):
            batches = self.without_repeated_rows(batches)
            self.weigh_rows(batches)
        if isinstance(self.task.loss, WeightedLoss):
            self.scale_losses(batches)
        return batches, items

    def weigh_rows(self, batches: list[dict[str, Any]]):
        """Add "weight" to the micro-batches of an incomplete step, so that all of its rows have the same weight."""
        counts = [len(next(iter(batch.values()))) * ("repeated" not in batch) for batch in batches]
        parts, rows = len(counts) * self.args.world_size, sum(counts)
        most = parts * self.args.train_batch_size
        if self.args.world_size > 1:
            # Rows of all processes, computed without communication.
            rows = min(self.rows_left(), most)
        if rows < most:
            for batch, count in zip(batches, counts, strict=True):
                batch.pop("repeated", None)
                batch["weight"] = count * parts / rows

    def scale_losses(self, batches: list[dict[str, Any]]):
        """Add "loss_scale" to each micro-batch: the sum of its labels' class weights, divided by the mean of these sums."""
        sums = [self.task.loss.denominator(batch["labels"]) * (batch.get("weight") != 0) for batch in batches]
        mean = self.accelerator.reduce(torch.stack(sums).mean(), "mean")
        for batch, weights in zip(batches, sums, strict=True):
            # `compute_loss` multiplies the total loss by "weight", which only SiFT's mean over rows needs: undo it here.
            batch["loss_scale"] = weights / mean / (batch.get("weight") or 1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("weight", None)
        self._loss_scale = inputs.pop("loss_scale", 1.0)
        computed = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if weight is None:
            return computed
        if return_outputs:
            return computed[0] * weight, computed[1]
        return computed * weight

    @functools.cached_property
    def uniform_loss(self) -> float:
        """Return the loss of a uniform guess (label, choice or position) or, for regression, the loss of predicting 0."""
        config, rows = self.model.config, self.train_dataset
        if config.problem_type == "regression":
            return sum(label**2 for label in rows["labels"]) / len(rows)
        if config.problem_type == "multi_label_classification":
            if self.task.loss is None:
                return math.log(2)
            labels = torch.tensor(rows["labels"][:])
            return float(self.task.loss({"logits": torch.zeros_like(labels)}, labels))
        inputs = rows[:1000]["input_ids"]
        if "start_positions" in self.label_names:
            return math.log(max(map(len, inputs)))
        if isinstance(inputs[0][0], list):
            return math.log(len(inputs[0]))
        return math.log(config.num_labels)

    def evaluate(
        self,
        eval_dataset: EvaluationSet | Mapping[str, EvaluationSet] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate all sets; return metrics such as "eval_accuracy" of the main set and "eval_mm_accuracy" of a set "mm".

        Args:
            eval_dataset (`EvaluationSet` or `dict[str, EvaluationSet]`, *optional*): sets to evaluate; default: all sets of
                the task.
        """
        sets = eval_dataset or self.task.evaluation
        if isinstance(sets, EvaluationSet):
            sets = {"": sets}
        metrics = {}
        for name, measured in sets.items():
            prefix = set_prefix(metric_key_prefix, name)
            self._measured = measured
            try:
                metrics |= super().evaluate(measured.rows, ignore_keys, prefix)
            finally:
                self._measured = None
        self.check_best_metric(metrics)
        return metrics

    def predict_set(self, predicted: EvaluationSet, prefix: str) -> PredictionOutput:
        """Return predictions, labels and metrics of a set; the names of the metrics start with `prefix`."""
        self._measured = predicted
        try:
            return self.predict(predicted.rows, metric_key_prefix=prefix)
        finally:
            self._measured = None

    def measure(self, names: Collection[str]) -> dict[str, float]:
        """Evaluate or predict the sets in `names` ("eval", "predict_mm", ...); write their metrics and predictions."""
        metrics: dict[str, float] = {}
        for stem, sets in dict(eval=self.task.evaluation, predict=self.task.test).items():
            for set_name, measured in sets.items():
                if (name := set_prefix(stem, set_name)) not in names:
                    continue
                if stem == "eval":
                    metrics |= self.record(name, self.evaluate({set_name: measured}))
                else:
                    metrics |= self.record(name, self.predict_set(measured, name).metrics)
                if self.args.should_save:
                    self.write_predictions(measured, self.predictions[name], name)
                    if measured.failures is not None and measured.metrics is not None:
                        failures = measured.failures(self.predictions[name])
                        print(*failures.write(Path(self.args.output_dir), name), sep="\n", flush=True)
        return metrics

    def write_predictions(self, measured: EvaluationSet, predictions: Any, name: str):
        """Write the task's files for a set, and its predictions ("eval_predictions.csv", "test_mm_predictions.csv", ...)."""
        folder, stem = Path(self.args.output_dir), re.sub("^predict", "test", name)
        measured.write(predictions, folder, name)
        if measured.table is not None:
            file = folder / f"{stem}_predictions.{self.args.predictions_format}"
            write_tables(file, iter([measured.table(predictions)]))

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        """Run Trainer's loop, then compute the metrics of the current set; unlike Trainer, do not require a label column."""
        measured = self._measured
        if measured is None:
            return super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        output = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        self.predictions[metric_key_prefix] = output.predictions
        if measured.metrics is not None:
            metrics = measured.metrics(output.predictions, output.label_ids)
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        output.metrics[f"{metric_key_prefix}_samples"] = measured.examples
        return output

    def create_model_card(self, *args, **kwargs):
        """Do nothing, so that Trainer does not overwrite the run's model card when it pushes."""

    def _get_train_sampler(self, train_dataset=None):
        if not self.task.balanced_sampling:
            return super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return BalancedSampler(self.train_dataset["labels"][:], seed)

    def _get_eval_sampler(self, eval_dataset):
        # With group_by_length, Trainer would also sort evaluation rows, and predictions would be in unknown order.
        if self.args.world_size > 1:
            return None
        return SequentialSampler(eval_dataset)

    def _only_logits(self, logits, labels):
        """Return only the logits, without the hidden states, attentions and caches that some models also return."""
        if not isinstance(logits, (tuple, list)):
            return logits
        if "start_positions" in self.label_names:
            return tuple(logits[:2])
        return logits[0]

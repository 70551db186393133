# SPDX-License-Identifier: Apache-2.0
"""`DistillationTrainer`: train a student on labels and on the signals (outputs to compare) of a teacher."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence

from ..finetuning.task import EncodedTask
from ..finetuning.trainer import TaskTrainer
from ..pretraining.dynamic_masking import EpochCallback, MaskingCollator, NumberedExamples
from ..training.distributed import spread_seed
from ..training.run_folder import examples_digest
from .arguments import DistillationArguments
from .objectives import OBJECTIVES, attention_recorded, signals
from .teacher import CachedSignal

__all__ = ["DistillationCollator", "DistillationTrainer"]

COLUMNS = {"input_ids", "attention_mask", "token_type_ids", "labels", "start_positions", "end_positions"}


class DistillationCollator:
    """Wrapper of a task's `collator` that adds the teacher's signals "teacher_NAME" [B, N, W] to batches of training rows.

    `cached` is the result of `cached_signals` (signals by name), or empty for a student without a teacher.

    If `masking` is set, words are masked in some rows of each training batch, and the student predicts these words. The
    share of these rows is `masked_share`, but at least one row is masked. The masked rows are not compared with the teacher,
    which has read the unmasked words. If `passages` (a data set with "input_ids") is set, random rows of `passages` replace
    these rows before words are masked.
    """

    def __init__(
        self,
        collator: Any,
        cached: Mapping[str, CachedSignal],
        masking: MaskingCollator | None = None,
        masked_share: float = 0.0,
        passages: Dataset | None = None,
    ):
        self.collator, self.cached, self.masking = collator, cached, masking
        self.masked_share, self.passages = masked_share, passages
        # Compared when a run is resumed
        self.options = masked_share, masking and masking.options
        if passages is not None:
            self.options += (examples_digest(passages),)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        if "example" not in features[0]:
            return self.collate(features)
        features, masked = [*features], []
        if self.masking is not None:
            draws = [spread_seed(self.masking.seed, row["epoch"], row["example"], 1) for row in features]
            masked = np.argsort(draws)[: max(1, round(self.masked_share * len(draws)))]
        if self.passages is not None:
            for row in masked:
                features[row] = features[row] | self.passages[draws[row] % len(self.passages)]
        batch = self.collate(features)
        for name, signal in self.cached.items():
            values = [torch.from_numpy(signal[row["example"]].astype(np.float32)) for row in features]
            batch[f"teacher_{name}"] = pad_sequence(values, batch_first=True, padding_value=math.nan)
        if self.masking is not None:
            self.mask(batch, features, masked)
        return batch

    def collate(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate the columns that the model reads."""
        return dict(self.collator([{name: row[name] for name in row if name in COLUMNS} for row in features]))

    def mask(self, batch: dict[str, torch.Tensor], features: Sequence[Mapping[str, Any]], rows: np.ndarray):
        """Mask words in the given `rows` of a batch, and add "labels"; set the teacher's outputs for these rows to NaN."""
        masked = self.masking([features[row] for row in rows])
        batch["labels"] = torch.full_like(batch["input_ids"], -100)
        for place, row in enumerate(rows):
            length = int(masked["attention_mask"][place].sum())
            batch["input_ids"][row, :length] = masked["input_ids"][place, :length]
            batch["labels"][row, :length] = masked["labels"][place, :length]
        for name in self.cached:
            batch[f"teacher_{name}"][rows] = math.nan


class DistillationTrainer(TaskTrainer):
    """`TaskTrainer` with the loss label_weight * L_labels + sum of weight_o * L_o(student, teacher) over the objectives o.

    Logs the mean of each loss ("labels_loss", "soft_labels_loss", ...). Without cached signals, the loss is only L_labels.

    Args:
        collator (`DistillationCollator`): collator with the signals for the rows of `task.train`.
        embeds (`bool`): predict mean pooled embeddings [rows, d] in evaluations.
    """

    args: DistillationArguments
    uniform_loss = None

    def __init__(self, model, args: DistillationArguments, *, task: EncodedTask, collator, embeds: bool = False, **kwargs):
        self.embeds = embeds
        self.losses: dict[str, list[torch.Tensor]] = {}
        if task.train is not None:
            task = replace(task, train=NumberedExamples(task.train))
        super().__init__(model, args, task=replace(task, collator=collator), **kwargs)
        self.add_callback(EpochCallback())
        if hasattr(model, "set_unpadding") and "relations" in collator.cached:
            # Recorded projections must be [B, N, W].
            model.set_unpadding(False)

    @property
    def soft_label_kind(self) -> str:
        """Kind of the soft labels, "positions", "scores", "labels" or "classes"; see `soft_label_loss`."""
        if "start_positions" in self.label_names:
            return "positions"
        kinds = {"regression": "scores", "multi_label_classification": "labels"}
        return kinds.get(getattr(self.model.config, "problem_type", None), "classes")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.get("labels")
        if self.embeds and labels is not None and self.model.config.model_type == "deberta-ext":
            # Logits of words that are not masked would take as long as the rest of the model.
            inputs["masked_only"] = True
        names = [name for name in self.args.objectives if f"teacher_{name}" in inputs]
        if not names:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        weight, losses = inputs.pop("weight", 1.0), {}
        targets = {name: inputs.pop(f"teacher_{name}") for name in names}
        inputs["output_hidden_states"] = True
        with attention_recorded(self.accelerator.unwrap_model(model), -1, names) as attention:
            if labels is None and "start_positions" not in inputs:
                outputs = model(**inputs)
            else:
                losses["labels"], outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        options: dict[str, dict[str, Any]] = {
            "relations": dict(heads=self.args.relation_heads),
            "soft_labels": dict(kind=self.soft_label_kind, T=self.args.temperature),
        }
        for name, student in signals(names, outputs, inputs["attention_mask"], attention).items():
            target = targets[name]
            student = student[:, : target.shape[1]].float()
            if name == "soft_labels" and labels is not None and target.shape[1] > 1:
                # The teacher's logits are only trained at the tokens that have labels.
                target = target.masked_fill((labels == -100)[:, : target.shape[1], None], math.nan)
            losses[name] = student.sum() * 0
            if not target.isnan().any(-1).all():
                losses[name] = OBJECTIVES[name].loss(student, target, **options.get(name, {}))
        for name, loss in losses.items():
            self.losses.setdefault(name, []).append(loss.detach())
        weights = {"labels": self.args.label_weight, **self.args.objectives}
        total = weight * sum(weights[name] * loss for name, loss in losses.items())
        return (total, outputs) if return_outputs else total

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return embeddings instead of logits if `self.embeds` is True."""
        if not self.embeds:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            states = self.accelerator.unwrap_model(model).base_model(**inputs).last_hidden_state
        found = signals(["embeddings"], {"hidden_states": [states.float()]}, inputs["attention_mask"], {})
        return None, found["embeddings"][:, 0], None

    def log(self, logs: dict[str, float], *args, **kwargs):
        if "loss" in logs:
            for name, losses in self.losses.items():
                logs[f"{name}_loss"] = float(self.accelerator.reduce(torch.stack(losses).mean(), "mean"))
            self.losses.clear()
        super().log(logs, *args, **kwargs)

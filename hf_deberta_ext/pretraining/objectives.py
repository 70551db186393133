# SPDX-License-Identifier: Apache-2.0
"""Define the objectives of masked-language pre-training in one table, and a model for any sum of them.

To add an objective, write its functions in another file, and add a row to `OBJECTIVES`. The weight flag, evaluations,
curves, card entries and checks of resumed runs are derived from this table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers.utils import ModelOutput

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM
from . import sentence_pairs, span_boundary

__all__ = [
    "OBJECTIVES",
    "MultiObjectiveMaskedLM",
    "MultiObjectiveOutput",
    "Objective",
    "count_targets",
    "pair_objectives",
    "row_statistics",
]

Batch = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True)
class Objective:
    """Pre-training objective: title in tables and cards, model that introduced the objective (`paper`), and functions."""

    title: str
    paper: str
    # Count the targets of a batch without running the model.
    count_targets: Callable[[Batch], torch.Tensor]
    # Add the modules of the head as attributes of the model.
    add_head: Callable[[nn.Module, DebertaExtConfig], None] | None = None
    # Map (model, last hidden states [B, N, d], batch) to logits [n, C], targets [n] (-100 = none) and row numbers [n].
    predict: Callable[[nn.Module, torch.Tensor, Batch], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
    # Whether rows must be pairs of segments with "sentence_labels".
    reads_pairs: bool = False
    # Whether the objective predicts tokens, so that its perplexity is reported.
    has_perplexity: bool = False
    # Default weight.
    weight: float = 0.0


_SENTENCES = (sentence_pairs.count_targets, sentence_pairs.add_head, sentence_pairs.predict_relationship)
# In the order of the heads in a model. The first objective is part of every sum.
OBJECTIVES: dict[str, Objective] = {
    "mlm": Objective(
        "masked-language modelling", "BERT", lambda batch: (batch["labels"] != -100).sum(), has_perplexity=True, weight=1.0
    ),
    "nsp": Objective("next sentence prediction", "BERT", *_SENTENCES, reads_pairs=True),
    "sop": Objective("sentence order prediction", "ALBERT", *_SENTENCES, reads_pairs=True),
    "sbo": Objective(
        "span boundary objective",
        "SpanBERT",
        span_boundary.count_targets,
        span_boundary.add_head,
        span_boundary.predict_spans,
        has_perplexity=True,
    ),
}


@dataclass
class MultiObjectiveOutput(ModelOutput):
    """Output of `MultiObjectiveMaskedLM`.

    Args:
        loss (`torch.Tensor`): scalar, sum of the losses of all objectives, each averaged over its targets in this batch.
        statistics (`dict[str, torch.Tensor]`): objective -> [B, 3] float32: for each row, the sum of losses, the number of
            correct predictions (0 in training mode) and the number of targets.
        z_statistics (`torch.Tensor`, *optional*): [B, 3]: sum of (log Z)^2 over masked tokens, 0, number of masked tokens.
    """

    loss: torch.Tensor | None = None
    statistics: dict[str, torch.Tensor] | None = None
    z_statistics: torch.Tensor | None = None


class MultiObjectiveMaskedLM(DebertaExtForMaskedLM):
    """`DebertaExtForMaskedLM` with additional heads for other objectives.

    The model is saved as a `DebertaExtForMaskedLM`, so that every Auto class can load the checkpoint. A class that
    lacks an additional head ignores the weights of this head. The additional heads read the last layer, as in fine-tuning,
    not the Enhanced Mask Decoder. The pooler (`pooler.dense`) has the same name and shape as the pooler for sequence
    classification, so that a classifier starts with the trained pooler.

    Args:
        config (`DebertaExtConfig`): model configuration.
        objectives (`Sequence[str]`, default `("mlm",)`): "mlm", and optionally "sbo" and one of "nsp" and "sop".
    """

    def __init__(self, config: DebertaExtConfig, objectives: Sequence[str] = ("mlm",)):
        check_objectives(objectives)
        super().__init__(config)
        self.objectives = tuple(name for name in OBJECTIVES if name in objectives)
        for name in self.objectives:
            if OBJECTIVES[name].add_head is not None:
                OBJECTIVES[name].add_head(self, config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, objectives: Sequence[str] = ("mlm",), **kwargs):
        """Load a model like `DebertaExtForMaskedLM.from_pretrained`; initialise heads that are not in the checkpoint."""
        return super().from_pretrained(pretrained_model_name_or_path, tuple(objectives), *model_args, **kwargs)

    def save_pretrained(self, save_directory, *args, is_main_process: bool = True, **kwargs):
        """Save as a `DebertaExtForMaskedLM`, which every Auto class loads."""
        super().save_pretrained(save_directory, *args, is_main_process=is_main_process, **kwargs)
        if is_main_process:
            self.config.architectures = [DebertaExtForMaskedLM.__name__]
            self.config.save_pretrained(save_directory)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        sentence_labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        output_z: bool = False,
    ) -> MultiObjectiveOutput:
        """Compute the losses of all objectives. Arguments not listed here are those of `DebertaExtForMaskedLM.forward`.

        Args:
            labels (`torch.LongTensor`): [B, N], original ids of the masked tokens; -100 = not a target.
            sentence_labels (`torch.LongTensor`, *optional*): [B], 0 or 1, for "nsp" and "sop"; -100 = not a target.
            output_z (`bool`, default False): return `z_statistics`; Z is the sum of exp(logits) (PaLM, section 5).
        """
        batch: Batch = dict(
            labels=labels, sentence_labels=sentence_labels, attention_mask=attention_mask, document_ids=document_ids
        )
        reads_pairs = pair_objectives(self.objectives)
        if labels is None or (reads_pairs and sentence_labels is None):
            columns = "labels and sentence_labels" if reads_pairs else "labels"
            raise ValueError(f"the objectives {', '.join(self.objectives)} need {columns} in each batch")
        if document_ids is not None and reads_pairs:
            raise ValueError(
                f"{reads_pairs[0]} needs one [CLS] per row, but document_ids imply several; pack with mode='segment_pair'"
            )
        needs_last_layer = len(self.objectives) > 1
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        predicted = self.predict(
            *inputs, labels=labels, document_ids=document_ids, masked_only=True, output_hidden_states=needs_last_layer
        )
        logits, packed = predicted.logits, predicted.packed
        predictions = {"mlm": (logits, predicted.targets, (labels != -100).nonzero()[:, 0])}
        if needs_last_layer:
            states = predicted.encoder.last_hidden_state
            if packed is not None:
                states = packed.pad(states)
        for name in self.objectives[1:]:
            predictions[name] = OBJECTIVES[name].predict(self, states, batch)
        statistics = {}
        for name, prediction in predictions.items():
            statistics[name] = row_statistics(*prediction, len(labels), count_right=not self.training)
        means = [rows[:, 0].sum() / rows[:, 2].sum().clamp(min=1) for rows in statistics.values()]
        z = None
        if output_z:
            squares = logits.float().logsumexp(-1).square()
            columns = torch.stack([squares, torch.zeros_like(squares), torch.ones_like(squares)], 1)
            z = columns.new_zeros(len(labels), 3).index_add(0, predictions["mlm"][2], columns)
        return MultiObjectiveOutput(loss=sum(means), statistics=statistics, z_statistics=z)


def pair_objectives(objectives: Sequence[str]) -> list[str]:
    """Return the names of objectives that need pairs of segments."""
    return [name for name in objectives if OBJECTIVES[name].reads_pairs]


def check_objectives(objectives: Sequence[str]):
    """Check that all objectives are known, that "mlm" is one of them, and that they can be trained together."""
    unknown = sorted({*objectives} - {*OBJECTIVES})
    if unknown:
        raise ValueError(f"objectives must be among {', '.join(OBJECTIVES)}, got {', '.join(unknown)}")
    if "mlm" not in objectives:
        raise ValueError(f"objectives must contain mlm, got {list(objectives)}; add mlm, or set mlm_weight above 0")
    names = pair_objectives(objectives)
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} cannot be combined: they label pairs differently; choose one of them")


def row_statistics(
    logits: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor, B: int, *, count_right: bool = True
) -> torch.Tensor:
    """Compute, for each row, the sum of cross-entropy losses, and the numbers of correct predictions and of targets.

    Args:
        logits (`torch.Tensor`): [n, C], logits of the predictions.
        targets (`torch.LongTensor`): [n], class ids; -100 = not a target.
        rows (`torch.LongTensor`): [n], row index of each prediction.
        B (`int`): number of rows.
        count_right (`bool`, default True): count correct predictions; if False, return 0 instead.
    Returns:
        [B, 3] float32: sum of losses, number of correct predictions, number of targets.
    """
    targets = targets.to(logits.device)
    losses = functional.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="none")
    counted = targets != -100
    is_right = torch.zeros_like(counted)
    if count_right:
        is_right = logits.argmax(-1) == targets
    columns = torch.stack([losses, is_right.to(losses.dtype), counted.to(losses.dtype)], 1)
    return columns.new_zeros(B, 3).index_add(0, rows, columns)


def count_targets(batch: Mapping[str, torch.Tensor], objectives: Sequence[str]) -> torch.Tensor:
    """Count the targets of each objective in a batch, [number of objectives] float32, without running the model."""
    return torch.stack([OBJECTIVES[name].count_targets(batch) for name in objectives]).float()

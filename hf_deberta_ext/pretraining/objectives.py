# SPDX-License-Identifier: Apache-2.0
"""Define the objectives of masked-language pre-training in one table, and the model that is trained on any sum of them.

A new objective is a line of `OBJECTIVES` with its functions in another file. The flag of its weight, evaluations,
curves, cards and what a resumed run must repeat are read from the table.
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
    """A line of the table of objectives: its name in tables and cards, and the model that it is from."""

    title: str
    paper: str
    # batch -> number of targets, without running the model.
    count_targets: Callable[[Batch], torch.Tensor]
    # Sets its modules as attributes of the model.
    add_head: Callable[[nn.Module, DebertaExtConfig], None] | None = None
    # (model, last hidden states [B, N, d], batch) -> logits [n, C], targets [n], -100 = none, and the row of each [n].
    predict: Callable[[nn.Module, torch.Tensor, Batch], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
    # A row is a pair of segments with "sentence_labels".
    reads_pairs: bool = False
    # It predicts tokens.
    has_perplexity: bool = False
    # The default of its flag.
    weight: float = 0.0


_SENTENCES = (sentence_pairs.count_targets, sentence_pairs.add_head, sentence_pairs.predict_relationship)
# In the order of their heads in a model. The first is part of every sum.
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
    """
    Args:
        loss (`torch.Tensor`): the sum of the objectives' mean losses over their targets in this batch.
        statistics (`dict[str, torch.Tensor]`): for each objective [B, 3] float32, of each row the sum of its losses, the
            targets predicted right (0 in training mode) and the number of targets.
        z_statistics (`torch.Tensor`, *optional*): [B, 3], the same with the squares of the masked tokens' log Z.
    """

    loss: torch.Tensor | None = None
    statistics: dict[str, torch.Tensor] | None = None
    z_statistics: torch.Tensor | None = None


class MultiObjectiveMaskedLM(DebertaExtForMaskedLM):
    """`DebertaExtForMaskedLM` with the heads of other objectives.

    Saved folders are masked language models: every Auto class reads them, and leaves out the heads that it does not know.
    Boundary states and the pooled state of [CLS] come from the last layer, which fine-tuning reads too, not from the
    Enhanced Mask Decoder. The pooler (`pooler.dense`) has the name and form of sequence classification's, which thus
    starts from it.

    Args:
        config (`DebertaExtConfig`): the model.
        objectives (`Sequence[str]`): "mlm" and any of "nsp" or "sop", "sbo".
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
        """As `DebertaExtForMaskedLM.from_pretrained`; heads that the checkpoint lacks are new."""
        return super().from_pretrained(pretrained_model_name_or_path, tuple(objectives), *model_args, **kwargs)

    def save_pretrained(self, save_directory, *args, is_main_process: bool = True, **kwargs):
        """As in transformers, as the masked language model that it is for everybody else."""
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
        """
        Args:
            labels (`torch.LongTensor`): [B, N], the tokens under the mask; -100 elsewhere.
            sentence_labels (`torch.LongTensor`, *optional*): [B] 0 or 1, for "nsp" and "sop"; -100 = not a target.
            output_z (`bool`): sum (log Z)^2 of the masked tokens, Z the sum of exp(logits) (PaLM, section 5).
        """
        batch: Batch = dict(
            labels=labels, sentence_labels=sentence_labels, attention_mask=attention_mask, document_ids=document_ids
        )
        reads_pairs = pair_objectives(self.objectives)
        if labels is None or (reads_pairs and sentence_labels is None):
            columns = "labels and sentence_labels" if reads_pairs else "labels"
            raise ValueError(f"the objectives {', '.join(self.objectives)} need {columns} in each batch")
        if document_ids is not None and reads_pairs:
            raise ValueError(f"{reads_pairs[0]} reads one [CLS] a row: pack sentence pairs, not several documents")
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
    """Return the objectives that need pairs of segments."""
    return [name for name in objectives if OBJECTIVES[name].reads_pairs]


def check_objectives(objectives: Sequence[str]):
    """Check the names of objectives that are to be summed."""
    unknown = sorted({*objectives} - {*OBJECTIVES})
    if unknown:
        raise ValueError(f"unknown objectives {', '.join(unknown)}; there are {', '.join(OBJECTIVES)}")
    if "mlm" not in objectives:
        raise ValueError(f"masked-language modelling is part of every sum of objectives: add mlm to {list(objectives)}")
    names = pair_objectives(objectives)
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} label the same pairs differently: choose one of them")


def row_statistics(
    logits: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor, B: int, *, count_right: bool = True
) -> torch.Tensor:
    """Sum the cross-entropy in float32 for each row of the batch, with what is needed to average it over anything.

    Args:
        logits (`torch.Tensor`): [n, C].
        targets (`torch.LongTensor`): [n]; -100 = not a target.
        rows (`torch.LongTensor`): [n] the row of each.
        B (`int`): number of rows.
        count_right (`bool`): count where the largest logit is the target.
    Returns:
        [B, 3] float32: sum of losses, number right, number of targets.
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

# SPDX-License-Identifier: Apache-2.0
"""Masked-language modelling together with other objectives of the BERT family, in one model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers.utils import ModelOutput

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.encoder import ContextPooler
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM
from ..model.pretrained_model import cls_states
from .span_boundary import SpanBoundaryHead, span_boundaries

__all__ = ["OBJECTIVES", "MultiObjectiveMaskedLM", "MultiObjectiveOutput", "count_targets", "row_statistics"]

# Masked-language modelling, next sentence prediction (BERT), sentence order prediction (ALBERT), span boundary (SpanBERT).
OBJECTIVES = ("mlm", "nsp", "sop", "sbo")


@dataclass
class MultiObjectiveOutput(ModelOutput):
    """
    Args:
        loss (`torch.Tensor`): the sum of the objectives' mean losses over their targets in this batch.
        statistics (`dict[str, torch.Tensor]`): for each objective [B, 3] float32, of each row the sum of its losses, the
            targets predicted right (0 in training mode) and the number of targets.
    """

    loss: torch.Tensor | None = None
    statistics: dict[str, torch.Tensor] | None = None


class MultiObjectiveMaskedLM(DebertaExtForMaskedLM):
    """`DebertaExtForMaskedLM` with the heads of other objectives beside it.

    Saved folders are masked language models: every Auto class reads them, and leaves out the heads that it does not know.
    Boundary states and the pooled state of [CLS] are those of the last layer, which fine-tuning reads too, not of the
    Enhanced Mask Decoder. The pooler (`pooler.dense`) has the name and form of sequence classification's, which thus
    starts from it.

    Args:
        config (`DebertaExtConfig`): the model.
        objectives (`Sequence[str]`): "mlm" and any of "nsp" or "sop", "sbo".

    Raises:
        ValueError: an unknown objective, "mlm" missing, or both "nsp" and "sop".
    """

    def __init__(self, config: DebertaExtConfig, objectives: Sequence[str] = ("mlm",)):
        check_objectives(objectives)
        super().__init__(config)
        self.objectives = tuple(name for name in OBJECTIVES if name in objectives)
        if self.sentence_objective:
            self.pooler = ContextPooler(config)
            # 0 = B follows A; 1 = it is of another document (NSP), or they are swapped (SOP).
            self.sentence_relationship = nn.Linear(config.hidden_size, 2)
        if "sbo" in self.objectives:
            self.span_boundary = SpanBoundaryHead(
                config.hidden_size, config.embedding_size, layer_norm_eps=config.layer_norm_eps
            )
        self.post_init()

    @property
    def sentence_objective(self) -> str | None:
        return next((name for name in self.objectives if name in ("nsp", "sop")), None)

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
    ) -> MultiObjectiveOutput:
        """
        Args:
            labels (`torch.LongTensor`): [B, N], the tokens under the mask; -100 elsewhere.
            sentence_labels (`torch.LongTensor`, *optional*): [B] 0 or 1, for "nsp" and "sop"; -100 = not a target.

        Raises:
            ValueError: labels of an objective are missing, or a row of a sentence objective holds several documents.
        """
        needed = {"labels": labels} | ({"sentence_labels": sentence_labels} if self.sentence_objective else {})
        if missing := [name for name, given in needed.items() if given is None]:
            raise ValueError(f"the objectives {', '.join(self.objectives)} need {' and '.join(missing)} in each batch")
        if document_ids is not None and self.sentence_objective:
            raise ValueError(f"{self.sentence_objective} reads one [CLS] a row: pack sentence pairs, not several documents")
        needs_last_layer = len(self.objectives) > 1
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, targets, outputs, packed = self.predict(*inputs, False, needs_last_layer, document_ids, labels, sparse=True)
        B = len(labels)
        statistics = {"mlm": self._statistics(logits, targets, (labels != -100).nonzero()[:, 0], B)}
        if needs_last_layer:
            states = outputs.last_hidden_state if packed is None else packed.pad(outputs.last_hidden_state)
        if self.sentence_objective:
            pooled = self.pooler(cls_states(states, attention_mask, None))
            rows = torch.arange(B, device=states.device)
            statistics[self.sentence_objective] = self._statistics(
                self.sentence_relationship(pooled), sentence_labels.view(B), rows, B
            )
        if "sbo" in self.objectives:
            is_target, before, after, position = span_boundaries(labels, attention_mask, document_ids)
            rows = is_target.nonzero()[:, 0]
            y = self.span_boundary(states[rows, before], states[rows, after], position)
            # By the module's own call: ZeRO gathers its bias for that alone.
            logits = self.lm_predictions.lm_head(y, transformed=True)
            statistics["sbo"] = self._statistics(logits, labels[is_target], rows, B)
        means = [rows[:, 0].sum() / rows[:, 2].sum().clamp(min=1) for rows in statistics.values()]
        return MultiObjectiveOutput(loss=sum(means), statistics=statistics)

    def _statistics(self, logits, targets, rows, B: int) -> torch.Tensor:
        return row_statistics(logits, targets, rows, B, count_right=not self.training)


def check_objectives(objectives: Sequence[str]):
    if unknown := sorted({*objectives} - {*OBJECTIVES}):
        raise ValueError(f"unknown objectives {', '.join(unknown)}; there are {', '.join(OBJECTIVES)}")
    if "mlm" not in objectives:
        raise ValueError(f"masked-language modelling is part of every sum of objectives: add mlm to {list(objectives)}")
    if {"nsp", "sop"} <= {*objectives}:
        raise ValueError("nsp and sop label the same pairs differently: choose one of them")


def row_statistics(
    logits: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor, B: int, *, count_right: bool = True
) -> torch.Tensor:
    """Cross-entropy in float32, summed for each row of the batch, with what is needed to average it over anything.

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
    right = (logits.argmax(-1) == targets) if count_right else torch.zeros_like(counted)
    columns = torch.stack([losses, right.to(losses.dtype), counted.to(losses.dtype)], 1)
    return columns.new_zeros(B, 3).index_add(0, rows, columns)


def count_targets(batch: Mapping[str, torch.Tensor], objectives: Sequence[str]) -> torch.Tensor:
    """[number of objectives] float32: how many targets each objective has in a batch, without running the model."""
    counts = []
    for name in objectives:
        if name == "mlm":
            counts.append((batch["labels"] != -100).sum())
        elif name == "sbo":
            is_target, *_ = span_boundaries(batch["labels"], batch.get("attention_mask"), batch.get("document_ids"))
            counts.append(is_target.sum())
        else:
            counts.append((batch["sentence_labels"] != -100).sum())
    return torch.stack(counts).float()

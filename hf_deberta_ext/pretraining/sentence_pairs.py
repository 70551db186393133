# SPDX-License-Identifier: Apache-2.0
"""Segment pairs and prediction head for next sentence prediction (BERT) and sentence order prediction (ALBERT).

Next sentence prediction (Devlin et al. 2019, section 3.1) exchanges segments between documents when text is packed; sentence
order prediction (Lan et al. 2020, section 3.1) swaps the two segments when a batch is collated.
"""

import dataclasses
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ..model.configuration_deberta_ext import DebertaExtConfig

__all__ = ["SegmentPair", "cut_pairs", "swap_segments"]


def add_head(model: nn.Module, config: DebertaExtConfig):
    # Imported here, because the import would take 200 MB of memory in each packing process.
    from ..model.modeling_deberta_ext import ContextPooler

    model.pooler = ContextPooler(config)
    # 0 = B follows A; 1 = B is from another document (NSP), or A and B are swapped (SOP).
    model.sentence_relationship = nn.Linear(config.hidden_size, 2)


def count_targets(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return (batch["sentence_labels"] != -100).sum()


def predict_relationship(
    model: nn.Module, states: torch.Tensor, batch: Mapping[str, torch.Tensor | None]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predict from the [CLS] states in `states` [B, N, d]; return logits [B, 2], sentence labels [B] and row indices [B]."""
    from ..model.modeling_deberta_ext import cls_states

    pooled = model.pooler(cls_states(states, batch["attention_mask"], None))
    rows = torch.arange(len(states), device=states.device)
    return model.sentence_relationship(pooled), batch["sentence_labels"].view(len(states)), rows


@dataclasses.dataclass
class SegmentPair:
    """Tokens of two consecutive segments A and B, and positions at which the tokens can be split into A and B."""

    document: int
    tokens: np.ndarray
    cuts: list[int]
    A: np.ndarray | None = None
    B: np.ndarray | None = None

    def cut(self, at: int) -> None:
        self.A, self.B = self.tokens[:at], self.tokens[at:]


def cut_pairs(pairs: list[SegmentPair], room: int, generator: random.Random, exchange: bool) -> list[int]:
    """Split each pair at a random position in `cuts`. If `exchange`, about half of the pairs exchange their segments B.

    After an exchange, both pairs have at most `room` tokens.

    Returns:
        `list[int]`: sentence label of each pair, 1 if B is from another document.
    """
    labels = [0] * len(pairs)
    drawn = [i for i in range(len(pairs)) if exchange and generator.random() < 0.5]
    for i, j in find_partners(pairs, drawn, room, generator):
        pairs[i].B, pairs[j].B = pairs[j].B, pairs[i].B
        labels[i] = labels[j] = 1
    for pair, label in zip(pairs, labels, strict=True):
        if not label:
            pair.cut(generator.choice(pair.cuts))
    return labels


def find_partners(
    pairs: list[SegmentPair], drawn: list[int], room: int, generator: random.Random
) -> Iterator[tuple[int, int]]:
    """Yield indices i, j of drawn pairs that can exchange segments B; split both pairs so that the results fit in `room`."""
    generator.shuffle(drawn)
    half = len(drawn) // 2
    candidates = drawn[half:]
    for i in drawn[:half]:
        for place, j in enumerate(candidates):
            if pairs[i].document == pairs[j].document:
                continue
            cuts = _fitting_cuts(pairs[i], pairs[j], room, generator)
            if cuts is not None:
                pairs[i].cut(cuts[0])
                pairs[j].cut(cuts[1])
                del candidates[place]
                yield i, j
                break


def _fitting_cuts(first: SegmentPair, second: SegmentPair, room: int, generator: random.Random) -> tuple[int, int] | None:
    """Draw positions to split two pairs, so that both have at most `room` tokens after exchanging B; None if impossible."""
    n, m = len(first.tokens), len(second.tokens)
    for a in generator.sample(first.cuts, len(first.cuts)):
        # a + m - b <= room and b + n - a <= room
        fitting = second.cuts[bisect_left(second.cuts, a + m - room) : bisect_right(second.cuts, a + room - n)]
        if fitting:
            return a, generator.choice(fitting)
    return None


def swap_segments(row: dict[str, Any], special: torch.Tensor, swap: bool) -> dict[str, Any]:
    """Return the row [CLS] A [SEP] B [SEP] with label 0 or, if `swap`, [CLS] B [SEP] A [SEP] with label 1.

    Args:
        row (`dict`): "input_ids" and "token_type_ids", [N] each, and other columns [N].
        special (`torch.BoolTensor`): [V], True for ids of special tokens.
        swap (`bool`): swap the segments.
    """
    ids, types = row["input_ids"], row.get("token_type_ids", torch.zeros(0))
    N, first = len(ids), int((types == 0).sum())
    is_pair = len(types) == N and 2 < first < N - 1 and bool((types[first:] == 1).all())
    if not is_pair or not special[ids[[0, first - 1, -1]]].all():
        raise ValueError(
            "sentence_order needs rows [CLS] A [SEP] B [SEP] with token_type_ids 0 and 1, got another format; pack with "
            "mode='segment_pair'"
        )
    if row.get("sentence_labels", 0):
        raise ValueError(
            "sentence_order needs consecutive segments, got sentence_labels 1; pack with sentence_pairs='consecutive'"
        )
    if swap:
        places = torch.arange(N)
        order = torch.cat([places[:1], places[first:-1], places[first - 1 : first], places[1 : first - 1], places[-1:]])
        row = {name: values[order] for name, values in row.items() if name != "sentence_labels"}
        row["token_type_ids"] = (places >= N - first + 1).long()
    return {**row, "sentence_labels": int(swap)}

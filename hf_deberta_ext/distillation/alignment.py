# SPDX-License-Identifier: Apache-2.0
"""Align the tokens of two tokenizers by the characters of the text that they cover.

A common border is a position in the text at which both tokenizers have a token border. Tokens between the same two
neighbouring common borders are aligned: for "un|believ|able" and "unbeliev|able", both "un" and "believ" are aligned with
"unbeliev". [CLS] is aligned with [CLS]. Other special tokens are not aligned, nor is text that only one tokenizer truncates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

__all__ = ["Spans", "align", "encode_spans"]


class Spans(NamedTuple):
    """Token ids [N] of a text or pair, and the start and end character of each token [N, 2], without surrounding spaces.

    In a pair, characters are counted in the concatenation of both texts. Special tokens have (0, 0)."""

    ids: list[int]
    places: np.ndarray


def encode_spans(tokenizer: PreTrainedTokenizerBase, texts: Sequence[tuple[str, ...]], max_length: int) -> list[Spans]:
    """Tokenise texts or pairs with a fast tokenizer, truncated to `max_length` tokens."""
    encoded = tokenizer(*map(list, zip(*texts, strict=True)), truncation=True, max_length=max_length)
    rows = []
    for text, encoding in zip(texts, encoded.encodings, strict=True):
        places = np.zeros((len(encoding.ids), 2), dtype=int)
        for token, (part, (start, end)) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True)):
            if part is None:
                continue
            piece, offset = text[part][start:end], len(text[0]) * part
            if piece.strip():
                places[token] = offset + start + len(piece) - len(piece.lstrip()), offset + start + len(piece.rstrip())
        rows.append(Spans(encoding.ids, places))
    return rows


def align(student: Spans, teacher: Spans) -> np.ndarray:
    """Return a bool matrix [N of the student, N of the teacher], True for aligned tokens."""
    cuts = np.intersect1d(borders(student.places), borders(teacher.places))
    segments = []
    for side in (student, teacher):
        segment = np.searchsorted(cuts, side.places[:, 0], side="right")
        # 0: not aligned (special tokens, and tokens before the first or after the last common border)
        segments.append(np.where((segment == len(cuts)) | ~side.places.any(1), 0, segment))
    aligned = (segments[0][:, None] == segments[1]) & (segments[0] > 0)[:, None]
    aligned[0, 0] |= not student.places[0].any() and not teacher.places[0].any()
    return aligned


def borders(places: np.ndarray) -> np.ndarray:
    """Return the start and end positions of tokens (`places`, [N, 2]), without positions that lie inside another token."""
    ends = np.unique(places[places.any(1)])
    return ends[~((places[:, :1] < ends) & (ends < places[:, 1:])).any(0)]

# SPDX-License-Identifier: Apache-2.0
"""Tokens of different tokenizers are aligned by the characters that they stand for."""

import numpy as np
import pytest
from distilled import tokenizer_of

from hf_deberta_ext.distillation.alignment import align, borders, encode_spans
from hf_deberta_ext.distillation.teacher import alignment, for_student, rows_for_student

FIRST = tokenizer_of("un", "##believ", "##able", "good")
SECOND = tokenizer_of("unbeliev", "##able", "go", "##od")
BYTES = tokenizer_of(byte_level=True)
FIVE_SPECIAL = tokenizer_of("unbeliev", "##able", pair="[CLS] $A [SEP] [SEP] $B [SEP]")


def pairs(student, teacher, *text, max_length=32, teacher_length=32):
    """Return the aligned tokens of a text as (token of the student, token of the teacher)."""
    sides = [encode_spans(student, [text], max_length)[0], encode_spans(teacher, [text], teacher_length)[0]]
    names = [tokenizer.convert_ids_to_tokens(side.ids) for tokenizer, side in zip((student, teacher), sides, strict=True)]
    return [(names[0][i], names[1][j]) for i, j in np.argwhere(align(*sides))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (("unbelievable good",), "[CLS]=[CLS] un=unbeliev ##believ=unbeliev ##able=##able good=go good=##od"),
        # The second text has its own characters.
        (("good", "good"), "[CLS]=[CLS] good=go good=##od good=go good=##od"),
        (("  good  ",), "[CLS]=[CLS] good=go good=##od"),
        ((" ",), "[CLS]=[CLS]"),
    ],
)
def test_tokens_between_common_borders_are_aligned(text, expected):
    assert pairs(FIRST, SECOND, *text) == [tuple(pair.split("=")) for pair in expected.split()]


def test_bytes_of_a_character_share_its_place_and_tokens_beyond_a_truncated_side_none():
    spans = encode_spans(BYTES, [("né o",)], 16)[0]
    assert spans.places.tolist() == [[0, 0], [0, 1], [1, 2], [1, 2], [0, 0], [3, 4], [0, 0]]
    assert borders(spans.places).tolist() == [0, 1, 2, 3, 4]
    # One [UNK] stands for the whole word, and é for two bytes.
    assert len(pairs(BYTES, FIRST, "né o")) == 1 + 3 + 1
    aligned = pairs(FIRST, SECOND, "good good unbelievable", teacher_length=6)
    assert aligned == [("[CLS]", "[CLS]"), *[("good", "go"), ("good", "##od")] * 2]
    # Truncated within a word: its other tokens have no counterpart.
    aligned = pairs(FIRST, SECOND, "good unbelievable", teacher_length=5)
    assert ("##able", "unbeliev") not in aligned and ("un", "unbeliev") in aligned


def test_every_token_of_one_tokenizer_is_aligned_with_itself_only():
    side, longer = encode_spans(FIRST, [("unbelievable", "good"), ("good", "unbelievable")], 32)
    assert (alignment(side, side, side.ids, is_same=True) == np.eye(len(side.ids), dtype=bool)).all()
    # A row of other ids is a later window of a longer text.
    assert not alignment(side, side, longer.ids, is_same=True).any()


def test_signals_of_the_teacher_are_moved_to_the_tokens_of_the_student():
    aligned = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=bool)
    values = np.array([[1.0, 2], [3, 4], [5, 8], [7, 6]])
    nan, inf = np.nan, np.inf
    cases = {
        (False, False): [[1, 2], [4, 6], [7, 6], [7, 6], [nan, nan]],
        (True, False): [[1, 2], [3, 4], [7, 6], [7, 6], [nan, nan]],
        (True, True): [[1, 2], [3, 8], [7, -inf], [-inf, 6], [nan, nan]],
    }
    for (is_logit, is_answer), expected in cases.items():
        np.testing.assert_array_equal(for_student(values, aligned, is_logit, is_answer), expected)


def test_windows_of_a_longer_text_have_no_embedding_to_compare():
    """Bug: they were compared with the teacher's embedding of an empty text."""

    class EmbeddingTeacher:
        names, per_row = ["embeddings"], {"embeddings"}

        def run(self, texts):
            return [{"embeddings": np.ones((1, 2))} for _ in texts]

    rows, _ = rows_for_student(EmbeddingTeacher(), [("who?", "Ada"), ("", "")], [[1], [2]], FIRST, longest=8)
    assert [bool(np.isnan(row["embeddings"]).all()) for row in rows] == [False, True]


@pytest.mark.parametrize("text", [("unbelievable good good",), ("good", "unbelievable")])
@pytest.mark.parametrize("teacher", [SECOND, BYTES, FIVE_SPECIAL], ids=["pieces", "bytes", "five special tokens"])
def test_aligned_tokens_overlap_and_every_character_is_aligned(teacher, text):
    sides = [encode_spans(tokenizer, [text], 64)[0] for tokenizer in (FIRST, teacher)]
    aligned = align(*sides)
    for side, matrix in zip(sides, (aligned, aligned.T), strict=True):
        is_word = side.places.any(1)
        assert (matrix.any(1) == is_word | (np.arange(len(is_word)) == 0)).all()
    for i, j in np.argwhere(aligned)[1:]:
        first, second = sides[0].places, sides[1].places
        segment = aligned[:, j], aligned[i]
        lows = first[segment[0]].min(), second[segment[1]].min()
        assert lows[0] == lows[1] and first[segment[0]].max() == second[segment[1]].max()

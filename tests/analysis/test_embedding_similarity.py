# SPDX-License-Identifier: Apache-2.0
"""Average cosine similarity: by hand, chosen rows, and errors."""

import math

import pytest
import torch

from hf_deberta_ext.analysis.embedding_similarity import average_cosine_similarity


@pytest.mark.parametrize(
    "table, expected",
    [
        ([[1.0, 0.0], [3.0, 4.0]], 0.6),
        ([[1.0, 0.0], [0.0, 2.0]], 0.0),
        ([[2.0, 1.0], [-4.0, -2.0]], -1.0),
        ([[1.0, 2.0], [2.0, 4.0], [0.5, 1.0]], 1.0),
        # Pairs: 0 (0 and 90 degrees), -1 (0 and 180), 0 (90 and 180).
        ([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], -1 / 3),
    ],
    ids=["acute", "orthogonal", "opposite", "parallel", "three"],
)
def test_average_cosine_similarity_by_hand(table, expected):
    assert average_cosine_similarity(torch.tensor(table)) == pytest.approx(expected, abs=1e-12)


def test_rows_choose_what_is_compared_each_once():
    table = torch.randn(37, 5, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([30, 2, 3, 11, 2])
    mask = torch.zeros(len(table), dtype=torch.bool)
    mask[chosen] = True
    expected = average_cosine_similarity(table[[2, 3, 11, 30]])
    assert average_cosine_similarity(table, chosen) == expected
    assert average_cosine_similarity(table, mask) == expected
    assert abs(expected - average_cosine_similarity(table)) > 1e-3


@pytest.mark.parametrize(
    "table, rows, error",
    [
        (torch.eye(4) * torch.tensor([0.0, 1, 0, 0]), None, r"table must have at least two nonzero rows, got 1 in shape"),
        (torch.ones(4, 2), torch.tensor([3, 3]), "got 1 in shape"),
        (torch.tensor([[1.0, math.nan], [1.0, 2.0]]), None, "NaN or infinity"),
        (torch.tensor([[1.0, math.inf], [1.0, 2.0]]), None, "NaN or infinity"),
    ],
)
def test_what_cannot_be_compared_is_refused(table, rows, error):
    with pytest.raises(ValueError, match=error):
        average_cosine_similarity(table, rows)

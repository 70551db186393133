# SPDX-License-Identifier: Apache-2.0
"""Class weights by hand, and class-balanced sampling."""

import numpy as np
import pytest
import torch

from hf_deberta_ext.finetuning.class_weights import BalancedSampler, WeightedLoss, class_weights


@pytest.mark.parametrize(
    ("flag", "rows", "weights"),
    [
        ("balanced", 10, [9.0, 1.5, 1.0]),
        ('{"b": 3, "a": 0.5}', None, [0.5, 3.0, 1.0]),
        ("{}", None, [1.0, 1.0, 1.0]),
    ],
)
def test_weights_by_hand(flag, rows, weights):
    """Multi-label weights are texts without the label divided by texts with it; all texts have c."""
    assert class_weights(flag, dict(a=1, b=4, c=10), ["a", "b", "c"], rows) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("inverse", "--class_weights is not JSON"),
        ("[1, 2]", r"must be 'balanced' or JSON with keys from a, b, got '\[1, 2\]'"),
        ('{"a": 0}', "--class_weights must be positive, got 0 for 'a'"),
        ('{"a": Infinity}', "--class_weights must be positive, got inf for 'a'"),
    ],
)
def test_weights_that_are_wrong_are_refused(flag, message):
    with pytest.raises(ValueError, match=message):
        class_weights(flag, dict(a=1, b=1), ["a", "b"])


def test_the_loss_of_half_precision_is_computed_in_float32():
    outputs, labels = {"logits": torch.tensor([[1.0, 2.0], [0.5, -1.0]]).bfloat16()}, torch.tensor([1, -100])
    assert WeightedLoss([1.0, 3.0])(outputs, labels).dtype == torch.float32
    assert float(WeightedLoss([1.0, 3.0]).denominator(labels)) == 3.0
    assert float(WeightedLoss([1.0, 3.0], multi_label=True).denominator(torch.zeros(4, 2))) == 8.0


def test_each_class_is_drawn_equally_often_and_each_epoch_is_another_draw():
    labels = [0] * 2_700 + [1] * 290 + [2] * 10
    sampler = BalancedSampler(labels, seed=1)
    first, again = [*sampler], [*sampler]
    counts = np.bincount([labels[row] for row in first])
    # Tolerance: three standard deviations
    assert len(first) == len(sampler) == 3_000 and np.abs(counts - 1_000).max() < 3 * np.sqrt(3_000 * 2 / 9)
    assert len({row for row in first if row >= 2_990}) == 10
    sampler.set_epoch(1)
    assert first == again and [*sampler] != first != [*BalancedSampler(labels, seed=2)]

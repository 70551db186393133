# SPDX-License-Identifier: Apache-2.0
"""`relative_error`, which most tests use: the error of the worst row, or an assertion if it is undefined."""

import pytest
import torch
from run_summary import WORST

NAME = "relative_error by hand"


@pytest.fixture
def measure(relative_error):
    yield lambda *given: relative_error(NAME, *given)
    # Errors made on purpose are not part of the summary of the run.
    WORST.pop(NAME, None)


def test_the_worst_row_counts_and_not_the_mean(measure):
    reference = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    ours = reference + torch.tensor([[0.0, 0.0], [0.0, 0.5], [0.0, 0.1]])
    assert measure(ours, reference) == pytest.approx(0.25)
    assert measure(ours, reference, torch.tensor([True, False, True])) == pytest.approx(0.1)
    assert WORST[NAME] == [2, pytest.approx(0.25)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", ["ours", "reference"])
def test_nan_is_no_small_error(side, value, measure):
    """max(nan, x) may be x, so a row that is not finite would be ignored."""
    sides = dict(ours=torch.ones(2, 3), reference=torch.ones(2, 3))
    sides[side][1, 2] = value
    with pytest.raises(AssertionError):
        measure(sides["ours"], sides["reference"])

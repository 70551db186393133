# SPDX-License-Identifier: Apache-2.0
"""Metrics against values computed by hand, metrics of groups and of constant predictions, and invalid inputs."""

import json
import math

import numpy as np
import pytest

from hf_deberta_ext.finetuning.metrics import (
    TASK_METRICS,
    accuracy,
    compute,
    f1,
    grouped_accuracy,
    macro_f1,
    matthews_correlation,
    micro_f1,
    multirc,
    pearson,
    spearman,
)

# 226,000 rows: n^4 is 2.6e21, above 2^63.
MANY = np.arange(226_000) % 2
BY_HAND = {
    "accuracy": (accuracy, [1, 0, 2, 2], [1, 1, 2, 0], 0.5),
    "names": (accuracy, ["a", "b"], ["a", "c"], 0.5),
    # 2 hits, 3 predicted, 4 true: P = 2/3, R = 1/2, F1 = 4/7. F1 of label 0 would be 2 * 1 / (3 + 2).
    "f1 of label 1": (f1, [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0], 4 / 7),
    # label 0: 1 hit, 1 predicted, 2 true: 2/3; label 1: 1, 2, 1: 2/3; label 3: predicted once, never true: 0; label 2: 1.
    "macro f1 over the labels of either side": (macro_f1, [0, 1, 1, 3, 2], [0, 0, 1, 2, 2], (2 / 3 + 2 / 3 + 2 / 3 + 0) / 4),
    # 2 hits of 3 predicted and 4 true pairs.
    "micro f1 of pairs": (micro_f1, [[1, 0, 1], [0, 1, 0]], [[1, 1, 0], [0, 1, 1]], 2 * 2 / (3 + 4)),
    # tp 2, tn 1, fp 1, fn 1: (2 * 1 - 1 * 1) / sqrt(3 * 3 * 2 * 2) = 1/6.
    "matthews": (matthews_correlation, [1, 1, 1, 0, 0], [1, 1, 0, 0, 1], 1 / 6),
    "matthews, many right": (matthews_correlation, MANY, MANY, 1.0),
    "matthews, many wrong": (matthews_correlation, 1 - MANY, MANY, -1.0),
    # Centred: (-1, 0, 1) and (-2, -1, 3): 5 / sqrt(2 * 14).
    "pearson": (pearson, [1, 2, 3], [0, 1, 5], 5 / math.sqrt(28)),
    "spearman": (spearman, [1, 2, 3], [0, 1, 500], 1.0),
    # Ranks (1.5, 1.5, 3) and (1, 2, 3), centred (-.5, -.5, 1) and (-1, 0, 1): 1.5 / sqrt(1.5 * 2).
    "spearman, equal ranks": (spearman, [7, 7, 9], [1, 2, 3], 1.5 / math.sqrt(3)),
}


@pytest.mark.parametrize(("metric", "predictions", "references", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_metrics_by_hand(metric, predictions, references, expected):
    assert metric(predictions, references) == pytest.approx(expected)


def test_metrics_of_groups_by_hand():
    groups = ["middle", "high", "middle", None, "high", "high"]
    found = grouped_accuracy([0, 1, 2, 3, 0, 1], [0, 1, 0, 3, 1, 2], groups)
    assert found == {"accuracy": 0.5, "high_accuracy": pytest.approx(1 / 3), "middle_accuracy": 0.5}
    assert list(found) == ["accuracy", "high_accuracy", "middle_accuracy"]
    # a: all correct. b: one of two is wrong (macro-F1: label 1 is 2 * 1 / (2 + 1), label 0 is 0). c: correct, one label.
    groups = [(0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c")]
    found = multirc([1, 1, 0, 1, 0], [1, 1, 0, 0, 0], groups)
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert found["f1_m"] == pytest.approx((1 + (2 / 3 + 0) / 2 + 1) / 3)
    assert found["f1_a"] == pytest.approx(2 * 2 / (3 + 2))


def test_every_task_but_record_is_computed_by_name():
    for task, names in TASK_METRICS.items():
        if task != "record":
            assert list(compute(names, [0, 1, 1], [0, 1, 0], groups=["a", "a", "b"])) == list(names)


def test_a_constant_gives_zero_and_valid_json():
    """scipy's NaN would not be valid JSON."""
    constant = [0.1] * 7
    found = {
        **compute(["pearson", "spearmanr"], constant, range(7)),
        **compute(["matthews_correlation", "f1"], [0] * 4, [0, 1, 1, 0]),
        "references": pearson([1.0, 2.0], [3.0, 3.0]),
        "both": matthews_correlation([1, 1], [1, 1]),
        "nothing to find": f1([0, 0], [0, 0]),
        "no pair": micro_f1([[0, 0]], [[0, 0]]),
        "one": spearman([1.5], [2.5]),
    }
    assert {*found.values()} == {0.0}
    assert json.loads(json.dumps(found, allow_nan=False)) == found

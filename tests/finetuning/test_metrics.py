# SPDX-License-Identifier: Apache-2.0
"""Metrics, which are those of scikit-learn and scipy: by hand, of groups, then constant predictions and mistakes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_deberta_ext.finetuning.metrics import (
    METRICS,
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

ROOT = Path(__file__).resolve().parents[2]

# ------- by hand


def test_accuracy_counts_hits():
    assert accuracy([1, 0, 2, 2], [1, 1, 2, 0]) == 0.5


def test_accuracy_takes_names_arrays_and_tensors():
    assert accuracy(["a", "b"], ["a", "c"]) == 0.5
    assert accuracy(torch.tensor([1, 0, 1]), np.array([1.0, 1.0, 1.0])) == pytest.approx(2 / 3)
    assert accuracy(np.array([True, False]), [1, 0]) == 1.0


@pytest.mark.criterion("B2.2")
def test_f1_is_of_label_1():
    # 2 hits, 3 predicted, 4 right: P = 2/3, R = 1/2, F1 = 4/7. Of label 0 it would be 2 * 1 / (3 + 2).
    assert f1([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]) == pytest.approx(4 / 7)


def test_macro_f1_is_the_mean_over_the_labels_of_either_side():
    # label 0: 1 hit, 1 predicted, 2 right: 2/3; label 1: 1, 2, 1: 2/3; label 3: predicted once, never right: 0; label 2: 1.
    assert macro_f1([0, 1, 1, 3, 2], [0, 0, 1, 2, 2]) == pytest.approx((2 / 3 + 2 / 3 + 2 / 3 + 0) / 4)


def test_micro_f1_counts_pairs():
    # 2 hits of 3 predicted and 4 right pairs.
    assert micro_f1([[1, 0, 1], [0, 1, 0]], [[1, 1, 0], [0, 1, 1]]) == pytest.approx(2 * 2 / (3 + 4))


@pytest.mark.criterion("B2.2")
def test_matthews_correlation_of_two_labels():
    # tp 2, tn 1, fp 1, fn 1: (2 * 1 - 1 * 1) / sqrt(3 * 3 * 2 * 2) = 1/6.
    assert matthews_correlation([1, 1, 1, 0, 0], [1, 1, 0, 0, 1]) == pytest.approx(1 / 6)
    assert matthews_correlation([0, 1], [0, 1]) == 1.0
    assert matthews_correlation([1, 0], [0, 1]) == -1.0


def test_matthews_correlation_does_not_overflow():
    """n^4 of these is 2.6e21, above 2^63."""
    references = np.arange(226_000) % 2
    assert matthews_correlation(references, references) == 1.0
    assert matthews_correlation(1 - references, references) == -1.0


@pytest.mark.criterion("B2.2")
def test_pearson_and_spearman_by_hand():
    # Centred: (-1, 0, 1) and (-2, -1, 3): 5 / sqrt(2 * 14).
    assert pearson([1, 2, 3], [0, 1, 5]) == pytest.approx(5 / math.sqrt(28))
    assert spearman([1, 2, 3], [0, 1, 500]) == pytest.approx(1.0)
    # Ranks (1.5, 1.5, 3) and (1, 2, 3), centred (-.5, -.5, 1) and (-1, 0, 1): 1.5 / sqrt(1.5 * 2).
    assert spearman([7, 7, 9], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(3))


def test_pearson_of_huge_and_tiny_numbers():
    numbers = np.array([1.0, 2.0, 4.0])
    assert pearson(numbers * 1e307, numbers * 1e-307) == pytest.approx(1.0)


@pytest.mark.criterion("A15.4")
def test_grouped_accuracy_reports_each_group_and_all():
    groups = ["middle", "high", "middle", None, "high", "high"]
    found = grouped_accuracy([0, 1, 2, 3, 0, 1], [0, 1, 0, 3, 1, 2], groups)
    assert found == {"accuracy": 0.5, "high_accuracy": pytest.approx(1 / 3), "middle_accuracy": 0.5}
    assert list(found) == ["accuracy", "high_accuracy", "middle_accuracy"]


def test_multirc_by_hand():
    # Question a: all right. b: one of two wrong (macro-F1: label 1 is 2 * 1 / (2 + 1), label 0 is 0). c: right, one label.
    groups = [(0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c")]
    found = multirc([1, 1, 0, 1, 0], [1, 1, 0, 0, 0], groups)
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert found["f1_m"] == pytest.approx((1 + (2 / 3 + 0) / 2 + 1) / 3)
    assert found["f1_a"] == pytest.approx(2 * 2 / (3 + 2))


def test_compute_gives_the_metrics_of_a_task_and_their_mean():
    found = compute(TASK_METRICS["mrpc"], [1, 1, 0, 0], [1, 0, 0, 0])
    assert found == {"accuracy": 0.75, "f1": pytest.approx(2 / 3), "combined_score": pytest.approx((0.75 + 2 / 3) / 2)}
    assert list(found) == ["accuracy", "f1", "combined_score"]
    assert compute("accuracy", [1], [1]) == {"accuracy": 1.0}
    assert compute(TASK_METRICS["multirc"], [1, 0], [1, 1], groups=["a", "a"]) == multirc([1, 0], [1, 1], ["a", "a"])


def test_every_task_but_record_is_computed_by_name():
    for task, names in TASK_METRICS.items():
        if task != "record":
            assert list(compute(names, [0, 1, 1], [0, 1, 0], groups=["a", "a", "b"])) == list(names)


# ------- against scikit-learn


def test_multirc_equals_scikit_learn_question_by_question():
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(1)
    references, predictions = draw.integers(0, 2, (2, 200))
    groups = draw.integers(0, 40, 200).tolist()
    parts = [np.array([group == question for group in groups]) for question in set(groups)]
    found = multirc(predictions, references, groups)
    assert found["exact_match"] == pytest.approx(np.mean([(predictions == references)[part].all() for part in parts]))
    macro = [sklearn.f1_score(references[part], predictions[part], average="macro", zero_division=0) for part in parts]
    assert found["f1_m"] == pytest.approx(np.mean(macro))
    assert found["f1_a"] == pytest.approx(sklearn.f1_score(references, predictions))


# ------- constant predictions


@pytest.mark.criterion("B2.2")
def test_a_constant_gives_zero_and_valid_json():
    """scipy's NaN would be no JSON."""
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


def test_results_are_plain_floats():
    found = compute([name for name in METRICS if name != "micro_f1"], np.array([0, 1, 1]), np.array([0, 1, 0]))
    found |= multirc([0, 1], [1, 1], "ab") | grouped_accuracy([0], [0], ["a"])
    assert {type(value) for value in found.values()} == {float}


# ------- mistakes


@pytest.mark.parametrize("name", [name for name in METRICS if name != "micro_f1"])
def test_every_metric_refuses_what_it_cannot_score(name):
    metric = METRICS[name]
    with pytest.raises(ValueError, match="predictions are empty"):
        metric([], [])
    with pytest.raises(ValueError, match="references are empty"):
        metric([1], [])
    with pytest.raises(ValueError, match=r"predictions \[2\] and references \[3\]"):
        metric([1, 0], [1, 0, 1])
    with pytest.raises(ValueError, match="predictions hold nan at number 2 of 3"):
        metric([1.0, float("nan"), 0.0], [1, 0, 1])
    with pytest.raises(ValueError, match="references hold inf at number 1"):
        metric([1, 0], [float("inf"), 0])
    with pytest.raises(ValueError, match=r"predictions must be one value .* got shape \[2, 3\]"):
        metric(np.zeros((2, 3)), [1, 0])


@pytest.mark.parametrize("name", ["accuracy", "f1", "macro_f1", "matthews_correlation"])
def test_probabilities_are_no_labels(name):
    with pytest.raises(ValueError, match=r"predictions must be labels, got 0\.9"):
        METRICS[name]([0.9, 1.0], [1, 1])


def test_names_and_numbers_do_not_mix():
    with pytest.raises(ValueError, match="of one kind, names or numbers, got 'a' and 1"):
        accuracy(["a"], [1])
    with pytest.raises(ValueError, match="predictions must be numbers, got <U1"):
        pearson(["a"], [1])
    with pytest.raises(ValueError, match="references must be numbers, got object"):
        accuracy([1, 1], [1, None])


def test_f1_refuses_a_third_label():
    with pytest.raises(ValueError, match=r"references must be 0 or 1, got 2; .*macro_f1"):
        f1([1, 0], [1, 2])
    with pytest.raises(ValueError, match="predictions must be 0 or 1, got -1"):
        micro_f1([[1, -1]], [[1, 0]])
    with pytest.raises(ValueError, match=r"\[examples, labels\], got shape \[2\]"):
        micro_f1([1, 0], [1, 0])


def test_groups_must_be_one_for_each_example():
    with pytest.raises(ValueError, match="got 1 groups for 2 predictions"):
        grouped_accuracy([1, 0], [1, 0], ["a"])
    with pytest.raises(ValueError, match="got 3 groups for 2 predictions"):
        multirc([1, 0], [1, 0], ["a", "b", "c"])


def test_compute_names_what_there_is():
    with pytest.raises(ValueError, match="there is no metric 'acuracy'; there are accuracy, f1"):
        compute(["acuracy"], [1], [1])
    with pytest.raises(ValueError, match=r"exact_match needs groups: .*question_answering_metrics"):
        compute(TASK_METRICS["record"], [1], [1])
    with pytest.raises(ValueError, match="combined_score is the mean of other metrics"):
        compute("combined_score", [1], [1])


@pytest.mark.criterion("B2.1")
def test_metrics_need_no_evaluate_whose_absence_is_named():
    code = """
import sys
import hf_deberta_ext
for name in ("evaluate", "seqeval"):
    sys.modules[name] = None
from hf_deberta_ext.finetuning import metrics
from hf_deberta_ext.finetuning.tasks import entity_metrics, question_answering_metrics
assert metrics.compute(["accuracy", "f1", "pearson", "spearmanr"], [0, 1], [0, 1])["spearmanr"] == 1
assert question_answering_metrics.squad_v2({"a": ""}, {"a": []}, {"a": 0.5})["best_f1"] == 100
assert entity_metrics.entity_scores([["B-A"]], [["B-A"]])["overall_f1"] == 1
try:
    from hf_deberta_ext.finetuning import evaluate_metrics
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "need evaluate: pip install" in done.stdout

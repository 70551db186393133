# SPDX-License-Identifier: Apache-2.0
"""Labels: problem type, order in the data and in a checkpoint, predictions from logits, and invalid labels."""

from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, List

from hf_deberta_ext.finetuning.tasks.labels import Labels, find_labels, label_cells

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def found(*cells, **more):
    return find_labels([*cells], source="--train_file", **more)


@pytest.mark.parametrize(
    ("cells", "kind", "names"),
    [
        (["b", "a", "b"], SINGLE, ("a", "b")),
        (["10", "9", "9"], SINGLE, ("9", "10")),
        ([10, 9, 2], SINGLE, ("2", "9", "10")),
        ([-1, 0, 1], SINGLE, ("-1", "0", "1")),
        ([True, False], SINGLE, ("False", "True")),
        ([0.5, 1, 2], REGRESSION, ()),
        # Only texts in decimal notation are numbers; other texts that Python can convert are names.
        (["01", "02", "10"], SINGLE, ("01", "02", "10")),
        (["1_0", "2"], SINGLE, ("1_0", "2")),
        (["inf", "nan"], SINGLE, ("inf", "nan")),
        ([" 0.5", "1.", "-2.5e-3", "+.5", "3", "nan"], REGRESSION, ()),
        ([["b"], [], ["a", "b"]], MULTI, ("a", "b")),
        ([[0, 1], [1], []], MULTI, ("0", "1")),
        ([[3], [10, 2]], MULTI, ("2", "3", "10")),
    ],
)
def test_the_kind_of_labels_and_their_order(cells, kind, names):
    labels = found(*cells)
    assert (labels.problem_type, labels.names) == (kind, names)


@pytest.mark.parametrize(
    ("labels", "cells", "encoded"),
    [
        (found("b", "a", "B"), ["b", "a", "B"], [2, 1, 0]),
        (found("10", "9"), ["10", "9", 9], [1, 0, 0]),
        (found(-1, 0, 1), [-1, "1", 0], [0, 2, 1]),
        (found(False, True), [True, "False"], [1, 0]),
        (found(0.5), [1, "2.5", 0.5], [1.0, 2.5, 0.5]),
        (found(["a"], ["c", "b"]), [["c", "a"], []], [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
        (Labels(SINGLE, ("no", "yes")), ["yes", 0, "1", "NO", 1.0], [1, 0, 1, 0, 1]),
        # Names take precedence over numbers.
        (Labels(SINGLE, ("1", "0")), ["1", 1], [0, 1]),
        (Labels(REGRESSION), [-1.0, "3", 5], [-1.0, 3.0, 5.0]),
    ],
)
def test_cells_become_numbers_of_labels(labels, cells, encoded):
    assert labels.encode(cells, source="x") == encoded


def test_what_logits_say():
    labels = Labels(SINGLE, ("a", "b", "c"), order=(2, 0, 1))
    logits = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9]])
    assert labels.predicted(logits).tolist() == [1, 2, 0]
    assert labels.shown(labels.predicted(logits)) == ["b", "c", "a"]
    assert labels.for_model([1, 2, 0]) == [0, 1, 2]
    assert labels.config_fields()["id2label"] == {0: "b", 1: "c", 2: "a"}

    multi = Labels(MULTI, ("a", "b", "c"), order=(2, 0, 1))
    assert multi.predicted(np.array([[0.1, -0.1, -1], [-3, 0.0, -1]])).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert multi.shown(np.array([[0, 1, 0], [0, 0, 0], [1, 1, 0]])) == [["b"], [], ["a", "b"]]
    assert multi.for_model([[1.0, 0.0, 0.0]]) == [[0.0, 0.0, 1.0]]

    for scores in ([1.5, -2.0], [[1.5], [-2.0]]):
        assert Labels(REGRESSION).predicted(np.array(scores)).tolist() == [1.5, -2.0]
    assert Labels(REGRESSION).shown(np.array([1.5])) == [1.5]


@pytest.mark.parametrize(
    ("label2id", "warning"),
    [
        (None, None),
        ({"LABEL_0": 0, "LABEL_1": 1}, None),
        ({"a": 0, "b": 7}, None),
        ({"NEG": 0, "POS": 1}, "replacing the checkpoint's labels NEG, POS with a, b in this order"),
    ],
)
def test_a_checkpoint_without_such_names_takes_those_of_the_data(label2id, warning, caplog):
    labels = found("b", "a")
    assert labels.in_order_of(label2id) == labels
    assert caplog.messages == [warning] * (warning is not None)


@pytest.mark.parametrize(
    ("problem_type", "names", "kind", "cells", "encoded"),
    [
        (None, ["neg", "neutral", "pos"], SINGLE, ["pos", "Neutral", 1], [2, 1, 1]),
        (None, ["2", "5"], SINGLE, [5, "2"], [1, 0]),
        (None, ["x"], REGRESSION, [1, "4"], [1.0, 4.0]),
        (MULTI, ["a", "b"], MULTI, [["b"], []], [[0.0, 1.0], [0.0, 0.0]]),
    ],
)
def test_without_training_data_the_checkpoint_says_what_labels_are(problem_type, names, kind, cells, encoded):
    config = SimpleNamespace(id2label=dict(enumerate(names)), num_labels=len(names), problem_type=problem_type)
    labels = Labels.of_config(config)
    assert labels.problem_type == kind and labels.encode(cells, source="x") == encoded


def test_names_of_a_data_set_are_those_of_its_features():
    feature = ClassLabel(names=["bad", "good"])
    rows = Dataset.from_dict({"one": [1, 0], "all": [[1], [0, 1]], "plain": ["x", "y"]})
    rows = rows.cast_column("one", feature).cast_column("all", List(feature))
    assert label_cells(rows, "one") == ([1, 0], ["bad", "good"])
    assert label_cells(rows, "all") == ([[1], [0, 1]], ["bad", "good"])
    assert label_cells(rows, "plain") == (["x", "y"], None)
    spaces = Dataset.from_dict({"one": ["very good", "very good ", " bad\r"], "all": [["a "], [" b", "a"], []]})
    assert label_cells(spaces, "one")[0] == ["very good", "very good", "bad"]
    assert label_cells(spaces, "all")[0] == [["a"], ["b", "a"], []]


@pytest.mark.parametrize("nothing", [[-1, -1], [None, None], [None], ["", ""], ["-1", "-1"], [-1.0, None]])
def test_only_a_test_set_may_have_no_labels(nothing):
    assert Labels(REGRESSION).encode(nothing, source="x", test=True) is None
    labels = Labels(SINGLE, ("a", "b"))
    assert labels.encode(nothing, source="x", test=True) is None
    with pytest.raises(ValueError, match=r"x must have labels, got only .* --test_file"):
        labels.encode(nothing, source="x")
    # -1 is a label if the training set has it.
    assert found(-1, 1).encode([-1, -1], source="x", test=True) == [0, 0]


def test_the_flag_says_what_labels_of_two_readings_are():
    assert found(1, 2, problem_type=REGRESSION).problem_type == REGRESSION
    assert found("1", "2", problem_type=REGRESSION).encode(["2"], source="x") == [2.0]
    assert found("01", " 2", problem_type=REGRESSION).encode(["01"], source="x") == [1.0]
    assert found(["a"], problem_type=MULTI).problem_type == MULTI
    assert found(2.0, 1.0, problem_type=SINGLE).names == ("1.0", "2.0")
    assert found(0, 1, names=["no", "yes"]).names == ("no", "yes")
    assert found([0], [1], names=["no", "yes"]).encode([[1], ["no"]], source="x") == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("labels", "cells", "message"),
    [
        (found("a", "b"), ["a", "c"], r"row 2 of x has the label 'c', .* the labels of --train_file \(2\): a, b$"),
        (Labels(SINGLE, ("no", "yes"), source="boolq"), [0, 2], r"row 2 .* the label 2, .* of boolq \(2\): no, yes$"),
        (found("a", "b"), ["a", None], r"row 2 of x has the label None"),
        (found("a", "b"), [["a"], "b"], r"row 1 of x has the label \['a'\]"),
        (found("a", "b"), [-1, "a"], r"row 1 of x has the label -1"),
        (found(0.5), [0.5, float("nan")], "row 2 of x has the label nan, expected a finite number"),
        (found(["a"], ["b"]), [["c"]], r"the label \['c'\], expected a list of distinct labels.* a, b$"),
        (found([0], [1]), [[0, 1, 1]], r"the label \[0, 1, 1\], expected a list of distinct labels"),
    ],
)
def test_wrong_labels_are_named(labels, cells, message):
    with pytest.raises(ValueError, match=message):
        labels.encode(cells, source="x")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", 1], "must be all texts or all numbers"),
        ([None, {"id": 1}], r"--train_file has the label {'id': 1}, expected text, a number, or .* a list"),
        ([["a"], [["b"]]], r"--train_file has the label \['b'\], expected"),
    ],
)
def test_labels_of_the_wrong_kind_are_refused(cells, message):
    with pytest.raises(ValueError, match=message):
        found(*cells)


@pytest.mark.parametrize("names", [None, ["sport", "news"]])
@pytest.mark.parametrize(
    "cells", [([1.0, 0.0], [0.0, 1.0]), ([True, False], [True, True]), (["1", "0"], ["0", "0"]), ([1.0], [0.0])]
)
def test_a_0_or_1_for_each_label_is_refused(cells, names):
    """Bug: [1.0, 0.0] was read as the two labels "1.0" and "0.0"."""
    with pytest.raises(ValueError, match=r"a 0 or 1 for each label; expected a list of the labels .*\[\] for none"):
        found(*cells, names=names)


@pytest.mark.parametrize(
    ("kind", "thresholds", "logits", "predicted"),
    [
        # The probability of the second label is 0.6.
        (SINGLE, {"b": 0.7}, [[2, 3]], [0]),
        (SINGLE, {"b": 0.6}, [[2, 3]], [1]),
        (SINGLE, {"a": 0.3}, [[2, 3]], [0]),
        (SINGLE, {"a": 0.45, "b": 0.55}, [[2, 3]], [1]),
        (SINGLE, None, [[2, 3]], [1]),
        (MULTI, {"a": 0.7}, [[2, 3], [3, 2]], [[0, 1], [1, 1]]),
        (MULTI, {"a": 0.7, "b": 0.8}, [[2, 3], [3, 2]], [[0, 0], [1, 0]]),
        (MULTI, None, [[2, 3], [0.5, 2]], [[1, 1], [0, 1]]),
    ],
)
def test_saved_thresholds_decide_which_label_is_predicted(kind, thresholds, logits, predicted):
    config = SimpleNamespace(problem_type=kind, num_labels=2, id2label={0: "a", 1: "b"})
    if thresholds:
        config.decision_thresholds = thresholds
    # Values are odds: 2 is a probability of 2 / 3 (multi-label), or of 2 / (2 + 3) next to 3 (classes).
    labels = Labels.of_config(config)
    assert labels.decided(np.log(logits)).tolist() == predicted
    # Metrics do not depend on the thresholds.
    most_probable = [1] if kind == SINGLE else (np.log(logits) > 0).tolist()
    assert labels.predicted(np.log(logits)).tolist() == most_probable


def test_a_threshold_of_another_label_is_refused():
    config = SimpleNamespace(problem_type=SINGLE, num_labels=2, id2label={0: "a", 1: "b"}, decision_thresholds={"c": 0.3})
    with pytest.raises(ValueError, match="the checkpoint's decision_thresholds must be for a, b, got 'c'"):
        Labels.of_config(config)

# SPDX-License-Identifier: Apache-2.0
"""Labels: their kind and order in the data, those of a checkpoint, what a model's logits mean, and wrong ones."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("datasets")

from datasets import ClassLabel, Dataset, List

from hf_deberta_ext.finetuning.tasks.labels import Labels, find_labels, label_cells

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def found(*cells, trained=True, **more):
    return find_labels({"--train_file": [*cells]}, trained=trained, **more)


@pytest.mark.parametrize(
    ("cells", "kind", "names"),
    [
        (["b", "a", "b"], SINGLE, ("a", "b")),
        (["10", "9", "9"], SINGLE, ("9", "10")),
        ([10, 9, 2], SINGLE, ("2", "9", "10")),
        ([-1, 0, 1], SINGLE, ("-1", "0", "1")),
        ([True, False], SINGLE, ("False", "True")),
        ([0.5, 1.0], REGRESSION, ()),
        (["0.5", "1"], REGRESSION, ()),
        ([0.5, 1, 2], REGRESSION, ()),
        # Texts are numbers only where a number is written so: what else looks like one is a name.
        (["01", "02", "10"], SINGLE, ("01", "02", "10")),
        ([" 1", "2"], SINGLE, (" 1", "2")),
        (["1_0", "2"], SINGLE, ("1_0", "2")),
        (["nan", "1"], SINGLE, ("1", "nan")),
        (["inf", "nan"], SINGLE, ("inf", "nan")),
        ([" 0.5", "1.", "-2.5e-3", "+.5", "3"], REGRESSION, ()),
        ([["b"], [], ["a", "b"]], MULTI, ("a", "b")),
        ([[0], [1], [0]], MULTI, ("0", "1")),
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
        (found(10, 9), [10, "9"], [1, 0]),
        (found(-1, 0, 1), [-1, "1", 0], [0, 2, 1]),
        (found(False, True), [True, "False", 1], [1, 0, 1]),
        (found("02", "1"), ["02", "1"], [1, 0]),
        (found(0.5), [1, "2.5", 0.5], [1.0, 2.5, 0.5]),
        (found(["a"], ["c", "b"]), [["c", "a"], []], [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
        (Labels(SINGLE, ("no", "yes")), ["yes", 0, "1", "NO", 1.0], [1, 0, 1, 0, 1]),
        # A name that is a number counts before a number.
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
    assert labels.from_model(labels.for_model([1, 2, 0])).tolist() == [1, 2, 0]
    assert labels.config_fields()["id2label"] == {0: "b", 1: "c", 2: "a"}

    multi = Labels(MULTI, ("a", "b", "c"), order=(2, 0, 1))
    assert multi.predicted(np.array([[0.1, -0.1, -1], [-3, 0.0, -1]])).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert multi.shown(np.array([[0, 1, 0], [0, 0, 0], [1, 1, 0]])) == [["b"], [], ["a", "b"]]
    assert multi.for_model([[1.0, 0.0, 0.0]]) == [[0.0, 0.0, 1.0]]
    assert multi.from_model(multi.for_model([[1.0, 0.0, 0.0]])).tolist() == [[1.0, 0.0, 0.0]]

    for scores in ([1.5, -2.0], [[1.5], [-2.0]]):
        assert Labels(REGRESSION).predicted(np.array(scores)).tolist() == [1.5, -2.0]
    assert Labels(REGRESSION).shown(np.array([1.5])) == [1.5]


def test_a_checkpoint_of_the_same_names_keeps_its_order_in_whatever_case():
    labels = Labels(SINGLE, ("entailment", "neutral", "contradiction"))
    ours = labels.in_order_of({"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2})
    assert ours.order == (2, 1, 0)
    assert ours.names == labels.names
    id2label = {0: "contradiction", 1: "neutral", 2: "entailment"}
    label2id = {name: number for number, name in id2label.items()}
    assert ours.config_fields() == dict(num_labels=3, id2label=id2label, label2id=label2id, problem_type=SINGLE)
    assert ours.encode(["entailment"], source="x") == [0]
    assert Labels(REGRESSION).config_fields() == dict(num_labels=1, problem_type=REGRESSION)


@pytest.mark.parametrize(
    ("label2id", "trained", "warning"),
    [
        (None, True, None),
        ({}, True, None),
        ({"LABEL_0": 0, "LABEL_1": 1}, True, None),
        ({"a": 0, "b": 7}, True, ""),
        ({"a": 0}, True, ""),
        ({"A": 0, "a": 1, "b": 2}, True, ""),
        ({"NEG": 0, "POS": 1}, True, "the labels NEG, POS of the checkpoint become a, b, in this order"),
        ({"LABEL_0": 0, "LABEL_1": 1}, False, "the checkpoint does not say what its labels are; they are taken for a, b"),
    ],
)
def test_a_checkpoint_without_such_names_takes_those_of_the_data(label2id, trained, warning, caplog):
    labels = found("b", "a", trained=trained)
    assert labels.in_order_of(label2id).names == ("a", "b")
    assert not trained or labels.in_order_of(label2id) == labels
    assert not warning or {*caplog.messages} == {warning}
    assert warning is not None or caplog.messages == []


def test_without_training_data_the_checkpoint_says_what_labels_are():
    label2id = {"neg": 0, "neutral": 1, "pos": 2}
    few = found("pos", "neg", trained=False).in_order_of(label2id)
    assert few.names == ("neg", "neutral", "pos")
    assert few.encode(["pos", "neutral"], source="x") == [2, 1]
    numbers = found(2, 0, trained=False).in_order_of(label2id)
    assert numbers.names == ("neg", "neutral", "pos")
    assert numbers.encode([2, "1"], source="x") == [2, 1]
    nameless = found(1, 0, trained=False).in_order_of({"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2})
    assert nameless.config_fields()["num_labels"] == 3
    assert found(1, 4, trained=False).in_order_of({"LABEL_0": 0}).problem_type == REGRESSION


def test_labels_of_a_configuration_alone():
    def of(problem_type=None, *names):
        config = SimpleNamespace(id2label=dict(enumerate(names)), num_labels=len(names), problem_type=problem_type)
        return Labels.of_config(config)

    assert (of(None, "a", "b").problem_type, of(None, "a", "b").names) == (SINGLE, ("a", "b"))
    assert of(None, "x").problem_type == REGRESSION
    assert of(MULTI, "a", "b").problem_type == MULTI


def test_names_of_a_data_set_are_those_of_its_features():
    feature = ClassLabel(names=["bad", "good"])
    rows = Dataset.from_dict({"one": [1, 0], "all": [[1], [0, 1]], "plain": ["x", "y"]})
    rows = rows.cast_column("one", feature).cast_column("all", List(feature))
    assert label_cells(rows, "one") == ([1, 0], ("bad", "good"))
    assert label_cells(rows, "all") == ([[1], [0, 1]], ("bad", "good"))
    assert label_cells(rows, "plain") == (["x", "y"], None)
    spaces = Dataset.from_dict({"one": ["very good", "very good ", " bad\r"], "all": [["a "], [" b", "a"], []]})
    assert label_cells(spaces, "one")[0] == ["very good", "very good", "bad"]
    assert label_cells(spaces, "all")[0] == [["a"], ["b", "a"], []]


@pytest.mark.parametrize("nothing", [[-1, -1], [None, None], [None], ["", ""], ["-1", "-1"], [-1.0, None]])
def test_only_a_test_set_may_have_no_labels(nothing):
    assert found(*nothing, trained=False) is None
    assert Labels(REGRESSION).encode(nothing, source="x", test=True) is None
    labels = Labels(SINGLE, ("a", "b"))
    assert labels.encode(nothing, source="x", test=True) is None
    with pytest.raises(ValueError, match=r"x has no labels \(all are .*\): it is a test file, give it as --test_file"):
        labels.encode(nothing, source="x")
    # -1 is a label where the training set has it.
    assert found(-1, 1).encode([-1, -1], source="x", test=True) == [0, 0]


def test_the_first_column_says_which_labels_there_are():
    cells = {"--train_file": [None, "b", "a"], "--validation_file": ["c"]}
    assert find_labels(cells, trained=True).names == ("a", "b")
    # A number in one and a text of a number in the other.
    assert find_labels({"x": [1, 2], "y": ["1"]}, trained=True).encode(["1"], source="y") == [0]
    assert find_labels({"x": ["1", "2"], "y": ["two"]}, trained=True).names == ("1", "2")


def test_the_flag_says_what_labels_of_two_readings_are():
    assert found(1, 2, problem_type=REGRESSION).problem_type == REGRESSION
    assert found("1", "2", problem_type=REGRESSION).encode(["2"], source="x") == [2.0]
    assert found("01", " 2", problem_type=REGRESSION).encode(["01"], source="x") == [1.0]
    assert found(["a"], problem_type=MULTI).problem_type == MULTI
    assert found(0, 1, names=["no", "yes"]).names == ("no", "yes")
    assert found([0], [1], names=["no", "yes"]).encode([[1], ["no"]], source="x") == [[0.0, 1.0], [1.0, 0.0]]


def test_classes_that_are_written_as_fractions_get_a_hint(caplog):
    assert found(0.0, 1.0).problem_type == REGRESSION
    assert "without .0" in caplog.messages[-1]
    caplog.clear()
    found(0.5, 1.0)
    found(0.0, 1.0, problem_type=REGRESSION)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("labels", "cells", "message"),
    [
        (found("a", "b"), ["a", "c"], r"row 2 of x has the label 'c': --train_file has a, b$"),
        (Labels(SINGLE, ("no", "yes"), source="boolq"), [0, 2], r"row 2 .* the label 2: boolq has no \(0\), yes \(1\)$"),
        (found(*range(30)), [99], r"18, 19, \.\.\. \(30 in all\)"),
        (found("a", "b"), ["a", "B"], "row 2 of x has the label 'B'"),
        (found("A", "b"), ["b", "a"], "row 2 of x has the label 'a'"),
        (found("a", "b"), ["a", None], r"row 2 of x has no label"),
        (found("a", "b"), ["", "a"], r"row 1 of x has no label"),
        (found("a", "b"), [["a"], "b"], r"row 1 of x has the label \['a'\]: expected one label"),
        (found("a", "b"), [-1, "a"], r"row 1 of x has the label -1"),
        (found("a", "b"), [float("nan"), "a"], "row 1 of x has the label nan"),
        (found(0.5), [0.5, float("nan")], "row 2 of x has the label nan: regression expects a finite number"),
        (found(0.5), ["inf"], "row 1 of x has the label 'inf'"),
        (found("0.5", "nan"), ["0.5", "nan"], "row 2 of x has the label 'nan': regression expects a finite number"),
        (found(0.5), ["good"], "the label 'good': regression expects"),
        (found(0.5), [True], "the label True: regression expects"),
        (found(["a"]), ["a"], "the label 'a': expected the list of those that apply"),
        (found(["a"], ["b"]), [["c"]], "the label .*'c'.*: --train_file has a, b"),
        (found([0], [1]), [[0, 1, 1]], "not a 0 or 1 for each"),
    ],
)
def test_wrong_labels_are_named(labels, cells, message):
    with pytest.raises(ValueError, match=message):
        labels.encode(cells, source="x")


@pytest.mark.parametrize(
    ("cells", "more", "message"),
    [
        (["a", 1], {}, "labels that are text and labels that are numbers"),
        ([["a"], "b"], {}, r"labels that are lists and labels that are none, such as 'b'"),
        ([0.5, 1.0], dict(problem_type=SINGLE), "one text or whole number a row; --train_file has 0.5"),
        ([["a"]], dict(problem_type=SINGLE), r"one text or whole number a row; --train_file has \['a'\]"),
        (["a", "b"], dict(problem_type=MULTI), "a list of labels a row; --train_file has 'a'"),
        ([["a"]], dict(problem_type=REGRESSION), "labels that are numbers"),
        ([0, 1], dict(problem_type=REGRESSION, names=["a", "b"]), "numbers and no --label_names"),
        ([None, {"id": 1}], {}, r"row 2 of --train_file has the label {'id': 1}, expected text, a number, or a list"),
        ([["a"], [["b"]]], {}, r"row 2 of --train_file has the label \[\['b'\]\], expected"),
        ([["a", None]], {}, r"row 1 of --train_file has the label \['a', None\], expected"),
        ([[{"id": 1}]], dict(names=["a", "b"]), r"row 1 of --train_file has the label \[{'id': 1}\], expected"),
        ([["a"]], dict(later=[["a"], [0.0, 1.0]]), "row 2 of --validation_file has the label"),
        ([["a"]], dict(later=[["a"], {"id": 1}]), "row 2 of --validation_file has the label"),
    ],
)
def test_labels_of_the_wrong_kind_are_refused(cells, more, message):
    options = dict(more)
    columns = {"--train_file": cells, "--validation_file": options.pop("later", cells)}
    with pytest.raises(ValueError, match=message):
        find_labels(columns, trained=True, **options)


@pytest.mark.parametrize("names", [None, ["sport", "news"]])
@pytest.mark.parametrize(
    "cells",
    [
        ([1.0, 0.0], [0.0, 1.0]),
        ([1, 0], [0, 1]),
        ([True, False], [True, True]),
        (["1", "0"], ["0", "0"]),
        ([0, 1, 1], [0, 0, 0]),
        ([1.0], [0.0]),
    ],
    ids=["floats", "two", "booleans", "texts", "three", "one"],
)
def test_a_0_or_1_for_each_label_is_refused(cells, names):
    """[1.0, 0.0] was taken for the labels "1.0" and "0.0", which both apply."""
    with pytest.raises(ValueError, match=r"a 0 or 1 for each label.* write the labels that apply, .*\[\] where none does"):
        found(*cells, names=names)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [SINGLE, MULTI, REGRESSION])
def test_logits_that_are_not_finite_are_no_answer(kind, wrong):
    """NaN was class 0, and no label of a list."""
    labels = Labels(kind, () if kind == REGRESSION else ("a", "b"))
    logits = np.zeros((3, 1 if kind == REGRESSION else 2))
    logits[1, 0] = wrong
    with pytest.raises(ValueError, match=r"row 2 has logits that are NaN or infinite.*did training diverge"):
        labels.predicted(logits)


def test_a_label_that_the_checkpoint_does_not_know_cannot_be_evaluated():
    labels = found("pos", "mixed", trained=False)
    with pytest.raises(ValueError, match="--train_file has the label 'mixed'; the checkpoint has neg, pos"):
        labels.in_order_of({"neg": 0, "pos": 1})
    with pytest.raises(ValueError, match="has the label 3; the checkpoint has neg, pos"):
        found(3, 1, trained=False).in_order_of({"neg": 0, "pos": 1})

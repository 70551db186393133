# SPDX-License-Identifier: Apache-2.0
"""GLUE and XNLI by name: columns, labels, sets and files for GLUE's server, from the Hub and on real data."""

from pathlib import Path

import numpy as np
import pytest
import task_files
from datasets import Dataset
from task_files import DATA, encoded, needs_data, write_lines

from hf_deberta_ext.finetuning.metrics import TASK_METRICS
from hf_deberta_ext.finetuning.tasks.glue import GLUE, glue_values, xnli_task
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData

tokenizer = task_files.tokenizer


def read(**flags):
    return TextClassificationData(TextClassificationArguments(**flags))


def made(task, labels, offset=0):
    """Create rows of a task with the given labels; None = no label column."""
    return [
        {column: f"{column} {n + offset}" for column in task.text_columns} | ({} if label is None else {"label": label})
        for n, label in enumerate(labels)
    ]


@pytest.mark.parametrize(
    ("name", "predicted", "values"),
    [
        ("cola", [0, 1], ["0", "1"]),
        ("rte", [0, 1], ["entailment", "not_entailment"]),
        ("ax", [2, 1], ["contradiction", "neutral"]),
        ("stsb", [-0.5, 5.2, 1 / 3], ["0.000", "5.000", "0.333"]),
    ],
)
def test_values_for_the_server(name, predicted, values):
    assert glue_values(GLUE[name], np.array(predicted)) == values


def test_mnli_reports_matched_and_mismatched_apart_and_writes_both_files(tmp_path, tokenizer):
    task = GLUE["mnli"]
    train = write_lines(tmp_path / "train.jsonl", *made(task, [0, 1, 2]))
    matched = write_lines(tmp_path / "m.jsonl", *made(task, ["contradiction", "neutral"]))
    mismatched = write_lines(tmp_path / "mm.jsonl", *made(task, [0]))
    tests = [write_lines(tmp_path / f"test_{n}.jsonl", *made(task, [-1] * n)) for n in (1, 2)]
    data = read(
        task_name="mnli", train_file=[train], validation_file=[f"mm={mismatched}", matched],
        test_file=[tests[0], f"mm={tests[1]}"],
    )  # fmt: skip
    assert data.num_evaluation == 3
    ours = encoded(data, tokenizer)
    assert [*ours.evaluation] == ["", "mm"]
    assert ours.metric == "accuracy"
    assert ours.evaluation[""].rows["labels"][:] == [2, 1]
    logits = np.eye(3)[[2, 2]]
    assert ours.evaluation[""].metrics(logits, np.array([2, 1])) == {"accuracy": 0.5}
    files = [*ours.test[""].write(logits[:1], tmp_path, "predict"), *ours.test["mm"].write(logits, tmp_path, "predict_mm")]
    assert [file.name for file in files] == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    assert files[1].read_text() == "index\tprediction\n0\tcontradiction\n1\tcontradiction\n"
    assert ours.evaluation["mm"].write(logits[:1], tmp_path, "eval_mm") == []
    assert ours.evaluation["mm"].table(logits[:1])["predicted"].to_pylist() == ["contradiction"]


def test_the_positive_class_of_f1_is_the_task_s_whatever_the_order_of_a_checkpoint(tmp_path, tokenizer):
    task = GLUE["mrpc"]
    file = write_lines(tmp_path / "a.jsonl", *made(task, [1, 1, 0, 0, 1]))
    data = read(task_name="mrpc", validation_file=[file])
    measured = encoded(data, tokenizer, {"Equivalent": 0, "Not_Equivalent": 1}).evaluation[""]
    assert measured.rows["labels"][:] == [0, 0, 1, 1, 0]
    # All are predicted as equivalent: three of five are correct, F1 2 * 0.6 * 1 / 1.6.
    scores = measured.metrics(np.tile([1.0, 0.0], (5, 1)), np.array(measured.rows["labels"]))
    assert scores == pytest.approx(dict(accuracy=0.6, f1=0.75, combined_score=0.675))


@pytest.fixture
def hub(monkeypatch):
    """hub[data set, configuration] = splits; replaces the Hub."""
    content = {}

    def read_hub(name, config, splits, **download):
        loaded = content[name, config]
        found = {ours: next((theirs for theirs in names if theirs in loaded), None) for ours, names in splits.items()}
        return {ours: Dataset.from_list(loaded[theirs]) for ours, theirs in found.items() if theirs}

    monkeypatch.setattr("hf_deberta_ext.finetuning.tasks.text_classification.read_hub", read_hub)
    return content


def test_a_task_by_name_is_read_from_the_hub(hub, tokenizer, tmp_path):
    task = GLUE["mnli"]
    hub["nyu-mll/glue", "mnli"] = dict(
        train=made(task, [0, 1, 2, 0]), validation_matched=made(task, [0, 1, 2]), validation_mismatched=made(task, [1, 2]),
        test_matched=made(task, [-1, -1]), test_mismatched=made(task, [-1]),
    )  # fmt: skip
    data = read(task_name="mnli")
    assert (data.name, data.dataset, data.num_train, data.num_evaluation) == ("mnli", "nyu-mll/glue", 4, 5)
    ours = encoded(data, tokenizer)
    assert {name: one.examples for name, one in ours.evaluation.items()} == {"": 3, "mm": 2}
    assert {name: (one.examples, one.metrics) for name, one in ours.test.items()} == {"": (2, None), "mm": (1, None)}
    # AX only has a test set.
    hub["nyu-mll/glue", "ax"] = {"test": made(GLUE["ax"], [-1, -1])}
    ours = encoded(read(task_name="ax"), tokenizer)
    assert (ours.train, ours.evaluation, [*ours.test]) == (None, {}, [""])
    assert ours.test[""].write(np.eye(3)[[0, 1]], tmp_path, "predict")[0].name == "AX.tsv"


def test_xnli_is_trained_on_one_language_and_evaluated_on_others(hub, tokenizer, tmp_path):
    task = xnli_task("en", ["en"], by_language=False)
    for n, language in enumerate(("en", "de", "fr"), start=1):
        hub["facebook/xnli", language] = {
            "train": made(task, [0, 1, 2] * n), "validation": made(task, [0] * n), "test": made(task, [1] * n),
        }  # fmt: skip
    data = read(task_name="xnli", train_language="en", eval_languages=["de", "fr", "en"])
    assert (data.num_train, data.num_evaluation) == (3, 6)
    ours = encoded(data, tokenizer)
    # The training language comes first, because the first set selects the best checkpoint.
    assert {name: one.examples for name, one in ours.evaluation.items()} == {"en": 1, "de": 2, "fr": 3}
    assert next(iter(ours.evaluation)) == "en"
    assert {*ours.test} == {"en", "de", "fr"}
    one = encoded(read(task_name="xnli", language="de"), tokenizer)
    assert len(one.train) == 6
    assert {name: measured.examples for name, measured in one.evaluation.items()} == {"": 2}
    # Files are separate sets by name.
    train = write_lines(tmp_path / "en.jsonl", *made(task, [0, 1, 2]))
    korean = write_lines(tmp_path / "ko.jsonl", *made(task, ["contradiction"]))
    ours = encoded(read(task_name="xnli", train_file=[train], validation_file=[f"ko={korean}"]), tokenizer)
    assert ours.evaluation["ko"].rows["labels"][:] == [2]


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "evaluation"),
    [
        ("cola", 8551, 1043), ("mnli", 9888, 6238), ("mrpc", 3668, 408), ("qnli", 0, 5463), ("qqp", 20000, 3496),
        ("rte", 2490, 138), pytest.param("sst2", 67349, 872, marks=pytest.mark.slow), ("stsb", 5749, 1500),
        ("wnli", 635, 71),
    ],
)  # fmt: skip
def test_real_files_are_read_by_the_name_of_their_task(name, train, evaluation, tokenizer, tmp_path):
    files = {kind: sorted(map(str, Path(DATA, "glue", name).glob(f"{kind}*"))) for kind in ("train", "validation", "test")}
    flags = {f"{kind}_file": found for kind, found in files.items()}
    whole = read(task_name=name, **flags)
    assert (whole.num_train, whole.num_evaluation) == (train, evaluation)
    some = read(task_name=name, **flags, max_train_samples=500, max_eval_samples=200, max_predict_samples=100)
    ours = encoded(some, tokenizer)
    measured = ours.evaluation[""]
    assert measured.examples == min(200, evaluation)
    labels = np.array(measured.rows["labels"])
    if not GLUE[name].labels:
        assert 0 <= labels.min() < labels.max() <= 5
        right = labels[:, None]
    else:
        assert {*labels.tolist()} == {*range(len(GLUE[name].labels))}
        right = np.eye(len(GLUE[name].labels))[labels]
    scores = measured.metrics(right, labels)
    assert scores == pytest.approx(dict.fromkeys(TASK_METRICS[name], 1.0))
    if ours.test:
        (file,) = ours.test[""].write(right[:100], tmp_path, "predict")
        assert (file.name, len(file.read_text().splitlines())) == (GLUE[name].files[""], 101)

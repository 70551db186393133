# SPDX-License-Identifier: Apache-2.0
"""Error analysis: tables, confusions, calibration and thresholds by hand; files, card and output of a run."""

import numpy as np
import pytest
from sklearn.metrics import f1_score
from task_files import write_lines
from toy_task import read, run_classification

from hf_deberta_ext.finetuning.failures import (
    calibration_error,
    class_failures,
    failure_summary,
    multi_label_failures,
    regression_failures,
    tag_failures,
    threshold_curve,
)
from hf_deberta_ext.finetuning.tasks.question_answering_metrics import squad_v1, squad_v2
from hf_deberta_ext.finetuning.tasks.span_failures import answer_failures, entity_failures, span_errors

LABELS = np.array([0, 0, 0, 1, 1, 2])
PROBABILITIES = np.array(
    [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.05, 0.9, 0.05], [0.1, 0.6, 0.3], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]]
)
TRAINED = dict(do_train=True, do_eval=True, max_steps=1)
NAMES, TEXTS = ["red", "green", "blue"], [*"abcdef"]


def test_classes_confusions_surest_errors_and_the_calibration_error_by_hand():
    found = class_failures(LABELS, PROBABILITIES, NAMES, TEXTS)
    assert found.tables["labels"][0] == dict(label="red", precision=0.5, recall=pytest.approx(1 / 3), F1=0.4, rows=3)
    assert found.tables["confusion"][0] == {"true": "red", "predicted": {"red": 1, "green": 2, "blue": 0}}
    expected = "Most frequent errors: 2 of 3 'red' are predicted as 'green', 1 of 2 'green' are predicted as 'red'."
    assert found.remarks[0] == expected
    assert [error["text"] for error in found.errors] == ["c", "b", "e"]
    assert found.errors[0] == dict(row=3, text="c", label="red", predicted="green", probability=0.9)
    assert [*found.figures] == ["confusion", "reliability"] and found.thresholds == {}
    found = calibration_error(np.array([0.55, 0.59, 0.9, 1.0]), np.array([1, 0, 1, 1]))
    assert found == pytest.approx((2 * abs(0.57 - 0.5) + 2 * abs(0.95 - 1)) / 4)


def test_the_threshold_has_the_best_f1_of_all_and_lies_between_two_rows():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 60)
    probabilities = np.clip(0.3 * labels + generator.random(60) * 0.7, 0, 1)
    curve = threshold_curve(labels, probabilities)
    best = curve["threshold"][curve["F1"].argmax()]
    every = [f1_score(labels, probabilities > step) for step in (0.0, *probabilities)]
    assert curve["F1"].max() == pytest.approx(max(every))
    for predicted in (probabilities > best, probabilities >= best):
        assert f1_score(labels, predicted) == pytest.approx(max(every))
    assert np.abs(probabilities - best).min() > 1e-6


def test_two_classes_have_the_threshold_of_the_second_or_a_half_if_it_gains_nothing():
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    found = class_failures(np.array([0, 0, 1, 1]), probabilities, ["no", "yes"], TEXTS[:4])
    assert found.thresholds == {"yes": pytest.approx(0.25)}
    remark = "F1 at 0.5 and at the threshold that is best on these rows: 'yes' 0.000 at 0.5, 1.000 at 0.250."
    assert found.remarks[-1] == remark
    curve = threshold_curve(np.array([0, 1, 1]), np.array([0.6, 0.7, 0.65]))
    assert curve["threshold"].tolist() == [0.5, pytest.approx(0.625), pytest.approx(0.675)]
    found = class_failures(np.array([0, 1, 1]), np.array([[0.3, 0.7], [0.4, 0.6], [0.4, 0.6]]), ["no", "yes"], TEXTS[:3])
    assert found.thresholds == {"yes": 0.5}


def test_several_labels_have_a_threshold_each_and_one_without_rows_keeps_a_half():
    labels = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 0]])
    probabilities = np.array([[0.4, 0.1, 0.1], [0.3, 0.9, 0.1], [0.2, 0.8, 0.7]])
    found = multi_label_failures(labels, probabilities, NAMES, TEXTS[:3])
    assert found.thresholds == {"red": pytest.approx(0.25), "green": 0.5, "blue": 0.5}
    assert [row["F1"] for row in found.tables["labels"]] == [0, 1, 0]
    assert found.errors[0] == {"row": 2, "text": "b", "not predicted": "red", "probability": 0.3}
    assert {"row": 3, "text": "c", "predicted": "blue", "probability": 0.7} in found.errors


def test_residuals_are_told_by_quarter_and_the_largest_in_text():
    found = regression_failures(np.arange(8.0), np.array([0, 1, 2, 3, 4, 5, 6, 4.0]), [*"abcdefgh"])
    assert [row["rows"] for row in found.tables["scores"]] == [2, 2, 2, 2]
    assert found.tables["scores"][-1] == {"scores": "6 to 7", "rows": 2, "mean error": -1.5, "mean absolute error": 1.5}
    assert found.errors == [dict(row=8, text="h", score=7.0, predicted=4.0)]
    assert found.remarks == ["Mean error -0.375, root mean squared error 1.061."]


@pytest.mark.parametrize(
    "true, predicted, expected",
    [
        ([("PER", 0, 1)], [("PER", 0, 1)], []),
        ([("PER", 0, 1)], [("LOC", 0, 1)], ["wrong kind"]),
        ([("PER", 0, 1)], [("PER", 1, 2)], ["boundary"]),
        ([("PER", 0, 1)], [("LOC", 1, 2)], ["boundary and kind"]),
        ([("PER", 0, 1)], [("LOC", 0, 0), ("PER", 1, 1)], ["boundary"]),
        ([("PER", 0, 1)], [("PER", 2, 2)], ["missed", "extra"]),
        ([("PER", 0, 1), ("PER", 2, 2)], [("PER", 0, 2)], ["boundary", "boundary"]),
    ],
)
def test_each_true_entity_has_one_error_at_most(true, predicted, expected):
    assert [error for error, _, _ in span_errors(true, predicted)] == expected


def test_entities_are_told_by_kind_and_error():
    words = [["Ada", "Lovelace", "in", "Paris"], ["Paris", "sleeps"]]
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predicted = [["B-PER", "O", "O", "B-PER"], ["B-PER", "B-LOC"]]
    found = entity_failures(true, predicted, words)
    person = {row["entity"]: row for row in found.tables["entities"]}["PER"]
    assert (person["number"], person["boundary"], person["missed"], person["F1"]) == (1, 1, 0, 0)
    assert found.remarks == ["Errors of entities: wrong kind 2, boundary 1, boundary and kind 0, missed 0, extra 1."]
    assert found.errors[0] == dict(text="Paris [LOC]", error="wrong kind", predicted="Paris [PER]", times=2)
    assert dict(text="Ada Lovelace [PER]", error="boundary", predicted="Ada [PER]", times=1) in found.errors
    assert dict(text="sleeps [LOC]", error="extra", times=1) in found.errors


@pytest.mark.parametrize("score", [squad_v1, squad_v2])
def test_answers_are_told_by_question_word_and_length(score):
    questions = dict(a="Who wrote it?", b="In which year, and how many?", c="Name the town.", d="How many were there?")
    references = dict(a=["Ada Lovelace"], b=["1843"], c=["a town of words", "town"], d=["two hundred and six or more"])
    predictions = dict(a="Ada", b="1843", c="a river", d="seven")
    found = answer_failures(questions, references, predictions, dict(a=0.5, b=0.9, c=0.4, d=0.8), score)
    by_word = {row["question word"]: (row["questions"], row["F1"]) for row in found.tables["question words"]}
    assert by_word == {"how many": (1, 0), "who": (1, pytest.approx(200 / 3)), "which": (1, 100), "other": (1, 0)}
    by_length = {row["answer"]: row["F1"] for row in found.tables["answer lengths"]}
    assert by_length == {"1 word": 50, "2 words": pytest.approx(200 / 3), "more than 5 words": 0}
    assert [error["id"] for error in found.errors] == ["d", "c"]


def test_a_long_table_is_cut_to_the_labels_of_lowest_f1():
    labels = np.arange(15)
    found = tag_failures(labels, np.where(labels == 14, 0, labels), [f"l{label}" for label in labels])
    content = dict(tables=found.tables, remarks=found.remarks)
    table, remarks = failure_summary(content)
    assert len(table.splitlines()) == 14 and "| l14 |" in table.splitlines()[2]
    assert remarks.startswith("The table shows only the 12 rows (of 15) with the lowest F1.")


def card_of(folder):
    return (folder / "README.md").read_text(encoding="utf-8")


def two_sets(tmp_path, labels="bbbbbgg", texts=("awful", "great")):
    rows = [dict(text=f"{texts[label == 'g']} film", label=label) for label in labels]
    files = [write_lines(tmp_path / f"{name}.jsonl", *rows) for name in ("train", "dev")]
    return dict(train_file=files[0], validation_file=files[1])


@pytest.mark.parametrize("argv", [(), ("--seeds", "1", "2")], ids=["one run", "two seeds"])
def test_a_run_says_where_it_fails_and_that_a_baseline_is_better(argv, folder_of, tmp_path, capsys):
    """Bug: a run with 0.339, against 0.769 of TF-IDF, ended with "holds the model" and no warning."""
    folder = tmp_path / "run"
    run_classification(folder_of("bert"), folder, *argv, **TRAINED, learning_rate=0, **two_sets(tmp_path, "bbbgggg"))
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("The model is worse than the baseline TF-IDF + logistic regression: accuracy 0.")
    assert last.endswith(" against 1.0000.")
    assert f"- {last}" in card_of(folder) and read(folder, "run_report.json")["card"]["limits"] == [last]
    for part in (folder / "seed-1", folder / "seed-2") if argv else (folder,):
        found, text = read(part, "eval_failures.json"), card_of(part)
        assert "## Where it fails" in text and "| b | " in text and "![eval_confusion.png](eval_confusion.png)" in text
        assert "awful film" not in text and found["errors"][0]["text"] in ("awful film", "great film")
        assert "decision_thresholds" not in read(part, "config.json")


def test_thresholds_are_saved_and_leave_the_metrics_as_they_are(folder_of, tmp_path, capsys):
    folder, files = tmp_path / "run", two_sets(tmp_path)
    metrics = run_classification(folder_of("ours"), folder, "--save_thresholds", **TRAINED, **files)
    saved = read(folder, "config.json")["decision_thresholds"]
    assert [*saved] == ["g"] and saved == read(folder, "eval_failures.json")["thresholds"]
    assert f"config.json: g {saved['g']:.4f}" in capsys.readouterr().out
    # A run that only evaluates saves them in the folder of the model; training the model again removes them.
    run_classification(folder, tmp_path / "new", "--do_eval", "--save_thresholds", validation_file=files["validation_file"])
    assert read(folder, "config.json")["decision_thresholds"] == pytest.approx(saved)
    assert read(tmp_path / "new", "eval_results.json")["eval_accuracy"] == metrics["eval_accuracy"]
    run_classification(folder, tmp_path / "further", **TRAINED, **files)
    assert "decision_thresholds" not in read(tmp_path / "further", "config.json")


def test_thresholds_of_nothing_are_refused(folder_of, tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", *(dict(text="a film", label=label) for label in (0, 1, 1)))
    argv = (folder_of("bert"), tmp_path / "run", "--do_train", "--save_thresholds")
    files = dict(train_file=file, validation_file=file)
    with pytest.raises(ValueError, match="needs texts with two classes, or with several labels"):
        run_classification(*argv, **files, do_eval=True, problem_type="regression")
    with pytest.raises(ValueError, match="without --do_eval"):
        run_classification(*argv, **files)
    assert not (tmp_path / "run").exists()

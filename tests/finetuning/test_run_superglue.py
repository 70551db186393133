# SPDX-License-Identifier: Apache-2.0
"""examples/run_superglue.py end to end: a class of texts, answers in groups, and a multiple choice."""

import json
import re

import pytest
from fine_tuning_scripts import TRAIN_AND_EVALUATE, read_json, run, save_model
from task_files import write_lines
from tiny_constants import TINY
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, pipeline

BOOLQ = [
    dict(question=f"is it {word}", passage=f"It is {fact}.", idx=n, label=word == fact)
    for n, (word, fact) in enumerate([("cold", "cold"), ("cold", "hot"), ("hot", "hot"), ("hot", "cold")] * 4)
]
MULTIRC = [
    dict(paragraph="Ann is cold, Bob is hot.", question=f"who is {word}?", answer=name)
    | dict(idx=dict(paragraph=0, question=question, answer=answer), label=int((name == "Ann") == (word == "cold")))
    for answer, (question, word, name) in enumerate((q, w, n) for q, w in enumerate(("cold", "hot")) for n in ("Ann", "Bob"))
]
COPA = [
    dict(premise="It is cold.", choice1="Ann is hot.", choice2="Ann is cold.", question="effect", label=1, idx=n)
    for n in range(4)
]
ALL = (*TRAIN_AND_EVALUATE, "--do_predict")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), ["It is cold. who is hot? Ann Bob"] * 5, vocab_size=300)


def files(folder, task, rows, kinds=("train", "validation", "test")):
    """The flags of a task with files of these rows; those of the test have no labels."""
    unlabelled = [{name: cell for name, cell in row.items() if name != "label"} for row in rows]
    return dict(task_name=task) | {
        f"{kind}_file": write_lines(folder / f"{kind}.jsonl", *(unlabelled if kind == "test" else rows)) for kind in kinds
    }


def submission(folder, task):
    return [json.loads(line) for line in (folder / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_boolq_leaves_a_model_results_and_a_file_for_the_server(run_superglue, model, tmp_path):
    metrics = run(run_superglue, model, tmp_path / "out", *ALL, **files(tmp_path, "boolq", BOOLQ))
    out = tmp_path / "out"
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert read_json(out / "eval_results.json")["eval_samples"] == 16
    assert read_json(out / "config.json")["id2label"] == {"0": "False", "1": "True"}
    written = submission(out, "BoolQ")
    assert [row["idx"] for row in written] == [*range(16)]
    classify = pipeline("text-classification", model=str(out), tokenizer=AutoTokenizer.from_pretrained(out))
    answers = [classify({"text": row["question"], "text_pair": row["passage"]}) for row in BOOLQ[:4]]
    answers = [answer[0] if isinstance(answer, list) else answer for answer in answers]
    assert [answer["label"].lower() for answer in answers] == [row["label"] for row in written[:4]]


def test_multirc_has_metrics_of_questions(run_superglue, model, tmp_path):
    metrics = run(run_superglue, model, tmp_path / "out", *ALL, **files(tmp_path, "multirc", MULTIRC))
    assert {"eval_exact_match", "eval_f1_m", "eval_f1_a"} <= {*metrics}
    assert (tmp_path / "out" / "eval_predictions.jsonl").is_file()
    (row,) = submission(tmp_path / "out", "MultiRC")
    assert len(row["passage"]["questions"]) == 2


def test_copa_is_trained_as_a_choice(run_superglue, model, tmp_path):
    metrics = run(run_superglue, model, tmp_path / "out", *ALL, **files(tmp_path, "copa", COPA))
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert len(submission(tmp_path / "out", "COPA")) == 4


def test_a_trained_checkpoint_is_evaluated_in_its_own_order_of_labels(run_superglue, tmp_path, model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    names = dict(id2label={0: "True", 1: "False"}, label2id={"True": 0, "False": 1})
    config = BertConfig(**TINY | dict(vocab_size=len(tokenizer)), **names)
    classifier = BertForSequenceClassification(config)
    # Always its label 0, which is True.
    classifier.classifier.weight.data.zero_()
    classifier.classifier.bias.data.copy_(classifier.classifier.bias.new_tensor([1.0, 0.0]))
    checkpoint = tmp_path / "checkpoint"
    classifier.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    flags = files(tmp_path, "boolq", BOOLQ[:3], kinds=("validation", "test"))
    measured = run(run_superglue, checkpoint, tmp_path / "out", "--do_eval", "--do_predict", **flags)
    assert measured["eval_accuracy"] == pytest.approx(2 / 3)
    assert [row["label"] for row in submission(tmp_path / "out", "BoolQ")] == ["true"] * 3


@pytest.mark.parametrize("flag", ["--help", "--help_all"])
def test_help_shows_the_flags_of_superglue_alone(run_superglue, flag, capsys):
    with pytest.raises(SystemExit):
        run_superglue.main([flag])
    shown = {*re.findall(r"--\w+", capsys.readouterr().out)}
    assert {"--task_name", "--train_file", "--label_column"} <= shown
    assert not shown & {"--language", "--train_language", "--eval_languages", "--text_columns", "--label_names"}

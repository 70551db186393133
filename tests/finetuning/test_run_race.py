# SPDX-License-Identifier: Apache-2.0
"""examples/run_race.py end to end: made-up and real questions, what it leaves, and what it refuses."""

import gzip
import itertools
import json
import os
from pathlib import Path

import pytest
from fine_tuning_scripts import read_json, refused, run, save_model, write_lines
from transformers import AutoModelForMultipleChoice, AutoTokenizer, BertConfig, BertModel

from hf_deberta_ext import DebertaExtForMultipleChoice
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

for package in ("accelerate", "datasets", "matplotlib"):
    pytest.importorskip(package)

DATA = os.environ.get("DEBERTA_EXT_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="the real data sets: name their folder in DEBERTA_EXT_DATA")
COLOURS = ["red", "blue", "green", "white"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_level_bpe(
        ["the boat is red . the boat is blue . who has a green car ? a white one"] * 20, vocab_size=330
    )


@pytest.fixture
def model(tmp_path, tokenizer, tiny_config):
    """The folder of a tiny masked language model of ours."""
    return save_model(tmp_path / "model", tokenizer, tiny_config(vocab_size=len(tokenizer), num_hidden_layers=2))


def write_race(file, level, count, answers=True):
    """Questions that the article answers: the colour of the boat."""
    rows = [
        dict(example_id=f"{level}{number}.txt", article=f"the boat is {COLOURS[number % 4]} .", question="a _ boat")
        | dict(options=COLOURS, **({"answer": "ABCD"[number % 4]} if answers else {}))
        for number in range(count)
    ]
    return write_lines(file, rows)


def write_c3(file):
    """Questions of two, three and four choices, of which the boat is the right one."""
    rows = []
    for number in range(12):
        choices = COLOURS[: 1 + number % 3]
        choices.insert(number % 2, "boat")
        rows.append({"context": "the car is white .", "question": "a", "choices": choices, "label": number % 2})
    return write_lines(file, rows)


@pytest.mark.criterion("A15.4")
def test_a_whole_run_measures_the_schools_apart_and_leaves_answers(run_race, model, tmp_path):
    middle, high = (write_race(tmp_path / f"{level}.jsonl", level, count) for level, count in (("middle", 8), ("high", 4)))
    test = write_race(tmp_path / "test.jsonl", "high", 4, answers=False)
    folder = tmp_path / "out"
    measured = run(
        run_race, model, folder, "--do_train", "--do_eval", "--do_predict", train_file=[middle, high],
        validation_file=[middle, high], test_file=test, logging_steps=1,
    )  # fmt: skip
    accuracies = [measured[f"eval_{name}accuracy"] for name in ("", "middle_", "high_")]
    assert accuracies[0] == pytest.approx((8 * accuracies[1] + 4 * accuracies[2]) / 12)
    answers = read_json(folder / "eval_answers.json")
    assert [*answers][:9] == [*(f"middle{number}.txt-0" for number in range(8)), "high0.txt-0"]
    right = sum(
        answer == "ABCD"[number % 4] for number, answer in zip([*range(8), *range(4)], answers.values(), strict=True)
    )
    assert right / 12 == pytest.approx(accuracies[0])
    assert len((folder / "predict_answers.tsv").read_text(encoding="utf-8").splitlines()) == 4
    assert "predict_accuracy" not in measured
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: multiple-choice" in card and "middle_accuracy" in card and "middle.jsonl, high.jsonl" in card
    assert type(AutoModelForMultipleChoice.from_pretrained(folder)) is DebertaExtForMultipleChoice
    pair = AutoTokenizer.from_pretrained(folder)("the boat is red .", "a red boat")
    assert pair["input_ids"] == AutoTokenizer.from_pretrained(model)("the boat is red .", "a red boat")["input_ids"]


def test_a_checkpoint_is_evaluated_as_it_is(run_race, model, tmp_path):
    file = write_race(tmp_path / "rows.jsonl", "high", 8)
    trained = run(run_race, model, tmp_path / "out", "--do_train", "--do_eval", train_file=file, validation_file=file)
    again = run(run_race, tmp_path / "out", tmp_path / "again", "--do_eval", validation_file=file)
    assert again["eval_loss"] == pytest.approx(trained["eval_loss"], rel=1e-5)
    assert again["eval_high_accuracy"] == trained["eval_high_accuracy"]


@pytest.mark.parametrize("family", ["ours", "bert"])
def test_questions_of_different_numbers_of_choices_are_learned(family, run_race, model, tokenizer, tmp_path):
    if family == "bert":
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=64,
        )  # fmt: skip
        model = tmp_path / "bert"
        BertModel(config).save_pretrained(model)
        tokenizer.save_pretrained(model)
    file = write_c3(tmp_path / "rows.jsonl")
    overrides = "hidden_dropout_prob=0.0,attention_probs_dropout_prob=0.0"
    measured = run(
        run_race, model, tmp_path / "out", "--do_train", "--do_eval", train_file=file, validation_file=file, max_steps=60,
        config_overrides=overrides, train_sampling_strategy="group_by_length", gradient_accumulation_steps=2,
    )  # fmt: skip
    assert measured["eval_accuracy"] == 1.0 and measured["eval_samples"] == 12


def test_answers_and_lengths_that_do_not_fit_are_refused_before_the_training(run_race, model, tmp_path, capsys):
    file = write_race(tmp_path / "rows.jsonl", "high", 2)
    line = refused(capsys, run_race, model, tmp_path / "out", "--do_train", train_file=file, max_seq_length=6)
    assert "high0.txt-0: its question with choice" in line
    file.write_text(file.read_text(encoding="utf-8").replace('"answer": "B"', '"answer": "E"'), encoding="utf-8")
    line = refused(capsys, run_race, model, tmp_path / "out", "--do_train", train_file=file)
    assert "row 2 of --train_file rows.jsonl (high1.txt) has 'E' in the column 'answer'" in line
    assert "expected one of the letters A, B, C, D" in line


@needs_data
@pytest.mark.slow
def test_a_model_memorises_real_questions(run_race, tmp_path, tiny_config):
    """100 questions of RACE's train files, from random weights; half a minute on one core. The accuracy is printed."""
    files, articles = [], []
    for level in ("middle", "high"):
        with gzip.open(Path(DATA, "race", level, "train.jsonl.gz"), "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in itertools.islice(lines, 50)]
        articles += [row["article"] for row in rows]
        files.append(write_lines(tmp_path / f"{level}.jsonl", rows))
    tokenizer = train_byte_level_bpe(articles, vocab_size=2000)
    config = tiny_config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
    )
    model = save_model(tmp_path / "model", tokenizer, config)
    measured = run(
        run_race, model, tmp_path / "out", "--do_train", "--do_eval", "--from_scratch", train_file=files,
        validation_file=files, max_seq_length=128, max_steps=250, learning_rate=1e-3, per_device_train_batch_size=10,
        lr_scheduler_type="constant_with_warmup", warmup_steps=20,
    )  # fmt: skip
    print({name: value for name, value in measured.items() if "accuracy" in name})
    assert measured["eval_accuracy"] > 0.95

# SPDX-License-Identifier: Apache-2.0
"""examples/run_race.py end to end: made-up and real questions, what it leaves, and what it refuses."""

import pytest
from fine_tuning_scripts import TRAIN_AND_EVALUATE, read_json, refused, run, save_model
from task_files import write_lines
from tiny_constants import TINY
from transformers import AutoModelForMultipleChoice, AutoTokenizer, BertConfig, BertModel

from hf_deberta_ext import DebertaExtForMultipleChoice

COLOURS = ["red", "blue", "green", "white"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    texts = ["the boat is red . the boat is blue . who has a green car ? a white one"] * 20
    return save_model(tmp_path_factory.mktemp("model"), texts, vocab_size=330)


def race_rows(level, count):
    """Questions that the article answers: the colour of the boat."""
    return [
        dict(example_id=f"{level}{number}.txt", article=f"the boat is {COLOURS[number % 4]} .", question="a _ boat")
        | dict(options=COLOURS, answer="ABCD"[number % 4])
        for number in range(count)
    ]


def c3_rows():
    """Questions of two, three and four choices, of which the boat is the right one."""
    for number in range(12):
        choices = COLOURS[: 1 + number % 3]
        choices.insert(number % 2, "boat")
        yield {"context": "the car is white .", "question": "a", "choices": choices, "label": number % 2}


def test_a_whole_run_measures_the_schools_apart_and_leaves_answers(run_race, model, tmp_path):
    levels = {"middle": 8, "high": 4}
    files = [write_lines(tmp_path / f"{level}.jsonl", *race_rows(level, count)) for level, count in levels.items()]
    test = [{name: cell for name, cell in row.items() if name != "answer"} for row in race_rows("high", 4)]
    folder = tmp_path / "out"
    measured = run(
        run_race, model, folder, *TRAIN_AND_EVALUATE, "--do_predict", train_file=files, validation_file=files,
        test_file=write_lines(tmp_path / "test.jsonl", *test), logging_steps=1,
    )  # fmt: skip
    accuracies = [measured[f"eval_{name}accuracy"] for name in ("", "middle_", "high_")]
    assert accuracies[0] == pytest.approx((8 * accuracies[1] + 4 * accuracies[2]) / 12)
    answers = read_json(folder / "eval_answers.json")
    assert [*answers][:9] == [*(f"middle{number}.txt-0" for number in range(8)), "high0.txt-0"]
    right = [answer == expected for answer, expected in zip(answers.values(), "ABCDABCDABCD", strict=True)]
    assert sum(right) / 12 == pytest.approx(accuracies[0])
    assert len((folder / "predict_answers.tsv").read_text(encoding="utf-8").splitlines()) == 4
    assert "predict_accuracy" not in measured
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: multiple-choice" in card and "middle_accuracy" in card and "middle.jsonl, high.jsonl" in card
    assert type(AutoModelForMultipleChoice.from_pretrained(folder)) is DebertaExtForMultipleChoice
    before, after = (AutoTokenizer.from_pretrained(source) for source in (model, folder))
    pair = ("the boat is red .", "a red boat")
    assert after(*pair)["input_ids"] == before(*pair)["input_ids"]

    # The checkpoint is evaluated as it is.
    again = run(run_race, folder, tmp_path / "again", "--do_eval", validation_file=files)
    for name in ("eval_loss", "eval_high_accuracy"):
        assert again[name] == pytest.approx(measured[name], rel=1e-5)


@pytest.mark.parametrize("family", ["ours", "bert"])
def test_questions_of_different_numbers_of_choices_are_learned(family, run_race, model, tmp_path):
    if family == "bert":
        tokenizer = AutoTokenizer.from_pretrained(model)
        model = tmp_path / "bert"
        BertModel(BertConfig(**TINY | dict(vocab_size=len(tokenizer), num_hidden_layers=2))).save_pretrained(model)
        tokenizer.save_pretrained(model)
    file = write_lines(tmp_path / "rows.jsonl", *c3_rows())
    overrides = "hidden_dropout_prob=0.0,attention_probs_dropout_prob=0.0"
    measured = run(
        run_race, model, tmp_path / "out", *TRAIN_AND_EVALUATE, train_file=file, validation_file=file, max_steps=60,
        config_overrides=overrides, train_sampling_strategy="group_by_length", gradient_accumulation_steps=2,
    )  # fmt: skip
    assert measured["eval_accuracy"] == 1.0 and measured["eval_samples"] == 12


@pytest.mark.parametrize(
    ("more", "flags", "message"),
    [
        ({}, dict(max_seq_length=6), "high0.txt-0: its question with choice"),
        (dict(answer="E"), {}, "row 2 of --train_file rows.jsonl (high1.txt) has 'E' in the column 'answer', expected one"),
    ],
    ids=["length", "answer"],
)
def test_answers_and_lengths_that_do_not_fit_are_refused(more, flags, message, run_race, model, tmp_path, capsys):
    first, second = race_rows("high", 2)
    file = write_lines(tmp_path / "rows.jsonl", first, second | more)
    assert message in refused(capsys, run_race, model, tmp_path / "out", "--do_train", train_file=file, **flags)

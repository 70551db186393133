# SPDX-License-Identifier: Apache-2.0
"""RACE: blanks, letters and schools by hand, the raw release, real data and invalid rows."""

import json

import pytest
from datasets import Dataset
from task_files import write_lines

from hf_deberta_ext.finetuning.tasks.multiple_choice import MultipleChoiceArguments, MultipleChoiceData
from hf_deberta_ext.finetuning.tasks.multiple_choice_formats import RACE, choice_rows, fill_blank, race_level, read_raw_race
from hf_deberta_ext.training.hub_arguments import HubArguments

ROW = dict(
    example_id="high7.txt", article="Ann has a red boat.", question="The boat is _ .", options=["red", "blue", "green"],
    answer="B",
)  # fmt: skip


def write_raw(folder, name, **fields):
    article = dict(
        article="Ann has a boat.", questions=["Who has it?", "She has a _ ."], options=[["Ann", "Ben"], ["car", "boat"]],
        answers=["A", "B"], id=name,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    content = {key: value for key, value in (article | fields).items() if value is not None}
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_fill_blank_puts_the_option_into_every_blank_or_behind():
    assert fill_blank("Who is it?", "a\\1b") == "Who is it? a\\1b"
    # Several underscores are one blank.
    assert fill_blank("_ is more than ____.", "a\\1b") == "a\\1b is more than a\\1b."


@pytest.mark.parametrize(
    "name, expected",
    [
        ("middle13.txt-0", "middle"),
        ("high/middle1.txt", "middle"),
        ("race_high.jsonl", "high"),
        ("middle_and_high.jsonl", None),
        ("highway.jsonl", None),
        (None, None),
    ],
)
def test_race_level_is_that_of_the_last_part_that_says_one(name, expected):
    assert race_level(name) == expected


def test_race_rows_by_hand():
    changes = {}, {"question": "Whose is it?", "answer": "A"}, {"example_id": "middle1.txt", "answer": ""}
    assert choice_rows(Dataset.from_list([ROW | change for change in changes]), RACE, source="here") == [
        dict(id=name, context=ROW["article"], choices=[text.format(o) for o in ROW["options"]], label=label, group=group)
        for name, text, label, group in (
            ("high7.txt-0", "The boat is {} .", 1, "high"),
            ("high7.txt-1", "Whose is it? {}", 0, "high"),
            ("middle1.txt-0", "The boat is {} .", None, "middle"),
        )
    ]


def test_read_raw_race_reads_articles_in_the_order_of_their_numbers(tmp_path):
    write_raw(tmp_path / "dev" / "high", "10.txt", id=None)
    write_raw(tmp_path / "dev" / "high", "9.txt", id="high9.txt")
    write_raw(tmp_path / "dev" / "middle", "1.txt", id="middle1.txt", answers=None)
    read = read_raw_race(tmp_path / "dev", source="--validation_file")
    assert read["example_id"] == ["high9.txt"] * 2 + ["high10.txt"] * 2 + ["middle1.txt"] * 2
    assert read["question"][:2] == ["Who has it?", "She has a _ ."]
    assert read["options"][1] == ["car", "boat"]
    assert read["answer"] == ["A", "B", "A", "B", None, None]


def test_files_and_raw_folders_are_read_together_and_their_schools_are_told_apart(tmp_path):
    write_raw(tmp_path / "middle", "1.txt", id="1")
    file = write_lines(tmp_path / "high.jsonl", ROW | {"example_id": "5"})
    data = MultipleChoiceData(MultipleChoiceArguments(validation_file=[str(tmp_path / "middle"), file]))
    questions = data.questions["validation"]
    expected = [("middle1-0", "middle", 0), ("middle1-1", "middle", 1), ("5-0", "high", 1)]
    assert [(row["id"], row["group"], row["label"]) for row in questions] == expected
    assert data.dataset == "middle, high.jsonl"


def test_the_configuration_on_the_hub_says_the_school(tmp_path):
    """A folder that `load_dataset` can read replaces the Hub."""
    write_lines(tmp_path / "hub" / "rows.jsonl", ROW | {"example_id": "5"})
    card = "---\nconfigs:\n- config_name: high\n  data_files:\n  - split: validation\n    path: rows.jsonl\n---\n"
    (tmp_path / "hub" / "README.md").write_text(card, encoding="utf-8")
    arguments = MultipleChoiceArguments(task_name="race", dataset_name=str(tmp_path / "hub"), dataset_config_name="high")
    data = MultipleChoiceData(arguments, HubArguments(cache_dir=str(tmp_path / "cache")))
    assert [row["group"] for row in data.questions["validation"]] == ["high"]
    assert (data.name, data.num_train, data.num_evaluation) == ("race", 0, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": [["a", "b"]]}, "equal numbers of .*: ValueError"),
        ({"options": None}, "equal numbers of .*: KeyError.'options'"),
        ({"article": 3}, "3.txt.* None in|column 'article'"),
        ({"options": [["a", "b"], ["a", 7]]}, "must be text: "),
    ],
)
def test_raw_files_that_are_wrong_are_named(fields, message, tmp_path):
    with pytest.raises(ValueError, match=r"--train_file: a folder must be .*, but there are no \.txt files in"):
        MultipleChoiceData(MultipleChoiceArguments(train_file=[str(tmp_path)]))
    write_raw(tmp_path, "3.txt", **fields)
    with pytest.raises(ValueError, match=message):
        MultipleChoiceData(MultipleChoiceArguments(train_file=[str(tmp_path)]))

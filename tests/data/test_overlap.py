# SPDX-License-Identifier: Apache-2.0
"""Overlap by n-grams: by hand, and that of the evaluation sets with the text of the pre-training."""

import os
from pathlib import Path

import pytest

from hf_deberta_ext.data.files import read_lines, read_rows
from hf_deberta_ext.data.overlap import NgramIndex, ngrams

DATA = os.environ.get("DEBERTA_EXT_DATA")
# Texts of a row.
TASKS = {
    "cola": ["sentence"], "sst2": ["sentence"], "mrpc": ["sentence1", "sentence2"], "stsb": ["sentence1", "sentence2"],
    "rte": ["sentence1", "sentence2"], "wnli": ["sentence1", "sentence2"], "qqp": ["question1", "question2"],
    "mnli": ["premise", "hypothesis"], "qnli": ["question", "sentence"],
}  # fmt: skip


def test_ngrams_know_neither_case_nor_punctuation():
    assert [*ngrams("A cat, the DOG.", 3)] == ["a cat the", "cat the dog"]
    assert [*ngrams("a cat", 3)] == []


def test_rows_that_share_a_run_of_words_are_found():
    rows = [
        "the quick brown fox jumps",
        "quick brown",
        ("no such words here", "over: the lazy dog!"),
        "quick brown cats jump",
    ]
    index = NgramIndex({"fables": rows, "twice": rows[:1]}, n=3)
    assert index.checked == dict(fables=3, twice=1)
    assert index.matches("See the Quick, brown -- fox") == {("fables", 0), ("twice", 0)}
    texts = ["over the lazy dog", "nothing", "a brown fox jumps"]
    assert index.overlaps(texts) == dict(fables=[0, 2], twice=[0])
    # The end of one text and the beginning of the next are no run.
    assert index.overlaps(["over the", "lazy dog"]) == dict(fables=[], twice=[])


def test_a_run_has_a_word_at_least():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        NgramIndex({}, n=0)


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="needs DEBERTA_EXT_DATA")
def test_the_pretraining_text_has_no_row_of_the_evaluation_sets(capsys):
    """Thirteen words in common: QNLI is made of Wikipedia, and a few rows of others quote what Wikipedia quotes, too."""
    folder, sets = Path(DATA), {}
    for task, columns in TASKS.items():
        for file in sorted((folder / "glue" / task).glob("*.jsonl*")):
            sets[f"{task} {file.name.partition('.')[0]}"] = [[row[name] for name in columns] for _, row in read_rows(file)]
    pairs = [row for _, row in read_rows(folder / "blimp" / "blimp.jsonl.gz")]
    sets["blimp"] = [[row["sentence_good"], row["sentence_bad"]] for row in pairs]
    index = NgramIndex(sets)

    def corpus():
        yield from (row["text"] for _, row in read_rows(folder / "wikipedia_en" / "train.jsonl.gz"))
        for name in ("train", "train_ambiguous_start"):
            yield from {row["context"] for _, row in read_rows(folder / "squad_v1" / f"{name}.jsonl.gz")}
        for file in sorted((folder / "manuals_en").glob("*.gz")):
            yield from (line for _, line in read_lines(file))

    found = index.overlaps(corpus())
    with capsys.disabled():
        for name, rows in found.items():
            print(f"\n{name}: {len(rows)} of {index.checked[name]:,} rows with 13 words, of {len(sets[name]):,}", end="")
    assert min(index.checked.values()) > 50
    for name, rows in found.items():
        task, _, split = name.partition(" ")
        limit = 0.05 if task == "qnli" else 0 if split != "train" else 0.002
        assert len(rows) <= limit * index.checked[name], [sets[name][row] for row in rows[:3]]

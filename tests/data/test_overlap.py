# SPDX-License-Identifier: Apache-2.0
"""Overlap of the evaluation sets with the text of the pre-training, by the n-grams of `--decontaminate`."""

import os
from pathlib import Path

import pytest

from hf_deberta_ext.data.files import read_lines, read_rows

text_hashes = pytest.importorskip("hf_deberta_ext.pretraining.preparation", reason="datatrove's n-grams").text_hashes

DATA = os.environ.get("DEBERTA_EXT_DATA")
# Texts of a row.
TASKS = {
    "cola": ["sentence"], "sst2": ["sentence"], "mrpc": ["sentence1", "sentence2"], "stsb": ["sentence1", "sentence2"],
    "rte": ["sentence1", "sentence2"], "wnli": ["sentence1", "sentence2"], "qqp": ["question1", "question2"],
    "mnli": ["premise", "hypothesis"], "qnli": ["question", "sentence"],
}  # fmt: skip


def test_ngrams_know_neither_case_nor_punctuation():
    assert text_hashes("Over: the LAZY dog!", 3) == text_hashes("over the, lazy dog", 3) and text_hashes("a dog", 3) == set()
    assert text_hashes("a brown fox jumps", 3) & text_hashes("quick brown fox jumps", 3)


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
    rows_of, checked = {}, {}
    for name, rows in sets.items():
        hashes = [set().union(*(text_hashes(text, 13) for text in texts)) for texts in rows]
        checked[name] = sum(map(bool, hashes))
        for row, of_row in enumerate(hashes):
            for value in of_row:
                rows_of.setdefault(value, set()).add((name, row))

    def corpus():
        yield from (row["text"] for _, row in read_rows(folder / "wikipedia_en" / "train.jsonl.gz"))
        for name in ("train", "train_ambiguous_start"):
            yield from {row["context"] for _, row in read_rows(folder / "squad_v1" / f"{name}.jsonl.gz")}
        for file in sorted((folder / "manuals_en").glob("*.gz")):
            yield from (line for _, line in read_lines(file))

    found = set().union(*(rows_of.get(value, ()) for text in corpus() for value in text_hashes(text, 13)))
    overlaps = {name: [row for of, row in found if of == name] for name in sets}
    with capsys.disabled():
        for name, rows in overlaps.items():
            print(f"\n{name}: {len(rows)} of {checked[name]:,} rows with 13 words, of {len(sets[name]):,}", end="")
    assert min(checked.values()) > 50
    for name, rows in overlaps.items():
        task, _, split = name.partition(" ")
        limit = 0.05 if task == "qnli" else 0 if split != "train" else 0.002
        assert len(rows) <= limit * checked[name], [sets[name][row] for row in rows[:3]]

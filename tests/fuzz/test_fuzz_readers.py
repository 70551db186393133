# SPDX-License-Identifier: Apache-2.0
"""Damaged data files: each reader gives what the file says, or a ValueError of one line that names the file."""

import csv
import gzip
import io
import json
import random

import pytest

pytest.importorskip("datasets")

from datasets import Dataset
from hypothesis import strategies as st
from strategies import cases

from hf_deberta_ext.data.files import read_files
from hf_deberta_ext.finetuning.tasks.multiple_choice_formats import read_raw_race
from hf_deberta_ext.finetuning.tasks.question_answering import QuestionAnsweringArguments, QuestionAnsweringData
from hf_deberta_ext.finetuning.tasks.token_classification import read_conll
from hf_deberta_ext.pretraining import load_corpus

pytestmark = pytest.mark.fuzz

TEXTS = ["One line. And more.", 'über 😀 “so”, "quoted"', "最後の文書", "NA", " padded ", "a\u2028b", "x" * 300]
ROWS = [{"id": f"n{n}", "text": text, "label": n % 3, "score": n / 7} for n, text in enumerate(TEXTS * 3)]
ANSWERS = [{"text": "so", "answer_start": 8}, {"text": "über", "answer_start": 0}]
SQUAD = [{"context": TEXTS[1], "question": "q", "id": str(n), "answers": [ANSWERS[n % 2]]} for n in range(8)]
NESTED = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": TEXTS[1], "qas": SQUAD}]}]}
RACE = {"article": "a", "questions": ["q _ r", "s"], "options": [["a", "b"], ["c", "d"]], "answers": ["A", "B"], "id": "1"}


def as_parquet(rows):
    file = io.BytesIO()
    Dataset.from_list(rows).to_parquet(file, batch_size=4)
    return file.getvalue()


def as_csv(rows, **options):
    file = io.StringIO(newline="")
    csv.writer(file, **options).writerows([rows[0].keys(), *(row.values() for row in rows)])
    return file.getvalue()


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


PLAIN = [{"text": row["text"].replace('"', "'"), "label": row["label"]} for row in ROWS]
WHOLE = {
    "a.txt": "\n\n".join(TEXTS * 3), "a.csv": as_csv(ROWS), "a.tsv": as_csv(PLAIN, delimiter="\t"),
    "a.json": json.dumps(ROWS),
    "data.json": json.dumps({"data": ROWS}), "a.jsonl": lines(ROWS), "a.parquet": as_parquet(ROWS),
    "squad nested.json": json.dumps(NESTED), "squad.jsonl": lines(SQUAD), "race.txt": json.dumps(RACE),
    "conll.txt": "-DOCSTART- O\n\n" + "EU B-ORG\nüber O\n. O\n\n" * 5,
}  # fmt: skip
WHOLE = {name: text.encode() if isinstance(text, str) else text for name, text in WHOLE.items()}
INSERTED = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"\r", b"\n\n", b"\t", b",", b"{", b"]", b"null", b"1e999",
    b"1" * 5000, b"\\ud800", b"[" * 5000, b'{"a":' * 5000, b"\x1f\x8b", b"PAR1", b"{}\n", b'{"text": 1}\n',
]  # fmt: skip


def spoil(content, damage, chooser):
    first, last = sorted(chooser.randrange(len(content) + 1) for _ in range(2))
    near = min(len(content), first + chooser.randrange(1, 30))
    return {
        "cut": content[:first],
        "overwrite": content[:first] + chooser.randbytes(near - first) + content[near:],
        "insert": content[:first] + chooser.choice(INSERTED) + content[first:],
        "remove": content[:first] + content[near:],
        "repeat": content[:last] + content[first:],
        "old mac": content.replace(b"\n", b"\r"),
        "utf-16": content.decode("utf-8", "replace").encode("utf-16"),
    }[damage]


def squad(path):
    arguments = QuestionAnsweringArguments(train_file=[str(path)], version_2_with_negative=True)
    for _, _, context, texts, (begin, end) in QuestionAnsweringData(arguments).sets["train"]:
        assert (begin, end) == (-1, -1) if not texts else context[begin:end] in {text.strip() for text in texts}


def attempt(read, path, *args, **options):
    """The result of `read`, or None where it refuses the file."""
    try:
        return read(path, *args, **options)
    except ValueError:
        return None


@cases("damaged data")
def test_a_damaged_data_file_is_read_as_it_is_or_refused(data, tmp_path):
    name = data.draw(st.sampled_from(sorted(WHOLE)), "file")
    chooser = random.Random(data.draw(st.integers(0, 2**64 - 1), "seed"))
    damages = ["cut", "overwrite", "insert", "remove", "repeat", "old mac", "utf-16"]
    zipped = data.draw(st.sampled_from(["", "", "in", "out"]), "zipped")
    content = WHOLE[name]
    if zipped == "out":
        content = gzip.compress(content)
    for damage in data.draw(st.lists(st.sampled_from(damages), max_size=3), "damages"):
        content = spoil(content, damage, chooser)
    for file in tmp_path.glob("*.*"):
        file.unlink()
    path = tmp_path / (name + ".gz" * bool(zipped))
    path.write_bytes(gzip.compress(content) if zipped == "in" else content)

    if name == "race.txt" and not zipped:
        attempt(lambda path: read_raw_race(path.parent, source="--train_file"), path)
    if name == "conll.txt":
        attempt(read_conll, path, source="--train_file")
    if "squad" in name:
        attempt(squad, path)
    column = "context" if "squad" in name else "text"
    texts = attempt(lambda path: [row["text"] for row in load_corpus(path, text_column=column, streaming=True)], path)
    if name.endswith(".txt"):
        if texts is not None and zipped != "out":
            assert " ".join(texts).split() == content.decode("utf-8-sig").split()
        return
    rows = attempt(lambda path: read_files(path, source="--train_file").to_list(), path)
    if texts is not None and rows is not None:
        assert texts == [row[column] or "" for row in rows]
    if rows is not None and zipped == "out":
        # gzip has a checksum: damage is seen, or it is none.
        path.write_bytes(gzip.compress(WHOLE[name]))
        assert rows == read_files(path, source="--train_file").to_list()

# SPDX-License-Identifier: Apache-2.0
"""Damaged data files: each reader gives what the file says, or a ValueError that names the file."""

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
from hf_deberta_ext.finetuning.tasks.labelled_words import read_conll
from hf_deberta_ext.finetuning.tasks.question_answering import QuestionAnsweringArguments, QuestionAnsweringData
from hf_deberta_ext.finetuning.tasks.race import read_raw_race
from hf_deberta_ext.pretraining import load_corpus

pytestmark = pytest.mark.fuzz

TEXTS = ["One line. And more.", 'über 😀 “so”, "quoted"', "最後の文書", "NA", " padded ", "a\u2028b", "x" * 300]
ROWS = [{"id": f"n{n}", "text": text, "label": n % 3, "score": n / 7} for n, text in enumerate(TEXTS * 3)]
ANSWERS = [("so", 8), ("über", 0)]
SQUAD = [
    {"context": TEXTS[1], "question": "q", "id": str(n), "answers": {"text": [text], "answer_start": [start]}}
    for n, (text, start) in enumerate(ANSWERS * 4)
]
QAS = [
    row | {"answers": [{"text": text, "answer_start": start}]} for row, (text, start) in zip(SQUAD, ANSWERS * 4, strict=True)
]
NESTED = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": TEXTS[1], "qas": QAS}]}] * 2}
RACE = {"article": "a", "questions": ["q _ r", "s"], "options": [["a", "b"], ["c", "d"]], "answers": ["A", "B"], "id": "1"}
CONLL = "-DOCSTART- O\n\n" + "EU B-ORG\nüber O\n. O\n\n" * 5


def as_parquet(rows):
    file = io.BytesIO()
    Dataset.from_list(rows).to_parquet(file, batch_size=4)
    return file.getvalue()


def as_csv(rows):
    file = io.StringIO(newline="")
    csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    return file.getvalue()


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=bool(n % 2)) + "\n" for n, row in enumerate(rows))


# Name of the file -> its content, whole; values that are no text are JSON whose parts may be exchanged.
WHOLE = {
    "a.txt": "\n\n".join(TEXTS * 3), "a.csv": as_csv(ROWS), "a.json": ROWS, "data.json": {"data": ROWS},
    "a.tsv": "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS), "a.jsonl": lines(ROWS),
    "lines.json": lines(ROWS), "a.parquet": as_parquet(ROWS), "nested squad.json": NESTED, "squad.json": SQUAD,
    "squad.jsonl": lines(SQUAD), "squad.parquet": as_parquet(SQUAD), "conll.txt": CONLL, "race.txt": RACE,
    "squad.csv": as_csv([row | {"answers": json.dumps(row["answers"])} for row in SQUAD]),
}  # fmt: skip
DAMAGE = ("cut", "flip", "overwrite", "insert", "insert", "remove", "repeat", "foreign", "old mac", "windows", "utf-16")
INSERTED = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b'""', b"\r", b"\n", b"\r\n", b"\n\n", b"\t", b",", b"{", b"}",
    b"[", b"]", b"null", b"NaN", b"1e999", b"-", b"1" * 5000, b"1" * 30, b"\\ud800", b"\\", b"\\u", b"[" * 5000,
    b'{"a":' * 5000, b"[" * 950 + b"]" * 950, "\u2028".encode(), b" ", b"\x1f\x8b", b"PAR1", b"{}\n", b'{"text": 1}\n',
]  # fmt: skip
ODD = [None, True, -1, 10**18, 10**30, -(10**30), 1e308, "", " ", "\ud800", "\x00", [], {}, [[]], [None], {"": 1}, ["a", 1]]


def exchange(value, chooser):
    """`value` with one part, chosen at random, that is something else, absent, or of another name."""
    if not isinstance(value, list | dict) or not value or chooser.random() < 0.1:
        return chooser.choice(ODD)
    value = value.copy()
    key = chooser.choice([*value] if isinstance(value, dict) else range(len(value)))
    how = chooser.random()
    if how < 0.1:
        del value[key]
    elif how < 0.2 and isinstance(value, dict):
        value[chooser.choice(["", "text", "a", "\ud800"])] = value.pop(key)
    else:
        value[key] = exchange(value[key], chooser)
    return value


def spoil(content: bytes, damage: str, chooser: random.Random) -> bytes:
    first, last = sorted(chooser.randrange(len(content) + 1) for _ in range(2))
    near = min(len(content), first + chooser.randrange(1, 30))
    whole = WHOLE[chooser.choice(sorted(WHOLE))]
    return {
        "cut": lambda: content[:first],
        "flip": lambda: content[:first] + bytes(byte ^ 1 << chooser.randrange(8) for byte in content[first : first + 1])
        + content[first + 1 :],
        "overwrite": lambda: content[:first] + chooser.randbytes(near - first) + content[near:],
        "insert": lambda: content[:first] + chooser.choice(INSERTED) + content[first:],
        "remove": lambda: content[:first] + content[near:],
        "repeat": lambda: content[:last] + content[first:],
        "foreign": lambda: as_bytes(whole) if chooser.random() < 0.5 else content[:first] + as_bytes(whole)[:first],
        "old mac": lambda: content.replace(b"\n", b"\r"),
        "windows": lambda: content.replace(b"\n", b"\r\n"),
        "utf-16": lambda: content.decode("utf-8", "replace").encode("utf-16"),
    }[damage]()  # fmt: skip


def as_bytes(content) -> bytes:
    if isinstance(content, bytes | str):
        return content if isinstance(content, bytes) else content.encode()
    return json.dumps(content).encode()


def squad(path):
    arguments = QuestionAnsweringArguments(train_file=[str(path)], version_2_with_negative=True)
    questions = QuestionAnsweringData(arguments).sets["train"]
    for context, texts, (begin, end) in zip(questions.contexts, questions.texts, questions.spans, strict=True):
        assert (begin, end) == (-1, -1) if not texts else context[begin:end] in {text.strip() for text in texts}
    return questions.contexts


def table(path):
    return read_files(path, source="--train_file").to_list()


def corpus(path, **options):
    return [row["text"] for row in load_corpus(path, **options)]


def attempt(read, path, *args, **options):
    """Result of `read`, or None where it refuses the file by name."""
    try:
        return read(path, *args, **options)
    except ValueError as error:
        assert type(error) is ValueError and path.name in str(error), (type(error), str(error))


def json_values(name, text):
    """The rows of JSON values one after the other, by another way; None where that is not what the text is."""
    decoder, values, at = json.JSONDecoder(), [], 0
    try:
        while text := text[at:].strip(" \t\r\n"):
            value, at = decoder.raw_decode(text)
            values.append(value)
    except (ValueError, RecursionError):
        return None
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    elif len(values) == 1 and name.endswith(".json") and isinstance(values[0].get("data"), list):
        values = values[0]["data"]
    return json.loads(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))


def plain(value):
    """Without keys of None, which Arrow adds; numbers as floats, into which it makes ints beside floats."""
    if isinstance(value, list):
        return [*map(plain, value)]
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if part is not None}
    return str(float(value)) if isinstance(value, int | float) else value


def expected_words(name, content):
    """All words of a text file, in order; cells of .csv and header included."""
    text = content.decode("utf-8-sig")
    if name.endswith(".csv"):
        text = " ".join(cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row)
    return text.split()


@cases("damaged data")
def test_a_damaged_data_file_is_read_as_it_is_or_refused_by_name(data, tmp_path):
    name = data.draw(st.sampled_from(sorted(WHOLE)), "file")
    chooser = random.Random(data.draw(st.integers(0, 2**64 - 1), "seed"))
    damages = data.draw(st.lists(st.sampled_from(DAMAGE), max_size=3), "damages")
    exchanged, zipped = data.draw(st.booleans(), "exchanged"), data.draw(st.sampled_from(["", "", "in", "out"]), "zipped")
    content = whole = WHOLE[name]
    if exchanged and not isinstance(content, bytes):
        rows = content.strip().split("\n") if isinstance(content, str) else None
        if rows is None:
            content = json.dumps(exchange(content, chooser))
        elif rows[0].startswith("{"):
            number = chooser.randrange(len(rows))
            rows[number] = json.dumps(exchange(json.loads(rows[number]), chooser))
            content = "\n".join(rows)
    content = whole = as_bytes(content)
    if zipped == "out":
        content = gzip.compress(content)
    for damage in damages:
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
    texts = attempt(corpus, path, text_column=column, streaming=True)
    if chooser.random() < 0.1:
        assert attempt(corpus, path, text_column=column, cache_dir=tmp_path / "cache") == texts
    rows = None if name.endswith(".txt") else attempt(table, path)
    if texts is not None and rows is not None:
        assert texts == [row[column] or "" for row in rows]

    if zipped == "out":
        # gzip has a checksum: damage is seen, or it is none.
        if texts is None and rows is None:
            return
        content = whole
    if name.endswith(".txt") and texts is not None:
        assert " ".join(texts).split() == expected_words(name, content)
    if name.endswith((".csv", ".tsv")) and rows is not None:
        words = [word for row in [{name: name for name in rows[0]}, *rows] for cell in row.values() for word in cell.split()]
        assert words == expected_words(name, content)
    if name.endswith((".json", ".jsonl")) and rows is not None:
        values = json_values(name, content.decode("utf-8-sig"))
        assert plain(values) == plain(rows)
    if name.endswith(".parquet") and zipped == "out" and rows is not None:
        assert whole == WHOLE[name] and rows == (SQUAD if "squad" in name else ROWS)

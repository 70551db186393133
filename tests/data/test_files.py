# SPDX-License-Identifier: Apache-2.0
"""Rows from files and from the Hub: every kind of file, cells that other readers change, and errors in a file."""

import gzip
import json
import random

import datasets
import pytest

from hf_deberta_ext.data.files import named_files, read_files, shown_files
from hf_deberta_ext.data.hub import read_hub
from hf_deberta_ext.pretraining import load_corpus

ROWS = [
    {"sentence": "so", "label": 1},
    {"sentence": 'he said "no",\nand left', "label": 0},
    {"sentence": "日本 naïve \u2028 end", "label": 1},
]
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
# Cells that pandas, pyarrow or datasets would change.
ODD = ["NA", "null", "", "nan", "None", "2020-01-01", "007", "1e5", "true", " padded "]


def write(file, text):
    data = text.encode() if isinstance(text, str) else text
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return file


def rows_of(*files):
    return read_files([*files], source="--train_file").to_list()


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def csv(rows):
    quoted = ('"' + row["sentence"].replace('"', '""') + '"' for row in rows)
    return "sentence,label\n" + "".join(f"{text},{row['label']}\n" for text, row in zip(quoted, rows, strict=True))


FORMS = {
    "lines": ("a.jsonl", jsonl(ROWS)),
    "lines_in_json": ("a.json", jsonl(ROWS)),
    "list": ("a.json", json.dumps(ROWS)),
    "indented_list": ("a.JSON", json.dumps(ROWS, ensure_ascii=False, indent=1)),
    "list_in_jsonl": ("a.jsonl", json.dumps(ROWS)),
    "data": ("a.json", json.dumps({"version": "1", "data": ROWS}, indent=2)),
    "data_in_a_line": ("a.json", json.dumps({"version": "1", "data": ROWS})),
    "blank_lines": ("a.jsonl", jsonl(ROWS).replace("\n", "\r\n\n")),
    "byte_order_mark": ("a.jsonl", "\ufeff" + jsonl(ROWS)),
    "csv": ("a.csv", csv(ROWS)),
    "csv_byte_order_mark": ("a.csv", "\ufeff" + csv(ROWS)),
    "csv_old_mac": ("a.csv", csv([ROWS[0], ROWS[2]]).replace("\n", "\r")),
}


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_in_every_form_gives_the_same_rows(tmp_path, form, zipped):
    """Both fine-tuning and pre-training read it; all cells of a table are text."""
    name, text = FORMS[form]
    file = write(tmp_path / f"{name}{zipped}", text)
    expected = [ROWS[0], ROWS[2]] if form == "csv_old_mac" else ROWS
    if "csv" in name:
        expected = [dict(row, label=str(row["label"])) for row in expected]
    assert rows_of(file) == expected
    texts = [row["text"] for row in load_corpus(file, text_column="sentence", streaming=True)]
    assert texts == [row["sentence"] for row in expected]


SEMICOLONS = 'text;label\n"so; or, so";1\n'


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", SEMICOLONS, "cells are separated by semicolons (if not, pass --delimiter)"),
        ("a.csv.gz", "\n" + SEMICOLONS, "cells are separated by semicolons"),
        ("b.csv", "text\tlabel\nso; or, so\t1\n", "cells are separated by tabs"),
        # Semicolons of texts and of one name do not count.
        ("c.csv", 'text,label\n"so; or, so",1\n', None),
        ("d.csv", 'text,"label; or so"\n"so; or, so",1\n', None),
    ],
)
def test_the_delimiter_of_csv_is_found_in_the_header_and_told(name, text, told, tmp_path, caplog):
    read = rows_of(write(tmp_path / name, text))
    assert [[*row.values()] for row in read] == [["so; or, so", "1"]]
    assert len(caplog.messages) == bool(told) and (told or "") in caplog.text


def test_delimiter_and_encoding_may_be_given(tmp_path):
    text = "text|label\ncafé, or tea|1\n"
    for name, encoding in (("a.csv", "cp1252"), ("b.tsv", "utf-16"), ("c.csv.gz", "utf-8-sig")):
        file = write(tmp_path / name, text.encode(encoding))
        read = read_files(file, source="--train_file", delimiter="|", encoding=encoding)
        assert read.to_list() == [{"text": "café, or tea", "label": "1"}]
    lines = write(tmp_path / "d.jsonl", jsonl(ROWS[:1]).encode("utf-16"))
    assert read_files(lines, source="--train_file", encoding="utf-16").to_list() == ROWS[:1]
    for delimiter, encoding, message in ((";;", "cp1252", "1-character string"), (None, "utf-16", "UTF-16 stream")):
        with pytest.raises(ValueError, match=f"--train_file: .*{message}"):
            read_files(tmp_path / "a.csv", source="--train_file", delimiter=delimiter, encoding=encoding)


def test_tsv_takes_quotes_as_they_are(tmp_path):
    text = 'sentence\tlabel\n"unclosed\t0\nsay ""it"" "\t1\r\n\n\u2028lone\t1\n'
    expected = [['"unclosed', "0"], ['say ""it"" "', "1"], ["\u2028lone", "1"]]
    assert [[*row.values()] for row in rows_of(write(tmp_path / "a.tsv", text))] == expected


@pytest.mark.parametrize(("ending", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_no_cell_of_a_table_is_taken_for_nothing_or_for_a_number(tmp_path, ending, separator):
    text = "".join(f"x{separator}{cell}\n" for cell in ["odd", *ODD])
    assert [row["odd"] for row in rows_of(write(tmp_path / f"a{ending}", text))] == ODD


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"options": ["a"], "idx": {"query": 1}, "score": 1.5}, {"options": [], "idx": {"query": 2}, "score": 2}], None),
        ([{"sentence": "2020-01-01"}, {"sentence": "2021-02-02 10:00:00"}], None),
        ([{"a": "x"}, {"b": 2}], [{"a": "x", "b": None}, {"a": None, "b": 2}]),
    ],
    ids=["types", "dates", "absent"],
)
def test_values_of_json_stay_what_they_are_and_a_key_that_a_row_does_not_have_is_none(tmp_path, rows, expected):
    assert rows_of(write(tmp_path / "a.jsonl", jsonl(rows))) == (expected or rows)


def test_files_are_joined_in_order_if_their_columns_are_the_same_or_are_named_sets(tmp_path, monkeypatch):
    one = write(tmp_path / "b.jsonl", jsonl([{"sentence": "one", "label": "0"}]))
    two = write(tmp_path / "a.csv.gz", "label,sentence\n1,two\n")
    assert [row["sentence"] for row in rows_of(one, two)] == ["one", "two"]
    assert shown_files([one, two]) == "b.jsonl, a.csv.gz"
    with pytest.raises(ValueError, match="must have the same columns, but only one of them has label"):
        rows_of(one, write(tmp_path / "c.jsonl", jsonl([{"sentence": "x"}])))
    monkeypatch.chdir(tmp_path)
    entries = ["a.tsv", "mm=b.tsv", "c.tsv", "mm=d.tsv", "de-x=folder/e=f.tsv", "folder/x=y.tsv"]
    expected = {"": ["a.tsv", "c.tsv", "folder/x=y.tsv"], "mm": ["b.tsv", "d.tsv"], "de-x": ["folder/e=f.tsv"]}
    assert named_files(entries, source="x") == expected
    write(tmp_path / "mm=b.tsv", "x")
    assert named_files(["mm=b.tsv"], source="x") == {"": ["mm=b.tsv"]}
    for entry in ("=a.tsv", "mm=", "m m=a.tsv"):
        with pytest.raises(ValueError, match="--validation_file expects FILE or NAME=FILE"):
            named_files([entry], source="--validation_file")


@pytest.mark.parametrize("files", [["a.parquet"], ["b.parquet.gz"], ["a.parquet", "b.parquet.gz"]])
def test_parquet_keeps_the_names_of_its_labels(tmp_path, files):
    feature = datasets.ClassLabel(names=["bad", "good"])
    rows = datasets.Dataset.from_list(ROWS).cast_column("label", feature)
    rows.to_parquet(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet.gz", (tmp_path / "a.parquet").read_bytes())
    read = read_files([tmp_path / file for file in files], source="--train_file")
    assert read.to_list() == ROWS * len(files) and read.features["label"] == feature


@pytest.fixture
def hub(tmp_path):
    """Return hub(name, config, splits): `read_hub` with its own cache."""
    cache = str(tmp_path / "cache")
    return lambda name, config=None, splits=None: read_hub(name, config, splits or {"train": ["train"]}, cache_dir=cache)


def test_a_folder_is_read_as_a_data_set_of_the_hub_is(tmp_path, hub):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.jsonl", jsonl(ROWS))
    write(tmp_path / "data" / "dev.jsonl", jsonl(ROWS[:1]))
    folder, splits = str(tmp_path / "data"), {"train": ["train"], "validation": ["validation", "dev"], "test": ["none"]}
    read = hub(folder, None, splits)
    assert {name: rows.to_list() for name, rows in read.items()} == {"train": ROWS, "validation": ROWS[:1]}
    with pytest.raises(ValueError, match=r"must have one of the splits other, got train"):
        hub(folder, None, {"train": ["other"]})
    with pytest.raises(ValueError, match=r"cannot be loaded.*no_such_config"):
        hub(folder, "no_such_config")
    write(tmp_path / "data" / "train.jsonl", '{"a": 1}\n{"a"\n')
    with pytest.raises(ValueError, match=r"cannot be loaded: .*JSON.*in the folder"):
        hub(folder)


GZIPPED = gzip.compress(("text\n" + "".join(f"{random.Random(n).getrandbits(256):x}\n" for n in range(2000))).encode())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.csv", None, "the file .*none.csv does not exist"),
        ("a.txt", "x", "a.txt must end in .jsonl, .json, .csv, .tsv, .parquet"),
        ("a.csv", "", "a.csv has no rows"),
        ("a.csv", "text,label,text\nA,1,B\n", "the header of .*a.csv must not repeat a column, got text, label, text"),
        ("a.csv", "text,label\nx,1\ny\n", "line 3 of .*a.csv must have 2 cells .*, got 1"),
        ("a.csv", 'text,label\n"He" said,1\n', "line 2 of .*a.csv is not csv"),
        ("a.csv", 'text,label\n"never closed,1\nx,1\n', "line 3 of .*a.csv is not csv: unexpected end of data"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", "a.csv is not UTF-8 .byte 0xe9.: convert the file to UTF-8"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "line 2 of .*a.jsonl is not JSON: Expecting value: line 2 column 1"),
        ("a.jsonl", '{"text": "A"}\n7\n', "line 2 of .*a.jsonl must be a JSON object .*got 7"),
        ("a.jsonl", '{"text": "A"}\n' + DEEP, "line 2 of .*a.jsonl is not JSON: maximum recursion"),
        ("a.json", '[{"text": "A"}, 7]', "row 2 of .*a.json must be a JSON object .*got 7"),
        ("a.jsonl", '{"a": 1}\n{"a": null}\n{"a": "x"}\n', "a.jsonl cannot be converted to a table: .*'x'"),
        ("a.parquet", b"PAR2", "a.parquet cannot be read as parquet"),
        ("cut.csv.gz", GZIPPED[:-20], "cut.csv.gz is damaged, or not a gzip file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path, name, text, message):
    file = tmp_path / name
    if name[0] != "a" and isinstance(text, bytes):
        file.write_bytes(text)
    elif text is not None:
        write(file, text)
    with pytest.raises(ValueError, match=message) as error:
        rows_of(file)
    assert str(error.value).startswith("--train_file: ") and "\n" not in str(error.value)


def test_a_data_set_out_of_reach_or_of_a_script_says_how_to_go_on(monkeypatch, hub):
    """The tests run offline, and the data set is not in the cache."""
    with pytest.raises(ValueError, match=r"'nobody/nothing' \(sst2\) cannot be loaded.*in the cache"):
        hub("nobody/nothing", "sst2")

    def load_dataset(*args, **kwargs):
        raise RuntimeError("Dataset scripts are no longer supported, but found super_glue.py")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(ValueError, match=r"found super_glue\.py .*--data_revision refs/convert/parquet"):
        hub("nobody/nothing")

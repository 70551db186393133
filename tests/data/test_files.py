# SPDX-License-Identifier: Apache-2.0
"""Rows from files and from the Hub: every kind of file, cells that others misread, and what is wrong with a file."""

import gzip
import io
import json
import random
import re
from csv import field_size_limit
from functools import partial

import pytest

pytest.importorskip("datasets")

import datasets
import pyarrow as pa
from pyarrow import parquet

from hf_deberta_ext.data.columns import as_numbers, check_cells, check_columns, first, label_order
from hf_deberta_ext.data.files import named_files, read_files, shown_files
from hf_deberta_ext.data.hub import read_hub
from hf_deberta_ext.pretraining import load_corpus

ROWS = [
    {"sentence": "so", "label": 1},
    {"sentence": 'he said "no",\nand left', "label": 0},
    {"sentence": "日本 naïve \u2028 end", "label": 1},
]
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
# What pandas, pyarrow or datasets would not leave as they are.
ODD = ["NA", "null", "", "nan", "None", "2020-01-01", "007", "1e5", "true", " padded "]


def parquet_of(columns, names=("text",)):
    """A parquet file; cells that are bytes become text, UTF-8 or not."""
    arrays = [pa.array([cell if isinstance(cell, bytes) else cell.encode() for cell in cells]) for cells in columns]
    file = io.BytesIO()
    parquet.write_table(pa.table([pa.Array.from_buffers(pa.string(), len(a), a.buffers()) for a in arrays], [*names]), file)
    return file.getvalue()


def write(file, text, encoding="utf-8"):
    if text is None:
        file.touch()
        return file
    data = text.encode(encoding) if isinstance(text, str) else text
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return file


def rows_of(*files):
    return read_files([*files], source="--train_file").to_list()


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def csv(rows):
    quoted = ('"' + row["sentence"].replace('"', '""') + '"' for row in rows)
    return "sentence,label\n" + "".join(f"{text},{row['label']}\n" for text, row in zip(quoted, rows, strict=True))


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (".jsonl", jsonl(ROWS)),
        (".json", jsonl(ROWS)),
        (".json", json.dumps(ROWS)),
        (".json", json.dumps({"version": "1", "data": ROWS}, indent=2)),
        (".JSON", json.dumps(ROWS, ensure_ascii=False)),
        (".jsonl", jsonl(ROWS).replace("\n", "\r\n\n")),
    ],
    ids=["lines", "lines_in_json", "list", "data", "capitals", "blank_lines"],
)
def test_json_in_every_form_gives_the_same_rows(tmp_path, ending, text, zipped):
    assert rows_of(write(tmp_path / f"a{ending}{zipped}", text)) == ROWS


@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_csv_has_quotes_commas_and_newlines_in_cells_and_all_cells_are_text(tmp_path, zipped):
    expected = [dict(row, label=str(row["label"])) for row in ROWS]
    assert rows_of(write(tmp_path / f"a.csv{zipped}", csv(ROWS))) == expected


def test_tsv_takes_quotes_as_they_are(tmp_path):
    text = 'sentence\tlabel\n"unclosed\t0\nsay ""it"" "\t1\r\n\n\u2028\rlone\t1\n'
    assert rows_of(write(tmp_path / "a.tsv", text)) == [
        {"sentence": '"unclosed', "label": "0"},
        {"sentence": 'say ""it"" "', "label": "1"},
        {"sentence": "\u2028\rlone", "label": "1"},
    ]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_no_cell_of_a_table_is_taken_for_nothing_or_for_a_number(tmp_path, ending):
    separator = "," if ending == ".csv" else "\t"
    text = "".join(separator.join(("x", cell)) + "\n" for cell in ["odd", *ODD])
    assert [row["odd"] for row in rows_of(write(tmp_path / f"a{ending}", text))] == ODD


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    for ending, text in ((".csv", csv(ROWS)), (".tsv", "sentence\tlabel\na\t1\n"), (".jsonl", jsonl(ROWS))):
        rows = rows_of(write(tmp_path / f"a{ending}", text, "utf-8-sig"))
        assert [*rows[0]] == ["sentence", "label"]


def test_values_of_json_stay_what_they_are_and_a_key_that_a_row_does_not_have_is_none(tmp_path):
    for rows in (
        [{"options": ["a", "b"], "idx": {"query": 1}, "score": 1}, {"options": [], "idx": {"query": 2}, "score": 2.5}],
        [{"sentence": cell} for cell in ("2020-01-01", "2021-02-02 10:00:00")],
    ):
        assert rows_of(write(tmp_path / "a.jsonl", jsonl(rows))) == rows
    rows = [{"a": "x"}, {"a": "y", "b": 1}, {"b": 2}]
    expected = [{"a": "x", "b": None}, {"a": "y", "b": 1}, {"a": None, "b": 2}]
    assert rows_of(write(tmp_path / "a.jsonl", jsonl(rows))) == expected


def test_files_are_joined_in_order_whatever_their_kind(tmp_path):
    one = write(tmp_path / "b.jsonl", jsonl([{"sentence": "one", "label": "0"}]))
    two = write(tmp_path / "a.csv.gz", "label,sentence\n1,two\n")
    assert [row["sentence"] for row in rows_of(one, two)] == ["one", "two"]
    assert shown_files([one, two]) == "b.jsonl, a.csv.gz"


def test_parquet_keeps_the_names_of_its_labels(tmp_path):
    feature = datasets.ClassLabel(names=["bad", "good"])
    rows = datasets.Dataset.from_list(ROWS).cast_column("label", feature)
    rows.to_parquet(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet.gz", (tmp_path / "a.parquet").read_bytes())
    for files in (["a.parquet"], ["b.parquet.gz"], ["a.parquet", "b.parquet.gz"]):
        read = read_files([tmp_path / file for file in files], source="--train_file")
        assert read.to_list() == ROWS * len(files)
        assert read.features["label"] == feature
    assert rows_of(tmp_path / "a.parquet", write(tmp_path / "c.jsonl", jsonl(ROWS))) == ROWS * 2


def test_a_long_cell_is_read_and_the_limit_of_the_csv_module_left_alone(tmp_path):
    before = field_size_limit()
    text = "word " * 40_000
    assert rows_of(write(tmp_path / "a.csv", f"sentence,label\n{text},1\n"))[0]["sentence"] == text
    assert field_size_limit() == before


def test_csv_gives_back_any_text(tmp_path):
    generator = random.Random(0)
    rows = [{"sentence": "".join(generator.choices('ab",\n\t é\r', k=12)), "label": n} for n in range(200)]
    assert [row["sentence"] for row in rows_of(write(tmp_path / "a.csv", csv(rows)))] == [row["sentence"] for row in rows]


def test_texts_become_numbers_where_all_of_them_read_as_such():
    def typed(*cells):
        return as_numbers(datasets.Dataset.from_dict({"x": [*cells]}), "x")["x"][:]

    assert typed("1", "-1", "10") == [1, -1, 10] and {*map(type, typed("1", "10"))} == {int}
    assert typed("1", "2.5") == [1.0, 2.5] and typed(3, 4) == [3, 4]
    assert typed("1", "two") == ["1", "two"] and typed("1", "") == ["1", ""]


def test_labels_are_in_the_order_of_numbers_or_of_texts():
    assert label_order([10, 9, 2, 10], source="x") == [2, 9, 10]
    assert label_order(["10", "9", "-2", "9"], source="x") == ["-2", "9", "10"]
    assert label_order(["b", "a", "10", "9"], source="x") == ["10", "9", "a", "b"]
    assert label_order([True, False], source="x") == [False, True]
    assert label_order([], source="x") == []
    # No number that Python would read.
    assert label_order(["9" * 5000, "10"], source="x") == ["10", "9" * 5000]
    labels = [f"label {n}" for n in range(30)]
    assert label_order(random.Random(1).sample(labels * 2, 60), source="x") == sorted(labels)
    with pytest.raises(ValueError, match="x has labels that are text and labels that are numbers: 'a' and 1"):
        label_order(["b", 2, "a", 1], source="x")


def test_the_first_rows_and_no_more_than_there_are():
    rows = datasets.Dataset.from_list(ROWS)
    assert [first(rows, count).to_list() for count in (None, 1, 99)] == [ROWS, ROWS[:1], ROWS]


def test_files_of_named_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entries = ["a.tsv", "mm=b.tsv", "c.tsv", "mm=d.tsv", "de-x=folder/e=f.tsv", "folder/x=y.tsv"]
    assert named_files(entries, source="x") == {
        "": ["a.tsv", "c.tsv", "folder/x=y.tsv"],
        "mm": ["b.tsv", "d.tsv"],
        "de-x": ["folder/e=f.tsv"],
    }
    write(tmp_path / "mm=b.tsv", "x")
    assert named_files(["mm=b.tsv"], source="x") == {"": ["mm=b.tsv"]}
    for entry in ("=a.tsv", "mm=", "m m=a.tsv"):
        with pytest.raises(ValueError, match="--validation_file takes FILE or NAME=FILE"):
            named_files([entry], source="--validation_file")


@pytest.fixture
def hub(tmp_path):
    """hub(name, config, splits): `read_hub` with a cache of its own."""
    cache = str(tmp_path / "cache")
    return lambda name, config=None, splits=None: read_hub(name, config, splits or {"train": ["train"]}, cache_dir=cache)


def test_a_folder_is_read_as_a_data_set_of_the_hub_is(tmp_path, hub):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.jsonl", jsonl(ROWS))
    write(tmp_path / "data" / "dev.jsonl", jsonl(ROWS[:1]))
    folder, splits = str(tmp_path / "data"), {"train": ["train"], "validation": ["validation", "dev"], "test": ["none"]}
    read = hub(folder, None, splits)
    assert {name: rows.to_list() for name, rows in read.items()} == {"train": ROWS, "validation": ROWS[:1]}
    with pytest.raises(ValueError, match=r"has none of the splits other, but train"):
        hub(folder, None, {"train": ["other"]})
    with pytest.raises(ValueError, match=r"cannot be loaded.*no_such_config"):
        hub(folder, "no_such_config")
    write(tmp_path / "data" / "train.jsonl", '{"a": 1}\n{"a"\n')
    with pytest.raises(ValueError, match=r"cannot be loaded: .*JSON.*in the folder"):
        hub(folder)


def read_twice(path):
    """The column "text" as pre-training and as fine-tuning reads it, or the two messages."""
    results = []
    for read in (lambda: load_corpus(path, streaming=True), lambda: read_files(path, source="--train_file")):
        try:
            results.append([row["text"] for row in read()])
        except ValueError as error:
            results.append(str(error).removeprefix("--train_file: "))
    return results


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.tsv", 'text\tlabel\n"Hello" she said\t1\n"Bye\t0\n', ['"Hello" she said', '"Bye']),
        ("a.json", '{"version": 1, "data": [{"text": "A"}, {"text": "B"}]}', ["A", "B"]),
        ("a.json", '{"text": "A"}\n\n{"text": "B"}\n', ["A", "B"]),
        ("a.json", '{\n "text": "A"\n}\n', ["A"]),
        ("a.jsonl", '[{"text": "A"},\n{"text": "B"}]', ["A", "B"]),
        ("a.jsonl", r'{"text": "half \ud83d, whole \ud83d\ude00"}', ["half ?, whole 😀"]),
        ("a.csv", 'text,label\rA,1\r"B\rb",2\r', ["A", "B\rb"]),
        ("a.tsv", "text\tlabel\rA\t1\rB\t2\r", ["A", "B"]),
        ("a.jsonl", '{"text": "A"}\r{"text": "B"}', ["A", "B"]),
        ("a.json", '[\r{"text": "A"},\r{"text": "B"}]\r\n', ["A", "B"]),
    ],
)
def test_a_file_has_the_same_texts_for_pretraining_and_fine_tuning(tmp_path, name, text, expected):
    assert read_twice(write(tmp_path / name, text)) == [expected, expected]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "text,label,text\nA,1,B\n", "the header of .*a.csv has the column 'text' twice"),
        ("a.tsv", 'text\tlabel\n"two\tcells"\t1\n', "line 2 of .*a.tsv has 3 cells, its header 2"),
        ("a.csv", 'text,label\n"He" said,1\n', "line 2 of .*a.csv is not csv"),
        ("a.jsonl", '{"text": "A"}\n7\n', "line 2 of .*a.jsonl must be an object .*got 7"),
        ("a.json", '[{"text": "A"}, 7]', "row 2 of .*a.json must be an object .*got 7"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", r"a.csv is not UTF-8: byte 14 \(line 2\) is 0xe9; convert the file to UTF-8"),
        ("a.parquet", b"PAR2", "a.parquet cannot be read as parquet"),
        ("a.jsonl", '{"text": "A"}\n' + DEEP, "line 2 of .*a.jsonl is not JSON: it is nested too deeply"),
        ("a.jsonl", DEEP + '\n{"text": "A"}\n', "line 1 of .*a.jsonl is not JSON: it is nested too deeply"),
        ("a.json", DEEP, "a.json is not JSON: it is nested too deeply"),
        ("a.jsonl", '{"text": "A", "n": ' + "1" * 5000 + "}", "line 1 of .*a.jsonl is not JSON: Exceeds the limit"),
        ("a.json", '[{"text": "A", "n": ' + "1" * 5000 + "}]", "a.json is not JSON: Exceeds the limit"),
        ("a.tsv", "text\ttext\nA\tB\n", "the header of .*a.tsv has the column 'text' twice"),
        ("a.parquet", parquet_of([["A"], ["B"]], ["text", "text"]), "a.parquet .*has the column 'text' twice"),
        ("a.parquet", parquet_of([["A"] * 2000 + [b"\xff"]]), r"a.parquet .*\(after row 2000\).*Invalid UTF8"),
        ("a.parquet.gz", b"PAR2", "a.parquet.gz cannot be read as parquet"),
        ("a.csv.gz", None, "a.csv.gz is damaged or is not gzip although it ends in .gz: it is empty"),
    ],
)
def test_a_file_is_refused_alike_by_pretraining_and_fine_tuning(tmp_path, name, text, message):
    pretraining, fine_tuning = read_twice(write(tmp_path / name, text))
    assert pretraining == fine_tuning and re.search(message, pretraining)


def test_a_damaged_gz_file_is_refused_alike_by_pretraining_and_fine_tuning(tmp_path):
    """In its midst it is a zlib.error, neither a BadGzipFile nor an early end."""
    generator, path = random.Random(0), tmp_path / "a.csv.gz"
    whole = gzip.compress(("text\n" + "".join(f"{generator.getrandbits(256):x}\n" for _ in range(2000))).encode())
    flipped = whole[:1000] + bytes(byte ^ 0xFF for byte in whole[1000:1200]) + whole[1200:]
    for data in (whole[:-20], whole[: len(whole) // 2], flipped, b"no gzip"):
        path.write_bytes(data)
        pretraining, fine_tuning = read_twice(path)
        assert pretraining == fine_tuning and re.search(r"a\.csv\.gz is damaged or is not gzip", pretraining)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.parquet", "a.jsonl"])
def test_a_file_that_unpacks_to_more_than_memory_or_disk_is_refused_alike(tmp_path, name):
    """A .gz of 1 MB may hold 1 GB, and so may .parquet: here they have 30 kB and 5 kB."""
    cells = ["so" * 1000] * 4000
    content = parquet_of([cells]) if name == "a.parquet" else "text\n" + "\n".join(cells)
    path = write(tmp_path / name, jsonl(dict(text=cell) for cell in cells) if name == "a.jsonl" else content)
    assert path.stat().st_size < 50_000 or name == "a.jsonl"
    for read in (partial(load_corpus, streaming=True), partial(read_files, source="--train_file")):
        with pytest.raises(ValueError, match=f"{name} .*more than 4000000 bytes .*: give a higher --max_file_bytes"):
            [*read(path, max_file_bytes=4_000_000)]
        assert sum(1 for _ in read(path, max_file_bytes=9_000_000)) == 4000


def test_no_more_than_memory_holds_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_deberta_ext.data.files.HELD_BYTES", 1000)
    line = '{"text": "' + "so " * 200 + '"}'
    for name, text, message in (
        ("a.jsonl", line.replace("so", "long") + "\n", "line 1 of .*a.jsonl has more than 1000 bytes"),
        ("a.json", f"[{line},\n{line}]", "a.json has more than 1000 bytes.* .jsonl .*instead of one JSON value"),
        ("a.csv", 'text\n"' + "so\n" * 400 + '"\n', "a.csv is not csv: field larger than field limit"),
        ("a.parquet.gz", parquet_of([["so " * 400]]), "a.parquet.gz has more than 1000 bytes.* and .parquet.gz"),
    ):
        pretraining, fine_tuning = read_twice(write(tmp_path / name, text))
        assert pretraining == fine_tuning and re.search(message, pretraining)
    assert read_twice(write(tmp_path / "b.jsonl", f"{line}\n" * 10)) == [["so " * 200] * 10] * 2


def test_a_file_for_which_memory_is_short_is_named(tmp_path, monkeypatch):
    def no_memory(*args):
        raise MemoryError

    monkeypatch.setattr("json.loads", no_memory)
    message = "a.jsonl needs more memory than there is"
    assert all(re.search(message, error) for error in read_twice(write(tmp_path / "a.jsonl", '{"text": "A"}\n')))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "x", "a.txt must end in .jsonl, .json, .csv, .tsv, .parquet"),
        ("a.csv", "", "has no rows; expected a header and a row on each line after it"),
        ("a.csv.gz", "", "a.csv.gz has no rows"),
        ("a.jsonl", "\n \n", "has no rows; expected one object a line"),
        ("a.csv", "sentence,label\n", "a.csv has no rows"),
        ("a.tsv", "sentence\tlabel\n\n", "a.tsv has no rows"),
        ("a.json", "[]", "no rows"),
        ("a.jsonl", r'{"a\u0000b": 1}', "a.jsonl cannot be made a table"),
        ("a.json", '{"data": []}', "no rows"),
        ("a.csv", "sentence,label\nx,1\ny\n", "line 3 of .*a.csv has 1 cells, its header 2 .*put quotes"),
        ("a.tsv", "sentence\tlabel\nx\t1\ty\n", "line 2 of .* has 3 cells, its header 2 .*write .* to .csv"),
        ("a.csv", 'sentence,label\n"never closed,1\nx,1\n', "line 3 of .*a.csv is not csv: unexpected end of data; .*quote"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "line 2 of .* is not JSON: Expecting value: line 1 column 6"),
        ("a.json", '[{"a": 1}, {"a"]', "a.json is not JSON: .*expected one object a line"),
        ("a.json", '{"a"\n{"a": 1}\n', "a.json is not JSON: .* line 2"),
        ("a.jsonl", '{"a": 1}\n{"a": null}\n{"a": "x"}\n', "row 3 of .*a.jsonl has 'x' in the column 'a', unlike"),
        ("a.jsonl", '{"a": [1]}\n{"a": [99999999999999999999999]}\n', "row 2 of .*a.jsonl has .*99.* in the column 'a'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as error:
        rows_of(write(tmp_path / name, text))
    assert str(error.value).startswith("--train_file")


def test_files_that_are_not_there_or_do_not_fit_together(tmp_path):
    one, two = write(tmp_path / "a.jsonl", jsonl(ROWS)), write(tmp_path / "b.jsonl", jsonl([{"sentence": "x"}]))
    for files, message in (
        ([tmp_path / "none.csv"], "--train_file: there is no file"),
        ([tmp_path], "--train_file: expected a file, but .* is a folder"),
        ([one, two], "not the same columns: label in one of them only"),
    ):
        with pytest.raises(ValueError, match=message):
            rows_of(*files)


def test_a_missing_column_is_told_with_those_that_are_there():
    rows = datasets.Dataset.from_list(ROWS)
    check_columns(rows, ["label"], source="--train_file")
    message = r"has no column 'text', 'x'; it has 'sentence', 'label' \(name another with --text_columns\)"
    with pytest.raises(ValueError, match=message):
        check_columns(rows, ["text", "label", "x"], source="--train_file", flag="--text_columns")


@pytest.mark.parametrize(
    ("cells", "kind", "shown"),
    [
        (["a", None], str, "row 2 of x has None in the column 'c', expected text"),
        ([1, 2], str, "row 1 of x has 1 in the column 'c', expected text"),
        ([True, True], int, "row 1 of x has True"),
        ([1.5, None], (int, float), "row 2 .* expected a whole number or a number"),
        ([["a"], None], list, "row 2 .* expected a list"),
        (["a" * 500, "b"], int, r"row 1 of x has 'a{70,80}\.\.\."),
    ],
)
def test_a_cell_of_another_type_is_named(cells, kind, shown):
    with pytest.raises(ValueError, match=shown):
        check_cells(datasets.Dataset.from_dict({"c": cells}), "c", kind, source="x")
    # Good cells pass, also where a bad one is left out.
    check_cells(datasets.Dataset.from_dict({"c": ["a", "", None]}).select([0, 1]), "c", str, source="x")
    for cell in (True, 1):
        check_cells(datasets.Dataset.from_dict({"c": [cell]}), "c", type(cell), source="x")


def test_a_data_set_out_of_reach_or_of_a_script_says_how_to_go_on(monkeypatch, hub):
    """The tests run offline: it is not in the cache."""
    with pytest.raises(ValueError, match=r"'nobody/nothing' \(sst2\) cannot be loaded.*--train_file"):
        hub("nobody/nothing", "sst2")

    def load_dataset(*args, **kwargs):
        raise RuntimeError("Dataset scripts are no longer supported, but found super_glue.py")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(ValueError, match=r"found super_glue\.py .*--data_revision refs/convert/parquet; local files"):
        hub("nobody/nothing")


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch, hub):
    def dataset_info(self, *args, timeout, **kwargs):
        assert timeout <= 10
        raise ConnectionError("no network\nsecond line")

    monkeypatch.setattr("huggingface_hub.is_offline_mode", lambda: False)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    with pytest.raises(ValueError, match=r"ConnectionError: no network\); .* set HF_HUB_OFFLINE=1; local files"):
        hub("nobody/nothing")

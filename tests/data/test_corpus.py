# SPDX-License-Identifier: Apache-2.0
"""load_corpus: every kind of file, folders, streaming, and error messages."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from functools import partial

import datasets
import pytest

from hf_deberta_ext.pretraining import corpus as corpus_module
from hf_deberta_ext.pretraining.corpus import load_corpus

DOCUMENTS = ["One line. And more.", "Zwei Zeilen:\nüber 😀 mit “Zitat”, Komma\tund Tabulator", "最後の文書。"]
# Cells of a .tsv cannot contain a tab or a line end.
IN_TSV = [text.replace("\n", " ").replace("\t", " ") for text in DOCUMENTS]


def as_bytes(documents, ending, column="text"):
    """Return a file of the type `ending`, without gzip, that contains the documents."""
    if ending in (".txt", ".text"):
        return "\n\n".join(documents).encode()
    rows = [{"id": i, column: text, "meta": {"n": [i]}} for i, text in enumerate(documents)]
    if ending == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=bool(row["id"] % 2)) + "\n" for row in rows).encode()
    if ending == ".json":
        return json.dumps(rows, indent=1).encode()
    if ending == ".parquet":
        file = io.BytesIO()
        datasets.Dataset.from_list(rows).to_parquet(file)
        return file.getvalue()
    if ending == ".tsv":
        return "".join(f"{number}\t{text}\n" for number, text in [("id", column), *enumerate(documents)]).encode()
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["id", column], *enumerate(documents)])
    return file.getvalue().encode()


@pytest.fixture
def write(tmp_path):
    """write(name, content) returns a path; content is bytes, text or documents, gzipped if the name ends in .gz."""

    def build(name, content, **options):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = as_bytes(content, os.path.splitext(name.removesuffix(".gz"))[1], **options)
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return build


@pytest.fixture
def load(tmp_path):
    """Return load(sources, ...): load_corpus with its own cache."""
    return partial(load_corpus, cache_dir=tmp_path / "cache")


def rows(corpus):
    return [row["text"] for row in corpus]


def test_plain_text_is_parted_at_blank_lines_or_has_a_document_a_line_or_a_file(write, load):
    path = write("a.txt", "\n \t\nA one.\nA two.\n\n\n   \n  B indented.\n")
    assert rows(load(path)) == ["A one.\nA two.", "  B indented."]
    path = write("a.txt", "A one.\n\nB two.\n")
    assert rows(load(path, documents="line")) == ["A one.", "B two."]
    assert rows(load(path, documents="file")) == ["A one.\n\nB two."]
    assert rows(load([path, write("b.txt", "C")], documents="file")) == ["A one.\n\nB two.", "C"]
    path = write("a.txt", b"\xef\xbb\xbfA one.\r\nA two.\r\n\r\nB.\r\n")
    assert rows(load(path)) == ["A one.\nA two.", "B."]
    assert rows(load(write("b.txt", b"\xef\xbb\xbf\r\nA\r\n"), documents="line")) == ["A"]
    assert rows(load(write("a.json", b'\xef\xbb\xbf\n [{"text": "A"},\n{"text": "B"}]'))) == ["A", "B"]


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streaming"])
@pytest.mark.parametrize("gz", ["", ".gz"], ids=["plain", "gzip"])
@pytest.mark.parametrize("ending", [".txt", ".text", ".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_every_kind_of_file_gives_the_same_documents(write, load, ending, gz, streaming):
    documents = IN_TSV if ending == ".tsv" else DOCUMENTS
    corpus = load(write("a" + ending + gz, documents), streaming=streaming)
    assert isinstance(corpus, datasets.IterableDataset if streaming else datasets.Dataset)
    assert corpus.column_names == ["text"]
    assert rows(corpus) == documents


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "streaming"])
def test_a_folder_is_read_recursively_in_order_and_mixed(write, load, streaming):
    for name, text in [("b/2.jsonl", "4"), ("b/10.txt.gz", "3"), ("a.csv", "1"), ("a.parquet", "2"), ("c.tsv.gz", "5")]:
        write(name, [text])
    for name in [".hidden.txt", ".git/x.txt", "README.md", "b/LICENSE"]:
        write(name, b"not this")
    folder = write("z.txt", ["6"]).parent
    assert rows(load(folder, streaming=streaming)) == list("123456")


def test_sources_stay_in_the_order_given_also_with_several_processes(write, load):
    paths = [write("b.txt", ["1", "2"]), write("sub/x.jsonl", ["3"]).parent, write("a.csv", ["4"])]
    assert rows(load([str(paths[0]), *paths[1:]])) == list("1234")
    paths.insert(1, write("empty.txt", ""))
    for options in (dict(streaming=True), dict(num_proc=8)):
        assert rows(load(paths[::-1], **options)) == list("4312")
    with pytest.raises(ValueError, match=r"empty corpus: .* in 1 files: .*empty.txt"):
        load(paths[1])


def test_a_changed_file_is_read_anew_and_an_unchanged_one_is_not(write, load, tmp_path):
    path = write("a.txt", "first")
    assert rows(load(path)) == ["first"]
    arrows = sorted((tmp_path / "cache").rglob("*.arrow"))
    assert arrows and rows(load(path)) == ["first"]
    assert sorted((tmp_path / "cache").rglob("*.arrow")) == arrows
    write("a.txt", "second")
    assert rows(load(path)) == ["second"]


def test_streaming_neither_writes_nor_reads_ahead(write, load, tmp_path, monkeypatch):
    read = []
    path = write("a.txt", "".join(f"document {i}\n\n" for i in range(100_000)))
    lines = corpus_module.read_lines
    monkeypatch.setattr(corpus_module, "read_lines", lambda *a, **b: (read.append(line) or line for line in lines(*a, **b)))
    corpus = load(path, streaming=True)
    assert next(iter(corpus)) == {"text": "document 0"}
    assert len(read) < 20
    assert not (tmp_path / "cache").exists()


# Print by how many bytes the peak memory grows from the first file to the second, which is 30 times as long.
PEAK = """
import resource, sys
from hf_deberta_ext.pretraining import load_corpus
peaks = []
for path in sys.argv[3:]:
    corpus = load_corpus(path, streaming=sys.argv[1] == "streaming", cache_dir=sys.argv[2])
    assert sum(1 for _ in corpus) if sys.argv[1] == "streaming" else len(corpus)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("streaming", ["map", "streaming"])
@pytest.mark.parametrize("name", ["{}.txt", "{}.jsonl.gz"])
def test_memory_does_not_grow_with_the_corpus(write, tmp_path, name, streaming):
    """The guide measured.md has the peak for 10 GB."""
    paths = [write(name.format(n), [f"{number} " + "word " * 400 for number in range(n)]) for n in (3000, 90_000)]
    command = [sys.executable, "-c", PEAK, streaming, str(tmp_path / "cache"), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.splitlines()[-1]) < 60_000_000


def test_a_hub_data_set_is_reduced_to_its_text(write, load, monkeypatch):
    """load_dataset is replaced, so the Hub is not needed."""
    found = datasets.Dataset.from_dict({"id": [1, 2], "body": ["A", "B"]})
    calls = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: calls.append((args, options)) or found)
    corpus = load([write("a.txt", ["0"]), "owner/name"], text_column="body", split="validation", name="en", revision="r")
    assert rows(corpus) == list("0AB") and corpus.column_names == ["text"]
    (args, options), *_ = calls
    assert args == ("owner/name", "en")
    names = ("split", "revision", "streaming")
    assert {name: options[name] for name in names} == {"split": "validation", "revision": "r", "streaming": False}
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: found.to_iterable_dataset())
    assert rows(load("owner/name", text_column="body", streaming=True)) == ["A", "B"]
    for column in ("text", "id"):
        with pytest.raises(ValueError, match=f"the data set owner/name needs a column '{column}' of strings, got id, body"):
            load("owner/name", text_column=column)


@pytest.mark.parametrize("source", ["no/such/folder/x", "missing.jsonl.gz", "owner/none"])
def test_a_missing_file_is_named_with_the_working_directory(source):
    message = f"no file or folder {source} .*working directory: {os.getcwd()}"
    if source == "owner/none":
        message += ".*, and the data set 'owner/none' cannot be"
    with pytest.raises(FileNotFoundError, match=message):
        load_corpus(source)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.docx", b"x", r"a\.docx must have one of the suffixes \.txt, .*\.parquet \(each also with \.gz\)"),
        ("a.txt", b"\n \n\t\n", "empty corpus: no document with a visible character in .*a.txt"),
        ("a.jsonl", b'{"text": ""}\n{"text": " "}', "empty corpus"),
        ("a.csv", b"id,body\n1,x\n", "line 2 of .*a.csv has no column 'text', only id, body; set text_column"),
        ("a.jsonl", b'{"text": 1}', "'text' in line 1 of .*a.jsonl must be a string, got 1"),
        ("a.parquet", {"text": [1]}, "row 1 of .* must be a string, got 1"),
        ("a.txt", b"ab\nc\xe9d", r"a\.txt is not UTF-8"),
    ],
)
def test_errors_name_the_file_and_the_place(write, load, name, content, message):
    if isinstance(content, dict):
        file = io.BytesIO()
        datasets.Dataset.from_dict(content).to_parquet(file)
        content = file.getvalue()
    with pytest.raises(ValueError, match=message):
        load(write(name, content))


@pytest.mark.parametrize("options", [{}, {"num_proc": 2}, {"streaming": True}], ids=["map", "processes", "streaming"])
def test_an_error_far_into_the_corpus_names_the_file(write, load, options):
    good = write("a.jsonl", ["x"] * 2000)
    bad = write("b.jsonl", as_bytes(["x"] * 2000, ".jsonl") + b'{"body": 1}\n')
    with pytest.raises(ValueError, match=r"line 2001 of .*b\.jsonl has no column 'text', only body"):
        rows(load([good, bad], **options))


def test_files_of_a_folder_that_are_left_out_are_counted(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(corpus_module.logger, "propagate", True)
    for name in ("a.txt", "b.jsonl.zst", "c.md", "d.md", ".hidden", "LICENSE", "manifest.json"):
        (tmp_path / name).write_text("text", encoding="utf-8")
    load_corpus(tmp_path, streaming=True)
    assert f"{tmp_path}: reading 1 files; skipping 1 x .json, 2 x .md, 1 x .zst, 1 x LICENSE" in caplog.text

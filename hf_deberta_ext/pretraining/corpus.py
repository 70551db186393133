# SPDX-License-Identifier: Apache-2.0
"""Corpora: text files, JSON lines, tables, folders and Hub data sets as one data set with the column "text".

Local files are read by one generator, whatever their kind: row by row, the text column only. So files of one folder may
differ in kind and in their other columns, streaming holds one row at a time, and errors name the file and the line.
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from huggingface_hub import HfApi, is_offline_mode
from transformers.utils import logging

from .._version import __version__

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["DOCUMENTS", "load_corpus", "texts"]

logger = logging.get_logger(__name__)

DOCUMENTS = ("blank_line", "line", "file")
KINDS = {
    ".txt": "text", ".text": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv",
    ".parquet": "parquet",
}  # fmt: skip
ENDINGS = ", ".join(KINDS) + " (each also with .gz)"
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w.-]+)?")


def load_corpus(
    sources: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    documents: Literal["blank_line", "line", "file"] = "blank_line",
    text_column: str = "text",
    name: str | None = None,
    split: str = "train",
    streaming: bool = False,
    cache_dir: str | os.PathLike | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    num_proc: int | None = None,
) -> "Dataset | IterableDataset":
    """Text from where people have it, as a data set with the one column "text": a document a row, in order.

    Args:
        sources: one or several of: a file (.txt, .text, .jsonl, .json, .csv, .tsv, .parquet; each also .gz); a folder
            (all such files below it, sorted; hidden ones skipped, others counted in a warning); else the name of a data set
            on the Hub.
        documents: what a document is in plain text: what stands between blank lines ("blank_line"), each line that is
            not blank ("line"), or a file ("file"). Line ends become "\\n", a byte order mark is dropped.
        text_column (`str`): the column of the text in JSON, tables and Hub data sets; null is an empty document.
        name, split, revision, token: as in `datasets.load_dataset`, for Hub data sets only; files are used whole.
        streaming (`bool`): read while iterating, row by row; nothing is written to disk. A .json file that is one array
            and a .parquet.gz file are held in memory whole.
        cache_dir: where the Arrow files go; default is the cache of datasets. Changed files are read anew.
        num_proc (`int`, *optional*): processes that read; a file is read by one of them. Not for streaming.
    Returns:
        `datasets.Dataset`, with `streaming` `datasets.IterableDataset`.
    Raises:
        FileNotFoundError: a source is neither a file, nor a folder, nor a data set that can be reached.
        ValueError: unknown ending or `documents`; folder without such files; no column `text_column`, or not of strings;
            no document with a visible character; a file that is not UTF-8, not JSON or damaged (file and line are named;
            beyond the first document of a stream, this comes while iterating).
    """
    from datasets import concatenate_datasets

    if documents not in DOCUMENTS:
        raise ValueError(f"documents must be one of {', '.join(DOCUMENTS)}, got {documents!r}")
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    if num_proc is not None and streaming:
        raise ValueError("num_proc is for corpora that are read at once; with streaming=True leave it out")

    # Neighbouring files become one data set.
    parts: list[list | str] = []
    for source in map(os.fspath, sources):
        files = _files(source)
        if files is None:
            parts.append(source)
        elif parts and isinstance(parts[-1], list):
            parts[-1] += files
        else:
            parts.append(files)
    if not parts:
        raise ValueError("sources is empty, expected at least one file, folder or data set name")
    _check_files([file for part in parts if isinstance(part, list) for file in part], documents, text_column)
    options = dict(streaming=streaming, cache_dir=None if cache_dir is None else os.fspath(cache_dir), num_proc=num_proc)
    hub = dict(name=name, split=split, revision=revision, token=token)
    loaded = [
        _load_files(part, documents, text_column, **options)
        if isinstance(part, list)
        else _load_from_hub(part, text_column, **hub, **options)
        for part in parts
    ]
    return loaded[0] if len(loaded) == 1 else concatenate_datasets(loaded)


def texts(corpus: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The documents of `load_corpus` one by one, without the blank ones, as tokenizer training takes them."""
    return (row["text"] for row in corpus if row["text"] and not row["text"].isspace())


def _files(source: str) -> list[tuple[str, int, int]] | None:
    """(path, size, time of change) of each file of a source, which makes the cache see changes; None for a Hub name."""
    path = os.path.expanduser(source)
    if os.path.isdir(path):
        found = []
        for folder, subfolders, names in os.walk(path):
            subfolders[:] = [s for s in subfolders if not s.startswith(".")]
            found += [os.path.join(folder, n) for n in names if not n.startswith(".")]
        paths = [p for p in found if _kind(p)]
        if not paths:
            raise ValueError(f"the folder {source} holds no file with one of the endings {ENDINGS}")
        if left_out := Counter(os.path.splitext(p)[1] or "no ending" for p in found if not _kind(p)):
            endings = ", ".join(f"{count} x {ending}" for ending, count in sorted(left_out.items()))
            logger.warning(f"{source}: {len(paths)} files are read; left out by their ending: {endings}")
        paths.sort(key=lambda p: os.path.relpath(p, path).split(os.sep))
    elif os.path.isfile(path):
        if not _kind(path):
            raise ValueError(f"the ending of {source} is unknown, expected one of {ENDINGS}; rename or convert the file")
        paths = [path]
    elif _kind(path) or not HUB_ID.fullmatch(source):
        raise FileNotFoundError(f"no file or folder {source} (working directory: {os.getcwd()})")
    else:
        return None
    stats = [(os.path.abspath(p), os.stat(p)) for p in paths]
    return [(p, stat.st_size, stat.st_mtime_ns) for p, stat in stats]


def _kind(path: str) -> str | None:
    return KINDS.get(os.path.splitext(path.lower().removesuffix(".gz"))[1])


def _check_files(files: list[tuple[str, int, int]], documents: str, text_column: str) -> None:
    """Read the first document of the first file of each kind, so that a wrong column is found before hours of reading."""
    firsts = {_kind(path): (path, size, time) for path, size, time in reversed(files)}
    for file in firsts.values():
        next(_documents([file], documents, text_column), None)


def _load_files(
    files: list[tuple[str, int, int]],
    documents: str,
    text_column: str,
    *,
    streaming: bool,
    cache_dir: str | None,
    num_proc: int | None,
) -> "Dataset | IterableDataset":
    from datasets import Dataset, Features, IterableDataset, Value
    from datasets.exceptions import DatasetGenerationError

    arguments = dict(files=files, documents=documents, text_column=text_column, version=__version__)
    _check_not_empty(_documents(**arguments), files[0][0] + (f" and {len(files) - 1} more" if len(files) > 1 else ""))
    features = Features({"text": Value("string")})
    if streaming:
        return IterableDataset.from_generator(_documents, features=features, gen_kwargs=arguments)
    num_proc = None if num_proc is None else min(num_proc, len(files))
    try:
        return Dataset.from_generator(
            _documents, features=features, gen_kwargs=arguments, cache_dir=cache_dir, num_proc=num_proc
        )
    except DatasetGenerationError as error:
        # It hides what is wrong with which file; of another process only the traceback comes, as text.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        if found := re.search(r"^ValueError: (.*)", str(error.__cause__), re.MULTILINE):
            raise ValueError(found[1]) from error
        raise


def _load_from_hub(source: str, text_column: str, *, streaming: bool, num_proc: int | None, **options: Any) -> Any:
    from datasets import Features, Value, load_dataset

    missing = (
        f"no file or folder {source} (working directory: {os.getcwd()}), and no data set {source!r} could be loaded from "
        "the Hub"
    )
    if not is_offline_mode():
        try:
            # Without a network, load_dataset would try for half a minute.
            HfApi(token=options["token"]).dataset_info(source, revision=options["revision"], timeout=10)
        except Exception as error:
            raise FileNotFoundError(f"{missing}: {error}; for one in the cache set HF_HUB_OFFLINE=1") from error
    try:
        corpus = load_dataset(source, streaming=streaming, num_proc=num_proc, **options)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(f"{missing}: {error}") from error
    columns = corpus.column_names or list(next(iter(corpus), {}))
    if text_column not in columns:
        raise ValueError(_no_column(f"the data set {source}", text_column, columns))
    value = corpus.features and corpus.features[text_column]
    if value is not None and getattr(value, "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"the column {text_column!r} of the data set {source} must hold strings, got {value}")
    corpus = corpus.select_columns([text_column])
    if text_column != "text":
        corpus = corpus.rename_column(text_column, "text")
    features = Features({"text": Value("string")})
    corpus = corpus if corpus.features == features else corpus.cast(features)
    _check_not_empty(corpus, source)
    return corpus


def _check_not_empty(corpus: Iterable[dict[str, Any]], where: str) -> None:
    if next(texts(corpus), None) is None:
        raise ValueError(f"empty corpus: no document with a visible character in {where}")


def _documents(
    files: list[tuple[str, int, int]], documents: str, text_column: str, version: str = __version__
) -> Iterator[dict[str, str]]:
    """The rows of all files; one list argument, which datasets shares out among processes and workers.

    Sizes, times and `version` are for the key of the cache: changed files, or what another release read, are read anew.
    """
    for path, _, _ in files:
        kind = _kind(path)
        try:
            if kind == "text":
                found = _plain_documents(path, documents)
            else:
                read = {"json": _json_texts, "csv": _csv_texts, "parquet": _parquet_texts}[kind]
                found = read(path, text_column)
            for text in found:
                yield {"text": text}
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path} is damaged or is not gzip although it ends in .gz: {error}") from error


def _open(path: str) -> Any:
    return gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb")


def _lines(path: str) -> Iterator[str]:
    """Lines of a UTF-8 file with their ends, without the byte order mark."""
    with _open(path) as file:
        offset = 0
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8: byte {offset + error.start} (line {number}) is 0x{line[error.start]:02x}; "
                    "convert the file to UTF-8 (for example iconv -f WINDOWS-1252 -t UTF-8)"
                ) from error
            offset += len(line)


def _plain_documents(path: str, documents: str) -> Iterator[str]:
    kept: list[str] = []
    for line in _lines(path):
        line = line.rstrip("\r\n")
        blank = not line.strip()
        if documents == "file" or (documents == "blank_line" and not blank):
            kept.append(line)
        elif documents == "line" and not blank:
            yield line
        elif kept:
            yield "\n".join(kept)
            kept = []
    if kept:
        yield "\n".join(kept)


def _json_texts(path: str, text_column: str) -> Iterator[str]:
    """Rows of a file of one object a line, or of one array of objects."""
    for where, row in _json_rows(path):
        if not isinstance(row, dict):
            raise ValueError(f"{where} must be a JSON object with the text under {text_column!r}, got {str(row)[:60]}")
        if text_column not in row:
            raise ValueError(_no_column(where, text_column, row))
        if not isinstance(row[text_column], (str, type(None))):
            raise ValueError(f"{text_column!r} in {where} must be a string, got {str(row[text_column])[:60]}")
        # Half of a surrogate pair has no UTF-8, hence no place in an Arrow table.
        yield (row[text_column] or "").encode("utf-8", "replace").decode()


def _json_rows(path: str) -> Iterator[tuple[str, Any]]:
    where = path
    try:
        with _open(path) as file:
            is_array = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
        if is_array:
            for i, row in enumerate(json.loads("".join(_lines(path)))):
                yield f"{path}, item {i}", row
            return
        for number, line in enumerate(_lines(path), 1):
            where = f"{path}, line {number}"
            if not line.isspace():
                yield where, json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}; expected one object a line, or one array of objects") from error


def _csv_texts(path: str, text_column: str) -> Iterator[str]:
    # The default of 128 KB is less than a long article.
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if ".tsv" in path.lower()[-7:] else ","
    # Strict: a quote that is never closed would make the rest of the file one text.
    rows = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        if text_column not in header:
            raise ValueError(_no_column(path, text_column, header))
        column = header.index(text_column)
        for row in rows:
            if row and len(row) != len(header):
                raise ValueError(
                    f"{path}, line {rows.line_num}: expected {len(header)} fields as in the header, got {len(row)}; "
                    "put quotes around fields that hold the separator"
                )
            if row:
                yield row[column]
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {rows.line_num}: {error}; a field that begins with a quote ends with one, quotes in it doubled"
        ) from error


def _parquet_texts(path: str, text_column: str) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    with _open(path) as file:
        try:
            table = parquet.ParquetFile(io.BytesIO(file.read()) if path.lower().endswith(".gz") else file)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error
        schema = table.schema_arrow
        if text_column not in schema.names:
            raise ValueError(_no_column(path, text_column, schema.names))
        kind = schema.field(text_column).type
        if str(kind) not in ("string", "large_string", "string_view"):
            raise ValueError(f"the column {text_column!r} of {path} must hold strings, got {kind}")
        for batch in table.iter_batches(columns=[text_column], batch_size=1000):
            for text in batch.column(0).to_pylist():
                yield text or ""


def _no_column(where: str, text_column: str, columns: Iterable[str]) -> str:
    return f"no column {text_column!r} in {where}; it has {', '.join(map(repr, columns))}; name one of them as text_column"

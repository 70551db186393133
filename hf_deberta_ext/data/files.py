# SPDX-License-Identifier: Apache-2.0
"""Read rows of data files: .csv, .tsv, .json, .jsonl, .parquet and plain text, each also .gz.

Cells of .csv and .tsv are always texts, and JSON values keep their types. The readers of `datasets` change cells and rows:
pandas shifts or fills rows with too many or too few cells, and pyarrow parses JSON texts such as "2020-01-01" as times. Text
formats are therefore read row by row, with Python's `csv` and `json`. Errors in a file are raised during iteration, as a
one-line ValueError with the file and the number of the line or row.
"""

import contextlib
import csv
import gzip
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from transformers.utils import logging

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "FLAGS",
    "KINDS",
    "file_kind",
    "named_files",
    "open_text",
    "parse_json",
    "read_files",
    "read_lines",
    "read_rows",
    "shown_files",
]

FLAGS = {"train": "--train_file", "validation": "--validation_file", "test": "--test_file"}
KINDS = {".txt": "text"} | {f".{kind}": kind for kind in ("text", "jsonl", "json", "csv", "tsv", "parquet")}
# Quotes have no special meaning in .tsv, as in GLUE's files.
TABLES: dict[str, dict[str, Any]] = {"csv": {"strict": True}, "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE}}
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
UTF_8 = "utf-8-sig"

logger = logging.get_logger(__name__)


def file_kind(path: str | os.PathLike) -> str | None:
    """Return the kind of a file ("csv", "json", "text", ...) from its ending, ignoring .gz; None for unknown endings."""
    return KINDS.get(os.path.splitext(os.fspath(path).lower().removesuffix(".gz"))[1])


@contextlib.contextmanager
def open_text(path: str | os.PathLike, encoding: str = UTF_8) -> Iterator[TextIO]:
    """Open a text file for reading; decompress it if its name ends in .gz, and do not convert line ends."""
    opened = open
    if os.fspath(path).lower().endswith(".gz"):
        opened = gzip.open
    try:
        with opened(path, "rt", encoding=encoding, newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        wrong = f"{encoding.upper().removesuffix('-SIG')} (byte 0x{error.object[error.start]:02x})"
        hint = "convert the file to UTF-8, or give finetune or predict its encoding, such as --encoding cp1252 (Windows)"
        raise ValueError(f"{path} is not {wrong}: {hint}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged, or not a gzip file although it ends in .gz: {error}") from error


def read_lines(path: str | os.PathLike, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Iterate over the lines of a text file as (line number from 1, line); a line keeps its line end."""
    with open_text(path, encoding) as file:
        yield from enumerate(file, start=1)


def read_rows(
    path: str | os.PathLike, columns: Sequence[str] | None = None, *, delimiter: str | None = None, encoding: str = UTF_8
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the rows of a file as (place, row); the place is "line 3 of FILE" or "row 3 of FILE", for error messages.

    .csv uses the quotes of RFC 4180. .json and .jsonl contain one object per line or an array of objects; .json may also
    contain {"data": [object, ...]} or a single object.

    Args:
        columns (*optional*): columns to read from .parquet. All columns are read by default, or if the file lacks one
            of `columns`.
        delimiter (`str`, *optional*): delimiter of the cells; default: a tab in .tsv, detected from the header in .csv.
        encoding (`str`, defaults to UTF-8): encoding of text files.
    """
    kind = file_kind(path)
    if kind == "parquet":
        return parquet_rows(path, columns)
    if kind in TABLES:
        return table_rows(path, delimiter, encoding)
    return json_rows(path, encoding)


def detect_delimiter(path: str | os.PathLike, encoding: str) -> str:
    """Return the delimiter that splits the header of a .csv file into the most cells; warn if it is not a comma."""
    with open_text(path, encoding) as file:
        header = next(filter(str.strip, file), "")
    # csv.Sniffer may take letters of long texts as delimiters.
    cells = {delimiter: len(next(csv.reader([header], delimiter=delimiter), [])) for delimiter in DELIMITERS}
    delimiter = max(cells, key=cells.__getitem__)
    if delimiter != ",":
        logger.warning_once(f"{path}: cells are separated by {DELIMITERS[delimiter]} (if not, pass --delimiter)")
    return delimiter


def table_rows(path: str | os.PathLike, delimiter: str | None, encoding: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Iterate over the rows of a .csv or .tsv file, skipping blank lines; see `read_rows`."""
    kind = file_kind(path)
    # A document may be longer than the default limit of 131,072 characters.
    csv.field_size_limit(2**31 - 1)
    options = dict(TABLES[kind])
    if delimiter or kind == "csv":
        options["delimiter"] = delimiter or detect_delimiter(path, encoding)
    with open_text(path, encoding) as file:
        reader = csv.reader(file, **options)
        try:
            header = next(filter(None, reader), [])
            if len({*header}) < len(header):
                raise ValueError(f"the header of {path} must not repeat a column, got {', '.join(header)}")
            for cells in filter(None, reader):
                place = f"line {reader.line_num} of {path}"
                if len(cells) != len(header):
                    raise ValueError(f"{place} must have {len(header)} cells ({', '.join(header)}), got {len(cells)}")
                yield place, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num} of {path} is not {kind}: {error}") from error


def json_rows(path: str | os.PathLike, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the rows of a JSON file; files with one object per line are read line by line, others as a whole."""
    with open_text(path, encoding) as file:
        head = [*itertools.islice(filter(str.strip, file), 2)]
    if not head:
        return
    if has_object_lines(head, file_kind(path)):
        places = ((f"line {number} of {path}", line) for number, line in read_lines(path, encoding))
        rows = ((place, parse_json(line, place)) for place, line in places if line.strip())
    else:
        with open_text(path, encoding) as file:
            value = parse_json(file.read(), os.fspath(path))
        if isinstance(value, dict):
            value = value.get("data", [value])
        if not isinstance(value, list):
            value = [value]
        rows = ((f"row {number} of {path}", row) for number, row in enumerate(value, start=1))
    for place, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f'{place} must be a JSON object such as {{"text": "so", "label": 0}}, got {str(row)[:80]}')
        yield place, row


def has_object_lines(head: Sequence[str], kind: str) -> bool:
    """Return True if a file has one JSON object per line, judging by `head`: its first one or two non-blank lines."""
    try:
        value = json.loads(head[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (len(head) == 2 or kind == "jsonl")


def parse_json(text: str, place: str) -> Any:
    """Parse a JSON text; an error message begins with `place`, such as "line 3 of FILE"."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from error


def parquet_rows(path: str | os.PathLike, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the rows of a .parquet file, reading a thousand rows at a time; see `read_rows`."""
    numbers = itertools.count(1)
    with open_parquet(path) as table:
        if columns is not None and not {*columns} <= {*table.schema_arrow.names}:
            columns = None
        for batch in table.iter_batches(columns=columns, batch_size=1000):
            for row in batch.to_pylist():
                yield f"row {next(numbers)} of {path}", row


@contextlib.contextmanager
def open_parquet(path: str | os.PathLike) -> Iterator[Any]:
    """Open a .parquet file as `pyarrow.parquet.ParquetFile`."""
    from pyarrow import ArrowException, parquet

    opened = gzip.open if os.fspath(path).lower().endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            yield parquet.ParquetFile(file)
    except (ArrowException, OSError, ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}") from error


def read_files(files: Any, *, source: str, delimiter: str | None = None, encoding: str = UTF_8) -> "Dataset":
    """Read the rows of one or several files into memory, and concatenate them in the order of the files.

    See `read_rows` for the formats and options. Missing JSON keys become None. Class labels in .parquet keep their names.

    Args:
        files (`str`, `os.PathLike` or a list of them): one or more files with the same columns, of any kind except text.
        source (`str`): flag that names the files, for error messages, such as "--train_file".
    Raises:
        ValueError: a file is missing, empty or invalid, or the columns differ.
    """
    from datasets import concatenate_datasets

    if isinstance(files, (str, os.PathLike)):
        files = [files]
    paths = [Path(file).expanduser() for file in files]
    try:
        tables = [read_table(path, delimiter, encoding) for path in paths]
        for path, table in zip(paths, tables, strict=True):
            different = ", ".join(sorted({*table.column_names} ^ {*tables[0].column_names}))
            if different:
                raise ValueError(f"{paths[0]} and {path} must have the same columns, but only one of them has {different}")
        return concatenate_datasets(tables)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{source}: {error}") from error


def read_table(path: Path, delimiter: str | None, encoding: str) -> "Dataset":
    """Read the rows of a file into a `Dataset` in memory."""
    import pyarrow as pa
    from datasets import Dataset

    if not path.is_file():
        raise ValueError(f"the file {path} does not exist")
    if file_kind(path) in (None, "text"):
        endings = ", ".join(ending for ending, kind in KINDS.items() if kind != "text")
        raise ValueError(f"{path} must end in {endings} (each also with .gz)")
    if file_kind(path) == "parquet":
        with open_parquet(path) as table:
            rows = Dataset(table.read())
    else:
        columns: dict[str, list] = {}
        for number, (_, row) in enumerate(read_rows(path, delimiter=delimiter, encoding=encoding)):
            for name in {**columns, **row}:
                columns.setdefault(name, [None] * number).append(row.get(name))
        try:
            rows = Dataset(pa.table(columns))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise ValueError(f"{path} cannot be converted to a table: {error}") from error
    if not len(rows):
        raise ValueError(f"{path} has no rows")
    return rows


def named_files(entries: Sequence[str], *, source: str) -> dict[str, list[str]]:
    """Return the files of each set: "mm=dev_mm.tsv" is a file of the set "mm", and "dev.tsv" of the main set "".

    A set may have several files. If an entry is the path of an existing file, "=" is part of the path.

    Args:
        source (`str`): flag whose values are the entries, for error messages.
    """
    sets: dict[str, list[str]] = {}
    for entry in map(os.fspath, entries):
        name, equals, file = entry.partition("=")
        if not equals or "/" in name or os.sep in name or os.path.exists(entry):
            name, file = "", entry
        elif not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or not file:
            raise ValueError(f"{source} expects FILE or NAME=FILE, got {entry!r}; names consist of letters, digits, - and _")
        sets.setdefault(name, []).append(file)
    return sets


def shown_files(files: Sequence[str | os.PathLike]) -> str:
    """Return the names of files without their folders, joined by commas, for a model card."""
    return ", ".join(Path(file).name for file in files)

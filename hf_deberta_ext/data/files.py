# SPDX-License-Identifier: Apache-2.0
"""One reader of data files, for pre-training and fine-tuning: .csv, .tsv, .json, .jsonl, .parquet and text, each also .gz.

Files are read row by row, so a corpus of any size can be streamed, and every error names the file and the row. Cells of
.csv and .tsv are text, whatever they hold. `datasets` and pyarrow.csv do not keep that: they take "NA" for a missing cell,
digits for a number or ISO dates for a date; pyarrow.csv joins what follows a closing quote to the cell, ends a row at a
carriage return within a cell, and names no line of a file that is not UTF-8.
"""

import contextlib
import csv
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .columns import TYPE_NAMES

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["FLAGS", "KINDS", "file_kind", "named_files", "open_file", "read_files", "read_lines", "read_rows", "shown_files"]

FLAGS = {"train": "--train_file", "validation": "--validation_file", "test": "--test_file"}
KINDS = {
    ".txt": "text", ".text": "text", ".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet",
}  # fmt: skip
ROWS_EXPECTED = {
    "csv": "a header and a row on each line after it",
    "tsv": "a header and a row on each line after it",
    "json": 'one object a line, one array of objects, or {"data": [object, ...]}',
    "jsonl": "one object a line",
    "parquet": "a table with rows",
}
LONGEST_CELL = 2**31 - 1
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def file_kind(path: str | os.PathLike) -> str | None:
    """The value of `KINDS` for the ending of a file, with or without .gz; None for another ending."""
    return KINDS.get(os.path.splitext(os.fspath(path).lower().removesuffix(".gz"))[1])


def read_files(files: str | os.PathLike | Sequence[str | os.PathLike], *, source: str) -> "Dataset":
    """The rows of one or several files, joined in the order given.

    Rows are those of `read_rows`. A key that a row of JSON does not have is None. Names of labels in .parquet are kept.

    Args:
        files: at least one, of any kind but text.
        source (`str`): the flag that named them, "--train_file", for messages.
    Raises:
        ValueError: a file is missing, of another kind, without rows or damaged; the columns of two files differ; the cells
            of a column are of several types. File and row are named.
    """
    from datasets import Dataset

    paths = [Path(file).expanduser() for file in ([files] if isinstance(files, (str, os.PathLike)) else files)]
    if not paths:
        raise ValueError(f"{source} names no file")
    try:
        for path in paths:
            check_table_file(path)
        are_parquet = all(file_kind(path) == "parquet" for path in paths)
        tables = [read_parquet(path) if are_parquet else read_columns(path) for path in paths]
        names = [{*table.column_names} if are_parquet else {*table} for table in tables]
        for path, columns in zip(paths, names, strict=True):
            if different := sorted(columns ^ names[0]):
                raise ValueError(
                    f"{paths[0]} and {path} have not the same columns: {', '.join(different)} in one of them only"
                )
        return join_parquet(paths, tables) if are_parquet else Dataset(join_columns(paths, tables))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def read_rows(path: str | os.PathLike, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of each row of a file, read while iterating; a place is "line 3 of FILE" or "row 3 of FILE".

    .csv has the quotes of RFC 4180, checked strictly, as a quote that is never closed would swallow the rest of the file;
    in .tsv a quote is a character like others, as in GLUE's files. .json and .jsonl hold one object a line or one array of
    objects, .json also {"data": [object, ...]} or one object; half of a surrogate pair, which no UTF-8 has, becomes "?".

    Args:
        columns (*optional*): the only ones needed, if a row has them all: no others are read from .parquet.
    Raises:
        ValueError: the file is damaged, is not of its kind or is not UTF-8; a row has more or fewer cells than the header,
            which names a column twice; a row of JSON is no object. Comes while iterating.
    """
    path = os.fspath(path)
    kind = file_kind(path)
    if kind == "parquet":
        return _parquet_rows(path, columns)
    return json_rows(path) if kind in ("json", "jsonl") else _table_rows(path, kind)


def read_lines(path: str | os.PathLike) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its end) of a UTF-8 file, without the byte order mark.

    Raises:
        ValueError: bytes that are not UTF-8, or damaged gzip; comes while iterating.
    """
    with open_file(path) as file:
        offset = 0
        # Not str.splitlines(): U+2028 and the like may be part of a text.
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8: byte {offset + error.start} (line {number}) is 0x{line[error.start]:02x}; "
                    "convert the file to UTF-8 (for example iconv -f WINDOWS-1252 -t UTF-8)"
                ) from error
            yield number, text
            offset += len(line)


@contextlib.contextmanager
def open_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed if its name ends in .gz.

    Raises:
        ValueError: the gzip data is damaged; comes while reading.
    """
    try:
        with gzip.open(path) if os.fspath(path).lower().endswith(".gz") else open(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged or is not gzip although it ends in .gz: {error}") from error


def named_files(entries: Sequence[str], *, source: str) -> dict[str, list[str]]:
    """Files by the name of their set: "mm=dev_mm.tsv" is of the set "mm", a plain "dev.tsv" of the main one, "".

    Several files of a set are joined. An entry that is the path of a file is that file, with "=" or without.

    Args:
        source (`str`): the flag, for messages.
    Raises:
        ValueError: a name is not of letters, digits, "-" and "_", or nothing follows it.
    """
    sets: dict[str, list[str]] = {}
    for entry in map(os.fspath, entries):
        name, equals, file = entry.partition("=")
        if not equals or "/" in name or os.sep in name or os.path.exists(entry):
            name, file = "", entry
        elif not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or not file:
            raise ValueError(f"{source} takes FILE or NAME=FILE, got {entry!r}; a name is of letters, digits, - and _")
        sets.setdefault(name, []).append(file)
    return sets


def shown_files(files: Sequence[str | os.PathLike]) -> str:
    """Names without their folders, for a model card."""
    return ", ".join(Path(file).name for file in files)


# ------- rows of one file


def _table_rows(path: str, kind: str) -> Iterator[tuple[str, dict[str, str]]]:
    lines = _csv_cells(path) if kind == "csv" else _tsv_cells(path)
    _, header = next(lines, (0, []))
    if repeated := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"the header of {path} has the column {repeated[0]!r} twice")
    for number, cells in lines:
        if len(cells) != len(header):
            cure = (
                "put quotes around cells that hold a comma or a line end"
                if kind == "csv"
                else "quotes protect nothing in .tsv, so write texts that hold tabs or line ends to .csv or .jsonl"
            )
            raise ValueError(
                f"line {number} of {path} has {len(cells)} cells, its header {len(header)} ({', '.join(header)}); {cure}"
            )
        yield f"line {number} of {path}", dict(zip(header, cells, strict=True))


def _csv_cells(path: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the last line, cells) of each row that is not blank."""
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    while True:
        # A cell may be as long as an article; the limit of 131,072 characters is one of the whole process.
        limit = csv.field_size_limit(LONGEST_CELL)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"line {reader.line_num} of {path} is not csv: {error}; a cell that begins with a quote ends with one, and "
                "quotes in it are doubled"
            ) from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        if cells:
            yield reader.line_num, cells


def _tsv_cells(path: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the line, cells) of each line that is not empty."""
    for number, line in read_lines(path):
        if line := line.removesuffix("\n").removesuffix("\r"):
            yield number, line.split("\t")


def json_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a file of one object a line, which is streamed, or of one value, which is held in memory whole."""
    head = list(itertools.islice((line for _, line in read_lines(path) if line.strip()), 2))
    if not head:
        return
    try:
        begins_with_object = isinstance(json.loads(head[0]), dict)
    except json.JSONDecodeError:
        begins_with_object = False
    if begins_with_object and (len(head) == 2 or file_kind(path) == "jsonl"):
        # Without its end, or an error at the end of a line would be one of "line 2".
        lines = ((f"line {number} of {path}", line.strip()) for number, line in read_lines(path))
        rows = ((place, parse_json(line, place)) for place, line in lines if line)
    else:
        value = parse_json("".join(line for _, line in read_lines(path)), path)
        if isinstance(value, dict) and isinstance(value.get("data"), list):
            value = value["data"]
        values = value if isinstance(value, list) else [value]
        rows = ((f"row {number} of {path}", row) for number, row in enumerate(values, start=1))
    for place, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f'{place} must be an object such as {{"text": "so", "label": 0}}, got {str(row)[:60]}')
        yield place, row


def parse_json(text: str, place: str) -> Any:
    """
    Args:
        place (`str`): "line 3 of FILE" or the file, for the message.
    Raises:
        ValueError: it is not JSON.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is not JSON: {error}; expected {ROWS_EXPECTED['json']}") from error
    if SURROGATE.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode())
    return value


def _parquet_rows(path: str, columns: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    from pyarrow import parquet

    numbers = itertools.count(1)
    with _parquet_source(path) as file:
        table = parquet.ParquetFile(file)
        if columns is not None and not {*columns} <= {*table.schema_arrow.names}:
            columns = None
        for batch in table.iter_batches(columns=columns, batch_size=1000):
            for row in batch.to_pylist():
                yield f"row {next(numbers)} of {path}", row


@contextlib.contextmanager
def _parquet_source(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """The file, in memory where it is .gz, as parquet is read from its end.

    Raises:
        ValueError: pyarrow cannot read it.
    """
    import pyarrow as pa

    try:
        with open_file(path) as file:
            yield io.BytesIO(file.read()) if isinstance(file, gzip.GzipFile) else file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}") from error


# ------- tables of several files


def check_table_file(path: Path):
    """
    Raises:
        ValueError: it is a folder, is missing, or has the ending of no table.
    """
    if path.is_dir():
        raise ValueError(f"expected a file, but {path} is a folder")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if file_kind(path) in (None, "text"):
        endings = ", ".join(ending for ending, kind in KINDS.items() if kind != "text")
        raise ValueError(f"{path} must end in {endings} (each also with .gz)")


def read_columns(path: Path) -> dict[str, list]:
    """All columns of a file in memory.

    Raises:
        ValueError: it has no rows, and as `read_rows`.
    """
    columns: dict[str, list] = {}
    for number, (_, row) in enumerate(read_rows(path)):
        for name, cell in row.items():
            columns.setdefault(name, [None] * number).append(cell)
        for column in columns.values():
            if len(column) == number:
                column.append(None)
    if not columns:
        raise ValueError(f"{path} has no rows; expected {ROWS_EXPECTED[file_kind(path)]}")
    return columns


def read_parquet(path: Path) -> "Dataset":
    """All columns of a .parquet file, with the names of labels that `Dataset.to_parquet` keeps beside the schema.

    Raises:
        ValueError: it has no rows, or is damaged.
    """
    from datasets import Dataset
    from pyarrow import parquet

    with _parquet_source(path) as file:
        table = parquet.ParquetFile(file).read()
    if not table.num_rows:
        raise ValueError(f"{path} has no rows; expected {ROWS_EXPECTED['parquet']}")
    return Dataset(table)


def join_parquet(paths: Sequence[Path], tables: Sequence["Dataset"]) -> "Dataset":
    """
    Raises:
        ValueError: the types of a column, or the names of its labels, differ.
    """
    from datasets import concatenate_datasets

    try:
        return tables[0] if len(tables) == 1 else concatenate_datasets(tables)
    # pyarrow's errors of types are one or the other.
    except (ValueError, TypeError) as error:
        raise ValueError(f"{shown_files(paths)} cannot be joined: {error}") from error


def join_columns(paths: Sequence[Path], tables: Sequence[dict[str, list]]) -> Any:
    """One `pyarrow.Table` of the columns of several files.

    Raises:
        ValueError: the cells of a column are not of one type; the first cell of another type is named.
    """
    import pyarrow as pa

    arrays = {}
    for name in tables[0]:
        cells = [cell for table in tables for cell in table[name]]
        try:
            arrays[name] = pa.array(cells)
        except (pa.ArrowException, OverflowError) as error:
            first_type = next((type(cell) for cell in cells if cell is not None), None)
            for path, table in zip(paths, tables, strict=True):
                for number, cell in enumerate(table[name], start=1):
                    if type(cell) not in (first_type, type(None)):
                        raise ValueError(
                            f"the cells of the column {name!r} are not of one type: {TYPE_NAMES[first_type]} before row "
                            f"{number} of {path}, which has {cell!r}"
                        ) from error
            raise ValueError(f"the column {name!r} of {shown_files(paths)}: {error}") from error
    return pa.table(arrays)

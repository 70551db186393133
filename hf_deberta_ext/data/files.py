# SPDX-License-Identifier: Apache-2.0
"""One reader of data files, for pre-training and fine-tuning: .csv, .tsv, .json, .jsonl, .parquet and text, each also .gz.

Files are read row by row, so a corpus of any size can be streamed, and every error names the file and the row. Cells of
.csv and .tsv are text, whatever they hold. `datasets` and pyarrow.csv do not keep that: they take "NA" for a missing cell,
digits for a number or ISO dates for a date; pyarrow.csv joins what follows a closing quote to the cell, ends a row at a
carriage return within a cell, and names no line of a file that is not UTF-8.
"""

import bisect
import contextlib
import csv
import functools
import gzip
import io
import itertools
import json
import os
import re
import reprlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

__all__ = [
    "FLAGS", "HELD_BYTES", "KINDS", "STREAMED_BYTES", "file_kind", "join_columns", "named_files", "open_file", "parse_json",
    "read_files", "read_lines", "read_rows", "shown_files",
]  # fmt: skip

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
# Most of a file that is in memory at once: a line, a document, one JSON value. Arrow holds no longer text.
HELD_BYTES = 2**31 - 1
# Most of a file that is read row by row.
STREAMED_BYTES = 10**11
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def file_kind(path: str | os.PathLike) -> str | None:
    """The value of `KINDS` for the ending of a file, with or without .gz; None for another ending."""
    return KINDS.get(os.path.splitext(os.fspath(path).lower().removesuffix(".gz"))[1])


def read_files(
    files: str | os.PathLike | Sequence[str | os.PathLike], *, source: str, max_file_bytes: int = HELD_BYTES
) -> "Dataset":
    """The rows of one or several files, joined in the order given, in memory.

    Rows are those of `read_rows`. A key that a row of JSON does not have is None. Names of labels in .parquet are kept.

    Args:
        files: at least one, of any kind but text.
        source (`str`): the flag that named them, "--train_file", for messages.
        max_file_bytes (`int`): as in `open_file`.
    Raises:
        ValueError: a file is missing, of another kind, without rows or damaged; the columns of two files differ; the cells
            of a column are of several types, or the names of its labels differ. File and row are named.
    """
    from datasets import concatenate_datasets

    paths = [Path(file).expanduser() for file in ([files] if isinstance(files, (str, os.PathLike)) else files)]
    try:
        for path in paths:
            if path.is_dir():
                raise ValueError(f"expected a file, but {path} is a folder")
            if not path.is_file():
                raise ValueError(f"there is no file {path}")
            if file_kind(path) in (None, "text"):
                endings = ", ".join(ending for ending, kind in KINDS.items() if kind != "text")
                raise ValueError(f"{path} must end in {endings} (each also with .gz)")
        are_parquet = all(file_kind(path) == "parquet" for path in paths)
        read = read_parquet if are_parquet else read_columns
        tables = [read(path, max_file_bytes) for path in paths]
        names = [{*table.column_names} if are_parquet else {*table} for table in tables]
        for path, columns in zip(paths, names, strict=True):
            if different := sorted(columns ^ names[0]):
                raise ValueError(
                    f"{paths[0]} and {path} have not the same columns: {', '.join(different)} in one of them only"
                )
        if not are_parquet:
            return join_columns(paths, tables)
        try:
            return concatenate_datasets(tables)
        # pyarrow's errors of types are one or the other.
        except (ValueError, TypeError) as error:
            raise ValueError(f"{shown_files(paths)} cannot be joined: {error}") from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    except MemoryError as error:
        raise ValueError(f"{source}: {shown_files(paths)} needs more memory than there is") from error


def read_rows(
    path: str | os.PathLike, columns: Sequence[str] | None = None, max_file_bytes: int = STREAMED_BYTES
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) of each row of a file, read while iterating; a place is "line 3 of FILE" or "row 3 of FILE".

    .csv has the quotes of RFC 4180, checked strictly, as a quote that is never closed would swallow the rest of the file;
    in .tsv a quote is a character like others, as in GLUE's files. .json and .jsonl hold one object a line or one array of
    objects, .json also {"data": [object, ...]} or one object; half of a surrogate pair, which no UTF-8 has, becomes "?".

    Args:
        columns (*optional*): the only ones needed, if a row has them all: no others are read from .parquet.
        max_file_bytes (`int`): as in `open_file`.
    Raises:
        ValueError: the file is damaged, is not of its kind or is not UTF-8; a row has more or fewer cells than the header,
            which names a column twice; a row of JSON is no object. Comes while iterating.
    """
    path = os.fspath(path)
    kind = file_kind(path)
    if kind == "parquet":
        return _parquet_rows(path, columns, max_file_bytes)
    rows = json_rows if kind in ("json", "jsonl") else _table_rows
    return rows(path, max_file_bytes)


def read_lines(path: str | os.PathLike, max_file_bytes: int = STREAMED_BYTES) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its end) of a UTF-8 file, without the byte order mark.

    A line ends with LF, or with CR in a file without LF, as those of old Macs are.

    Raises:
        ValueError: bytes that are not UTF-8, a line of more than `HELD_BYTES`, and as `open_file`; comes while iterating.
    """
    with open_file(path, max_file_bytes) as file:
        lines = iter(functools.partial(file.readline, HELD_BYTES + 1), b"")
        head = [*itertools.islice(lines, 2)]
        if len(head) == 1:
            head = head[0].splitlines(keepends=True)
        offset = 0
        # Not str.splitlines(): U+2028 and the like may be part of a text.
        for number, line in enumerate(itertools.chain(head, lines), 1):
            if len(line) > HELD_BYTES:
                raise ValueError(f"line {number} of {path} has more than {HELD_BYTES} bytes: part it")
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
def open_file(path: str | os.PathLike, max_file_bytes: int = STREAMED_BYTES) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed if its name ends in .gz.

    Args:
        max_file_bytes (`int`): how many there may be, decompressed.
    Raises:
        ValueError: the gzip data is damaged, or there are more bytes; comes while reading.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not os.fspath(path).lower().endswith(".gz"):
            check_size(size, path, max_file_bytes)
        elif size:
            file = io.BufferedReader(Decompressed(file, path, max_file_bytes), 2**17)
        else:
            raise ValueError(f"{path} is damaged or is not gzip although it ends in .gz: it is empty")
        yield file


class Decompressed(io.RawIOBase):
    """The decompressed bytes of a .gz file, with errors as in `open_file`."""

    def __init__(self, file: BinaryIO, path: str | os.PathLike, max_file_bytes: int):
        self.file, self.path, self.max_file_bytes = gzip.GzipFile(fileobj=file), path, max_file_bytes
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self.file.readinto(buffer)
        except (OSError, zlib.error, EOFError) as error:
            raise ValueError(
                f"{self.path} is damaged or is not gzip although it ends in .gz: {error} (after {self.count} bytes of text)"
            ) from error
        self.count += count
        check_size(self.count, self.path, self.max_file_bytes)
        return count


def check_size(count: int, place: str | os.PathLike, max_file_bytes: int):
    """
    Raises:
        ValueError: there are more bytes than `max_file_bytes`.
    """
    if count > max_file_bytes:
        raise ValueError(
            f"{place} has more than {max_file_bytes} bytes (decompressed): give a higher --max_file_bytes if that is right, "
            f"or .jsonl and .parquet instead of one JSON value and .parquet.gz, which have at most {HELD_BYTES}"
        )


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


def _table_rows(path: str, max_file_bytes: int) -> Iterator[tuple[str, dict[str, str]]]:
    kind, lines = file_kind(path), read_lines(path, max_file_bytes)
    without_ends = ((number, line.removesuffix("\n").removesuffix("\r")) for number, line in lines)
    tsv_rows = ((number, line.split("\t")) for number, line in without_ends if line)
    rows = _csv_cells(path, lines) if kind == "csv" else tsv_rows
    _, header = next(rows, (0, []))
    if repeated := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"the header of {path} has the column {repeated[0]!r} twice")
    for number, cells in rows:
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


def _csv_cells(path: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """(number of the last line, cells) of each row that is not blank."""
    reader = csv.reader((line for _, line in lines), strict=True)
    while True:
        # A cell may be as long as an article; the limit of 131,072 characters is one of the whole process.
        limit = csv.field_size_limit(HELD_BYTES)
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


def json_rows(path: str, max_file_bytes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a file of one object a line, which is streamed, or of one value, which is held in memory whole."""
    head = list(itertools.islice((line for _, line in read_lines(path, max_file_bytes) if line.strip()), 2))
    if not head:
        return
    try:
        begins_with_object = isinstance(json.loads(head[0]), dict)
    except (ValueError, RecursionError) as error:
        # Nested too deeply, or a number too long: an error of the line.
        begins_with_object = not isinstance(error, json.JSONDecodeError)
    if begins_with_object and (len(head) == 2 or file_kind(path) == "jsonl"):
        # Without its end, or an error at the end of a line would be one of "line 2".
        places = ((f"line {number} of {path}", line.strip()) for number, line in read_lines(path, max_file_bytes))
        rows = ((place, parse_json(line, place)) for place, line in places if line)
    else:
        lines = read_lines(path, min(max_file_bytes, HELD_BYTES))
        value = parse_json("".join(line for _, line in lines), path)
        if isinstance(value, dict) and isinstance(value.get("data"), list):
            value = value["data"]
        values = value if isinstance(value, list) else [value]
        rows = ((f"row {number} of {path}", row) for number, row in enumerate(values, start=1))
    for place, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f'{place} must be an object such as {{"text": "so", "label": 0}}, got {reprlib.repr(row)}')
        yield place, row


def parse_json(text: str, place: str) -> Any:
    """The value of a JSON text; half of a surrogate pair, which no UTF-8 has, becomes "?".

    Args:
        place (`str`): "line 3 of FILE" or the file, for the message.
    Raises:
        ValueError: it is not JSON.
    """
    try:
        value = json.loads(text)
        if SURROGATE.search(text):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode())
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{place} is not JSON: {reason}; expected {ROWS_EXPECTED['json']}") from error
    return value


def _parquet_rows(path: str, columns: Sequence[str] | None, max_file_bytes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    numbers = itertools.count(1)
    with open_parquet(path, columns, max_file_bytes) as batches:
        for batch in batches:
            for row in batch.to_pylist():
                yield f"row {next(numbers)} of {path}", row


@contextlib.contextmanager
def open_parquet(
    path: str | os.PathLike, columns: Sequence[str] | None, max_file_bytes: int
) -> Iterator[Iterator["pa.RecordBatch"]]:
    """Batches of rows; the file is in memory whole where it is .gz, as parquet is read from its end.

    Raises:
        ValueError: the file, or what is made of it in this context, cannot be read; a column is there twice.
    """
    from pyarrow import parquet

    rows = size = 0

    def batches() -> Iterator["pa.RecordBatch"]:
        nonlocal rows, size
        for batch in table.iter_batches(columns=columns, batch_size=1000):
            # Or cells that are not UTF-8 would be noticed much later.
            batch.validate(full=True)
            size += batch.nbytes
            check_size(size, "it", max_file_bytes)
            yield batch
            rows += len(batch)

    with open_file(path, max_file_bytes) as file:
        if not file.seekable():
            file = io.BytesIO(file.read(HELD_BYTES + 1))
            check_size(len(file.getbuffer()), path, HELD_BYTES)
        try:
            table = parquet.ParquetFile(file, buffer_size=2**20)
            names = table.schema_arrow.names
            if repeated := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"it has the column {repeated[0]!r} twice")
            if columns is not None and not {*columns} <= {*names}:
                columns = None
            yield batches()
        # pyarrow and datasets have another error for each damage.
        except Exception as error:
            raise ValueError(f"{path} cannot be read as parquet (after row {rows}): {error}") from error


def read_columns(path: Path, max_file_bytes: int) -> dict[str, list]:
    """All columns of a file in memory.

    Raises:
        ValueError: it has no rows, and as `read_rows`.
    """
    columns: dict[str, list] = {}
    for number, (_, row) in enumerate(read_rows(path, max_file_bytes=max_file_bytes)):
        for name, cell in row.items():
            columns.setdefault(name, [None] * number).append(cell)
        for column in columns.values():
            if len(column) == number:
                column.append(None)
    if not columns:
        raise ValueError(f"{path} has no rows; expected {ROWS_EXPECTED[file_kind(path)]}")
    return columns


def read_parquet(path: Path, max_file_bytes: int) -> "Dataset":
    """All columns of a .parquet file, with the names of labels that `Dataset.to_parquet` keeps beside the schema.

    Raises:
        ValueError: it has no rows, or is damaged.
    """
    import pyarrow as pa
    from datasets import Dataset

    with open_parquet(path, None, max_file_bytes) as batches:
        rows = Dataset(pa.Table.from_batches([*batches]))
    if not len(rows):
        raise ValueError(f"{path} has no rows; expected {ROWS_EXPECTED['parquet']}")
    return rows


def join_columns(paths: Sequence[str | os.PathLike], tables: Sequence[dict[str, list]]) -> "Dataset":
    """The columns of several files.

    Raises:
        ValueError: the cells of a column are not of one type, or numbers too large; the first such cell is named.
    """
    import pyarrow as pa
    from datasets import Dataset

    def array_of(cells: list[Any]) -> tuple[Any, Exception | None]:
        try:
            return pa.array(cells), None
        except (pa.ArrowException, OverflowError) as error:
            return None, error

    arrays = {}
    for name in tables[0]:
        cells = [cell for table in tables for cell in table[name]]
        arrays[name], error = array_of(cells)
        if error is not None:
            at = bisect.bisect_left(range(len(cells)), True, key=lambda last: array_of(cells[: last + 1])[1] is not None)
            of_files = zip(paths, tables, strict=True)
            places = [f"row {row} of {path}" for path, table in of_files for row, _ in enumerate(table[name], start=1)]
            raise ValueError(
                f"{places[at]} has {reprlib.repr(cells[at])} in the column {name!r}, unlike the cells before it: {error}"
            ) from error
    try:
        return Dataset(pa.table(arrays))
    # A NUL in the name of a column, as UTF-16 has.
    except ValueError as error:
        raise ValueError(f"{shown_files(paths)} cannot be made a table: {error}") from error

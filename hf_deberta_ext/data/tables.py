# SPDX-License-Identifier: Apache-2.0
"""Rows of examples from files and from the Hub, and what can be wrong with them, said before anything is trained.

Files are read here and not by `datasets`: its readers take "NA" and "null" for nothing, a text of digits for a number and
one of ISO dates for a date, and their errors name neither the row nor the file.
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "ENDINGS",
    "FLAGS",
    "as_numbers",
    "cells",
    "check_cells",
    "check_columns",
    "first",
    "label_order",
    "named_files",
    "read_files",
    "read_hub",
    "shown_files",
]

FLAGS = {"train": "--train_file", "validation": "--validation_file", "test": "--test_file"}
ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet")

NAMES = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "an object",
}  # fmt: skip


def read_files(files: Sequence[str | os.PathLike], *, what: str) -> "Dataset":
    """The rows of one or several files, joined in the order given.

    .csv, .tsv, .json, .jsonl and .parquet, each also with .gz, all in UTF-8. Cells of .csv and .tsv are text, whatever
    stands in them ("NA", "null" and "" too: see `as_numbers`). Quotes are those of csv in .csv, and nothing special in
    .tsv, as in GLUE's files. A .json file holds a list of rows, {"data": [row, ...]}, or a row on each line. A key that a
    row of JSON does not have is None.

    Args:
        files: at least one.
        what (`str`): the flag that named them, "--train_file", for messages.
    Raises:
        ValueError: a file is not there, of another kind, empty, without rows or damaged; the columns of two files differ;
            the cells of a column are of several types. File and line are named.
    """
    import pyarrow as pa
    from datasets import Dataset, concatenate_datasets

    if isinstance(files, (str, os.PathLike)):
        files = [files]
    if not files:
        raise ValueError(f"{what} names no file")
    paths = [Path(file).expanduser() for file in files]
    for path in paths:
        _check_file(path, what)
    if all(_ending(path) == ".parquet" for path in paths):
        # Names of labels, which Dataset.to_parquet keeps beside the schema, live on.
        parts = [Dataset(_read_parquet(path, what)) for path in paths]
        _check_same_columns(paths, [part.column_names for part in parts], what)
        try:
            return parts[0] if len(parts) == 1 else concatenate_datasets(parts)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise ValueError(f"{what}: {shown_files(files)} cannot be joined: {error}") from error

    parts = [_read_columns(path, what) for path in paths]
    _check_same_columns(paths, [list(part) for part in parts], what)
    columns = {name: [cell for part in parts for cell in part[name]] for name in parts[0]}
    return Dataset(pa.table({name: _array(cells, name, what) for name, cells in columns.items()}))


def named_files(entries: Sequence[str], *, what: str) -> dict[str, list[str]]:
    """Files by the name of their set: "mm=dev_mm.tsv" is of the set "mm", a plain "dev.tsv" of the main one, "".

    Several files of a set are joined. A file that is there under the whole entry is taken as it is.

    Args:
        what (`str`): the flag, for messages.
    Raises:
        ValueError: a name is not of letters, digits, "-" and "_", or nothing follows it.
    """
    sets: dict[str, list[str]] = {}
    for entry in map(os.fspath, entries):
        name, equals, file = entry.partition("=")
        if not equals or "/" in name or os.sep in name or os.path.exists(entry):
            name, file = "", entry
        elif not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or not file:
            raise ValueError(f"{what} takes FILE or NAME=FILE, got {entry!r}; a name is of letters, digits, - and _")
        sets.setdefault(name, []).append(file)
    return sets


def read_hub(name: str, config: str | None, splits: Mapping[str, Sequence[str]], arguments: Any) -> dict[str, "Dataset"]:
    """Splits of a data set on the Hub, in the Hub's cache, or in a folder.

    Args:
        name (`str`): Hub id, or a folder that `datasets.load_dataset` reads.
        config (`str`, *optional*): which of its configurations.
        splits: our names -> its names for each, the first of which that it has is taken: {"validation": ["validation",
            "dev"]}. What it has under none of them is left out.
        arguments (`DataArguments`): cache_dir, token and data_revision are used.
    Raises:
        ValueError: it cannot be reached, or has no such configuration, or none of the splits. Says how to go on.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi, is_offline_mode

    shown = repr(name) + (f" ({config})" if config else "")
    instead = "; local files are read by --train_file, --validation_file and --test_file"
    folder = os.path.isdir(name)
    if not folder and not is_offline_mode():
        try:
            # Without a network, load_dataset would try for half a minute.
            HfApi(token=arguments.token).dataset_info(name, revision=arguments.data_revision, timeout=10)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no answer'}"
            raise ValueError(
                f"the data set {shown} cannot be loaded from the Hub ({reason}); for one that is in the cache set "
                f"HF_HUB_OFFLINE=1{instead}"
            ) from error
    try:
        loaded = load_dataset(
            name, config, cache_dir=arguments.cache_dir, token=arguments.token, revision=arguments.data_revision
        )
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # Not there, not in the cache, no such configuration, damaged, or a loading script, which datasets no longer runs.
        where = "in the cache (HF_HUB_OFFLINE=1 is set)" if is_offline_mode() else "on the Hub"
        where = "in the folder" if folder else where
        reason = f"{error} {error.__cause__ or ''}".strip()
        if "scripts are no longer supported" in reason:
            instead = f"; the Hub may have it as tables: --data_revision refs/convert/parquet{instead}"
        raise ValueError(f"the data set {shown} cannot be loaded: {reason} (looked for {where}){instead}") from error
    found = {ours: next((theirs for theirs in names if theirs in loaded), None) for ours, names in splits.items()}
    taken = {ours: loaded[theirs] for ours, theirs in found.items() if theirs is not None}
    if not taken:
        wanted = ", ".join(sorted({theirs for names in splits.values() for theirs in names}))
        raise ValueError(f"the data set {shown} has none of the splits {wanted}, but {', '.join(loaded)}")
    return taken


def cells(rows: "Dataset", column: str) -> list[Any]:
    """The cells of a column. A `datasets` column is lazy: to go through it reads row by row, in many times as long."""
    return rows.with_format(None)[column][:]


def check_columns(rows: "Dataset", columns: Sequence[str], *, what: str, flag: str | None = None):
    """
    Args:
        what (`str`): where the rows are from ("--train_file").
        flag (`str`, *optional*): the one by which another column can be named ("--label_column").
    Raises:
        ValueError: one of `columns` is not there; lists those that are.
    """
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise ValueError(
            f"{what} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, rows.column_names))}"
            + (f" (name another with {flag})" if flag else "")
        )


def check_cells(rows: "Dataset", column: str, kind: type | tuple[type, ...], *, what: str):
    """
    Args:
        kind: what each cell must be: str, int, float, list, ... or several; True is no int.
        what (`str`): where the rows are from ("--train_file").
    Raises:
        ValueError: a cell is None or of another type. Row (from 1), column and cell are named.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    table = rows.data.column(column)
    if kinds == (str,) and str(table.type) in ("string", "large_string") and table.null_count == 0:
        return
    for number, cell in enumerate(cells(rows, column), start=1):
        if not isinstance(cell, kinds) or (isinstance(cell, bool) and bool not in kinds):
            shown = repr(cell) if len(repr(cell)) <= 80 else repr(cell)[:77] + "..."
            expected = " or ".join(NAMES.get(one, one.__name__) for one in kinds)
            raise ValueError(f"row {number} of {what} has {shown} in the column {column!r}, expected {expected}")


def first(rows: "Dataset", count: int | None) -> "Dataset":
    """The first `count` rows, or all where there are fewer or `count` is None.

    Raises:
        ValueError: `count` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"at least one example must be taken, got {count}")
    if count is None or count >= len(rows):
        return rows
    return rows.select(range(count))


def shown_files(files: Sequence[str | os.PathLike]) -> str:
    """Names without their folders, as they can stand in a model card."""
    return ", ".join(Path(file).name for file in files)


def as_numbers(rows: "Dataset", column: str) -> "Dataset":
    """`rows` with the texts of a column as numbers (ints, or else floats), if all are: for labels of .csv and .tsv."""
    from datasets import Value

    texts = cells(rows, column)
    for kind, dtype in ((int, "int64"), (float, "float64")):
        try:
            if all(isinstance(text, str) for text in texts) and [kind(text) for text in texts]:
                return rows.cast_column(column, Value(dtype))
        except (ValueError, OverflowError):
            continue
    return rows


def label_order(labels: Iterable[Any], *, what: str) -> list[Any]:
    """Each label once, numbers in the order of numbers and texts in that of texts (of numbers, where all read as such).

    Raises:
        ValueError: some are text and some numbers.
    """
    found = {*labels}
    texts = [label for label in found if isinstance(label, str)]
    if texts and len(texts) < len(found):
        number = min(label for label in found if not isinstance(label, str))
        raise ValueError(f"{what} has labels that are text and labels that are numbers: {min(texts)!r} and {number!r}")
    if texts and all(label.removeprefix("-").isdecimal() for label in texts):
        return sorted(texts, key=lambda label: (int(label), label))
    return sorted(found)


# ------- one file


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _check_file(path: Path, what: str):
    if path.is_dir():
        raise ValueError(f"{what} takes files, but {path} is a folder")
    if not path.is_file():
        raise ValueError(f"{what}: there is no file {path}")
    if _ending(path) not in ENDINGS:
        raise ValueError(f"{what}: {path} must end in {', '.join(ENDINGS)} (each also with .gz)")
    if path.stat().st_size == 0:
        raise ValueError(f"{what}: {path} is empty")


def _read_bytes(path: Path, what: str) -> bytes:
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{what}: {path} is damaged, or is not gzip: {error}") from error


def _read_columns(path: Path, what: str) -> dict[str, list]:
    ending = _ending(path)
    if ending == ".parquet":
        return _read_parquet(path, what).to_pydict()
    try:
        text = _read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}: {path} is not UTF-8: {error}; convert it") from error
    if not text.strip():
        raise ValueError(f"{what}: {path} is empty")
    if ending == ".csv":
        columns = _from_lines(_csv_lines(text, path, what), path, what)
    elif ending == ".tsv":
        lines = ((number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), start=1))
        columns = _from_lines(((number, line.split("\t")) for number, line in lines if line), path, what)
    else:
        columns = _from_objects(_json_rows(text, ending, path, what), path, what)
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"{what}: {path} has a header but no rows" if columns else f"{what}: {path} has no rows")
    return columns


def _read_parquet(path: Path, what: str):
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pa.parquet.read_table(io.BytesIO(_read_bytes(path, what)))
    except pa.ArrowException as error:
        raise ValueError(f"{what}: {path} cannot be read as parquet: {error}") from error
    if table.num_rows == 0:
        raise ValueError(f"{what}: {path} has no rows")
    return table


def _csv_lines(text: str, path: Path, what: str):
    """(line, cells); strict, because a quote that is never closed would swallow the rest of the file."""
    # A cell may be as long as an article: the limit of 131,072 characters is one of the whole process.
    limit = csv.field_size_limit(max(len(text), csv.field_size_limit()))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{what}: line {reader.line_num} of {path} is not csv: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _from_lines(lines: Iterable[tuple[int, list[str]]], path: Path, what: str) -> dict[str, list[str]]:
    lines = iter(lines)
    _, names = next(lines)
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what}: the header of {path} has the column {twice!r} twice")
    columns = [[] for _ in names]
    for number, cells in lines:
        if len(cells) != len(names):
            raise ValueError(
                f"{what}: line {number} of {path} has {len(cells)} cells, its header {len(names)} ({', '.join(names)})"
            )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return dict(zip(names, columns, strict=True))


def _json_rows(text: str, ending: str, path: Path, what: str) -> Iterable[tuple[str, Any]]:
    """(where, row); `where` is "row 3" or "line 3"."""
    if ending == ".json":
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as error:
            # Rows on lines, or damaged: then the line at fault is named below.
            if text.lstrip().startswith("["):
                raise ValueError(f"{what}: {path} is not JSON: {error}") from error
        else:
            rows = whole["data"] if isinstance(whole, dict) and isinstance(whole.get("data"), list) else whole
            rows = rows if isinstance(rows, list) else [rows]
            yield from ((f"row {number}", row) for number, row in enumerate(rows, start=1))
            return
    # Not splitlines(): U+2028 and the like may stand in a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{what}: line {number} of {path} is not JSON: {error}") from error


def _from_objects(rows: Iterable[tuple[str, Any]], path: Path, what: str) -> dict[str, list]:
    columns: dict[str, list] = {}
    count = 0
    for where, row in rows:
        if not isinstance(row, dict):
            raise ValueError(
                f'{what}: {where} of {path} must be an object such as {{"sentence": "so", "label": 0}}, got {row!r}'
            )
        for name, cell in row.items():
            if name not in columns:
                columns[name] = [None] * count
            columns[name].append(cell)
        count += 1
        for column in columns.values():
            if len(column) < count:
                column.append(None)
    return columns


def _check_same_columns(paths: list[Path], names: list[list[str]], what: str):
    for path, columns in zip(paths, names, strict=True):
        if {*columns} != {*names[0]}:
            only = sorted({*columns} ^ {*names[0]})
            raise ValueError(f"{what}: {paths[0]} and {path} have not the same columns: {', '.join(only)} in one only")


def _array(cells: list, column: str, what: str):
    import pyarrow as pa

    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError) as error:
        kinds = [type(cell) for cell in cells]
        known = next((kind for kind in kinds if kind is not type(None)), None)
        row = next((row for row, kind in enumerate(kinds) if kind not in (known, type(None))), None)
        if row is None:
            raise ValueError(f"{what}: the column {column!r} cannot be read: {error}") from error
        raise ValueError(
            f"{what}: the cells of the column {column!r} are not of one type: {NAMES.get(known, known.__name__)} before row "
            f"{row + 1}, which has {cells[row]!r}"
        ) from error

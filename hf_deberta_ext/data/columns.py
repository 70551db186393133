# SPDX-License-Identifier: Apache-2.0
"""Read and check the columns of a data set before training; error messages name the first invalid row."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["TEXT_COLUMNS", "as_numbers", "cells", "check_cells", "check_columns", "first", "label_order"]

TYPES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
# Names of text columns (one text or a pair of texts), tried in this order if neither a task nor a flag sets them.
TEXT_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("sentence",),
    ("text",),
)


def cells(rows: "Dataset", column: str) -> list[Any]:
    """Return a column as a list; this is much faster than iterating over a `datasets` column, which reads row by row."""
    return rows.with_format(None)[column][:]


def check_columns(rows: "Dataset", columns: Sequence[str], *, source: str, flag: str | None = None):
    """Check that columns exist.

    Args:
        source (`str`): where the rows come from, for the error message, such as "--train_file".
        flag (`str`, *optional*): flag that selects another column, for the error message, such as "--label_column".
    Raises:
        ValueError: a column is missing.
    """
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        names, present = (", ".join(map(repr, columns)) for columns in (missing, rows.column_names))
        message = f"{source} must have the columns {names}, got {present}"
        if flag:
            message += f"; use {flag} to name another column"
        raise ValueError(message)


def check_cells(rows: "Dataset", column: str, kind: type | tuple[type, ...], *, source: str):
    """Check the type of the cells of a column.

    Args:
        kind: allowed type or tuple of types: str, int, float, list, ... A bool is not an int; None is never allowed.
        source (`str`): where the rows come from, for the error message, such as "--train_file".
    Raises:
        ValueError: a cell has another type.
    """
    kinds = kind
    if not isinstance(kind, tuple):
        kinds = (kind,)
    table = rows.data.column(column)
    if kinds == (str,) and str(table.type) in ("string", "large_string") and table.null_count == 0:
        return
    for number, cell in enumerate(cells(rows, column), start=1):
        if not isinstance(cell, kinds) or (isinstance(cell, bool) and bool not in kinds):
            expected = " or ".join(TYPES.get(kind, kind.__name__) for kind in kinds)
            raise ValueError(f"row {number} of {source} has {cell!r:.80} in the column {column!r}, expected {expected}")


def first(rows: "Dataset", count: int | None) -> "Dataset":
    """Return the first `count` rows; all rows if there are fewer, or if `count` is None."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(range(count))


def as_numbers(rows: "Dataset", column: str) -> "Dataset":
    """Cast a column of texts such as "1" (from .csv) to int64, or else float64; if any text is no number, change nothing."""
    from datasets import Value

    texts = cells(rows, column)
    for kind, dtype in ((int, "int64"), (float, "float64")):
        try:
            if all(isinstance(text, str) for text in texts) and [kind(text) for text in texts]:
                return rows.cast_column(column, Value(dtype))
        except (ValueError, OverflowError):
            continue
    return rows


def label_order(labels: Iterable[Any], *, source: str) -> list[Any]:
    """Return the distinct labels, sorted by value if all are numbers or texts of whole numbers, else alphabetically."""
    distinct = {*labels}
    texts = [label for label in distinct if isinstance(label, str)]
    if texts and len(texts) < len(distinct):
        number = min(label for label in distinct if not isinstance(label, str))
        raise ValueError(f"the labels of {source} must be all texts or all numbers, got {min(texts)!r} and {number!r}")
    if texts and all(label.removeprefix("-").isdecimal() and len(label) < 20 for label in texts):
        return sorted(texts, key=lambda label: (int(label), label))
    return sorted(distinct)

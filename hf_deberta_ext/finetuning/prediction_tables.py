# SPDX-License-Identifier: Apache-2.0
"""Tables of predictions: one row per example, with all columns of the data, the gold label and the prediction."""

import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from pyarrow import parquet

__all__ = ["prediction_table", "write_tables"]


def prediction_table(
    rows: Dataset, numbers: np.ndarray | None = None, *, predicted: list, gold: list | None = None, **scores: list
) -> pa.Table:
    """Return a table with the columns "row", the columns of the data, "gold", "predicted", and the columns of `scores`.

    A column NAME of the data is renamed to "input_NAME" if one of the table's other columns is also called NAME.
    `numbers` are the positions of the rows in the data, counted from 1; only the first len(rows) are used. `gold` has None
    for a row without a label; if `gold` itself is None, the table has no column "gold".
    """
    answers = {"gold": gold, "predicted": predicted, **scores}
    if gold is None:
        del answers["gold"]
    numbers = np.arange(1, len(rows) + 1) if numbers is None else numbers[: len(rows)]
    columns, table = {"row": pa.array(numbers)}, rows.with_format("arrow")[:]
    for name, values in zip(table.column_names, table.columns, strict=True):
        while name in answers or name in columns:
            name = f"input_{name}"
        columns[name] = values
    return pa.table(columns | {name: pa.array(values) for name, values in answers.items()})


def write_tables(file: Path, tables: Iterator[pa.Table]):
    """Write one or more tables to a .csv or .parquet file; in .csv, lists become JSON texts, and None an empty cell."""
    if file.suffix not in (".csv", ".parquet"):
        raise ValueError(f"the predictions file must end in .csv or .parquet, got {file}")
    # Renamed to its final name when it is complete.
    part, first = file.with_name(f".{file.name}.part"), next(tables)
    try:
        if file.suffix == ".csv":
            with open(part, "w", encoding="utf-8", newline="") as stream:
                writer = csv.DictWriter(stream, first.column_names, lineterminator="\n")
                writer.writeheader()
                for table in itertools.chain([first], tables):
                    writer.writerows({name: cell_text(cell) for name, cell in row.items()} for row in table.to_pylist())
        else:
            with parquet.ParquetWriter(part, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table.cast(first.schema))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def cell_text(value: Any) -> Any:
    """Convert a list or dictionary to a JSON text for a .csv cell; return other values unchanged."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (list, dict)) else value

# SPDX-License-Identifier: Apache-2.0
"""Tables of predictions: a row for each example, with all columns of the data, its gold label and the model's answer."""

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
    """Return a table with the columns row, those of the data, gold, predicted, and scores.

    A column of the data that has the name of another column here is called "input_" + name.

    Args:
        rows (`Dataset`): n rows of the data, with all their columns.
        numbers (`np.ndarray`, *optional*): number of each row in the data, from 1; default: 1, 2, ...; more are left out.
        predicted, gold (`list`): [n], answers of the model, and right answers (None for a row without) where there are any.
        scores: lists [n] by the names of their columns, such as "probability", "probability_spam".
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
    """Write tables, at least one, as one .csv or .parquet file; in csv, lists are JSON, and None is an empty cell.

    Raises:
        ValueError: the file has another ending; a table has columns that the first lacks, in parquet of other types.
    """
    if file.suffix not in (".csv", ".parquet"):
        raise ValueError(f"predictions are written to a .csv or .parquet file, got {file}")
    # The file has its name once it is whole.
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
    """Return a cell for csv."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (list, dict)) else value

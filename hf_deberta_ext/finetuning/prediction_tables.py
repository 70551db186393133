# SPDX-License-Identifier: Apache-2.0
"""Tables of predictions: a row for each example, with all columns of the data, its gold label and the model's answer."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from pyarrow import parquet

__all__ = ["PREDICTION_FORMATS", "ROW", "PredictionWriter", "joined_rows", "prediction_table"]

PREDICTION_FORMATS = ("csv", "parquet")
# Number of the row in the data, from 1.
ROW = "row"


def joined_rows(parts: Sequence[Dataset], *, source: str) -> Dataset:
    """Join the rows of several files, whose columns may differ; missing cells are None.

    Args:
        source (`str`): where they are from ("--test_file"), for messages.
    Raises:
        ValueError: a column has values of different types.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return concatenate_datasets([*parts])
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"{source}: the files have a column of different types, expected one type: {error}") from error


def prediction_table(
    rows: Dataset, *, predicted: list, gold: list | None = None, numbers: Sequence[int] = (), **scores: list
) -> pa.Table:
    """Return a table with the columns row, those of the data, gold, predicted, and scores.

    A column of the data that has the name of another column here is called "input_" + name.

    Args:
        rows (`Dataset`): n rows of the data, with all their columns.
        predicted (`list`): [n], the answer for each row.
        gold (`list`, *optional*): [n], the right answers, None where a row has none; None without any.
        numbers: [n], number of each row in the data, from 1; default: 1, 2, ...
        scores: lists [n] by the names of their columns, such as "probability", "probability_spam".
    """
    answers: dict[str, list] = {"gold": gold, "predicted": predicted, **scores}
    if gold is None:
        del answers["gold"]
    table = rows.with_format("arrow")[:]
    names = []
    for name in table.column_names:
        while name in answers or name in (ROW, *names):
            name = f"input_{name}"
        names.append(name)
    table = table.rename_columns(names).add_column(0, ROW, pa.array(numbers or range(1, len(rows) + 1), pa.int64()))
    for name, values in answers.items():
        table = table.append_column(name, pa.array(values))
    return table


class PredictionWriter:
    """A context in which tables of predictions are written to a file, one after another.

    In csv, lists and objects are JSON, and None is an empty cell. The file has its name once all tables are written.

    Args:
        file (`Path`): the file, which ends in .csv or .parquet.
    Raises:
        ValueError: the file has another ending; a table has a column that the first one lacks, or a column of another type.
    """

    def __init__(self, file: Path):
        if file.suffix[1:] not in PREDICTION_FORMATS:
            raise ValueError(f"predictions must be written to a .csv or .parquet file, got {file}")
        self.file, self.part = file, file.with_name(f".{file.name}.part")
        self.rows, self.schema = 0, None

    def __enter__(self) -> "PredictionWriter":
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.file.suffix == ".csv":
            self.stream = open(self.part, "w", encoding="utf-8", newline="")
        return self

    def write(self, table: pa.Table):
        """Write the rows of a table; columns of the first table that it lacks are None."""
        if self.schema is None:
            self.begin(table.schema)
        table = self.like_first(table)
        if self.file.suffix == ".csv":
            self.csv.writerows([[*map(cell_text, row.values())] for row in table.to_pylist()])
        else:
            self.stream.write_table(table)
        self.rows += len(table)

    def begin(self, schema: pa.Schema):
        """Write what stands before the first row."""
        # Without the metadata of datasets, which name the columns of its own table.
        self.schema = schema.remove_metadata()
        if self.file.suffix == ".csv":
            self.csv = csv.writer(self.stream, lineterminator="\n")
            self.csv.writerow(schema.names)
        else:
            self.stream = parquet.ParquetWriter(self.part, self.schema)

    def like_first(self, table: pa.Table) -> pa.Table:
        """Return a table with the columns of the first table, in csv of any type."""
        if new := [name for name in table.column_names if name not in self.schema.names]:
            raise ValueError(
                f"the rows from {self.rows + 1:,} on have the column {new[0]!r}, which the rows before lack: give it to the "
                "first row, too"
            )
        for name in self.schema.names:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table)))
        table = table.select(self.schema.names)
        if self.file.suffix == ".csv":
            return table
        try:
            return table.cast(self.schema)
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(
                f"the rows from {self.rows + 1:,} on have a column of another type than the rows before ({error}), which "
                "parquet cannot hold: write csv"
            ) from error

    def __exit__(self, kind, error, trace):
        if self.file.suffix == ".csv" or self.schema is not None:
            self.stream.close()
        if kind is None and self.schema is not None:
            self.part.replace(self.file)
        else:
            self.part.unlink(missing_ok=True)


def cell_text(value: Any) -> Any:
    """Return a cell for csv."""
    if isinstance(value, (list, Mapping)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value

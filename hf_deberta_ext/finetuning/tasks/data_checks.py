# SPDX-License-Identifier: Apache-2.0
"""Check labelled texts before training: empty rows, duplicates, rare classes, texts with several labels."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from ...data.columns import cells, check_columns

__all__ = ["CheckedSet", "Part", "data_table", "treat_duplicates", "treat_empty_rows"]


class CheckedSet(NamedTuple):
    """Data set to check: its texts and labels [N], number of rows (or words) by class, and number of rows dropped so far."""

    texts: Sequence[Hashable]
    labels: Sequence[Hashable]
    counts: Mapping[str, int]
    left_out: int = 0

    def irregular_rows(self) -> dict[str, int]:
        """Return counts by name: all rows, dropped rows, rows with repeated texts, texts with several labels."""
        labels_of_text = Counter(text for text, _ in {*zip(self.texts, self.labels, strict=True)})
        return {
            "rows": len(self.texts),
            "dropped rows": self.left_out,
            "rows with the text of an earlier row": len(self.texts) - len(labels_of_text),
            "texts with several labels": sum(count > 1 for count in labels_of_text.values()),
        }

    def first_rows(self, evaluation: "CheckedSet") -> list[int]:
        """Return the indices of the rows that repeat neither an earlier row nor a text of the evaluation data."""
        held_out, kept = {*evaluation.texts}, {}
        for number, row in enumerate(zip(self.texts, self.labels, strict=True)):
            if row[0] not in held_out:
                kept.setdefault(row, number)
        return [*kept.values()]


@dataclass
class Part:
    """Training, evaluation or test set.

    Args:
        rows (`Dataset`): rows with the text columns and any other columns.
        source (`str`): origin of the rows, for messages.
        test (`bool`): whether this is a test set, in which labels are optional.
        labels (`list`, *optional*): result of `Labels.encode`; None if there are no labels.
        numbers (`np.ndarray`, *optional*): row numbers in the data, from 1; default: 1, 2, ...
        left_out (`int`, defaults to 0): number of dropped empty rows and duplicates.
    """

    rows: Dataset
    source: str
    test: bool
    labels: list | None = None
    numbers: np.ndarray | None = None
    left_out: int = 0

    def select(self, places: Sequence[int]):
        """Keep only the rows with these indices (from 0), and their labels and row numbers."""
        numbers = np.arange(1, len(self.rows) + 1) if self.numbers is None else self.numbers
        self.rows, self.numbers = self.rows.select(places), numbers[places]
        if self.labels is not None:
            self.labels = [self.labels[place] for place in places]


def treat_empty_rows(part: Part, columns: Mapping[str, Sequence[str]], on_empty: str):
    """Drop rows without text or label, or raise a ValueError if `on_empty` is "refuse".

    `columns` maps a flag to the columns that it names. Columns without any content are ignored: a later check reports them.
    """
    is_empty = np.zeros(len(part.rows), dtype=bool)
    for flag, names in columns.items():
        check_columns(part.rows, names, source=part.source, flag=flag)
        values = zip(*(cells(part.rows, name) for name in names), strict=True)
        without = [not any(cell is not None and str(cell).strip() for cell in row) for row in values]
        if not all(without):
            is_empty |= without
    part.left_out = int(is_empty.sum())
    if part.left_out and on_empty == "refuse":
        raise ValueError(
            f"{part.left_out} of {len(part.rows)} rows of {part.source} have no text or no label (the first is row "
            f"{is_empty.argmax() + 1}): fill them, or drop them with --on_empty drop"
        )
    if part.left_out:
        part.select(np.flatnonzero(~is_empty))
        part.source += " without its empty rows"


def treat_duplicates(train: Part, kept: Sequence[int], on_duplicates: str):
    """Drop the training rows that are not in `kept` (see `CheckedSet.first_rows`).

    Raise a ValueError instead if `on_duplicates` is "refuse", or if no row would be left.
    """
    duplicates = sorted({*range(len(train.rows))} - {*kept})
    if not duplicates:
        return
    if on_duplicates == "refuse" or not kept:
        row = duplicates[0] + 1 if train.numbers is None else train.numbers[duplicates[0]]
        choices = "drop or keep" if kept else "keep"
        raise ValueError(
            f"{len(duplicates)} of {len(train.rows)} rows of {train.source} repeat an earlier row or a text of the "
            f"evaluation data (the first is row {row}): remove them, or give --on_duplicates {choices}"
        )
    train.left_out += len(duplicates)
    train.select(kept)


def data_table(train: CheckedSet, evaluation: CheckedSet, *, unit: str = "rows") -> str | None:
    """Format a table of irregular rows and rare classes in training and evaluation data; return None if there are none."""
    held_out, of_evaluation = {*evaluation.texts}, evaluation.irregular_rows()
    numbers = train.irregular_rows()
    numbers["rows with a text of the evaluation data"] = sum(text in held_out for text in train.texts)
    lines = [f"{'data checks':<40}{'training':>10}{'evaluation':>12}"]
    for name, number in numbers.items():
        if number or of_evaluation.get(name):
            lines.append(f"{name:<40}{number:>10,}{of_evaluation.get(name, 0):>12,}")
    regular = len(lines)
    for kind, counts in (("training", train.counts), ("evaluation", evaluation.counts)):
        rare = [f"{name} {counts.get(name, 0)}" for name in train.counts if counts.get(name, 0) < 2]
        if rare and (held_out or kind == "training"):
            lines.append(f"labels with fewer than 2 {kind} {unit}: {', '.join(rare[:10])}{', ...' * (len(rare) > 10)}")
    if len(lines) == regular == 2:
        return None
    return "\n".join(lines)

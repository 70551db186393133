# SPDX-License-Identifier: Apache-2.0
"""Checks of labelled texts before training: a table of rare classes, duplicates and texts with several labels."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from ...data.columns import cells, check_columns

__all__ = ["CheckedSet", "data_table", "empty_rows"]


class CheckedSet(NamedTuple):
    """Texts and labels [N] of a data set, its number of rows (or words) by class, and its number of dropped rows."""

    texts: Sequence[Hashable]
    labels: Sequence[Hashable]
    counts: Mapping[str, int]
    left_out: int = 0

    def irregular_rows(self) -> dict[str, int]:
        """Return the number of rows, and of irregular rows of each kind."""
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


def empty_rows(rows: Dataset, columns: Mapping[str, Sequence[str]], *, source: str) -> np.ndarray:
    """Return which rows have no text or no label, bool [N]; columns that are empty in all rows do not count.

    Args:
        columns (`dict[str, list[str]]`): names of the text columns, and of the label column, by flag.
    """
    is_empty = np.zeros(len(rows), dtype=bool)
    for flag, names in columns.items():
        check_columns(rows, names, source=source, flag=flag)
        values = zip(*(cells(rows, name) for name in names), strict=True)
        without = [not any(cell is not None and str(cell).strip() for cell in row) for row in values]
        if not all(without):
            is_empty |= without
    return is_empty


def data_table(train: CheckedSet, evaluation: CheckedSet, *, unit: str = "rows") -> str | None:
    """Format a table of irregular rows and rare classes in training and evaluation data; return None if there are none.

    Args:
        unit (`str`, defaults to "rows"): unit of the sets' `counts`, "rows" or "words".
    """
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

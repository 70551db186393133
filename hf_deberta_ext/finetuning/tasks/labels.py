# SPDX-License-Identifier: Apache-2.0
"""Labels of texts: problem type, names, order in the data and in the model, and checks."""

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.special import expit, softmax
from transformers import PretrainedConfig
from transformers.utils import logging

from ...analysis.thresholds import decide
from ...data.columns import cells, check_columns, label_order
from ..task import label_fields

__all__ = ["PROBLEM_TYPES", "Labels", "check_logits", "find_labels", "label_cells"]

logger = logging.get_logger(__name__)

REGRESSION, SINGLE, MULTI = PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
NEEDED = {
    REGRESSION: "a finite number for regression",
    SINGLE: "one of the labels",
    MULTI: "a list of distinct labels",
}
# Texts that are read as numbers. "1_0", which Python's float() accepts, is a name.
DECIMAL = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*|nan|inf", re.IGNORECASE)


@dataclass
class Labels:
    """Labels of a data set, and their order in a model.

    Labels are numbered in the order of `names`; F1 is computed for label 1. A model can have another order (`order`), if it
    was loaded from a checkpoint with the same names.

    Args:
        problem_type (`str`): one of PROBLEM_TYPES.
        names (`tuple[str]`): names of the labels in the data's order; empty for regression.
        is_numbered (`bool`, defaults to `True`): whether cells may also be numbers 0, 1, ..., or names in other letter case.
        order (`tuple[int]`): number of each label in the model; default: 0, 1, ...
        source (`str`): origin of the labels for messages: "--train_file", "sst2", ...
        thresholds (`dict[str, float]`, *optional*): the checkpoint's decision thresholds (probabilities) by label.
    """

    problem_type: str
    names: tuple[str, ...] = ()
    is_numbered: bool = True
    order: tuple[int, ...] = ()
    source: str = ""
    thresholds: Mapping[str, float] | None = None

    def __post_init__(self):
        numbers = range(len(self.names))
        self.order = self.order or tuple(numbers)
        self.numbers = names = dict(zip(self.names, numbers, strict=True))
        if self.is_numbered:
            # Names take precedence over numbers.
            self.numbers = dict(zip(map(str, numbers), numbers, strict=True))
            self.numbers |= zip(map(str.lower, names), names.values(), strict=True)
            self.numbers |= names

    def encode(self, cells: Sequence[Any], *, source: str, test: bool = False) -> list | None:
        """Encode a label column as label numbers, scores, or lists of 0.0 and 1.0, with labels numbered as in the data.

        Args:
            source (`str`): origin of the cells for messages, such as "--validation_file".
            test (`bool`, defaults to `False`): whether labels are optional; without labels, the result is None.
        """
        nothing = [None, ""]
        if "-1" not in self.names:
            nothing += [-1, "-1", "-1.0"]
        if all(cell in nothing for cell in cells):
            if test:
                return None
            raise ValueError(f"{source} must have labels, got only {cells[0]!r}: pass unlabelled files as --test_file")
        encode = {REGRESSION: finite_number, SINGLE: self.number_of, MULTI: self.indicators_of}[self.problem_type]
        encoded = [encode(cell) for cell in cells]
        if None in encoded:
            row = encoded.index(None)
            expected = NEEDED[self.problem_type]
            if self.names:
                expected += f" of {self.source} ({len(self.names)}): {', '.join(self.names[:20])}"
            raise ValueError(f"row {row + 1} of {source} has the label {cells[row]!r}, expected {expected}")
        return encoded

    def number_of(self, cell: Any) -> int | None:
        """Return the class index of a label cell, or None for an unknown class."""
        if self.is_numbered and cell in range(len(self.names)):
            return int(cell)
        if cell is None or (self.is_numbered and not isinstance(cell, str)):
            return None
        name = str(cell)
        if self.is_numbered and name not in self.numbers:
            name = name.lower()
        return self.numbers.get(name)

    def indicators_of(self, cell: Any) -> list[float] | None:
        """Return 1.0 for labels in the list and 0.0 for others; None if the cell is not a list of distinct, known labels."""
        if not isinstance(cell, list):
            return None
        numbers = [self.number_of(item) for item in cell]
        if None in numbers or len({*numbers}) < len(numbers):
            return None
        return [float(number in numbers) for number in range(len(self.names))]

    def for_model(self, encoded: list) -> list:
        """Convert encoded labels from the data's order to the model's order."""
        if self.problem_type == REGRESSION:
            return encoded
        if self.problem_type == SINGLE:
            return [self.order[number] for number in encoded]
        return np.array(encoded)[:, np.argsort(self.order)].tolist()

    def predicted(self, logits: Any) -> np.ndarray:
        """Return the predictions, with labels numbered as in the data: [n] labels or scores, or [n, labels] of 0 and 1.

        Args:
            logits: [n, labels] in the model's order; regression: [n, 1] or [n].
        """
        logits = check_logits(logits)
        if self.problem_type == REGRESSION:
            return logits.reshape(len(logits))
        logits = logits[:, list(self.order)]
        if self.problem_type == SINGLE:
            return logits.argmax(-1)
        return (logits > 0).astype(np.int64)

    def decided(self, logits: Any) -> np.ndarray:
        """Return predictions in the format of `predicted`, but use the checkpoint's decision thresholds if it has any."""
        is_multi = self.problem_type == MULTI
        if self.thresholds and (is_multi or len(self.names) == 2):
            return decide(self.probabilities(logits), self.names, self.thresholds, multi_label=is_multi)
        return self.predicted(logits)

    def probabilities(self, logits: Any) -> np.ndarray:
        """Convert logits in the model's order to probabilities in the data's order, both [n, labels]."""
        logits = check_logits(logits)[:, list(self.order)].astype(np.float64)
        return expit(logits) if self.problem_type == MULTI else softmax(logits, axis=-1)

    def shown(self, predicted: np.ndarray) -> list[Any]:
        """Convert predictions to names, scores or lists of names."""
        if self.problem_type == REGRESSION:
            return predicted.tolist()
        if self.problem_type == SINGLE:
            return [self.names[number] for number in predicted]
        return [[self.names[number] for number in np.flatnonzero(row)] for row in predicted]

    def config_fields(self) -> dict[str, Any]:
        """Return the label fields of the model's configuration."""
        if self.problem_type == REGRESSION:
            return dict(num_labels=1, problem_type=REGRESSION)
        names = [self.names[number] for number in np.argsort(self.order)]
        return label_fields(names) | dict(problem_type=self.problem_type)

    def in_order_of(self, label2id: Mapping[str, int] | None) -> "Labels":
        """Return the labels in the checkpoint's order if it has the same names, ignoring case; otherwise, return `self`."""
        names = {name.lower(): number for name, number in (label2id or {}).items()}
        numbers = [*range(len(self.names))]
        if sorted(names.values()) != numbers or all(name == f"label_{number}" for name, number in names.items()):
            return self
        if {*names} == {name.lower() for name in self.names}:
            ordered = copy.copy(self)
            ordered.order = tuple(names[name.lower()] for name in self.names)
            return ordered
        logger.warning(f"replacing the checkpoint's labels {', '.join(label2id)} with {', '.join(self.names)} in this order")
        return self

    @staticmethod
    def of_config(config: PretrainedConfig) -> "Labels":
        """Return the labels in a model's configuration, for evaluation without training."""
        if config.problem_type == REGRESSION or (config.problem_type is None and config.num_labels == 1):
            return Labels(REGRESSION, source="the checkpoint")
        names = tuple(config.id2label[number] for number in range(config.num_labels))
        is_numbered = not all(DECIMAL.fullmatch(name) for name in names)
        thresholds = getattr(config, "decision_thresholds", None)
        if unknown := [label for label in thresholds or () if label not in names]:
            raise ValueError(f"the checkpoint's decision_thresholds must be for {', '.join(names)}, got {unknown[0]!r}")
        return Labels(config.problem_type or SINGLE, names, is_numbered, source="the checkpoint", thresholds=thresholds)


def check_logits(logits: Any) -> np.ndarray:
    """Return logits [n, ...] as an array; raises a ValueError with the first row that has NaN or infinite values."""
    logits = np.asarray(logits)
    finite = np.isfinite(logits)
    if not finite.all():
        row = int(finite.reshape(len(logits), -1).all(axis=1).argmin()) + 1
        raise ValueError(f"logits must be finite, got NaN or infinite values in row {row}: the training may have diverged")
    return logits


def label_cells(
    rows: Dataset, column: str, *, source: str = "the data", flag: str | None = None
) -> tuple[list[Any], list[str] | None]:
    """Return the cells of a label column (texts stripped), and the label names of the data set's features, if any."""
    check_columns(rows, [column], source=source, flag=flag)
    feature = rows.features[column]
    feature = getattr(feature, "feature", feature)
    return [*map(stripped, cells(rows, column))], getattr(feature, "names", None)


def stripped(cell: Any) -> Any:
    """Strip white space, such as a file's line ends, from a label or from all labels of a list."""
    if isinstance(cell, list):
        return [*map(stripped, cell)]
    if isinstance(cell, str):
        return cell.strip()
    return cell


def finite_number(cell: Any) -> float | None:
    """Convert a cell to a score; None if it is not a finite number."""
    try:
        score = float(cell)
    except (TypeError, ValueError):
        return None
    if isinstance(cell, bool) or not math.isfinite(score):
        return None
    return score


def find_labels(
    column: Sequence[Any], *, source: str, names: Sequence[str] | None = None, problem_type: str | None = None
) -> Labels:
    """Infer the problem type and the label names of the user's data from its label column.

    If `problem_type` is None, lists are multi-label, fractions are regression, and texts or integers are classes. Classes
    are sorted, numbers by value and texts alphabetically. If all texts are numbers (as in .csv), they are sorted by value.
    """
    items = [cell for cell in column if cell not in (None, "")]
    lists = [cell for cell in items if isinstance(cell, list)]
    check_indicators(lists, source)
    kind = problem_type or SINGLE
    if problem_type is None and lists:
        kind = MULTI
    elif problem_type is None and names is None and are_fractions(items):
        kind = REGRESSION
        if len({*items}) <= 20 and all(float(cell).is_integer() for cell in items):
            logger.warning(
                f"training a regression, because labels of {source} are fractions such as {items[0]!r}; for classes, write "
                f"labels without .0 or give --problem_type {SINGLE}"
            )
    if kind == REGRESSION:
        return Labels(REGRESSION, source=source)
    if names is not None:
        return Labels(kind, tuple(names), source=source)
    if kind == MULTI:
        items = [*chain.from_iterable(lists)]
    for item in items:
        if not isinstance(item, (str, int, float)):
            raise ValueError(f"{source} has the label {item!r}, expected text, a number, or (multi-label) a list of them")
    return Labels(kind, tuple(map(str, label_order(items, source=source))), is_numbered=False, source=source)


def check_indicators(lists: Sequence[list], source: str):
    """Check that lists of labels are not indicators (0 or 1 for each label), which would be read as labels "0" and "1"."""
    items = [*chain.from_iterable(lists)]
    has_one_width = len({*map(len, lists)}) == 1 < max(map(len, lists), default=0)
    if any(isinstance(item, float) for item in items) or (
        has_one_width and {*map(str, items)} <= {"0", "1", "True", "False"}
    ):
        raise ValueError(
            f"{source} has {lists[0]!r}, a 0 or 1 for each label; expected a list of the labels that apply, such as "
            '["news", "sport"], or [] for none'
        )


def are_fractions(cells: Sequence[Any]) -> bool:
    """Return True if all cells are numbers (or texts of numbers) and at least one has a decimal point or is a float."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    has_point = "." in "".join(texts) or any(isinstance(cell, float) for cell in cells)
    return has_point and all(map(DECIMAL.fullmatch, texts))

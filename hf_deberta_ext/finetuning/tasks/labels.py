# SPDX-License-Identifier: Apache-2.0
"""Labels of texts: what kind they are, their names, their order in the data and in a model, and what is wrong with them."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.utils import logging

from ...data.columns import cells, label_order
from ..task import label_fields

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig

__all__ = ["PROBLEM_TYPES", "Labels", "check_logits", "find_labels", "label_cells"]

logger = logging.get_logger(__name__)

REGRESSION, SINGLE, MULTI = PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# Texts that are numbers: as a number is written, so that "01" and "1_0" are names.
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
DECIMAL = re.compile(r"\s*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Labels:
    """The labels of a data set, and where a model has them.

    The data's own order is that of `names`: label 1 of it is the one of F1. A model may have another (`order`): that of a
    checkpoint which knows the same names.

    Args:
        problem_type (`str`): one of PROBLEM_TYPES.
        names (`tuple[str]`): in the data's order; none in regression.
        values (`tuple`): what stands for each name in the data, besides the name itself; default: 0, 1, ...
        order (`tuple[int]`): the model's number of each label; default: the same.
        source (`str`): who says so, for messages: "--train_file", "sst2", ...
        guessed (`bool`): there was no training data to say so.
    """

    problem_type: str
    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    order: tuple[int, ...] = ()
    source: str = ""
    guessed: bool = False
    _numbers: dict[Any, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        values = self._values()
        # "true" for "True", where names are known; labels that were found in the data are what they are.
        numbers = {} if self.values else {name.lower(): number for number, name in enumerate(self.names)}
        # Numbers are text in .csv and .tsv; a name that is a number counts first.
        numbers |= {str(value): number for number, value in enumerate(values)}
        numbers |= {name: number for number, name in enumerate(self.names)}
        numbers |= {value: number for number, value in enumerate(values)}
        object.__setattr__(self, "order", self.order or tuple(range(len(self.names))))
        object.__setattr__(self, "_numbers", numbers)

    def _values(self) -> tuple[Any, ...]:
        return self.values or tuple(range(len(self.names)))

    def encode(self, cells: Sequence[Any], *, source: str, test: bool = False) -> list | None:
        """Cells of a label column in the data's order: numbers of labels, scores, or for multi-label lists of 0.0 and 1.0.

        Args:
            source (`str`): where they are from ("--validation_file").
            test (`bool`): there may be none: then the result is None.
        Raises:
            ValueError: a cell is no label (of this data); all of them are empty or -1. Names the row and the cell.
        """
        if all(self._is_nothing(cell) for cell in cells):
            if test:
                return None
            raise ValueError(f"{source} has no labels (all are {cells[0]!r}): it is a test file, give it as --test_file")
        kind = {REGRESSION: self._score, SINGLE: self._number, MULTI: self._indicators}[self.problem_type]
        encoded = []
        for row, cell in enumerate(cells, start=1):
            try:
                encoded.append(kind(cell))
            except _LabelError as error:
                shown = "no label" if cell is None or cell == "" else f"the label {cell!r}"
                raise ValueError(f"row {row} of {source} has {shown}: {error}") from None
        return encoded

    def _is_nothing(self, cell: Any) -> bool:
        if isinstance(cell, list):
            return False
        # In a data set whose labels are -1, 0 and 1, -1 is one of them.
        return cell is None or cell == "" or (cell in (-1, "-1", "-1.0") and -1 not in self._values())

    def _score(self, cell: Any) -> float:
        try:
            score = float(cell) if isinstance(cell, (int, float, str)) and not isinstance(cell, bool) else math.nan
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise _LabelError("regression expects a finite number")
        return score

    def _number(self, cell: Any) -> int:
        if isinstance(cell, (list, dict)):
            raise _LabelError(f"expected one label, as {self.source} has")
        number = self._numbers.get(cell)
        if number is None and isinstance(cell, str) and not self.values:
            number = self._numbers.get(cell.lower())
        if number is None:
            pairs = zip(self.names, self._values(), strict=True)
            names = [name if name == str(value) else f"{name} ({value})" for name, value in pairs]
            shown = ", ".join(names[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")
            raise _LabelError(f"{self.source} has {shown}")
        return number

    def _indicators(self, cell: Any) -> list[float]:
        if not isinstance(cell, list):
            raise _LabelError("expected the list of those that apply")
        numbers = [self._number(item) for item in cell]
        if len({*numbers}) < len(numbers):
            raise _LabelError("one is in it twice; expected the list of those that apply, not a 0 or 1 for each")
        return [float(number in numbers) for number in range(len(self.names))]

    def for_model(self, encoded: list) -> list:
        """Labels in the data's order as the model has them."""
        if self.problem_type == REGRESSION:
            return encoded
        if self.problem_type == SINGLE:
            return [self.order[number] for number in encoded]
        return np.array(encoded)[:, np.argsort(self.order)].tolist()

    def from_model(self, labels: Any) -> np.ndarray:
        """The inverse of `for_model`: [n], or [n, labels] of 0 and 1 for multi-label."""
        labels = np.asarray(labels)
        if self.problem_type == REGRESSION:
            return labels.reshape(len(labels))
        if self.problem_type == SINGLE:
            return np.argsort(self.order)[labels]
        return labels[:, list(self.order)].astype(np.int64)

    def predicted(self, logits: Any) -> np.ndarray:
        """A model's answers, in the data's order: [n] labels or scores, or [n, labels] of 0 and 1 (probability above 0.5).

        Args:
            logits: [n, labels]; of regression [n, 1] or [n].
        Raises:
            ValueError: some are NaN or infinite.
        """
        logits = check_logits(logits)
        if self.problem_type == REGRESSION:
            return self.from_model(logits)
        return self.from_model(logits.argmax(-1) if self.problem_type == SINGLE else logits > 0)

    def shown(self, predicted: np.ndarray) -> list[Any]:
        """`predicted` as names, scores or lists of names."""
        if self.problem_type == REGRESSION:
            return [float(score) for score in predicted]
        if self.problem_type == SINGLE:
            return [self.names[number] for number in predicted]
        return [[self.names[number] for number in np.flatnonzero(row)] for row in predicted]

    def config_fields(self) -> dict[str, Any]:
        if self.problem_type == REGRESSION:
            return dict(num_labels=1, problem_type=REGRESSION)
        names = [name for _, name in sorted(zip(self.order, self.names, strict=True))]
        return label_fields(names) | dict(problem_type=self.problem_type)

    def in_order_of(self, label2id: Mapping[str, int] | None) -> "Labels":
        """With the order of a checkpoint that has the same names, in whatever case; else as they are.

        Where no training data says what the labels are, the checkpoint says it.

        Raises:
            ValueError: the data was not to be trained on, and has a label that the checkpoint does not know.
        """
        names = {name.lower(): number for name, number in (label2id or {}).items()}
        if self.problem_type == REGRESSION or sorted(names.values()) != [*range(len(names))] or not names:
            return self
        nameless = all(name == f"label_{number}" for name, number in names.items())
        if not nameless and sorted(names) == sorted(name.lower() for name in self.names):
            return dataclasses.replace(self, order=tuple(names[name.lower()] for name in self.names))
        if not self.guessed:
            if not nameless and len(names) == len(self.names):
                logger.warning(
                    f"the labels {', '.join(label2id)} of the checkpoint become {', '.join(self.names)}, in this order"
                )
            return self
        return self.of_checkpoint(label2id, nameless)

    def of_checkpoint(self, label2id: Mapping[str, int], nameless: bool) -> "Labels":
        whole = [value for value in self._values() if isinstance(value, int)]
        if len(label2id) == 1 and len(whole) == len(self._values()):
            return Labels(REGRESSION, source="the checkpoint")
        names = tuple(sorted(label2id, key=label2id.__getitem__))
        checkpoint = Labels(self.problem_type, names, source="the checkpoint")
        numbers = checkpoint._numbers
        wrong = [value for value in self.values if value not in numbers and str(value).lower() not in numbers]
        if not wrong:
            return checkpoint
        if nameless and not whole and len(names) == len(self.names):
            logger.warning(f"the checkpoint does not say what its labels are; they are taken for {', '.join(self.names)}")
            return self
        raise ValueError(f"{self.source} has the label {wrong[0]!r}; the checkpoint has {', '.join(names)}")

    @staticmethod
    def of_config(config: "PretrainedConfig") -> "Labels":
        """The labels of a model's configuration, for data without labels."""
        names = tuple(config.id2label[number] for number in range(config.num_labels))
        kind = config.problem_type or (REGRESSION if len(names) == 1 else SINGLE)
        return Labels(kind, () if kind == REGRESSION else names, source="the checkpoint")


class _LabelError(ValueError):
    pass


def check_logits(logits: Any) -> np.ndarray:
    """
    Args:
        logits: of n rows, [n, ...].
    Raises:
        ValueError: some are NaN or infinite; the first such row is named.
    """
    logits = np.asarray(logits)
    if not (finite := np.isfinite(logits)).all():
        row = int(finite.reshape(len(logits), -1).all(axis=1).argmin()) + 1
        raise ValueError(f"row {row} has logits that are NaN or infinite, which are no answer: did training diverge?")
    return logits


def label_cells(rows: "Dataset", column: str) -> tuple[list[Any], tuple[str, ...] | None]:
    """The cells of a label column without space around texts, and the names of the labels where the data set has them."""
    feature = rows.features[column]
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return [stripped(cell) for cell in cells(rows, column)], None if names is None else tuple(names)


def stripped(cell: Any) -> Any:
    """A label without space around it, of which a file's line ends leave some; a list with such labels."""
    if isinstance(cell, list):
        return [stripped(item) for item in cell]
    return cell.strip() if isinstance(cell, str) else cell


def find_labels(
    columns: Mapping[str, Sequence[Any]],
    *,
    trained: bool,
    names: Sequence[str] | None = None,
    names_source: str = "--label_names",
    problem_type: str | None = None,
) -> Labels | None:
    """Find the kind and the names of the labels of a user's own data.

    Without `problem_type`, lists make it multi-label, fractions regression, and text or whole numbers classes. Classes are
    sorted: numbers as numbers, texts as texts. Texts that are all written as numbers are (as in .csv) are numbers.

    Args:
        columns: cells of label columns by where they are from; the first says which labels there are.
        trained (`bool`): the first is training data.
        names (`list[str]`, *optional*): of the labels 0, 1, ...
        names_source (`str`): who gave them, for messages.
    Returns:
        None where there is no label at all.
    Raises:
        ValueError: labels of several kinds, of another than `problem_type` or `names` say, or of none; lists of a 0 or 1 for
            each label.
    """
    for origin, column in columns.items():
        check_label_cells(column, origin)
    columns = {origin: [cell for cell in column if cell is not None and cell != ""] for origin, column in columns.items()}
    columns = {origin: column for origin, column in columns.items() if column}
    if not columns:
        return None
    source, column = next(iter(columns.items()))
    number = number_type([cell for some in columns.values() for cell in some], regression=problem_type == REGRESSION)
    column = [number(cell) if isinstance(cell, str) else cell for cell in column]
    if names is None and all(cell == -1 for cell in column):
        # A test set's: there is no label.
        return None
    lists = sum(isinstance(cell, list) for cell in column)
    floats = [cell for cell in column if isinstance(cell, float)]
    kind = MULTI if lists else REGRESSION if floats and names is None else SINGLE
    if problem_type == REGRESSION and kind == SINGLE and names is None:
        kind = REGRESSION
    if problem_type not in (None, kind):
        cell = floats[0] if floats and not lists else column[0]
        expected = {REGRESSION: "numbers", SINGLE: "one text or whole number a row", MULTI: "a list of labels a row"}
        names_too = " and no --label_names" if problem_type == REGRESSION and names is not None else ""
        raise ValueError(
            f"--problem_type {problem_type} needs labels that are {expected[problem_type]}{names_too}; {source} has {cell!r}"
        )
    if lists and lists < len(column):
        cell = next(cell for cell in column if not isinstance(cell, list))
        raise ValueError(f"{source} has labels that are lists and labels that are none, such as {cell!r}")
    if kind == REGRESSION:
        if (
            problem_type is None
            and len({*floats}) <= 20
            and all(cell == int(cell) for cell in floats if math.isfinite(cell))
        ):
            logger.warning(
                f"the labels of {source} are written as fractions ({floats[0]!r}), so this is regression; for classes write "
                "them without .0"
            )
        return Labels(REGRESSION, source=source, guessed=not trained)
    if names is not None:
        return Labels(kind, tuple(names), source=names_source)
    flat = [item for cell in column for item in cell] if lists else column
    values = label_order(flat, source=source)
    return Labels(kind, tuple(map(str, values)), tuple(values), source=source, guessed=not trained)


def check_label_cells(column: Sequence[Any], origin: str):
    """
    Raises:
        ValueError: a cell is neither text nor a number nor a list of texts and whole numbers. A 0 or 1 for each label is
            refused, too: they would be taken for the labels 0 and 1.
    """
    lists = [cell for cell in column if isinstance(cell, list)]
    items = [item for cell in lists for item in cell]
    indicators = len({len(cell) for cell in lists}) == 1 < len(lists[0]) and all(item in (0, 1, "0", "1") for item in items)
    for row, cell in enumerate(column, start=1):
        members = cell if isinstance(cell, list) else []
        if isinstance(cell, dict) or any(item is None or isinstance(item, (list, dict)) for item in members):
            raise ValueError(f"row {row} of {origin} has the label {cell!r}, expected text, a number, or a list of them")
        if any(isinstance(item, float) for item in members) or (indicators and members):
            raise ValueError(
                f"row {row} of {origin} has the label {cell!r}, a 0 or 1 for each label: write the labels that apply, such "
                'as ["news", "sport"], and [] where none does'
            )


def number_type(cells: Sequence[Any], *, regression: bool) -> type:
    """int or float where all texts among `cells` are numbers, else str.

    Args:
        regression (`bool`): they are meant as numbers. Otherwise one of them has to be a fraction.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    if all(WHOLE.fullmatch(text) for text in texts):
        return int
    numbers = all(DECIMAL.fullmatch(text) for text in texts)
    return float if numbers and (regression or any("." in text for text in texts)) else str

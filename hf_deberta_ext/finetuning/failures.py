# SPDX-License-Identifier: Apache-2.0
"""Analyse the errors of a model: metrics by class, confusions, calibration, thresholds, residuals, most confident errors."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, precision_recall_fscore_support

from ..analysis.plots.failures import plot_confusion, plot_reliability, plot_residuals, plot_thresholds
from ..analysis.results import markdown_table
from ..files import replace_text

__all__ = ["Failures", "class_failures", "failure_summary", "multi_label_failures", "regression_failures", "tag_failures"]

# Maximum numbers: errors to list; rows of a table in log and model card; characters of a text in the log.
MOST_ERRORS, MOST_ROWS, SHOWN_LETTERS = 10, 12, 100


@dataclass(frozen=True)
class Failures:
    """Errors of a model on one evaluation set.

    Args:
        tables (`dict[str, list[dict]]`): tables (lists of rows) by title; the log and the model card show the first one.
        remarks (`list[str]`): sentences for the log and the model card; they contain no texts of the data.
        errors (`list[dict]`): the worst errors, with texts of the data; not shown in the model card.
        figures (`dict[str, Callable]`): functions that draw a figure to a path, by name of the figure.
        thresholds (`dict[str, float]`): probability threshold with the best F1, by label.
    """

    tables: dict[str, list[dict[str, Any]]]
    remarks: list[str]
    errors: list[dict[str, Any]]
    figures: dict[str, Callable[[Path], Any]] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)

    def write(self, folder: Path, stem: str) -> list[str]:
        """Write STEM_failures.json and, if matplotlib is installed, the figures STEM_NAME.png; return lines for the log."""
        file, figures = folder / f"{stem}_failures.json", []
        for name, draw in self.figures.items() if importlib.util.find_spec("matplotlib") else ():
            figures.append(f"{stem}_{name}.png")
            draw(folder / figures[-1])
        content = dict(tables=self.tables, remarks=self.remarks, errors=self.errors, thresholds=self.thresholds)
        replace_text(file, json.dumps(content | {"figures": figures}, indent=2, ensure_ascii=False) + "\n")
        lines = [f"\nWhere it fails ({stem}):", *failure_summary(content)]
        for error in self.errors:
            shown = {name: shortened(value) for name, value in error.items()}
            text = shown.pop("text")
            lines.append(f"- {text} ({', '.join(f'{name} {value}' for name, value in shown.items())})")
        return [*lines, f"Details: {', '.join([str(file), *figures])}\n"]


def failure_summary(content: Mapping[str, Any]) -> list[str]:
    """Return the first table in the content of a STEM_failures.json file as Markdown, and the remarks.

    If the table has more than `MOST_ROWS` rows, only the `MOST_ROWS` rows with the lowest F1 are shown.
    """
    rows, remarks = next(iter(content["tables"].values())), [*content["remarks"]]
    if len(rows) > MOST_ROWS:
        remarks.insert(0, f"The table shows only the {MOST_ROWS} rows (of {len(rows)}) with the lowest F1.")
        rows = sorted(rows, key=lambda row: row["F1"])[:MOST_ROWS]
    return [markdown_table([*rows[0]], *(map(shown_cell, row.values()) for row in rows)), " ".join(remarks)]


def shown_cell(value: Any) -> str:
    """Format a cell of a table: text, count, or fraction with three decimals."""
    return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def shortened(value: Any) -> str:
    """Format a value on one line: a float with three decimals, or the first `SHOWN_LETTERS` characters of another value."""
    text = f"{value:.3f}" if isinstance(value, float) else " ".join(str(value).split())
    return text[:SHOWN_LETTERS] + " ..." * (len(text) > SHOWN_LETTERS)


def label_table(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Compute precision, recall, F1 and number of rows of each label, from label ids [N] or 0 and 1 [N, C]."""
    columns = precision_recall_fscore_support(labels, predicted, labels=range(len(names)), zero_division=0)
    titles = ("label", "precision", "recall", "F1", "rows")
    rows = zip(names, *map(np.ndarray.tolist, columns), strict=True)
    return [dict(zip(titles, row, strict=True)) for row in rows]


def tag_failures(labels: Sequence[int], predicted: Sequence[int], names: Sequence[str]) -> Failures:
    """Compute metrics and confusions of the classes `names` [C] from true and predicted class indices [N]."""
    matrix = confusion_matrix(labels, predicted, labels=range(len(names)))
    wrong = matrix - np.diag(matrix.diagonal())
    parts = []
    for cell in _largest(wrong.ravel())[:3]:
        true, guess = divmod(cell, len(names))
        parts.append(f"{wrong[true, guess]:,} of {matrix[true].sum():,} {names[true]!r} are predicted as {names[guess]!r}")
    remarks = [f"Most frequent errors: {', '.join(parts)}."] if parts else []
    counts = [dict(zip(names, row, strict=True)) for row in matrix.tolist()]
    confusion = [dict(true=name, predicted=row) for name, row in zip(names, counts, strict=True)]
    tables = {"labels": label_table(labels, predicted, names), "confusion": confusion}
    return Failures(tables, remarks, [], {"confusion": partial(plot_confusion, matrix, names)})


def class_failures(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str], texts: Sequence[str]) -> Failures:
    """Analyse the errors of a classifier; with two classes, also find the threshold with the best F1 for the second class.

    `labels` [N] are class indices, `probabilities` are [N, C], `texts` [N] are listed with the worst errors.
    """
    predicted, surest = probabilities.argmax(-1), probabilities.max(-1)
    errors = []
    for row in _largest(surest * (predicted != labels)):
        error = dict(row=row + 1, text=texts[row], label=names[labels[row]], predicted=names[predicted[row]])
        errors.append(error | {"probability": float(surest[row])})
    failures = tag_failures(labels, predicted, names)
    add_calibration(failures, surest, predicted == labels)
    if len(names) == 2:
        add_thresholds(failures, labels[:, None] == 1, probabilities[:, 1:], names[1:])
    failures.errors.extend(errors)
    return failures


def multi_label_failures(
    labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str], texts: Sequence[str]
) -> Failures:
    """Analyse the errors of a multi-label classifier, and find the threshold with the best F1 for each label.

    `labels` [N, C] are 0 or 1; labels with `probabilities` [N, C] above 0.5 are predicted.
    """
    predicted, errors = probabilities > 0.5, []
    for cell in _largest((np.abs(probabilities - labels) * (predicted != labels)).ravel()):
        row, label = divmod(cell, len(names))
        said = "predicted" if predicted[row, label] else "not predicted"
        error = {"row": row + 1, "text": texts[row], said: names[label], "probability": float(probabilities[row, label])}
        errors.append(error)
    failures = Failures({"labels": label_table(labels, predicted, names)}, [], errors)
    add_calibration(failures, probabilities.ravel(), labels.ravel())
    add_thresholds(failures, labels, probabilities, names)
    return failures


def calibration_error(probabilities: np.ndarray, hits: np.ndarray, bins: int = 10) -> float:
    """Compute the expected calibration error: the mean of |mean probability - frequency of hits| over bins.

    The `bins` have equal width, and are weighted by their number of rows; `probabilities` and `hits` (0 or 1) are [N].
    """
    numbers = np.minimum((probabilities * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(numbers, probabilities - hits)).sum() / len(hits))


def add_calibration(failures: Failures, probabilities: np.ndarray, hits: np.ndarray):
    """Add the calibration error and a reliability diagram to `failures`; see `calibration_error` for the arguments."""
    error = calibration_error(probabilities, hits)
    means = f"mean probability {probabilities.mean():.3f}, observed frequency {hits.mean():.3f}"
    failures.remarks.append(f"Expected calibration error {error:.3f}: {means}.")
    failures.figures["reliability"] = partial(plot_reliability, probabilities, hits)


def threshold_curve(is_label: np.ndarray, probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Compute precision, recall and F1 of a label at each of the K possible thresholds; return arrays [K] by name.

    The label is predicted if its probability is at least the threshold. Each threshold lies between two neighbouring
    probabilities (at 0.5 if possible, else halfway), so that rounding does not change predictions. `is_label` (0 or 1) and
    `probabilities` are [N].
    """
    precision, recall, steps = precision_recall_curve(is_label, probabilities)
    precision, recall = precision[:-1], recall[:-1]
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    lower = np.concatenate([[0.0], steps[:-1]])
    threshold = np.where((lower < 0.5) & (0.5 < steps), 0.5, (lower + steps) / 2)
    return {"threshold": threshold, "precision": precision, "recall": recall, "F1": f1}


def add_thresholds(failures: Failures, labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]):
    """Add each label's threshold with the best F1 to `failures`; a label that occurs in no row gets the threshold 0.5.

    `labels` (0 or 1) and `probabilities` are [N, C].
    """
    failures.thresholds.update(dict.fromkeys(names, 0.5))
    f1_before = {row["label"]: row["F1"] for row in failures.tables["labels"]}
    curves, gains = {}, {}
    for number in np.flatnonzero(labels.any(axis=0)):
        name = names[number]
        curve = curves[name] = threshold_curve(labels[:, number], probabilities[:, number])
        ties = np.flatnonzero(curve["F1"] > curve["F1"].max() - 1e-9)
        best = min(ties, key=lambda place: abs(curve["threshold"][place] - 0.5))
        failures.thresholds[name] = float(curve["threshold"][best])
        numbers = f"{f1_before[name]:.3f} at 0.5, {curve['F1'][best]:.3f} at {failures.thresholds[name]:.3f}"
        gains[f"{name!r} {numbers}"] = curve["F1"][best] - f1_before[name]
    if curves:
        largest = sorted(gains, key=gains.__getitem__, reverse=True)[:3]
        failures.remarks.append(f"F1 at 0.5 and at the threshold that is best on these rows: {'; '.join(largest)}.")
        failures.figures["thresholds"] = partial(plot_thresholds, curves, failures.thresholds)


def regression_failures(scores: np.ndarray, predicted: np.ndarray, texts: Sequence[str]) -> Failures:
    """Compute errors by quartile of the scores [N], and list the texts with the largest residuals (predicted - score)."""
    residuals, rows = predicted - scores, []
    quarters = np.searchsorted(np.unique(np.quantile(scores, [0.25, 0.5, 0.75])), scores)
    for inside in (quarters == quarter for quarter in np.unique(quarters)):
        row = {"scores": f"{scores[inside].min():.4g} to {scores[inside].max():.4g}", "rows": int(inside.sum())}
        means = residuals[inside].mean(), np.abs(residuals[inside]).mean()
        rows.append(row | dict(zip(("mean error", "mean absolute error"), map(float, means), strict=True)))
    errors = []
    for row in _largest(np.abs(residuals)):
        errors.append(dict(row=row + 1, text=texts[row], score=float(scores[row]), predicted=float(predicted[row])))
    remark = f"Mean error {residuals.mean():.3f}, root mean squared error {np.sqrt((residuals**2).mean()):.3f}."
    return Failures({"scores": rows}, [remark], errors, {"residuals": partial(plot_residuals, scores, predicted)})


def _largest(values: np.ndarray) -> list[int]:
    """Return the indices of the ten largest positive values, in descending order."""
    order = np.argsort(-values, kind="stable")[:MOST_ERRORS]
    return [int(place) for place in order if values[place] > 0]

# SPDX-License-Identifier: Apache-2.0
"""Where a model fails: metrics by class, confusions, calibration, thresholds, residuals, and the surest errors in text."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, precision_recall_fscore_support

from ..analysis.plots import plot_confusion, plot_reliability, plot_residuals, plot_thresholds
from ..analysis.results import markdown_table
from ..files import replace_text

__all__ = [
    "Failures",
    "calibration_bins",
    "calibration_error",
    "classification_failures",
    "failure_summary",
    "label_failures",
    "multi_label_failures",
    "regression_failures",
    "threshold_curve",
]

# Errors that are listed; rows of a table in log and card; characters of a text in the log.
MOST_ERRORS, MOST_ROWS, MOST_LETTERS = 10, 12, 100


@dataclass(frozen=True)
class Failures:
    """Errors of a model on one evaluation set.

    Args:
        tables (`dict[str, list[dict]]`): tables by title, each a list of rows; the first one is shown in log and card.
        remarks (`list[str]`): sentences for log and card, without texts of the data.
        errors (`list[dict]`): the worst errors, with texts of the data, which the card does not show.
        figures (`dict[str, Callable]`): by name, functions that draw to a path.
        thresholds (`dict[str, float]`): by label, the threshold of its probability that gives the best F1.
    """

    tables: dict[str, list[dict[str, Any]]]
    remarks: list[str]
    errors: list[dict[str, Any]]
    figures: dict[str, Callable[[Path], Any]] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)

    def write(self, folder: Path, stem: str) -> list[str]:
        """Write STEM_failures.json and the figures STEM_NAME.png, and return lines for the log.

        Without matplotlib there are no figures.
        """
        content: dict[str, Any] = dict(tables=self.tables, remarks=self.remarks, errors=self.errors, figures=[])
        content["thresholds"] = self.thresholds
        if importlib.util.find_spec("matplotlib") is not None:
            for name, draw in self.figures.items():
                draw(folder / f"{stem}_{name}.png")
                content["figures"].append(f"{stem}_{name}.png")
        file = folder / f"{stem}_failures.json"
        replace_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        lines = ["", f"Where it fails ({stem}):", *failure_summary(content)]
        if self.errors:
            lines += ["Errors in text:", *map(shown_error, self.errors)]
        return [*lines, f"All of it: {', '.join([str(file), *content['figures']])}", ""]


def failure_summary(content: Mapping[str, Any]) -> list[str]:
    """Return the first table of a STEM_failures.json in Markdown, and its remarks; of a long table the rows of lowest F1."""
    rows, remarks = next(iter(content["tables"].values())), [*content["remarks"]]
    if len(rows) > MOST_ROWS:
        remarks.insert(0, f"The table has the {MOST_ROWS} of {len(rows)} rows with the lowest F1.")
        rows = sorted(rows, key=lambda row: row["f1"])[:MOST_ROWS]
    cells = [[shown_cell(value) for value in row.values()] for row in rows]
    return [markdown_table([*rows[0]], *cells), " ".join(remarks)]


def shown_cell(value: Any) -> str:
    """Format a cell of a table: text, a fraction with three decimals, or a count."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value).replace("|", "\\|")


def shown_error(error: Mapping[str, Any]) -> str:
    """Return an error as a line: the text in front, shortened, then the other values."""
    text = " ".join(str(error["text"]).split())
    if len(text) > MOST_LETTERS:
        text = text[: MOST_LETTERS - 1] + "…"
    others = [f"{name} {shown_cell(value)}" for name, value in error.items() if name != "text"]
    return f"- {text} ({', '.join(others)})"


def label_table(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and number of rows of each label, from [N] label numbers or [N, C] of 0 and 1."""
    columns = precision_recall_fscore_support(labels, predicted, labels=range(len(names)), zero_division=0)
    rows = []
    for name, precision, recall, f1, count in zip(names, *columns, strict=True):
        rows.append(dict(label=name, precision=float(precision), recall=float(recall), f1=float(f1), rows=int(count)))
    return rows


def confusion_remark(matrix: np.ndarray, names: Sequence[str], count: int = 3) -> list[str]:
    """Return a sentence about the most frequent confusions of a matrix [C, C]; nothing without errors."""
    wrong = matrix * (1 - np.eye(len(names), dtype=matrix.dtype))
    pairs = np.argsort(-wrong, axis=None, kind="stable")[:count]
    parts = []
    for true, predicted in zip(*np.unravel_index(pairs, wrong.shape), strict=True):
        if wrong[true, predicted]:
            of_class = f"{wrong[true, predicted]:,} of {matrix[true].sum():,} {names[true]!r}"
            parts.append(f"{of_class} are predicted as {names[predicted]!r}")
    return [f"Most frequent errors: {', '.join(parts)}."] if parts else []


def calibration_bins(probabilities: np.ndarray, right: np.ndarray, count: int = 10) -> list[dict[str, float]]:
    """Return the bins of equal width that hold predictions: their rows, mean probability and share of right ones.

    Args:
        probabilities: [N] of the predictions, in [0, 1].
        right: [N] of 0 and 1.
        count (`int`): bins between 0 and 1.
    """
    numbers = np.minimum((probabilities * count).astype(int), count - 1)
    bins = []
    for number in np.unique(numbers):
        inside = numbers == number
        means = {"mean probability": float(probabilities[inside].mean()), "frequency": float(right[inside].mean())}
        bins.append({"from": number / count, "to": (number + 1) / count, "rows": int(inside.sum())} | means)
    return bins


def calibration_error(bins: Sequence[Mapping[str, float]]) -> float:
    """Return the expected calibration error: the mean over predictions of |mean probability - frequency| of their bin."""
    gaps = [part["rows"] * abs(part["mean probability"] - part["frequency"]) for part in bins]
    return sum(gaps) / sum(part["rows"] for part in bins)


def calibration_remark(bins: Sequence[Mapping[str, float]]) -> str:
    """Return a sentence about the calibration error, and whether the probabilities are too high or too low."""
    total = sum(part["rows"] for part in bins)
    mean, right = (sum(part["rows"] * part[name] for part in bins) / total for name in ("mean probability", "frequency"))
    error = calibration_error(bins)
    return f"Expected calibration error {error:.3f}: mean probability {mean:.3f}, observed frequency {right:.3f}."


def threshold_curve(is_label: np.ndarray, probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Return threshold, precision, recall and F1, each [K], of a label that is predicted from a probability on.

    A threshold lies halfway between two neighbouring probabilities, so that rounding does not move a row over it.

    Args:
        is_label: [N] of 0 and 1, with at least one 1.
        probabilities: [N], in [0, 1].
    """
    precision, recall, steps = precision_recall_curve(is_label, probabilities)
    precision, recall = precision[:-1], recall[:-1]
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    thresholds = (steps + np.concatenate([[0.0], steps[:-1]])) / 2
    return dict(threshold=thresholds, precision=precision, recall=recall, f1=f1)


def best_thresholds(
    is_label: np.ndarray, probabilities: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, dict[str, np.ndarray]]]:
    """Return the best threshold and the curve of each label, from [N, C] of 0 and 1 and [N, C] probabilities.

    A label without a row keeps 0.5 and has no curve.
    """
    thresholds, curves = dict.fromkeys(names, 0.5), {}
    for name, column, of_label in zip(names, is_label.T, probabilities.T, strict=True):
        if column.any():
            curves[name] = threshold_curve(column, of_label)
            thresholds[name] = float(curves[name]["threshold"][np.argmax(curves[name]["f1"])])
    return thresholds, curves


def label_failures(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Failures:
    """Return metrics by class and confusions of classes without probabilities.

    Args:
        labels, predicted: [N] numbers of classes.
        names: of the C classes.
    """
    matrix = confusion_matrix(labels, predicted, labels=range(len(names)))
    confusion = []
    for name, counts in zip(names, matrix.tolist(), strict=True):
        confusion.append({"true": name, "predicted": dict(zip(names, counts, strict=True))})
    tables = {"labels": label_table(labels, predicted, names), "confusion": confusion}
    return Failures(tables, confusion_remark(matrix, names), [], {"confusion": partial(plot_confusion, matrix, names)})


def classification_failures(
    labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str], texts: Sequence[str]
) -> Failures:
    """Return where a classifier fails: metrics by class, confusions, calibration, the surest errors.

    Of two classes there is also the threshold of the second one's probability that gives its best F1.

    Args:
        labels: [N] numbers of classes.
        probabilities: [N, C].
        names: of the C classes.
        texts: [N].
    """
    predicted, surest = probabilities.argmax(-1), probabilities.max(-1)
    by_label = label_failures(labels, predicted, names)
    bins = calibration_bins(surest, predicted == labels)
    tables, figures = by_label.tables | {"calibration": bins}, dict(by_label.figures)
    figures["reliability"] = partial(plot_reliability, bins)
    remarks, thresholds = [*by_label.remarks, calibration_remark(bins)], {}
    if len(names) == 2:
        thresholds, curves = best_thresholds(labels[:, None] == 1, probabilities[:, 1:], names[1:])
        remarks += threshold_remark(thresholds, curves, tables["labels"])
        figures |= threshold_figure(curves)
    errors = []
    for row in _largest(surest * (predicted != labels)):
        error = dict(row=row + 1, text=texts[row], label=names[labels[row]], predicted=names[predicted[row]])
        errors.append(error | {"probability": float(surest[row])})
    return Failures(tables, remarks, errors, figures, thresholds)


def multi_label_failures(
    labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str], texts: Sequence[str]
) -> Failures:
    """Return where a classifier with several labels fails: metrics and thresholds by label, calibration, the surest errors.

    Args:
        labels: [N, C] of 0 and 1.
        probabilities: [N, C]; a label is predicted above 0.5.
        names: of the C labels.
        texts: [N].
    """
    labels = np.asarray(labels, dtype=int)
    predicted = (probabilities > 0.5).astype(int)
    bins = calibration_bins(probabilities.ravel(), labels.ravel())
    thresholds, curves = best_thresholds(labels, probabilities, names)
    tables = {"labels": label_table(labels, predicted, names), "calibration": bins}
    remarks = [calibration_remark(bins), *threshold_remark(thresholds, curves, tables["labels"])]
    figures = {"reliability": partial(plot_reliability, bins)} | threshold_figure(curves)
    errors = []
    distance = np.abs(probabilities - labels) * (predicted != labels)
    for cell in _largest(distance.ravel()):
        row, label = divmod(cell, len(names))
        said = "predicted" if predicted[row, label] else "not predicted"
        error = {"row": row + 1, "text": texts[row], said: names[label], "probability": float(probabilities[row, label])}
        errors.append(error)
    return Failures(tables, remarks, errors, figures, thresholds)


def threshold_figure(curves: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Callable[[Path], Any]]:
    """Return the figure of the curves by name; nothing where no label has a row."""
    return {"thresholds": partial(plot_thresholds, curves)} if curves else {}


def threshold_remark(
    thresholds: Mapping[str, float], curves: Mapping[str, Mapping[str, np.ndarray]], table: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence about the labels to which a threshold other than 0.5 gives most; nothing where there is none."""
    gains = {row["label"]: curves[row["label"]]["f1"].max() - row["f1"] for row in table if row["label"] in curves}
    parts = []
    for name in sorted(gains, key=gains.get, reverse=True)[:3]:
        best = curves[name]["f1"].max()
        if gains[name] > 0.0005:
            parts.append(f"{name!r} {best:.3f} at {thresholds[name]:.3f} instead of {best - gains[name]:.3f} at 0.5")
    return [f"Best F1 by threshold, chosen on these rows: {', '.join(parts)}."] if parts else []


def regression_failures(scores: np.ndarray, predicted: np.ndarray, texts: Sequence[str]) -> Failures:
    """Return where a regression fails: errors by quarter of the scores, residuals, and the largest of them in text.

    Args:
        scores, predicted: [N].
        texts: [N].
    """
    scores, predicted = np.asarray(scores, dtype=float), np.asarray(predicted, dtype=float)
    residuals = predicted - scores
    edges = np.unique(np.quantile(scores, [0.25, 0.5, 0.75]))
    quarters, table = np.searchsorted(edges, scores, side="left"), []
    for quarter in np.unique(quarters):
        inside = quarters == quarter
        row = {"scores": f"{scores[inside].min():.4g} to {scores[inside].max():.4g}", "rows": int(inside.sum())}
        row |= {
            "mean error": float(residuals[inside].mean()),
            "mean absolute error": float(np.abs(residuals[inside]).mean()),
        }
        table.append(row)
    absolute, squared = np.abs(residuals).mean(), np.sqrt((residuals**2).mean())
    remark = f"Mean error {residuals.mean():.3f}, mean absolute error {absolute:.3f}, root mean squared error {squared:.3f}."
    errors = []
    for row in _largest(np.abs(residuals)):
        error = dict(row=row + 1, text=texts[row], score=float(scores[row]), predicted=float(predicted[row]))
        errors.append(error)
    return Failures({"scores": table}, [remark], errors, {"residuals": partial(plot_residuals, scores, predicted)})


def _largest(values: np.ndarray) -> list[int]:
    """Return the places of the ten largest values that are not 0, the largest first."""
    order = np.argsort(-values, kind="stable")[:MOST_ERRORS]
    return [int(place) for place in order if values[place] > 0]

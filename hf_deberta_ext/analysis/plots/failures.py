# SPDX-License-Identifier: Apache-2.0
"""Figures of a model's errors: confusion matrix, calibration, thresholds, residuals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .figure import COLOURS, FigurePath, finish_axes, new_figure, save_figure
from .tokens import installed_fonts

__all__ = ["plot_confusion", "plot_reliability", "plot_residuals", "plot_thresholds"]

# Cells of a matrix with more classes are too small for numbers; more panels or labels are too small to read.
MOST_NUMBERS, MOST_CLASSES, MOST_PANELS = 20, 50, 12


def plot_confusion(matrix: np.ndarray, names: Sequence[str], path: FigurePath) -> Path | list[Path]:
    """Draw a confusion matrix: counts in the cells, and the share of each true class as colour.

    Args:
        matrix: [C, C] counts, a row for each true class, a column for each predicted one. Of more than 50 classes the 50
            with most errors are drawn.
        names: of the C classes.
    """
    matrix = np.asarray(matrix)
    errors = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
    shown = np.sort(np.argsort(-errors, kind="stable")[:MOST_CLASSES])
    shares = (matrix / np.maximum(matrix.sum(1, keepdims=True), 1))[np.ix_(shown, shown)]
    labels = [_shortened(names[number]) for number in shown]
    longest = max(map(len, labels))
    size = max(2.4, (0.5 if len(shown) <= MOST_NUMBERS else 0.22) * len(shown))
    figure = new_figure(size + 1.7 + 0.07 * longest, size + 0.8 + 0.07 * longest)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(shown) <= MOST_NUMBERS:
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share > 0.5 else "black"
            count = f"{matrix[shown[row], shown[column]]:,}"
            axes.text(column, row, count, ha="center", va="center", color=colour, fontsize=8)
    style = dict(fontsize=8, fontfamily=installed_fonts(), parse_math=False)
    axes.set_xticks(range(len(shown)), labels, rotation=90, **style)
    axes.set_yticks(range(len(shown)), labels, **style)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.colorbar(image, shrink=0.8, label="share of the true class")
    return save_figure(figure, path)


def plot_reliability(bins: Sequence[Mapping[str, float]], path: FigurePath) -> Path | list[Path]:
    """Draw a reliability diagram: observed frequency against mean probability, and the number of predictions below it.

    Args:
        bins (`list[dict]`): "from", "to", "rows", "mean probability" and "frequency", as `calibration_bins` returns them.
    """
    figure = new_figure(4.6, 4.8)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    means, shares = ([part[name] for part in bins] for name in ("mean probability", "frequency"))
    top.plot([0, 1], [0, 1], linestyle=":", color="0.35", label="calibrated")
    top.plot(means, shares, marker="o", color=COLOURS[0], label="model")
    top.set_ylim(-0.02, 1.02)
    top.set_ylabel("observed frequency")
    top.legend(frameon=False, fontsize=9, loc="upper left")
    widths = [part["to"] - part["from"] for part in bins]
    below.bar([part["from"] for part in bins], [part["rows"] for part in bins], widths, align="edge", edgecolor="white")
    below.set_xlim(0, 1)
    below.set_xlabel("predicted probability")
    below.set_ylabel("predictions")
    finish_axes(top)
    finish_axes(below)
    return save_figure(figure, path)


def plot_thresholds(curves: Mapping[str, Mapping[str, np.ndarray]], path: FigurePath) -> Path | list[Path]:
    """Draw precision, recall and F1 by threshold, a panel for each label (at most 12), with the threshold of the best F1.

    Args:
        curves (`dict[str, dict]`): by label, "threshold", "precision", "recall" and "f1", each [K].
    """
    curves = dict([*curves.items()][:MOST_PANELS])
    columns = min(len(curves), 4)
    rows = -(-len(curves) // columns)
    width = 4.6 if columns == 1 else 2.6 * columns
    figure = new_figure(width, max(3.6, 2.3 * rows + 0.6))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    for (label, curve), axes in zip(curves.items(), grid, strict=False):
        for colour, name in zip(COLOURS, ("precision", "recall", "f1"), strict=False):
            axes.plot(curve["threshold"], curve[name], color=colour, label="F1" if name == "f1" else name)
        best = int(np.argmax(curve["f1"]))
        axes.axvline(curve["threshold"][best], color="0.35", linestyle=":")
        title = f"{_shortened(label)}: F1 {curve['f1'][best]:.3f} at {curve['threshold'][best]:.2f}"
        axes.set_title(title, fontsize=9, fontfamily=installed_fonts(), parse_math=False)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)
        finish_axes(axes)
    for axes in [*grid]:
        axes.axis("off")
    figure.supxlabel("threshold of the label's probability", fontsize=10)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return save_figure(figure, path)


def plot_residuals(scores: np.ndarray, predicted: np.ndarray, path: FigurePath) -> Path | list[Path]:
    """Draw the residuals of a regression, prediction minus score, against the scores.

    Args:
        scores, predicted: [N].
    """
    figure = new_figure(5.4)
    axes = figure.subplots()
    axes.axhline(0, color="0.35", linestyle=":")
    axes.plot(scores, np.asarray(predicted) - scores, "o", color=COLOURS[0], markersize=4, alpha=0.4, markeredgewidth=0)
    axes.set_xlabel("score")
    axes.set_ylabel("prediction - score")
    finish_axes(axes)
    return save_figure(figure, path)


def _shortened(name: str) -> str:
    """Return a label of at most 24 characters."""
    return name if len(name) <= 24 else f"{name[:23]}…"

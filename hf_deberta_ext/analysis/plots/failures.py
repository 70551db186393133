# SPDX-License-Identifier: Apache-2.0
"""Figures of a model's errors: confusion matrix, calibration, thresholds, residuals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .figure import COLOURS, FigurePath, finish_axes, new_figure, save_figure

__all__ = ["plot_confusion", "plot_reliability", "plot_residuals", "plot_thresholds"]

# Limits for readable figures: classes if cells contain numbers, classes otherwise, panels, and letters of a name.
MOST_NUMBERS, MOST_CLASSES, MOST_PANELS, MOST_LETTERS = 20, 50, 12, 24


def plot_confusion(matrix: np.ndarray, names: Sequence[str], path: FigurePath) -> Path | list[Path]:
    """Draw a confusion matrix [C, C] of counts, with a row per true class; a cell is coloured by its share of the row.

    With more than 50 classes, only the 50 classes with the most errors are drawn.
    """
    errors = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
    shown = np.sort(np.argsort(-errors, kind="stable")[:MOST_CLASSES])
    shares = (matrix / np.maximum(matrix.sum(1, keepdims=True), 1))[np.ix_(shown, shown)]
    labels = [names[number][:MOST_LETTERS] for number in shown]
    has_numbers = len(shown) <= MOST_NUMBERS
    size = max(2.4, (0.5 if has_numbers else 0.22) * len(shown))
    margin = 0.07 * max(map(len, labels))
    figure = new_figure(size + 1.7 + margin, size + 0.8 + margin)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares) if has_numbers else ():
        style = dict(ha="center", va="center", fontsize=8, color="white" if share > 0.5 else "black")
        axes.text(column, row, f"{matrix[shown[row], shown[column]]:,}", **style)
    style = dict(fontsize=8, parse_math=False)
    axes.set_xticks(range(len(shown)), labels, rotation=90, **style)
    axes.set_yticks(range(len(shown)), labels, **style)
    axes.set(xlabel="predicted", ylabel="true")
    figure.colorbar(image, shrink=0.8, label="share of the true class")
    return save_figure(figure, path)


def plot_reliability(probabilities: np.ndarray, hits: np.ndarray, path: FigurePath) -> Path | list[Path]:
    """Draw the frequency of `hits` [N] (0 or 1) against their `probabilities` [N], and a histogram of the probabilities."""
    from sklearn.calibration import CalibrationDisplay

    figure = new_figure(4.6, 4.8)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    CalibrationDisplay.from_predictions(hits, probabilities, n_bins=10, ax=top, name="model", color=COLOURS[0])
    below.hist(probabilities, bins=10, range=(0, 1), color=COLOURS[0], edgecolor="white")
    top.set(xlabel="", ylabel="observed frequency")
    below.set(xlim=(0, 1), xlabel="predicted probability", ylabel="predictions")
    finish_axes(top)
    finish_axes(below)
    return save_figure(figure, path)


def plot_thresholds(
    curves: Mapping[str, Mapping[str, np.ndarray]], best: Mapping[str, float], path: FigurePath
) -> Path | list[Path]:
    """Draw precision, recall and F1 against the decision threshold: one panel for each of the first 12 labels.

    Args:
        curves: label -> {"threshold", "precision", "recall", "F1"}, arrays [K].
        best: label -> threshold that is marked with a dotted line.
    """
    curves = dict([*curves.items()][:MOST_PANELS])
    columns = min(len(curves), 4)
    rows = -(-len(curves) // columns)
    figure = new_figure(max(4.6, 2.6 * columns), max(3.6, 2.3 * rows + 0.6))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes, (label, curve) in zip(grid, curves.items(), strict=False):
        for colour, name in zip(COLOURS, ("precision", "recall", "F1"), strict=False):
            axes.plot(curve["threshold"], curve[name], color=colour, label=name)
        axes.axvline(best[label], color="0.35", linestyle=":")
        title = f"{label[:MOST_LETTERS]}: F1 {curve['F1'].max():.3f} at {best[label]:.2f}"
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), xticks=(0, 0.5, 1))
        finish_axes(axes)
    for axes in grid[len(curves) :]:
        axes.axis("off")
    figure.supxlabel("threshold of the label's probability", fontsize=10)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return save_figure(figure, path)


def plot_residuals(scores: np.ndarray, predicted: np.ndarray, path: FigurePath) -> Path | list[Path]:
    """Draw the residuals of a regression, `predicted` [N] minus `scores` [N], against the true `scores`."""
    figure = new_figure(5.4)
    axes = figure.subplots()
    axes.axhline(0, color="0.35", linestyle=":")
    axes.plot(scores, predicted - scores, "o", color=COLOURS[0], markersize=4, alpha=0.4, markeredgewidth=0)
    axes.set(xlabel="score", ylabel="prediction - score")
    finish_axes(axes)
    return save_figure(figure, path)

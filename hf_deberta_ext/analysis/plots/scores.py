# SPDX-License-Identifier: Apache-2.0
"""Figures that compare models: similarity of word embeddings, scores over seeds, and minimal pairs."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from .figure import COLOURS, FigurePath, finish_axes, new_figure, save_figure

__all__ = ["plot_comparison", "plot_embedding_similarity", "plot_minimal_pairs"]


def plot_embedding_similarity(similarities: Mapping[str, Mapping[str, float]], path: FigurePath) -> Path | list[Path]:
    """Draw the average cosine similarity of word embeddings for several sharing methods (DeBERTaV3, section 3).

    Each method is a group of bars, one for each embedding table. Each bar is labelled with its value.

    Args:
        similarities (`dict[str, dict[str, float]]`): maps the name of a run ("NES", "ES", "GDES", ...) to a
            dict with the `average_cosine_similarity` of "generator", "discriminator" or both.
    """
    figure = new_figure(max(4.6, 1.5 * len(similarities) + 1.6))
    axes = figure.subplots()
    # The generator comes first.
    keys = sorted(set().union(*similarities.values()), reverse=True)
    width = 0.38
    for number, key in enumerate(keys):
        heights = {group: values[key] for group, values in enumerate(similarities.values()) if key in values}
        places = [group + (number - (len(keys) - 1) / 2) * width for group in heights]
        colour = COLOURS[key == "discriminator"]
        drawn = axes.bar(places, heights.values(), width=0.94 * width, color=colour, label=key)
        axes.bar_label(drawn, fmt="{:.3f}", fontsize=9, padding=2)
    axes.set_xticks(range(len(similarities)), [*similarities], fontsize=11)
    axes.set_xlim(-0.6, len(similarities) - 0.4)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("average cosine similarity", fontsize=11)
    finish_axes(axes)
    # Leave space for the values at both ends.
    axes.margins(y=0.12)
    figure.legend(loc="outside upper center", ncols=len(keys), fontsize=10, frameon=False)
    return save_figure(figure, path)


def plot_comparison(
    scores: Mapping[str, Sequence[float]],
    path: FigurePath,
    *,
    label: str,
    baselines: Mapping[str, float] | None = None,
) -> Path | list[Path]:
    """Draw the scores of several models over seeds: a dot per seed, and the mean and standard deviation.

    Args:
        scores (`dict[str, list[float]]`): name of the model -> score of each seed.
        label (`str`): label of the score axis.
        baselines (`dict[str, float]`, *optional*): name -> score, drawn as horizontal lines.
    """
    figure = new_figure(max(4.6, 1.1 * len(scores) + 1.6))
    axes = figure.subplots()
    for index, values in enumerate(scores.values()):
        colour = COLOURS[index % len(COLOURS)]
        spread = None
        if len(values) > 1:
            spread = statistics.stdev(values)
        axes.plot([index - 0.12] * len(values), values, "o", color=colour, markersize=5, alpha=0.6, markeredgewidth=0)
        mean = statistics.mean(values)
        axes.errorbar([index + 0.08], [mean], yerr=spread, fmt="D", color=colour, markersize=6, capsize=5, linewidth=1.8)
        axes.annotate(f"{mean:.3g}", (index + 0.08, mean), (9, -3), textcoords="offset points", fontsize=9)
    for index, (name, value) in enumerate((baselines or {}).items()):
        style = ("--", ":", "-.")[index % 3]
        axes.axhline(value, color="0.35", linestyle=style, linewidth=1.2, label=f"{name} ({value:.3g})")
    axes.set_xticks(range(len(scores)), [*scores], fontsize=10)
    axes.set_xlim(-0.6, len(scores) - 0.3)
    axes.set_ylabel(label, fontsize=11)
    finish_axes(axes)
    if baselines:
        figure.legend(loc="outside upper center", ncols=len(baselines), fontsize=9, frameon=False)
    return save_figure(figure, path)


def plot_minimal_pairs(accuracies: Mapping[str, Mapping[str, float]], path: FigurePath) -> Path | list[Path]:
    """Draw the accuracy on minimal pairs: a row per phenomenon, a dot per scoring method, and a line at one half.

    Args:
        accuracies (`dict[str, dict[str, float]]`): scoring method ("pll", "word frequency") -> phenomenon -> accuracy in
            [0, 1].
    """
    first = next(iter(accuracies.values()))
    names = sorted(first, key=first.__getitem__)
    figure = new_figure(7, 0.32 * len(names) + 1.4)
    axes = figure.subplots()
    for index, (method, values) in enumerate(accuracies.items()):
        # The first method is on top, and the others are larger, so that equal values are visible.
        style = dict(marker=("o", "D", "s", "v")[index % 4], markersize=5 + 2 * index, zorder=9 - index, linestyle="none")
        percent = [100 * values[name] for name in names]
        axes.plot(percent, range(len(names)), color=COLOURS[index % len(COLOURS)], label=method, **style)
    axes.axvline(50, color="0.35", linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=9)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel("good sentence scored higher (%)", fontsize=11)
    finish_axes(axes)
    figure.legend(loc="outside upper center", ncols=len(accuracies), fontsize=9, frameon=False)
    return save_figure(figure, path)

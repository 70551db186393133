# SPDX-License-Identifier: Apache-2.0
"""The curves of Trainer runs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .figure import COLOURS, FigurePath, new_figure, save_figure

__all__ = ["metric_label", "plot_curves"]

TRAINING_LINES = ("-", ":", "-.")
HELD_OUT_MARKERS = ("o", "s", "^", "D")
# Objectives and models whose name a label leaves out.
PARTS = ("mlm", "nsp", "sop", "sbo", "generator", "discriminator")
# Parts of the names of metrics, in words.
WORDS = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson correlation", "spearmanr": "Spearman correlation"}


def metric_label(metric: str) -> str:
    """Write the name of a metric in words: "held-out macro F1" for eval_macro_f1."""
    name = metric.removeprefix("eval_")
    part, _, rest = name.partition("_")
    if part in ("generator", "discriminator") and rest == "similarity":
        return part
    if part in PARTS and rest in ("loss", "accuracy", "perplexity", "precision", "recall"):
        name = rest
    words = " ".join(WORDS.get(word, word) for word in name.split("_"))
    if metric.startswith("eval_"):
        return f"held-out {words}"
    if name == "loss":
        return "training loss"
    return words


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: FigurePath,
    *,
    panels: Sequence[tuple[str, Sequence[str], Sequence[str]]] | None = None,
    log_scale: Collection[str] = (),
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> Path | list[Path]:
    """Draw what Trainer logged against its steps, and save the figure.

    Training metrics are solid lines, metrics of an evaluation ("eval_...") are dashed with a dot each; a single evaluation
    is a dot with its value, or a line across if nothing else is a curve. A run has one colour; in a panel of one run each
    metric has one (the same for "eval_x" and "x"), in a panel of several the second metric has other dashes and dots.

    Args:
        histories (`dict[str, list[dict]]`): `trainer.state.log_history` of each run, by the run's name.
        panels (`list[tuple]`, *optional*): (title, names of runs, metrics) for each panel, side by side. None is one
            panel with all runs and the metrics "loss" and "eval_loss".
        log_scale (`Collection[str]`): metrics, such as perplexities, whose panels have a logarithmic axis.
        baselines (`dict[str, dict[str, float]]`, *optional*): for a metric, values by name to draw as lines across.
    Raises:
        ValueError: none of the runs of a panel logged any of its metrics.
    """
    if panels is None:
        panels = [("", list(histories), ("loss", "eval_loss"))]
    figure = new_figure(4.6 * len(panels) + 0.6)
    for axes, (title, names, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, _curves(histories, names, metrics), baselines or {})
        axes.set_title(title, fontsize=12)
        if {*metrics} & {*log_scale}:
            axes.set_yscale("log", subs=[1.5, 2, 3, 5, 7])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
    diverged = []
    for name, history in histories.items():
        step = next((entry["step"] for entry in history if "diverged" in entry), None)
        if step is not None:
            diverged.append(f"{name} diverged at step {step}")
    if diverged:
        figure.suptitle(", ".join(diverged), color="firebrick", fontsize=12)
    return save_figure(figure, path)


def without_restored(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Drop evaluations after the training of a model that was evaluated before.

    Evaluations of the best model, which --load_best_model_at_end restores, would be a jump at the last step.
    """
    kept: list[Mapping[str, Any]] = []
    ended = False
    for entry in history:
        ended = ended or "train_runtime" in entry
        metrics = {n: v for n, v in entry.items() if n.startswith("eval_") and not n.endswith(("_runtime", "_per_second"))}
        if not (ended and metrics and any(metrics.items() <= earlier.items() for earlier in kept)):
            kept.append(entry)
    return kept


def _draw_panel(axes, curves: list[tuple[str, list, dict[str, Any]]], baselines):
    """Draw the curves of one panel, its axis labels and its legend."""
    metrics = [metric for metric, _, _ in curves]
    has_lines = any(len(points) > 1 for _, points, _ in curves)
    for _, points, style in curves:
        step, value = points[-1]
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), linewidth=1.8, **style)
            continue
        style["label"] += f" ({value:.3g})"
        if has_lines:
            axes.plot([step], [value], **{"marker": "o"} | style | {"linestyle": "none"})
        else:
            axes.axhline(value, linewidth=1.8, color=style["color"], label=style["label"])
    for metric in dict.fromkeys(metrics):
        for index, (name, value) in enumerate(baselines.get(metric, {}).items()):
            style = (":", "-.")[index % 2]
            axes.axhline(value, color="0.35", linestyle=style, linewidth=1.2, label=f"{name} ({value:.3g})")
    axes.set_ylabel(_axis_label(metrics), fontsize=11)
    if has_lines:
        axes.set_xlabel("step", fontsize=11)
        axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        axes.set_xlabel(f"after {max(points[-1][0] for _, points, _ in curves)} steps", fontsize=11)
        axes.set_xticks([])
        # Lines across do not set the limits by themselves.
        axes.autoscale(axis="y")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)


def _curves(histories, names: Sequence[str], metrics: Sequence[str]) -> list[tuple[str, list, dict[str, Any]]]:
    """List (metric, [(step, value), ...], style) for every run and metric that was logged.

    Raises:
        ValueError: there is none.
    """
    labels = list(map(metric_label, metrics))
    kinds = list(dict.fromkeys(metric.removeprefix("eval_") for metric in metrics))
    curves = []
    for index, name in enumerate(names):
        history = without_restored(histories[name])
        for metric, label in zip(metrics, labels, strict=True):
            points = [(entry["step"], entry[metric]) for entry in history if metric in entry]
            if not points:
                continue
            if labels.count(label) > 1:
                # "training loss" of a generator and of a discriminator.
                label = metric.replace("eval_", "held-out ", 1).replace("_", " ")
            kind = kinds.index(metric.removeprefix("eval_"))
            if len(names) == 1:
                style = dict(label=label, color=COLOURS[kind % len(COLOURS)], linestyle="-")
            else:
                line = TRAINING_LINES[kind % len(TRAINING_LINES)]
                style = dict(label=f"{name}, {label}", color=COLOURS[index % len(COLOURS)], linestyle=line)
                if len(metrics) == 1:
                    style["label"] = name
            if metric.startswith("eval_"):
                style |= dict(linestyle="--", marker=HELD_OUT_MARKERS[kind % len(HELD_OUT_MARKERS)], markersize=4)
            curves.append((metric, points, style))
    if not curves:
        runs = ", ".join(map(repr, names))
        raise ValueError(f"none of {runs} logged any of {', '.join(metrics)}; check logging_steps")
    return curves


def _axis_label(metrics: Sequence[str]) -> str:
    """Name the quantities of a panel, each kind once."""
    kinds = {metric.rpartition("_")[2] for metric in metrics}
    if kinds == {"loss"}:
        return "loss"
    if kinds == {"similarity"}:
        return "average cosine similarity"
    labels = list(map(metric_label, metrics))
    if not all(metric.startswith("eval_") for metric in metrics):
        labels = [label.removeprefix("held-out ") for label in labels]
    return ", ".join(dict.fromkeys(labels))

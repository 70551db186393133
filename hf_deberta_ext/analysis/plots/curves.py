# SPDX-License-Identifier: Apache-2.0
"""Figures of logged losses and metrics of Trainer runs against steps."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .figure import COLOURS, FigurePath, new_figure, save_figure

__all__ = ["metric_label", "plot_curves"]

LINES = ("-", ":", "-.")
MARKERS = ("o", "s", "^", "D")
# Words in the names of metrics whose values are in [0, 1].
SHARES = {"accuracy", "f1", "precision", "recall", "share"}


def metric_label(metric: str) -> str:
    """Return a readable name for a metric: "held-out macro f1" for eval_macro_f1, "training loss" for loss."""
    words = metric.replace("_", " ")
    if words.startswith("eval "):
        return words.replace("eval", "held-out", 1)
    if words.endswith("loss"):
        return f"training {words}"
    return words


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: FigurePath,
    *,
    panels: Sequence[tuple[str, Sequence[str], Sequence[str]]] | None = None,
    log_scale: Collection[str] = (),
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> Path | list[Path]:
    """Draw logged metrics against steps, and save the figure.

    Training metrics are solid lines. Evaluation metrics ("eval_...") are dashed lines with a dot per evaluation; a single
    evaluation is a dot with its value. In a panel with several runs, colours distinguish runs, and dashes and dots
    distinguish metrics. In a panel with one run, colours distinguish metrics ("eval_x" has the colour of "x").

    The value axis of a panel goes from 0 to 1 if two conditions hold. First, all metrics of the panel are in [0, 1]
    (accuracy, F1, ...). Second, each curve has only one value, or all values in the panel are equal.

    Args:
        histories (`dict[str, list[dict]]`): `trainer.state.log_history` of each run, by the run's name.
        panels (`list[tuple]`, *optional*): (title, names of runs, metrics) for each panel, from left to right; default: one
            panel with all runs and the metrics "loss" and "eval_loss".
        log_scale (`Collection[str]`): metrics, such as perplexities, to draw on a logarithmic axis.
        baselines (`dict[str, dict[str, float]]`, *optional*): metric -> {name: value}, drawn as horizontal lines.
    Raises:
        ValueError: the runs of a panel logged none of the panel's metrics.
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
    """Remove evaluations after the end of training that repeat the result of an earlier evaluation.

    With --load_best_model_at_end, the restored model is evaluated again, which would be drawn as a jump at the last step."""
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
    metrics, all_points, styles = zip(*curves, strict=True)
    has_lines = max(map(len, all_points)) > 1
    for number, (points, style) in enumerate(zip(all_points, styles, strict=True)):
        steps, values = zip(*points, strict=True)
        if len(points) > 1:
            axes.plot(steps, values, linewidth=1.8, **style)
            continue
        label = f"{style['label']} ({values[0]:.3g})"
        # Place points next to each other if the axis does not show steps.
        places = steps if has_lines else [number]
        dot = dict(marker=style.get("marker", "o"), linestyle="none", clip_on=False)
        axes.plot(places, values, color=style["color"], label=label, **dot)
    for metric in dict.fromkeys(metrics):
        for index, (name, value) in enumerate(baselines.get(metric, {}).items()):
            axes.axhline(value, color="0.35", linestyle=LINES[1 + index % 2], linewidth=1.2, label=f"{name} ({value:.3g})")
    kinds = list(dict.fromkeys(metric.removeprefix("eval_").replace("_", " ") for metric in metrics))
    if all(kind.endswith("loss") for kind in kinds):
        kinds = ["loss"]
    axes.set_ylabel(", ".join(kinds), fontsize=11)
    axes.set_xlabel("step", fontsize=11)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if not has_lines:
        axes.set_xlabel(f"after {curves[0][1][-1][0]} steps", fontsize=11)
        axes.set_xticks([])
        axes.set_xlim(-1, len(all_points))
    values = {value for points in all_points for _, value in points}
    is_flat = not has_lines or len(values) == 1
    if is_flat and all(0 <= value <= 1 for value in values) and all(SHARES & {*kind.split()} for kind in kinds):
        axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)


def _curves(histories, names: Sequence[str], metrics: Sequence[str]) -> list[tuple[str, list, dict[str, Any]]]:
    """Return (metric, [(step, value), ...], style) of each curve in a panel: one for each run and metric that it logged.

    Raises:
        ValueError: no metric was logged.
    """
    kinds = list(dict.fromkeys(metric.removeprefix("eval_") for metric in metrics))
    curves = []
    for index, name in enumerate(names):
        history = without_restored(histories[name])
        for metric in metrics:
            points = [(entry["step"], entry[metric]) for entry in history if metric in entry]
            if not points:
                continue
            kind = kinds.index(metric.removeprefix("eval_"))
            style = dict(label=metric_label(metric), color=COLOURS[kind % len(COLOURS)], linestyle="-")
            if len(names) > 1:
                label = name
                if len(metrics) > 1:
                    label = f"{name}, {metric_label(metric)}"
                style = dict(label=label, color=COLOURS[index % len(COLOURS)], linestyle=LINES[kind % len(LINES)])
            if metric.startswith("eval_"):
                style |= dict(linestyle="--", marker=MARKERS[kind % len(MARKERS)], markersize=4)
            curves.append((metric, points, style))
    if not curves:
        raise ValueError(
            f"expected one of the metrics {', '.join(metrics)} in the logs of {', '.join(map(repr, names))}, got none; "
            "check that --logging_steps is at most the number of training steps"
        )
    return curves

# SPDX-License-Identifier: Apache-2.0
"""The curves of Trainer runs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .figure import COLOURS, new_figure, save_figure

__all__ = ["metric_label", "plot_curves"]

TRAINING_LINES, HELD_OUT_MARKERS = ("-", ":", "-."), ("o", "s", "^", "D")
LABELS = {"loss": "training loss", "eval_loss": "held-out loss", "eval_accuracy": "held-out accuracy"}
for _name in ("mlm", "nsp", "sop", "sbo"):
    LABELS |= {f"{_name}_loss": "training loss", f"eval_{_name}_loss": "held-out loss"}
    LABELS |= {f"eval_{_name}_accuracy": "held-out accuracy", f"eval_{_name}_perplexity": "held-out perplexity"}
for _name in ("generator", "discriminator"):
    LABELS |= {f"{_name}_loss": "training loss", f"eval_{_name}_loss": "held-out loss", f"eval_{_name}_similarity": _name}
for _name, _label in {
    "generator_accuracy": "accuracy",
    "discriminator_precision": "precision",
    "discriminator_recall": "recall",
    "replaced_share": "replaced share",
}.items():
    LABELS |= {_name: _label, f"eval_{_name}": f"held-out {_label}"}


# Parts of the names of metrics, in words.
WORDS = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson correlation", "spearmanr": "Spearman correlation"}


def metric_label(metric: str) -> str:
    """The name of a metric in words: "held-out macro F1" for eval_macro_f1."""
    return LABELS.get(metric) or " ".join(WORDS.get(word, word) for word in _plain_name(metric).split(" "))


def _plain_name(metric: str) -> str:
    return metric.replace("eval_", "held-out ", 1).replace("_", " ")


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | Path | Sequence[str | Path],
    *,
    panels: Sequence[tuple[str, Sequence[str], Sequence[str]]] | None = None,
    log_scale: Collection[str] = (),
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> Path | list[Path]:
    """Draws what Trainer logged against its steps, and saves the figure.

    Training metrics are solid lines, those of an evaluation ("eval_...") dashed with a dot each; of a single one the dot has
    its value, or is a line across where nothing else is a curve. A run has one colour; in a panel of one run each metric has
    one (the same for "eval_x" and "x"), in a panel of several the second metric has other dashes and dots.

    Args:
        histories (`dict[str, list[dict]]`): `trainer.state.log_history` of each run, by the run's name.
        path (`Path` or `list[Path]`): where to write; the ending decides the format (.png, .svg, .pdf).
        panels (`list[tuple]`, *optional*): (title, names of runs, metrics) for each panel, side by side. None is one
            panel with all runs and the metrics "loss" and "eval_loss".
        log_scale (`Collection[str]`): metrics, such as perplexities, whose panels have a logarithmic axis.
        baselines (`dict[str, dict[str, float]]`, *optional*): for a metric, values by name to draw as lines across.
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
        ValueError: none of the runs of a panel logged any of its metrics.
    """
    panels = [("", list(histories), ("loss", "eval_loss"))] if panels is None else panels
    histories = {name: without_restored(history) for name, history in histories.items()}
    figure = new_figure(4.6 * len(panels) + 0.6)
    for axes, (title, names, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, histories, names, metrics, baselines or {})
        axes.set_title(title, fontsize=12)
        if {*metrics} & {*log_scale}:
            _use_log_scale(axes)
    marked = {name: [entry["step"] for entry in history if "diverged" in entry] for name, history in histories.items()}
    if any(marked.values()):
        title = ", ".join(f"{name} diverged at step {steps[0]}" for name, steps in marked.items() if steps)
        figure.suptitle(title, color="firebrick", fontsize=12)
    return save_figure(figure, path)


def without_restored(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The log without evaluations behind the training of a model that it has evaluated before.

    Those of the best model, which --load_best_model_at_end restores, would be a jump at the last step.
    """
    kept, ended = [], False
    for entry in history:
        ended = ended or "train_runtime" in entry
        metrics = {n: v for n, v in entry.items() if n.startswith("eval_") and not n.endswith(("_runtime", "_per_second"))}
        if not (ended and metrics and any(metrics.items() <= earlier.items() for earlier in kept)):
            kept.append(entry)
    return kept


def _use_log_scale(axes):
    """Plain numbers on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_panel(axes, histories, names, metrics, baselines):
    """The curves of one panel, its axis labels and its legend."""
    labels = _curve_labels(metrics)
    kinds = list(dict.fromkeys(metric.removeprefix("eval_") for metric in metrics))
    drawn, single = [], []
    for index, name in enumerate(names):
        for metric in metrics:
            points = [(entry["step"], entry[metric]) for entry in histories[name] if metric in entry]
            if not points:
                continue
            if metric not in drawn:
                drawn.append(metric)
            kind = kinds.index(metric.removeprefix("eval_"))
            style = dict(linestyle=TRAINING_LINES[0 if len(names) == 1 else kind % len(TRAINING_LINES)])
            if metric.startswith("eval_"):
                style = dict(linestyle="--", marker=HELD_OUT_MARKERS[kind % len(HELD_OUT_MARKERS)], markersize=4)
            label_parts = [name] * (len(names) > 1) + [labels[metric]] * (len(names) == 1 or len(metrics) > 1)
            label = ", ".join(label_parts)
            colour = COLOURS[(kind if len(names) == 1 else index) % len(COLOURS)]
            if len(points) > 1:
                axes.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.8, **style)
            else:
                single.append((points[0], dict(label=f"{label} ({points[0][1]:.3g})", color=colour), style))
    has_curves = bool(axes.lines)
    for (step, value), look, style in single:
        if has_curves:
            axes.plot([step], [value], **look, **style | dict(linestyle="none", marker=style.get("marker", "o")))
        else:
            axes.axhline(value, linewidth=1.8, **look)
    if not drawn:
        runs = ", ".join(map(repr, names))
        raise ValueError(f"none of {runs} logged any of {', '.join(metrics)}; check logging_steps")
    across = [line for metric in metrics for line in baselines.get(metric, {}).items()]
    for index, (name, value) in enumerate(across):
        style = (":", "-.")[index % 2]
        axes.axhline(value, color="0.35", linestyle=style, linewidth=1.2, label=f"{name} ({value:.3g})")
    axes.set_ylabel(_axis_label(drawn), fontsize=11)
    if has_curves:
        axes.set_xlabel("step", fontsize=11)
        axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        axes.set_xlabel(f"after {max(step for (step, _), _, _ in single)} steps", fontsize=11)
        axes.set_xticks([])
        # Lines across alone do not set the limits.
        axes.autoscale(axis="y")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)


def _curve_labels(metrics: Sequence[str]) -> dict[str, str]:
    """Each metric's label; metrics that would share one ("training loss" of generator and discriminator) by their names."""
    labels = {metric: metric_label(metric) for metric in metrics}
    counts = Counter(labels.values())
    return {metric: label if counts[label] == 1 else _plain_name(metric) for metric, label in labels.items()}


def _axis_label(metrics: Sequence[str]) -> str:
    """Label of the y axis: the quantities of a panel, each kind once."""
    for kind, label in {"loss": "loss", "similarity": "average cosine similarity"}.items():
        if all(metric.endswith(kind) for metric in metrics):
            return label
    labels = dict.fromkeys(map(metric_label, metrics))
    if not all(metric.startswith("eval_") for metric in metrics):
        labels = dict.fromkeys(label.removeprefix("held-out ") for label in labels)
    return ", ".join(labels)

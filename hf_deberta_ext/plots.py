# SPDX-License-Identifier: Apache-2.0
"""Figures: the curves of Trainer runs, the similarity of word embeddings, and scores over seeds."""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot_comparison", "plot_curves", "plot_embedding_similarity"]

# Whose word embeddings `plot_embedding_similarity` compares.
TABLES = ("generator", "discriminator")
# Okabe and Ito's colours, which colour-blind readers can tell apart; the light yellow is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | Path,
    *,
    panels: Sequence[tuple[str, Sequence[str], Sequence[str]]] | None = None,
    log_scale: Collection[str] = (),
) -> Path:
    """Draws what Trainer logged against its steps, and saves the figure.

    Training metrics are solid lines, those of an evaluation ("eval_...") dashed with a dot each. A run has one colour; in a
    panel of one run each metric has one (the same for "eval_x" and "x"), in a panel of several the second metric has other
    dashes and dots.

    Args:
        histories (`dict[str, list[dict]]`): `trainer.state.log_history` of each run, by the run's name.
        path (`Path`): where to write; the ending decides the format (.png, .svg, .pdf). Its folder is made if need be.
        panels (`list[tuple]`, *optional*): (title, names of runs, metrics) for each panel, side by side. None is one
            panel with all runs and the metrics "loss" and "eval_loss".
        log_scale (`Collection[str]`): metrics, such as perplexities, whose panels have a logarithmic axis.
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a panel names a run that is not there, or none of its runs logged any of its metrics.
    """
    panels = [("", list(histories), ("loss", "eval_loss"))] if panels is None else panels
    figure = _new_figure(4.6 * len(panels) + 0.6)
    for axes, (title, names, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, histories, names, metrics)
        axes.set_title(title, fontsize=12)
        if {*metrics} & {*log_scale}:
            _use_log_scale(axes)
    return _save(figure, path)


def plot_embedding_similarity(similarities: Mapping[str, Mapping[str, float]], path: str | Path) -> Path:
    """Draws the average cosine similarity of word embeddings for several ways to share them (DeBERTaV3, section 3).

    A group of bars for each way, one bar for each table, its value above it (or below it, where negative).

    Args:
        similarities (`dict[str, dict[str, float]]`): by the name of a run ("NES", "ES", "GDES", ...): the values of
            `average_cosine_similarity` for "generator" and "discriminator", or for one of them alone.
        path (`Path`): where to write; the ending decides the format (.png, .svg, .pdf). Its folder is made if need be.
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is nothing to draw, an unknown key, or a value that is no similarity.
    """
    if not similarities:
        raise ValueError("there is nothing to draw: give similarities of at least one run")
    for name, values in similarities.items():
        unknown = [key for key in values if key not in TABLES]
        if unknown or not values:
            got = ", ".join(map(repr, unknown)) or "nothing"
            raise ValueError(f"{name!r} needs a value for {' or '.join(map(repr, TABLES))}, got {got}")
        for key, value in values.items():
            # The margin is for rounding. NaN is not between them.
            if not -1.0001 <= value <= 1.0001:
                raise ValueError(f"the {key}'s similarity of {name!r} must be in [-1, 1], got {value}")
    figure = _new_figure(max(4.6, 1.5 * len(similarities) + 1.6))
    axes = figure.subplots()
    keys = [key for key in TABLES if any(key in values for values in similarities.values())]
    width = 0.38
    for key in keys:
        bars = []
        for group, values in enumerate(similarities.values()):
            present = [each for each in TABLES if each in values]
            if key in present:
                bars.append((group + (present.index(key) - (len(present) - 1) / 2) * width, values[key]))
        colour = COLOURS[TABLES.index(key)]
        drawn = axes.bar(*zip(*bars, strict=True), width=0.94 * width, color=colour, label=key)
        axes.bar_label(drawn, fmt="{:.3f}", fontsize=9, padding=2)
    axes.set_xticks(range(len(similarities)), [*similarities], fontsize=11)
    axes.set_xlim(-0.6, len(similarities) - 0.4)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("average cosine similarity", fontsize=11)
    _finish(axes)
    # Room for the values at both ends.
    axes.margins(y=0.12)
    figure.legend(loc="outside upper center", ncols=len(keys), fontsize=10, frameon=False)
    return _save(figure, path)


def plot_comparison(
    scores: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    label: str,
    baselines: Mapping[str, float] | None = None,
) -> Path:
    """Draws the scores of several models over seeds: a dot each, and beside them mean and standard deviation.

    Args:
        scores (`dict[str, list[float]]`): the score of each seed, by the name of the model.
        path (`Path`): where to write; the ending decides the format (.png, .svg, .pdf). Its folder is made if need be.
        label (`str`): what the scores are: the label of their axis.
        baselines (`dict[str, float]`, *optional*): scores to draw as lines across, by name.
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no score to draw, or one is not finite.
    """
    if not scores:
        raise ValueError("there is nothing to draw: give the scores of at least one model")
    for name, values in {**scores, **{name: [value] for name, value in (baselines or {}).items()}}.items():
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"{name!r} needs finite scores, got {list(values)}")
    figure = _new_figure(max(4.6, 1.1 * len(scores) + 1.6))
    axes = figure.subplots()
    for index, values in enumerate(scores.values()):
        colour = COLOURS[index % len(COLOURS)]
        spread = statistics.stdev(values) if len(values) > 1 else None
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
    _finish(axes)
    if baselines:
        figure.legend(loc="outside upper center", ncols=len(baselines), fontsize=9, frameon=False)
    return _save(figure, path)


def _new_figure(width: float):
    """A figure without a window; pyplot's state and the settings are left alone."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'hf_deberta_ext[train]'") from error
    figure = Figure(figsize=(width, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _finish(axes):
    """Horizontal lines behind what is drawn, no frame above and to the right."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _use_log_scale(axes):
    """Plain numbers on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_panel(axes, histories, names, metrics):
    """The curves of one panel, its axis labels and its legend."""
    unknown = sorted(set(names) - set(histories))
    if unknown:
        known = ", ".join(map(repr, histories))
        raise ValueError(f"no history named {', '.join(map(repr, unknown))}; there are {known}")
    labels = _curve_labels(metrics)
    kinds = list(dict.fromkeys(metric.removeprefix("eval_") for metric in metrics))
    drawn = []
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
            parts = [name] * (len(names) > 1) + [labels[metric]] * (len(names) == 1 or len(metrics) > 1)
            label = ", ".join(parts)
            colour = COLOURS[(kind if len(names) == 1 else index) % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.8, **style)
    if not drawn:
        runs = ", ".join(map(repr, names))
        raise ValueError(f"none of {runs} logged any of {', '.join(metrics)}; check logging_steps")
    axes.set_xlabel("step", fontsize=11)
    axes.set_ylabel(_axis_label(drawn), fontsize=11)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)


def _curve_labels(metrics: Sequence[str]) -> dict[str, str]:
    """Each metric's label; metrics that would share one ("training loss" of generator and discriminator) by their names."""
    labels = {metric: LABELS.get(metric, metric) for metric in metrics}
    counts = Counter(labels.values())
    return {
        metric: label if counts[label] == 1 else metric.replace("eval_", "held-out ", 1).replace("_", " ")
        for metric, label in labels.items()
    }


def _axis_label(metrics: Sequence[str]) -> str:
    """What the metrics of one panel measure, each kind once."""
    for kind, label in {"loss": "loss", "similarity": "average cosine similarity"}.items():
        if all(metric.endswith(kind) for metric in metrics):
            return label
    labels = dict.fromkeys(LABELS.get(metric, metric) for metric in metrics)
    if not all(metric.startswith("eval_") for metric in metrics):
        labels = dict.fromkeys(label.removeprefix("held-out ") for label in labels)
    return ", ".join(labels)

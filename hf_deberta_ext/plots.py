# SPDX-License-Identifier: Apache-2.0
"""Figures: the curves of one or several Trainer runs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot_curves"]

# Okabe and Ito's colours, which colour-blind readers can tell apart; the light yellow is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LABELS = {"loss": "training loss", "eval_loss": "held-out loss", "eval_accuracy": "held-out accuracy"}
for _name in ("mlm", "nsp", "sop", "sbo"):
    LABELS |= {f"{_name}_loss": "training loss", f"eval_{_name}_loss": "held-out loss"}
    LABELS |= {f"eval_{_name}_accuracy": "held-out accuracy", f"eval_{_name}_perplexity": "held-out perplexity"}


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | Path,
    *,
    panels: Sequence[tuple[str, Sequence[str], Sequence[str]]] | None = None,
    log_scale: Collection[str] = (),
) -> Path:
    """Draws what Trainer logged against its steps, and saves the figure.

    Training metrics are solid lines, those of an evaluation ("eval_...") dashed with a dot each; a run has one colour.

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
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_curves needs matplotlib: pip install 'hf_deberta_ext[train]'") from error
    panels = [("", list(histories), ("loss", "eval_loss"))] if panels is None else panels
    figure = Figure(figsize=(4.6 * len(panels) + 0.6, 3.8), dpi=150, layout="constrained")
    # A canvas of its own: no window, and pyplot's state is left alone.
    FigureCanvasAgg(figure)
    for axes, (title, names, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, histories, names, metrics)
        axes.set_title(title, fontsize=12)
        if {*metrics} & {*log_scale}:
            _use_log_scale(axes)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


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
    drawn = []
    for index, name in enumerate(names):
        for metric in metrics:
            points = [(entry["step"], entry[metric]) for entry in histories[name] if metric in entry]
            if not points:
                continue
            if metric not in drawn:
                drawn.append(metric)
            style = dict(linestyle="--", marker="o", markersize=4) if metric.startswith("eval_") else {}
            parts = [name] * (len(names) > 1) + [LABELS.get(metric, metric)] * (len(names) == 1 or len(metrics) > 1)
            label = ", ".join(parts)
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.8, **style)
    if not drawn:
        runs = ", ".join(map(repr, names))
        raise ValueError(f"none of {runs} logged any of {', '.join(metrics)}; check logging_steps")
    axes.set_xlabel("step", fontsize=11)
    all_losses = all(metric.endswith("loss") for metric in drawn)
    kinds = dict.fromkeys(LABELS.get(metric, metric) for metric in drawn)
    axes.set_ylabel("loss" if all_losses else ", ".join(kinds), fontsize=11)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)

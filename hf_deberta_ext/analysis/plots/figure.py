# SPDX-License-Identifier: Apache-2.0
"""Colours, canvases and saving of all figures."""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["COLOURS", "FigurePath", "finish_axes", "new_figure", "save_figure"]

FigurePath = str | Path | Sequence[str | Path]
# Okabe and Ito's colours, which colour-blind readers can tell apart; the light yellow is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def new_figure(width: float, height: float = 3.8):
    """Make a figure of this size in inches, without a window; pyplot's state and the settings do not change.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'hf_deberta_ext[plots]'") from error
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure, path: FigurePath) -> Path | list[Path]:
    """Write the figure to one path or to several, whose folders are made if needed, and return them."""
    from matplotlib import rc_context

    if isinstance(path, (list, tuple)):
        return [save_figure(figure, file) for file in path]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # With the date and random ids the same SVG would be another file each time.
    metadata = {".svg": {"Date": None}}.get(path.suffix.lower())
    with rc_context({"svg.hashsalt": "hf_deberta_ext"}):
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
    return path


def finish_axes(axes):
    """Draw horizontal lines behind the data, and no frame above and to the right."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)

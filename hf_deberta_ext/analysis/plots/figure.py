# SPDX-License-Identifier: Apache-2.0
"""Colours, canvases, fonts and saving of all figures."""

import functools
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

__all__ = ["COLOURS", "FigurePath", "finish_axes", "fonts_for", "new_figure", "save_figure"]

FigurePath = str | Path | Sequence[str | Path]
# Okabe and Ito's colours, which are distinguishable for colour-blind readers, without the light yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def new_figure(width: float, height: float = 3.8):
    """Create a figure of the given size in inches. No window is opened, and pyplot's state and settings do not change.

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
    """Save a figure to one or several paths, with fonts for all characters in the figure. Create missing folders."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    if isinstance(path, (list, tuple)):
        return [save_figure(figure, file) for file in path]
    texts = figure.findobj(Text)
    letters = frozenset(filter(str.isprintable, "".join(text.get_text() for text in texts)))
    for text in texts:
        text.set_fontfamily([*text.get_fontfamily(), *fonts_for(letters)])
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Remove the date and random ids, so that the same figure gives the same SVG file.
    metadata = {".svg": {"Date": None}}.get(path.suffix.lower())
    with rc_context({"svg.hashsalt": "hf_deberta_ext"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
    return path


@functools.cache
def fonts_for(letters: frozenset[str]) -> list[str]:
    """Return installed fonts for characters that matplotlib's default font lacks; print a hint if no font has one."""
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    # Fonts of the same name: the regular one comes last and is used, because others may lack characters.
    by_style = sorted(fontManager.ttflist, key=lambda font: font.style == "normal" and font.weight == 400)
    # Matplotlib's font "Last Resort" is excluded: it has a box for every character.
    installed = {font.name: font.fname for font in by_style if not font.name.startswith("Last Resort")}
    names = sorted(installed, key=lambda name: (name != "DejaVu Sans", "CJK" not in name, "Sans" not in name, name))
    fonts, missing = [], {*letters}
    for name in names:
        if missing:
            font = FT2Font(installed[name])
            present = {letter for letter in missing if font.get_char_index(ord(letter))}
            missing -= present
            fonts += [name] * bool(present)
    if missing:
        _report_missing()
    return fonts


@functools.cache
def _report_missing():
    """Name the package that has the missing fonts, only once per process."""
    print("figures show boxes for letters that no installed font has; install fonts-noto-cjk", file=sys.stderr)


def finish_axes(axes):
    """Draw grid lines below the data, and hide the top and right spines."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)

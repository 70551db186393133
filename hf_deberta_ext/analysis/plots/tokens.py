# SPDX-License-Identifier: Apache-2.0
"""Tokens in figures: how they are spelt for readers, and a text coloured token by token."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers.decoders import ByteLevel

from .figure import FigurePath, new_figure, save_figure

__all__ = ["installed_fonts", "plot_replacement_probabilities", "readable_tokens"]

# How vocabularies spell the space before a word: SentencePiece, and byte-level BPE, whose first word has none.
SPACES = ("▁", "Ġ")
# Fonts for letters that matplotlib's own font lacks; those that are not installed are skipped.
FONTS = (
    "Noto Sans CJK SC,Noto Sans CJK JP,Noto Sans Devanagari,Noto Sans Thai,WenQuanYi Zen Hei,PingFang SC,Hiragino Sans,"
    "Apple SD Gothic Neo,Microsoft YaHei,Yu Gothic,Malgun Gothic,Arial Unicode MS,Nirmala UI,Leelawadee UI"
)
# A row of tokens wider than this, in letters, is broken.
ROW_WIDTH = 62
# Letters on the colour of a larger probability are white.
DARK = 0.6


def readable_tokens(tokens: Sequence[str]) -> list[str]:
    """Spell tokens for readers: without the mark of the space before a word, and bytes as the letters that they encode.

    "▁store" and "Ġstore" become "store"; "[CLS]" stays; a token that is only a space becomes "␣". Tokens are read as those
    of byte-level BPE if one of them has its mark "Ġ".
    """
    if "Ġ" in "".join(tokens):
        # A part of a letter's bytes is U+FFFD: a token of nothing else stays as it is.
        tokens = [ByteLevel().decode([token]).replace("\ufffd", "") or token for token in tokens]
    return [token.lstrip("▁").strip() or "␣" for token in tokens]


def installed_fonts() -> list[str]:
    """List matplotlib's own font, and the installed fonts of other scripts."""
    from matplotlib.font_manager import fontManager

    installed = fontManager.get_font_names()
    return ["DejaVu Sans", *(name for name in FONTS.split(",") if name in installed)]


def plot_replacement_probabilities(tokens: Sequence[Any], path: FigurePath) -> Path | list[Path]:
    """Draw a text whose tokens have the colour of the probability that they were replaced, with its value below.

    Args:
        tokens (`list[TokenScore]`): of one text, as returned by `token_replacement_probabilities`, or any objects with
            `token` and `probability`. A word's pieces are drawn without a gap between them.
    Raises:
        ValueError: there are no tokens.
    """
    if not tokens:
        raise ValueError("there is nothing to draw: the text has no tokens")
    spelt = [token.token for token in tokens]
    labels = readable_tokens(spelt)
    cells = _layout(spelt, labels)
    width = max(24, max(x + size for x, _, size in cells))
    rows = cells[-1][1] + 1
    figure = new_figure(0.125 * width + 0.5, 0.62 * rows + 1.3)

    import numpy as np
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    fonts = installed_fonts()
    # The half of a map with two ends: white, as a text is, where nothing looks replaced.
    colours = ScalarMappable(Normalize(0, 1), ListedColormap(colormaps["PuOr"](np.linspace(0.5, 1, 256))))
    for token, label, (x, row, size) in zip(tokens, labels, cells, strict=True):
        colour = colours.to_rgba(token.probability)
        axes.add_patch(Rectangle((x, row), size, 0.62, facecolor=colour, edgecolor="0.75", linewidth=0.8))
        style = dict(ha="center", va="center", parse_math=False)
        letters = "white" if token.probability > DARK else "black"
        axes.text(x + size / 2, row + 0.31, label, fontsize=10, color=letters, fontfamily=fonts, **style)
        axes.text(x + size / 2, row + 0.77, f"{token.probability:.2f}", fontsize=7, color="0.25", **style)
    axes.set_xlim(-0.2, width + 0.2)
    axes.set_ylim(rows, 0)
    axes.axis("off")
    bar = figure.colorbar(colours, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.03)
    bar.set_label("probability that the token was replaced", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return save_figure(figure, path)


def _layout(tokens: Sequence[str], labels: Sequence[str]) -> list[tuple[float, int, float]]:
    """Place every token's cell: (left, row, width), with letters of width 1."""
    cells = []
    x, row = 0.0, 0
    has_spaces = any(token.startswith(SPACES) for token in tokens)
    for token, label in zip(tokens, labels, strict=True):
        wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in label)
        size = max(len(label) + wide + 1.4, 4)
        if x and (token.startswith(SPACES) or not has_spaces):
            x += 0.7
        if x and x + size > ROW_WIDTH:
            x = 0.0
            row += 1
        cells.append((x, row, size))
        x += size
    return cells

# SPDX-License-Identifier: Apache-2.0
"""Tokens in figures: how they are spelt for readers, and a text coloured token by token."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers.decoders import ByteLevel

from .figure import new_figure, save_figure

__all__ = ["installed_fonts", "plot_replacement_probabilities", "readable_tokens"]

# How vocabularies spell the space before a word: SentencePiece, and byte-level BPE, whose first word has none.
SPACES = ("▁", "Ġ")
# Beside matplotlib's own font, which has no such letters; those that are not installed are passed over.
FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans Devanagari", "Noto Sans Thai",
    "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Arial Unicode MS", "Droid Sans Fallback", "Nirmala UI", "Leelawadee UI",
)  # fmt: skip
# Wider than this a row of tokens is broken.
ROW_WIDTH = 62


def readable_tokens(tokens: Sequence[str]) -> list[str]:
    """Tokens as readers know them: without the mark of the space before a word, and bytes as the letters that they are.

    "▁store" and "Ġstore" become "store"; "[CLS]" stays; a token that is nothing but a space becomes "␣". Tokens are taken
    for those of byte-level BPE where one of them has its mark "Ġ".
    """
    if any("Ġ" in token for token in tokens):
        # A part of a letter's bytes is no letter, U+FFFD: a token of nothing else stays as it is.
        tokens = [ByteLevel().decode([token]).replace("\ufffd", "") or token for token in tokens]
    return [token.lstrip("▁").strip() or "␣" for token in tokens]


def installed_fonts() -> list[str]:
    """matplotlib's own font, and those of other scripts that are on this machine."""
    from matplotlib.font_manager import fontManager

    names = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FONTS if name in names)]


def plot_replacement_probabilities(
    tokens: Sequence[Any],
    path: str | Path | Sequence[str | Path],
) -> Path | list[Path]:
    """Draws a text whose tokens have the colour of the probability that they were replaced, with its value beneath.

    Args:
        tokens (`list[TokenScore]`): of one text, as `token_replacement_probabilities` returns them, or any objects with
            `token` and `probability`. A word's pieces stand without a gap between them.
        path (`Path` or `list[Path]`): where to write; the ending decides the format (.png, .svg, .pdf).
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no tokens, or a probability is none.
    """
    if not tokens:
        raise ValueError("there is nothing to draw: the text has no tokens")
    for number, token in enumerate(tokens):
        # NaN is not between them.
        if not 0 <= token.probability <= 1:
            name = f"token {number}, {token.token!r}"
            raise ValueError(f"the probability of {name}, must be in [0, 1], got {token.probability}")
    labels = readable_tokens([token.token for token in tokens])
    cells, width, rows = _layout([token.token for token in tokens], labels)
    figure = new_figure(0.125 * width + 0.5, 0.62 * rows + 1.3)

    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    fonts = installed_fonts()
    # The half of a map with two ends: white, as a text is, where nothing looks replaced.
    colours = ScalarMappable(Normalize(0, 1), ListedColormap([colormaps["PuOr"](0.5 + i / 510) for i in range(256)]))
    for token, label, (x, row, size) in zip(tokens, labels, cells, strict=True):
        colour = colours.to_rgba(token.probability)
        axes.add_patch(Rectangle((x, row), size, 0.62, facecolor=colour, edgecolor="0.75", linewidth=0.8))
        middle, style = x + size / 2, dict(ha="center", va="center", parse_math=False)
        axes.text(middle, row + 0.31, label, fontsize=10, color=_contrast(colour), fontfamily=fonts, **style)
        axes.text(middle, row + 0.77, f"{token.probability:.2f}", fontsize=7, color="0.25", **style)
    axes.set_xlim(-0.2, width + 0.2)
    axes.set_ylim(rows, 0)
    axes.axis("off")
    bar = figure.colorbar(colours, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.03)
    bar.set_label("probability that the token was replaced", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return save_figure(figure, path)


def _layout(tokens: Sequence[str], labels: Sequence[str]) -> tuple[list[tuple[float, int, float]], float, int]:
    """(left, row, width) of every token's cell, the width of the widest row, and the number of rows; a letter is 1 wide."""
    cells, x, row, widest = [], 0.0, 0, 0.0
    starts = any(token.startswith(SPACES) for token in tokens)
    for number, (token, label) in enumerate(zip(tokens, labels, strict=True)):
        size = max(sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in label) + 1.4, 4)
        begins = token.startswith(SPACES) or not starts
        gap = 0.7 if number and begins else 0.0
        if x and x + gap + size > ROW_WIDTH:
            x, row, gap = 0.0, row + 1, 0.0
        cells.append((x + gap, row, size))
        x += gap + size
        widest = max(widest, x)
    return cells, max(widest, 24), row + 1


def _contrast(colour: tuple[float, ...]) -> str:
    """Black or white, whichever stands out more: the contrast ratio of the Web Content Accessibility Guidelines."""
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"

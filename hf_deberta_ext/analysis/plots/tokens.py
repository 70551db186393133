# SPDX-License-Identifier: Apache-2.0
"""Tokens in figures: readable spelling, and texts with coloured tokens."""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers.decoders import ByteLevel

from .figure import FigurePath, new_figure, save_figure

__all__ = ["plot_influence", "plot_replacement_probabilities", "readable_tokens"]

# Marks of the space before a word, in SentencePiece and in byte-level BPE (not before the first word).
SPACES = ("▁", "Ġ")
# Maximum width of a row of tokens, in letters.
ROW_WIDTH = 62
# Letters are white on the colours of values above this share of the largest value.
DARK = 0.6


def readable_tokens(tokens: Sequence[str]) -> list[str]:
    """Return readable tokens: remove "▁" and "Ġ", which stand for the space before a word, and decode byte-level BPE.

    "▁store" and "Ġstore" become "store"; "[CLS]" is unchanged; a token that is only a space becomes "␣". All tokens are
    decoded as byte-level BPE if any token contains "Ġ".
    """
    if "Ġ" in "".join(tokens):
        # Incomplete letters are decoded as U+FFFD: keep tokens that only contain these.
        tokens = [ByteLevel().decode([token]).replace("\ufffd", "") or token for token in tokens]
    return [token.lstrip("▁").strip() or "␣" for token in tokens]


def plot_replacement_probabilities(tokens: Sequence[Any], path: FigurePath) -> Path | list[Path]:
    """Draw a text with tokens coloured by the probability that they were replaced; print the value below each token.

    Args:
        tokens (`list[TokenScore]`): tokens of one text from `token_replacement_probabilities`, or any objects with `token`
            and `probability`. Pieces of a word are drawn without a gap.
    Raises:
        ValueError: there are no tokens.
    """
    if not tokens:
        raise ValueError("tokens must not be empty; the text has no tokens to draw")
    texts = {"": [token.probability for token in tokens]}
    figure, colours = _draw_texts(texts, [token.token for token in tokens], form=".2f", limit=1)
    bar = figure.colorbar(colours, ax=figure.axes, location="bottom", shrink=0.6, aspect=40, pad=0.03)
    bar.set_label("probability that the token was replaced", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return save_figure(figure, path)


def plot_influence(prediction: Any, path: FigurePath) -> Path | list[Path]:
    """Draw the influence of each token on the prediction for a text or a pair, by integrated gradients and by occlusion.

    Tokens that support the predicted label are purple; tokens that oppose this label are orange. The token with the largest
    influence has the darkest colour.

    Args:
        prediction (`Prediction`): result of `explain_prediction`, with integrated gradients.
    """
    tokens = prediction.tokens
    texts = {"integrated gradients": [token.gradients for token in tokens]}
    texts["occlusion"] = [token.occlusion for token in tokens]
    # The second text of a pair starts on a new row.
    begins = sum(token.number == 0 for token in tokens)
    figure, _ = _draw_texts(texts, [token.token for token in tokens], form="+.2f", begins=begins)
    score = dict(prediction.scores)[prediction.label]
    title = f"{prediction.label}: probability {score:.3f}, and influence on its log-odds"
    if prediction.is_regression:
        title = f"score {score:.3f}, and influence on it"
    figure.suptitle(title, fontsize=11, parse_math=False)
    return save_figure(figure, path)


def _draw_texts(
    texts: Mapping[str, Sequence[float]], spelt: Sequence[str], *, form: str, limit: float | None = None, begins: int = 0
) -> tuple[Any, Any]:
    """Draw the tokens `spelt` once for each title in `texts`, coloured by the values for this title (one value per token).

    Values are in [0, limit]; if `limit` is None, they have any sign. The token at index `begins` starts a new row.
    """
    labels = readable_tokens(spelt)
    cells = _layout(spelt, labels, begins)
    width = max(24, max(x + size for x, _, size in cells))
    rows = cells[-1][1] + 1
    figure = new_figure(0.125 * width + 0.5, (0.62 * rows + 0.3) * len(texts) + 1)

    import numpy as np
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Rectangle

    style = dict(ha="center", va="center", parse_math=False)
    panels = figure.subplots(len(texts), squeeze=False)[:, 0]
    for axes, (title, values) in zip(panels, texts.items(), strict=True):
        largest = limit or max(map(abs, values)) or 1
        colours = ScalarMappable(Normalize(-largest, largest), "PuOr")
        if limit:
            # Half of a diverging map: white, like plain text, for tokens that do not look replaced.
            colours = ScalarMappable(Normalize(0, limit), ListedColormap(colormaps["PuOr"](np.linspace(0.5, 1, 256))))
        for label, value, (x, row, size) in zip(labels, values, cells, strict=True):
            colour = colours.to_rgba(value)
            axes.add_patch(Rectangle((x, row), size, 0.62, facecolor=colour, edgecolor="0.75", linewidth=0.8))
            letters = "white" if abs(value) > DARK * largest else "black"
            axes.text(x + size / 2, row + 0.31, label, fontsize=10, color=letters, **style)
            axes.text(x + size / 2, row + 0.77, f"{value:{form}}", fontsize=7, color="0.25", **style)
        axes.set_xlim(-0.2, width + 0.2)
        axes.set_ylim(rows, 0)
        axes.set_title(title, fontsize=10, loc="left")
        axes.axis("off")
    return figure, colours


def _layout(tokens: Sequence[str], labels: Sequence[str], begins: int) -> list[tuple[float, int, float]]:
    """Return the cell of each token as (left edge, row, width). Edge and width are measured in letters.

    The token at index `begins` starts a new row."""
    cells = []
    x, row = 0.0, 0
    has_spaces = any(token.startswith(SPACES) for token in tokens)
    for number, (token, label) in enumerate(zip(tokens, labels, strict=True)):
        wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in label)
        size = max(len(label) + wide + 1.4, 4)
        if x and (token.startswith(SPACES) or not has_spaces):
            x += 0.7
        if x and (x + size > ROW_WIDTH or number == begins):
            x = 0.0
            row += 1
        cells.append((x, row, size))
        x += size
    return cells

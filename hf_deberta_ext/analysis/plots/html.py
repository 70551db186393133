# SPDX-License-Identifier: Apache-2.0
"""Coloured texts and bars as HTML without scripts or external resources."""

from collections.abc import Iterable
from html import escape
from typing import Any

__all__ = ["STYLE", "answer_html", "bars_html", "colour_of", "influence_html", "influence_page", "marked_text_html"]

# Field of `TokenInfluence` -> readable name.
METHODS = {"gradients": "integrated gradients", "occlusion": "occlusion"}
STYLE = """
.dx { font-size: 1rem; line-height: 1.5; overflow-wrap: anywhere; }
.dx-columns { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.dx h4 { margin: .75rem 0 .25rem; font-size: 1rem; }
.dx-bars { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr 3.5rem; gap: .25rem .75rem; }
.dx-bars i { align-self: center; height: .9rem; border-radius: 2px; background: rgba(0,114,178,.7); }
.dx-bars span:nth-child(3n) { text-align: right; font-variant-numeric: tabular-nums; }
.dx-text { position: relative; padding-bottom: 2rem; font-size: 1.15rem; line-height: 1.9; white-space: pre-wrap; }
.dx-text mark { color: inherit; padding: .1rem 0; border-radius: 2px; }
.dx-grid i:hover, .dx-text mark:hover { outline: 2px solid currentColor; }
.dx [data-tip]:hover::after { content: attr(data-tip); position: absolute; left: 0; bottom: 0;
  font: .95rem/1.5 system-ui, sans-serif; white-space: nowrap; }
"""


def colour_of(value: float) -> str:
    """Return the CSS background for a value in [-1, 1]: blue for values above 0, else vermilion.

    Values near 0 are nearly transparent. These colours, by Okabe and Ito, suit light and dark pages.
    """
    base = "0,114,178" if value > 0 else "213,94,0"
    return f"background:rgba({base},{abs(value):.3f})"


def bars_html(rows: Iterable[tuple[str, float]], form: str = ".1%") -> str:
    """Return HTML with a bar for each row (name, value in [0, 1]); `form` is the format of the printed values."""
    cells = []
    for name, value in rows:
        width = 100 * min(max(value, 0), 1)
        cells.append(f'<span>{escape(name)}</span><i style="width:{width:.1f}%"></i><span>{value:{form}}</span>')
    return f'<div class="dx-bars">{"".join(cells)}</div>'


def marked_text_html(text: str, marks: Iterable[tuple[int, int, float, str]]) -> str:
    """Return HTML of a text with coloured tokens. A mark is (start, end, value in [-1, 1], text shown on hover)."""
    pieces, last = [], 0
    for start, end, value, tip in marks:
        # Exclude the space that belongs to the token.
        start = end - len(text[start:end].lstrip())
        pieces.append(escape(text[last:start]))
        tip = escape(tip)
        pieces.append(f'<mark style="{colour_of(0.65 * value)}" data-tip="{tip}">{escape(text[start:end])}</mark>')
        last = end
    return f'<div class="dx-text">{"".join(pieces)}{escape(text[last:])}</div>'


def answer_html(prediction: Any) -> str:
    """Return HTML with a bar for the probability of each label of a `Prediction`, or with the scores of a regression."""
    form = ".3f" if prediction.is_regression else ".1%"
    return f"<h4>Answer</h4>{bars_html(sorted(prediction.scores, key=lambda score: -score[1]), form)}"


def influence_html(prediction: Any, method: str) -> str:
    """Return HTML of the texts of a `Prediction`; `method` is the field of `TokenInfluence` by which tokens are coloured."""
    largest = max((abs(getattr(token, method)) for token in prediction.tokens), default=0) or 1
    marks: list[list] = [[] for _ in prediction.texts]
    for token in prediction.tokens:
        value = getattr(token, method)
        word = prediction.texts[token.number][token.start : token.end].strip()
        marks[token.number].append((token.start, token.end, value / largest, f"{word}: {value:+.3f}"))
    title = f"Tokens for (blue) and against (orange) “{escape(prediction.label)}”"
    if prediction.is_regression:
        title = "Tokens that raise (blue) and lower (orange) the score"
    return "".join((f"<h4>{title}: {METHODS[method]}</h4>", *map(marked_text_html, prediction.texts, marks)))


def influence_page(prediction: Any) -> str:
    """Return an HTML page for a `Prediction` with integrated gradients."""
    parts = "".join((answer_html(prediction), *(influence_html(prediction, method) for method in METHODS)))
    style = f"body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font-family: system-ui, sans-serif; }}{STYLE}"
    head = f'<!DOCTYPE html><meta charset="utf-8"><title>{escape(prediction.label)}</title><style>{style}</style>'
    return f'{head}<body class="dx">{parts}</body>\n'

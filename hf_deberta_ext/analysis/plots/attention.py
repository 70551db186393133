# SPDX-License-Identifier: Apache-2.0
"""Figures of attention maps and their terms, and of the contribution of position to the logits of each head."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figure import COLOURS, FigurePath, new_figure, save_figure
from .tokens import readable_tokens

__all__ = ["plot_attention", "plot_position_profile"]

TITLES = {
    "probabilities": "attention",
    "c2c": "content to content, c2c",
    "c2p": "content to position, c2p",
    "p2c": "position to content, p2c",
    "p2p": "position to position, p2p",
}
LINE_COLOURS = {"c2p": COLOURS[0], "p2c": COLOURS[1], "p2p": COLOURS[2], "total": "black"}
# Maximum number of readable labels along an axis; with more tokens, only every second or third has a label.
MAX_LABELS = 96


def plot_attention(
    decomposition: Any, tokens: Sequence[str], path: FigurePath, *, head: int | None = None
) -> Path | list[Path]:
    """Draw the attention map of a text, and the terms of its logits: c2c, and the position terms that the model has.

    Queries are rows, keys are columns. All terms share a colour scale, centered at zero.

    Args:
        decomposition (`AttentionParts`): result of `attention_parts`.
        tokens (`list[str]`): the N tokens, as spelled in the vocabulary.
        head (`int`, *optional*): head to draw; default: the mean over all heads.
    Raises:
        ValueError: the head does not exist.
    """
    maps = decomposition.of_head(head)
    N, columns = len(tokens), len(maps)
    if columns > 3:
        columns = math.ceil(columns / 2)
    rows = math.ceil(len(maps) / columns)
    size = min(max(0.27 * N, 2.6), 8.0)
    figure = new_figure((size + 0.3) * columns + 2.9, (size + 0.35) * rows + 1.5)
    # The maps are square: put the remaining space around them, not between them.
    figure.set_layout_engine("compressed")
    panels = _panels(figure, len(maps), columns)
    limit = max(float(abs(values).max()) for name, values in maps.items() if name != "probabilities")
    images = {}
    for index, (name, values) in enumerate(maps.items()):
        scale = dict(cmap="PuOr_r", vmin=-limit, vmax=limit)
        if name == "probabilities":
            scale = dict(cmap="viridis", vmin=0, vmax=float(values.max()))
        images[name] = panels[index].imshow(values.numpy(), interpolation="nearest", **scale)
        panels[index].set_title(TITLES[name], fontsize=10)
        _label_tokens(panels[index], tokens, size, across=index + columns >= len(maps), down=index % columns == 0)
    attention_bar = figure.colorbar(images["probabilities"], ax=panels[0], location="left", shrink=0.8)
    attention_bar.set_label("attention probability", fontsize=9)
    parts_bar = figure.colorbar(images["c2c"], ax=panels[1:], location="right", shrink=0.8)
    parts_bar.set_label("part of the logit", fontsize=9)
    for bar in (attention_bar, parts_bar):
        bar.ax.tick_params(labelsize=8)
    heads = f"mean of {len(decomposition.c2c)} heads" if head is None else f"head {head}"
    figure.suptitle(f"layer {decomposition.layer}, {heads}", fontsize=11)
    return save_figure(figure, path)


def plot_position_profile(profile: Any, path: FigurePath, *, heads: Sequence[int] | None = None) -> Path | list[Path]:
    """Draw the position terms of the logits against the distance of query and key: a panel per head, all on one scale.

    Args:
        profile (`PositionProfile`): result of `position_profile`.
        heads (`list[int]`, *optional*): heads to draw; default: all heads.
    """
    if heads is None:
        heads = range(len(profile.total))
    lines = {name: getattr(profile, name) for name in LINE_COLOURS if getattr(profile, name) is not None}
    if len(lines) == 2:
        # With one term, the total equals the term.
        del lines["total"]
    columns = min(4, len(heads))
    figure = new_figure(max(2.6 * columns + 0.8, 4.6), 1.9 * math.ceil(len(heads) / columns) + 1.2)
    panels = _panels(figure, len(heads), columns, sharex=True, sharey=True)
    for index, (axes, head) in enumerate(zip(panels, heads, strict=True)):
        axes.axhline(0, color="0.6", linewidth=0.6)
        axes.axvline(0, color="0.6", linewidth=0.6)
        for name, values in lines.items():
            axes.plot(profile.distances.numpy(), values[head].numpy(), color=LINE_COLOURS[name], label=name, linewidth=1.2)
        axes.set_title(f"head {head}", fontsize=9, pad=3)
        axes.spines[["top", "right"]].set_visible(False)
        # The lowest panel of each column shows tick labels, also if it is in the row before the last.
        axes.tick_params(labelsize=8, labelbottom=index + columns >= len(heads))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=9, frameon=False)
    figure.supylabel("mean logit", fontsize=10)
    figure.supxlabel("distance i − j, query − key (> 0: the key comes first)", fontsize=10)
    figure.suptitle(f"layer {profile.layer}: what position adds to the logits", fontsize=11)
    return save_figure(figure, path)


def _panels(figure, count: int, columns: int, **options) -> list:
    """Create `count` axes in a grid with `columns` columns."""
    panels = list(figure.subplots(math.ceil(count / columns), columns, squeeze=False, **options).flat)
    for axes in panels[count:]:
        axes.remove()
    return panels[:count]


def _label_tokens(axes, tokens: Sequence[str], size: float, *, across: bool, down: bool):
    """Label the axes of a map of `size` inches with the tokens: the x axis if `across`, the y axis if `down`."""
    N = len(tokens)
    every = math.ceil(N / MAX_LABELS)
    labels = readable_tokens(tokens)[::every]
    style = dict(fontsize=min(max(size / N * every * 72 * 0.72, 4.5), 9), parse_math=False)
    empty = [""] * len(labels)
    axes.set_xticks(range(0, N, every), empty)
    axes.set_yticks(range(0, N, every), empty)
    axes.tick_params(length=2)
    if across:
        axes.set_xticklabels(labels, rotation=90, **style)
        axes.set_xlabel("key", fontsize=9)
    if down:
        axes.set_yticklabels(labels, **style)
        axes.set_ylabel("query", fontsize=9)

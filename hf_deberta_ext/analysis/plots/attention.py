# SPDX-License-Identifier: Apache-2.0
"""Attention maps and their parts, and what position adds to the logits of each head."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figure import COLOURS, new_figure, save_figure
from .tokens import installed_fonts, readable_tokens

__all__ = ["plot_attention", "plot_position_profile"]

TITLES = {
    "probabilities": "attention",
    "c2c": "content to content, c2c",
    "c2p": "content to position, c2p",
    "p2c": "position to content, p2c",
    "p2p": "position to position, p2p",
}
# As many heads as panels of lines are readable.
MAX_PANELS = 16
# As many tokens as labels along an axis are readable; of more, every second or third has one.
MAX_LABELS = 96


def plot_attention(
    decomposition: Any, tokens: Sequence[str], path: str | Path | Sequence[str | Path], *, head: int | None = None
) -> Path | list[Path]:
    """Draws the attention map of a text, and the parts of its logits: c2c and what the model has of c2p, p2c, p2p.

    Queries are rows, keys are columns. The parts have one scale, zero in the middle.

    Args:
        parts (`AttentionParts`): what `attention_parts` returns.
        tokens (`list[str]`): the N tokens, as the vocabulary spells them.
        path (`Path` or `list[Path]`): where to write; the ending decides the format (.png, .svg, .pdf).
        head (`int`, *optional*): None is the mean over all heads.
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no such head, or not one token for each position.
    """
    maps = {name: values.numpy() for name, values in decomposition.of_head(head).items()}
    N = len(maps["c2c"])
    columns = len(maps) if len(maps) < 4 else math.ceil(len(maps) / 2)
    rows = math.ceil(len(maps) / columns)
    size = min(max(0.27 * N, 2.6), 8.0)
    figure = new_figure((size + 0.3) * columns + 2.9, (size + 0.35) * rows + 1.5)
    # The maps are square: what is left of the figure goes around them, not between them.
    figure.set_layout_engine("compressed")
    panels = figure.subplots(rows, columns, squeeze=False)
    limit = max(float(abs(values).max()) for name, values in maps.items() if name != "probabilities")
    images = {}
    for index, (axes, (name, values)) in enumerate(zip(panels.flat, maps.items(), strict=False)):
        scale = dict(cmap="PuOr_r", vmin=-limit, vmax=limit)
        if name == "probabilities":
            scale = dict(cmap="viridis", vmin=0, vmax=float(values.max()))
        images[name] = axes.imshow(values, interpolation="nearest", **scale)
        axes.set_title(TITLES[name], fontsize=10)
        _label_tokens(axes, tokens, size, across=index + columns >= len(maps), down=index % columns == 0)
    for axes in panels.flat[len(maps) :]:
        axes.set_visible(False)
    first, *term_panels = panels.flat[: len(maps)]
    bars = {
        "attention probability": figure.colorbar(images["probabilities"], ax=first, location="left", shrink=0.8),
        "part of the logit": figure.colorbar(images["c2c"], ax=term_panels, location="right", shrink=0.8),
    }
    for label, bar in bars.items():
        bar.set_label(label, fontsize=9)
        bar.ax.tick_params(labelsize=8)
    heads = f"mean of {len(decomposition.c2c)} heads" if head is None else f"head {head}"
    figure.suptitle(f"layer {decomposition.layer}, {heads}", fontsize=11)
    return save_figure(figure, path)


def plot_position_profile(
    profile: Any, path: str | Path | Sequence[str | Path], *, heads: Sequence[int] | None = None
) -> Path | list[Path]:
    """Draws what position adds to the logits by the distance of query and key: a panel for each head, all on one scale.

    More than 16 heads are a map with a row for each instead.

    Args:
        profile (`PositionProfile`): what `position_profile` returns.
        path (`Path` or `list[Path]`): where to write; the ending decides the format (.png, .svg, .pdf).
        heads (`list[int]`, *optional*): which heads to draw; None is all of them.
    Returns:
        `path`.
    Raises:
        ImportError: matplotlib is not installed.
    """
    heads = list(range(len(profile.total))) if heads is None else list(heads)
    lines = {name: getattr(profile, name) for name in ("c2p", "p2c", "p2p")}
    lines = {name: values for name, values in lines.items() if values is not None}
    if len(lines) > 1:
        lines["total"] = profile.total
    lines = {name: values[heads].numpy() for name, values in lines.items()}
    distances = profile.distances.numpy()
    draw = _draw_profile_lines if len(heads) <= MAX_PANELS else _draw_profile_maps
    figure = draw(lines, distances, heads)
    figure.supxlabel("distance i − j, query − key (> 0: the key comes first)", fontsize=10)
    figure.suptitle(f"layer {profile.layer}: what position adds to the logits", fontsize=11)
    return save_figure(figure, path)


def _label_tokens(axes, tokens: Sequence[str], size: float, *, across: bool, down: bool):
    """The tokens along both axes of a map `size` inches wide; where they stand in another panel, the marks alone."""
    N = len(tokens)
    every = math.ceil(N / MAX_LABELS)
    places, labels = list(range(0, N, every)), readable_tokens(tokens)[::every]
    style = dict(fontsize=min(max(size / N * every * 72 * 0.72, 4.5), 9), parse_math=False, fontfamily=installed_fonts())
    axes.set_xticks(places, labels if across else [""] * len(places), rotation=90, **style)
    axes.set_yticks(places, labels if down else [""] * len(places), **style)
    axes.tick_params(length=2)
    if across:
        axes.set_xlabel("key", fontsize=9)
    if down:
        axes.set_ylabel("query", fontsize=9)


def _draw_profile_lines(lines: dict, distances, heads: Sequence[int]):
    """A panel for each head, with a line for each term and for their sum."""
    columns = min(4, len(heads))
    rows = math.ceil(len(heads) / columns)
    figure = new_figure(max(2.6 * columns + 0.8, 4.6), 1.9 * rows + 1.2)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colours = dict(zip(("c2p", "p2c", "p2p", "total"), (*COLOURS[:3], "black"), strict=True))
    for index, axes in enumerate(panels.flat):
        if index >= len(heads):
            axes.set_visible(False)
            continue
        axes.axhline(0, color="0.6", linewidth=0.6)
        axes.axvline(0, color="0.6", linewidth=0.6)
        for name, values in lines.items():
            style = dict(linewidth=1.0, alpha=0.9) if name == "total" else dict(linewidth=1.3)
            axes.plot(distances, values[index], color=colours[name], label=name, **style)
        axes.set_title(f"head {heads[index]}", fontsize=9, pad=3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        # A panel with none beneath it has the numbers, also in the row before the last.
        axes.tick_params(labelbottom=index + columns >= len(heads))
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=9, frameon=False)
    figure.supylabel("mean logit", fontsize=10)
    return figure


def _draw_profile_maps(lines: dict, distances, heads: Sequence[int]):
    """A map for each term and for their sum, with a row for each head."""
    size = min(max(0.13 * len(heads), 1.6), 4.0)
    figure = new_figure(8.4, (size + 0.35) * len(lines) + 1.0)
    panels = figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0]
    limit = max(float(abs(values).max()) for values in lines.values())
    edges = (distances[0] - 0.5, distances[-1] + 0.5, len(heads) - 0.5, -0.5)
    step = math.ceil(len(heads) / (size / 0.16))
    for axes, (name, values) in zip(panels, lines.items(), strict=True):
        image = axes.imshow(
            values, cmap="PuOr_r", vmin=-limit, vmax=limit, extent=edges, aspect="auto", interpolation="nearest"
        )
        axes.set_title(name, fontsize=9, pad=3)
        axes.set_yticks(range(0, len(heads), step), heads[::step])
        axes.tick_params(labelsize=8)
    figure.supylabel("head", fontsize=10)
    figure.colorbar(image, ax=list(panels), shrink=0.8).set_label("mean logit", fontsize=9)
    return figure

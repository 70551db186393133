# SPDX-License-Identifier: Apache-2.0
"""Show the results of pre-training: a table of the objectives, and curves as PNG."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.plots import plot_curves
from ..analysis.results import objectives_table
from .objectives import OBJECTIVES

__all__ = ["CURVES_FILE", "evaluation_table", "plot_objectives", "plot_replaced_tokens"]

CURVES_FILE = "curves.png"


def evaluation_table(metrics: Mapping[str, float], objectives: Sequence[str]) -> str:
    """Format the result of `PretrainingTrainer.evaluate` as a Markdown table with a row for each objective."""
    return objectives_table(metrics, {name: OBJECTIVES[name].title for name in objectives})


def plot_objectives(history: Sequence[Mapping[str, Any]], path: str | os.PathLike, objectives: Sequence[str]) -> Path:
    """Plot the training and held-out loss, with one panel for each objective."""
    panels = [(OBJECTIVES[name].title, ["run"], [f"{name}_loss", f"eval_{name}_loss"]) for name in objectives]
    return plot_curves({"run": history}, Path(path), panels=panels)


def plot_replaced_tokens(history: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> Path:
    """Plot the losses of generator and discriminator, and the discriminator's precision and recall."""
    panels = [(half, ["run"], [f"{half}_loss", f"eval_{half}_loss"]) for half in ("generator", "discriminator")]
    names = [f"{prefix}discriminator_{name}" for name in ("precision", "recall") for prefix in ("", "eval_")]
    panels.append(("replaced tokens found", ["run"], names))
    guesses = [entry["eval_discriminator_guess_loss"] for entry in history if "eval_discriminator_guess_loss" in entry]
    lines = {"eval_discriminator_loss": {"constant guess": guesses[-1]}} if guesses else None
    return plot_curves({"run": history}, Path(path), panels=panels, baselines=lines)

# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext explain`: figures of what a model makes of a text, and the numbers behind them."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.explanation import FIGURES, PREPARE, FigureUnavailableError, load_model, tokenize_text
from ..analysis.plots.figure import new_figure
from ..model.checkpoint_files import read_json

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "Draw figures that explain a model: attention and its parts, positions, replaced tokens, embeddings, curves."
EXAMPLE = """\
deberta-ext explain --model my_model --text "a new store opened beside the new mall" --output_dir figures
deberta-ext explain --model my_model --attention --layer 1 --head 3 --formats png svg
deberta-ext explain --curves runs/first runs/second"""

# The sentence of the paper's figures.
TEXT = "a new store opened beside the new mall"
NUMBERS_FILE = "explain.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or repository: official or of this package, with any head")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--tokenizer", help="folder or repository of the tokenizer, if it is not in the model's")
    parser.add_argument("--text", default=TEXT, help="the text to explain; default: %(default)r")
    parser.add_argument("--output_dir", type=Path, default=Path("figures"), help="folder to write to; default: figures")
    figures = parser.add_argument_group("figures; with none of these flags, every one that the model can give")
    for name, text in FIGURES.items():
        if name == "curves":
            figures.add_argument("--curves", nargs="*", metavar="RUN_FOLDER", help=text)
        else:
            figures.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--layer", type=int, default=-1, help="counted from 0, or from the end; default: -1, the last")
    parser.add_argument("--head", type=int, help="counted from 0; default: the mean of all, and the profile of each")
    parser.add_argument("--reach", type=int, help="largest distance of the profile; default: the tokenizer's longest input")
    parser.add_argument("--formats", nargs="+", choices=("png", "svg", "pdf"), default=["png", "svg"], help="default: both")
    parser.add_argument("--overwrite", action="store_true", help="replace existing figures")


def run(arguments: argparse.Namespace) -> int | None:
    """Compute everything, then write the figures and explain.json, and print their paths.

    Raises:
        ValueError, OSError: figures exist already, the model cannot provide a figure that was requested by name, or the
            input cannot be read or does not fit the model.
        ImportError: matplotlib is not installed.
    """
    requested = [name for name in FIGURES if getattr(arguments, name) not in (None, False)]
    names = requested or list(FIGURES)
    paths: dict[str, list[Path]] = {}
    for name in names:
        paths[name] = [arguments.output_dir / f"{name}.{ending}" for ending in arguments.formats]
        for path in paths[name]:
            if path.exists() and not arguments.overwrite:
                raise ValueError(f"{path} would be overwritten: give --overwrite, or another --output_dir")
    # Reports at once that matplotlib is missing, not after the model is loaded.
    new_figure(1)
    if arguments.model is None and (names != ["curves"] or not arguments.curves):
        raise ValueError("--model is missing: a folder or repository; only --curves RUN_FOLDER does without")
    subject, model, inputs = {}, None, None
    if names != ["curves"]:
        subject = {"model": arguments.model, "text": arguments.text}
    numbers = subject | earlier_numbers(arguments, subject, names)
    if subject:
        model = load_model(arguments.model, arguments.revision)
        inputs = tokenize_text(model, arguments)
    draw = {}
    for name in names:
        try:
            numbers[name], draw[name] = PREPARE[name](model, inputs, arguments)
        except FigureUnavailableError as error:
            if requested:
                raise
            print(f"no {name}: {error}", file=sys.stderr)
    for name in draw:
        draw[name](paths[name])
        print(*paths[name], sep="\n")
    print(write_numbers(arguments.output_dir / NUMBERS_FILE, numbers))
    return None


def earlier_numbers(arguments: argparse.Namespace, subject: dict, names: Sequence[str]) -> dict:
    """Read the numbers of other figures of the same model and text from explain.json, which are kept.

    Raises:
        ValueError: it has numbers that would be lost.
    """
    file = arguments.output_dir / NUMBERS_FILE
    saved = read_json(file)
    if {name: saved.get(name) for name in subject} != subject:
        kept = {}
    else:
        kept = {name: values for name, values in saved.items() if name not in names}
    if len(kept) < len(saved) and not arguments.overwrite:
        raise ValueError(f"numbers in {file} would be overwritten: give --overwrite, or another --output_dir")
    return kept


def write_numbers(path: Path, numbers: dict) -> Path:
    """Write a line for each figure, with six digits of each number."""
    lines = [f"{json.dumps(name)}: {json.dumps(rounded(value), ensure_ascii=False)}" for name, value in numbers.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


def rounded(value: Any) -> Any:
    """Round the numbers inside lists and dictionaries to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value

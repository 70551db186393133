# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext explain`: figures of what a model makes of a text, and the numbers behind them."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..analysis.explanation import FIGURES, PREPARE, FigureUnavailableError, load_model, tokenize_text
from ..analysis.plots.figure import new_figure

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "Draws figures that explain a model: attention and its parts, positions, replaced tokens, embeddings, curves."
EXAMPLE = """\
deberta-ext explain --model my_model --text "a new store opened beside the new mall" --output_dir figures
deberta-ext explain --model my_model --attention --layer 1 --head 3 --formats png svg
deberta-ext explain --curves runs/first runs/second"""

# The sentence of the paper's figures.
TEXT = "a new store opened beside the new mall"
NUMBERS_FILE = "explain.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or repository: an official checkpoint or one of ours, with any head")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--tokenizer", help="folder or repository of the tokenizer, where it is not the model's")
    parser.add_argument("--text", default=TEXT, help="the text that is looked at; default: %(default)r")
    parser.add_argument("--output_dir", type=Path, default=Path("figures"), help="folder to write to; default: figures")
    figures = parser.add_argument_group("figures; with none of these flags, every one that the model can give")
    for name, text in FIGURES.items():
        options = dict(nargs="*", metavar="RUN_FOLDER") if name == "curves" else dict(action="store_true")
        figures.add_argument(f"--{name}", help=text, **options)
    parser.add_argument("--layer", type=int, default=-1, help="counted from 0, or from the end; default: -1, the last")
    parser.add_argument("--head", type=int, help="counted from 0; default: the mean of all, and the profile of each")
    parser.add_argument(
        "--reach", type=int, help="largest distance of the profile; default: that of the longest input, by the tokenizer"
    )
    parser.add_argument(
        "--formats", nargs="+", choices=("png", "svg", "pdf"), default=["png", "svg"], help="default: png svg"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace figures that are there already")


def run(arguments: argparse.Namespace) -> int | None:
    """Computes everything, then writes the figures and explain.json, and prints their paths.

    Raises:
        ValueError, OSError: figures are there already, the model cannot give one that was asked for by name, or what
            was given cannot be read or does not fit it.
        ImportError: matplotlib is not installed.
    """
    requested = [name for name in FIGURES if getattr(arguments, name) not in (None, False)]
    names = requested or list(FIGURES)
    formats = list(dict.fromkeys(arguments.formats))
    files = [arguments.output_dir / f"{name}.{ending}" for name in names for ending in formats]
    existing = [str(file) for file in files if file.exists()]
    if existing and not arguments.overwrite:
        raise ValueError(f"{', '.join(existing)} would be overwritten: give --overwrite, or another --output_dir")
    if arguments.model is None and (names != ["curves"] or not arguments.curves):
        raise ValueError("--model is missing: a folder or repository; only --curves RUN_FOLDER does without")
    subject = {} if names == ["curves"] else {"model": arguments.model, "text": arguments.text}
    earlier = earlier_numbers(arguments, subject, names)
    # Reports at once that matplotlib is missing, not after the model is loaded.
    new_figure(1)
    model = inputs = None
    if names != ["curves"]:
        model = load_model(arguments.model, arguments.revision)
        inputs = tokenize_text(model, arguments)
    numbers, figures = {}, {}
    for name in names:
        try:
            numbers[name], figures[name] = PREPARE[name](model, inputs, arguments)
        except FigureUnavailableError as error:
            if requested:
                raise
            print(f"no {name}: {error}", file=sys.stderr)
    for name, draw in figures.items():
        paths = [arguments.output_dir / f"{name}.{ending}" for ending in formats]
        draw(paths)
        print(*paths, sep="\n")
    print(write_numbers(arguments.output_dir / NUMBERS_FILE, subject | earlier | numbers))
    return None


def earlier_numbers(arguments: argparse.Namespace, subject: dict, names: Sequence[str]) -> dict:
    """Read the numbers of other figures of the same model and text from explain.json, which are kept.

    Raises:
        ValueError: it has numbers that would be lost.
    """
    file = arguments.output_dir / NUMBERS_FILE
    if not file.exists():
        return {}
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        is_of_this = all(saved.get(name, value) == value for name, value in subject.items())
    except (ValueError, AttributeError):
        saved, is_of_this = {}, False
    if not arguments.overwrite and (not is_of_this or {*names} & {*saved}):
        raise ValueError(f"numbers in {file} would be overwritten: give --overwrite, or another --output_dir")
    return {name: value for name, value in saved.items() if name not in names} if is_of_this else {}


def write_numbers(path: Path, numbers: dict) -> Path:
    """A line for each figure, and numbers as far as they mean something."""

    def short(value):
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        return [short(item) for item in value] if isinstance(value, (list, tuple)) else value

    lines = [f"{json.dumps(name)}: {json.dumps(short(value), ensure_ascii=False)}" for name, value in numbers.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path

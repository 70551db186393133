# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext explain`: figures of what a model makes of a text, and the numbers behind them."""

import argparse
import itertools
import json
import sys
from pathlib import Path

from ..analysis.explanation import EXAMPLE_TEXT, FIGURES, PREPARE, FigureUnavailableError, load_model, tokenize_text
from ..analysis.plots.figure import new_figure
from ..checkpoints.files import read_json

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "draw figures that explain a model: attention, positions, embeddings, curves"
EXAMPLE = """\
deberta-ext explain --model my_model --text "a new store opened beside the new mall" --output_dir figures
deberta-ext explain --model my_model --attention --layer 1 --head 3 --formats png svg
deberta-ext explain --curves runs/first runs/second"""

NUMBERS_FILE = "explain.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(usage_error=parser.error)
    parser.add_argument("--model", help="folder or repository: official or of this package, with any head")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--tokenizer", help="folder or repository of the tokenizer, if it is not in the model's")
    parser.add_argument("--text", default=EXAMPLE_TEXT, help="the text to explain; default: %(default)r")
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
    formats = ("png", "svg", "pdf")
    parser.add_argument("--formats", nargs="+", choices=formats, default=["png", "svg"], help="default: png svg")
    parser.add_argument("--overwrite", action="store_true", help="replace existing figures")


def run(arguments: argparse.Namespace) -> None:
    """Compute everything, then write the figures and explain.json, and print their paths."""
    requested = [name for name in FIGURES if getattr(arguments, name) not in (None, False)]
    names = requested or list(FIGURES)
    folder, numbers_file = arguments.output_dir, arguments.output_dir / NUMBERS_FILE
    paths: dict[str, list[Path]] = {name: [] for name in names}
    for name, ending in itertools.product(names, dict.fromkeys(arguments.formats)):
        paths[name].append(folder / f"{name}.{ending}")
    subject = {}
    if names != ["curves"]:
        subject = {"model": arguments.model, "text": arguments.text}
    # Numbers of other figures of the same model and text are kept.
    saved = read_json(numbers_file)
    is_same = all(saved.get(name, value) == value for name, value in subject.items())
    if not arguments.overwrite:
        lost = [file for file in itertools.chain(*paths.values()) if file.exists()]
        if not is_same or not saved.keys().isdisjoint(names):
            lost.append(numbers_file)
        if lost:
            raise ValueError(f"{lost[0]} would be overwritten: give --overwrite, or another --output_dir")
    if arguments.model is None and (subject or not arguments.curves):
        arguments.usage_error("--model is missing: a folder or repository; only --curves RUN_FOLDER does without")
    numbers = dict(subject)
    if is_same:
        numbers |= {name: value for name, value in saved.items() if name not in names}
    # Reports at once that matplotlib is missing, not after the model is loaded.
    new_figure(1)
    model = inputs = None
    if subject:
        model = load_model(arguments.model, arguments.revision)
        inputs = tokenize_text(model, arguments)
    figures = {}
    for name in names:
        try:
            numbers[name], figures[name] = PREPARE[name](model, inputs, arguments)
        except FigureUnavailableError as error:
            if requested:
                raise
            print(f"no {name}: {error}", file=sys.stderr)
    for name, draw in figures.items():
        draw(paths[name])
        print(*paths[name], sep="\n")
    folder.mkdir(parents=True, exist_ok=True)
    # A line for each figure, and six digits of each number.
    text = json.dumps(numbers, ensure_ascii=False)
    rounded = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in rounded.items()]
    numbers_file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(numbers_file)

# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext explain`: show how each token influences a prediction; draw figures of a model, and save their numbers."""

import argparse
import itertools
import json
import sys
from pathlib import Path

from ..analysis.explanation import EXAMPLE_TEXT, FIGURES, PREPARE, FigureUnavailableError, load_model, tokenize_texts
from ..analysis.plots.figure import new_figure
from ..checkpoints.files import check_source, read_json
from ..data.columns import TEXT_COLUMNS
from ..data.files import read_rows
from ..training.user_errors import needs_extra

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "explain a prediction by its tokens, and draw attention, positions, embeddings, curves"
EXAMPLE = """\
deberta-ext explain my_classifier "The courier left the parcel at the wrong address."
deberta-ext explain my_classifier --file messages.csv --row 12 --influence
deberta-ext explain --model my_model --text "a new store opened beside the new mall" --output_dir figures
deberta-ext explain --model my_model --attention --layer 1 --head 3 --formats png svg
deberta-ext explain --curves runs/first runs/second"""

NUMBERS_FILE = "explain.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(usage_error=parser.error)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT", help="the model, and a text or the two texts of a pair")
    parser.add_argument("--model", help="folder or Hub id of a DeBERTa model with any head, official or of this package")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--tokenizer", help="folder or Hub id of the tokenizer; default: the model's tokenizer")
    parser.add_argument("--text", help=f"the text to explain; default: {EXAMPLE_TEXT!r}")
    parser.add_argument("--file", help="file with the text: .csv, .tsv, .json, .jsonl, .parquet")
    parser.add_argument("--row", type=int, help="number of the row of --file, counted from 1 without the header")
    columns_help = "one or two text columns of --file; default: columns with usual names, such as sentence or text"
    parser.add_argument("--text_columns", nargs="+", help=columns_help)
    parser.add_argument("--output_dir", type=Path, default=Path("figures"), help="folder to write to; default: figures")
    figures = parser.add_argument_group("figures (default: all figures that the model supports)")
    for name, text in FIGURES.items():
        if name == "curves":
            figures.add_argument("--curves", nargs="*", metavar="RUN_FOLDER", help=text)
        else:
            figures.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--layer", type=int, default=-1, help="index of the layer, from 0; default: -1, the last layer")
    head_help = "index of the head, from 0; default: the mean of all heads in --attention, all heads in --position_profile"
    parser.add_argument("--head", type=int, help=head_help)
    distance_help = "largest distance in --position_profile; default: the largest in an input of maximum length"
    parser.add_argument("--max_distance", type=int, help=distance_help)
    parser.add_argument("--n_steps", type=int, default=50, help="steps of integrated gradients; default: %(default)s")
    formats = ("png", "svg", "pdf")
    parser.add_argument("--formats", nargs="+", choices=formats, default=["png", "svg"], help="formats; default: png svg")
    parser.add_argument("--overwrite", action="store_true", help="replace existing figures")


def run(arguments: argparse.Namespace) -> None:
    """Compute the numbers of all figures, then write the figures and explain.json, and print their paths."""
    requested = [name for name in FIGURES if getattr(arguments, name) not in (None, False)]
    names = requested or list(FIGURES)
    folder, numbers_file = arguments.output_dir, arguments.output_dir / NUMBERS_FILE
    paths: dict[str, list[Path]] = {name: [] for name in names}
    for name, ending in itertools.product(names, dict.fromkeys(arguments.formats)):
        paths[name].append(folder / f"{name}.{ending}")
    if "influence" in names:
        paths["influence"].append(folder / "influence.html")
    subject = {}
    arguments.texts = _texts(arguments)
    if names != ["curves"]:
        subject = {"model": arguments.model} | dict(zip(("text", "text_pair"), arguments.texts, strict=False))
    # Keep the numbers of other figures of the same model and text.
    saved = read_json(numbers_file)
    is_same = all(saved.get(name, value) == value for name, value in subject.items())
    if not arguments.overwrite:
        lost = [file for file in itertools.chain(*paths.values()) if file.exists()]
        if not is_same or not saved.keys().isdisjoint(names):
            lost.append(numbers_file)
        if lost:
            raise ValueError(f"{lost[0]} already exists; pass --overwrite, or another --output_dir")
    if arguments.model is None and (subject or not arguments.curves):
        arguments.usage_error("--model is missing; pass a folder or repository (only --curves RUN_FOLDER works without one)")
    numbers = dict(subject)
    if is_same:
        numbers |= {name: value for name, value in saved.items() if name not in names}
    # If matplotlib is missing, raise the error now, not after the model is loaded.
    new_figure(1)
    if "influence" in names:
        with needs_extra("plots"):
            import captum  # noqa: F401
    model = inputs = None
    if subject:
        model = load_model(arguments.model, arguments.revision)
        inputs = tokenize_texts(model, arguments)
    figures = {}
    for name in names:
        try:
            numbers[name], figures[name] = PREPARE[name](model, inputs, arguments)
        except FigureUnavailableError as error:
            if requested:
                raise
            print(f"skipping {name}: {error}", file=sys.stderr)
    for name, draw in figures.items():
        draw(paths[name])
        print(*paths[name], sep="\n")
    folder.mkdir(parents=True, exist_ok=True)
    # Write one line per figure, and six digits per number.
    text = json.dumps(numbers, ensure_ascii=False)
    rounded = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in rounded.items()]
    numbers_file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(numbers_file)


def _texts(arguments: argparse.Namespace) -> list[str]:
    """Return the text or pair to explain: from the command line, from a row of --file, or else `EXAMPLE_TEXT`.

    If --model is missing, the first positional argument is the model: it is moved to `arguments.model`."""
    words, file = [*arguments.words], arguments.file
    if arguments.model is None and words:
        arguments.model = words.pop(0)
        check_source(arguments.model, "MODEL: ")
    if len(words) > 2 or sum(map(bool, (words, arguments.text, file))) > 1 or (file is None) != (arguments.row is None):
        arguments.usage_error("expected one text or two texts, or --text TEXT, or both --file FILE and --row NUMBER")
    if file is None:
        return words or [EXAMPLE_TEXT if arguments.text is None else arguments.text]
    row = next((row for number, (_, row) in enumerate(read_rows(file), start=1) if number == arguments.row), None)
    if row is None:
        raise ValueError(f"--row must be the number of a row in {file}, counted from 1, got {arguments.row}")
    columns = arguments.text_columns or next((names for names in TEXT_COLUMNS if {*names} <= row.keys()), ())
    if not 1 <= len(columns) <= 2 or not {*columns} <= row.keys():
        raise ValueError(f"--text_columns must be one or two columns of {file}, which has {[*row]}")
    return [str(row[column]) for column in columns]

# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext card`: writes, completes or checks the model card of a folder."""

import argparse
from pathlib import Path

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "write README.md, the model card, into a model's folder, complete the one that is there, or check it"
EXAMPLE = """deberta-ext card sst2 --language en --license mit --base_model microsoft/deberta-v3-base
deberta-ext card --check sst2
deberta-ext card --presets model_cards"""
OVERWRITE = "mend it, or build the card anew: deberta-ext card {} --overwrite"
METADATA = ("language", "license", "base_model", "datasets", "tags")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="of a model; with --presets that of the cards")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing: say what is wrong with the card")
    what.add_argument("--presets", action="store_true", help="write the cards of the official checkpoints")
    what.add_argument("--overwrite", action="store_true", help="build the card anew though there is one")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="ISO 639 codes: en de, or multilingual")
    parser.add_argument("--license", help="as the Hub calls it: apache-2.0, mit, cc-by-4.0, other, ...")
    parser.add_argument("--base_model", metavar="ID", help="Hub id of the model that this one began as")
    parser.add_argument("--datasets", nargs="+", metavar="ID", help="Hub ids of the data that it was trained on")
    parser.add_argument("--tags", nargs="+", default=[], help="more tags")
    parser.add_argument("--print", action="store_true", help="print the card, too")


def run(arguments: argparse.Namespace) -> int | None:
    """
    Raises:
        ValueError: what `write_model_card` finds wrong; metadata where nothing is written; --check without a card.
    """
    given = [f"--{name}" for name in METADATA if getattr(arguments, name)]
    if given and (arguments.check or arguments.presets):
        mode = "--check" if arguments.check else "--presets"
        raise ValueError(f"{mode} sets no metadata: leave {' and '.join(given)} out")
    if arguments.presets:
        from ..hub.preset_cards import write_preset_cards

        for file in write_preset_cards(arguments.folder):
            print(file)
        return 0
    file = arguments.folder / "README.md"
    if not arguments.check:
        from ..hub.model_card import write_model_card

        there = file.is_file()
        given = {name: getattr(arguments, name) for name in METADATA}
        write_model_card(arguments.folder, overwrite=arguments.overwrite, **given)
        done = "built" if arguments.overwrite or not there else "completed" if any(given.values()) else "kept as it was"
        print(f"{file} is {done}")
        return _judge(file, show=arguments.print, way_out="" if done == "built" else OVERWRITE.format(arguments.folder))
    if not file.is_file():
        raise ValueError(f"{arguments.folder} has no README.md: deberta-ext card {arguments.folder} writes it")
    return _judge(file, show=arguments.print, way_out=OVERWRITE.format(arguments.folder))


def _judge(file: Path, *, show: bool, way_out: str) -> int:
    """Prints what is wrong, with `way_out` behind it, and what is missing; 1 where something is wrong."""
    from ..hub.model_card import card_problems, missing_metadata

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}") from error
    if show:
        print(f"\n{text}")
    problems = card_problems(text, file.parent)
    for problem in problems:
        print(f"problem: {problem}")
    if missing := missing_metadata(text):
        print(f"not in the metadata: {', '.join(missing)}")
    if not problems:
        print("no problems")
    elif way_out:
        print(way_out)
    return 1 if problems else 0

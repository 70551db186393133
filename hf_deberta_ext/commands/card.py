# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext card`: write, complete or check the model card of a folder."""

import argparse
from pathlib import Path

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "write, complete or check README.md, the model card of a folder"
EXAMPLE = """deberta-ext card sst2 --language en --license mit --base_model microsoft/deberta-v3-base
deberta-ext card --check sst2"""


def add_arguments(parser: argparse.ArgumentParser):
    add = parser.add_argument
    add("folder", type=Path, help="folder of a model")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only let the Hub validate the card; nothing is written")
    mode.add_argument("--overwrite", action="store_true", help="write a new card; the old one is kept as README.md.old-1")
    add("--language", nargs="+", default=[], metavar="CODE", help="one or more ISO 639 codes (en, pt-BR), or multilingual")
    add("--license", help="licence, by its identifier on the Hub: apache-2.0, mit, cc-by-4.0, other, ...")
    add("--base_model", metavar="ID", help="Hub id of the model that was fine-tuned")
    add("--datasets", nargs="+", default=[], metavar="ID", help="Hub ids of the training data sets")
    add("--tags", nargs="+", default=[], help="additional tags of the card")
    add("--print", action="store_true", help="also print the card")


def run(arguments: argparse.Namespace) -> None:
    """Write the card; or, with --check, only validate the existing card, and raise the Hub's error if it is invalid."""
    from huggingface_hub import ModelCard

    from ..publishing import write_model_card

    metadata = {name: getattr(arguments, name) for name in ("language", "license", "base_model", "datasets", "tags")}
    if arguments.check and any(metadata.values()):
        raise ValueError(
            f"--check cannot be combined with flags that change the card: remove --check or --{', --'.join(metadata)}"
        )
    card = arguments.folder / "README.md"
    if not arguments.check:
        write_model_card(arguments.folder, overwrite=arguments.overwrite, **metadata)
        print(f"wrote {card}")
    text = card.read_text(encoding="utf-8")
    if arguments.print:
        print(text)
    if arguments.check:
        ModelCard(text).validate()
        print("the Hub accepts the card")

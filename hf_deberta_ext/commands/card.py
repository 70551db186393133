# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext card`: writes, completes or checks the model card of a folder."""

import argparse
from pathlib import Path

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "write README.md, the model card, into a model's folder, complete the one that is there, or check it"
EXAMPLE = """deberta-ext card sst2 --language en --license mit --base_model microsoft/deberta-v3-base
deberta-ext card --check sst2"""
UNREADABLE = (
    "correct its metadata, or build the card anew: deberta-ext card {} --overwrite keeps this one as README.md.old-1"
)
# Of the metadata, what a flag sets in a card that is there, and an example.
FLAGS = {"license": "apache-2.0", "language": "en", "base_model": "OWNER/NAME", "datasets": "OWNER/NAME"}
METADATA = ("language", "license", "base_model", "datasets", "tags")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="of a model")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write nothing: list the problems of the card")
    mode.add_argument("--overwrite", action="store_true", help="build the card anew, and move one that is there aside")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="ISO 639 codes: en de, pt pt-BR, or multilingual")
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
    metadata = {name: getattr(arguments, name) for name in METADATA}
    flags = [f"--{name}" for name, value in metadata.items() if value]
    if flags and arguments.check:
        raise ValueError(f"--check sets no metadata: leave {' and '.join(flags)} out")
    file = arguments.folder / "README.md"
    if arguments.check and not file.is_file():
        raise ValueError(f"{arguments.folder} has no README.md: deberta-ext card {arguments.folder} writes it")
    if not arguments.check:
        from ..publishing.card import write_model_card

        existed, before = file.is_file(), moved_cards(arguments.folder)
        write_model_card(arguments.folder, overwrite=arguments.overwrite, **metadata)
        done = "built" if arguments.overwrite or not existed else "completed" if flags else "kept as it was"
        print(f"{file} is {done}")
        for aside in sorted(moved_cards(arguments.folder) - before):
            print(f"moved aside: the card that was there is {aside} now")
    return report_problems(file, show=arguments.print)


def moved_cards(folder: Path) -> set[Path]:
    """Cards that were built anew, those of the halves of a joint model too."""
    return {file for pattern in ("README.md.old-*", "*/README.md.old-*") for file in folder.glob(pattern)}


def report_problems(file: Path, *, show: bool) -> int:
    """Print the problems, their corrections and missing metadata; the exit status is 1 for problems."""
    from ..publishing.card_checks import card_problems, metadata_problems, missing_metadata

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
        return 0
    wrong = metadata_problems(text)
    for line in ways_out(file, {field for field, _ in wrong}, only_metadata=len(wrong) == len(problems)):
        print(line)
    return 1


def ways_out(file: Path, fields: set[str], *, only_metadata: bool) -> list[str]:
    """Corrections of a card that keep its text.

    Args:
        fields (`set[str]`): of its metadata that are wrong, named as `metadata_problems` does.
        only_metadata (`bool`): nothing else is wrong.
    """
    if fields & {"metadata", "model-index"}:
        return [UNREADABLE.format(file.parent)]
    flags = [name for name in FLAGS if name in fields]
    if fields == {""}:
        flags = ["license", "language"]
    lines = []
    if flags:
        example = " ".join(f"--{name} {FLAGS[name]}" for name in flags)
        lines.append(f"to set {' and '.join(flags)} and keep its text: deberta-ext card {file.parent} {example}")
    if not only_metadata or not fields <= {"", *flags}:
        lines.append(f"{'correct the rest' if flags else 'correct it'} in {file}")
    return lines

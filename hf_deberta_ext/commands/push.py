# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext push`: publishes a folder on the Hub, after looking at it."""

import argparse
from pathlib import Path

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "publish the folder of a model on the Hub: checked, in one commit, or as a dry run"
EXAMPLE = """deberta-ext push runs/sst2 me/deberta-sst2 --dry_run
deberta-ext push runs/sst2 me/deberta-sst2 --private --tag v1.0"""


def add_arguments(parser: argparse.ArgumentParser):
    add = parser.add_argument
    add("folder", type=Path, help="of a saved model or adapter, or of a run that has trained one; nothing in it is changed")
    add("repo", help="user/name or organisation/name; is made if it is not there")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    visibility.add_argument("--public", action="store_false", dest="private", help="make a new repository public")
    add("--revision", metavar="BRANCH", help="push to this branch, which is made from main if it is not there")
    add("--create_pr", action="store_true", help="propose the commit as a pull request")
    add("--tag", help="name the commit, as v1.0; the card then loads it by this name")
    add("--message", help="title of the commit; further lines are its text")
    add(
        "--include",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="publish these files of the folder too: *.txt in it, notes/* below it; hidden files and what is left out for a "
        "reason of its own need their whole path",
    )
    add("--token", help="of the Hub; by default HF_TOKEN, or that of `hf auth login`")
    add("--dry_run", action="store_true", help="send nothing: list each file, what would change, and what the checks find")
    add(
        "--skip_checks",
        action="store_true",
        help="send the folder without the checks of weights and card; tokens are still refused",
    )


def run(arguments: argparse.Namespace) -> int | None:
    """Print the report; return 1 for a dry run that has found problems."""
    from ..publishing import push

    names = ("private", "revision", "create_pr", "tag", "include", "token", "dry_run", "skip_checks")
    options = {name: getattr(arguments, name) for name in names}
    report = push(arguments.folder, arguments.repo, commit_message=arguments.message, **options)
    print(report)
    return 1 if report.problems else 0

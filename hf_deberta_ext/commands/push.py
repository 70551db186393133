# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext push`: publish a model folder on the Hub."""

import argparse
from pathlib import Path

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "publish a model folder on the Hub in one commit, or list what would be uploaded"
EXAMPLE = """deberta-ext push runs/sst2 me/deberta-sst2 --dry_run
deberta-ext push runs/sst2 me/deberta-sst2 --private --tag v1.0"""


def add_arguments(parser: argparse.ArgumentParser):
    add = parser.add_argument
    add("folder", type=Path, help="folder of a saved model or adapter, or output folder of a run; the folder is not changed")
    add("repo", help="user/name or organisation/name; created if it does not exist")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", default=None, help="create a private repository")
    visibility.add_argument("--public", action="store_false", dest="private", help="create a public repository")
    add("--revision", metavar="BRANCH", help="branch to push to; created from main if it does not exist")
    add("--create_pr", action="store_true", help="open a pull request")
    add("--tag", help="name of a new tag for the commit, such as v1.0; the code in the card then loads this tag")
    add("--message", dest="commit_message", help="commit message; lines after the first describe the commit")
    add("--include", nargs="+", default=[], metavar="PATTERN", help="also publish matching files, such as *.txt, notes/*")
    add("--token", help="token for the Hub; default: HF_TOKEN, or the token saved by `hf auth login`")
    add("--dry_run", action="store_true", help="only list the files and problems, without uploading")
    add("--skip_checks", action="store_true", help="publish even if configuration or weights are missing")


def run(arguments: argparse.Namespace) -> int:
    """Push the folder and print the report; return 1 if a dry run finds problems, else 0."""
    from ..publishing import push

    names = ("private", "revision", "create_pr", "tag", "commit_message", "include", "token", "dry_run", "skip_checks")
    report = push(arguments.folder, arguments.repo, **{name: getattr(arguments, name) for name in names})
    print(report)
    return 1 if report.problems else 0

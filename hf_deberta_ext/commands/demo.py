# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext demo`: serve a local page to try a model."""

import argparse

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "serve a page on this machine to try a model"
EXAMPLE = """deberta-ext demo examples/models/deberta-ext-small-en
deberta-ext demo runs/sst2 --port 7860"""


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("model", metavar="FOLDER_OR_ID", help="official checkpoint or model of this package, with any head")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--port", type=int, help="port of the page; default: the first free port from 7860")


def run(arguments: argparse.Namespace) -> None:
    """Load the model, print the address, and serve until Ctrl-C."""
    from ..demo.page import build_page, launch

    launch(build_page(arguments.model, arguments.revision), host="127.0.0.1", port=arguments.port)

# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext info`: show sizes, heads and tokenizer of a folder or Hub repository, or describe a prepared corpus."""

import argparse
import json

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "show what a folder or Hub repository contains, and whether it can be loaded"
EXAMPLE = """\
deberta-ext info runs/mnli
deberta-ext info prepared
deberta-ext info microsoft/deberta-v3-base --download
deberta-ext info runs/mnli --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FOLDER_OR_ID", help="a folder, or the id of a Hub repository")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--download", action="store_true", help="also download .bin weights (not needed for safetensors)")
    parser.add_argument("--json", action="store_true", help="print the description as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the description; return 0 if the checkpoint can be loaded, else 1."""
    from ..conversion.checkpoint_contents import describe, description_text
    from ..native import kernel_status
    from ..pretraining.prepared_corpus import is_prepared, manifest_text, read_manifest

    if is_prepared(arguments.source):
        facts = read_manifest(arguments.source)
        text = manifest_text(facts)
    else:
        facts = describe(arguments.source, revision=arguments.revision, download=arguments.download)
        facts["attention"] = kernel_status()
        text = description_text(facts)
    if arguments.json:
        text = json.dumps(facts, indent=2)
    print(text)
    return int(bool(facts.get("problems")))

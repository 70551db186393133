# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext info`: sizes and heads of a folder or Hub repository, how it is loaded, what is missing; or a corpus."""

import argparse
import json

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "what a folder or Hub repository is: its sizes and heads, how it is loaded, what is missing; or a prepared corpus"
EXAMPLE = """\
deberta-ext info runs/mnli
deberta-ext info prepared
deberta-ext info microsoft/deberta-v3-base --download
deberta-ext info runs/mnli --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FOLDER_OR_ID", help="a folder, or the id of a Hub repository")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--download", action="store_true", help="download .bin weights too; safetensors need it not")
    parser.add_argument("--json", action="store_true", help="for machines")


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if it can be loaded, 1 if not; then the last lines say why."""
    from ..conversion.checkpoint_contents import describe, description_text
    from ..native import kernel_status
    from ..pretraining.prepared_corpus import is_prepared, manifest_text, read_manifest

    if is_prepared(arguments.source):
        manifest = read_manifest(arguments.source)
        print(json.dumps(manifest, indent=2) if arguments.json else manifest_text(manifest))
        return 0
    facts = describe(arguments.source, revision=arguments.revision, download=arguments.download)
    facts["attention"] = kernel_status()
    print(json.dumps(facts, indent=2) if arguments.json else description_text(facts))
    return 1 if facts["problems"] else 0

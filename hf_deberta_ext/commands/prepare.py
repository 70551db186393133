# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext prepare`: prepare a corpus for pre-training, like prepare_corpus.py in examples/."""

import argparse

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "add_arguments", "run"]

HELP = "prepare a corpus for pre-training: filter, deduplicate, tokenise, pack into shards"
EXAMPLE = """deberta-ext prepare --train_data articles/ --deduplicate exact minhash --train_tokenizer unigram \\
    --max_length 512 --workers 2 --output_dir prepared
deberta-ext prepare --help_all"""
# Show logs and progress bars.
SHOWS_PROGRESS = True


def add_arguments(parser: argparse.ArgumentParser):
    parser.takes_flags = True
    parser.add_argument("flags", nargs="*", help="flags (see `prepare --help_all`), or a .json or .yaml file of flags")


def run(arguments: argparse.Namespace) -> None:
    """Prepare the corpus as `arguments.flags` say."""
    from ..pretraining.run_preparation import main

    main(arguments.flags, program="deberta-ext prepare")

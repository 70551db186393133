# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext prepare`: prepare a corpus for pre-training, as the script prepare_corpus.py of the examples does."""

import argparse

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "add_arguments", "run"]

HELP = "prepare a corpus for pre-training: filter, deduplicate, tokenise, pack into shards"
EXAMPLE = """deberta-ext prepare --train_data articles/ --deduplicate exact minhash --train_tokenizer unigram \\
    --max_length 512 --workers 2 --output_dir prepared
deberta-ext prepare --help_all"""
# Logs and progress bars are shown.
SHOWS_PROGRESS = True


def add_arguments(parser: argparse.ArgumentParser):
    parser.takes_flags = True
    parser.add_argument("flags", nargs="*", help="`prepare --help_all` has them; or a .json or .yaml file of flags")


def run(arguments: argparse.Namespace) -> None:
    """Prepare the corpus, as the flags say."""
    from ..pretraining.run_preparation import main

    main(arguments.flags, program="deberta-ext prepare")

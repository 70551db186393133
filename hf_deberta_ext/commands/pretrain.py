# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext pretrain`: pre-train a model on text, like run_mlm.py and run_rtd.py in examples/."""

import argparse

from ..training.user_errors import needs_extra

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "add_arguments", "run"]

HELP = "pre-train a model on text: masked language model, or generator and discriminator"
EXAMPLE = """deberta-ext pretrain mlm --recipe small-cpu --train_data corpus/ --train_tokenizer byte-level-bpe \\
    --vocab_size 8000 --output_dir small
deberta-ext pretrain rtd --help"""
# Show logs and progress bars.
SHOWS_PROGRESS = True


def add_arguments(parser: argparse.ArgumentParser):
    objective_help = "mlm: masked tokens; rtd: replaced tokens. `pretrain mlm --help` lists the flags of mlm"
    parser.add_argument("objective", choices=["mlm", "rtd"], help=objective_help)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags, or a .json or .yaml file of flags")


def run(arguments: argparse.Namespace) -> None:
    """Train and evaluate a model as `arguments.flags` say."""
    with needs_extra("train"):
        from ..pretraining import run_masked_lm, run_replaced_tokens

    script = {"mlm": run_masked_lm, "rtd": run_replaced_tokens}[arguments.objective]
    script.main(arguments.flags, program=f"deberta-ext pretrain {arguments.objective}")

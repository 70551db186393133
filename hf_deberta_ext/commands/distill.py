# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext distill`: train a small student on the outputs of a teacher."""

import argparse

from ..training.user_errors import needs_extra

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "add_arguments", "run"]

HELP = "train a small student on the outputs of a teacher of any model type and tokenizer"
EXAMPLE = """deberta-ext distill classification --teacher runs/large --student_layers 4 --train_file train.csv \\
    --validation_file dev.csv --do_train --do_eval --output_dir distilled
deberta-ext distill text --help"""
TASKS = ("text", "classification", "glue", "ner", "qa")
# Show logs and progress bars.
SHOWS_PROGRESS = True


def add_arguments(parser: argparse.ArgumentParser):
    names = ", ".join(TASKS)
    parser.add_argument("task", choices=TASKS, metavar="TASK", help=f"{names}; `distill TASK --help` lists its flags")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags of the task, or a .json or .yaml file of flags")


def run(arguments: argparse.Namespace) -> None:
    """Train the student, and compare it with the teacher and with a student that is trained without the teacher."""
    with needs_extra("train"):
        from ..distillation.run import main

    main(arguments.task, arguments.flags, program=f"deberta-ext distill {arguments.task}")

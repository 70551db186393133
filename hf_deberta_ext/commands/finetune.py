# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext finetune`: fine-tune a model on a task, like run_glue.py, run_ner.py, ... in examples/."""

import argparse

from ..finetuning.tasks import TASKS, load_task
from ..training.user_errors import needs_extra

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "add_arguments", "run"]

HELP = "fine-tune a model: classification, named entities, questions, multiple choice"
EXAMPLE = """deberta-ext finetune classification --model_name_or_path microsoft/deberta-v3-small --train_file train.csv \\
    --validation_file dev.csv --do_train --do_eval --output_dir mine
deberta-ext finetune glue --help"""
# Show logs and progress bars.
SHOWS_PROGRESS = True


def add_arguments(parser: argparse.ArgumentParser):
    names = ", ".join(TASKS)
    parser.add_argument("task", choices=TASKS, metavar="TASK", help=f"{names}; `finetune TASK --help` lists its flags")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags of the task, or a .json or .yaml file of flags")


def run(arguments: argparse.Namespace) -> None:
    """Train, evaluate or predict, depending on the flags."""
    with needs_extra("train"):
        from ..finetuning.loop import main as fine_tune

    program, (_, text) = f"deberta-ext finetune {arguments.task}", TASKS[arguments.task]
    fine_tune(load_task(arguments.task), arguments.flags, description=f"Fine-tune a model: {text}.", program=program)

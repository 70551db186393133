# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext finetune`: fine-tune a model on a task, as the scripts run_glue.py, run_ner.py, ... of the examples do."""

import argparse

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "TASKS", "add_arguments", "run"]

HELP = "fine-tune a model: classification, named entities, questions, multiple choice"
EXAMPLE = """deberta-ext finetune classification --model_name_or_path microsoft/deberta-v3-small --train_file train.csv \\
    --validation_file dev.csv --do_train --do_eval --output_dir mine
deberta-ext finetune glue --help"""
# Logs and progress bars are shown.
SHOWS_PROGRESS = True
TASKS = {
    "classification": "text classification or regression on files",
    "glue": "GLUE, XNLI, or text classification and regression on files",
    "superglue": "SuperGLUE",
    "ner": "CoNLL-2003, WNUT-17, or labels of words in files",
    "qa": "SQuAD 1.1 and 2.0, or questions about texts in files",
    "race": "RACE, SWAG, CODAH, C3, or multiple choice in files",
    "multiple-choice": "RACE, SWAG, CODAH, C3, or multiple choice in files",
}


def add_arguments(parser: argparse.ArgumentParser):
    names = ", ".join(TASKS)
    parser.add_argument("task", choices=TASKS, metavar="TASK", help=f"{names}; `finetune TASK --help` has its flags")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags of the task, or a .json or .yaml file of flags")


def run(arguments: argparse.Namespace) -> None:
    """Train, evaluate or predict, as the flags say."""
    from ..finetuning.loop import main as fine_tune
    from ..finetuning.tasks import multiple_choice, question_answering, superglue, text_classification, token_classification

    classification = (text_classification.TextClassificationData, text_classification.TextClassificationArguments)
    choices = (multiple_choice.read_multiple_choice, multiple_choice.MultipleChoiceArguments)
    readers = {
        "classification": classification,
        "glue": classification,
        "superglue": (superglue.read_superglue, superglue.SuperGlueArguments),
        "ner": (token_classification.TokenClassificationData, token_classification.TokenClassificationArguments),
        "qa": (question_answering.QuestionAnsweringData, question_answering.QuestionAnsweringArguments),
        "race": choices,
        "multiple-choice": choices,
    }
    read, data_arguments = readers[arguments.task]
    program = f"deberta-ext finetune {arguments.task}"
    description = f"Fine-tune a model: {TASKS[arguments.task]}."
    fine_tune(read, data_arguments, arguments.flags, description=description, program=program)

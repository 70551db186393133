# SPDX-License-Identifier: Apache-2.0
"""The tasks of fine-tuning, by their names in `deberta-ext finetune`."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["TASKS", "Task", "load_task"]

# Module and description. A module is imported when its task is loaded.
TASKS = {
    "classification": ("text_classification", "text classification or regression on files"),
    "glue": ("text_classification", "GLUE, XNLI, or text classification and regression on files"),
    "superglue": ("superglue", "SuperGLUE"),
    "ner": ("token_classification", "CoNLL-2003, WNUT-17, or labels of words in files"),
    "qa": ("question_answering", "SQuAD 1.1 and 2.0, or questions about texts in files"),
    "race": ("multiple_choice", "RACE, SWAG, CODAH, C3, or multiple choice in files"),
    "multiple-choice": ("multiple_choice", "RACE, SWAG, CODAH, C3, or multiple choice in files"),
}


class Task(NamedTuple):
    """A task, as a training loop needs it.

    Args:
        read (`Callable`): (flags of the task, flags of downloads) -> its data, read and checked.
        arguments: the class of its flags, a subclass of `DataArguments`.
    """

    read: Callable[..., Any]
    arguments: type


def load_task(name: str) -> Task:
    """Import a task of `TASKS`."""
    return Task(*importlib.import_module(f".{TASKS[name][0]}", __name__).TASK)

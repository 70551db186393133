# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning tasks, by their name in `deberta-ext finetune`."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["TASKS", "Task", "load_task"]

# Module and description of each task; `load_task` imports the module.
TASKS = {
    "classification": ("text_classification", "text classification or regression on your own files"),
    "glue": ("text_classification", "GLUE, XNLI, or text classification and regression on your own files"),
    "superglue": ("superglue", "SuperGLUE"),
    "ner": ("token_classification", "CoNLL-2003, WNUT-17, or token classification on your own files"),
    "qa": ("question_answering", "SQuAD 1.1 and 2.0, or extractive question answering on your own files"),
    "race": ("multiple_choice", "RACE, SWAG, CODAH, C3, or multiple choice on your own files"),
    "multiple-choice": ("multiple_choice", "RACE, SWAG, CODAH, C3, or multiple choice on your own files"),
}


class Task(NamedTuple):
    """Reader and flags of a task.

    Args:
        read (`Callable`): (flags of the task, `HubArguments`) -> the task's data (`TaskData`), read and checked.
        arguments (`type`): class of the task's flags, a subclass of `DataArguments`.
    """

    read: Callable[..., Any]
    arguments: type


def load_task(name: str) -> Task:
    """Import and return a task of `TASKS`."""
    return Task(*importlib.import_module(f".{TASKS[name][0]}", __name__).TASK)

# SPDX-License-Identifier: Apache-2.0
"""Questions with choices, read from the columns of RACE, SWAG, CODAH, C3 and COPA, or from columns that are named."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...data.columns import as_numbers, check_cells, check_columns
from ...data.files import parse_json
from .race import race_level

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LETTERS", "ChoiceColumns", "choice_rows", "fill_blank", "known_columns"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
FORMS = (
    "article, question, options, answer (RACE); sent1, sent2, ending0, ending1, ..., label (SWAG); context, question, "
    "choices, label (C3); question_propmt, candidate_answers, correct_answer_idx (CODAH); premise, choice1, choice2, "
    "question, label (COPA)"
)
ANSWERS = {
    "number": "the number of a choice, from 0",
    "letter": "one of the letters A, B, ...",
    "number or letter": "the number of a choice, from 0, or its letter",
    "text": "the text of one of the choices",
}


@dataclass(frozen=True)
class ChoiceColumns:
    """Names of the columns of questions with choices, and the form of their cells.

    Args:
        choices: the column with a list of choices (in .csv a JSON list), or one column for each choice.
        context (`str`, *optional*): the first segment: text, or a list of lines or turns.
        question (`str`, *optional*): stands before each choice in the second segment.
        label (`str`): the right choice, where the column is there.
        answers (`str`): "number" (from 0, -1 = none), "letter", "number or letter", or "text" of the right choice.
        questions (`dict[str, str]`, *optional*): the text of each question, of which the column holds the key.
        by_article (`bool`): rows are of articles with an example_id, and blanks of a question are filled with the choice.
        by_flags (`bool`): flags name the columns.
    """

    choices: Sequence[str]
    context: str | None = None
    question: str | None = None
    label: str = "label"
    answers: str = "number"
    questions: Mapping[str, str] | None = None
    by_article: bool = False
    by_flags: bool = False


RACE = ChoiceColumns(("options",), "article", "question", "answer", answers="letter", by_article=True)
CODAH = ChoiceColumns(("candidate_answers",), "question_propmt", label="correct_answer_idx")
COPA = ChoiceColumns(("choice1", "choice2"), "premise", "question", questions=COPA_QUESTIONS)


def known_columns(rows: "Dataset", *, source: str) -> ChoiceColumns:
    """Return the columns of a published data set, found by their names.

    CODAH is also published with the columns of SWAG, and C3 by CLUE with "choice" and the text of the right one, "answer".

    Raises:
        ValueError: they are those of none.
    """
    names = {*rows.column_names}
    if {"article", "options"} & names:
        return RACE
    if {"sent1", "sent2"} & names:
        endings = [name for name in rows.column_names if re.fullmatch("ending[0-9]+", name)]
        if len(endings) < 2:
            endings = ["ending0", "ending1"]
        return ChoiceColumns(sorted(endings, key=lambda name: int(name[6:])), "sent1", "sent2")
    if "candidate_answers" in names:
        return CODAH
    if {"premise", "choice1"} <= names:
        return COPA
    if "context" in names and "choice" in names:
        return ChoiceColumns(["choice"], "context", "question", "answer", answers="text")
    if "context" in names:
        return ChoiceColumns(["choices"], "context", "question")
    raise ValueError(
        f"{source} has the columns {', '.join(map(repr, rows.column_names))}; known are {FORMS}; others are named with "
        "--choice_columns, --context_column and --question_column"
    )


def choice_rows(
    rows: "Dataset", columns: ChoiceColumns, *, source: str, labelled: bool = False, level: str | None = None
) -> list[dict[str, Any]]:
    """Return rows in one form, whatever their columns.

    Args:
        source (`str`): where the rows are from ("--train_file"), for messages.
        labelled (`bool`): the column of the labels must be there if flags name it.
        level (`str`, *optional*): school of rows of RACE whose example_id says neither "middle" nor "high".
    Returns:
        For each row id, context (the first segment), choices (the second segment of each choice), label (number of the right
        choice, or None) and group (the school of RACE, else None). An article of RACE has several questions: their ids are
        its example_id and a number, "high63.txt-0".
    Raises:
        ValueError: a column is missing; a cell is None, of another type, or empty; an answer is none of the choices.
    """
    check_text_columns(rows, columns, source=source, labelled=labelled)
    if columns.label in rows.column_names and columns.answers.startswith("number"):
        rows = as_numbers(rows, columns.label)
    counts: Counter[str] = Counter()
    questions = []
    for number, row in enumerate(rows.with_format(None), start=1):
        place = f"row {number} of {source}"
        context, question = row.get(columns.context, ""), row.get(columns.question, "")
        if isinstance(context, list):
            if not all(isinstance(line, str) for line in context):
                raise ValueError(f"{place} has {context!r} in the column {columns.context!r}, expected texts")
            context = "\n".join(context)
        choices = choice_list(row, columns.choices, place)
        if columns.questions is not None:
            if question not in columns.questions:
                raise ValueError(f"{place} has the question {question!r}, expected {' or '.join(columns.questions)}")
            question = columns.questions[question]
        one = {"id": str(number - 1), "context": context, "group": None}
        one["label"] = right_choice(row.get(columns.label), choices, columns, place)
        if columns.by_article:
            if not context.strip() or not question.strip():
                raise ValueError(f"{place} has nothing in the column 'article' or 'question', expected text")
            article = str(row.get("example_id") or f"row{number}")
            one["id"] = f"{article}-{counts[article]}"
            one["group"] = race_level(article) or level
            one["choices"] = [fill_blank(question, choice) for choice in choices]
            counts[article] += 1
        else:
            for name in ("video-id", "idx", "id"):
                if row.get(name) is not None:
                    one["id"] = str(row[name])
            one["choices"] = [f"{question} {choice}".strip() for choice in choices]
        questions.append(one)
    return questions


def check_text_columns(rows: "Dataset", columns: ChoiceColumns, *, source: str, labelled: bool):
    """Check that the columns of texts are there, and hold text or lists.

    Raises:
        ValueError: as `choice_rows`.
    """
    named = [("--context_column", columns.context), ("--question_column", columns.question)]
    named += [("--choice_columns", name) for name in columns.choices]
    if labelled and columns.by_flags:
        named.append(("--label_column", columns.label))
    for flag, name in named:
        if name is None:
            continue
        check_columns(rows, [name], source=source, flag=flag if columns.by_flags else None)
        if name == columns.question or (name in columns.choices and len(columns.choices) > 1):
            check_cells(rows, name, str, source=source)
        elif name == columns.context:
            check_cells(rows, name, (str, list), source=source)


def choice_list(row: Mapping[str, Any], columns: Sequence[str], place: str) -> list[str]:
    """Return the choices of a row: one in each of several columns, or a list in one; in .csv and .tsv that is JSON.

    Raises:
        ValueError: it is something else, or a choice is None or empty; `place` and column are named.
    """
    choices = [row[column] for column in columns]
    if len(columns) == 1:
        (choices,) = choices
        if isinstance(choices, str):
            choices = parse_json(choices, f"{place}, column {columns[0]!r},")
        if not isinstance(choices, list):
            raise ValueError(f"{place} has {choices!r} in the column {columns[0]!r}, expected a list of texts")
    for number, choice in enumerate(choices, start=1):
        if not isinstance(choice, str) or not choice.strip():
            raise ValueError(f"{place} has {choice!r} as choice {number} in {', '.join(map(repr, columns))}, expected text")
    return choices


def right_choice(cell: Any, choices: Sequence[str], columns: ChoiceColumns, place: str) -> int | None:
    """Return the number of the choice that a label says, from 0; None where it says none.

    Raises:
        ValueError: it is not of the form `columns.answers`, or the text of no choice.
    """
    kind = columns.answers
    if isinstance(cell, str):
        cell = cell.strip()
    if cell is None or cell == "" or (kind.startswith("number") and type(cell) is int and cell == -1):
        return None
    labels = []
    if kind == "text":
        labels = [number for number, choice in enumerate(choices) if choice.strip() == cell]
    elif type(cell) is int and "number" in kind:
        labels = [cell]
    elif "letter" in kind and cell in [*LETTERS[: len(choices)]]:
        labels = [LETTERS.index(cell)]
    if len(labels) != 1:
        raise ValueError(
            f"{place} has {cell!r} in the column {columns.label!r}, expected {ANSWERS[kind]}; it has {len(choices)} choices"
        )
    return labels[0]


def fill_blank(question: str, option: str) -> str:
    """Return the question with the option in the place of every blank "_", or behind a question that has none.

    The published practice, also where an option holds the words for two blanks.
    """
    if "_" in question:
        return re.sub("_+", lambda _: option, question)
    return f"{question} {option}"

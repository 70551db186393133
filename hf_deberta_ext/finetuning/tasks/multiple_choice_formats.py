# SPDX-License-Identifier: Apache-2.0
"""Questions with choices, read from the columns of RACE, SWAG, CODAH, C3 and COPA, or from columns that are named."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...data.columns import as_numbers, check_cells, check_columns
from ...data.files import parse_json
from .race import race_level

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["LETTERS", "ChoiceColumns", "choice_rows", "fill_blank"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
FORMS = (
    "article, question, options, answer (RACE); sent1, sent2, ending0, ending1, ..., label (SWAG); context, question, "
    "choices, label (C3); question_propmt, candidate_answers, correct_answer_idx (CODAH); premise, choice1, choice2, "
    "question, label (COPA)"
)


@dataclass(frozen=True)
class ChoiceColumns:
    """Names of the columns of questions with choices, and the form of their cells.

    Args:
        choices: the column with a list of choices (in .csv a JSON list), or one column for each choice.
        context (`str`, *optional*): the first segment: text, or a list of lines or turns.
        question (`str`, *optional*): stands before each choice in the second segment.
        label (`str`): the right choice, where the column is there.
        answers (`str`): "number" (from 0, -1 = none), "letter", "number or letter", or "text" of the right choice.
        filled: columns that may not be blank.
        questions (`dict[str, str]`, *optional*): the text of each question, of which the column holds the key.
        by_article (`bool`): rows are of articles with an example_id, and blanks of a question are filled with the choice.
    """

    choices: Sequence[str]
    context: str | None = None
    question: str | None = None
    label: str = "label"
    answers: str = "number"
    filled: Sequence[str] = ()
    questions: Mapping[str, str] | None = None
    by_article: bool = False


RACE = ChoiceColumns(
    ("options",), "article", "question", "answer", answers="letter", filled=("article", "question"), by_article=True
)
CODAH = ChoiceColumns(("candidate_answers",), "question_propmt", label="correct_answer_idx")
COPA = ChoiceColumns(("choice1", "choice2"), "premise", "question", filled=("premise",), questions=COPA_QUESTIONS)


def known_columns(rows: "Dataset", *, source: str) -> ChoiceColumns:
    """The columns of a published data set, found by their names.

    CODAH is also published with the columns of SWAG, and C3 by CLUE with "choice" and the text of the right one, "answer".

    Raises:
        ValueError: they are those of none.
    """
    names = {*rows.column_names}
    if {"article", "options"} & names:
        return RACE
    if {"sent1", "sent2"} & names:
        check_columns(rows, ["sent1", "sent2", "ending0", "ending1"], source=source)
        endings = [name for name in rows.column_names if re.fullmatch("ending[0-9]+", name)]
        return ChoiceColumns(sorted(endings, key=lambda name: int(name[6:])), "sent1", "sent2")
    if "candidate_answers" in names:
        return CODAH
    if {"premise", "choice1"} <= names:
        return COPA
    if "context" in names:
        columns = ChoiceColumns(["choice" if "choice" in names else "choices"], "context", "question")
        return columns if "label" in names or "answer" not in names else replace(columns, label="answer", answers="text")
    raise ValueError(
        f"{source} has the columns {', '.join(map(repr, rows.column_names))}; known are {FORMS}; others are named with "
        "--choice_columns, --context_column and --question_column"
    )


def choice_rows(
    rows: "Dataset", *, source: str, columns: ChoiceColumns | None = None, label_column: str | None = None,
    labelled: bool = False, level: str | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows in one form, whatever their columns.

    Args:
        source (`str`): where the rows are from ("--train_file"), for messages.
        columns (`ChoiceColumns`, *optional*): those that flags name; default: `known_columns`.
        label_column (`str`, *optional*): another one than that of `columns`.
        labelled (`bool`): `label_column` must be there.
        level (`str`, *optional*): school of rows of RACE whose example_id says neither "middle" nor "high".
    Returns:
        For each row id, context (the first segment), choices (the second segment of each choice), label (number of the right
        choice, or None) and group (the school of RACE, else None). An article of RACE has several questions: their ids are
        its example_id and a number, "high63.txt-0".
    Raises:
        ValueError: a column is missing; a cell is None, of another type, or empty; an answer is none of the choices.
    """
    columns = checked_columns(rows, columns, source=source, label_column=label_column, labelled=labelled)
    if columns.label in rows.column_names and columns.answers.startswith("number"):
        rows = as_numbers(rows, columns.label)
    counts: Counter[str] = Counter()
    questions = []
    for number, row in enumerate(rows.with_format(None), start=1):
        place, group = f"row {number} of {source}", None
        name = next((str(row[name]) for name in ("id", "idx", "video-id") if row.get(name) is not None), str(number - 1))
        if columns.by_article:
            article = str(row.get("example_id") or f"row{number}")
            name, group, place = f"{article}-{counts[article]}", race_level(article) or level, f"{place} ({article})"
            counts[article] += 1
        for column in (*columns.filled, *(columns.choices if len(columns.choices) > 1 else ())):
            if not row[column].strip():
                raise ValueError(f"{place} has nothing in the column {column!r}, expected text")
        context = row[columns.context] if columns.context else ""
        lines = [context] if isinstance(context, str) else context
        if any(not isinstance(line, str) for line in lines):
            raise ValueError(f"{place} has {lines!r} in the column {columns.context!r}, expected text or a list of texts")
        question = row[columns.question] if columns.question else ""
        if columns.questions is not None:
            if question not in columns.questions:
                raise ValueError(f"{place} has the question {question!r}, expected {' or '.join(columns.questions)}")
            question = columns.questions[question]
        choices = choice_list(row, columns.choices, place)
        join = fill_blank if columns.by_article else lambda question, choice: f"{question} {choice}".strip()
        questions.append(
            dict(
                id=name, context="\n".join(lines), choices=[join(question, choice) for choice in choices],
                label=right_choice(row.get(columns.label), choices, columns, place), group=group,
            )
        )  # fmt: skip
    return questions


def checked_columns(
    rows: "Dataset", columns: ChoiceColumns | None, *, source: str, label_column: str | None, labelled: bool
) -> ChoiceColumns:
    """The columns of `choice_rows`, which are there and hold text or lists.

    Raises:
        ValueError: as `choice_rows`.
    """
    by_flags, columns = columns is not None, columns or known_columns(rows, source=source)
    if label_column is not None:
        columns = replace(columns, label=label_column, answers=columns.answers.replace("text", "number"))
        if labelled:
            check_columns(rows, [label_column], source=source, flag="--label_column")
    roles = {"--context_column": [columns.context], "--question_column": [columns.question]}
    for flag, names in (roles | {"--choice_columns": columns.choices}).items():
        for name in filter(None, names):
            check_columns(rows, [name], source=source, flag=flag if by_flags else None)
            lines = name == columns.context and name not in columns.filled
            if [name] != [*columns.choices]:
                check_cells(rows, name, (str, list) if lines else str, source=source)
    return columns


def choice_list(row: Mapping[str, Any], columns: Sequence[str], place: str) -> list[str]:
    """The choices of a row: one in each of several columns, or a list in one; in .csv and .tsv that is JSON.

    Raises:
        ValueError: it is something else, or a choice is None or empty; `place` and column are named.
    """
    if len(columns) > 1:
        return [row[column] for column in columns]
    (column,) = columns
    cell = choices = row[column]
    if isinstance(cell, str):
        try:
            choices = parse_json(cell, place)
        except ValueError:
            choices = None
    if not isinstance(choices, list):
        raise ValueError(
            f"{place} has {cell!r} in the column {column!r}, expected a list of texts (in JSON, where cells are text)"
        )
    for number, choice in enumerate(choices, start=1):
        if not isinstance(choice, str) or not choice.strip():
            raise ValueError(f"{place} has {choice!r} as choice {number} in the column {column!r}, expected text")
    return choices


def right_choice(cell: Any, choices: Sequence[str], columns: ChoiceColumns, place: str) -> int | None:
    """The number of the choice that a label says, from 0; None where it says none.

    Raises:
        ValueError: it is not of the form `columns.answers`, or the text of no choice.
    """
    letters, kind = LETTERS[: len(choices)], columns.answers
    cell = cell.strip() if isinstance(cell, str) and kind != "text" else cell
    if cell is None or cell == "":
        return None
    if kind == "text":
        if choices.count(cell) != 1:
            raise ValueError(f"{place} has the answer {cell!r}, which must be one of its choices {choices}")
        return choices.index(cell)
    if "letter" in kind and isinstance(cell, str) and len(cell) == 1 and cell in letters:
        return letters.index(cell)
    if "number" in kind and isinstance(cell, int) and not isinstance(cell, bool):
        return None if cell == -1 else cell
    expected = {
        "number": "the number of a choice, from 0",
        "letter": f"one of the letters {', '.join(letters)}",
        "number or letter": "the number of a choice, from 0, or its letter",
    }
    raise ValueError(f"{place} has {cell!r} in the column {columns.label!r}, expected {expected[kind]}")


def fill_blank(question: str, option: str) -> str:
    """The option in the place of every blank "_" of the question, or behind a question that has none.

    The published practice, also where an option holds the words for two blanks.
    """
    return re.sub("_+", lambda _: option, question) if "_" in question else f"{question} {option}"

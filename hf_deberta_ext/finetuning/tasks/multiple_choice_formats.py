# SPDX-License-Identifier: Apache-2.0
"""Questions with choices, read from the columns of SWAG, CODAH, C3 and COPA, or from columns that are named.

The readers take rows of a `Dataset` and give for each one {id, context, choices, label, group}: the first segment, the
second segment of each choice, the number of the right one or None, and the group whose accuracy is also counted or None.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...data.columns import as_numbers, check_cells, check_columns
from .race import LETTERS, choice_list

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["codah_rows", "column_rows", "context_rows", "copa_rows", "swag_rows"]

COPA_COLUMNS = ("premise", "choice1", "choice2", "question")
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}


def swag_rows(rows: "Dataset", *, what: str, label_column: str = "label") -> list[dict[str, Any]]:
    """SWAG and CODAH in its form: context sent1, which may be empty; choices sent2 + each of ending0, ending1, ...

    Args:
        rows: columns sent1, sent2, ending0, ..., and where there are labels label (0 = ending0; -1 = none).
        what (`str`): where they are from ("--train_file").
        label_column (`str`): the one of the labels.
    Returns:
        For each row id, context, choices (list of texts), label (`int` or None), group (None).
    Raises:
        ValueError: a column is missing, a cell is None, an ending is empty, or a label is of no ending.
    """
    endings = sorted(
        (name for name in rows.column_names if name.removeprefix("ending").isdecimal()), key=lambda n: int(n[6:])
    )
    check_columns(rows, ["sent1", "sent2", "ending0", "ending1"], source=what)
    for column in ("sent1", "sent2", *endings):
        check_cells(rows, column, str, source=what)
    return _questions(
        rows,
        what,
        context=lambda row, where: row["sent1"],
        choices=lambda row, where: [f"{row['sent2']} {_text(row, ending, where)}".strip() for ending in endings],
        label_column=label_column,
    )


def context_rows(rows: "Dataset", *, what: str, label_column: str | None = None) -> list[dict[str, Any]]:
    """C3 and its like: a context, a question and a list of choices, not the same number in all rows.

    Args:
        rows: columns context (text, or a list of lines or turns), question, choices (or choice, as in CLUE: a list of
            texts), and where there are labels label (0 = the first choice; -1 = none) or answer (the text of the right one).
        label_column (`str`, *optional*): another one with the number of the right choice.
    Returns:
        As `swag_rows`.
    Raises:
        ValueError: as `swag_rows`; an answer is none of the choices.
    """
    column = "choice" if "choice" in rows.column_names else "choices"
    check_columns(rows, ["context", "question", column], source=what)
    check_cells(rows, "context", (str, list), source=what)
    check_cells(rows, "question", str, source=what)

    def choices(row, where):
        return [f"{row['question']} {choice}".strip() for choice in choice_list(row[column], where=where, column=column)]

    def label(row, where):
        given = choice_list(row[column], where=where, column=column)
        if row["answer"] in (None, ""):
            return None
        if given.count(row["answer"]) != 1:
            raise ValueError(f"{where} has the answer {row['answer']!r}, which must be one of its choices {given}")
        return given.index(row["answer"])

    by_text = label_column is None and "label" not in rows.column_names and "answer" in rows.column_names
    return _questions(
        rows,
        what,
        context=lambda row, where: _lines(row, "context", where),
        choices=choices,
        label=label if by_text else None,
        label_column=label_column or "label",
    )


def codah_rows(rows: "Dataset", *, what: str, label_column: str = "correct_answer_idx") -> list[dict[str, Any]]:
    """CODAH as it is on the Hub: a beginning and four ways to go on."""
    check_columns(rows, ["question_propmt", "candidate_answers"], source=what)
    check_cells(rows, "question_propmt", str, source=what)
    return _questions(
        rows,
        what,
        context=lambda row, where: row["question_propmt"],
        choices=lambda row, where: choice_list(row["candidate_answers"], where=where, column="candidate_answers"),
        label_column=label_column,
    )


def copa_rows(rows: "Dataset", *, what: str, label_column: str = "label") -> list[dict[str, Any]]:
    """COPA: the premise, and "What was the cause?" or "What happened as a result?" with either choice.

    Args:
        rows: columns premise, choice1, choice2, question ("cause" or "effect"), and where there are labels label
            (0 = choice1; -1 = none).
    Returns:
        As `swag_rows`.
    Raises:
        ValueError: as `swag_rows`; a question is neither.
    """
    check_columns(rows, COPA_COLUMNS, source=what)
    for column in COPA_COLUMNS:
        check_cells(rows, column, str, source=what)

    def choices(row, where):
        if row["question"] not in COPA_QUESTIONS:
            raise ValueError(f"{where} has the question {row['question']!r}, expected cause or effect")
        return [f"{COPA_QUESTIONS[row['question']]} {_text(row, choice, where)}" for choice in ("choice1", "choice2")]

    return _questions(
        rows, what, context=lambda row, where: _text(row, "premise", where), choices=choices, label_column=label_column
    )


def column_rows(
    rows: "Dataset",
    *,
    what: str,
    choices: Sequence[str],
    context: str | None = None,
    question: str | None = None,
    label_column: str = "label",
) -> list[dict[str, Any]]:
    """A user's own columns: choices are the question with each of them.

    Args:
        what (`str`): where the rows are from ("--train_file").
        choices: the column with the list of choices, or one column for each choice.
        context (`str`, *optional*): the column of the first segment: text, or a list of lines or turns.
        question (`str`, *optional*): the column that begins each choice.
        label_column (`str`): where it is there: the number of the right choice (0 = the first; -1 = none), or its letter.
    Returns:
        As `swag_rows`.
    Raises:
        ValueError: as `swag_rows`.
    """
    named = (("--context_column", [context], (str, list)), ("--question_column", [question], str))
    kind = (str, list) if len(choices) == 1 else str
    for flag, columns, kinds in (*named, ("--choice_columns", choices, kind)):
        for column in filter(None, columns):
            check_columns(rows, [column], source=what, flag=flag)
            check_cells(rows, column, kinds, source=what)

    def options(row, where):
        if len(choices) > 1:
            return [_text(row, column, where) for column in choices]
        return choice_list(row[choices[0]], where=where, column=choices[0])

    def right(row, where):
        cell, letters = row.get(label_column), LETTERS[: len(options(row, where))]
        if isinstance(cell, str) and len(cell) == 1 and cell in letters:
            return letters.index(cell)
        return _number(cell, where, label_column, "the number of a choice, from 0, or its letter")

    return _questions(
        rows,
        what,
        context=lambda row, where: _lines(row, context, where) if context else "",
        choices=lambda row, where: [f"{row[question] if question else ''} {one}".strip() for one in options(row, where)],
        label=right,
        label_column=label_column,
    )


def _questions(
    rows: "Dataset",
    what: str,
    *,
    context: Callable[[dict, str], str],
    choices: Callable[[dict, str], list[str]],
    label: Callable[[dict, str], int | None] | None = None,
    label_column: str = "label",
) -> list[dict[str, Any]]:
    labelled = label_column in rows.column_names
    rows = as_numbers(rows, label_column) if labelled else rows
    if label is None:

        def label(row, where):
            return _number(row.get(label_column), where, label_column, "the number of a choice")

    questions = []
    for number, row in enumerate(rows.with_format(None), start=1):
        name = next(
            (str(row[column]) for column in ("id", "idx", "video-id") if row.get(column) is not None), str(number - 1)
        )
        where = f"row {number} of {what}"
        questions.append(
            dict(id=name, context=context(row, where), choices=choices(row, where), label=label(row, where), group=None)
        )
    return questions


def _number(cell: Any, where: str, column: str, expected: str) -> int | None:
    if cell is None or cell == "":
        return None
    if not isinstance(cell, int) or isinstance(cell, bool):
        raise ValueError(f"{where} has {cell!r} in the column {column!r}, expected {expected}")
    return None if cell == -1 else cell


def _lines(row: Mapping[str, Any], column: str, where: str) -> str:
    lines = [row[column]] if isinstance(row[column], str) else row[column]
    if any(not isinstance(line, str) for line in lines):
        raise ValueError(f"{where} has {lines!r} in the column {column!r}, expected text or a list of texts")
    return "\n".join(lines)


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    if not row[column].strip():
        raise ValueError(f"{where} has nothing in the column {column!r}, expected text")
    return row[column]

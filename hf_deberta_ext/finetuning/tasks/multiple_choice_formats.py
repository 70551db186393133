# SPDX-License-Identifier: Apache-2.0
"""Read questions with choices from the columns of RACE, SWAG, CODAH, C3 and COPA, or from columns named by flags."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from ...data.columns import check_cells, check_columns
from ...data.files import open_text, parse_json

__all__ = ["LETTERS", "ChoiceColumns", "choice_rows", "fill_blank", "known_columns", "race_level", "read_raw_race"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
FLAGS = "--context_column, --question_column, --choice_columns, --label_column"


@dataclass(frozen=True)
class ChoiceColumns:
    """Names of the columns of questions with choices, and the format of their cells.

    Args:
        choices (`list[str]`): the column with a list of choices (.csv: a JSON list), or one column for each choice.
        context (`str`, *optional*): column of the first segment: text, or a list of lines or turns.
        question (`str`, *optional*): column of the question, put in front of each choice in the second segment.
        label (`str`, defaults to "label"): column with the number (from 0; -1 = unknown) or letter of the correct choice;
            the column may be missing.
        by_text (`bool`, defaults to `False`): whether the label is the text of the correct choice.
        questions (`dict[str, str]`, *optional*): question text for each value of the question column (COPA).
        by_article (`bool`, defaults to `False`): whether rows are questions about articles (RACE): ids come from example_id,
            and a choice replaces the blanks of its question.
        needs_label (`bool`, defaults to `False`): whether the label column is required.
    """

    choices: Sequence[str]
    context: str | None = None
    question: str | None = None
    label: str = "label"
    by_text: bool = False
    questions: Mapping[str, str] | None = None
    by_article: bool = False
    needs_label: bool = False

    def texts(self) -> list[str]:
        """Return the names of the text columns."""
        return [*filter(None, (self.context, self.question)), *self.choices]


RACE = ChoiceColumns(("options",), "article", "question", "answer", by_article=True)
SWAG = ChoiceColumns(("ending0", "ending1"), "sent1", "sent2")
COPA = ChoiceColumns(("choice1", "choice2"), "premise", "question", questions=COPA_QUESTIONS)
CODAH = ChoiceColumns(("candidate_answers",), "question_propmt", label="correct_answer_idx")
C3 = ChoiceColumns(("choices",), "context", "question")
# C3 as CLUE publishes it.
CLUE = ChoiceColumns(("choice",), "context", "question", "answer", by_text=True)


def known_columns(rows: Dataset, *, source: str) -> ChoiceColumns:
    """Return the columns of the known data set that shares the most columns with `rows` (CODAH can have SWAG's columns)."""
    names = {*rows.column_names}
    forms = (RACE, SWAG, COPA, CODAH, C3, CLUE)
    known = max(forms, key=lambda form: len(names.intersection(form.texts())))
    if not names.intersection(known.texts()):
        listed = "; ".join(", ".join(form.texts()) for form in forms)
        raise ValueError(
            f"{source} must have the columns of a known data set ({listed}), got {', '.join(map(repr, rows.column_names))}: "
            f"name the columns with {FLAGS}"
        )
    if known == SWAG:
        endings = {*SWAG.choices, *filter(re.compile("ending[0-9]+").fullmatch, names)}
        return replace(SWAG, choices=sorted(endings, key=lambda name: int(name[6:])))
    return known


def choice_rows(rows: Dataset, columns: ChoiceColumns, *, source: str, level: str | None = None) -> list[dict[str, Any]]:
    """Convert rows in the format that `columns` describes to questions in a common format.

    Args:
        source (`str`): origin of the rows for messages, such as "--train_file".
        level (`str`, *optional*): school of RACE questions whose example_id contains neither "middle" nor "high".
    Returns:
        A dictionary for each row: id, context (first segment), choices (second segments), label (number of the correct
        choice, or None) and group (RACE: the school, else None). Ids of RACE are example_id and number of the question in
        its article, such as "high63.txt-0".
    """
    needed = columns.texts()
    if columns.needs_label:
        needed.append(columns.label)
    check_columns(rows, needed, source=source, flag=FLAGS)
    if columns.question is not None:
        check_cells(rows, columns.question, str, source=source)
    if columns.context is not None:
        check_cells(rows, columns.context, (str, list), source=source)
    counts: Counter[str] = Counter()
    questions = []
    for number, row in enumerate(rows.with_format(None), start=1):
        place = f"row {number} of {source}"
        context, question = row.get(columns.context, ""), row.get(columns.question, "")
        if isinstance(context, list):
            context = "\n".join(map(str, context))
        if columns.questions is not None:
            if question not in columns.questions:
                raise ValueError(f"{place} has the question {question!r}, expected {' or '.join(columns.questions)}")
            question = columns.questions[question]
        choices = choice_list(row, columns.choices, place)
        label = right_choice(row.get(columns.label), choices, columns, place)
        one = {"id": str(number - 1), "context": context, "group": None, "label": label}
        if columns.by_article:
            if not context.strip() or not question.strip():
                raise ValueError(f"{place} has an empty cell in the column 'article' or 'question', expected text")
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


def choice_list(row: Mapping[str, Any], columns: Sequence[str], place: str) -> list[str]:
    """Return the choices of a row, from one column for each choice, or from one column with a list (.csv, .tsv: as JSON)."""
    choices = [row[column] for column in columns]
    if len(columns) == 1:
        (choices,) = choices
        if isinstance(choices, str):
            choices = parse_json(choices, f"{place}, column {columns[0]!r},")
        if not isinstance(choices, list):
            raise ValueError(f"{place} has {choices!r} in the column {columns[0]!r}, expected a list of texts")
    for number, choice in enumerate(choices, start=1):
        if not isinstance(choice, str) or not choice.strip():
            named = ", ".join(map(repr, columns))
            raise ValueError(f"{place} must have a text as choice {number} (in {named}), got {choice!r}")
    return choices


def right_choice(cell: Any, choices: Sequence[str], columns: ChoiceColumns, place: str) -> int | None:
    """Return the number, from 0, of the correct choice; None if the label is empty or -1."""
    text = str(cell).strip()
    if cell is None or text == "" or (text == "-1" and not columns.by_text):
        return None
    labels = [*map(str.strip, choices)]
    if not columns.by_text:
        labels = [*map(str, range(len(choices)))]
        if text in [*LETTERS[: len(choices)]]:
            labels = [*LETTERS]
    if labels.count(text) != 1:
        expected = "the number of a choice, from 0, or its letter"
        if columns.by_text:
            expected = "the text of one of the choices"
        raise ValueError(
            f"{place} has {cell!r} in the column {columns.label!r}, expected {expected}; there are {len(choices)} choices"
        )
    return labels.index(text)


def fill_blank(question: str, option: str) -> str:
    """Replace every blank "_" of a question by the option; append the option to a question without blanks.

    As in published work, every blank is replaced by the whole option, even if the option has words for two blanks.
    """
    if "_" in question:
        return re.sub("_+", lambda _: option, question)
    return f"{question} {option}"


def race_level(name: str | None) -> str | None:
    """Return the school that a path names, "middle" or "high"; the last part of the path that names a school decides.

    Return None if no part names a school, or if that part names both.
    """
    for part in reversed(Path(name or "").parts):
        levels = {*re.findall("(?<![a-z])(middle|high)(?![a-z])", part.lower())}
        if levels:
            return levels.pop() if len(levels) == 1 else None
    return None


def read_raw_race(folder: Path, *, source: str) -> Dataset:
    """Read a folder of RACE's raw release: .txt files with one JSON object each, an article and its questions.

    Returns:
        Rows with the columns of RACE on the Hub, ordered by the files' numbers; "answer" is None if a file has no answers.
    """

    rows = []
    for file in sorted(folder.rglob("*.txt"), key=lambda file: (file.parent, len(file.name), file.name)):
        with open_text(file) as opened:
            article = parse_json(opened.read(), str(file))
        try:
            name = str(article.get("id", file.name))
            if race_level(name) is None:
                name = f"{race_level(str(file.parent)) or ''}{name}"
            answers = article.get("answers") or [None] * len(article["questions"])
            for question, options, answer in zip(article["questions"], article["options"], answers, strict=True):
                row = {"example_id": name, "article": article["article"], "question": question}
                rows.append(row | {"options": options, "answer": answer})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{source}: {file} must be a JSON object with an article and equal numbers of questions, options and "
                f"answers: {error!r}"
            ) from error
    if not rows:
        raise ValueError(f"{source}: a folder must be RACE's raw release, but there are no .txt files in {folder}")
    try:
        return Dataset.from_list(rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: all articles, questions and options in {folder} must be text: {error}") from error

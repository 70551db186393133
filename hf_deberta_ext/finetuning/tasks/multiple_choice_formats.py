# SPDX-License-Identifier: Apache-2.0
"""Questions with choices, read from the columns of RACE, SWAG, CODAH, C3 and COPA, or from columns that are named."""

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
    """Names of the columns of questions with choices, and the form of their cells.

    Args:
        choices: the column with a list of choices (in .csv a JSON list), or one column for each choice.
        context (`str`, *optional*): the first segment: text, or a list of lines or turns.
        question (`str`, *optional*): stands before each choice in the second segment.
        label (`str`): the right choice, where the column is there: its number from 0 (-1 = none) or its letter.
        by_text (`bool`): the label is the text of the right choice.
        questions (`dict[str, str]`, *optional*): the text of each question, of which the column holds the key.
        by_article (`bool`): rows are of articles with an example_id, and blanks of a question are filled with the choice.
        needs_label (`bool`): the column of the label must be there.
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
        """Return the names of the columns of texts."""
        return [*filter(None, (self.context, self.question)), *self.choices]


RACE = ChoiceColumns(("options",), "article", "question", "answer", by_article=True)
SWAG = ChoiceColumns(("ending0", "ending1"), "sent1", "sent2")
COPA = ChoiceColumns(("choice1", "choice2"), "premise", "question", questions=COPA_QUESTIONS)
CODAH = ChoiceColumns(("candidate_answers",), "question_propmt", label="correct_answer_idx")
C3 = ChoiceColumns(("choices",), "context", "question")
# C3 as CLUE publishes it.
CLUE = ChoiceColumns(("choice",), "context", "question", "answer", by_text=True)


def known_columns(rows: Dataset, *, source: str) -> ChoiceColumns:
    """Return the columns of the published data set of which the most are there (CODAH also comes with those of SWAG)."""
    names = {*rows.column_names}
    forms = (RACE, SWAG, COPA, CODAH, C3, CLUE)
    known = max(forms, key=lambda form: len(names.intersection(form.texts())))
    if not names.intersection(known.texts()):
        listed = "; ".join(", ".join(form.texts()) for form in forms)
        raise ValueError(
            f"{source} has the columns {', '.join(map(repr, rows.column_names))}; known are {listed}; others are named with "
            f"{FLAGS}"
        )
    if known == SWAG:
        endings = {*SWAG.choices, *filter(re.compile("ending[0-9]+").fullmatch, names)}
        return replace(SWAG, choices=sorted(endings, key=lambda name: int(name[6:])))
    return known


def choice_rows(rows: Dataset, columns: ChoiceColumns, *, source: str, level: str | None = None) -> list[dict[str, Any]]:
    """Return rows in one form, whatever their columns.

    Args:
        source (`str`): where the rows are from ("--train_file"), for messages.
        level (`str`, *optional*): school of rows of RACE whose example_id says neither "middle" nor "high".
    Returns:
        For each row id, context (the first segment), choices (the second segment of each choice), label (number of the right
        choice, or None) and group (the school of RACE, else None). An article of RACE has several questions: their ids are
        its example_id and a number, "high63.txt-0".
    Raises:
        ValueError: a column is missing; a cell is None, of another type, or empty; an answer is none of the choices.
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


def choice_list(row: Mapping[str, Any], columns: Sequence[str], place: str) -> list[str]:
    """Return the choices of a row: one in each of several columns, or a list in one; in .csv and .tsv that is JSON."""
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
    """Return the number of the choice that a label says, from 0; None where it says none."""
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
            f"{place} has {cell!r} in the column {columns.label!r}, expected {expected}; it has {len(choices)} choices"
        )
    return labels.index(text)


def fill_blank(question: str, option: str) -> str:
    """Return the question with the option in the place of every blank "_", or behind a question that has none.

    The published practice, also where an option holds the words for two blanks.
    """
    if "_" in question:
        return re.sub("_+", lambda _: option, question)
    return f"{question} {option}"


def race_level(name: str | None) -> str | None:
    """Return the school, "middle" or "high", that the last part of a path which names one names alone; None without any."""
    for part in reversed(Path(name or "").parts):
        levels = {*re.findall("(?<![a-z])(middle|high)(?![a-z])", part.lower())}
        if levels:
            return levels.pop() if len(levels) == 1 else None
    return None


def read_raw_race(folder: Path, *, source: str) -> Dataset:
    """Read the questions in a folder of RACE's raw release: .txt files, each one JSON object, an article with its questions.

    Returns:
        Rows of the Hub's columns, in the order of the files' numbers; answer is None where a file has no "answers".
    Raises:
        ValueError: there is no .txt file, or one is not such an object; it is named.
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
                f"{source}: {file} must be an object with an article, questions, options and answers, as many of each: "
                f"{error!r}"
            ) from error
    if not rows:
        raise ValueError(f"{source}: there are no .txt files in {folder}, the folder of a raw release of RACE")
    try:
        return Dataset.from_list(rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: an article, question or option in {folder} is no text: {error}") from error

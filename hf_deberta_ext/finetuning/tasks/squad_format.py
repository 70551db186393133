# SPDX-License-Identifier: Apache-2.0
"""Questions about texts: from rows with the columns of SQuAD, or the nested JSON of its authors, to checked columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers.utils import logging

from ...data.columns import cells, check_cells, check_columns, first
from ...data.files import HELD_BYTES, file_kind, join_columns, parse_json, read_files, read_rows

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Questions", "Table", "checked_questions", "read_question_file"]

logger = logging.get_logger(__name__)


class Table(NamedTuple):
    """Rows, the names of their columns of question, context and answers, and their place for messages."""

    rows: "Dataset"
    columns: tuple[str, str, str]
    source: str


@dataclass
class Questions:
    """A set, column by column.

    Args:
        texts: all reference answers of each question, none where it has no answer; None for a set without answers.
        spans: where the first answer stands in the context, [from, to) in characters without white space around it; (-1, -1)
            where there is none.
    """

    ids: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)
    texts: list[list[str]] | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


def read_question_file(file: Path, columns: tuple[str, str, str], *, flag: str, max_file_bytes: int = HELD_BYTES) -> Table:
    """A file of rows, or of the nested JSON of SQuAD's authors, which has column names of its own.

    Args:
        columns: names of question, context and answers.
        flag (`str`): the one that named the file ("--train_file").
        max_file_bytes (`int`): see `read_files`.
    Raises:
        ValueError: see `read_files`; nested JSON with other keys than SQuAD's.
    """
    source, articles = f"{flag} {file.name}", []
    if file_kind(file) == "json" and file.is_file():
        try:
            articles = [row for _, row in read_rows(file, max_file_bytes=max_file_bytes)]
        except (ValueError, MemoryError):
            # read_files says what is wrong.
            pass
    if articles and "paragraphs" in articles[0]:
        rows = nested_rows(articles, source=source)
        cells_of = {name: [row[name] for row in rows] for name in rows[0]}
        return Table(join_columns([source], [cells_of]), ("question", "context", "answers"), source)
    return Table(read_files([file], source=flag, max_file_bytes=max_file_bytes), columns, source)


def nested_rows(articles: list[dict], *, source: str) -> list[dict[str, Any]]:
    """The rows of articles of paragraphs, each a context with its questions, as SQuAD's authors have them.

    Raises:
        ValueError: an article has other keys, or a question is_impossible, yet has answers.
    """
    rows = []
    for number, article in enumerate(articles, start=1):
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers")
                    if question.get("is_impossible") and answers:
                        raise ValueError(f"{source}: question {question['id']!r} is_impossible, yet has answers")
                    if answers is not None:
                        answers = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                    row = dict(context=paragraph["context"], question=question["question"], answers=answers)
                    rows.append(dict(id=str(question["id"]), **row))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{source}: article {number} is not as SQuAD's are ({type(error).__name__}: {error})"
            ) from error
    if not rows:
        raise ValueError(f"{source} has no questions")
    return rows


def checked_questions(tables: Sequence[Table], count: int | None, *, kind: str, with_null: bool) -> Questions:
    """The first `count` questions of several tables.

    Args:
        kind (`str`): "train", "validation" or "test"; a test set may have no answers.
        with_null (`bool`): a question may have no answer.
    Raises:
        ValueError: a missing column, a cell that is None or of another type, an id that stands twice, an answer that its
            context does not have, a question without an answer although all must have one.
    """
    questions, moved = Questions(texts=[]), []
    for table in tables:
        if count is None or count > len(questions):
            rows = first(table.rows, None if count is None else count - len(questions))
            moved += add_rows(questions, table._replace(rows=rows), optional=kind == "test")
    source = f"the {kind} set ({', '.join(table.source for table in tables)})"
    twice = [name for name, times in Counter(questions.ids).items() if times > 1]
    if twice:
        raise ValueError(
            f"{source} has {len(twice)} ids more than once, the first is {twice[0]!r}: an id is for one question"
        )
    if moved:
        logger.warning(
            f"{source}: {len(moved)} of {len(questions)} questions have an answer that does not stand at its answer_start "
            f"(the first is {moved[0]!r}); the place of its text at that byte of UTF-8, or else the nearest, is taken"
        )
    if kind == "test" and not any(questions.texts):
        questions.texts = None
        return questions
    without = [name for name, texts in zip(questions.ids, questions.texts, strict=True) if not texts]
    if without and not with_null:
        raise ValueError(
            f"{source} has {len(without)} questions without an answer, the first is {without[0]!r}: give "
            "--version_2_with_negative"
        )
    if with_null and not without:
        logger.warning(
            f"{source} has an answer to each question, although --version_2_with_negative says that some have none"
        )
    return questions


def add_rows(questions: Questions, table: Table, *, optional: bool) -> list[str]:
    """Append the rows of `table` to `questions`.

    Args:
        optional (`bool`): there may be no answers.
    Returns:
        Ids of the questions of which an answer does not stand at its answer_start.
    Raises:
        ValueError: as `checked_questions`.
    """
    (rows, columns, source), moved = table, []
    needed = dict(zip(("--question_column", "--context_column", "--answer_column"), columns, strict=True))
    answers = cells(rows, columns[2]) if columns[2] in rows.column_names else [None] * len(rows)
    if optional and all(cell is None for cell in answers):
        del needed["--answer_column"]
        answers = [{"text": [], "answer_start": []}] * len(rows)
    check_columns(rows, ["id", *needed.values()], source=source, flag=", ".join(needed))
    for column, kinds in (("id", (str, int)), (columns[0], str), (columns[1], str)):
        check_cells(rows, column, kinds, source=source)
    ids, contexts = [str(name) for name in cells(rows, "id")], cells(rows, columns[1])
    for number, (name, context, cell) in enumerate(zip(ids, contexts, answers, strict=True), start=1):
        place = f"row {number} of {source} (id {name!r})"
        texts, starts = answer_cell(cell, place, columns[2])
        begins = [nearest_place(context, text, start) for text, start in zip(texts, starts, strict=True)]
        text, begin = next((pair for pair in zip(texts, begins, strict=True) if pair[1] is not None), ("", -1))
        if texts and begin < 0:
            raise ValueError(
                f"{place}: the context does not have the answer {texts[0]!r}; a question without an answer has empty lists"
            )
        begin += len(text) - len(text.lstrip())
        questions.texts.append(texts)
        questions.spans.append((begin, begin + len(text.strip())))
        if begins != starts:
            moved.append(name)
    questions.ids += ids
    questions.questions += cells(rows, columns[0])
    questions.contexts += contexts
    return moved


def answer_cell(cell: Any, place: str, column: str) -> tuple[list[str], list[int]]:
    """Texts and starts of {"text": [...], "answer_start": [...]}, or of a list of {"text", "answer_start"}; also as JSON.

    Raises:
        ValueError: it is something else; `place` and `column` are named.
    """
    value = cell
    try:
        if isinstance(value, str):
            value = parse_json(value, place)
        if isinstance(value, list):
            value = {name: [answer[name] for answer in value] for name in ("text", "answer_start")}
        texts, starts = list(value["text"]), list(value["answer_start"])
    except (ValueError, TypeError, KeyError):
        texts, starts = None, None
    is_text = texts is not None and all(isinstance(text, str) for text in texts)
    if not is_text or len(texts) != len(starts) or not all(type(start) is int for start in starts):
        shown = repr(cell) if len(repr(cell)) <= 100 else repr(cell)[:97] + "..."
        raise ValueError(
            f'{place} has {shown} in the column {column!r}, expected {{"text": [...], "answer_start": [...]}}, two lists of '
            "one length"
        )
    return texts, starts


def nearest_place(context: str, text: str, start: int) -> int | None:
    """`start` where the text stands there, else its place at the byte `start`, else the nearest; None where it has none."""
    if not text.strip():
        return None
    if start >= 0 and context.startswith(text, start):
        return start
    places, place = [], context.find(text)
    while place >= 0:
        places.append(place)
        place = context.find(text, place + 1)
    return min(places, key=lambda place: (len(context[:place].encode()) != start, abs(place - start)), default=None)

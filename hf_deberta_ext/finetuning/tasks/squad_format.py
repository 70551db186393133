# SPDX-License-Identifier: Apache-2.0
"""Questions about texts: from rows with the columns of SQuAD, or the nested JSON of its authors, to checked columns."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from ...data.columns import check_cells, check_columns, first
from ...data.files import read_files

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Questions", "Source", "checked_questions", "read_question_file"]

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Source:
    """Rows, and the names of their columns.

    Args:
        what (`str`): where they are from ("--train_file train.json"), for messages.
    """

    rows: "Dataset"
    question: str
    context: str
    answers: str
    what: str


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


def read_question_file(path: str, columns: tuple[str, str, str], *, flag: str) -> Source:
    """A file of rows, or of the nested JSON of SQuAD's authors, which has column names of its own.

    Args:
        columns: names of question, context and answers.
        flag (`str`): the one that named the file ("--train_file").
    Raises:
        ValueError: see `read_files`; nested JSON with other keys than SQuAD's.
    """
    from datasets import Dataset

    file = Path(path).expanduser()
    what = f"{flag} {file.name}"
    if file.name.lower().removesuffix(".gz").endswith(".json") and file.is_file():
        try:
            data = file.read_bytes()
            whole = json.loads(gzip.decompress(data) if file.suffix.lower() == ".gz" else data)
        except (ValueError, OSError, EOFError, zlib.error):
            # Rows on lines, or damaged: read_files says what is wrong.
            whole = None
        articles = whole.get("data") if isinstance(whole, dict) else None
        if isinstance(articles, list) and articles and isinstance(articles[0], dict) and "paragraphs" in articles[0]:
            return Source(Dataset.from_list(_nested_rows(articles, what)), "question", "context", "answers", what)
    return Source(read_files([path], source=flag), *columns, what)


def _nested_rows(articles: list[dict], what: str) -> list[dict[str, Any]]:
    """The JSON of SQuAD's authors: articles of paragraphs, each a context with its questions."""
    rows = []
    for number, article in enumerate(articles, start=1):
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers")
                    if question.get("is_impossible") and answers:
                        raise ValueError(f"{what}: question {question['id']!r} is_impossible, yet has answers")
                    texts = None if answers is None else [answer["text"] for answer in answers]
                    starts = None if answers is None else [answer["answer_start"] for answer in answers]
                    rows.append(
                        dict(
                            id=str(question["id"]),
                            context=paragraph["context"],
                            question=question["question"],
                            answers=None if answers is None else dict(text=texts, answer_start=starts),
                        )
                    )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{what}: article {number} is not as SQuAD's are ({type(error).__name__}: {error})") from error
    if not rows:
        raise ValueError(f"{what} has no questions")
    return rows


def checked_questions(sources: Sequence[Source], count: int | None, *, kind: str, with_null: bool) -> Questions:
    """The first `count` questions of several sources.

    Args:
        kind (`str`): "train", "validation" or "test"; a test set may have no answers.
        with_null (`bool`): whether a question may have no answer.
    Raises:
        ValueError: a missing column, a cell that is None or of another type, an id that stands twice, an answer that its
            context does not have, a question without an answer although all must have one.
    """
    found, moved = Questions(texts=[]), []
    for source in sources:
        if count is None or count > len(found):
            rows = first(source.rows, None if count is None else count - len(found))
            _add_rows(found, moved, replace(source, rows=rows.with_format(None)), optional=kind == "test")
    what = f"the {kind} set ({', '.join(source.what for source in sources)})"
    twice = [name for name, times in Counter(found.ids).items() if times > 1]
    if twice:
        raise ValueError(f"{what} has {len(twice)} ids more than once, the first is {twice[0]!r}: an id is for one question")
    if moved:
        logger.warning(
            f"{what}: {len(moved)} questions have an answer that does not stand at its answer_start (the first is "
            f"{moved[0]!r}); the nearest place in the context that has its text is taken"
        )
    if kind == "test" and not any(found.texts):
        found.texts = None
        return found
    without = [name for name, texts in zip(found.ids, found.texts, strict=True) if not texts]
    if without and not with_null:
        raise ValueError(
            f"{what} has {len(without)} questions without an answer, the first is {without[0]!r}: give "
            "--version_2_with_negative"
        )
    if with_null and not without:
        logger.warning(f"{what} has an answer to each question, although --version_2_with_negative says that some have none")
    return found


def _add_rows(found: Questions, moved: list[str], source: Source, optional: bool):
    """Append the rows of `source` to `found`, and the ids of those whose answer_start is wrong to `moved`."""
    rows, what = source.rows, source.what
    needed = {"--question_column": source.question, "--context_column": source.context, "--answer_column": source.answers}
    cells = rows[source.answers][:] if source.answers in rows.column_names else [None] * len(rows)
    if optional and not any(cell is not None for cell in cells):
        del needed["--answer_column"]
        cells = [{"text": [], "answer_start": []}] * len(rows)
    check_columns(rows, ["id", *needed.values()], source=what, flag=", ".join(needed))
    check_cells(rows, "id", (str, int), source=what)
    for column in (source.question, source.context):
        check_cells(rows, column, str, source=what)
    ids, contexts = [str(name) for name in rows["id"]], rows[source.context][:]
    for row, (name, context, cell) in enumerate(zip(ids, contexts, cells, strict=True), start=1):
        where = f"row {row} of {what} (id {name!r})"
        texts, starts = _answers(cell, where, source.answers)
        found.texts.append(texts)
        found.spans.append(_span(context, texts, starts, where))
        if texts and not any(_place(context, text, start) == start for text, start in zip(texts, starts, strict=True)):
            moved.append(name)
    found.ids += ids
    found.questions += rows[source.question][:]
    found.contexts += contexts


def _span(context: str, texts: list[str], starts: list[int], where: str) -> tuple[int, int]:
    """Of the first answer that the context has, without white space around it; (-1, -1) where there are no answers."""
    for text, start in zip(texts, starts, strict=True):
        place = _place(context, text, start)
        if place is not None:
            begin = place + len(text) - len(text.lstrip())
            return begin, begin + len(text.strip())
    if texts:
        raise ValueError(
            f"{where}: the context does not have the answer {texts[0]!r}; a question without an answer has empty lists"
        )
    return -1, -1


def _answers(cell: Any, where: str, column: str) -> tuple[list[str], list[int]]:
    """Texts and starts of {"text": [...], "answer_start": [...]}, or of a list of {"text", "answer_start"}; also as JSON."""
    value = cell
    try:
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(value, list):
            value = {name: [answer[name] for answer in value] for name in ("text", "answer_start")}
        texts, starts = list(value["text"]), list(value["answer_start"])
    except (ValueError, TypeError, KeyError):
        texts, starts = None, None
    is_text = texts is not None and all(isinstance(text, str) for text in texts)
    if not is_text or len(texts) != len(starts) or not all(type(start) is int for start in starts):
        shown = repr(cell) if len(repr(cell)) <= 100 else repr(cell)[:97] + "..."
        raise ValueError(
            f'{where} has {shown} in the column {column!r}, expected {{"text": [...], "answer_start": [...]}}, two lists of '
            "one length"
        )
    return texts, starts


def _place(context: str, text: str, start: int) -> int | None:
    """`start` where the text stands there, else the nearest place where it stands; None where it stands nowhere."""
    if not text.strip():
        return None
    if start >= 0 and context.startswith(text, start):
        return start
    places, place = [], context.find(text)
    while place >= 0:
        places.append(place)
        place = context.find(text, place + 1)
    return min(places, key=lambda place: abs(place - start), default=None)

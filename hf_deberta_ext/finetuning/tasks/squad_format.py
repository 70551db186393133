# SPDX-License-Identifier: Apache-2.0
"""Questions about texts: from rows with the columns of SQuAD, or the nested JSON of its authors, to checked columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...data.columns import cells, check_cells, check_columns, first
from ...data.files import file_kind, parse_json, read_files, read_rows

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Questions", "Table", "checked_questions", "read_question_file"]


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
        spans: where an answer stands in the context, [from, to) in characters without white space around it; (-1, -1) where
            there is none.
    """

    ids: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)
    texts: list[list[str]] | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


def read_question_file(file: Path, columns: tuple[str, str, str], *, flag: str) -> Table:
    """Read a file of rows, or of the nested JSON of SQuAD's authors, which has column names of its own.

    Args:
        columns: names of question, context and answers.
        flag (`str`): the one that named the file ("--train_file").
    Raises:
        ValueError: see `read_files`; nested JSON with other keys than SQuAD's.
    """
    from datasets import Dataset

    source = f"{flag} {file.name}"
    if file_kind(file) == "json" and file.is_file():
        articles = [row for _, row in read_rows(file)]
        if articles and "paragraphs" in articles[0]:
            try:
                return Table(Dataset.from_list(nested_rows(articles)), ("question", "context", "answers"), source)
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise ValueError(f"{source} is not as SQuAD's authors write theirs: {error!r}") from error
    return Table(read_files([file], source=flag), columns, source)


def nested_rows(articles: Sequence[dict]) -> list[dict[str, Any]]:
    """Return the rows of articles of paragraphs, each a context with its questions, as SQuAD's authors have them."""
    rows = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = {"text": [], "answer_start": []}
                if question.get("is_impossible") and question.get("answers"):
                    raise ValueError(f"question {question['id']!r} is_impossible, yet has answers")
                for answer in question.get("answers") or []:
                    answers["text"].append(answer["text"])
                    answers["answer_start"].append(answer["answer_start"])
                row = {"id": str(question["id"]), "question": question["question"], "context": paragraph["context"]}
                rows.append(row | {"answers": answers})
    if not rows:
        raise ValueError("no questions")
    return rows


def checked_questions(tables: Sequence[Table], count: int | None, *, kind: str, with_null: bool) -> Questions:
    """Return the first `count` questions of several tables.

    Args:
        kind (`str`): "train", "validation" or "test"; a test set may have no answers.
        with_null (`bool`): a question may have no answer.
    Raises:
        ValueError: a missing column, a cell that is None or of another type, an id that stands twice, an answer that its
            context does not have at its start, a question without an answer although all must have one.
    """
    questions = Questions(texts=[])
    for table in tables:
        rows = table.rows
        if count is not None:
            rows = first(rows, count - len(questions))
        add_rows(questions, rows, table.columns, table.source, optional=kind == "test")
    source = f"the {kind} set ({', '.join(table.source for table in tables)})"
    name, times = next(iter(Counter(questions.ids).most_common(1)), ("", 0))
    if times > 1:
        raise ValueError(f"{source} has the id {name!r} more than once: an id is for one question")
    if kind == "test" and not any(questions.texts):
        questions.texts = None
    elif not with_null and not all(questions.texts):
        name = questions.ids[questions.texts.index([])]
        raise ValueError(f"{source} has questions without an answer, such as {name!r}: give --version_2_with_negative")
    return questions


def add_rows(questions: Questions, rows: "Dataset", columns: tuple[str, str, str], source: str, *, optional: bool):
    """Append rows to `questions`; arguments and errors as of `Table` and `checked_questions`.

    Args:
        optional (`bool`): there may be no answers.
    """
    question_column, context_column, answer_column = columns
    flag = "--question_column, --context_column, --answer_column"
    check_columns(rows, ["id", question_column, context_column], source=source, flag=flag)
    answers = [None] * len(rows)
    if answer_column in rows.column_names or not optional:
        check_columns(rows, [answer_column], source=source, flag=flag)
        answers = cells(rows, answer_column)
    for column, kinds in (("id", (str, int)), (question_column, str), (context_column, str)):
        check_cells(rows, column, kinds, source=source)
    contexts = cells(rows, context_column)
    for number, (name, context, cell) in enumerate(zip(cells(rows, "id"), contexts, answers, strict=True), start=1):
        place = f"row {number} of {source} (id {str(name)!r})"
        texts, starts = [], []
        if cell is not None or not optional:
            texts, starts = answer_cell(cell, place, answer_column)
        questions.ids.append(str(name))
        questions.texts.append(texts)
        questions.spans.append(answer_span(context, texts, starts, place))
    questions.questions += cells(rows, question_column)
    questions.contexts += contexts


def answer_cell(cell: Any, place: str, column: str) -> tuple[list[str], list[int]]:
    """Return texts and starts of {"text": [...], "answer_start": [...]}, or of a list of such pairs; also of JSON.

    Raises:
        ValueError: it is something else; `place` and `column` are named.
    """
    try:
        value = cell
        if isinstance(value, str):
            value = parse_json(value, place)
        if isinstance(value, list):
            value = {name: [answer[name] for answer in value] for name in ("text", "answer_start")}
        texts, starts = list(value["text"]), list(value["answer_start"])
        kinds = {*map(type, texts)} <= {str} and {*map(type, starts)} <= {int}
    except (ValueError, TypeError, KeyError):
        kinds = False
    if not kinds or len(texts) != len(starts):
        raise ValueError(
            f'{place} has {str(cell)[:100]!r} in the column {column!r}, expected {{"text": [...], "answer_start": [...]}}, '
            "two lists of one length"
        )
    return texts, starts


def answer_span(context: str, texts: Sequence[str], starts: Sequence[int], place: str) -> tuple[int, int]:
    """Return the characters of the first answer that stands at its start, without white space around it; (-1, -1) of none.

    Raises:
        ValueError: no answer stands at its start; `place` is named.
    """
    if not texts:
        return -1, -1
    for text, start in zip(texts, starts, strict=True):
        if text.strip() and start >= 0 and context.startswith(text, start):
            begin = start + len(text) - len(text.lstrip())
            return begin, begin + len(text.strip())
    raise ValueError(
        f"{place}: the context does not have the answer {texts[0]!r} at character {starts[0]}; a question without an answer "
        "has empty lists"
    )

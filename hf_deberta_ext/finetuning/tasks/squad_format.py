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
    articles = []
    if file_kind(file) == "json" and file.is_file():
        articles = [row for _, row in read_rows(file)]
    if not articles or "paragraphs" not in articles[0]:
        return Table(read_files([file], source=flag), columns, source)
    rows = []
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    row = {"id": str(question["id"]), "question": question["question"], "context": paragraph["context"]}
                    rows.append(row | {"answers": question.get("answers") or []})
        return Table(Dataset.from_list(rows), ("question", "context", "answers"), source)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{source} is not as SQuAD's authors write theirs: {error!r}") from error


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
    for name, times in Counter(questions.ids).most_common(1):
        if times > 1:
            raise ValueError(f"{source} has the id {name!r} more than once: an id is for one question")
    if kind == "test" and not any(questions.texts):
        questions.texts = None
    elif not with_null and not all(questions.texts):
        name = questions.ids[questions.texts.index([])]
        raise ValueError(f"{source} has questions without an answer, such as {name!r}: give --version_2_with_negative")
    return questions


def add_rows(questions: Questions, rows: "Dataset", columns: tuple[str, str, str], source: str, *, optional: bool):
    """Append rows to `questions`; with `optional` there may be no answers."""
    question_column, context_column, answer_column = columns
    needed = ["id", question_column, context_column]
    has_answers = answer_column in rows.column_names or not optional
    if has_answers:
        needed.append(answer_column)
    check_columns(rows, needed, source=source, flag="--question_column, --context_column, --answer_column")
    for column, kinds in (("id", (str, int)), (question_column, str), (context_column, str)):
        check_cells(rows, column, kinds, source=source)
    answers = [None] * len(rows)
    if has_answers:
        answers = cells(rows, answer_column)
    names, contexts = [*map(str, cells(rows, "id"))], cells(rows, context_column)
    for number, (name, context, cell) in enumerate(zip(names, contexts, answers, strict=True), start=1):
        if cell is None and optional:
            cell = []
        try:
            texts, span = read_answers(cell, context)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"row {number} of {source} (id {name!r}) has {str(cell)[:100]!r} in the column {answer_column!r}, expected "
                f'{{"text": [...], "answer_start": [...]}}, texts of the context and the characters where they begin: {error}'
            ) from error
        questions.texts.append(texts)
        questions.spans.append(span)
    questions.ids += names
    questions.questions += cells(rows, question_column)
    questions.contexts += contexts


def read_answers(cell: Any, context: str) -> tuple[list[str], tuple[int, int]]:
    """Return the texts of {"text": [...], "answer_start": [...]}, or of a list of such pairs (also as JSON), and the
    characters of the first one that stands at its start, without white space around it; (-1, -1) of none."""
    if isinstance(cell, str):
        cell = parse_json(cell, "the cell")
    if isinstance(cell, list):
        cell = {name: [answer[name] for answer in cell] for name in ("text", "answer_start")}
    texts, starts = list(cell["text"]), list(cell["answer_start"])
    for text, start in zip(texts, starts, strict=True):
        if text.strip() and start >= 0 and context.startswith(text, start):
            begin = start + len(text) - len(text.lstrip())
            return texts, (begin, begin + len(text.strip()))
    if texts:
        raise ValueError(f"the context does not have the answer {texts[0]!r} at character {starts[0]}")
    return [], (-1, -1)

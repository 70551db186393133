# SPDX-License-Identifier: Apache-2.0
"""RACE: reading comprehension from exams of middle and high schools, in the forms in which it is passed around.

On the Hub and in files of its columns a row is a question; the raw release is folders of .txt files, each of which holds one
JSON object: an article with several questions.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.columns import check_cells, check_columns

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["RACE_COLUMNS", "RACE_LEVELS", "choice_list", "fill_blank", "race_level", "race_rows", "read_raw_race"]

RACE_COLUMNS = ("article", "question", "options")
RACE_LEVELS = ("middle", "high")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def fill_blank(question: str, option: str) -> str:
    """The option in the place of every blank "_" of the question, or behind a question that has none.

    The published practice, also where an option holds the words for two blanks.
    """
    return re.sub("_+", lambda _: option, question) if "_" in question else f"{question} {option}"


def race_level(name: str | None) -> str | None:
    """The school, "middle" or "high", where a name of a file, a configuration or an example says one of them alone.

    The last part of a path that says anything decides: high/middle1.txt is of a middle school.
    """
    for part in reversed(Path(name or "").parts):
        levels = [level for level in RACE_LEVELS if re.search(rf"(?<![a-z]){level}(?![a-z])", part.lower())]
        if levels:
            return levels[0] if len(levels) == 1 else None
    return None


def read_raw_race(folder: Path, *, what: str) -> "Dataset":
    """The questions of all .txt files in a folder of the raw release and in its folders, in the order of their numbers.

    Returns:
        Rows of the Hub's columns: example_id, article, question, options, answer (None where the file has no "answers").
    Raises:
        ValueError: there is no .txt file, or one is not such an object; it is named.
    """
    from datasets import Dataset

    files = sorted(folder.rglob("*.txt"), key=lambda file: (str(file.parent), _number(file), file.name))
    if not files:
        raise ValueError(f"{what}: there are no .txt files in {folder}, the folder of a raw release of RACE")
    columns = {name: [] for name in ("example_id", *RACE_COLUMNS, "answer")}
    for file in files:
        for row in _raw_questions(file, what):
            for name, cells in columns.items():
                cells.append(row[name])
    return Dataset.from_dict(columns)


def _number(file: Path) -> int:
    digits = re.search(r"\d+", file.stem)
    return int(digits.group()) if digits else -1


def _raw_questions(file: Path, what: str) -> list[dict[str, Any]]:
    try:
        article = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{what}: {file} is not JSON in UTF-8: {error}") from error
    if not isinstance(article, dict) or not {"article", "questions", "options"} <= {*article}:
        there = ", ".join(map(repr, article)) if isinstance(article, dict) else type(article).__name__
        raise ValueError(f"{what}: {file} must be an object with 'article', 'questions' and 'options', it has {there}")
    questions, options = article["questions"], article["options"]
    texts = [article["article"], *questions] if isinstance(questions, list) else [None]
    lists = options if isinstance(options, list) else [None]
    if not (all(isinstance(text, str) for text in texts) and all(isinstance(choices, list) for choices in lists)):
        raise ValueError(f"{what}: {file} must have a text, a list of texts and a list of lists of texts in its fields")
    answers = article.get("answers") or [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise ValueError(
            f"{what}: {file} has {len(questions)} questions, options for {len(options)} and answers to {len(answers)}"
        )
    name = str(article.get("id") or file.name)
    if race_level(name) is None and (level := race_level(str(file.parent))):
        name = f"{level}{name}"
    return [
        dict(example_id=name, article=article["article"], question=question, options=choices, answer=answer)
        for question, choices, answer in zip(questions, options, answers, strict=True)
    ]


def race_rows(rows: "Dataset", *, what: str, level: str | None = None, label_column: str = "answer") -> list[dict[str, Any]]:
    """Questions in the form that `choice_rows` describes; choices are filled into the blanks of their question.

    An article's questions have one example_id: the id of a question is that and its number, "high63.txt-0".

    Args:
        rows: columns article, question, options, and where there are answers answer ("A", ...); example_id is not needed.
        what (`str`): where they are from ("--train_file high.jsonl").
        level (`str`, *optional*): "middle" or "high" for rows whose example_id says neither.
        label_column (`str`): the one of the answers.
    Raises:
        ValueError: a column is missing, a cell is None, empty or of another type, or an answer is none of the options.
    """
    check_columns(rows, RACE_COLUMNS, source=what)
    for column in ("article", "question"):
        check_cells(rows, column, str, source=what)
    seen: Counter[str] = Counter()
    questions = []
    for number, row in enumerate(rows.with_format(None), start=1):
        name = str(row.get("example_id") or f"row{number}")
        where = f"row {number} of {what} ({name})"
        for column in ("article", "question"):
            if not row[column].strip():
                raise ValueError(f"{where} has an empty {column}")
        options = choice_list(row["options"], where=where, column="options")
        questions.append(
            dict(
                id=f"{name}-{seen[name]}",
                context=row["article"],
                choices=[fill_blank(row["question"], option) for option in options],
                label=_answer(row.get(label_column), len(options), where),
                group=race_level(name) or level,
            )
        )
        seen[name] += 1
    return questions


def choice_list(cell: Any, *, where: str, column: str) -> list[str]:
    """The choices of a cell: a list of texts, or in .csv and .tsv a JSON list of them.

    Raises:
        ValueError: it is something else, or a choice is None or empty; `where` and `column` are named.
    """
    choices = cell
    if isinstance(cell, str):
        try:
            choices = json.loads(cell)
        except json.JSONDecodeError:
            choices = None
    if not isinstance(choices, list):
        raise ValueError(
            f"{where} has {cell!r} in the column {column!r}, expected a list of texts (in JSON, where cells are text)"
        )
    for number, choice in enumerate(choices, start=1):
        if not isinstance(choice, str) or not choice.strip():
            raise ValueError(f"{where} has {choice!r} as choice {number} in the column {column!r}, expected text")
    return choices


def _answer(answer: Any, options: int, where: str) -> int | None:
    if answer is None or answer == "":
        return None
    letters = LETTERS[:options]
    if not isinstance(answer, str) or len(answer) != 1 or answer not in letters:
        raise ValueError(f"{where} has the answer {answer!r}; its {options} options are {', '.join(letters)}")
    return letters.index(answer)

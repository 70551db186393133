# SPDX-License-Identifier: Apache-2.0
"""RACE, reading comprehension from exams of middle and high schools: its raw release, and the school that names say.

The raw release is folders of .txt files, each of which holds one JSON object: an article with several questions.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.files import HELD_BYTES, parse_json, read_lines

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["race_level", "read_raw_race"]

RACE_LEVELS = ("middle", "high")


def race_level(name: str | None) -> str | None:
    """The school, "middle" or "high", where a name of a file, a configuration or an example says one of them alone.

    The last part of a path that says anything decides: high/middle1.txt is of a middle school.
    """
    for part in reversed(Path(name or "").parts):
        levels = [level for level in RACE_LEVELS if re.search(rf"(?<![a-z]){level}(?![a-z])", part.lower())]
        if levels:
            return levels[0] if len(levels) == 1 else None
    return None


def read_raw_race(folder: Path, *, source: str, max_file_bytes: int = HELD_BYTES) -> "Dataset":
    """The questions of all .txt files in a folder of the raw release and in its folders, in the order of their numbers.

    Returns:
        Rows of the Hub's columns: example_id, article, question, options, answer (None where the file has no "answers").
    Raises:
        ValueError: there is no .txt file, or one is not such an object; it is named.
    """
    from datasets import Dataset

    def place(file):
        digits = re.search(r"[0-9]+", file.stem)
        return str(file.parent), int(digits.group()) if digits else -1, file.name

    files = sorted(folder.rglob("*.txt"), key=place)
    if not files:
        raise ValueError(f"{source}: there are no .txt files in {folder}, the folder of a raw release of RACE")
    return Dataset.from_list([row for file in files for row in raw_questions(file, source, max_file_bytes)])


def raw_questions(file: Path, source: str, max_file_bytes: int) -> list[dict[str, Any]]:
    """The questions of one file, see `read_raw_race`.

    Raises:
        ValueError: it is not such an object.
    """
    try:
        article = parse_json("".join(line for _, line in read_lines(file, max_file_bytes)), f"{file}")
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    if not isinstance(article, dict) or not {"article", "questions", "options"} <= {*article}:
        shown = ", ".join(map(repr, article)) if isinstance(article, dict) else type(article).__name__
        raise ValueError(f"{source}: {file} must be an object with 'article', 'questions' and 'options', it has {shown}")
    questions, options, answers = article["questions"], article["options"], article.get("answers") or []
    lists = [[article["article"]], questions, answers, *(options if isinstance(options, list) else [options])]
    if not all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in lists):
        raise ValueError(f"{source}: {file} must have a text, a list of texts and a list of lists of texts in its fields")
    answers = answers or [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise ValueError(
            f"{source}: {file} has {len(questions)} questions, options for {len(options)} and answers to {len(answers)}"
        )
    name = str(article.get("id") or file.name)
    if race_level(name) is None and (level := race_level(str(file.parent))):
        name = f"{level}{name}"
    return [
        dict(example_id=name, article=article["article"], question=question, options=choices, answer=answer)
        for question, choices, answer in zip(questions, options, answers, strict=True)
    ]

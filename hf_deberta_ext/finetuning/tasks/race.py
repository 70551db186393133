# SPDX-License-Identifier: Apache-2.0
"""RACE, reading comprehension from exams of middle and high schools: its raw release, and the school that names say.

The raw release is folders of .txt files, each of which holds one JSON object: an article with several questions.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.files import open_text, parse_json

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["race_level", "read_raw_race"]


def race_level(name: str | None) -> str | None:
    """Return the school, "middle" or "high", that the last part of a path which names one names alone; None without any."""
    for part in reversed(Path(name or "").parts):
        levels = {*re.findall("(?<![a-z])(middle|high)(?![a-z])", part.lower())}
        if levels:
            return levels.pop() if len(levels) == 1 else None
    return None


def read_raw_race(folder: Path, *, source: str) -> "Dataset":
    """Read the questions of all .txt files in a folder of the raw release and in its folders, in the order of their numbers.

    Returns:
        Rows of the Hub's columns: example_id, article, question, options, answer (None where the file has no "answers").
    Raises:
        ValueError: there is no .txt file, or one is not such an object; it is named.
    """
    from datasets import Dataset

    rows = []
    files = sorted(folder.rglob("*.txt"), key=lambda file: (file.parent, len(file.name), file.name))
    if not files:
        raise ValueError(f"{source}: there are no .txt files in {folder}, the folder of a raw release of RACE")
    for file in files:
        with open_text(file) as opened:
            article = parse_json(opened.read(), str(file))
        try:
            name, questions = str(article.get("id", file.name)), article["questions"]
            if race_level(name) is None:
                name = f"{race_level(str(file.parent)) or ''}{name}"
            answers = article.get("answers") or [None] * len(questions)
            for question, options, answer in zip(questions, article["options"], answers, strict=True):
                row = {"example_id": name, "article": article["article"], "question": question}
                rows.append(row | {"options": options, "answer": answer})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{source}: {file} must be an object with an article, questions, options and answers, as many of each: "
                f"{error!r}"
            ) from error
    try:
        return Dataset.from_list(rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: an article, question or option in {folder} is no text: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""Sentences whose words are labelled: from rows with a list of words and one of labels, or from CoNLL text files."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.columns import cells, check_cells, check_columns
from ...data.files import HELD_BYTES, read_lines
from .labels import label_cells

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["CONLL_ENDINGS", "OUTSIDE", "Sentences", "are_entities", "joined", "read_conll", "sorted_labels", "word_rows"]

CONLL_ENDINGS = (".txt", ".conll", ".txt.gz", ".conll.gz")
OUTSIDE = "O"
PREFIXES = "BIES"
ENTITY_TAG = re.compile(rf"[{PREFIXES}]-.+")


@dataclass
class Sentences:
    """A set, column by column.

    Args:
        words: of each sentence.
        tags: a label for each word; None for a set without labels.
    """

    words: list[list[str]]
    tags: list[list[str]] | None

    def __len__(self) -> int:
        return len(self.words)


def read_conll(file: Path, *, source: str, max_file_bytes: int = HELD_BYTES) -> Sentences:
    """A CoNLL text file: a word a line, its tag in the last column, a blank line between sentences; also .gz.

    Columns are parted by tabs where a line has any, or else by spaces. Lines of -DOCSTART- are left out, and so are
    comments of CoNLL-U, "# name = value". Lines of one column alone are words without tags.

    Raises:
        ValueError: it is not there, not UTF-8, without a word, or some lines have a tag and others none; its first column
            numbers the words, as that of CoNLL-U.
    """
    if not file.is_file():
        raise ValueError(f"{source}: there is no file {file}")
    try:
        lines = [line.rstrip("\r\n") for _, line in read_lines(file, max_file_bytes)]
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    words, tags, tagged = [[]], [[]], None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            words.append([])
            tags.append([])
            continue
        if re.match(r"# \S+ = ", line):
            continue
        columns = [cell for cell in line.split("\t" if "\t" in line else " ") if cell]
        tagged = len(columns) > 1 if tagged is None else tagged
        if tagged != (len(columns) > 1):
            raise ValueError(
                f"{source}: line {number} of {file} is {line!r}, but the lines before it have "
                + ("a word and its tag" if tagged else "a word alone")
            )
        words[-1].append(columns[0])
        tags[-1].append(columns[-1].strip())
    sentences = [number for number, sentence in enumerate(words) if sentence]
    if not sentences:
        raise ValueError(f"{source}: {file} has no words")
    # Between 1, 2, 3 CoNLL-U may have 2-3 (a contraction) and 3.1 (a word left out), others a comment's #.
    numbers = [word for word in max(words, key=len) if not re.fullmatch(r"#|[0-9]+[-.][0-9]+", word)]
    if len(numbers) > 1 and numbers == [str(number) for number in range(1, len(numbers) + 1)]:
        raise ValueError(
            f"{source}: {file} numbers its words (1, 2, ..., as CoNLL-U does), but the first column must be the word and "
            f"the last its tag: give a file such as that of grep -vE '^(#|[0-9]+[-.])' {file.name} | cut -f2,4"
        )
    return Sentences([words[n] for n in sentences], [tags[n] for n in sentences] if tagged else None)


def word_rows(
    rows: "Dataset", text_column: str, label_column: str, *, source: str, names: Sequence[str] = (), labelled: bool = True
) -> Sentences:
    """
    Args:
        text_column, label_column (`str`): lists of words, and of their labels.
        source (`str`): where the rows are from, for messages.
        names: of labels that are numbers, where the data set has no names for them.
        labelled (`bool`): labels must be there.
    Raises:
        ValueError: a column is missing; a cell is no list, or there are more or fewer labels than words; a word is no text;
            a label is None, or a number without a name.
    """
    check_columns(rows, [text_column], source=source, flag="--text_column_name")
    check_cells(rows, text_column, list, source=source)
    sentences = cells(rows, text_column)
    for number, words in enumerate(sentences, start=1):
        wrong = [word for word in words if not isinstance(word, str)]
        if wrong or not words:
            shown = f"the word {wrong[0]!r}" if wrong else "no words"
            raise ValueError(f"row {number} of {source} has {shown} in the column {text_column!r}")
    if not labelled and (label_column not in rows.column_names or not any(cells(rows, label_column))):
        return Sentences(sentences, None)
    check_columns(rows, [label_column], source=source, flag="--label_column_name")
    check_cells(rows, label_column, list, source=source)
    columns, class_names = label_cells(rows, label_column)
    tags = []
    for number, (labels, words) in enumerate(zip(columns, sentences, strict=True), start=1):
        place = f"row {number} of {source}"
        if len(labels) != len(words):
            raise ValueError(
                f"{place} has {len(words)} words in {text_column!r}, but {len(labels)} labels in {label_column!r}"
            )
        tags.append([label_name(label, class_names or names, place, label_column) for label in labels])
    return Sentences(sentences, tags)


def label_name(label: Any, names: Sequence[str], place: str, column: str) -> str:
    """A label that is text, or the name of one that is a number.

    Raises:
        ValueError: it is neither, or has no name; `place` and `column` are named.
    """
    if isinstance(label, str) and label:
        return label
    shown = f"{place} has the label {label!r} in the column {column!r}"
    if not isinstance(label, int) or isinstance(label, bool):
        raise ValueError(f"{shown}, expected text or a number")
    if not names:
        raise ValueError(
            f"{shown}, a number without a name: give --label_names O B-PER I-PER ..., in the order of the numbers"
        )
    if not 0 <= label < len(names):
        raise ValueError(f"{shown}, but there are {len(names)} names: {', '.join(names)}")
    return names[label]


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Each label once: "O" first, then by type, and of a type B- before I-, E-, S-."""

    def key(label):
        prefix, _, kind = label.partition("-")
        place = PREFIXES.index(prefix) if ENTITY_TAG.fullmatch(label) else -1
        return (label != OUTSIDE, kind if place >= 0 else label, place)

    return sorted({*labels}, key=key)


def are_entities(labels: Sequence[str]) -> bool:
    """True if all labels but "O" are tags of entities, and there is one.

    Raises:
        ValueError: some are, and others are not.
    """
    kinds = {label: ENTITY_TAG.fullmatch(label) is not None for label in labels if label != OUTSIDE}
    if not any(kinds.values()):
        return False
    if not all(kinds.values()):
        wrong = next(label for label, is_entity in kinds.items() if not is_entity)
        raise ValueError(
            f"the label {wrong!r} is no tag of an entity as others are: expected O, B-, I-, E- or S- and a type"
        )
    return True


def joined(sets: Sequence[Sentences], *, source: str) -> Sentences:
    """The sentences of several files as one set.

    Raises:
        ValueError: some have labels and others none.
    """
    labelled = [part for part in sets if part.tags is not None]
    if labelled and len(labelled) < len(sets):
        raise ValueError(f"{source}: some files have labels and others none")
    words = [sentence for part in sets for sentence in part.words]
    return Sentences(words, [tags for part in labelled for tags in part.tags] if labelled else None)

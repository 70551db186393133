# SPDX-License-Identifier: Apache-2.0
"""Sentences whose words are labelled: from rows with a list of words and one of labels, or from CoNLL text files."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.columns import cells, check_cells, check_columns
from ...data.files import open_text
from .labels import label_cells

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["CONLL_ENDINGS", "OUTSIDE", "Sentences", "are_entities", "joined", "read_conll", "sorted_labels", "word_rows"]

CONLL_ENDINGS = (".txt", ".conll", ".txt.gz", ".conll.gz")
OUTSIDE = "O"
ENTITY_TAG = re.compile("([BIES])-(.+)")


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


def read_conll(file: Path, *, source: str) -> Sentences:
    """Read a CoNLL text file: a word a line, its tag in the last column, a blank line between sentences; also .gz.

    Columns are parted by tabs where a line has any, or else by spaces. Lines of -DOCSTART- are left out, and so are
    comments of CoNLL-U, "# name = value". Lines of one column alone are words without tags.

    Raises:
        ValueError: it is not UTF-8, without a word, or some lines have a tag and others none; its first column numbers the
            words, as that of CoNLL-U.
    """
    sentences: list[list[list[str]]] = [[]]
    with open_text(file) as lines:
        for line in lines:
            if not line.strip() or line.startswith("-DOCSTART-"):
                sentences.append([])
            elif not re.match(r"# \S+ = ", line):
                separator = "\t+" if "\t" in line else " +"
                sentences[-1].append([*filter(None, re.split(separator, line.rstrip("\r\n")))])
    sentences = [*filter(None, sentences)]
    words = [[columns[0] for columns in sentence] for sentence in sentences]
    tags = [[columns[-1].strip() for columns in sentence] for sentence in sentences]
    lines_with_tags = [len(columns) > 1 for columns in chain.from_iterable(sentences)]
    if not words:
        raise ValueError(f"{source}: {file} has no words")
    if any(lines_with_tags) != all(lines_with_tags):
        without = [columns for columns in chain.from_iterable(sentences) if len(columns) == 1]
        raise ValueError(f"{source}: {file} has the line {without[0][0]!r} without a tag: all lines must have one, or none")
    longest = max(words, key=len)
    if len(longest) > 1 and all(re.fullmatch("#|[0-9]+([-.][0-9]+)?", word) for word in longest):
        raise ValueError(
            f"{source}: {file} numbers its words, as CoNLL-U does, but the first column must be the word, the last its tag"
        )
    return Sentences(words, tags if any(lines_with_tags) else None)


def word_rows(
    rows: "Dataset", text_column: str, label_column: str, *, source: str, names: Sequence[str] = (), labelled: bool = True
) -> Sentences:
    """Return the sentences of rows.

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
        if not words or not all(isinstance(word, str) for word in words):
            raise ValueError(f"row {number} of {source} has {words!r} in the column {text_column!r}, expected words")
    if not labelled and (label_column not in rows.column_names or not any(cells(rows, label_column))):
        return Sentences(sentences, None)
    check_columns(rows, [label_column], source=source, flag="--label_column_name")
    check_cells(rows, label_column, list, source=source)
    columns, class_names = label_cells(rows, label_column)
    by_number = dict(enumerate(class_names or names))
    tags = []
    for number, (labels, words) in enumerate(zip(columns, sentences, strict=True), start=1):
        place = f"row {number} of {source} has"
        if len(labels) != len(words):
            raise ValueError(f"{place} {len(words)} words in {text_column!r}, but {len(labels)} labels in {label_column!r}")
        tags.append([])
        for label in labels:
            if not isinstance(label, str):
                label = by_number.get(label)
            if not label:
                raise ValueError(
                    f"{place} the labels {labels}, expected texts, or numbers whose names --label_names O B-PER I-PER ... "
                    "gives, in the order of the numbers"
                )
            tags[-1].append(label)
    return Sentences(sentences, tags)


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Return each label once: "O" first, then by type, and of a type B- before I-, E-, S-."""

    def key(label: str) -> tuple[bool, str, int]:
        tag = ENTITY_TAG.fullmatch(label)
        if tag is None:
            return label != OUTSIDE, label, -1
        return True, tag[2], "BIES".index(tag[1])

    return sorted({*labels}, key=key)


def are_entities(labels: Sequence[str]) -> bool:
    """Tell if all labels but "O" are tags of entities, and there is one.

    Raises:
        ValueError: some are, and others are not.
    """
    others = {label for label in labels if label != OUTSIDE}
    entities = {*filter(ENTITY_TAG.fullmatch, others)}
    if entities and entities < others:
        raise ValueError(
            f"the label {min(others - entities)!r} is no tag of an entity as others are: expected O, B-, I-, E- or S- and a "
            "type"
        )
    return bool(entities)


def joined(parts: Sequence[Sentences], *, source: str) -> Sentences:
    """Return the sentences of several files as one set.

    Raises:
        ValueError: some have labels and others none.
    """
    words = [*chain.from_iterable(part.words for part in parts)]
    tags = [*chain.from_iterable(part.tags or () for part in parts)]
    if tags and len(tags) < len(words):
        raise ValueError(f"{source}: some files have labels and others none")
    return Sentences(words, tags or None)

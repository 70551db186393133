# SPDX-License-Identifier: Apache-2.0
"""Read sentences with a label for each word from CoNLL files or rows; sort labels, and recognise entity tags."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from ...data.columns import cells, check_cells, check_columns
from ...data.files import UTF_8, open_text
from .labels import label_cells

__all__ = ["CONLL_ENDINGS", "OUTSIDE", "Sentence", "are_entities", "as_columns", "read_conll", "sorted_labels", "word_rows"]

CONLL_ENDINGS = (".txt", ".conll", ".txt.gz", ".conll.gz")
OUTSIDE = "O"
ENTITY_TAG = re.compile("([BIES])-(.+)")


class Sentence(NamedTuple):
    """Words and their labels; `tags` is None for a sentence without labels."""

    words: list[str]
    tags: list[str] | None


def as_columns(sentences: Sequence[Sentence]) -> tuple[list[list[str]], list[Any]]:
    """Return the words and the labels of all sentences as two lists."""
    return [sentence.words for sentence in sentences], [sentence.tags for sentence in sentences]


def read_conll(file: Path, *, source: str, encoding: str = UTF_8) -> list[Sentence]:
    """Read a CoNLL text file (also .gz): one word per line, its tag in the last column, a blank line between sentences.

    Columns are separated by tabs if a line has any, else by spaces. Lines with -DOCSTART- and comments of CoNLL-U
    ("# name = value") are skipped. Lines with only one column are words without tags.
    """
    sentences: list[list[list[str]]] = [[]]
    without = with_tags = None
    with open_text(file, encoding) as lines:
        for line in lines:
            if not line.strip() or line.startswith("-DOCSTART-"):
                sentences.append([])
            elif not re.match(r"# \S+ = ", line):
                separator = "\t+" if "\t" in line else " +"
                columns = [*filter(None, re.split(separator, line.rstrip("\r\n")))]
                sentences[-1].append(columns)
                if len(columns) > 1:
                    with_tags = columns
                else:
                    without = columns
    longest = [columns[0] for columns in max(sentences, key=len)]
    if not longest:
        raise ValueError(f"{source}: {file} must have at least one word, got none")
    if without and with_tags:
        raise ValueError(f"{source}: either all lines of {file} or none must have a tag, got {without[0]!r} without a tag")
    if len(longest) > 1 and all(re.fullmatch("#|[0-9]+([-.][0-9]+)?", word) for word in longest):
        raise ValueError(
            f"{source}: the first column of {file} must be words and the last one tags, got word numbers as in CoNLL-U"
        )
    read = []
    for sentence in filter(None, sentences):
        tags = [columns[-1].strip() for columns in sentence]
        read.append(Sentence([columns[0] for columns in sentence], tags if with_tags else None))
    return read


def word_rows(
    rows: Dataset, text_column: str, label_column: str, *, source: str, names: Sequence[str] = (), labelled: bool = True
) -> list[Sentence]:
    """Convert rows with a list of words and a list of labels to sentences; `names` are the names of numbered labels."""
    check_columns(rows, [text_column], source=source, flag="--text_column_name")
    check_cells(rows, text_column, list, source=source)
    all_words = cells(rows, text_column)
    for number, words in enumerate(all_words, start=1):
        if not words or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"row {number} of {source} has {words!r} in the column {text_column!r}, expected a list of words"
            )
    if not labelled and (label_column not in rows.column_names or not any(cells(rows, label_column))):
        return [Sentence(words, None) for words in all_words]
    columns, class_names = label_cells(rows, label_column, source=source, flag="--label_column_name")
    check_cells(rows, label_column, list, source=source)
    by_number = dict(enumerate(class_names or names))
    sentences = []
    for number, (labels, words) in enumerate(zip(columns, all_words, strict=True), start=1):
        place = f"row {number} of {source} has"
        if len(labels) != len(words):
            raise ValueError(f"{place} {len(words)} words in {text_column!r}, but {len(labels)} labels in {label_column!r}")
        tags = [label if isinstance(label, str) else by_number.get(label) for label in labels]
        if not all(tags):
            raise ValueError(
                f"{place} the labels {labels}, expected names: give the names of the labels 0, 1, ... in this order, as "
                "--label_names O B-PER I-PER ..."
            )
        sentences.append(Sentence(words, tags))
    return sentences


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Return the distinct labels: "O" first, then sorted by type, and within a type in the order B-, I-, E-, S-."""

    def key(label: str) -> tuple[bool, str, int]:
        tag = ENTITY_TAG.fullmatch(label)
        if tag is None:
            return label != OUTSIDE, label, -1
        return True, tag[2], "BIES".index(tag[1])

    return sorted({*labels}, key=key)


def are_entities(labels: Sequence[str]) -> bool:
    """Return True if there are entity tags; raise a ValueError if only some of the labels other than "O" are entity tags."""
    others = {label for label in labels if label != OUTSIDE}
    entities = {*filter(ENTITY_TAG.fullmatch, others)}
    if entities and entities < others:
        raise ValueError(
            "labels other than O must be all entity tags (B-, I-, E- or S- before a type) or all plain labels, got both "
            f"{min(others - entities)!r} and {min(entities)!r}"
        )
    return bool(entities)

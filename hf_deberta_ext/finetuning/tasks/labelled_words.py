# SPDX-License-Identifier: Apache-2.0
"""Sentences whose words are labelled: read from rows with a list of words and one of labels, or from CoNLL text files."""

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.columns import check_cells, check_columns
from ...data.files import read_files, shown_files
from ...data.hub import read_hub

if TYPE_CHECKING:
    from datasets import Dataset

    from .token_classification import TokenClassificationArguments

__all__ = ["HUB", "OUTSIDE", "Sentences", "are_entities", "read_conll", "read_sentences", "sorted_labels"]

# name: (Hub id, revision). The first branch of each holds a script, which datasets no longer runs.
HUB = {"conll2003": ("eriktks/conll2003", "refs/convert/parquet"), "wnut17": ("leondz/wnut_17", "refs/convert/parquet")}
SPLITS = {"train": ["train"], "validation": ["validation", "dev"], "test": ["test"]}
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


def read_conll(file: Path, *, what: str) -> Sentences:
    """A CoNLL text file: a word a line, its tag in the last column, a blank line between sentences; also .gz.

    Columns are parted by tabs where a line has any, or else by spaces. Lines of -DOCSTART- are left out, and so are
    comments of CoNLL-U, "# name = value". Lines of one column alone are words without tags.

    Raises:
        ValueError: it is not there, not UTF-8, without a word, or some lines have a tag and others none; its first column
            numbers the words, as that of CoNLL-U.
    """
    if not file.is_file():
        raise ValueError(f"{what}: there is no file {file}")
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{what}: {file} cannot be read as text in UTF-8: {error}") from error
    words, tags = [[]], [[]]
    tagged = None
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("-DOCSTART-"):
            words.append([])
            tags.append([])
            continue
        if re.match(r"# \S+ = ", line):
            continue
        cells = line.split("\t") if "\t" in line else line.split(" ")
        cells = [cell for cell in cells if cell]
        if tagged is None:
            tagged = len(cells) > 1
        if tagged != (len(cells) > 1):
            raise ValueError(
                f"{what}: line {number} of {file} is {line!r}, but the lines before it have "
                + ("a word and its tag" if tagged else "a word alone")
            )
        words[-1].append(cells[0])
        tags[-1].append(cells[-1])
    sentences = [number for number, sentence in enumerate(words) if sentence]
    if not sentences:
        raise ValueError(f"{what}: {file} has no words")
    if _are_numbers_of_words(max(words, key=len)):
        raise ValueError(
            f"{what}: {file} numbers its words (1, 2, ..., as CoNLL-U does), but the first column must be the word and the "
            f"last its tag: give a file such as that of grep -vE '^(#|[0-9]+[-.])' {file.name} | cut -f2,4"
        )
    return Sentences([words[n] for n in sentences], [tags[n] for n in sentences] if tagged else None)


def _are_numbers_of_words(first_column: Sequence[str]) -> bool:
    """1, 2, 3, ...; between them CoNLL-U may have 2-3 (a contraction) and 3.1 (a word left out), others a comment's #."""
    numbers = [cell for cell in first_column if not re.fullmatch(r"#|[0-9]+[-.][0-9]+", cell)]
    return len(numbers) > 1 and numbers == [str(number) for number in range(1, len(numbers) + 1)]


def _from_rows(rows: "Dataset", arguments: "TokenClassificationArguments", *, what: str, labelled: bool) -> Sentences:
    """
    Args:
        labelled (`bool`): labels must be there.
    Raises:
        ValueError: a column is missing; a cell is no list, or there are more or fewer labels than words; a word is no text;
            a label is None, or a number without a name.
    """
    text_column, label_column = arguments.text_column_name, arguments.label_column_name
    check_columns(rows, [text_column], source=what, flag="--text_column_name")
    check_cells(rows, text_column, list, source=what)
    words = rows.with_format(None)[text_column][:]
    for number, sentence in enumerate(words, start=1):
        wrong = [word for word in sentence if not isinstance(word, str)]
        if wrong or not sentence:
            found = f"the word {wrong[0]!r}" if wrong else "no words"
            raise ValueError(f"row {number} of {what} has {found} in the column {text_column!r}")
    if label_column not in rows.column_names and not labelled:
        return Sentences(words, None)
    check_columns(rows, [label_column], source=what, flag="--label_column_name")
    if not labelled and all(not cell for cell in rows.with_format(None)[label_column]):
        return Sentences(words, None)
    check_cells(rows, label_column, list, source=what)
    names = _class_names(rows.features[label_column]) or arguments.label_names or None
    tags = []
    for number, (labels, sentence) in enumerate(zip(rows.with_format(None)[label_column], words, strict=True), start=1):
        where = f"row {number} of {what}"
        if len(labels) != len(sentence):
            raise ValueError(
                f"{where} has {len(sentence)} words in {text_column!r}, but {len(labels)} labels in {label_column!r}"
            )
        tags.append([_label_text(label, names, where, label_column) for label in labels])
    return Sentences(words, tags)


def _class_names(feature: Any) -> list[str] | None:
    """Of the Hub's List(ClassLabel)."""
    inner = getattr(feature, "feature", None)
    return getattr(inner, "names", None)


def _label_text(label: Any, names: Sequence[str] | None, where: str, column: str) -> str:
    if isinstance(label, str) and label:
        return label
    if not isinstance(label, int) or isinstance(label, bool):
        raise ValueError(f"{where} has the label {label!r} in the column {column!r}, expected text or a number")
    if names is None:
        raise ValueError(
            f"{where} has the label {label} in the column {column!r}, a number without a name: give --label_names O B-PER "
            "I-PER ..., in the order of the numbers"
        )
    if not 0 <= label < len(names):
        raise ValueError(
            f"{where} has the label {label} in the column {column!r}, but there are {len(names)} names: {names}"
        )
    return names[label]


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Each label once: "O" first, then by type, and of a type B- before I-, E-, S-."""

    def key(label):
        prefix, _, kind = label.partition("-")
        place = PREFIXES.index(prefix) if ENTITY_TAG.fullmatch(label) else -1
        return (label != OUTSIDE, kind if place >= 0 else label, place)

    return sorted({*labels}, key=key)


def are_entities(labels: Sequence[str]) -> bool:
    """Raises:
    ValueError: some labels are those of entities, and others are not.
    """
    kinds = {label: ENTITY_TAG.fullmatch(label) is not None for label in labels if label != OUTSIDE}
    if not any(kinds.values()):
        return False
    if not all(kinds.values()):
        other = next(label for label, is_entity in kinds.items() if not is_entity)
        raise ValueError(
            f"the label {other!r} is no tag of an entity as others are: expected O, B-, I-, E- or S- and a type"
        )
    return True


def read_sentences(arguments: "TokenClassificationArguments") -> tuple[dict[str, Sentences], str, list[str]]:
    """Sets by split, where they are from, and the names of all labels where the data or the user says them."""
    files = {split: getattr(arguments, f"{split}_file") for split in SPLITS}
    if any(files.values()):
        sets = {}
        for split in (split for split in SPLITS if files[split]):
            parts = [_from_file(Path(file), arguments, f"--{split}_file", split != "test") for file in files[split]]
            sets[split] = _joined(parts, f"--{split}_file")
        return sets, shown_files(dict.fromkeys(file for split in SPLITS for file in files[split])), arguments.label_names
    name, revision = HUB.get(arguments.task_name, (None, None))
    name = arguments.dataset_name or name
    if name is None:
        raise ValueError("there is no data: give --task_name, --dataset_name, or --train_file and the like")
    if arguments.dataset_name is None and arguments.data_revision is None:
        arguments = replace(arguments, data_revision=revision)
    splits = read_hub(name, arguments.dataset_config_name, SPLITS, arguments)
    sets = {
        split: _from_rows(rows, arguments, what=f"the {split} split of {name}", labelled=split != "test")
        for split, rows in splits.items()
    }
    features = [rows.features.get(arguments.label_column_name) for rows in splits.values()]
    return sets, name, next(filter(None, map(_class_names, features)), arguments.label_names)


def _from_file(file: Path, arguments: "TokenClassificationArguments", flag: str, labelled: bool) -> Sentences:
    if not file.name.lower().endswith(CONLL_ENDINGS):
        return _from_rows(read_files([file], source=flag), arguments, what=f"{flag} {file.name}", labelled=labelled)
    sentences = read_conll(file, what=flag)
    if labelled and sentences.tags is None:
        raise ValueError(f"{flag}: {file} has words without tags; such files are for --test_file")
    return sentences


def _joined(parts: Sequence[Sentences], flag: str) -> Sentences:
    with_tags = [part.tags is not None for part in parts]
    if any(with_tags) and not all(with_tags):
        raise ValueError(f"{flag}: some files have labels and others none")
    words = [sentence for part in parts for sentence in part.words]
    return Sentences(words, [tags for part in parts for tags in part.tags] if all(with_tags) else None)

# SPDX-License-Identifier: Apache-2.0
"""Load corpora: text files, JSON lines, tables, folders and Hub data sets as one data set with the column "text".

One generator reads all local files row by row. So files of one folder may differ in kind and in their other columns,
streaming holds one row at a time, and errors name the file and the line.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers.utils import logging

from .._version import __version__
from ..data.files import KINDS, file_kind, read_lines, read_rows
from ..data.hub import load_hub_dataset
from .prepared_corpus import MANIFEST_FILE, halved

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["DOCUMENTS", "DocumentStream", "file_bytes", "load_corpus", "text_sizes", "texts"]

logger = logging.get_logger(__name__)

DOCUMENTS = ("blank_line", "line", "file")
ENDINGS = ", ".join(KINDS) + " (each also with .gz)"
NO_FILE = "no file or folder {} (working directory: {})"
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w.-]+)?")
# Bytes of text in a byte of a compressed file, about.
COMPRESSED = 4
# The smallest shard of a stream has at least this share of the text of the largest.
BALANCE = 0.8
# Path, size and time of change, by which the cache notices changes.
File = tuple[str, int, int]


def load_corpus(
    sources: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    documents: Literal["blank_line", "line", "file"] = "blank_line",
    text_column: str = "text",
    name: str | None = None,
    split: str = "train",
    streaming: bool = False,
    cache_dir: str | os.PathLike | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    num_proc: int | None = None,
) -> "Dataset | IterableDataset":
    """Load the text of files, folders and Hub data sets as a data set with the one column "text", a document a row.

    Args:
        sources: one or several of: a file (.txt, .text, .jsonl, .json, .csv, .tsv, .parquet; each also .gz); a folder
            (all such files below it, sorted; hidden ones skipped, others and manifest.json counted in a warning); else the
            name of a data set on the Hub.
        documents: a document of plain text: the lines between blank lines ("blank_line"), each line that is not blank
            ("line"), or a file ("file"). Line ends become "\\n", a byte order mark is dropped. A document is held in memory,
            and so is a .json file that is one array.
        text_column (`str`): the column of the text in JSON, tables and Hub data sets; null is an empty document.
        name, split, revision, token: as in `datasets.load_dataset`, for Hub data sets only; files are used whole.
        streaming (`bool`): read while iterating, row by row; nothing is written to disk.
        cache_dir: where the Arrow files go; default is the cache of datasets. Changed files are read again.
        num_proc (`int`, *optional*): processes that read; a file is read by one of them. Not for streaming.
    Returns:
        `datasets.Dataset`, with `streaming` `datasets.IterableDataset`.
    Raises:
        FileNotFoundError: a source is neither a file, nor a folder, nor a data set that can be reached.
        ValueError: an unknown ending, a missing column, no text, or what `read_rows` refuses; beyond the first document of
            a stream it comes while iterating.
    """
    from datasets import concatenate_datasets

    if documents not in DOCUMENTS:
        raise ValueError(f"documents must be one of {', '.join(DOCUMENTS)}, got {documents!r}")
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    reading = dict(documents=documents, text_column=text_column)
    options = dict(streaming=streaming, cache_dir=cache_dir, num_proc=num_proc)
    hub = dict(text_column=text_column, config=name, split=split, revision=revision, token=token) | options
    listed = [(os.fspath(source), list_files(os.fspath(source))) for source in sources]
    kinds = {file_kind(file[0]): file for _, files in listed for file in files or ()}
    # The first document of a file of each kind: a wrong column is refused before hours of reading.
    for file in kinds.values():
        next(file_documents([file], **reading), None)
    loaded = []
    # Neighbouring files become one data set.
    for is_hub, group in itertools.groupby(listed, key=lambda item: item[1] is None):
        if is_hub:
            loaded += [load_hub_corpus(source, **hub) for source, _ in group]
        else:
            loaded.append(load_files([file for _, files in group for file in files], reading, **options))
    return concatenate_datasets(loaded)


def texts(corpus: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Iterate over the documents of `load_corpus` without the blank ones, for the training of tokenizers."""
    for row in corpus:
        if row["text"] and not row["text"].isspace():
            yield row["text"]


class DocumentStream:
    """The documents of a stream except the first ones, which are held out: whole, or as shards of files.

    `sizes` are the bytes of text in each file; None: unknown, taken to be the same.
    """

    def __init__(self, corpus: "IterableDataset", held_out: int = 0, sizes: Sequence[int] | None = None):
        self.corpus, self.files = corpus, corpus.num_shards
        self.sizes = list(sizes or [1] * self.files)
        self.held_out: list[dict[str, Any]] = []
        # Documents that are held out of the first files.
        self.skipped: list[int] = []
        while len(self.held_out) < held_out and len(self.skipped) < self.files:
            file = len(self.skipped)
            documents = list(corpus.shard(self.files, file).take(held_out - len(self.held_out)))
            self.held_out += documents
            self.skipped.append(len(documents))
            if sizes is not None:
                self.sizes[file] -= sum(len(text.encode()) for text in texts(documents))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.corpus.skip(len(self.held_out)))

    def lanes(self, most: int) -> "list[IterableDataset]":
        """Return up to `most` shards, halved until they are of about the same size; of n, shard i has files i, i + n, ..."""
        n = most
        while n > 1 and not self.is_balanced(n):
            n = halved(n)
        # Skipping, even nothing, keeps the files in their order when the stream is shuffled.
        return [self.corpus.shard(n, i, contiguous=False).skip(sum(self.skipped[i::n])) for i in range(n)]

    def is_balanced(self, n: int) -> bool:
        shards = [sum(self.sizes[i::n]) for i in range(n)]
        return min(shards) > 0 and min(shards) >= BALANCE * max(shards)


def file_bytes(path: str, size: int) -> int:
    """Estimate the bytes of text in a file."""
    if path.endswith((".gz", ".parquet")):
        return size * COMPRESSED
    return size


def text_sizes(sources: Sequence[str]) -> list[int] | None:
    """Estimate the bytes of text in each file of the sources; None if one is a Hub data set."""
    listed = [list_files(source) for source in sources]
    if None in listed:
        return None
    return [file_bytes(path, size) for files in listed for path, size, _ in files]


def list_files(source: str) -> list[File] | None:
    """List the files of a source; None for the name of a Hub data set."""
    path = os.path.expanduser(source)
    if os.path.isdir(path):
        paths = folder_files(path)
    elif os.path.isfile(path):
        if not file_kind(path):
            raise ValueError(f"the ending of {source} is unknown, expected one of {ENDINGS}; rename or convert the file")
        paths = [path]
    elif file_kind(path) or not HUB_ID.fullmatch(source):
        raise FileNotFoundError(NO_FILE.format(source, os.getcwd()))
    else:
        return None
    files = []
    for path in paths:
        stat = os.stat(path)
        files.append((os.path.abspath(path), stat.st_size, stat.st_mtime_ns))
    return files


def folder_files(path: str) -> list[str]:
    """List the data files below a folder, sorted; those that are left out are counted in a warning."""
    paths, left_out = [], Counter()
    for file in sorted(Path(path).rglob("*")):
        if any(part.startswith(".") for part in file.relative_to(path).parts) or not file.is_file():
            continue
        # A manifest lists files, and holds no text.
        if file.name == MANIFEST_FILE or not file_kind(file):
            left_out[file.suffix or file.name] += 1
        else:
            paths.append(str(file))
    if not paths:
        raise ValueError(f"the folder {path} holds no file with one of the endings {ENDINGS}")
    if left_out:
        shown = ", ".join(f"{count} x {kind}" for kind, count in sorted(left_out.items()))
        logger.warning(f"{path}: {len(paths)} files are read; left out: {shown}")
    return paths


def has_columns(sources: Sequence[str]) -> bool:
    """Return False if all sources are files of plain text, or folders of these."""
    for source in sources:
        files = None if "://" in source else list_files(source)
        if files is None or any(file_kind(path) != "text" for path, _, _ in files):
            return True
    return False


def load_files(
    files: list[File], reading: dict[str, Any], *, streaming: bool, cache_dir: str | None, num_proc: int | None
) -> "Dataset | IterableDataset":
    """Load the documents of files; `reading` are arguments of `file_documents`."""
    from datasets import Dataset, Features, IterableDataset, Value
    from datasets.exceptions import DatasetGenerationError

    arguments = dict(files=files, version=__version__) | reading
    if next(texts(file_documents(**arguments)), None) is None:
        raise ValueError(f"empty corpus: no document with a visible character in {len(files)} files: {files[0][0]}, ...")
    common = dict(generator=file_documents, features=Features({"text": Value("string")}), gen_kwargs=arguments)
    if streaming:
        return IterableDataset.from_generator(**common)
    try:
        return Dataset.from_generator(**common, cache_dir=cache_dir, num_proc=num_proc)
    except DatasetGenerationError as error:
        # Only its cause names the file and the row.
        raise ValueError(str(error.__cause__)) from error


def load_hub_corpus(source: str, text_column: str, *, config: str | None, streaming: bool, **options: Any) -> Any:
    """Load the text column of a data set on the Hub."""
    from datasets import Features, Value

    try:
        corpus = load_hub_dataset(source, config, streaming=streaming, **options)
    except ValueError as error:
        raise FileNotFoundError(f"{NO_FILE.format(source, os.getcwd())}, and {error}") from error
    first = next(iter(corpus), {})
    if not isinstance(first.get(text_column), str | None) or text_column not in first:
        raise ValueError(f"the data set {source} has no column {text_column!r} of strings, but {', '.join(first)}")
    corpus = corpus.select_columns([text_column])
    if text_column != "text":
        corpus = corpus.rename_column(text_column, "text")
    features = Features({"text": Value("string")})
    if corpus.features == features:
        return corpus
    return corpus.cast(features)


def file_documents(
    files: list[File], documents: str, text_column: str, version: str = __version__
) -> Iterator[dict[str, str]]:
    """Iterate over the rows of all files, a list that datasets shares out among processes and workers.

    Sizes, times and `version` are for the key of the cache: changed files are read again.
    """
    for path, _, _ in files:
        if file_kind(path) == "text":
            for text in plain_documents(path, documents):
                yield {"text": text}
            continue
        for place, row in read_rows(path, [text_column]):
            if text_column not in row:
                raise ValueError(f"no column {text_column!r} in {place}; it has {', '.join(row)}; name one as text_column")
            text = row[text_column]
            if not isinstance(text, str | None):
                raise ValueError(f"{text_column!r} in {place} must be a string, got {str(text)[:80]}")
            yield {"text": text or ""}


def plain_documents(path: str, documents: str) -> Iterator[str]:
    """Iterate over the documents of a text file."""
    document: list[str] = []
    for _, line in read_lines(path):
        line = line.rstrip("\r\n")
        is_blank = not line.strip()
        if documents == "file" or (documents == "blank_line" and not is_blank):
            document.append(line)
        elif documents == "line" and not is_blank:
            yield line
        elif document:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)

# SPDX-License-Identifier: Apache-2.0
"""Load text files, JSON lines, tables, folders and Hub data sets as one data set with the column "text".

One generator reads all local files row by row. Therefore, files of a folder may differ in their format and in their
other columns, streaming holds only one row in memory, and errors name the file and line.
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
# Estimated bytes of text per byte of a compressed file.
COMPRESSED = 4
# Minimum ratio of the text in the smallest shard of a stream to the text in the largest.
BALANCE = 0.8
# Path, size and modification time, which are part of the cache key.
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
    """Load files, folders and Hub data sets as a data set with only the column "text", one document per row.

    Args:
        sources (`str`, path or a list of these): files (.txt, .text, .jsonl, .json, .csv, .tsv, .parquet; each also .gz);
            folders (all such files in the folder and its subfolders, sorted; hidden files are skipped; other files and
            manifest.json are skipped with a warning); otherwise names of data sets on the Hub.
        documents (`str`, default `"blank_line"`): what a document of a text file is: the lines between blank lines
            ("blank_line"), each non-blank line ("line"), or the whole file ("file"). Line ends become "\\n"; a byte order
            mark is removed. Each document, and each .json file that is one array, must fit in memory.
        text_column (`str`, default `"text"`): text column of JSON, tables and Hub data sets; null is an empty document.
        name, split, revision, token (*optional*): as in `datasets.load_dataset`, only for Hub data sets.
        streaming (`bool`, default False): read row by row while iterating, without writing to disk.
        cache_dir (`str`, *optional*): folder for the resulting Arrow files; default: the cache of `datasets`. Source files
            that have changed are read again.
        num_proc (`int`, *optional*): number of processes, each of which reads whole files. Not for streaming.
    Returns:
        `datasets.Dataset`, or `datasets.IterableDataset` if `streaming`.
    Raises:
        FileNotFoundError: if a source is neither a file, nor a folder, nor a data set on the Hub that can be loaded.
        ValueError: if a file type is unknown; if a file is damaged or invalid; if the text column is missing or contains
            values other than strings; if there is no text. In a stream, errors after the first document are raised while
            iterating.
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
    # Read one document of each file type, so that a wrong column raises an error before hours of reading.
    for file in kinds.values():
        next(file_documents([file], **reading), None)
    loaded = []
    # Consecutive files become one data set.
    for is_hub, group in itertools.groupby(listed, key=lambda item: item[1] is None):
        if is_hub:
            loaded += [load_hub_corpus(source, **hub) for source, _ in group]
        else:
            loaded.append(load_files([file for _, files in group for file in files], reading, **options))
    return concatenate_datasets(loaded)


def texts(corpus: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Iterate over the texts of the non-blank documents in a corpus from `load_corpus`, for example to train a tokenizer."""
    for row in corpus:
        if row["text"] and not row["text"].isspace():
            yield row["text"]


class DocumentStream:
    """Iterable over the documents of a stream after the first `held_out` documents. `split` divides its files into shards.

    Args:
        corpus (`datasets.IterableDataset`): the stream, with one shard per file.
        held_out (`int`, default 0): number of documents to hold out.
        sizes (`list[int]`, *optional*): bytes of text in each file; default: all files count as equally large.
    """

    def __init__(self, corpus: "IterableDataset", held_out: int = 0, sizes: Sequence[int] | None = None):
        self.corpus, self.files = corpus, corpus.num_shards
        self.sizes = list(sizes or [1] * self.files)
        self.held_out: list[dict[str, Any]] = []
        # Number of held-out documents in each of the first files.
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

    def split(self, most: int) -> "list[IterableDataset]":
        """Split into n shards: shard i % n reads file i. n is `most`, halved until the shards have similar sizes."""
        n = most
        while n > 1 and not self.is_balanced(n):
            n = halved(n)
        # skip(), even of 0 documents, keeps the files in order when the stream is shuffled.
        return [self.corpus.shard(n, i, contiguous=False).skip(sum(self.skipped[i::n])) for i in range(n)]

    def is_balanced(self, n: int) -> bool:
        shards = [sum(self.sizes[i::n]) for i in range(n)]
        return min(shards) > 0 and min(shards) >= BALANCE * max(shards)


def file_bytes(path: str, size: int) -> int:
    """Estimate the bytes of text in a file of `size` bytes."""
    if path.endswith((".gz", ".parquet")):
        return size * COMPRESSED
    return size


def text_sizes(sources: Sequence[str]) -> list[int] | None:
    """Estimate the bytes of text in each file; return None if a source is a Hub data set."""
    listed = [list_files(source) for source in sources]
    if None in listed:
        return None
    return [file_bytes(path, size) for files in listed for path, size, _ in files]


def list_files(source: str) -> list[File] | None:
    """List the files of a source; return None if the source is the name of a Hub data set."""
    path = os.path.expanduser(source)
    if os.path.isdir(path):
        paths = folder_files(path)
    elif os.path.isfile(path):
        if not file_kind(path):
            raise ValueError(f"{source} must have one of the suffixes {ENDINGS}; rename or convert the file")
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
    """List the data files of a folder and its subfolders, sorted, and warn about the number of skipped files."""
    paths, left_out = [], Counter()
    for file in sorted(Path(path).rglob("*")):
        if any(part.startswith(".") for part in file.relative_to(path).parts) or not file.is_file():
            continue
        # A manifest lists files and contains no text.
        if file.name == MANIFEST_FILE or not file_kind(file):
            left_out[file.suffix or file.name] += 1
        else:
            paths.append(str(file))
    if not paths:
        raise ValueError(f"the folder {path} contains no file with one of the suffixes {ENDINGS}")
    if left_out:
        shown = ", ".join(f"{count} x {kind}" for kind, count in sorted(left_out.items()))
        logger.warning(f"{path}: reading {len(paths)} files; skipping {shown}")
    return paths


def has_columns(sources: Sequence[str]) -> bool:
    """Return True if a source may have columns: a remote source, a Hub data set, or a file that is not plain text."""
    for source in sources:
        files = None if "://" in source else list_files(source)
        if files is None or any(file_kind(path) != "text" for path, _, _ in files):
            return True
    return False


def load_files(
    files: list[File], reading: dict[str, Any], *, streaming: bool, cache_dir: str | None, num_proc: int | None
) -> "Dataset | IterableDataset":
    """Load the documents of files; `reading` contains the arguments `documents` and `text_column` of `file_documents`."""
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
        # Only the cause names file and row.
        raise ValueError(str(error.__cause__)) from error


def load_hub_corpus(source: str, text_column: str, *, config: str | None, streaming: bool, **options: Any) -> Any:
    from datasets import Features, Value

    try:
        corpus = load_hub_dataset(source, config, streaming=streaming, **options)
    except ValueError as error:
        raise FileNotFoundError(f"{NO_FILE.format(source, os.getcwd())}, and {error}") from error
    first = next(iter(corpus), {})
    if not isinstance(first.get(text_column), str | None) or text_column not in first:
        raise ValueError(f"the data set {source} needs a column {text_column!r} of strings, got {', '.join(first)}")
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
    """Iterate over the documents of all files. `datasets` divides the list `files` among processes and workers.

    `version`, and the sizes and times in `files`, are not used here. `datasets` includes all arguments in its cache key, so
    that changed files are read again.
    """
    for path, _, _ in files:
        if file_kind(path) == "text":
            for text in plain_documents(path, documents):
                yield {"text": text}
            continue
        for place, row in read_rows(path, [text_column]):
            if text_column not in row:
                raise ValueError(f"{place} has no column {text_column!r}, only {', '.join(row)}; set text_column")
            text = row[text_column]
            if not isinstance(text, str | None):
                raise ValueError(f"{text_column!r} in {place} must be a string, got {str(text)[:80]}")
            yield {"text": text or ""}


def plain_documents(path: str, documents: str) -> Iterator[str]:
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

# SPDX-License-Identifier: Apache-2.0
"""Corpora: text files, JSON lines, tables, folders and Hub data sets as one data set with the column "text".

Local files are read by one generator, whatever their kind: row by row, the text column only. So files of one folder may
differ in kind and in their other columns, streaming holds one row at a time, and errors name the file and the line.
"""

import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from transformers.utils import logging

from .._version import __version__
from ..data.files import KINDS, file_kind, read_lines, read_rows
from ..data.hub import load_hub_dataset
from .prepared_corpus import MANIFEST_FILE, halved

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["DOCUMENTS", "DocumentStream", "file_bytes", "load_corpus", "texts"]

logger = logging.get_logger(__name__)

DOCUMENTS = ("blank_line", "line", "file")
ENDINGS = ", ".join(KINDS) + " (each also with .gz)"
HUB_ID = re.compile(r"[\w][\w.-]*(/[\w.-]+)?")
# Bytes of text in a byte of a compressed file, about.
COMPRESSED = 4
# Of the lanes of a stream, the shortest has at least so much of the text of the longest.
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
    """Text of files, folders and Hub data sets as a data set with the one column "text": a document a row, in order.

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
        cache_dir: where the Arrow files go; default is the cache of datasets. Changed files are read anew.
        num_proc (`int`, *optional*): processes that read; a file is read by one of them. Not for streaming.
    Returns:
        `datasets.Dataset`, with `streaming` `datasets.IterableDataset`.
    Raises:
        FileNotFoundError: a source is neither a file, nor a folder, nor a data set that can be reached.
        ValueError: unknown ending or `documents`; folder without such files; no column `text_column`, or not of strings;
            no document with a visible character; a file that `read_rows` refuses (file and row are named; beyond the first
            document of a stream, this comes while iterating).
    """
    from datasets import concatenate_datasets

    if documents not in DOCUMENTS:
        raise ValueError(f"documents must be one of {', '.join(DOCUMENTS)}, got {documents!r}")
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    if num_proc is not None and streaming:
        raise ValueError("num_proc is for corpora that are read at once; with streaming=True leave it out")

    # Neighbouring files become one data set.
    groups: list[list[File] | str] = []
    for source in map(os.fspath, sources):
        files = list_files(source)
        if files is not None and groups and isinstance(groups[-1], list):
            groups[-1] += files
        else:
            groups.append(source if files is None else files)
    if not groups:
        raise ValueError("sources is empty, expected at least one file, folder or data set name")
    # The first document of the first file of each kind, so that a wrong column is refused before hours of reading.
    first_files = {file_kind(file[0]): file for group in reversed(groups) if isinstance(group, list) for file in group[::-1]}
    reading = dict(documents=documents, text_column=text_column)
    for file in first_files.values():
        next(file_documents([file], **reading), None)
    options = dict(streaming=streaming, cache_dir=None if cache_dir is None else os.fspath(cache_dir), num_proc=num_proc)
    hub = dict(config=name, split=split, revision=revision, token=token)
    loaded = [
        load_files(group, reading, **options)
        if isinstance(group, list)
        else load_hub_corpus(group, text_column, **hub, **options)
        for group in groups
    ]
    return loaded[0] if len(loaded) == 1 else concatenate_datasets(loaded)


def texts(corpus: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The documents of `load_corpus` one by one, without the blank ones, for the training of tokenizers."""
    return (row["text"] for row in corpus if row["text"] and not row["text"].isspace())


class DocumentStream:
    """The documents of a stream but for the first ones, which are held out: whole, or as lanes of files.

    Args:
        corpus (`datasets.IterableDataset`): of `load_corpus`.
        held_out (`int`): documents.
        sizes (`list[int]`, *optional*): bytes of text in each file; None: unknown, taken to be the same.

    Attributes:
        held_out (`list[dict]`): the documents.
        files (`int`): into which the stream can be parted.
    """

    def __init__(self, corpus: "IterableDataset", held_out: int = 0, sizes: Sequence[int] | None = None):
        self.corpus, self.files, self.held_out = corpus, corpus.num_shards, []
        # Documents that are held out of the first files.
        self.skipped: list[int] = []
        self.sizes = [1] * self.files if sizes is None else [*sizes]
        while len(self.held_out) < held_out and len(self.skipped) < self.files:
            file = len(self.skipped)
            documents = [*corpus.shard(self.files, file).take(held_out - len(self.held_out))]
            self.held_out += documents
            self.skipped.append(len(documents))
            if sizes is not None:
                self.sizes[file] = max(0, self.sizes[file] - sum(len(text.encode()) for text in texts(documents)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.corpus.skip(len(self.held_out)))

    def lanes(self, most: int) -> "list[IterableDataset]":
        """The stream in as many lanes as are asked for, or half as many, and so on, until they are of about the same size.

        Of n lanes, number i has the files i, i + n, i + 2n, ...
        """
        n = most
        while n > 1 and not self.is_balanced(n):
            n = halved(n)
        # Skipping, even nothing, keeps the files in their order when the stream is shuffled.
        return [self.corpus.shard(n, i, contiguous=False).skip(sum(self.skipped[i::n])) for i in range(n)]

    def is_balanced(self, n: int) -> bool:
        sizes = [sum(self.sizes[i::n]) for i in range(n)]
        return min(sizes) > 0 and min(sizes) >= BALANCE * max(sizes)


def file_bytes(path: str, size: int) -> int:
    """Bytes of text in a file, about."""
    return size * (COMPRESSED if path.endswith((".gz", ".parquet")) else 1)


def list_files(source: str) -> list[File] | None:
    """The files of a source; None for the name of a Hub data set.

    Raises:
        FileNotFoundError: there is no such file or folder, and no data set can have this name.
        ValueError: the ending is unknown, or a folder has no file of a known one.
    """
    path = os.path.expanduser(source)
    if os.path.isdir(path):
        paths, left_out = [], Counter()
        for folder, subfolders, names in os.walk(path):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in filter(lambda name: not name.startswith("."), names):
                # A manifest lists files, and holds no text.
                if file_kind(name) and name != MANIFEST_FILE:
                    paths.append(os.path.join(folder, name))
                else:
                    left_out[name if file_kind(name) else os.path.splitext(name)[1] or "no ending"] += 1
        if not paths:
            raise ValueError(f"the folder {source} holds no file with one of the endings {ENDINGS}")
        if left_out:
            shown = ", ".join(f"{count} x {kind}" for kind, count in sorted(left_out.items()))
            logger.warning(f"{source}: {len(paths)} files are read; left out: {shown}")
        paths.sort(key=lambda file: os.path.relpath(file, path).split(os.sep))
    elif os.path.isfile(path):
        if not file_kind(path):
            raise ValueError(f"the ending of {source} is unknown, expected one of {ENDINGS}; rename or convert the file")
        paths = [path]
    elif file_kind(path) or not HUB_ID.fullmatch(source):
        raise FileNotFoundError(_no_file(source))
    else:
        return None
    stats = [(os.path.abspath(path), os.stat(path)) for path in paths]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def has_columns(sources: Sequence[str]) -> bool:
    """False if all sources are files of plain text, or folders of these."""
    listed = [None if "://" in source else list_files(source) for source in sources]
    return any(files is None or any(file_kind(path) != "text" for path, _, _ in files) for files in listed)


def _no_file(source: str) -> str:
    return f"no file or folder {source} (working directory: {os.getcwd()})"


def load_files(
    files: list[File], reading: dict[str, Any], *, streaming: bool, cache_dir: str | None, num_proc: int | None
) -> "Dataset | IterableDataset":
    """A data set of the documents of files; `reading` are arguments of `file_documents`, others as in `load_corpus`."""
    from datasets import Dataset, Features, IterableDataset, Value
    from datasets.exceptions import DatasetGenerationError

    arguments = dict(files=files, version=__version__) | reading
    _check_not_empty(file_documents(**arguments), files[0][0] + (f" and {len(files) - 1} more" if len(files) > 1 else ""))
    features = Features({"text": Value("string")})
    if streaming:
        return IterableDataset.from_generator(file_documents, features=features, gen_kwargs=arguments)
    num_proc = None if num_proc is None else min(num_proc, len(files))
    try:
        return Dataset.from_generator(
            file_documents, features=features, gen_kwargs=arguments, cache_dir=cache_dir, num_proc=num_proc
        )
    except DatasetGenerationError as error:
        # It hides file and row; of another process only the traceback comes, as text.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        if message := re.search(r"^ValueError: (.*)", str(error.__cause__), re.MULTILINE):
            raise ValueError(message[1]) from error
        raise


def load_hub_corpus(source: str, text_column: str, *, config: str | None, streaming: bool, **options: Any) -> Any:
    """The text column of a data set on the Hub; arguments and errors as in `load_corpus`."""
    from datasets import Features, Value

    try:
        corpus = load_hub_dataset(source, config, streaming=streaming, **options)
    except ValueError as error:
        raise FileNotFoundError(f"{_no_file(source)}, and {error}") from error
    columns = corpus.column_names or list(next(iter(corpus), {}))
    if text_column not in columns:
        raise ValueError(_no_column(f"the data set {source}", text_column, columns))
    feature = corpus.features and corpus.features[text_column]
    if feature is not None and getattr(feature, "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"the column {text_column!r} of the data set {source} must hold strings, got {feature}")
    corpus = corpus.select_columns([text_column])
    if text_column != "text":
        corpus = corpus.rename_column(text_column, "text")
    features = Features({"text": Value("string")})
    corpus = corpus if corpus.features == features else corpus.cast(features)
    _check_not_empty(corpus, source)
    return corpus


def _check_not_empty(corpus: Iterable[dict[str, Any]], source: str):
    """
    Raises:
        ValueError: no document has a visible character.
    """
    if next(texts(corpus), None) is None:
        raise ValueError(f"empty corpus: no document with a visible character in {source}")


def file_documents(
    files: list[File], documents: str, text_column: str, version: str = __version__
) -> Iterator[dict[str, str]]:
    """The rows of all files; one list argument, which datasets shares out among processes and workers.

    Sizes, times and `version` are for the key of the cache: changed files, or those that another release read, are read
    anew.
    """
    for path, _, _ in files:
        try:
            if file_kind(path) == "text":
                for text in plain_documents(path, documents):
                    yield {"text": text}
                continue
            for place, row in read_rows(path, [text_column]):
                if text_column not in row:
                    raise ValueError(_no_column(place, text_column, row))
                if not isinstance(row[text_column], str | None):
                    raise ValueError(f"{text_column!r} in {place} must be a string, got {reprlib.repr(row[text_column])}")
                yield {"text": row[text_column] or ""}
        except MemoryError as error:
            raise ValueError(f"{path} needs more memory than there is: part its documents") from error


def plain_documents(path: str, documents: str) -> Iterator[str]:
    """The documents of a text file; arguments and errors as in `load_corpus`."""
    document: list[str] = []
    for _, line in read_lines(path):
        line = line.rstrip("\r\n")
        blank = not line.strip()
        if documents == "file" or (documents == "blank_line" and not blank):
            document.append(line)
        elif documents == "line" and not blank:
            yield line
        elif document:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)


def _no_column(place: str, text_column: str, columns: Iterable[str]) -> str:
    return f"no column {text_column!r} in {place}; it has {', '.join(map(repr, columns))}; name one of them as text_column"

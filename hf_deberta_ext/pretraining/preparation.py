# SPDX-License-Identifier: Apache-2.0
"""Preparation of a corpus as stages of datatrove tasks: documents, filters, deduplication, tokenizer, packed shards.

    documents     files -> filters -> parts of documents            a task for each group of files
    exact         parts -> signatures, then their duplicates        a task for each part, then one
    minhash       the same for near duplicates                      a task for each part, one for each bucket, one
    tokenizer     a sample of the kept documents                    one task
    rows          parts without duplicates -> shards of rows        a task for each part
    manifest      counts and digests of all                         one task

Groups and parts follow from the files alone. So the result depends neither on how many tasks run at once, nor on their
order, nor on the executor, and a task that died is run again alone.
"""

import contextlib
import io
import multiprocessing
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from copy import copy, deepcopy
from typing import Any

import dill
import numpy as np
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.decont import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)  # fmt: skip
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.utils.hashing import HashConfig, create_hash_func
from datatrove.utils.lid import FastTextLID
from datatrove.utils.text import ngrams, simplify_text
from datatrove.utils.word_tokenizers import WordTokenizer

from ..data.files import file_kind, read_rows
from .corpus import File, file_bytes, file_documents, list_files, load_hub_corpus
from .preparation_blocks import WORK, ReadDocuments, ReadPart, TrainTokenizer, WriteManifest, WriteParts, WriteRows

__all__ = [
    "EXECUTORS", "QUALITY", "document_filters", "evaluation_files", "grouped_sources", "language_filters", "ngram_hashes",
    "prepare", "run_stages", "text_hashes",
]  # fmt: skip

EXECUTORS = ("local", "slurm", "ray")
QUALITY = {
    "gopher_repetition": GopherRepetitionFilter, "gopher_quality": GopherQualityFilter, "fineweb": FineWebQualityFilter,
}  # fmt: skip
# Words as runs of letters and digits, single signs, and single characters of scripts without spaces.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]")


class Words(WordTokenizer):
    """Words for datatrove's filters and signatures, of any language, where its own need a package for each."""

    def word_tokenize(self, text: str) -> list[str]:
        return WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError

    span_tokenize = sent_tokenize


WORDS = Words()


class LanguageModel(FastTextLID):
    """fastText's classifier of languages, of a file of one's own; labels are of the form `__label__en`.

    Args:
        path (`str`): a local file.
        languages: labels, without their prefix, to score.
    Raises:
        FileNotFoundError, ValueError: no such file, no model of fastText, or one that does not know one of the languages.
    """

    def __init__(self, path: str, languages: Sequence[str]):
        super().__init__([*languages])
        self.path = path
        known = [label.removeprefix("__label__") for label in read_language_model(path).get_labels()]
        if missing := [language for language in languages if language not in known]:
            raise ValueError(f"{path} knows no language {missing[0]!r} of --languages, but {', '.join(sorted(known)[:200])}")

    @property
    def model(self) -> Any:
        # Read in the task: it cannot be pickled.
        if self._model is None:
            self._model = read_language_model(self.path)
        return self._model


def read_language_model(path: str) -> Any:
    from fasttext.FastText import _FastText

    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}, of --language_model")
    try:
        return _FastText(path)
    except (ValueError, MemoryError) as error:
        raise ValueError(
            f"{path} is no classifier of fastText ({error}): give the .bin file of lid.176 or GlotLID"
        ) from error


def document_text(document: Document) -> str:
    return document.text


# datatrove's xxhash is not that of xxhash 4, which takes bytes alone.
HASH = HashConfig(hash_fc="sha1")
hash_words = create_hash_func(HASH)
EXACT = ExactDedupConfig(content_getter=document_text, hash_config=HASH)
MINHASH = MinhashConfig(hash_config=HASH)


def grouped_sources(
    sources: Sequence[str], *, part_bytes: int, text_column: str, config: str | None, split: str
) -> list[dict[str, Any]]:
    """The tasks that read the sources: each with its files, or its piece of a Hub data set, and its parts.

    Args:
        sources: files, folders, URLs of fsspec for both, Hub data sets.
        part_bytes (`int`): of text, that become one shard; files are read together up to so many.
    Raises:
        FileNotFoundError, ValueError: as `load_corpus`.
    """
    groups: list[dict[str, Any]] = []
    for source in sources:
        hub, files = None, remote_files(source) if "://" in source else list_files(source)
        if files is None:
            hub = dict(source=source, text_column=text_column, config=config, split=split)
            pieces = getattr(load_hub_corpus(**hub, streaming=True), "num_shards", 1)
            files = [(f"{piece} of {pieces}", part_bytes, 0) for piece in range(pieces)]
        size = part_bytes
        for path, count, changed in files:
            if size >= part_bytes or hub:
                groups.append(dict(hub=hub, files=[], bytes=0))
                size = 0
            size += file_bytes(path, count)
            groups[-1]["files"].append((path, count, changed))
            groups[-1]["bytes"] = size
    first = 0
    for group in groups:
        group["first"], group["parts"] = first, -(-max(group["bytes"], 1) // part_bytes)
        first += group["parts"]
    return groups


def remote_files(url: str) -> list[tuple[str, int, int]]:
    from fsspec.core import url_to_fs

    files, path = url_to_fs(url)
    found = {files.unstrip_protocol(name): entry["size"] for name, entry in files.find(path, detail=True).items()}
    chosen = [(name, size, 0) for name, size in sorted(found.items()) if file_kind(name)]
    if not chosen:
        raise FileNotFoundError(f"no data file at {url}, or none with an ending that is known")
    return chosen


def language_filters(languages: Sequence[str], threshold: float, model: str | None) -> dict[str, PipelineStep]:
    """The filter of languages, by its reason to drop a document; empty without languages.

    Args:
        threshold (`float`): probability from which on a document is of a language.
        model (`str`, *optional*): fastText's .bin file; None: lid.176, which the first task downloads.
    Raises:
        FileNotFoundError, ValueError: there is no such file, it is no model of fastText, or it lacks a language.
        ImportError: fastText is not installed.
    """
    if not languages:
        return {}
    block = LanguageFilter([*languages], threshold)
    if model is not None:
        block.model = LanguageModel(model, languages)
    return {"other languages": block}


def document_filters(
    output: str, *, quality: Sequence[str], evaluation_hashes: Collection[int], ngram: int
) -> dict[str, PipelineStep]:
    """Filters by their reason to drop a document; the `ngram_hashes` of evaluation sets are written into the folder."""
    filters: dict[str, PipelineStep] = {name: QUALITY[name](language=WORDS) for name in QUALITY if name in quality}
    if evaluation_hashes:
        folder = get_datafolder(f"{output}/{WORK}/contamination")
        with folder.open("evaluation.index.hashes", "wb") as file:
            file.write(np.array(sorted(evaluation_hashes), dtype=HASH.np_descr).tobytes())
        config = NGramsDecontConfig(n_grams=ngram, hash_config=HASH)
        filters["contaminated"] = NGramsDecontFilter(folder, config, language=WORDS)
    return filters


def evaluation_files(sources: Sequence[str]) -> list[File]:
    """All files of evaluation sets.

    Raises:
        FileNotFoundError: one of them is no file or folder.
    """
    found = [(source, list_files(source)) for source in sources]
    if missing := [source for source, files in found if files is None]:
        raise FileNotFoundError(f"no file or folder {missing[0]}: give --decontaminate files of the evaluation sets")
    return [file for _, files in found for file in files]


def ngram_hashes(files: Sequence[File], n: int) -> set[int]:
    """`text_hashes` of all texts of evaluation sets, in whatever column.

    Raises:
        ValueError: no text has so many words.
    """
    hashes = set()
    for path, size, changed in files:
        if file_kind(path) == "text":
            rows = file_documents([(path, size, changed)], "line", "text")
        else:
            rows = (row for _, row in read_rows(path))
        for text in strings_of(rows):
            hashes.update(text_hashes(text, n))
    if files and not hashes:
        raise ValueError(f"no text of {files[0][0]} has {n} words, so nothing could be found: lower --decontaminate_ngram")
    return hashes


def text_hashes(text: str, n: int) -> set[int]:
    """Hashes of the n-grams of the words of a text; case and punctuation do not count."""
    words = WORDS.word_tokenize(simplify_text(text, NGramsDecontConfig().norm_config))
    return {hash_words(" ".join(ngram)) for ngram in ngrams(words, n)}


def strings_of(value: Any) -> Iterator[str]:
    """All strings in rows of lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings_of(value.values())
    elif isinstance(value, Iterable):
        for item in value:
            yield from strings_of(item)


def prepare(
    output: str,
    groups: list[dict[str, Any]],
    *,
    reading: dict[str, Any],
    filters: dict[str, PipelineStep],
    deduplicate: Sequence[str],
    trained_tokenizer: dict[str, Any] | None,
    tokenizer_sample: int,
    packing: dict[str, Any],
    held_out: int | None,
    manifest: dict[str, Any],
) -> list[tuple[str, int, list[PipelineStep]]]:
    """The stages of a preparation: name, number of tasks, blocks.

    Args:
        groups: of `grouped_sources`.
        reading: arguments of `file_documents`.
        filters (`dict`): what each drops -> datatrove's block.
        deduplicate: "exact", "minhash", both or neither.
        trained_tokenizer (`dict`, *optional*): arguments of `train_tokenizer`; None: it is in the folder already.
        tokenizer_sample (`int`): characters that it is trained on.
        packing, held_out: of `WriteRows`.
        manifest: of `WriteManifest`.
    """
    work, parts = f"{output}/{WORK}", groups[-1]["first"] + groups[-1]["parts"]
    documents = {"blank": ReadDocuments(groups, reading), **filters, "": WriteParts(f"{work}/parts")}
    kept: dict[str, PipelineStep] = {"": ReadPart(f"{work}/parts")}
    stages: list[tuple[str, int, list[PipelineStep]]] = [("documents", len(groups), [*documents.values()])]
    if "exact" in deduplicate:
        signatures, duplicates = f"{work}/exact/signatures", f"{work}/exact/duplicates"
        stages.append(("exact_signatures", parts, [*kept.values(), ExactDedupSignature(signatures, EXACT)]))
        stages.append(("exact_duplicates", 1, [ExactFindDedups(signatures, duplicates, EXACT)]))
        kept["exact duplicates"] = ExactDedupFilter(duplicates, EXACT)
    if "minhash" in deduplicate:
        folders = [f"{work}/minhash/{name}" for name in ("signatures", "buckets", "remove")]
        signature = MinhashDedupSignature(folders[0], MINHASH, language=WORDS)
        stages.append(("minhash_signatures", parts, [*kept.values(), signature]))
        stages.append(("minhash_buckets", MINHASH.num_buckets, [MinhashDedupBuckets(*folders[:2], config=MINHASH)]))
        stages.append(("minhash_clusters", 1, [MinhashDedupCluster(*folders[1:], config=MINHASH)]))
        kept["near duplicates"] = MinhashDedupFilter(folders[2])
    if trained_tokenizer is not None:
        training = TrainTokenizer(output, [*kept.values()], parts, tokenizer_sample, trained_tokenizer)
        stages.append(("tokenizer", 1, [training]))
    stages.append(("rows", parts, [*kept.values(), WriteRows(output, packing, held_out)]))
    labels = {"documents": [*documents], "rows": [*kept, ""]}
    return [*stages, ("manifest", 1, [WriteManifest(output, manifest, labels, parts)])]


class FreshTasks:
    """Mixin of executors. A task begins with blocks as they were built: those of datatrove add up what they count."""

    def _run_for_rank(self, *args, **kwargs) -> Any:
        executor = copy(self)
        executor.pipeline = deepcopy(self.pipeline)
        return super(FreshTasks, executor)._run_for_rank(*args, **kwargs)


class SlurmExecutor(FreshTasks, SlurmPipelineExecutor):
    pass


class RayExecutor(FreshTasks, RayPipelineExecutor):
    pass


class LocalExecutor(FreshTasks, LocalPipelineExecutor):
    """Processes of this machine. A task whose process is killed runs again, once, with those that were not finished.

    datatrove's own waits for ever for a process that was killed.
    """

    def run(self) -> None:
        if self.workers == 1:
            for rank in self.get_incomplete_ranks():
                run_task(self, rank)
            return
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        context.set_forkserver_preload([__name__])
        for attempt in (1, 2):
            ranks, pickled = self.get_incomplete_ranks(), dill.dumps(self)
            with ProcessPoolExecutor(self.workers, context) as pool:
                try:
                    for task in [pool.submit(run_pickled, pickled, rank) for rank in ranks]:
                        task.result()
                    return
                except BrokenProcessPool as error:
                    if attempt == 2:
                        missing = len(self.get_incomplete_ranks())
                        raise OSError(
                            f"a process was killed twice, {missing} of {self.tasks} tasks are left (is there too little "
                            "memory?): run the command again with fewer --workers, it goes on from there"
                        ) from error
                finally:
                    pool.shutdown(cancel_futures=True)


def run_pickled(executor: bytes, rank: int) -> None:
    # A process for each worker: no threads of tokenizers beside them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    run_task(dill.loads(executor), rank)


def run_task(executor: LocalExecutor, rank: int) -> None:
    """Run a task; its log is in the folder of logs alone."""
    with contextlib.redirect_stderr(io.StringIO()):
        executor._run_for_rank(rank)


def run_stages(
    stages: list[tuple[str, int, list[PipelineStep]]], output: str, executor: str, workers: int, options: dict[str, Any]
) -> None:
    """Run the stages one after the other, without the tasks that are finished; for Slurm, submit them.

    Args:
        executor (`str`): of `EXECUTORS`.
        workers (`int`): tasks that run at once.
        options (`dict`): other arguments of datatrove's executor.
    Raises:
        ValueError: an option that the executor does not have; an error of the user in a task.
        OSError: tasks that are not finished.
    """
    kind = dict(zip(EXECUTORS, (LocalExecutor, SlurmExecutor, RayExecutor), strict=True))[executor]
    previous = None
    for name, tasks, blocks in stages:
        options |= dict(tasks=tasks, workers=workers, logging_dir=f"{output}/{WORK}/logs/{name}")
        if executor == "slurm":
            options |= dict(job_name=f"prepare_{name}", depends=previous)
        try:
            previous = kind(blocks, **options)
        except TypeError as error:
            raise ValueError(f"--executor_options do not fit the executor {executor}: {error}") from error
        if executor == "slurm":
            continue
        if missing := len(previous.get_incomplete_ranks()):
            print(f"{name}: {missing} of {tasks} tasks", flush=True)
            previous.run()
        if missing := len(previous.get_incomplete_ranks()):
            logs = f"{output}/{WORK}/logs/{name}/logs"
            raise OSError(f"{missing} of {tasks} tasks of the stage {name} failed: see {logs}, and run the command again")
    if executor == "slurm":
        previous.run()

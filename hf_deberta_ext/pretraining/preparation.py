# SPDX-License-Identifier: Apache-2.0
"""Prepare a corpus in stages of datatrove tasks: read, filter, deduplicate, train a tokenizer, pack into shards.

    documents     files -> filters -> parts of documents            a task for each group of files
    exact         parts -> signatures -> exact duplicates           a task for each part, then one task
    minhash       parts -> signatures -> near duplicates            tasks for each part, for each bucket, then one task
    tokenizer     sample of the kept documents -> tokenizer         one task
    rows          parts without duplicates -> shards of rows        a task for each part
    manifest      counts and digests of all shards                  one task

A part contains the documents of one shard. Groups and parts depend only on the files and --part_bytes. Therefore, the result
does not depend on the executor or on the number and order of parallel tasks. To resume, run the same command again: it only
runs unfinished tasks.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import multiprocess
import numpy as np
import pyarrow as pa
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
)
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.hashing import HashConfig, create_hash_func
from datatrove.utils.lid import FastTextLID
from datatrove.utils.text import ngrams, simplify_text
from datatrove.utils.word_tokenizers import WordTokenizer

from ..data.files import file_kind, read_rows
from ..training.flags import overrides
from .corpus import File, file_bytes, file_documents, list_files, load_hub_corpus
from .corpus_arguments import tokenizer_options
from .preparation_blocks import WORK, Counted, ReadDocuments, ReadPart, TrainTokenizer, WriteManifest, WriteRows
from .run_preparation import PreparationArguments

__all__ = [
    "document_filters",
    "evaluation_files",
    "grouped_sources",
    "language_filters",
    "ngram_hashes",
    "run_stages",
    "stages_of",
]

EXECUTORS = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}
QUALITY = {
    "gopher_repetition": GopherRepetitionFilter,
    "gopher_quality": GopherQualityFilter,
    "fineweb": FineWebQualityFilter,
}
# Words: runs of letters and digits, single symbols, and single characters of scripts without spaces.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]")


class Words(WordTokenizer):
    """Word tokenizer for datatrove's filters and signatures, for any language. The word tokenizers of datatrove require a
    package for each language."""

    def word_tokenize(self, text: str) -> list[str]:
        return WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError

    span_tokenize = sent_tokenize


WORDS = Words()


class LanguageModel(FastTextLID):
    """Language identification with a fastText file, such as lid.176, that has labels of the form `__label__en`."""

    def __init__(self, path: str, languages: Sequence[str]):
        super().__init__([*languages])
        self.path, self.loaded = path, None
        known = self.model.get_labels()
        for language in languages:
            if f"__label__{language}" not in known:
                raise ValueError(f"--languages: {path} has no language {language!r}, only {', '.join(sorted(known))}")
        # A loaded model cannot be pickled, so each task loads the file again.
        self.loaded = None

    @property
    def model(self) -> Any:
        if self.loaded is None:
            from fasttext import load_model

            self.loaded = load_model(self.path)
        return self.loaded


def document_text(document: Document) -> str:
    return document.text


# datatrove's default, xxhash, fails with xxhash 4, which accepts only bytes.
HASH = HashConfig(hash_fc="sha1")
hash_words = create_hash_func(HASH)
EXACT = ExactDedupConfig(content_getter=document_text, hash_config=HASH)
MINHASH = MinhashConfig(hash_config=HASH)


def grouped_sources(args: PreparationArguments) -> list[dict[str, Any]]:
    """Group the sources into tasks; return a dict for each task, with the input and the number of output shards ("parts").

    The input of a task is one shard of a Hub data set, or consecutive files that together have --part_bytes of text or more
    (for the last files of a source, possibly less).
    """
    part_bytes = args.part_bytes
    groups: list[dict[str, Any]] = []
    for source in args.train_data:
        hub = None
        files = remote_files(source) if "://" in source else list_files(source)
        if files is None:
            hub = dict(source=source, text_column=args.text_column, config=args.data_config, split=args.train_split)
            pieces = load_hub_corpus(**hub, streaming=True).num_shards
            files = [(f"{piece} of {pieces}", part_bytes, 0) for piece in range(pieces)]
        size = part_bytes
        for path, count, changed in files:
            if size >= part_bytes or hub:
                groups.append(dict(hub=hub, files=[]))
                size = 0
            size += file_bytes(path, count)
            groups[-1]["files"].append((path, count, changed))
            groups[-1]["bytes"] = size
    first = 0
    for group in groups:
        group["first"] = first
        group["parts"] = -(-max(group["bytes"], 1) // part_bytes)
        first += group["parts"]
    return groups


def remote_files(url: str) -> list[tuple[str, int, int]]:
    from fsspec.core import url_to_fs

    files, path = url_to_fs(url)
    found = {files.unstrip_protocol(name): entry["size"] for name, entry in files.find(path, detail=True).items()}
    chosen = [(name, size, 0) for name, size in sorted(found.items()) if file_kind(name)]
    if not chosen:
        raise FileNotFoundError(f"{url} must contain files with a known suffix, such as .txt or .jsonl.gz, got none")
    return chosen


def language_filters(args: PreparationArguments) -> dict[str, PipelineStep]:
    """Return the language filter of --languages as {reason for dropping documents: filter}, or {} without --languages."""
    if not args.languages:
        return {}
    block = LanguageFilter([*args.languages], args.language_threshold)
    if args.language_model is not None:
        block.model = LanguageModel(args.language_model, args.languages)
    return {"other languages": block}


def document_filters(args: PreparationArguments, evaluation_hashes: Collection[int]) -> dict[str, PipelineStep]:
    """Return the filters for quality and decontamination as {reason for dropping documents: filter}.

    The filter "contaminated" reads `evaluation_hashes` (see `ngram_hashes`) from a file that this function writes.
    """
    filters: dict[str, PipelineStep] = {name: QUALITY[name](language=WORDS) for name in QUALITY if name in args.quality}
    if evaluation_hashes:
        folder = get_datafolder(f"{args.output_dir}/{WORK}/contamination")
        with folder.open("evaluation.index.hashes", "wb") as file:
            file.write(np.array(sorted(evaluation_hashes), dtype=HASH.np_descr).tobytes())
        config = NGramsDecontConfig(n_grams=args.decontaminate_ngram, hash_config=HASH)
        filters["contaminated"] = NGramsDecontFilter(folder, config, language=WORDS)
    return filters


def evaluation_files(sources: Sequence[str]) -> list[File]:
    found = []
    for source in sources:
        files = list_files(source)
        if files is None:
            raise FileNotFoundError(f"no file or folder {source}: --decontaminate needs files of the evaluation sets")
        found += files
    return found


def ngram_hashes(files: Sequence[File], n: int) -> set[int]:
    """Return hashes of the word n-grams in all strings of the evaluation files, in all columns."""
    hashes = set()
    for path, size, changed in files:
        if file_kind(path) == "text":
            rows = file_documents([(path, size, changed)], "line", "text")
        else:
            rows = (row for _, row in read_rows(path))
        for text in strings_of(rows):
            hashes.update(text_hashes(text, n))
    if files and not hashes:
        raise ValueError(
            f"--decontaminate needs texts of at least {n} words, got none in {len(files)} files: {files[0][0]}, ...; lower "
            "--decontaminate_ngram"
        )
    return hashes


def text_hashes(text: str, n: int) -> set[int]:
    """Return hashes of the word n-grams of a text, ignoring case and punctuation."""
    words = WORDS.word_tokenize(simplify_text(text, NGramsDecontConfig().norm_config))
    return {hash_words(" ".join(ngram)) for ngram in ngrams(words, n)}


def strings_of(value: Any) -> Iterator[str]:
    """Iterate over all strings in nested lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings_of(value.values())
    elif isinstance(value, Iterable):
        for item in value:
            yield from strings_of(item)


def stages_of(
    args: PreparationArguments, groups: list[dict[str, Any]], filters: dict[str, PipelineStep], manifest: dict[str, Any]
) -> list[tuple[str, int, list[PipelineStep]]]:
    """Return the stages of a preparation, each as (name, number of tasks, datatrove blocks).

    Args:
        groups (`list[dict]`): result of `grouped_sources`.
        filters (`dict`): {reason for dropping documents: datatrove filter}.
        manifest (`dict`): initial fields for `WriteManifest`.
    """
    output, deduplicate = args.output_dir, args.deduplicate
    work, parts = f"{output}/{WORK}", groups[-1]["first"] + groups[-1]["parts"]
    schema = pa.schema([("text", pa.large_string())])
    write_parts = ParquetWriter(
        f"{work}/parts",
        "${part}.parquet",
        compression="zstd",
        max_file_size=-1,
        schema=schema,
        use_content_defined_chunking=False,
    )
    reading = dict(documents=args.documents, text_column=args.text_column)
    blocks: list[PipelineStep] = [ReadDocuments(output, groups, reading)]
    for label, block in filters.items():
        blocks.append(Counted(output, label, block))
    stages = [("documents", len(groups), [*blocks, write_parts])]
    kept: list[PipelineStep] = [ReadPart(f"{work}/parts")]
    if "exact" in deduplicate:
        signatures, duplicates = f"{work}/exact/signatures", f"{work}/exact/duplicates"
        stages.append(("exact_signatures", parts, [*kept, ExactDedupSignature(signatures, EXACT)]))
        stages.append(("exact_duplicates", 1, [ExactFindDedups(signatures, duplicates, EXACT)]))
        kept.append(Counted(output, "exact duplicates", ExactDedupFilter(duplicates, EXACT)))
    if "minhash" in deduplicate:
        signatures, buckets, remove = f"{work}/minhash/signatures", f"{work}/minhash/buckets", f"{work}/minhash/remove"
        stages.append(("minhash_signatures", parts, [*kept, MinhashDedupSignature(signatures, MINHASH, language=WORDS)]))
        stages.append(("minhash_buckets", MINHASH.num_buckets, [MinhashDedupBuckets(signatures, buckets, config=MINHASH)]))
        stages.append(("minhash_clusters", 1, [MinhashDedupCluster(buckets, remove, config=MINHASH)]))
        kept.append(Counted(output, "near duplicates", MinhashDedupFilter(remove)))
    if args.tokenizer is None:
        options = dict(kind=args.train_tokenizer, vocab_size=args.vocab_size, model_max_length=args.max_length)
        training = TrainTokenizer(output, kept, parts, args.tokenizer_sample, options | tokenizer_options(args))
        stages.append(("tokenizer", 1, [training]))
    stages.append(("rows", parts, [*kept, WriteRows(output, manifest["packing"], args.validation_documents)]))
    stages.append(("manifest", 1, [WriteManifest(output, manifest, parts)]))
    return stages


def run_stages(stages: list[tuple[str, int, list[PipelineStep]]], args: PreparationArguments):
    """Run the unfinished tasks of all stages in order, or submit these tasks to Slurm."""
    executor, logs = args.executor, f"{args.output_dir}/{WORK}/logs"
    options = overrides(args.executor_options, "--executor_options")
    # Processes preload this module, and tokenizers use no threads.
    multiprocess.set_forkserver_preload([__name__])
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    previous = None
    for name, tasks, blocks in stages:
        options |= dict(tasks=tasks, workers=args.workers, logging_dir=f"{logs}/{name}")
        if executor == "slurm":
            options |= dict(job_name=f"prepare_{name}", depends=previous)
        try:
            previous = EXECUTORS[executor](blocks, **options)
        except TypeError as error:
            raise ValueError(f"--executor_options are invalid for the executor {executor}: {error}") from error
        if executor == "slurm":
            continue
        missing = len(previous.get_incomplete_ranks())
        if missing:
            print(f"{name}: running {missing} of {tasks} tasks", flush=True)
            previous.run()
        missing = len(previous.get_incomplete_ranks())
        if missing:
            failed = f"{missing} of {tasks} tasks of the stage {name} failed"
            raise OSError(f"{failed}: see {logs}/{name}/logs, then run the command again")
    if executor == "slurm":
        previous.run()

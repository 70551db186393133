# SPDX-License-Identifier: Apache-2.0
"""datatrove blocks that read documents, count what filters drop, train a tokenizer, and write shards and manifest."""

import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datatrove.data import Document
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.readers import ParquetReader
from fsspec.core import url_to_fs
from xxhash import xxh3_64_hexdigest

from ..tokenization import load_tokenizer
from ..training.digests import json_digest, tokenizer_digest
from .corpus import file_documents, load_hub_corpus
from .packing import PackingReport, pack_documents
from .prepared_corpus import SHARDS, TOKENIZER, tokenizer_folder, write_manifest
from .tokenizer_training import train_tokenizer

__all__ = [
    "Counted",
    "ReadDocuments",
    "ReadPart",
    "TrainTokenizer",
    "WriteManifest",
    "WriteRows",
    "save_tokenizer",
    "shard_content",
]

# Number of documents that are packed together.
TOGETHER = 1000
HELD_OUT = 100
WORK = "work"


def write_counts(output: str, name: str, rank: int, counts: dict[str, int]):
    with get_datafolder(f"{output}/{WORK}/counts").open(f"{name}-{rank:05d}.json", "w") as file:
        json.dump(counts, file)


class ReadDocuments(PipelineStep):
    """Block that reads the files of a task, skips blank documents, and assigns all other documents to parts."""

    type, name = "reader", "documents"

    def __init__(self, output: str, groups: list[dict[str, Any]], reading: dict[str, Any]):
        super().__init__()
        self.output, self.groups, self.reading = output, groups, reading

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        group = self.groups[rank]
        counts = dict(documents=0, blank=0)
        for text in self.texts(group):
            if text and not text.isspace():
                part = group["first"] + (counts["documents"] - counts["blank"]) % group["parts"]
                yield Document(text=text, id="", metadata={"part": f"{part:05d}"})
            else:
                counts["blank"] += 1
            counts["documents"] += 1
        write_counts(self.output, "documents", rank, counts)

    def texts(self, group: dict[str, Any]) -> Iterator[str | None]:
        if group["hub"]:
            piece, _, pieces = group["files"][0][0].split()
            corpus = load_hub_corpus(**group["hub"], streaming=True).shard(int(pieces), int(piece))
            for row in corpus:
                yield row["text"]
            return
        with tempfile.TemporaryDirectory() as folder:
            for path, size, changed in group["files"]:
                file = path
                if "://" in path:
                    files, remote = url_to_fs(path)
                    file = os.path.join(folder, os.path.basename(remote))
                    files.get_file(remote, file)
                for row in file_documents([(file, size, changed)], **self.reading):
                    yield row["text"]


class Counted(PipelineStep):
    """Block that runs a filter, and writes to a file how many documents the filter dropped in each task."""

    type, name = "filter", "counted"

    def __init__(self, output: str, label: str, block: PipelineStep):
        super().__init__()
        self.output, self.label, self.block = output, label, block

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        dropped = 0

        def counted() -> Iterator[Document]:
            nonlocal dropped
            for document in data:
                dropped += 1
                yield document

        for document in self.block.run(counted(), rank, world_size):
            dropped -= 1
            yield document
        write_counts(self.output, self.label, rank, {self.label: dropped})


class ReadPart(ParquetReader):
    """Block that reads the documents of one part, which may be empty. The rank of the task is the index of the part."""

    name = "part"

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        if self.data_folder.isfile(f"{rank:05d}.parquet"):
            yield from self.read_file(f"{rank:05d}.parquet")


class TrainTokenizer(PipelineStep):
    """Block that trains a tokenizer on about `characters` characters, from the first documents of every part."""

    type, name = "tokenizer", "tokenizer"

    def __init__(self, output: str, blocks: Sequence[PipelineStep], parts: int, characters: int, options: dict[str, Any]):
        super().__init__()
        self.output, self.blocks, self.parts = output, blocks, parts
        self.characters, self.options = characters, options

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        save_tokenizer(train_tokenizer(texts=self.sample(), show_progress=False, **self.options), self.output)

    def sample(self) -> Iterator[str]:
        for part in range(self.parts):
            documents, count = None, 0
            for block in deepcopy(self.blocks):
                documents = block(documents, part, self.parts)
            for document in documents:
                yield document.text
                count += len(document.text)
                if count * self.parts >= self.characters:
                    break


def save_tokenizer(tokenizer: Any, output: str):
    """Save a tokenizer in the output folder of a preparation, which may be remote."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = get_datafolder(f"{output}/{TOKENIZER}")
        for file in Path(folder).iterdir():
            with files.open(file.name, "wb") as target:
                target.write(file.read_bytes())


class WriteRows(PipelineStep):
    """Block that packs a part's documents into two shards: held-out rows (first documents) and training rows (the rest).

    Args:
        packing (`dict`): arguments of `pack_documents`, and "seed".
        held_out (`int`, *optional*): total number of held-out documents, spread equally over all parts; default: `HELD_OUT`,
            but at most a tenth of each part.
    """

    type, name = "packing", "rows"

    def __init__(self, output: str, packing: dict[str, Any], held_out: int | None):
        super().__init__()
        self.folder, self.packing, self.held_out = output, packing, held_out

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> None:
        tokenizer = load_tokenizer(tokenizer_folder(self.folder))
        texts = (document.text for document in data)
        held_out = HELD_OUT if self.held_out is None else self.held_out
        count = held_out // world_size + (rank < held_out % world_size)
        first = list(itertools.islice(texts, 10 * count))
        if self.held_out is None:
            count = min(count, max(len(first) > 1, len(first) // 10))
        report = {
            "held_out": self.write_shard(f"held_out/{rank:05d}.arrow", iter(first[:count]), tokenizer),
            "train": self.write_shard(f"train/{rank:05d}.arrow", itertools.chain(first[count:], texts), tokenizer),
        }
        with get_datafolder(f"{self.folder}/{WORK}/rows").open(f"{rank:05d}.json", "w") as file:
            json.dump(report, file)

    def write_shard(self, path: str, texts: Iterator[str], tokenizer: Any) -> dict[str, Any]:
        """Write a shard unless it has no rows; return the manifest entry, the number of tokens and the packing counts."""
        packing, counts = dict(self.packing), Counter()
        seed = packing.pop("seed")

        def packed() -> Iterator[dict[str, list]]:
            for number in itertools.count():
                together = list(itertools.islice(texts, TOGETHER))
                if not together:
                    return
                columns, new_counts = pack_documents(together, tokenizer, **packing, draws=f"{seed} {path} {number}")
                counts.update(new_counts)
                if columns["input_ids"]:
                    yield columns

        content, rows, tokens = shard_content(packed(), max(tokenizer.get_vocab().values()))
        if rows:
            with get_datafolder(self.folder).open(path, "wb") as file:
                file.write(content)
        shard = dict(file=path, rows=rows, bytes=len(content), digest=xxh3_64_hexdigest(content))
        return dict(shard=shard, tokens=tokens, counts=dict(counts))


def shard_content(batches: Iterable[dict[str, list]], largest_id: int) -> tuple[bytes, int, int]:
    """Convert batches of rows to an Arrow stream; return the bytes of the stream, and the numbers of rows and tokens."""
    sink, writer = pa.BufferOutputStream(), None
    ids = pa.uint16() if largest_id < 2**16 else pa.int32()
    types = dict(input_ids=ids, token_type_ids=pa.int8(), document_ids=pa.int16(), sentence_labels=pa.int8())
    rows = tokens = 0
    for columns in batches:
        arrays = {}
        for name, cells in columns.items():
            if name == "sentence_labels":
                arrays[name] = pa.array(cells, types[name])
                continue
            ends = np.cumsum([0, *map(len, cells)], dtype=np.int32)
            arrays[name] = pa.ListArray.from_arrays(ends, pa.array(np.concatenate(cells)).cast(types[name]))
        batch = pa.RecordBatch.from_pydict(arrays)
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
        rows += len(batch)
        tokens += len(arrays["input_ids"].values)
    if writer is not None:
        writer.close()
    return sink.getvalue().to_pybytes(), rows, tokens


class WriteManifest(PipelineStep):
    """Block that writes the final manifest: the fields of `manifest`, the shards, and the summed counts of all tasks."""

    type, name = "manifest", "manifest"

    def __init__(self, output: str, manifest: dict[str, Any], parts: int):
        super().__init__()
        self.folder, self.manifest, self.parts = output, manifest, parts

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        files = get_datafolder(self.folder)
        dropped = Counter()
        for file in files.list_files(f"{WORK}/counts"):
            dropped.update(json.loads(files.cat_file(file)))
        documents = dropped.pop("documents")
        shards = {name: [] for name in SHARDS}
        counts, tokens = Counter(), 0
        for part in range(self.parts):
            report = json.loads(files.cat_file(f"{WORK}/rows/{part:05d}.json"))
            counts.update(report["train"]["counts"])
            tokens += report["train"]["tokens"]
            for name in SHARDS:
                if report[name]["shard"]["rows"]:
                    shards[name].append(report[name]["shard"])
        dropped["too short"] = counts["short_documents"]
        rows = sum(shard["rows"] for shard in shards["train"])
        if not rows:
            raise ValueError(
                f"no training rows are left of {documents} documents (dropped: {dict(dropped)}; held out: "
                f"{self.manifest['held_out_documents'] or 'a tenth'}): pass more text, remove filters, or lower "
                "--validation_documents"
            )
        report = PackingReport.of(counts, rows, tokens, self.manifest["packing"]["max_length"])
        tokenizer = load_tokenizer(tokenizer_folder(self.folder))
        facts = dict(self.manifest["tokenizer"], vocabulary=len(tokenizer), digest=tokenizer_digest(tokenizer))
        facts["files"] = [os.path.basename(file) for file in files.list_files(TOKENIZER)]
        found = dict(documents=documents, dropped=dict(dropped), report=vars(report), tokenizer=facts)
        write_manifest(self.folder, self.manifest | found | dict(finished=True, digest=json_digest(shards)) | shards)

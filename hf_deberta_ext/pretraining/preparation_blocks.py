# SPDX-License-Identifier: Apache-2.0
"""The blocks of a preparation that datatrove does not have: documents, parts, tokenizer, shards of rows, manifest."""

import contextlib
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
from datatrove.pipeline.writers import ParquetWriter

from ..tokenization import load_tokenizer
from ..training.digests import json_digest, tokenizer_digest
from .corpus import file_documents, load_hub_corpus
from .packing import COUNTS, PackingReport, pack_documents
from .prepared_corpus import BATCH_ROWS, SHARDS, TOKENIZER, batch_digest, tokenizer_folder, write_manifest
from .tokenizer_training import train_tokenizer

__all__ = [
    "WORK", "ReadDocuments", "ReadPart", "ShardWriter", "TrainTokenizer", "WriteManifest", "WriteParts", "WriteRows",
    "save_tokenizer",
]  # fmt: skip

# Documents that are packed together.
TOGETHER = 1000
HELD_OUT = 100
WORK = "work"


class ReadDocuments(PipelineStep):
    """Documents with a visible character of the group of files with the task's number, and their part."""

    type, name = "reader", "documents"

    def __init__(self, groups: list[dict[str, Any]], reading: dict[str, Any]):
        super().__init__()
        self.groups, self.reading = groups, reading

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        group = self.groups[rank]
        number = 0
        for text in self.texts(group):
            self.stat_update("documents")
            if not text or text.isspace():
                self.stat_update("dropped")
                continue
            part = group["first"] + number % group["parts"]
            yield Document(text=text, id="", metadata={"part": f"{part:05d}"})
            number += 1

    def texts(self, group: dict[str, Any]) -> Iterator[str | None]:
        if group["hub"]:
            piece, _, pieces = group["files"][0][0].split()
            corpus = load_hub_corpus(**group["hub"], streaming=True).shard(int(pieces), int(piece))
            yield from (row["text"] for row in corpus)
            return
        for path, size, changed in group["files"]:
            with local_file(path) as file:
                yield from (row["text"] for row in file_documents([(file, size, changed)], **self.reading))


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """The path of a file on this machine."""
    if "://" not in path:
        yield path
        return
    from fsspec.core import url_to_fs

    files, remote = url_to_fs(path)
    with tempfile.TemporaryDirectory() as folder:
        files.get_file(remote, file := os.path.join(folder, os.path.basename(remote)))
        yield file


class WriteParts(ParquetWriter):
    """Writes each document into the file of its part."""

    name = "parts"

    def __init__(self, folder: Any):
        schema = pa.schema([("text", pa.large_string())])
        super().__init__(folder, compression="zstd", max_file_size=-1, schema=schema, use_content_defined_chunking=False)

    def _get_output_filename(self, document: Document, rank: int | str = 0, **kwargs) -> str:
        return f"{document.metadata['part']}.parquet"

    def update_doc_stats(self, document: Document):
        pass

    def stat_update(self, *labels, **kwargs):
        pass


class ReadPart(ParquetReader):
    """The documents of the part with the task's number; none where no document was kept."""

    name = "part"

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        if self.data_folder.isfile(f"{rank:05d}.parquet"):
            yield from self.read_file(f"{rank:05d}.parquet")


class TrainTokenizer(PipelineStep):
    """Trains a tokenizer on the first documents of every part, `characters` in all."""

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
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = get_datafolder(f"{output}/{TOKENIZER}")
        for file in Path(folder).iterdir():
            with files.open(file.name, "wb") as target:
                target.write(file.read_bytes())


class WriteRows(PipelineStep):
    """Packs the documents of a part into a shard of rows; its first ones, evenly over the parts, are held out.

    Args:
        packing (`dict`): arguments of `pack_documents`, and "seed".
        held_out (`int`, *optional*): documents of all parts together; None: `HELD_OUT`, of each part a tenth at most.
    """

    type, name = "packing", "rows"

    def __init__(self, output: str, packing: dict[str, Any], held_out: int | None):
        super().__init__()
        self.output, self.packing, self.held_out = get_datafolder(output), packing, held_out
        self.tokenizer_folder = output

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> None:
        tokenizer = load_tokenizer(tokenizer_folder(self.tokenizer_folder))
        texts = (document.text for document in data)
        held_out = HELD_OUT if self.held_out is None else self.held_out
        count = held_out // world_size + (rank < held_out % world_size)
        first = [*itertools.islice(texts, 10 * count)]
        if self.held_out is None:
            count = min(count, max(len(first) > 1, len(first) // 10))
        report = {
            name: self.write_shard(f"{name}/{rank:05d}.arrow", chosen, tokenizer)
            for name, chosen in {"held_out": iter(first[:count]), "train": itertools.chain(first[count:], texts)}.items()
        }
        with self.output.open(f"{WORK}/rows/{rank:05d}.json", "w") as file:
            json.dump(report, file)

    def write_shard(self, path: str, texts: Iterator[str], tokenizer: Any) -> dict[str, Any]:
        packing = {name: value for name, value in self.packing.items() if name != "seed"}
        counts = Counter()
        with self.output.open(path, "wb") as file:
            writer = ShardWriter(file, max(tokenizer.get_vocab().values()))
            for number in itertools.count():
                if not (together := [*itertools.islice(texts, TOGETHER)]):
                    break
                draws = f"{self.packing['seed']} {path} {number}"
                columns, new_counts = pack_documents(together, tokenizer, **packing, draws=draws)
                counts.update(new_counts)
                writer.write(columns)
            writer.close()
        shard = dict(file=path, rows=writer.rows, bytes=self.output.size(path), digest=json_digest(writer.digests))
        if not writer.rows:
            self.output.rm(path)
        return dict(shard=shard, tokens=writer.tokens, counts=dict(counts))


class ShardWriter:
    """Writes columns of rows into an Arrow file, in batches with their digests."""

    def __init__(self, file: Any, largest_id: int):
        self.file, self.writer, self.digests, self.rows, self.tokens = file, None, [], 0, 0
        ids = np.uint16 if largest_id < 2**16 else np.int32
        self.types = dict(input_ids=ids, token_type_ids=np.int8, document_ids=np.int16)

    def write(self, columns: dict[str, list]):
        for start in range(0, len(columns["input_ids"]), BATCH_ROWS):
            rows = {name: values[start : start + BATCH_ROWS] for name, values in columns.items()}
            batch = pa.RecordBatch.from_pydict({name: self.array(name, values) for name, values in rows.items()})
            self.writer = self.writer or pa.ipc.new_file(self.file, batch.schema)
            self.digests.append(batch_digest(batch))
            self.writer.write_batch(batch, custom_metadata={"digest": self.digests[-1]})
            self.rows += len(batch)
            self.tokens += sum(map(len, rows["input_ids"]))

    def array(self, name: str, rows: list) -> pa.Array:
        if name not in self.types:
            return pa.array(rows, pa.int8())
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(rows).astype(self.types[name])))

    def close(self):
        if self.writer is not None:
            self.writer.close()


class WriteManifest(PipelineStep):
    """Sums up what the other stages counted.

    Args:
        manifest (`dict`): what is known before.
        labels (`dict`): stage -> a name for what each of its blocks drops.
    """

    type, name = "manifest", "manifest"

    def __init__(self, output: str, manifest: dict[str, Any], labels: dict[str, list[str]], parts: int):
        super().__init__()
        self.output, self.manifest, self.labels, self.parts = get_datafolder(output), manifest, labels, parts
        self.folder = output

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        manifest, dropped, documents = dict(self.manifest), Counter(), 0
        for stage, labels in self.labels.items():
            dropped.update(dict.fromkeys(labels, 0))
            for file in self.output.list_files(f"{WORK}/logs/{stage}/stats"):
                for label, block in zip(labels, json.loads(self.output.cat_file(file)), strict=True):
                    dropped[label] += total(block["stats"].get("dropped", 0))
                    documents += total(block["stats"].get("documents", 0)) if stage == "documents" else 0
        reports = [json.loads(self.output.cat_file(f"{WORK}/rows/{part:05d}.json")) for part in range(self.parts)]
        shards = {name: [report[name]["shard"] for report in reports if report[name]["shard"]["rows"]] for name in SHARDS}
        counts = sum((Counter(report["train"]["counts"]) for report in reports), Counter())
        del dropped[""]
        dropped["too short"] = counts["short_documents"]
        tokens, rows = sum(report["train"]["tokens"] for report in reports), sum(shard["rows"] for shard in shards["train"])
        if not rows:
            raise ValueError(
                f"no row is left of {documents} documents (dropped: {dict(dropped)}; held out: "
                f"{manifest['held_out_documents'] or 'a tenth'}): give more text, fewer filters or --validation_documents"
            )
        mean, longest = tokens / rows, manifest["packing"]["max_length"]
        report = PackingReport(
            **{name: counts[name] for name in COUNTS},
            examples=rows,
            max_length=longest,
            mean_length=mean,
            fill=mean / longest,
        )
        tokenizer = load_tokenizer(tokenizer_folder(self.folder))
        facts = dict(vocabulary=len(tokenizer), digest=tokenizer_digest(tokenizer))
        facts |= dict(manifest["tokenizer"], files=get_datafolder(f"{self.folder}/{TOKENIZER}").list_files())
        manifest |= dict(
            finished=True,
            documents=documents,
            dropped=dict(dropped),
            report=vars(report),
            tokenizer=facts,
            digest=json_digest({name: [shard["digest"] for shard in shards[name]] for name in SHARDS}),
            **shards,
        )
        write_manifest(self.folder, manifest)


def total(stat: Any) -> int:
    return stat["total"] if isinstance(stat, dict) else stat

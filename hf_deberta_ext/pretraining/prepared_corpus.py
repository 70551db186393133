# SPDX-License-Identifier: Apache-2.0
"""Prepared corpora: folders of shards of packed rows with a manifest, and the order in which a training reads them.

A shard is an Arrow file, memory-mapped, with a digest in each of its record batches of at most `BATCH_ROWS` rows. The order
of an epoch permutes the shards, deals ranges of their rows to lanes, and permutes within each of these windows. Batch number
i is of lane i % lanes. A process, and each of its workers, takes batches at regular distances: it reads lanes of its own.
"""

import json
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.constants import HF_HOME
from torch.utils.data import Dataset, Sampler
from xxhash import xxh3_64

from ..training.digests import add_values, json_digest
from .packing import PackingReport

__all__ = [
    "PreparedRows", "ShardOrder", "batch_digest", "halved", "is_prepared", "load_manifest", "manifest_text", "most_lanes",
    "read_manifest", "tokenizer_folder", "write_manifest",
]  # fmt: skip

MANIFEST_FILE, TOKENIZER, SHARDS = "manifest.json", "tokenizer", ("train", "held_out")
BATCH_ROWS = 256
OPEN_SHARDS = 64
# Rows whose order is in memory at once.
ORDERED_ROWS = 2**23
# Seconds before a remote file is tried again.
WAITS = (1, 5, 25)


def manifest_file(folder: str | os.PathLike) -> tuple[Any, str]:
    """The file system (fsspec) of a folder, and the path of its manifest there."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(os.fspath(folder))
    return files, f"{path.rstrip('/')}/{MANIFEST_FILE}"


def tried(name: str, read: Callable[[], Any], *, may_be_missing: bool = False) -> Any:
    """The result of `read`, tried again after `WAITS` where `name` is a URL.

    Raises:
        FileNotFoundError: there is no such file, and it `may_be_missing`.
        OSError: a remote file failed each time.
    """
    if "://" not in name:
        return read()
    for wait in (*WAITS, None):
        try:
            return read()
        # Clients of HTTP and S3 have errors of their own.
        except Exception as error:
            if may_be_missing and isinstance(error, FileNotFoundError):
                raise
            if wait is None:
                raise OSError(
                    f"{name} could not be read in {len(WAITS) + 1} tries; the last ended with {type(error).__name__}: "
                    f"{error}; run the command again when the server answers"
                ) from error
        time.sleep(wait)


def copy_file(url: str, target: Path, size: int | None = None):
    """Copy a remote file, of a known size, in one go: other processes may copy it, too."""
    from fsspec.core import url_to_fs

    def copy():
        files, path = url_to_fs(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            part = Path(folder, target.name)
            files.get_file(path, str(part))
            if size not in (None, part.stat().st_size):
                raise OSError(f"{part.stat().st_size:,} of {size:,} bytes came")
            part.replace(target)

    tried(url, copy)


def cache(folder: str | None) -> Path:
    """The folder of copies of remote files."""
    return Path(folder or HF_HOME, "prepared_corpora")


def manifest_content(folder: str | os.PathLike) -> bytes | None:
    """The file of the manifest of a folder; None without one."""
    files, path = manifest_file(folder)
    try:
        return tried(os.fspath(folder), lambda: files.cat_file(path), may_be_missing=True)
    except (FileNotFoundError, IsADirectoryError):
        return None


def is_prepared(*folders: str | os.PathLike) -> bool:
    """True if one of them is a folder with shards or a manifest of ours, also damaged or of an unfinished preparation."""
    for folder in map(os.fspath, folders):
        if os.path.isdir(folder) or "://" in folder:
            content = manifest_content(folder)
            # Text may lie beside a manifest of another program; a damaged one of ours is known by the shards.
            is_ours = content is not None and ("://" in folder or b'"finished"' in content[:1000])
            if is_ours or any(Path(folder, SHARDS[0]).glob("*.arrow")):
                return True
    return False


def write_manifest(folder: str | os.PathLike, manifest: Mapping[str, Any]):
    """Write the manifest, with a digest of itself, in place of an earlier one."""
    files, path = manifest_file(folder)
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    text = json.dumps({"checksum": json_digest(manifest), **manifest}, indent=1) + "\n"
    # In one go: a full disk would leave half of it.
    files.pipe_file(f"{path}.part", text.encode())
    files.mv(f"{path}.part", path)


def load_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """The manifest of a folder, also of an unfinished preparation; {} without one.

    Raises:
        ValueError: it is damaged.
    """
    if (content := manifest_content(folder)) is None:
        return {}
    try:
        manifest = dict(json.loads(content))
        is_whole = manifest.pop("checksum") == json_digest(manifest) and "finished" in manifest
    except (KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"{manifest_file(folder)[1]} is damaged: copy it again, or prepare the corpus again in another folder"
        )
    return manifest


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """The manifest of a prepared folder, all of whose shards are there.

    Raises:
        ValueError: the preparation is unfinished, the manifest is missing or damaged, or a shard is missing or of another
            size.
    """
    (files, path), manifest = manifest_file(folder), load_manifest(folder)
    if not manifest:
        raise ValueError(f"{folder} has shards and no {MANIFEST_FILE}: copy it too, or prepare the corpus again")
    if not manifest["finished"]:
        raise ValueError(f"the preparation of {folder} is unfinished: run its prepare_corpus.py command again")
    root = path.removesuffix(MANIFEST_FILE)
    expected = {shard["file"]: shard["bytes"] for name in SHARDS for shard in manifest[name]}

    def file_sizes():
        # A server of HTTP lists no sizes, if it lists anything.
        if "http" in files.protocol:
            return dict(zip(expected, files.sizes([root + name for name in expected]), strict=True))
        found = [entry for name in SHARDS if manifest[name] for entry in files.find(root + name, detail=True).values()]
        return {entry["name"].removeprefix(root): entry["size"] for entry in found}

    sizes = tried(os.fspath(folder), file_sizes)
    for name, size in expected.items():
        if sizes.get(name) != size:
            problem = f"has {sizes[name]:,} bytes, prepared were {size:,}" if name in sizes else "is missing"
            raise ValueError(f"the shard {name} of {folder} {problem}: copy it again, or prepare the corpus again")
    return manifest


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Lines that say what a prepared folder holds."""
    packing, report, tokenizer = manifest["packing"], manifest["report"], manifest["tokenizer"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in manifest["dropped"].items() if count) or "none"
    held_out = sum(shard["rows"] for shard in manifest["held_out"])
    sources = [f"{item['source']} ({item['license'] or 'no licence given'})" for item in manifest["sources"]]
    return "\n".join([
        f"a prepared corpus: {report['examples']:,} rows, {report['packed_tokens']:,} tokens, {len(manifest['train']):,} "
        f"shards; {held_out:,} rows held out",
        f"  documents   {manifest['documents']:,} read; dropped: {dropped}",
        f"  packing     {packing['mode']}, {packing['max_length']} tokens, {report['fill']:.1%} filled",
        f"  tokenizer   {tokenizer['vocabulary']:,} tokens, digest {tokenizer['digest']}",
        f"  sources     {'; '.join(sources)}",
        f"  digest      {manifest['digest']}",
    ])  # fmt: skip


def tokenizer_folder(folder: str | os.PathLike) -> str:
    """The folder of the tokenizer of a prepared folder, on this machine."""
    files, path = manifest_file(folder)
    source, url = path.removesuffix(MANIFEST_FILE) + TOKENIZER, os.fspath(folder).rstrip("/")
    if "://" not in url:
        return source
    # The same place each time: a resumed run must repeat it.
    target = cache(None) / f"{TOKENIZER}-{json_digest(url)}"
    # A preparation has no names yet, and a server of HTTP may list none.
    for name in map(os.path.basename, load_manifest(folder).get("tokenizer", {}).get("files") or files.find(source)):
        copy_file(f"{url}/{TOKENIZER}/{name}", target / name)
    return str(target)


def batch_digest(batch: Any) -> str:
    """Digest of the values of a record batch."""
    digest = xxh3_64()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        digest.update(name.encode())
        add_values(digest, column)
    return digest.hexdigest()


class PreparedRows(Dataset):
    """The rows of a prepared folder, by their number; a shard is opened when a row of it is asked for.

    Args:
        folder (`str` or path): local, or of any file system of fsspec: then shards are copied to `cache_dir` when opened.
        held_out (`bool`): the rows that were held out.
        limit (`int`, *optional*): only the first so many rows.
        buffer (`int`): rows of a window of `ShardOrder`.
    Raises:
        ValueError: as `read_manifest`; a shard is broken, which comes when a row of it is read.
        OSError: a remote file cannot be read, in several tries.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        held_out: bool = False,
        limit: int | None = None,
        buffer: int = 10_000,
        cache_dir: str | None = None,
    ):
        manifest = read_manifest(folder)
        self.root, self.cache, self.buffer = os.path.expanduser(folder).rstrip("/"), cache(cache_dir), buffer
        self.shards = manifest[SHARDS[held_out]]
        self.ends = np.cumsum([shard["rows"] for shard in self.shards], dtype=np.int64)
        if limit is not None:
            self.ends = self.ends.clip(max=limit)
        self.report = PackingReport(**manifest["report"])
        self.digest = f"{len(self)} rows, {manifest['digest']}"
        self.open_shards: OrderedDict[int, tuple[Any, list, np.ndarray]] = OrderedDict()
        self.checked: set[tuple[int, int]] = set()
        # Of record batches, each counted once.
        self.bytes_read = 0

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        # A worker has memory maps of its own.
        return self.__dict__ | {"open_shards": OrderedDict()}

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        shard = int(np.searchsorted(self.ends, i, side="right"))
        place = i - (self.ends[shard - 1] if shard else 0)
        file = self.local_file(shard)
        try:
            reader, batch_ends = self.open_shard(shard, file)
            number = int(np.searchsorted(batch_ends, place, side="right"))
            batch, metadata = reader.get_batch_with_custom_metadata(number)
            if (shard, number) not in self.checked:
                # Else a damaged length or offset is read beyond the end of the file.
                batch.validate(full=True)
                if batch_digest(batch) != metadata["digest"].decode():
                    raise ValueError("its rows are not those that were prepared")
                self.checked.add((shard, number))
                self.bytes_read += batch.nbytes
        # Of Arrow for what is no Arrow file, for one that ends too early, and for types that it does not read.
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
            cure = "copy it again" if file.startswith(self.root) else f"remove this copy of {self.url(shard)}"
            raise ValueError(f"the shard {file} is broken: {error}; {cure}, or prepare the corpus again") from error
        return {name: cell(batch.column(name), int(place - batch_ends[number]) + len(batch)) for name in batch.schema.names}

    def url(self, shard: int) -> str:
        return f"{self.root}/{self.shards[shard]['file']}"

    def local_file(self, shard: int) -> str:
        """The file of a shard; a remote one is copied when its first row is asked for."""
        if "://" not in self.root:
            return self.url(shard)
        file = self.cache / f"{json_digest(self.shards[shard])}.arrow"
        if shard not in self.open_shards and not file.is_file():
            copy_file(self.url(shard), file, self.shards[shard]["bytes"])
        return str(file)

    def open_shard(self, shard: int, file: str) -> tuple[Any, np.ndarray]:
        """The reader of a shard, and the rows up to the end of each record batch."""
        if shard not in self.open_shards:
            import pyarrow as pa

            reader = pa.ipc.open_file(pa.memory_map(file))
            batches = [reader.get_batch_with_custom_metadata(number) for number in range(reader.num_record_batches)]
            rows, digests = zip(*((len(batch), metadata["digest"].decode()) for batch, metadata in batches), strict=True)
            if (sum(rows), json_digest(digests)) != (self.shards[shard]["rows"], self.shards[shard]["digest"]):
                raise ValueError("it is not the shard that was prepared")
            self.open_shards[shard] = reader, np.cumsum(rows)
            if len(self.open_shards) > OPEN_SHARDS:
                self.open_shards.popitem(last=False)
        self.open_shards.move_to_end(shard)
        return self.open_shards[shard]


def cell(column: Any, place: int) -> Any:
    """A number, or a list of them as an array."""
    value = column[place]
    values = getattr(value, "values", None)
    return value.as_py() if values is None else values.to_numpy(zero_copy_only=False).astype(np.int64)


def most_lanes(args: Any) -> int:
    """Lanes of the rows of a training: as many however many processes share a step; for 1, 2, 4 or 8 workers."""
    return 8 * args.gradient_accumulation_steps * args.world_size


def halved(lanes: int) -> int:
    """Fewer lanes, so that processes and workers still divide their number, if they can."""
    return lanes // 2 if lanes % 2 == 0 else 1


class ShardOrder(Sampler):
    """The rows of each epoch in random order, in batches of which each is of one lane.

    The order depends on these arguments and the epoch alone. Where processes x workers divide `lanes`, each lane, and
    nearly each record batch, is read by one worker of one process.

    Args:
        examples (`NumberedExamples`): of `PreparedRows`; of their order, that of `ORDERED_ROWS` rows is in memory at most.
        batch (`int`): rows of a batch.
        lanes (`int`): halved while there are not `rows.buffer` rows for each.
    """

    def __init__(self, examples: Any, *, batch: int, lanes: int, seed: int):
        self.examples, self.rows, self.batch, self.seed = examples, examples.dataset, batch, seed
        rows = self.rows
        window = max(min(rows.buffer, ORDERED_ROWS // lanes), batch)
        while lanes > 1 and len(rows) < lanes * window:
            lanes = halved(lanes)
        self.lanes, self.window = lanes, -(-window // batch) * batch

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        draws = np.random.default_rng([self.seed, int(self.examples.epoch)])
        counts = np.diff(self.rows.ends, prepend=0)
        order = draws.permutation(len(counts))
        ends = np.cumsum(counts[order])
        # Added to a place in the permuted shards, it gives the number of the row.
        shifts = self.rows.ends[order] - ends
        size = self.lanes * self.window
        for start in range(0, len(self), size):
            rows = min(size, len(self) - start)
            batches = -(-rows // self.batch)
            lanes = {}
            # Neighbours among the lanes, whose batches make a step, are of places far apart.
            for lane in draws.permutation(self.lanes).tolist():
                count = len(range(lane, batches, self.lanes)) * self.batch
                # The last batch of all may be short.
                count -= (batches * self.batch - rows) if lane == (batches - 1) % self.lanes else 0
                places = start + draws.permutation(count)
                lanes[lane] = places + shifts[np.searchsorted(ends, places, side="right")]
                start += count
            for number in range(batches):
                first = number // self.lanes * self.batch
                yield from lanes[number % self.lanes][first : first + self.batch].tolist()

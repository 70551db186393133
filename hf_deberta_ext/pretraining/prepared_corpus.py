# SPDX-License-Identifier: Apache-2.0
"""Read prepared corpora: folders of shards of packed rows with a manifest, in the order of a training.

A shard is an Arrow file, memory-mapped; its digest is compared when it is opened. The order of an epoch permutes the shards,
deals ranges of their rows to lanes, and permutes within each of these windows. Batch number i is of lane i % lanes. A
process, and each of its workers, takes batches at regular distances, and so reads its share of the lanes.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.constants import HF_HOME
from torch.utils.data import Dataset, Sampler
from xxhash import xxh3_64_hexdigest

from ..training.digests import json_digest
from .packing import PackingReport

__all__ = ["PreparedRows", "ShardOrder", "is_prepared", "load_manifest", "manifest_text", "read_manifest", "write_manifest"]

MANIFEST_FILE = "manifest.json"
TOKENIZER = "tokenizer"
SHARDS = ("train", "held_out")
# Rows whose order is in memory at once.
ORDERED_ROWS = 2**23


def open_folder(folder: str | os.PathLike) -> tuple[Any, str]:
    """Return the file system (fsspec) of a folder, and the folder's path there."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(os.fspath(folder))
    return files, path.rstrip("/")


def copy_file(url: str, target: Path):
    """Copy a remote file in one go: other processes may copy it, too."""
    files, path = open_folder(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder, target.name)
        files.get_file(path, str(part))
        part.replace(target)


def cache(folder: str | None) -> Path:
    """Return the folder of copies of remote files."""
    return Path(folder or HF_HOME, "prepared_corpora")


def manifest_content(folder: str | os.PathLike) -> bytes | None:
    """Read the file of the manifest of a folder; None without one."""
    files, path = open_folder(folder)
    try:
        return files.cat_file(f"{path}/{MANIFEST_FILE}")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def is_prepared(*folders: str | os.PathLike) -> bool:
    """Return True if one of them is a folder with shards or a manifest of ours, also damaged or unfinished."""
    for folder in map(os.fspath, folders):
        if any(Path(folder, SHARDS[0]).glob("*.arrow")):
            return True
        content = manifest_content(folder)
        # Text may come with a manifest of another program.
        if content is not None and ("://" in folder or b'"finished"' in content[:1000]):
            return True
    return False


def write_manifest(folder: str | os.PathLike, manifest: Mapping[str, Any]):
    """Write the manifest, with a digest of itself, in place of an earlier one."""
    files, path = open_folder(folder)
    files.makedirs(path, exist_ok=True)
    text = json.dumps({"checksum": json_digest(manifest), **manifest}, indent=1) + "\n"
    # In one go: a full disk would leave half of it.
    files.pipe_file(f"{path}/{MANIFEST_FILE}.part", text.encode())
    files.mv(f"{path}/{MANIFEST_FILE}.part", f"{path}/{MANIFEST_FILE}")


def load_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Load the manifest of a folder, also of an unfinished preparation; {} without one, a ValueError if it is damaged."""
    content = manifest_content(folder)
    if content is None:
        return {}
    try:
        manifest = json.loads(content)
        if manifest.pop("checksum") == json_digest(manifest):
            return manifest
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise ValueError(f"{folder}/{MANIFEST_FILE} is damaged: copy it again, or prepare the corpus again in another folder")


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Read the manifest of a prepared folder, and check that it is finished, and the sizes of its shards."""
    manifest = load_manifest(folder)
    if not manifest:
        raise ValueError(f"{folder} has shards and no {MANIFEST_FILE}: copy it too, or prepare the corpus again")
    if not manifest["finished"]:
        raise ValueError(f"the preparation of {folder} is unfinished: run the command that began it again")
    files, path = open_folder(folder)
    shards = [shard for name in SHARDS for shard in manifest[name]]
    sizes = files.sizes([f"{path}/{shard['file']}" for shard in shards])
    for shard, size in zip(shards, sizes, strict=True):
        if size != shard["bytes"]:
            raise ValueError(
                f"the shard {shard['file']} of {folder} has {size:,} bytes, prepared were {shard['bytes']:,}: copy it again"
            )
    return manifest


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return lines that say what a prepared folder holds."""
    packing, report, tokenizer = manifest["packing"], manifest["report"], manifest["tokenizer"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in manifest["dropped"].items() if count)
    held_out = sum(shard["rows"] for shard in manifest["held_out"])
    sources = [f"{item['source']} ({item['license'] or 'no licence given'})" for item in manifest["sources"]]
    return f"""\
a prepared corpus: {report["examples"]:,} rows, {report["packed_tokens"]:,} tokens, {len(manifest["train"]):,} shards; \
{held_out:,} rows held out
  documents   {manifest["documents"]:,} read; dropped: {dropped or "none"}
  packing     {packing["mode"]}, {packing["max_length"]} tokens, {report["fill"]:.1%} filled
  tokenizer   {tokenizer["vocabulary"]:,} tokens, digest {tokenizer["digest"]}
  sources     {"; ".join(sources)}
  digest      {manifest["digest"]}"""


def tokenizer_folder(folder: str | os.PathLike) -> str:
    """Return the folder of the tokenizer of a prepared folder, on this machine."""
    url = f"{os.fspath(folder).rstrip('/')}/{TOKENIZER}"
    if "://" not in url:
        return os.path.expanduser(url)
    # The same place each time: a resumed run must repeat it.
    target = cache(None) / f"{TOKENIZER}-{json_digest(url)}"
    # A preparation has no names yet, and a server of HTTP may list none.
    names = load_manifest(folder).get("tokenizer", {}).get("files")
    if names is None:
        files, path = open_folder(url)
        names = files.find(path)
    for name in map(os.path.basename, names):
        copy_file(f"{url}/{name}", target / name)
    return str(target)


class PreparedRows(Dataset):
    """The rows of a prepared folder, by their number; a shard is opened when a row of it is asked for.

    Args:
        folder (`str` or path): local, or of any file system of fsspec: then shards are copied to `cache_dir` when opened. A
            damaged shard is a ValueError when its first row is read.
        held_out (`bool`): the rows that were held out.
        limit (`int`, *optional*): only the first so many rows.
        buffer (`int`): rows of a window of `ShardOrder`.
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
        self.root = os.path.expanduser(folder).rstrip("/")
        self.cache = cache(cache_dir)
        self.buffer = buffer
        self.shards = manifest[SHARDS[held_out]]
        ends = np.cumsum([0, *(shard["rows"] for shard in self.shards)], dtype=np.int64)
        self.starts, self.ends = ends[:-1], ends[1:].clip(max=limit)
        self.report = PackingReport(**manifest["report"])
        self.digest = f"{len(self)} rows, {manifest['digest']}"
        # Number of a shard -> its table.
        self.opened: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A worker has other memory maps.
        return self.__dict__ | {"opened": {}}

    def __len__(self) -> int:
        return int(self.ends.max(initial=0))

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        shard = int(np.searchsorted(self.ends, i, side="right"))
        if shard not in self.opened:
            self.opened[shard] = self.open_shard(shard)
        table = self.opened[shard]
        return {name: cell(table[name][i - int(self.starts[shard])]) for name in table.column_names}

    def open_shard(self, shard: int) -> Any:
        """Return the table of a shard, memory-mapped; a remote one is copied to the cache before."""
        import pyarrow as pa

        url = file = f"{self.root}/{self.shards[shard]['file']}"
        if "://" in url:
            file = self.cache / f"{json_digest(self.shards[shard])}.arrow"
            if not file.is_file():
                copy_file(url, file)
        if xxh3_64_hexdigest(Path(file).read_bytes()) != self.shards[shard]["digest"]:
            raise ValueError(f"the shard {file} is not the one that was prepared: remove it, and copy {url} again")
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()


def cell(value: Any) -> Any:
    """Return a number, or a list of them as an array."""
    if hasattr(value, "values"):
        return value.values.to_numpy().astype(np.int64)
    return value.as_py()


def most_lanes(args: Any) -> int:
    """Return the lanes of a training: as many however many processes share a step; for 1, 2, 4 or 8 workers."""
    return 8 * args.gradient_accumulation_steps * args.world_size


def halved(lanes: int) -> int:
    """Return fewer lanes, so that processes and workers still divide their number, if they can."""
    if lanes % 2:
        return 1
    return lanes // 2


class ShardOrder(Sampler):
    """The rows of each epoch in random order; each batch is of one lane.

    The order only depends on these arguments and the epoch. Where processes x workers divide `lanes`, each lane, and
    nearly each record batch, is read by one worker of one process.

    Args:
        examples (`NumberedExamples`): of `PreparedRows`; the order of at most `ORDERED_ROWS` rows is in memory.
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
                if lane == (batches - 1) % self.lanes:
                    count -= batches * self.batch - rows
                places = start + draws.permutation(count)
                lanes[lane] = places + shifts[np.searchsorted(ends, places, side="right")]
                start += count
            for number in range(batches):
                first = number // self.lanes * self.batch
                yield from lanes[number % self.lanes][first : first + self.batch].tolist()

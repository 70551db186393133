# SPDX-License-Identifier: Apache-2.0
"""Read prepared corpora (folders with shards of packed rows and a manifest), and order their rows for training.

A shard is a memory-mapped Arrow file, whose digest is checked on opening. In each epoch, shards are permuted, consecutive
windows of rows are distributed to streams, and rows are permuted within each window. Batch i is from stream i % streams.
Each of k processes or workers takes every k-th batch, and therefore only reads its share of the streams.
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
# Maximum number of row indices that `ShardOrder` holds in memory.
ORDERED_ROWS = 2**23


def open_folder(folder: str | os.PathLike) -> tuple[Any, str]:
    """Return the fsspec file system of a folder, and the path of the folder in this file system."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(os.fspath(folder))
    return files, path.rstrip("/")


def copy_file(url: str, target: Path):
    """Copy a remote file atomically, because other processes may copy the same file at the same time."""
    files, path = open_folder(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder, target.name)
        files.get_file(path, str(part))
        part.replace(target)


def cache(folder: str | None) -> Path:
    """Return the cache folder for remote files."""
    return Path(folder or HF_HOME, "prepared_corpora")


def manifest_content(folder: str | os.PathLike) -> bytes | None:
    """Read the manifest file of a folder; return None if the folder has no manifest."""
    files, path = open_folder(folder)
    try:
        return files.cat_file(f"{path}/{MANIFEST_FILE}")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def is_prepared(*folders: str | os.PathLike) -> bool:
    """Return True if any folder contains shards or a manifest of this package, including damaged or unfinished ones."""
    for folder in map(os.fspath, folders):
        if any(Path(folder, SHARDS[0]).glob("*.arrow")):
            return True
        content = manifest_content(folder)
        # A folder of text can contain another program's manifest.
        if content is not None and ("://" in folder or b'"finished"' in content[:1000]):
            return True
    return False


def write_manifest(folder: str | os.PathLike, manifest: Mapping[str, Any]):
    """Write or replace the manifest, with a checksum."""
    files, path = open_folder(folder)
    files.makedirs(path, exist_ok=True)
    text = json.dumps({"checksum": json_digest(manifest), **manifest}, indent=1) + "\n"
    # Write and rename: a full disk must not leave half of the manifest.
    files.pipe_file(f"{path}/{MANIFEST_FILE}.part", text.encode())
    files.mv(f"{path}/{MANIFEST_FILE}.part", f"{path}/{MANIFEST_FILE}")


def load_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Load the manifest of a finished or unfinished preparation, or {} without one; raise a ValueError if it is damaged."""
    content = manifest_content(folder)
    if content is None:
        return {}
    try:
        manifest = json.loads(content)
        if manifest.pop("checksum") == json_digest(manifest):
            return manifest
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise ValueError(f"{folder}/{MANIFEST_FILE} is damaged; copy the file again, or prepare the corpus in another folder")


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Read the manifest of a prepared corpus, and check that it is finished and that shards have the right sizes."""
    manifest = load_manifest(folder)
    if not manifest:
        raise ValueError(f"{folder} contains shards but no {MANIFEST_FILE}; copy this file, or prepare the corpus again")
    if not manifest["finished"]:
        raise ValueError(f"the preparation of {folder} is unfinished; run the command that prepares this folder again")
    files, path = open_folder(folder)
    shards = [shard for name in SHARDS for shard in manifest[name]]
    sizes = files.sizes([f"{path}/{shard['file']}" for shard in shards])
    for shard, size in zip(shards, sizes, strict=True):
        if size != shard["bytes"]:
            raise ValueError(
                f"the shard {shard['file']} of {folder} must have {shard['bytes']:,} bytes, got {size:,}; copy it again"
            )
    return manifest


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Format the contents of a prepared corpus as lines of text."""
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
    """Return the local folder of the tokenizer of a prepared corpus. If the corpus is remote, download the tokenizer."""
    url = f"{os.fspath(folder).rstrip('/')}/{TOKENIZER}"
    if "://" not in url:
        return os.path.expanduser(url)
    # Always the same folder, because a resumed run must have the same --tokenizer.
    target = cache(None) / f"{TOKENIZER}-{json_digest(url)}"
    # An unfinished manifest has no file names, and an HTTP server may not list files.
    names = load_manifest(folder).get("tokenizer", {}).get("files")
    if names is None:
        files, path = open_folder(url)
        names = files.find(path)
    for name in map(os.path.basename, names):
        copy_file(f"{url}/{name}", target / name)
    return str(target)


class PreparedRows(Dataset):
    """Data set of the rows of a prepared corpus; a shard is opened when one of its rows is read.

    Args:
        folder (`str` or path): local folder, or fsspec URL.
        held_out (`bool`, default False): use the held-out rows.
        limit (`int`, *optional*): maximum number of rows.
        buffer (`int`, default 10,000): number of rows in a window of `ShardOrder`.
        cache_dir (`str`, *optional*): folder to which remote shards are copied; default: `HF_HOME`.
    Raises:
        ValueError: if the folder is damaged or unfinished; for a damaged shard, only when one of its rows is read.
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
        # Index of an opened shard -> its table.
        self.opened: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A worker opens its own memory maps.
        return self.__dict__ | {"opened": {}}

    def __len__(self) -> int:
        return int(self.ends.max(initial=0))

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} is out of range for {len(self)} rows")
        shard = int(np.searchsorted(self.ends, i, side="right"))
        if shard not in self.opened:
            self.opened[shard] = self.open_shard(shard)
        table = self.opened[shard]
        return {name: cell(table[name][i - int(self.starts[shard])]) for name in table.column_names}

    def open_shard(self, shard: int) -> Any:
        """Return the memory-mapped table of a shard; copy a remote shard to the cache first."""
        import pyarrow as pa

        url = file = f"{self.root}/{self.shards[shard]['file']}"
        if "://" in url:
            file = self.cache / f"{json_digest(self.shards[shard])}.arrow"
            if not file.is_file():
                copy_file(url, file)
        if xxh3_64_hexdigest(Path(file).read_bytes()) != self.shards[shard]["digest"]:
            raise ValueError(f"the shard {file} differs from its digest in the manifest; remove it, and copy {url} again")
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()


def cell(value: Any) -> Any:
    """Convert a list cell to an int64 array, and any other cell to a Python number."""
    if hasattr(value, "values"):
        return value.values.to_numpy().astype(np.int64)
    return value.as_py()


def max_streams(args: Any) -> int:
    """Return the maximum number of streams: 8 per micro-batch of a step, so that 1, 2, 4 or 8 workers read equally many."""
    return 8 * args.gradient_accumulation_steps * args.world_size


def halved(streams: int) -> int:
    """Return half of `streams` if it is even, so that processes and workers can still share the streams equally, else 1."""
    if streams % 2:
        return 1
    return streams // 2


class ShardOrder(Sampler):
    """Sampler that yields the row indices of an epoch in random order, so that each batch is from one stream.

    The order depends only on the arguments and the epoch. If processes x workers divides `streams`, each stream, and nearly
    each Arrow record batch, is read by one worker of one process. At most `ORDERED_ROWS` row indices are held in memory.

    Args:
        examples (`NumberedExamples`): examples of `PreparedRows`.
        batch (`int`): number of rows in a batch.
        streams (`int`): maximum number of streams, halved until there are enough rows for one window in each stream.
        seed (`int`): seed of the order.
    """

    def __init__(self, examples: Any, *, batch: int, streams: int, seed: int):
        self.examples, self.rows, self.batch, self.seed = examples, examples.dataset, batch, seed
        rows = self.rows
        window = max(min(rows.buffer, ORDERED_ROWS // streams), batch)
        while streams > 1 and len(rows) < streams * window:
            streams = halved(streams)
        self.streams, self.window = streams, -(-window // batch) * batch

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        draws = np.random.default_rng([self.seed, int(self.examples.epoch)])
        counts = np.diff(self.rows.ends, prepend=0)
        order = draws.permutation(len(counts))
        ends = np.cumsum(counts[order])
        # The number of a row is its position in the permuted shards plus the shift of its shard.
        shifts = self.rows.ends[order] - ends
        size = self.streams * self.window
        for start in range(0, len(self), size):
            rows = min(size, len(self) - start)
            batches = -(-rows // self.batch)
            streams = {}
            # Adjacent streams, which share a step, get windows far apart.
            for stream in draws.permutation(self.streams).tolist():
                count = len(range(stream, batches, self.streams)) * self.batch
                # The last batch of the epoch can be shorter.
                if stream == (batches - 1) % self.streams:
                    count -= batches * self.batch - rows
                places = start + draws.permutation(count)
                streams[stream] = places + shifts[np.searchsorted(ends, places, side="right")]
                start += count
            for number in range(batches):
                first = number // self.streams * self.batch
                yield from streams[number % self.streams][first : first + self.batch].tolist()

# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint: sizes and digests of all its files, written and synchronised with the disk behind them."""

import contextlib
import functools
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import torch
from xxhash import xxh3_128

from ..files import replace_text

__all__ = ["MANIFEST_FILE", "digest_of", "is_unfinished", "manifest_problem", "manifest_text", "saved_with_manifest"]

MANIFEST_FILE = "checkpoint_manifest.json"
# Files of fewer bytes take no time at the end.
LARGE = 1 << 20


@contextlib.contextmanager
def saved_with_manifest(checkpoint: Path) -> Iterator[None]:
    """Context in which the files of a new checkpoint are written; at its end all are on the disk, then the list of their
    sizes and digests. Until then its manifest says that it has no end.

    A thread brings the files to the disk while they are written. torch.save leaves out its own sums, crc32, which nothing
    reads and which take longer than the digests.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / MANIFEST_FILE).write_text('{"files": null}\n', encoding="utf-8")
    with_crc32, is_written = torch.serialization.get_crc32_options(), Event()
    with ThreadPoolExecutor(4) as pool:
        written_back = pool.submit(write_back, checkpoint, is_written)
        try:
            torch.serialization.set_crc32_options(False)
            yield
        finally:
            torch.serialization.set_crc32_options(with_crc32)
            is_written.set()
        # The operating system tells of a failed write only once.
        written_back.result()
        files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name != MANIFEST_FILE]
        text = manifest_text({file.relative_to(checkpoint).as_posix(): file for file in files}, pool.map)
    for folder in {checkpoint, *(file.parent for file in files)}:
        sync(folder)
    sync(replace_text(checkpoint / MANIFEST_FILE, text))
    sync(checkpoint)
    sync(checkpoint.parent)


def write_back(checkpoint: Path, is_written: Event):
    """Bring the large files of a checkpoint to the disk as they grow, until all are written."""
    # Windows renames no file that is open.
    while os.name != "nt" and not is_written.wait(0.02):
        # Files are renamed and removed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            for file in checkpoint.rglob("*"):
                if file.stat().st_size >= LARGE:
                    sync(file)


def is_unfinished(checkpoint: Path) -> bool:
    """True for a checkpoint that was begun and never ended."""
    try:
        return json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8")) == {"files": None}
    except (OSError, ValueError):
        return False


def manifest_problem(checkpoint: Path, *, digests: bool = True) -> str | None:
    """The difference between a checkpoint and its manifest, as "its optimizer.pt is missing"; None without one.

    Args:
        digests (`bool`): compare the content of the files, too, not only their sizes.
    """
    try:
        listed = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
        files = [(name, int(size), digest) for name, (size, digest) in listed.items()]
    except FileNotFoundError:
        return f"its {MANIFEST_FILE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST_FILE} has no end: the checkpoint was not saved completely"
    for name, size, digest in files:
        file = checkpoint / name
        if not file.is_file():
            return f"its {name} is missing"
        if file.stat().st_size != size:
            return f"its {name} is damaged or of another step: it has {file.stat().st_size:,} bytes, saved were {size:,}"
        if digests and digest not in (None, digest_of(file)):
            return f"its {name} is damaged or of another step: its content is not what was saved"
    return None


def manifest_text(files: Mapping[str, Path], map_files: Callable[..., Iterable] = map) -> str:
    """The manifest of files by their names in a checkpoint; `map_files` calls a function for each of them."""
    entries = dict(zip(files, map_files(saved_entry, files.values()), strict=True))
    return json.dumps({"files": entries}, indent=1) + "\n"


def saved_entry(file: Path) -> tuple[int, str]:
    """Size and digest of a file that has been brought to the disk."""
    sync(file)
    return file.stat().st_size, digest_of(file)


def digest_of(file: Path) -> str:
    """Digest of a file, which a process reads again only if its size or time has changed."""
    return _digest(file.resolve(), file.stat().st_size, file.stat().st_mtime_ns)


@functools.lru_cache(1000)
def _digest(file: Path, size: int, mtime_ns: int) -> str:
    # An empty file cannot be mapped.
    if size == 0:
        return xxh3_128(b"").hexdigest()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return xxh3_128(content).hexdigest()


def sync(place: Path):
    """Bring a file, or the names in a folder, to the disk; Windows does not open folders."""
    if os.name == "nt" and place.is_dir():
        return
    descriptor = os.open(place, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

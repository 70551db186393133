# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint: sizes and digests of all its files, written and synchronised with the disk behind them."""

import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..publishing.facts import replace_text

try:
    import xxhash
except ImportError:  # It comes with the extra "train"; without it sizes alone are compared.
    xxhash = None

__all__ = ["MANIFEST_FILE", "begin_manifest", "is_unfinished", "manifest_problem", "write_manifest"]

MANIFEST_FILE = "checkpoint_manifest.json"


def begin_manifest(checkpoint: Path):
    """Make the folder of a checkpoint whose manifest says that it has no end yet."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / MANIFEST_FILE).write_text('{"files": null}\n', encoding="utf-8")


def is_unfinished(checkpoint: Path) -> bool:
    """True for a checkpoint that was begun and never ended."""
    try:
        return json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8")) == {"files": None}
    except (OSError, ValueError):
        return False


def write_manifest(checkpoint: Path):
    """Bring all files of a checkpoint to the disk, then the list of their sizes and digests."""
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name != MANIFEST_FILE]
    names = (file.relative_to(checkpoint).as_posix() for file in files)
    with ThreadPoolExecutor(4) as pool:
        text = json.dumps({"files": dict(zip(names, pool.map(saved_entry, files), strict=True))}, indent=1) + "\n"
    for folder in {checkpoint, *(file.parent for file in files)}:
        sync(folder)
    sync(replace_text(checkpoint / MANIFEST_FILE, text))
    sync(checkpoint)
    sync(checkpoint.parent)


def manifest_problem(checkpoint: Path, *, digests: bool = True) -> str | None:
    """The difference between a checkpoint and its manifest, as "its optimizer.pt is missing"; None without one.

    Args:
        digests (`bool`): compare the content of the files, too, not only their sizes.
    """
    try:
        listed = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
        files = [(name, int(size), digest) for name, (size, digest) in listed.items()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST_FILE} has no end: the checkpoint was not saved completely"
    for name, size, digest in files:
        file = checkpoint / name
        if not file.is_file():
            return f"its {name} is missing"
        if file.stat().st_size != size:
            return f"its {name} is damaged or of another step: it has {file.stat().st_size:,} bytes, saved were {size:,}"
        if digests and None not in (found := digest_of(file), digest) and found != digest:
            return f"its {name} is damaged or of another step: its content is not what was saved"
    return None


def saved_entry(file: Path) -> tuple[int, str | None]:
    """Size and digest of a file that has been brought to the disk."""
    sync(file)
    return file.stat().st_size, digest_of(file)


def digest_of(file: Path) -> str | None:
    if xxhash is None:
        return None
    with file.open("rb") as stream:
        # An empty file cannot be mapped.
        if file.stat().st_size == 0:
            return xxhash.xxh3_128(b"").hexdigest()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return xxhash.xxh3_128(content).hexdigest()


def sync(place: Path):
    """Bring a file, or the names in a folder, to the disk; Windows does not open folders."""
    if os.name == "nt" and place.is_dir():
        return
    descriptor = os.open(place, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint: size and digest of each of its files, compared when a run is resumed."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path

from xxhash import xxh3_128

__all__ = ["MANIFEST_FILE", "digest_of", "manifest_text", "write_manifest"]

MANIFEST_FILE = "checkpoint_manifest.json"


def write_manifest(checkpoint: Path):
    """Write the manifest of a checkpoint, with all of its files flushed to the disk."""
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file() and file.name != MANIFEST_FILE]
    text = manifest_text({file.relative_to(checkpoint).as_posix(): file for file in files})
    manifest = checkpoint / MANIFEST_FILE
    manifest.write_text(text, encoding="utf-8")
    for place in (*files, manifest, *{file.parent for file in files}, checkpoint):
        sync(place)


def manifest_text(files: Mapping[str, Path]) -> str:
    """Return the manifest of files by their names in a checkpoint."""
    entries = {name: (file.stat().st_size, digest_of(file)) for name, file in files.items()}
    return json.dumps({"files": entries}, indent=1) + "\n"


def digest_of(file: Path) -> str:
    """Return the digest of a file, which is read again only if its size or time has changed."""
    status = file.stat()
    return _digest(file.resolve(), status.st_size, status.st_mtime_ns)


@functools.lru_cache(1000)
def _digest(file: Path, size: int, mtime_ns: int) -> str:
    digest = xxh3_128()
    with file.open("rb") as stream:
        for block in iter(functools.partial(stream.read, 1 << 22), b""):
            digest.update(block)
    return digest.hexdigest()


def sync(place: Path):
    """Flush a file, or the names in a folder, to the disk."""
    # Windows opens no folders, and flushes no file that is open for reading.
    if os.name == "nt":
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

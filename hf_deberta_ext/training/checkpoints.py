# SPDX-License-Identifier: Apache-2.0
"""Atomic writing of folders, and the digests that verify a checkpoint when a run is resumed from it."""

import contextlib
import functools
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from xxhash import xxh3_128

from ..checkpoints.files import is_weight_file
from ..files import folder_files

__all__ = ["MANIFEST_FILE", "digest_of", "readable_weights", "replaced_folder", "replaced_model", "write_manifest"]

MANIFEST_FILE, STATE_FILE, CARD = "checkpoint_manifest.json", "trainer_state.json", "README.md"


def place_aside(folder: Path) -> Path:
    """Return the temporary path, .NAME.part/NAME, of a folder that is renamed to `folder` (NAME) when it is complete."""
    return folder.with_name(f".{folder.name}.part") / folder.name


@contextlib.contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """Yield a new folder at `place_aside`. After an error, the folder is removed, because it may have filled the disk."""
    new = place_aside(folder)
    shutil.rmtree(new.parent, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    # The system, torch, safetensors and tokenizers each raise different types.
    except Exception as error:
        shutil.rmtree(new.parent, ignore_errors=True)
        raise OSError(f"{folder} could not be written: {error}. Earlier complete checkpoints are unchanged") from error


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write to, which replaces `folder` at the end."""
    with written_aside(folder) as new:
        yield new
    if folder.exists():
        remove_folder(folder)
    os.replace(new, folder)
    shutil.rmtree(new.parent)


@contextlib.contextmanager
def replaced_model(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write a model to, and move its files to `folder` at the end; other files are kept.

    Old weights are removed first and new weights are moved last, so that old weights are never loaded with new settings.
    """
    with written_aside(folder / "model") as part:
        yield part
    # Remove the index first: shards without an index cannot be loaded as a model.
    for file in sorted(folder.iterdir(), key=lambda file: file.suffix != ".json"):
        if is_weight_file(file.name):
            file.unlink()
    files = folder_files(part)
    for name in sorted(files, key=lambda name: (is_weight_file(name), name.endswith(".json"))):
        # Keep the card of the run; peft saves a template with every adapter.
        if name != CARD or not (folder / CARD).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(files[name], folder / name)
    shutil.rmtree(part.parent)


def remove_folder(folder: Path):
    """Remove a folder atomically. If the process is killed, `remove_partial` removes the rest."""
    removed = folder.with_name(f".{folder.name}.removed.part")
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(folder, removed)
    shutil.rmtree(removed, ignore_errors=True)


def remove_partial(folder: Path):
    """Remove incomplete files and folders that killed processes have left in a folder."""
    for entry in folder.glob(".*.part"):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def write_manifest(checkpoint: Path):
    """Write the size and digest of each file of a checkpoint, and flush all files to disk."""
    files = folder_files(checkpoint)
    files.pop(MANIFEST_FILE, None)
    entries = {name: (file.stat().st_size, digest_of(file)) for name, file in files.items()}
    (checkpoint / MANIFEST_FILE).write_text(json.dumps({"files": entries}, indent=1) + "\n", encoding="utf-8")
    # Windows cannot open folders, and cannot flush a file that is open for reading.
    if os.name != "nt":
        for place in (*checkpoint.rglob("*"), checkpoint):
            descriptor = os.open(place, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def digest_of(file: Path) -> str:
    """Return the digest of a file. The file is only read again if its size or modification time has changed."""
    status = file.stat()
    return _digest(file.resolve(), status.st_size, status.st_mtime_ns)


@functools.lru_cache(1000)
def _digest(file: Path, size: int, mtime_ns: int) -> str:
    digest = xxh3_128()
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def checkpoint_problem(checkpoint: Path) -> str | None:
    """Return why a checkpoint cannot be resumed from, such as "its optimizer.pt is missing"; None if it is complete."""
    try:
        files = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return f"its {MANIFEST_FILE} is missing or damaged"
    for name, (_, digest) in files.items():
        if not (checkpoint / name).is_file():
            return f"its {name} is missing"
        if digest_of(checkpoint / name) != digest:
            return f"its {name} is damaged: its content differs from what was saved"
    # Without optimizer files, Trainer would continue with a new optimizer. DeepSpeed saves its optimizer in global_step*.
    if not any(name.startswith(("optimizer", "global_step")) for name in files):
        return "its optimizer.pt is missing (--save_only_model does not save it)"
    return None


@contextlib.contextmanager
def readable_weights(source: str, config_overrides: str | None) -> Iterator[None]:
    """Context manager that raises a ValueError with the name `source` if weights are damaged or do not fit the model."""
    try:
        yield
    except (RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        first_line = str(error).partition("\n")[0]
        overrides = f" with --config_overrides {config_overrides}" if config_overrides else ""
        raise ValueError(
            f"the weights of {source} cannot be read, or do not fit its configuration{overrides}: {first_line}"
        ) from error

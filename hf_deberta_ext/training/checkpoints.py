# SPDX-License-Identifier: Apache-2.0
"""Folders that are written aside and renamed, and the check of a checkpoint that a run is resumed from."""

import contextlib
import filecmp
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from ..checkpoints.files import is_weight_file
from .manifest import MANIFEST_FILE, digest_of

__all__ = [
    "STATE_FILE",
    "checkpoint_problem",
    "has_weights",
    "is_partial",
    "place_aside",
    "readable_weights",
    "remove_folder",
    "remove_partial",
    "replaced_folder",
    "replaced_model",
    "write_errors",
]

STATE_FILE, CARD = "trainer_state.json", "README.md"


def place_aside(folder: Path) -> Path:
    """Return the place of a new folder until it is renamed to `folder`: .NAME.part/NAME beside it."""
    return folder.with_name(f".{folder.name}.part") / folder.name


@contextlib.contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """Context with the new folder at `place_aside`, which is removed if there is an error: it may have filled the disk."""
    new = place_aside(folder)
    shutil.rmtree(new.parent, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    except Exception:
        shutil.rmtree(new.parent, ignore_errors=True)
        raise


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Context with a new folder to write into, which replaces `folder` at the end."""
    with written_aside(folder) as new:
        yield new
    if folder.exists():
        remove_folder(folder)
    os.replace(new, folder)
    shutil.rmtree(new.parent)


@contextlib.contextmanager
def replaced_model(folder: Path) -> Iterator[Path]:
    """Context with a new folder to write a model into, whose files go to `folder` at the end; others there stay.

    Old weights are removed first and new ones come last, so that new settings never lie beside old weights. Weights that
    have not changed stay.
    """
    with written_aside(folder / "model") as part:
        yield part
    files = [file.relative_to(part) for file in sorted(part.rglob("*")) if file.is_file()]
    new = {name for name in files if is_weight_file(str(name))}
    old = {Path(file.name) for file in folder.iterdir() if is_weight_file(file.name)}
    if old and (old != new or not all(filecmp.cmp(part / name, folder / name, shallow=False) for name in new)):
        # The index first: shards without it are no model.
        for name in sorted(old, key=lambda name: name.suffix == ".json", reverse=True):
            (folder / name).unlink()
    for name in sorted(files, key=lambda name: (name in new, name.suffix == ".json")):
        # The card is the run's; peft saves a template with every adapter.
        if str(name) != CARD or not (folder / CARD).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / name, folder / name)
    shutil.rmtree(part.parent)


def remove_folder(folder: Path):
    """Remove a folder that is complete or absent under its name; `remove_partial` removes what a kill leaves of it."""
    removed = folder.with_name(f".{folder.name}.removed.part")
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(folder, removed)
    shutil.rmtree(removed, ignore_errors=True)


def is_partial(name: str) -> bool:
    """Return True for the name of a file or folder that is half written or half removed."""
    return name.startswith(".") and name.endswith(".part")


def remove_partial(folder: Path):
    """Remove what killed processes have half written or half removed in a folder."""
    for entry in folder.iterdir():
        if is_partial(entry.name) and entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif is_partial(entry.name):
            entry.unlink()


def has_weights(folder: Path) -> bool:
    """Return True for a folder into which a model was saved: `replaced_model` moves the weights last."""
    return any(is_weight_file(file.name) for file in folder.iterdir())


def checkpoint_problem(checkpoint: Path) -> str | None:
    """Return why no run can be resumed from a checkpoint, such as "its optimizer.pt is missing"; None if one can.

    All files of its manifest are read, and compared with their digests.
    """
    try:
        manifest = json.loads((checkpoint / MANIFEST_FILE).read_text(encoding="utf-8"))
        digests = {name: digest for name, (_, digest) in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST_FILE} is missing or damaged"
    for name, digest in digests.items():
        if not (checkpoint / name).is_file():
            return f"its {name} is missing"
        if digest_of(checkpoint / name) != digest:
            return f"its {name} is damaged: its content is not what was saved"
    # Trainer would go on with a new optimizer. DeepSpeed's is in global_step*.
    if not any(name.startswith(("optimizer", "global_step")) for name in digests):
        return "its optimizer.pt is missing, as with --save_only_model"
    return None


@contextlib.contextmanager
def write_errors(place: str | os.PathLike) -> Iterator[None]:
    """Context in which any error becomes an OSError that says what could not be written."""
    try:
        yield
    # Of the system, torch, safetensors or tokenizers, each with a type of its own.
    except Exception as error:
        raise OSError(f"{place} could not be written: {error}. Complete checkpoints before it are as they were") from error


@contextlib.contextmanager
def readable_weights(source: str, config_overrides: str | None) -> Iterator[None]:
    """Context in which weights that are damaged or do not fit raise a ValueError that names their source."""
    try:
        yield
    except (RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the weights of {source} cannot be read, or do not fit its configuration with --config_overrides "
            f"{config_overrides}: {reason}"
        ) from error

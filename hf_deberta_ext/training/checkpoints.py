# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: atomic writes, their steps, and which of them a run can be resumed from."""

import contextlib
import filecmp
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from ..model.checkpoint_files import checkpoint_step, is_weight_file
from .manifest import manifest_problem

__all__ = [
    "OTHER_CHECKPOINT",
    "checkpoint_problem",
    "has_weights",
    "is_partial",
    "readable_checkpoint",
    "readable_weights",
    "remove_folder",
    "remove_partial",
    "replaced_folder",
    "replaced_model",
]

STATE_FILE, CONFIG_FILE, CARD = "trainer_state.json", "config.json", "README.md"
SINGLE_WEIGHTS = (
    "model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin",
)  # fmt: skip
# The way out where one cannot be read.
OTHER_CHECKPOINT = "Resume from another checkpoint of this run, or begin anew in another --output_dir"
# Folders in which FSDP and DeepSpeed keep the parts of weights and optimizer.
SHARDED_WEIGHTS, SHARDED_OPTIMIZER = (
    ("pytorch_model_fsdp*", "global_step*"),
    ("optimizer.bin", "optimizer_*", "global_step*"),
)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which replaces `folder` at the end."""
    part = _new_part(folder)
    yield part
    if folder.exists():
        remove_folder(folder)
    os.replace(part, folder)


@contextlib.contextmanager
def replaced_model(folder: Path) -> Iterator[Path]:
    """A new folder to write a model into, whose files go to `folder` at the end; others there stay.

    Old weights are removed first and new ones come last: in between there is no model, rather than new code, settings or
    tokenizer with old weights. Weights that are as before stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = _new_part(folder / "model")
    try:
        yield part
    except Exception:
        # It may have filled the disk.
        shutil.rmtree(part, ignore_errors=True)
        raise
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
    shutil.rmtree(part)


def remove_folder(folder: Path):
    """Remove a folder that is complete or absent under its name; `remove_partial` removes what a kill leaves of it."""
    removed = _part(folder.with_name(f"{folder.name}.removed"))
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(folder, removed)
    shutil.rmtree(removed, ignore_errors=True)


def is_partial(name: str) -> bool:
    """True for the name of a file or folder that the functions above have half written or half removed."""
    return name.startswith(".") and name.endswith(".part")


def remove_partial(folder: Path):
    """Remove files and folders of a folder that killed processes have half written or half removed."""
    for entry in folder.iterdir():
        if is_partial(entry.name):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def _part(place: Path) -> Path:
    return place.with_name(f".{place.name}.part")


def _new_part(folder: Path) -> Path:
    part = _part(folder)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def has_weights(folder: Path) -> bool:
    """True for a folder into which a model was saved: `replaced_model` puts its weights there last."""
    return any(is_weight_file(file.name) for file in folder.iterdir())


def checkpoint_problem(checkpoint: Path, *, digests: bool = False) -> str | None:
    """The reason why no run can be resumed from a checkpoint of Trainer, as "its optimizer.pt is missing"; None without one.

    Trainer continues without optimizer, schedule or states of the random number generators where their files are missing.
    What else is wrong says the manifest.

    Args:
        digests (`bool`): read all files of the manifest, which finds whatever is not as it was saved.
    """
    try:
        step = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {STATE_FILE} is missing or truncated"
    if checkpoint_step(checkpoint) not in (-1, step):
        return f"its {STATE_FILE} is of step {step}"
    needed = {
        "model.safetensors": (*SINGLE_WEIGHTS, *SHARDED_WEIGHTS, "*.index.json", "*/adapter_model.*"),
        "optimizer.pt": ("optimizer.pt", *SHARDED_OPTIMIZER),
        "scheduler.pt": ("scheduler.pt", "global_step*"),
        "rng_state.pth": ("rng_state.pth", "rng_state_0.pth"),
        CONFIG_FILE: (CONFIG_FILE, "adapter_config.json"),
    }
    for name, patterns in needed.items():
        if not any(next(checkpoint.glob(pattern), None) for pattern in patterns):
            return f"its {name} is missing" + (", as with --save_only_model" if name == "optimizer.pt" else "")
    return manifest_problem(checkpoint, digests=digests)


@contextlib.contextmanager
def readable_weights(source: str, config_overrides: str | None) -> Iterator[None]:
    """Context in which weights that are damaged or do not fit raise a ValueError that names their source."""
    try:
        yield
    except pickle.UnpicklingError as error:
        # That of torch advises to run them.
        raise ValueError(
            f"the weights of {source} are damaged, or hold pickled objects that are not tensors; they are not run. If you "
            "trust the file, load it with torch yourself and save its tensors as safetensors"
        ) from error
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"the weights of {source} cannot be read, or do not fit its configuration with --config_overrides "
            f"{config_overrides}: {str(error).splitlines()[0]}"
        ) from error


@contextlib.contextmanager
def readable_checkpoint(checkpoint: str | os.PathLike | bool | None) -> Iterator[None]:
    """Context in which pickled code raises a ValueError, for the error of torch.load, which advises to run it.

    Args:
        checkpoint (`str` or path, *optional*): that is loaded from; None or False without one.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"a file in {checkpoint} is damaged, or holds pickled objects that are not tensors; they are not run. "
            f"{OTHER_CHECKPOINT}"
        ) from error

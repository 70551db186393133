# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are whole or not there, whenever the process that writes them is killed."""

import contextlib
import filecmp
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ..model.checkpoint_files import checkpoint_step, is_weight_file, read_header

__all__ = [
    "has_weights",
    "is_part",
    "remove_folder",
    "replace_text",
    "replaced_folder",
    "replaced_model",
    "sweep",
    "why_not_whole",
]

STATE_FILE, CONFIG_FILE, CARD = "trainer_state.json", "config.json", "README.md"
SINGLE_WEIGHTS = (
    "model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin",
)  # fmt: skip
# Folders in which FSDP and DeepSpeed keep the parts of weights and optimizer.
SHARDED_WEIGHTS, SHARDED_OPTIMIZER = (
    ("pytorch_model_fsdp*", "global_step*"),
    ("optimizer.bin", "optimizer_*", "global_step*"),
)


# ------- writing


def replace_text(file: Path, text: str):
    """Writes a file that has its old content or the new one, never a part."""
    part = _part(file)
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which is `folder` at the end: the old one is gone, or whole."""
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
    yield part
    files = [file.relative_to(part) for file in sorted(part.rglob("*")) if file.is_file()]
    new = {name for name in files if is_weight_file(str(name))}
    old = {Path(file.name) for file in folder.iterdir() if is_weight_file(file.name)}
    if old and (old != new or not all(filecmp.cmp(part / name, folder / name, shallow=False) for name in new)):
        # The index first: shards without it are no model.
        for name in sorted(old, key=_is_index, reverse=True):
            (folder / name).unlink()
    for name in sorted(files, key=lambda name: (name in new, _is_index(name))):
        # The card is the run's; peft saves a template with every adapter.
        if str(name) != CARD or not (folder / CARD).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / name, folder / name)
    shutil.rmtree(part)


def remove_folder(folder: Path):
    """Under its name it is whole or gone; `sweep` removes what a kill leaves of it under another."""
    removed = _part(folder.with_name(f"{folder.name}.removed"))
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(folder, removed)
    shutil.rmtree(removed, ignore_errors=True)


def is_part(name: str) -> bool:
    """Whether the name is that of something half written, or half removed, by the functions above."""
    return name.startswith(".") and name.endswith(".part")


def sweep(folder: Path):
    """Removes what kills have left half written or half removed in a folder."""
    for entry in folder.iterdir():
        if is_part(entry.name):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def _part(place: Path) -> Path:
    return place.with_name(f".{place.name}.part")


def _new_part(folder: Path) -> Path:
    part = _part(folder)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def _is_index(name: Path) -> bool:
    return name.suffix == ".json"


# ------- reading


def has_weights(folder: Path) -> bool:
    """Whether a model was saved into the folder: `replaced_model` puts its weights there last."""
    return any(is_weight_file(file.name) for file in folder.iterdir())


def why_not_whole(checkpoint: Path) -> str | None:
    """What a run could not be resumed with from a checkpoint of Trainer, as "its optimizer.pt is not there"; None = nothing.

    Everything that is read when a run is resumed is looked at, none of it is loaded: Trainer writes trainer_state.json
    last, but a checkpoint can lose its files later, and Trainer trains on without optimizer, schedule or number generators
    where it finds none.
    """
    try:
        step = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {STATE_FILE} is not there, or cut"
    if checkpoint_step(checkpoint) not in (-1, step):
        return f"its {STATE_FILE} is of step {step}"
    for index in sorted(checkpoint.glob("*.index.json")):
        if (problem := _why_cut(index)) is not None:
            return problem
        shards = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        if missing := sorted(name for name in {*shards.values()} if not (checkpoint / name).is_file()):
            return f"its {missing[0]} is not there"
    needed = {
        "model.safetensors": (*SINGLE_WEIGHTS, *SHARDED_WEIGHTS, "*.index.json", "*/adapter_model.*"),
        "optimizer.pt": ("optimizer.pt", *SHARDED_OPTIMIZER),
        "scheduler.pt": ("scheduler.pt", "global_step*"),
        "rng_state.pth": ("rng_state.pth", "rng_state_0.pth"),
    }
    for name, patterns in needed.items():
        if not any(next(checkpoint.glob(pattern), None) for pattern in patterns):
            why = ", as with --save_only_model" if name == "optimizer.pt" else ""
            return f"its {name} is not there{why}"
    ours = (*checkpoint.glob("adapter_config.json"), checkpoint / CONFIG_FILE)
    if not any(file.is_file() for file in ours):
        return f"its {CONFIG_FILE} is not there"
    return next(filter(None, map(_why_cut, sorted(file for file in checkpoint.iterdir() if file.is_file()))), None)


def _why_cut(file: Path) -> str | None:
    try:
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".safetensors":
            read_header(file)
        elif file.suffix in (".pt", ".pth", ".bin"):
            # torch.save writes the directory of its archive last.
            zipfile.ZipFile(file).close()
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return f"its {file.name} is cut"
    return None

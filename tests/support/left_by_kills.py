# SPDX-License-Identifier: Apache-2.0
"""Checks of the folder of a killed run: every file must equal the undisturbed run's at the same step."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves

from hf_deberta_ext.training.checkpoints import checkpoint_problem

# Machine-dependent measurements of Trainer, and values that are lost with the part of the run before the kill.
TIMES = re.compile(r".*_(runtime|per_second)|train_loss|train_resumed_at_step")
WEIGHTS, STATE = "model.safetensors", "trainer_state.json"
PARTS = ("", "discriminator", "generator")


def read(file: Path):
    return json.loads(file.read_text(encoding="utf-8"))


def without_times(values: dict) -> dict:
    return {name: value for name, value in values.items() if not TIMES.fullmatch(name)}


def losses(state: Path) -> list[dict]:
    """Return the logged losses, without times and totals of the whole training."""
    return [without_times(entry) for entry in read(state)["log_history"] if "train_runtime" not in entry]


def same(file: Path, other: Path) -> bool:
    """Return True if the files hold bit-identical tensors."""
    if file.suffix == ".safetensors":
        leaves, others = (tree_leaves(sorted(load_file(place).items())) for place in (file, other))
    else:
        leaves, others = (tree_leaves(torch.load(place, weights_only=False)) for place in (file, other))
    pairs = zip(leaves, others, strict=True)
    return all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in pairs)


def look(folder: Path, reference: Path) -> list[str]:
    """Return the errors in the folder of a killed run: incomplete checkpoints, and files from another step."""
    wrong = []
    for checkpoint in sorted(folder.glob("checkpoint-*")):
        problem = checkpoint_problem(checkpoint)
        if problem is not None:
            wrong.append(f"{checkpoint.name}: {problem}")
            continue
        for name in (WEIGHTS, "optimizer.pt", "scheduler.pt"):
            if not same(checkpoint / name, reference / checkpoint.name / name):
                wrong.append(f"{checkpoint.name}: {name} is another")
        if losses(checkpoint / STATE) != losses(reference / checkpoint.name / STATE):
            wrong.append(f"{checkpoint.name}: the log differs")
    for part in PARTS:
        if (folder / part / WEIGHTS).exists() and not same(folder / part / WEIGHTS, reference / part / WEIGHTS):
            wrong.append(f"{part or 'output folder'}: the weights differ")
    if (folder / "README.md").exists() and not (folder / "all_results.json").exists():
        wrong.append("a card without results")
    return wrong


def files_of(folder: Path) -> set[str]:
    """Return the paths of all files outside of checkpoints."""
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    return {name for name in files if not name.startswith("checkpoint-")}


def compare_ended(folder: Path, reference: Path) -> list[str]:
    """Return the differences between a finished run and the undisturbed one."""
    wrong = look(folder, reference)
    results = [without_times(read(place / "all_results.json")) for place in (folder, reference)]
    if results[0] != results[1]:
        wrong.append(f"results {results[0]}, not {results[1]}")
    if losses(folder / STATE) != losses(reference / STATE):
        wrong.append("the logged losses differ")
    return wrong + [f"unexpected or missing: {name}" for name in sorted(files_of(folder) ^ files_of(reference))]

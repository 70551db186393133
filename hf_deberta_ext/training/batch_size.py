# SPDX-License-Identifier: Apache-2.0
"""Per-device batch size, gradient accumulation and precision for the hardware, and the hardware rows of a model card."""

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from .._version import __version__

__all__ = [
    "CPU_MICRO_BATCH",
    "HARDWARE_FLAGS",
    "half_precision",
    "hardware_facts",
    "is_split_free",
    "micro_batches",
    "settings_table",
    "training_device",
    "versions",
]

CPU_MICRO_BATCH = 8
HARDWARE_FLAGS = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16")


def training_device(device: torch.device | None = None) -> torch.device:
    """Return `device` if given, else the accelerator if there is one, else the CPU."""
    if device is None and torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return device or torch.device("cpu")


def half_precision(device: torch.device, flags: Mapping[str, Any]) -> dict[str, bool]:
    """Return {"bf16": True} if the device supports it, else {"fp16": True} on CUDA; {} on CPU or if `flags` has either."""
    if device.type == "cpu" or "bf16" in flags or "fp16" in flags:
        return {}
    if is_torch_bf16_gpu_available():
        return {"bf16": True}
    if device.type == "cuda":
        return {"fp16": True}
    return {}


def micro_batches(batch: int, flags: Mapping[str, Any], processes: int, fitting: int) -> dict[str, int]:
    """Return per_device_train_batch_size and gradient_accumulation_steps for a batch size.

    Args:
        batch (`int`): examples per optimizer step, over all micro-batches and processes.
        flags (`dict`): the user's flags by name. If they set both of the returned flags, the result is {}.
        processes (`int`): number of processes, which share the batch equally.
        fitting (`int`): examples that fit on a device. If neither of the two flags is set, the per-device size
            is the largest number up to `fitting` that divides batch / processes.
    """
    names = HARDWARE_FLAGS[:2]
    given = {name: flags[name] for name in names if flags.get(name) is not None}
    if len(given) == 2:
        return {}
    divisor = " x ".join([*(f"--{name} {value}" for name, value in given.items()), f"{processes} processes"])
    share, rest = divmod(batch, processes)
    if rest or any(value < 1 or share % value for value in given.values()):
        raise ValueError(
            f"the recipe's batch of {batch} must be divisible by {divisor}; change these values, or pass "
            f"--{' and --'.join(names)}"
        )
    size = max(number for number in range(1, max(1, fitting) + 1) if share % number == 0)
    if "gradient_accumulation_steps" in given:
        size = share // given["gradient_accumulation_steps"]
    size = given.get("per_device_train_batch_size", size)
    return dict(zip(names, (size, share // size), strict=True))


def is_split_free(args: TrainingArguments) -> bool:
    """Return True if the examples of a step, and their order, do not depend on the number of processes."""
    return args.train_sampling_strategy in ("random", "sequential") and not args.dataloader_drop_last


def batch_summary(args: TrainingArguments) -> str:
    """Return the examples per optimizer step and how they are split, for a model card."""
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps = f"accumulation steps: {args.gradient_accumulation_steps}, processes: {args.world_size}"
    return f"{batch:,} (per process and micro-batch: {args.train_batch_size}, {steps})"


def hardware_facts(
    args: TrainingArguments, *, parameters: str = "float32", results: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the hardware rows of a model card: devices, processes, precision, seconds and versions, but no machine name."""
    device = f"CPU ({platform.machine()}), {os.cpu_count()} cores, threads of a process: {torch.get_num_threads()}"
    if args.device.type != "cpu":
        name = args.device.type
        if name == "cuda":
            name = torch.cuda.get_device_name(args.device)
        device = f"{args.world_size * max(1, args.n_gpu)} x {name}, {os.cpu_count()} CPU cores"
    precision = f"{parameters} parameters"
    for half in ("fp16", "bf16"):
        if getattr(args, half):
            precision += f", {half} autocast"
    facts, results = {"device": device, "processes": args.world_size, "precision": precision}, results or {}
    if "train_runtime" in results:
        name = "seconds of training"
        if "train_resumed_at_step" in results:
            name += f", from step {results['train_resumed_at_step']} on"
        facts[name] = results["train_runtime"]
    return facts | {"versions": versions()}


def versions() -> dict[str, str]:
    """Return the versions of Python, torch, transformers and this package."""
    modules = {"torch": torch.__version__, "transformers": transformers.__version__, "hf_deberta_ext": __version__}
    return {"python": platform.python_version(), **modules}


def settings_table(
    published: Mapping[str, Any], settings: Mapping[str, Any], flags: Mapping[str, Any], *rows: tuple[str, str, str]
) -> list[str]:
    """Return the lines of a table with three columns: setting, value, and what set it (recipe, hardware or flag)."""
    table = [("setting", "value", "set by")]
    for name in dict.fromkeys([*published, *HARDWARE_FLAGS]):
        value, origin = settings.get(name), "recipe"
        if name in HARDWARE_FLAGS:
            origin = "hardware"
        if name in flags:
            value, origin = flags[name], "your flag"
            if published.get(name) is not None:
                origin = f"your flag, recipe: {published[name]}"
        if isinstance(value, int) and value >= 1000:
            value = f"{value:,}"
        if name in flags or name in settings:
            table.append((name, str(value), origin))
    return [f"  {setting:<28}  {value:<10}  {origin}" for setting, value, origin in (*table, *rows)]

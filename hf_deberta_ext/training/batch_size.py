# SPDX-License-Identifier: Apache-2.0
"""Per-device batch size, gradient accumulation and precision for the hardware; and its rows in a model card."""

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
    "CPU_MICRO_BATCH", "HARDWARE_FLAGS", "computes_bfloat16", "half_precision", "hardware_facts", "is_split_free",
    "micro_batches", "settings_table", "training_device", "versions",
]  # fmt: skip

CPU_MICRO_BATCH = 8
HARDWARE_FLAGS = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16")


def training_device(device: torch.device | None = None) -> torch.device:
    """`device`, or without one the accelerator, or the CPU."""
    if device is not None:
        return device
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def computes_bfloat16() -> bool:
    """True unless this is an x86 processor without products of bfloat16 (AMX, AVX512-BF16), or torch cannot tell."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    checks = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("amx_tile", "avx512_bf16")]
    return None in checks or any(check() for check in checks)


def half_precision(device: torch.device, flags: Mapping[str, Any]) -> dict[str, bool]:
    """bf16 where the accelerator has it, else fp16 on CUDA; nothing on CPU, or where a flag of the user sets it."""
    if device.type == "cpu" or {"bf16", "fp16"} & {*flags}:
        return {}
    if is_torch_bf16_gpu_available():
        return {"bf16": True}
    return {"fp16": True} if device.type == "cuda" else {}


def micro_batches(batch: int, flags: Mapping[str, Any], processes: int, fitting: int) -> dict[str, int]:
    """per_device_train_batch_size and gradient_accumulation_steps, whose product is each process's share of the batch.

    Args:
        batch (`int`): examples of an optimizer step, over all micro-batches and processes.
        flags (`dict`): of the user, by name; with both of these there is nothing to decide.
        fitting (`int`): examples that a device holds; the size is the largest divisor of the share up to it.
    Raises:
        ValueError: the batch has no such divisors; names the numbers, and the nearest ones.
    """
    names = HARDWARE_FLAGS[:2]
    size, accumulation = (flags.get(name) for name in names)
    if size is not None and accumulation is not None:
        return {}
    for name, value in zip(names, (size, accumulation), strict=True):
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if batch % processes:
        raise ValueError(
            f"the recipe's batch of {batch} cannot be shared equally by {processes} processes: take "
            f"{near_divisors(batch, processes)} processes, or give both --per_device_train_batch_size and "
            "--gradient_accumulation_steps"
        )
    share = batch // processes
    if size is None and accumulation is None:
        size = max(number for number in range(1, max(1, min(fitting, share)) + 1) if share % number == 0)
    elif size is None:
        if share % accumulation:
            raise ValueError(
                f"the recipe's batch of {batch} is not {accumulation} accumulation steps of one size: no per-device size x "
                f"{accumulation} accumulation steps x {processes} processes is as many; take "
                f"{near_divisors(share, accumulation)} accumulation steps, or give --per_device_train_batch_size, too"
            )
        size = share // accumulation
    if share % size:
        raise ValueError(
            f"the recipe's batch of {batch} is not {size} examples per device x {processes} processes x any number of "
            f"accumulation steps: take {near_divisors(share, size)} per device, or give --gradient_accumulation_steps, too"
        )
    return dict(zip(names, (size, share // size), strict=True))


def is_split_free(args: TrainingArguments) -> bool:
    """True if neither the examples of a step nor their order depend on how many processes share it."""
    return args.train_sampling_strategy in ("random", "sequential") and not args.dataloader_drop_last


def near_divisors(number: int, target: int) -> str:
    """The divisors of `number` next to `target`, for a message."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    below = [divisor for divisor in divisors if divisor < target][-1:]
    above = [divisor for divisor in divisors if divisor > target][:1]
    return " or ".join(map(str, below + above))


def hardware_facts(
    args: TrainingArguments, *, parameters: str = "float32", results: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Rows of a card's table: devices, processes, precision, seconds and versions; nothing that names the machine.

    Args:
        parameters (`str`): their dtype.
        results (`dict`, *optional*): of the training: "train_runtime", and "train_resumed_at_step" where it went on from a
            checkpoint, which the seconds before are not known of.
    """
    results = results or {}
    half = "bf16" if args.bf16 else "fp16" if args.fp16 else None
    resumed = results.get("train_resumed_at_step")
    seconds = "seconds of training" if resumed is None else f"seconds of training, from step {resumed} on"
    facts = {
        "device": device_name(args),
        "processes": args.world_size,
        "precision": f"{parameters} parameters" + (f", {half} autocast" if half else ""),
        seconds: results.get("train_runtime"),
        "versions": versions(),
    }
    return {name: value for name, value in facts.items() if value is not None}


def device_name(args: TrainingArguments) -> str:
    device, cores = args.device, os.cpu_count()
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"CPU ({platform.machine()}), {cores} cores, {threads} thread{'s' if threads > 1 else ''} a process"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{args.world_size * max(1, args.n_gpu)} x {name}, {cores} CPU cores"


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide what a run computes."""
    return dict(
        python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__,
        hf_deberta_ext=__version__,
    )  # fmt: skip


def settings_table(
    published: Mapping[str, Any], settings: Mapping[str, Any], flags: Mapping[str, Any], *rows: tuple[str, str, str]
) -> list[str]:
    """Lines of a table of (setting, value, who set it), with its head.

    Args:
        published (`dict`): settings of a recipe.
        settings (`dict`): those that recipe and hardware have set.
        flags (`dict`): of the user; those that the recipe does not know are left out.
        rows: further ones.
    """

    def shown(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    table = [("setting", "value", "set by")]
    for name in dict.fromkeys([*published, *HARDWARE_FLAGS]):
        if name in flags:
            replaced = "" if published.get(name) is None else f", recipe: {shown(published[name])}"
            table.append((name, shown(flags[name]), f"your flag{replaced}"))
        elif name in settings:
            table.append((name, shown(settings[name]), "hardware" if name in HARDWARE_FLAGS else "recipe"))
    table += rows
    widths = [max(len(row[column]) for row in table) for column in (0, 1)]
    return [f"  {setting:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for setting, value, origin in table]

# SPDX-License-Identifier: Apache-2.0
"""The folder of a training run: nothing in it is overwritten, and it is resumed only with the arguments that began it."""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.utils import logging

from ..model.checkpoint_files import checkpoint_step
from .checkpoints import checkpoint_problem, is_partial, replace_text

logger = logging.get_logger(__name__)

__all__ = [
    "ARGUMENTS_FILE",
    "BATCH_ARGUMENTS",
    "TOKENIZER_FOLDER",
    "begin_run",
    "repeated_arguments",
    "resume_checkpoint",
]

# Written before the first checkpoint, and again from the same arguments.
ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"

# Arguments of Trainer that a resumed run must repeat, beside every flag that a script adds to them.
BATCH_ARGUMENTS = ("per_device_train_batch_size", "gradient_accumulation_steps", "world_size", "bf16", "fp16")
REPEATED = (
    "seed", "data_seed", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs",
    "warmup_steps", "weight_decay", "optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
    "label_smoothing_factor", "dataloader_drop_last", "train_sampling_strategy", *BATCH_ARGUMENTS,
)  # fmt: skip
# Flags of the scripts that it may change: of the machine, of the folder and of the model card.
FREE = {
    "attn_implementation", "cache_dir", "card_language", "license", "max_file_bytes", "num_proc", "overwrite_output_dir",
    "preprocessing_num_workers", "seeds", "token",
}  # fmt: skip


def repeated_arguments(groups: Sequence[Any], args: TrainingArguments, free: Collection[str] = ()) -> dict[str, Any]:
    """Arguments that a resumed run must repeat, or it would not be the same run.

    Args:
        groups: dataclasses of a script's flags.
        args (`TrainingArguments`): or a subclass, all of whose own fields count.
        free: names that this run may change, e.g. `BATCH_ARGUMENTS` where examples, masks and dropout of a step do not
            depend on its split into micro-batches and processes.
    """
    flags: dict[str, Any] = {}
    for group in groups:
        flags |= dataclasses.asdict(group)
    trainer_fields = TrainingArguments.__dataclass_fields__
    added = [field.name for field in dataclasses.fields(args) if field.name not in trainer_fields]
    flags |= {name: getattr(args, name) for name in (*added, *REPEATED)}
    return {name: value for name, value in flags.items() if name not in FREE and name not in free}


def resume_checkpoint(folder: str | os.PathLike, resume: str | bool | None) -> str | None:
    """Return the checkpoint from which a run goes on, or None for a new run.

    Args:
        folder (`str` or path): the run's output folder.
        resume (`str` or `bool`, *optional*): True, "true" or "last" for the last complete checkpoint in `folder` (one that
            was being written when its run was killed is passed over); a checkpoint's folder; None, False or "false":
            a new run, whose folder must be absent, empty, or that of a run which was stopped before its first checkpoint.

    Raises:
        ValueError: a new run in a folder that is not empty, or a folder without a complete checkpoint.
    """
    folder, asked = Path(folder), str(resume).lower()
    if asked not in ("none", "false", "true", "last"):
        if (problem := checkpoint_problem(Path(resume), digests=True)) is not None:
            raise ValueError(f"{resume} is not a complete checkpoint: {problem}; resume from an earlier one")
        return str(resume)
    newest, problems = None, {}
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True):
        if (problem := checkpoint_problem(checkpoint, digests=True)) is None:
            newest = checkpoint
            break
        problems[checkpoint.name] = problem
    if asked in ("none", "false"):
        if folder.exists() and (not folder.is_dir() or not all(map(_precedes_checkpoints, folder.iterdir()))):
            advice = "" if newest is None else f"go on from {newest} with --resume_from_checkpoint last, or "
            raise ValueError(f"{folder} is not empty: {advice}choose another --output_dir")
        return None
    incomplete = "; ".join(f"{name} is not a complete checkpoint: {problem}" for name, problem in problems.items())
    if newest is None:
        raise ValueError(
            f"there is no checkpoint-* in {folder} to resume from{f' ({incomplete})' if incomplete else ''}; leave "
            f"--resume_from_checkpoint out{', and choose another --output_dir' if incomplete else ''}"
        )
    if incomplete:
        logger.warning(f"in {folder}, {incomplete}. The run goes on from {newest.name}")
    return str(newest)


def _precedes_checkpoints(file: Path) -> bool:
    return file.name in (ARGUMENTS_FILE, TOKENIZER_FOLDER) or is_partial(file.name)


def begin_run(folder: str | os.PathLike, arguments: Mapping[str, Any], resuming: bool):
    """Write the arguments that decide what is learned into the folder of a new run; compare them in a resumed one.

    Arguments that only this version of the script has, or only the one that began the run, are not compared.

    Raises:
        ValueError: resumed with other arguments; names each with both values.
    """
    file = Path(folder, ARGUMENTS_FILE)
    current = json.loads(json.dumps(arguments, default=str))
    if resuming and file.is_file():
        first = json.loads(file.read_text(encoding="utf-8"))
        changed = [name for name in sorted({*first} & {*current}) if first[name] != current[name]]
        if changed:
            values = "; ".join(f"{name} = {current[name]!r}, begun with {first[name]!r}" for name in changed)
            raise ValueError(
                f"a resumed run must have the arguments that it began with: {values}. To train its model further with "
                "others, begin a new run from the model in the folder, with another --output_dir"
            )
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(current, indent=2) + "\n")

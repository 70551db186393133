# SPDX-License-Identifier: Apache-2.0
"""The folder of a training run: nothing in it is overwritten, and it is resumed only with the arguments that began it."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.utils import logging

from ..model.checkpoint_files import checkpoint_step, read_json
from .batch_size import is_split_free
from .checkpoints import checkpoint_problem, is_partial, replace_text
from .folder_lock import LOCK_FILE, lock_folder, locked_folder

logger = logging.get_logger(__name__)

__all__ = [
    "ARGUMENTS_FILE",
    "TOKENIZER_FOLDER",
    "accepted_changes",
    "accepted_changes_line",
    "begin_run",
    "claim_folder",
    "compare_run",
    "is_decided_by_evaluation",
    "repeated_arguments",
    "resume_checkpoint",
]

# Written before the first checkpoint, and again from the same arguments; each checkpoint has a copy.
ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"
ACCEPTED = "resumed_anyway"

# Every argument of Trainer and every flag of a script shapes the weights, but for these: what is printed, saved, measured
# and published, how the data is read, and the machine.
FREE_PREFIXES = ("ddp_", "eval_", "hub_", "include_", "log_", "logging_", "resume_", "save_", "trackio_")
FREE = {
    "batch_eval_metrics", "bf16_full_eval", "cache_dir", "card_language", "dataloader_multiprocessing_context",
    "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory", "dataloader_prefetch_factor",
    "debug", "disable_tqdm", "do_eval", "do_predict", "do_train", "enable_jit_checkpoint", "fp16_full_eval",
    "greater_is_better", "license", "local_rank", "max_file_bytes", "max_predict_samples", "metric_for_best_model",
    "num_proc", "output_dir", "overwrite_output_dir", "per_device_eval_batch_size", "prediction_loss_only",
    "preprocessing_num_workers", "project", "push_to_hub", "report_to", "run_name", "seeds", "skip_memory_metrics",
    "test_file", "token", "torch_empty_cache_steps", "use_cpu",
    # The trainer has the backend that it stands for.
    "attn_implementation",
}  # fmt: skip
# These count where an evaluation decides which model is kept, or the learning rate.
EVALUATION = {
    "eval_delay", "eval_on_start", "eval_steps", "eval_strategy", "greater_is_better", "metric_for_best_model", "save_steps",
    "save_strategy",
}  # fmt: skip
# The states of optimizer and scheduler hold these, whatever the arguments of a resumed run are.
STORED = {"adam_beta1", "adam_beta2", "adam_epsilon", "discriminator_learning_rate", "learning_rate", "weight_decay"}


def is_decided_by_evaluation(args: TrainingArguments) -> bool:
    """True for a run whose evaluations decide which model is kept, or the learning rate."""
    return args.load_best_model_at_end or args.lr_scheduler_type == "reduce_lr_on_plateau"


def repeated_arguments(groups: Sequence[Any], args: TrainingArguments) -> dict[str, Any]:
    """Arguments that a resumed run must repeat, or it would not be the same run.

    Args:
        groups: dataclasses of a script's flags.
        args (`TrainingArguments`): or a subclass. Where `is_split_free`, processes with the same batch may be more or fewer.
    """
    counted = EVALUATION if is_decided_by_evaluation(args) else set()
    flags = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    flags["world_size"] = args.world_size
    if is_split_free(args):
        steps = flags.pop("gradient_accumulation_steps")
        flags["batch_size"] = args.train_batch_size * steps * flags.pop("world_size")
    for group in groups:
        flags |= dataclasses.asdict(group)
    return {
        name: value
        for name, value in flags.items()
        if name in counted or not (name in FREE or name.startswith(FREE_PREFIXES))
    }


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
            if (folder / LOCK_FILE).exists():
                with locked_folder(folder):
                    pass
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
    return file.name in (ARGUMENTS_FILE, TOKENIZER_FOLDER, LOCK_FILE) or is_partial(file.name)


def claim_folder(folder: str | os.PathLike, *, is_new: bool):
    """Lock the folder of a script's run until `leave_together` or the end of the process, and look at it once more.

    Raises:
        ValueError: another run lives in it, or has filled it since `resume_checkpoint` looked first.
    """
    lock_folder(folder)
    if is_new:
        resume_checkpoint(folder, None)


def begin_run(
    folder: str | os.PathLike,
    arguments: Mapping[str, Any],
    resumed: str | os.PathLike | bool | None = None,
    anyway: Sequence[str] = (),
) -> dict[str, Any]:
    """Write what decides what is learned into the folder of a run; a resumed one is compared first, see `compare_run`."""
    record = compare_run(folder, arguments, resumed, anyway)
    file = Path(folder, ARGUMENTS_FILE)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(record, indent=2) + "\n")
    return record


def compare_run(
    folder: str | os.PathLike,
    arguments: Mapping[str, Any],
    resumed: str | os.PathLike | bool | None = None,
    anyway: Sequence[str] = (),
) -> dict[str, Any]:
    """The record of a run, its arguments; of a resumed one with those that it began with, which must be the same.

    Arguments that only this version has, or only the one that began the run, are not compared.

    Args:
        resumed (`str`, path or `bool`, *optional*): the checkpoint that the run goes on from, or True without one.
        anyway (`list[str]`): arguments that may differ all the same; the record says which did, and from which step on.
    Raises:
        ValueError: resumed with other arguments, names each with both values; a wrong name in `anyway`; a damaged record.
    """
    current = json.loads(json.dumps(arguments, default=str))
    if not resumed and anyway:
        raise ValueError(f"--resume_anyway {' '.join(anyway)} is for a resumed run: give --resume_from_checkpoint")
    if not resumed:
        return current
    checkpoint = folder if resumed is True else resumed
    places = (Path(checkpoint), Path(checkpoint).resolve().parent, Path(folder))
    first = next(filter(None, (read_record(place / ARGUMENTS_FILE) for place in places)), {})
    changed = {name: [first[name], current[name]] for name in sorted({*first} & {*current}) if first[name] != current[name]}
    if unknown := sorted({*anyway} - {*first} - {*current}):
        differing = f", which differs in {', '.join(changed)}" if changed else ""
        raise ValueError(f"--resume_anyway {unknown[0]} names no argument of this run{differing}")
    if refused := [name for name in changed if name not in anyway or name in STORED]:
        values = "; ".join(f"{name} = {changed[name][1]!r}, begun with {changed[name][0]!r}" for name in refused)
        stored = sorted({*refused} & STORED)
        raise ValueError(
            f"a resumed run must have the arguments that it began with: {values}. Begin a new run in another --output_dir, "
            "which may train the model of this one further"
            + (f" (the checkpoint holds {', '.join(stored)})" if stored else "")
            + ("" if stored else f", or go on otherwise with --resume_anyway {' '.join(changed)}")
        )
    record = first | current
    if changed:
        step = checkpoint_step(Path(checkpoint).resolve())
        record[ACCEPTED] = [*first.get(ACCEPTED, []), {"step": max(0, step), **changed}]
    return record


def read_record(file: Path) -> dict[str, Any]:
    """The content of run_arguments.json, {} without it.

    Raises:
        ValueError: it is damaged.
    """
    try:
        return read_json(file)
    except ValueError as error:
        raise ValueError(f"{error}; or remove it, and the run is resumed without a comparison of its arguments") from error


def accepted_changes(folder: str | os.PathLike) -> list[dict[str, Any]]:
    """The arguments that --resume_anyway changed in a run: for each time "step" and, by name, [old, new] values."""
    return read_record(Path(folder, ARGUMENTS_FILE)).get(ACCEPTED, [])


def accepted_changes_line(folder: str | os.PathLike) -> str | None:
    """The same for a card: "max_grad_norm (from step 20 on)"; None without any."""
    changes = accepted_changes(folder)
    parts = [f"{', '.join(name for name in change if name != 'step')} (from step {change['step']} on)" for change in changes]
    return "; ".join(parts) or None

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

from ..checkpoints.files import checkpoint_step, is_adapter_folder, read_json
from ..files import replace_text
from .batch_size import is_split_free
from .checkpoints import checkpoint_problem, is_partial
from .folder_lock import LOCK_FILE

logger = logging.get_logger(__name__)

__all__ = [
    "ARGUMENTS_FILE",
    "TOKENIZER_FOLDER",
    "accepted_changes",
    "begin_run",
    "contents_line",
    "find_checkpoint",
    "follow_processes",
    "is_decided_by_evaluation",
    "repeated_arguments",
    "resume_checkpoint",
]

# Written before the first checkpoint, and again from the same arguments; each checkpoint has a copy.
ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"

# Every argument of Trainer and every flag of a script shapes the weights, but for these: what is printed, saved, measured
# and published, how the data is read, and the machine. The trainer has the backend that attn_implementation stands for.
FREE_PREFIXES = (
    "ddp_", "dataloader_mult", "dataloader_num", "dataloader_p", "eval_", "hub_", "include_", "log_", "logging_", "resume_",
    "save_", "trackio_",
)  # fmt: skip
FREE = set(
    """attn_implementation batch_eval_metrics bf16_full_eval cache_dir card_language debug disable_tqdm do_eval do_predict
    do_train enable_jit_checkpoint fp16_full_eval greater_is_better license local_rank max_file_bytes max_predict_samples
    metric_for_best_model num_proc output_dir overwrite_output_dir per_device_eval_batch_size prediction_loss_only
    preprocessing_num_workers project push_to_hub report_to run_name seeds skip_memory_metrics test_file token
    torch_empty_cache_steps use_cpu""".split()
)
# These count where an evaluation decides which model is kept, or the learning rate.
EVALUATION = set(
    """eval_delay eval_on_start eval_steps eval_strategy greater_is_better metric_for_best_model save_steps
    save_strategy""".split()
)
# The states of optimizer and scheduler hold these, whatever the arguments of a resumed run are.
STORED = {"adam_beta1", "adam_beta2", "adam_epsilon", "discriminator_learning_rate", "learning_rate", "weight_decay"}


def is_decided_by_evaluation(args: TrainingArguments) -> bool:
    """Return True for a run whose evaluations decide which model is kept, or the learning rate."""
    return args.load_best_model_at_end or args.lr_scheduler_type == "reduce_lr_on_plateau"


def repeated_arguments(groups: Sequence[Any], args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments that a resumed run must repeat, or it would not be the same run.

    Args:
        groups: dataclasses of a script's flags.
        args (`TrainingArguments`): or a subclass. Where `is_split_free`, processes with the same batch may be more or fewer.
    """
    flags = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    flags["world_size"] = args.world_size
    if is_split_free(args):
        flags["batch_size"] = args.train_batch_size * flags.pop("gradient_accumulation_steps") * args.world_size
    for group in groups:
        flags |= dataclasses.asdict(group)
    free = {name for name in flags if name in FREE or name.startswith(FREE_PREFIXES)}
    if is_decided_by_evaluation(args):
        free -= EVALUATION
    return {name: value for name, value in flags.items() if name not in free}


def contents_line(folder: str | os.PathLike) -> str:
    """Return the end of a run in a line: what its folder holds."""
    kind, code = "model", ""
    if is_adapter_folder(folder):
        kind = "adapter"
    if any(Path(folder).rglob("modeling_deberta_ext.py")):
        code = "; the .py files load it where this package is not installed"
    return f"{folder} holds the {kind}, its tokenizer and its card{code}."


def find_checkpoint(args: TrainingArguments) -> str | None:
    """`resume_checkpoint` of a script's arguments; sets what "auto" stands for in them, and `follow_processes`."""
    checkpoint = resume_checkpoint(args.output_dir, args.resume_from_checkpoint)
    if str(args.resume_from_checkpoint).lower() == "auto":
        args.resume_from_checkpoint = checkpoint
    follow_processes(args, checkpoint)
    return checkpoint


def follow_processes(args: TrainingArguments, checkpoint: str | os.PathLike | None):
    """Set the accumulation of a run that is resumed by another number of processes, for as many examples a step as before.

    Raises:
        ValueError: these processes cannot share them equally.
    """
    if checkpoint is None or "batch_size" in getattr(args, "resume_anyway", ()):
        return
    begun = begun_with(args.output_dir, checkpoint)
    batch, before, processes = begun.get("batch_size"), begun.get("world_size"), args.world_size
    if batch is None or before in (None, processes):
        return
    accumulation, rest = divmod(batch, args.train_batch_size * processes)
    if rest:
        raise ValueError(
            f"{processes} processes with {args.train_batch_size} examples each cannot share the {batch} examples of a step "
            "that this run began with: take a number of processes that divides them"
        )
    if accumulation != args.gradient_accumulation_steps and args.process_index == 0:
        logger.warning(
            f"gradient_accumulation_steps = {accumulation}, for the {batch} examples of a step that this run began with: it "
            f"is resumed by another number of processes, {processes} in place of {before}"
        )
    args.gradient_accumulation_steps = accumulation


def resume_checkpoint(folder: str | os.PathLike, resume: str | bool | None) -> str | None:
    """Return the checkpoint from which a run is resumed, all of whose files are as they were saved; None for a new run.

    Args:
        folder (`str` or path): the run's output folder.
        resume (`str` or `bool`, *optional*): True, "true" or "last" for the last checkpoint in `folder` that is whole; a
            checkpoint's folder; None, False or "false": a new run, whose folder must be absent, empty, or that of a run
            which was stopped before the end of its first checkpoint; "auto": as "last" where there is a checkpoint, else as
            None.

    Raises:
        ValueError: a new run in a folder that is not empty, or a folder without a whole checkpoint.
    """
    folder, asked = Path(folder), str(resume).lower()
    if asked not in ("none", "false", "true", "last", "auto"):
        problem = checkpoint_problem(Path(resume))
        if problem is not None:
            raise ValueError(f"{resume} is not a complete checkpoint: {problem}; resume from an earlier one")
        return str(resume)
    problems = ""
    if asked in ("true", "last", "auto"):
        for checkpoint in sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True):
            problem = checkpoint_problem(checkpoint)
            if problem is None:
                if problems:
                    logger.warning(f"in {folder}{problems}: the run is resumed from {checkpoint.name}")
                return str(checkpoint)
            problems += f", {checkpoint.name} is not a complete checkpoint: {problem}"
    if asked in ("true", "last") or problems:
        raise ValueError(
            f"there is no checkpoint-* in {folder} to resume from{problems}; leave --resume_from_checkpoint out, and choose "
            "another --output_dir if there are results in it"
        )
    refuse_results(folder)
    return None


def refuse_results(folder: Path):
    """Refuse a folder for a new run that holds more than a run leaves which was stopped before its first checkpoint."""
    if not folder.exists():
        return
    names = {file.name for file in folder.iterdir() if not is_partial(file.name)}
    if names - {ARGUMENTS_FILE, TOKENIZER_FOLDER, LOCK_FILE}:
        advice = "choose another --output_dir"
        if [*folder.glob("checkpoint-*")]:
            advice = f"go on from its last checkpoint with --resume_from_checkpoint last, or {advice}"
        raise ValueError(f"{folder} is not empty: {advice}")


def begin_run(
    folder: str | os.PathLike,
    arguments: Mapping[str, Any],
    resumed: str | os.PathLike | bool | None = None,
    anyway: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the arguments that decide what is learned into the folder of a run, and return them; of a resumed one compare
    them before. Arguments that only one of the two has are not compared.

    Args:
        resumed (`str`, path or `bool`, *optional*): the checkpoint that the run is resumed from, or True without one.
        anyway (`list[str]`): arguments that may differ all the same; `accepted_changes` tells of them.
    Raises:
        ValueError: resumed with other arguments, names each with both values; a wrong name in `anyway`.
    """
    record = json.loads(json.dumps(arguments, default=str))
    if anyway and not resumed:
        raise ValueError(f"--resume_anyway {' '.join(anyway)} is for a resumed run: give --resume_from_checkpoint")
    if resumed:
        checkpoint = Path(folder)
        if resumed is not True:
            checkpoint = Path(resumed).resolve()
        first = begun_with(folder, checkpoint)
        compared = {*first} & {*record}
        if "batch_size" in record:
            compared -= {"world_size"}
        changed = {name: [first[name], record[name]] for name in sorted(compared) if first[name] != record[name]}
        unknown = sorted({*anyway} - {*first} - {*record})
        if unknown:
            raise ValueError(f"--resume_anyway {unknown[0]} is no argument of this run, which differs in {[*changed]}")
        refused = [name for name in changed if name not in anyway or name in STORED]
        if refused:
            values = "; ".join(f"{name} = {changed[name][1]!r}, begun with {changed[name][0]!r}" for name in refused)
            advice = f"to resume it otherwise give --resume_anyway {' '.join(changed)}"
            if STORED & {*refused}:
                advice = f"its checkpoint holds {', '.join(sorted(STORED & {*refused}))}"
            raise ValueError(
                f"a resumed run must have the arguments that it began with: {values}. Begin a new run from its model in "
                f"another --output_dir; {advice}"
            )
        record = first | record
        if changed:
            accepted = {"step": checkpoint_step(checkpoint), **changed}
            record["resumed_anyway"] = [*first.get("resumed_anyway", []), accepted]
    Path(folder).mkdir(parents=True, exist_ok=True)
    replace_text(Path(folder, ARGUMENTS_FILE), json.dumps(record, indent=2) + "\n")
    return record


def begun_with(folder: str | os.PathLike, checkpoint: str | os.PathLike) -> dict[str, Any]:
    """Return the record of a run in or beside its checkpoint, or in its folder; {} without one."""
    for place in (Path(checkpoint), Path(checkpoint).resolve().parent, Path(folder)):
        record = read_json(place / ARGUMENTS_FILE)
        if record:
            return record
    return {}


def accepted_changes(folder: str | os.PathLike) -> str | None:
    """Return the arguments that --resume_anyway changed in a run, as "bf16, optim from step 20 on"; None without any."""
    lines = []
    for change in read_json(Path(folder, ARGUMENTS_FILE)).get("resumed_anyway", []):
        step = change.pop("step")
        line = ", ".join(change)
        if step >= 0:
            line += f" from step {step} on"
        lines.append(line)
    return "; ".join(lines) or None

# SPDX-License-Identifier: Apache-2.0
"""The output folder of a training run: protect it from overwriting, and resume it only with the initial arguments."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments
from transformers.utils import logging
from xxhash import xxh3_64

from .._version import __version__
from ..checkpoints.files import checkpoint_step, is_weight_file, read_json
from ..files import drop_none, replace_text
from .batch_size import is_split_free
from .checkpoints import checkpoint_problem, digest_of
from .digests import add_values, json_digest, tokenizer_digest

logger = logging.get_logger(__name__)

__all__ = ["ARGUMENTS_FILE", "begin_run", "find_checkpoint", "repeated_arguments", "resume_checkpoint", "run_contents"]

# Written before the first checkpoint, and rewritten when the run is resumed; each checkpoint has a copy.
ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"

# Arguments that do not change the weights of a run: what is printed, saved, measured and published, how the data is read,
# and the machine. All other arguments change the weights. attn_implementation is compared in the configuration of the model.
FREE_PREFIXES = tuple(
    "ddp_ dataloader_mult dataloader_num dataloader_p eval_ hub_ include_ log_ logging_ resume_ save_ trackio_".split()
)
FREE = set(
    """allow_changed_args attn_implementation batch_eval_metrics bf16_full_eval cache_dir card_language debug
    disable_tqdm do_eval do_predict do_train enable_jit_checkpoint fp16_full_eval greater_is_better license local_rank
    max_file_bytes max_predict_samples metric_for_best_model num_proc output_dir overwrite_output_dir
    per_device_eval_batch_size prediction_loss_only predictions_format preprocessing_num_workers project push_to_hub
    report_to run_name seeds skip_memory_metrics test_file token torch_empty_cache_steps train_longer use_cpu""".split()
)
# Arguments that change the weights if evaluations select the model or set the learning rate.
EVALUATION = set(
    """eval_delay eval_on_start eval_steps eval_strategy greater_is_better metric_for_best_model save_steps
    save_strategy""".split()
)
# Arguments that cannot change: a resumed run restores their values from the states of optimizer and scheduler.
STORED = {"adam_beta1", "adam_beta2", "adam_epsilon", "discriminator_learning_rate", "learning_rate", "weight_decay"}
# Arguments that --train_longer may change.
LENGTH = ("max_steps", "num_train_epochs")
# Maximum number of rows to hash in a data set that is not a list or a `datasets.Dataset`; reading such rows may be slow.
MOST_ROWS = 1000
# Prefixes of configuration fields that do not affect the weights, or that Trainer sets.
NO_SETTINGS = ("_attn", "_name", "architectures", "attn_", "auto_map", "dtype", "torch_dtype", "transformers", "use_cache")


def is_decided_by_evaluation(args: TrainingArguments) -> bool:
    """Return True if the evaluations of a run select the model or set the learning rate."""
    return args.load_best_model_at_end or args.lr_scheduler_type == "reduce_lr_on_plateau"


def repeated_arguments(groups: Sequence[Any], args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments in `args` and in the dataclasses `groups` that must not change when a run is resumed.

    If `is_split_free`, the number of processes may change as long as the batch size stays the same.
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


def run_contents(trainer: Trainer) -> dict[str, Any]:
    """Return the properties of data, model and tokenizer that determine the weights, as entries of run_arguments.json."""
    args, model, collator, rows = trainer.args, trainer.model, trainer.data_collator, trainer.train_dataset
    if hasattr(model, "peft_config"):
        model = model.get_base_model()
    config = getattr(model, "config", None)
    source = getattr(model, "name_or_path", None) or ""
    contents = {
        "data_digest": examples_digest(rows),
        # The buffer size determines the order of PreparedRows. Code that uses the trainer directly sets it without a flag.
        "shuffle_buffer": getattr(getattr(rows, "dataset", None), "buffer", None),
        "tokenizer_digest": tokenizer_digest(trainer.processing_class),
        "trained_parameters": sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
        # A private attribute, because there is no public one. None: models of this package choose the implementation.
        "config.attn_implementation": str(getattr(config, "_attn_implementation", None)),
        "hf_deberta_ext": __version__,
        "data_collator": getattr(collator, "__name__", type(collator).__name__),
        "data_collator_options": repr(getattr(collator, "options", None)),
    }
    if hasattr(rows, "streams"):
        # The number of streams determines the order of a NumberedStream.
        contents["streams"] = len(rows.streams)
    if is_decided_by_evaluation(args):
        contents["evaluation_data_digest"] = examples_digest(trainer.eval_dataset)
    # Checkpoints of the run itself are not its initial weights. Only the private _commit_hash has the commit.
    if not Path(source).resolve().is_relative_to(Path(args.output_dir).resolve()):
        contents["weights_digest"] = weights_digest(source, getattr(config, "_commit_hash", None))
    if hasattr(config, "to_dict"):
        for name, value in config.to_dict().items():
            if not name.startswith(NO_SETTINGS) and not name.endswith("_token_id"):
                contents[f"config.{name}"] = value
    return drop_none(contents)


def examples_digest(dataset: Any) -> str | None:
    """Return the number of rows and the digest of their values; None for a stream.

    All rows of a list or a `datasets.Dataset` are hashed. Of other data sets, about `MOST_ROWS` rows are hashed, or none if
    reading them twice gives different values.
    """
    if isinstance(dataset, Mapping):
        return json_digest({name: examples_digest(part) for name, part in dataset.items()})
    if hasattr(dataset, "epoch_columns"):
        # Use the data set inside NumberedExamples; a NumberedStream has no attribute `dataset`.
        dataset = getattr(dataset, "dataset", dataset)
    # PreparedRows
    if hasattr(dataset, "digest"):
        return dataset.digest
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return None
    if hasattr(dataset, "with_format"):
        digest = xxh3_64()
        for table in dataset.with_format("arrow").iter(batch_size=10_000):
            for name in sorted(table.column_names):
                digest.update(name.encode())
                add_values(digest, table[name].combine_chunks())
        return f"{len(dataset)} rows, {digest.hexdigest()}"
    rows = range(len(dataset))
    if not isinstance(dataset, list | tuple):
        rows = rows[:: max(1, len(dataset) // MOST_ROWS)]
    with torch.random.fork_rng(devices=[]):
        digest, again = (json_digest([dataset[row] for row in rows]) for _ in range(2))
    if digest != again:
        digest = "drawn when they are read"
    return f"{len(dataset)} rows, {digest}"


def weights_digest(source: str | None, commit: str | None = None) -> str | None:
    """Return the digest of the weight files in a folder, or the commit of a Hub model; None for new weights."""
    if not source or not Path(source).is_dir():
        return commit
    return json_digest([digest_of(file) for file in sorted(Path(source).iterdir()) if is_weight_file(file.name)])


def folder_summary(folder: str | os.PathLike) -> str:
    """Return the last line that a run prints, which lists the contents of its folder."""
    return f"{folder} contains the model, its tokenizer and its card."


def find_checkpoint(args: TrainingArguments) -> str | None:
    """Return the checkpoint to resume from, or None. This value also replaces "auto" in `args.resume_from_checkpoint`, and
    `sync_ranks` adjusts the gradient accumulation in `args`."""
    checkpoint = resume_checkpoint(args.output_dir, args.resume_from_checkpoint)
    if str(args.resume_from_checkpoint).lower() == "auto":
        args.resume_from_checkpoint = checkpoint
    sync_ranks(args, checkpoint)
    return checkpoint


def sync_ranks(args: TrainingArguments, checkpoint: str | os.PathLike | None):
    """Set gradient accumulation so that a run resumed with another number of processes keeps its examples per step.

    If the examples cannot be divided equally, `begin_run` raises an error about the batch size.
    """
    if checkpoint is None or "batch_size" in getattr(args, "allow_changed_args", ()):
        return
    first = read_json(Path(checkpoint, ARGUMENTS_FILE))
    batch = first.get("batch_size")
    if batch is None or first["world_size"] == args.world_size or batch % (args.train_batch_size * args.world_size):
        return
    steps = args.gradient_accumulation_steps = batch // (args.train_batch_size * args.world_size)
    if args.process_index == 0:
        logger.warning(f"gradient_accumulation_steps is set to {steps}, to keep the {batch} examples per step of this run")


def resume_checkpoint(folder: str | os.PathLike, resume: str | bool | None) -> str | None:
    """Return the checkpoint to resume a run from, after verifying its files; None for a new run.

    Args:
        folder (`str` or path): output folder of the run.
        resume (`str` or `bool`, *optional*): True, "true" or "last": the last complete checkpoint in `folder`; a path: this
            checkpoint; None, False or "false": a new run; "auto": "last" if there is a checkpoint, else a new run. A new
            run's folder must be missing, empty, or only contain a run that was stopped before its first checkpoint.

    Raises:
        ValueError: the folder of a new run is not empty, or there is no complete checkpoint.
    """
    folder, asked = Path(folder), str(resume).lower()
    checkpoints = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
    if asked in ("none", "false") or (asked == "auto" and not checkpoints):
        if {file.name for file in folder.glob("[!.]*")} - {ARGUMENTS_FILE, TOKENIZER_FOLDER}:
            raise ValueError(
                f"{folder} is not empty; choose another --output_dir, or resume its run with --resume_from_checkpoint last"
            )
        return None
    if asked not in ("true", "last", "auto"):
        checkpoints = [Path(resume)]
    problems = ""
    for checkpoint in checkpoints:
        problem = checkpoint_problem(checkpoint)
        if problem is None:
            if problems:
                logger.warning(f"{problems}resuming from {checkpoint}")
            return str(checkpoint)
        problems += f"{checkpoint} is not a complete checkpoint: {problem}; "
    raise ValueError(
        f"{problems}there is no checkpoint to resume from; for a new run, remove --resume_from_checkpoint, and choose "
        f"another --output_dir if there are results in {folder}"
    )


def begin_run(
    folder: str | os.PathLike,
    arguments: Mapping[str, Any],
    resumed: str | os.PathLike | None = None,
    anyway: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the arguments of a run to its folder, and return them. For a resumed run, first check its initial arguments.

    Args:
        folder (`str` or path): output folder of the run.
        arguments (`dict`): the arguments that determine the weights, by name.
        resumed (`str` or path, *optional*): checkpoint of a resumed run, which contains its initial arguments. Arguments
            that are missing in `arguments` or in the checkpoint are not compared.
        anyway (`list[str]`): names of arguments that are allowed to change; `accepted_changes` returns the changes.

    Raises:
        ValueError: an argument has changed that is not in `anyway`; or one has changed that the checkpoint restores
            (`STORED`, such as the learning rate), even if it is in `anyway`.
    """
    record = json.loads(json.dumps(arguments, default=str))
    if resumed:
        first = read_json(Path(resumed, ARGUMENTS_FILE))
        compared = {*first} & {*record}
        if "batch_size" in record:
            compared -= {"world_size"}
        changed = {name: [first[name], record[name]] for name in sorted(compared) if first[name] != record[name]}
        refused = [name for name in changed if name not in anyway or name in STORED]
        if refused:
            values = "; ".join(f"{name} = {changed[name][1]!r}, initially {changed[name][0]!r}" for name in refused)
            ways = "start a new run from this model in another --output_dir"
            if allowed := [name for name in changed if name not in STORED]:
                ways += f", or pass --allow_changed_args {' '.join(allowed)}"
            if {*LENGTH} & {*refused}:
                ways += ", or, to train longer, --train_longer same_schedule or new_schedule"
            if stored := [name for name in changed if name in STORED]:
                ways += f" (no flag changes {', '.join(stored)}, because the checkpoint restores the initial value)"
            raise ValueError(f"a resumed run must have its initial arguments, but got {values}: {ways}")
        record = first | record
        if changed:
            accepted = {"step": checkpoint_step(Path(resumed).resolve()), **changed}
            record["changed_args"] = [*first.get("changed_args", []), accepted]
    Path(folder).mkdir(parents=True, exist_ok=True)
    replace_text(Path(folder, ARGUMENTS_FILE), json.dumps(record, indent=2) + "\n")
    return record


def accepted_changes(folder: str | os.PathLike) -> str | None:
    """Return the arguments changed by --allow_changed_args, such as "bf16, optim from step 20 on", or None."""
    lines = []
    for change in read_json(Path(folder, ARGUMENTS_FILE)).get("changed_args", []):
        step = change.pop("step")
        lines.append(", ".join(change))
        if step >= 0:
            lines[-1] += f" from step {step} on"
    return "; ".join(lines) or None

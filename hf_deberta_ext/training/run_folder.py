# SPDX-License-Identifier: Apache-2.0
"""The folder of a training run: nothing in it is overwritten, and it is resumed only with the arguments that began it."""

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
from ..files import replace_text
from .batch_size import is_split_free
from .checkpoints import checkpoint_problem, digest_of
from .digests import add_values, json_digest, tokenizer_digest

logger = logging.get_logger(__name__)

__all__ = ["ARGUMENTS_FILE", "begin_run", "find_checkpoint", "repeated_arguments", "resume_checkpoint", "run_contents"]

# Written before the first checkpoint, and again from the same arguments; each checkpoint has a copy.
ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"

# Every argument of Trainer and every flag of a script shapes the weights, but for these: what is printed, saved, measured
# and published, how the data is read, and the machine. The configuration of the model has the attn_implementation.
FREE_PREFIXES = tuple(
    "ddp_ dataloader_mult dataloader_num dataloader_p eval_ hub_ include_ log_ logging_ resume_ save_ trackio_".split()
)
FREE = set(
    """attn_implementation batch_eval_metrics bf16_full_eval cache_dir card_language debug disable_tqdm do_eval do_predict
    do_train enable_jit_checkpoint fp16_full_eval greater_is_better license local_rank max_file_bytes max_predict_samples
    metric_for_best_model num_proc output_dir overwrite_output_dir per_device_eval_batch_size prediction_loss_only
    predictions_format preprocessing_num_workers project push_to_hub report_to run_name seeds skip_memory_metrics test_file
    token torch_empty_cache_steps train_longer use_cpu""".split()
)
# These count where an evaluation decides which model is kept, or the learning rate.
EVALUATION = set(
    """eval_delay eval_on_start eval_steps eval_strategy greater_is_better metric_for_best_model save_steps
    save_strategy""".split()
)
# The states of optimizer and scheduler hold these, whatever the arguments of a resumed run are.
STORED = {"adam_beta1", "adam_beta2", "adam_epsilon", "discriminator_learning_rate", "learning_rate", "weight_decay"}
# --train_longer lets these differ.
LENGTH = ("max_steps", "num_train_epochs")
# Of a data set that is neither a list nor of the package datasets, whose rows may be made when they are read.
MOST_ROWS = 1000
# Fields of a configuration that say nothing about the weights, or that Trainer sets.
NO_SETTINGS = ("_attn", "_name", "architectures", "attn_", "auto_map", "dtype", "torch_dtype", "transformers", "use_cache")


def is_decided_by_evaluation(args: TrainingArguments) -> bool:
    """Return True for a run whose evaluations decide which model is kept, or the learning rate."""
    return args.load_best_model_at_end or args.lr_scheduler_type == "reduce_lr_on_plateau"


def repeated_arguments(groups: Sequence[Any], args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments, also those of the dataclasses `groups`, that a resumed run must repeat to be the same run.

    Where `is_split_free`, processes with the same batch may be more or fewer.
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
    """Return what shapes the weights beside the arguments of a training, as entries of run_arguments.json."""
    args, model, collator, rows = trainer.args, trainer.model, trainer.data_collator, trainer.train_dataset
    if hasattr(model, "peft_config"):
        model = model.get_base_model()
    config = getattr(model, "config", None)
    source = getattr(model, "name_or_path", None) or ""
    contents = {
        "data_digest": examples_digest(rows),
        # The order of PreparedRows, in code without the script's flags.
        "shuffle_buffer": getattr(getattr(rows, "dataset", None), "buffer", None),
        "tokenizer_digest": tokenizer_digest(trainer.processing_class),
        "trained_parameters": sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
        # Private: a configuration has no public name for it. None is the choice of a model of this package.
        "config.attn_implementation": str(getattr(config, "_attn_implementation", None)),
        "hf_deberta_ext": __version__,
        "data_collator": getattr(collator, "__name__", type(collator).__name__),
        "data_collator_options": repr(getattr(collator, "options", None)),
    }
    if hasattr(rows, "streams"):
        # The order of a NumberedStream.
        contents["streams"] = len(rows.streams)
    if is_decided_by_evaluation(args):
        contents["evaluation_data_digest"] = examples_digest(trainer.eval_dataset)
    # Checkpoints of the run itself are no beginning. _commit_hash is private: the one place that knows the commit.
    if not Path(source).resolve().is_relative_to(Path(args.output_dir).resolve()):
        contents["weights_digest"] = weights_digest(source, getattr(config, "_commit_hash", None))
    if hasattr(config, "to_dict"):
        for name, value in config.to_dict().items():
            if not name.startswith(NO_SETTINGS) and not name.endswith("_token_id"):
                contents[f"config.{name}"] = value
    return {name: value for name, value in contents.items() if value is not None}


def examples_digest(dataset: Any) -> str | None:
    """Return number of rows and digest of their values; None for a stream.

    Every value counts of a list and of a `datasets.Dataset`, however it is stored; of others about `MOST_ROWS` rows, none
    where they are drawn anew each time.
    """
    if isinstance(dataset, Mapping):
        return json_digest({name: examples_digest(part) for name, part in dataset.items()})
    if hasattr(dataset, "epoch_columns"):
        # NumberedExamples; a NumberedStream has streams
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
    """Return the digest of the weight files in a folder, or the commit on the Hub of a model; None for new weights."""
    if not source or not Path(source).is_dir():
        return commit
    return json_digest([digest_of(file) for file in sorted(Path(source).iterdir()) if is_weight_file(file.name)])


def contents_line(folder: str | os.PathLike) -> str:
    """Return the end of a run in a line: what its folder holds."""
    return f"{folder} holds the model, its tokenizer and its card."


def find_checkpoint(args: TrainingArguments) -> str | None:
    """`resume_checkpoint` of a script's arguments; sets what "auto" stands for in them, and `follow_processes`."""
    checkpoint = resume_checkpoint(args.output_dir, args.resume_from_checkpoint)
    if str(args.resume_from_checkpoint).lower() == "auto":
        args.resume_from_checkpoint = checkpoint
    follow_processes(args, checkpoint)
    return checkpoint


def follow_processes(args: TrainingArguments, checkpoint: str | os.PathLike | None):
    """Set the accumulation of a run that is resumed by another number of processes, for as many examples a step as before.

    Where they cannot share them equally, `begin_run` refuses the batch size.
    """
    if checkpoint is None or "batch_size" in getattr(args, "resume_anyway", ()):
        return
    first = read_json(Path(checkpoint, ARGUMENTS_FILE))
    batch = first.get("batch_size")
    if batch is None or first["world_size"] == args.world_size or batch % (args.train_batch_size * args.world_size):
        return
    steps = args.gradient_accumulation_steps = batch // (args.train_batch_size * args.world_size)
    if args.process_index == 0:
        logger.warning(f"gradient_accumulation_steps = {steps}, for the {batch} examples of a step that this run began with")


def resume_checkpoint(folder: str | os.PathLike, resume: str | bool | None) -> str | None:
    """Return the checkpoint from which a run is resumed, all of whose files are as they were saved; None for a new run.

    Args:
        resume (`str` or `bool`, *optional*): True, "true" or "last" for the last checkpoint in `folder` that is whole; a
            checkpoint's folder; None, False or "false": a new run, whose folder must be absent, empty, or that of a run
            which was stopped before its first checkpoint; "auto": as "last" where there is a checkpoint, else as None.

    Raises:
        ValueError: a new run in a folder that is not empty, or a folder without a whole checkpoint.
    """
    folder, asked = Path(folder), str(resume).lower()
    checkpoints = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
    if asked in ("none", "false") or (asked == "auto" and not checkpoints):
        if {file.name for file in folder.glob("[!.]*")} - {ARGUMENTS_FILE, TOKENIZER_FOLDER}:
            raise ValueError(
                f"{folder} is not empty: choose another --output_dir, or resume its run with --resume_from_checkpoint last"
            )
        return None
    if asked not in ("true", "last", "auto"):
        checkpoints = [Path(resume)]
    problems = ""
    for checkpoint in checkpoints:
        problem = checkpoint_problem(checkpoint)
        if problem is None:
            if problems:
                logger.warning(f"{problems}the run is resumed from {checkpoint}")
            return str(checkpoint)
        problems += f"{checkpoint} is not a complete checkpoint: {problem}; "
    raise ValueError(
        f"{problems}there is no checkpoint to resume from; for a new run leave --resume_from_checkpoint out, and choose "
        f"another --output_dir if there are results in {folder}"
    )


def begin_run(
    folder: str | os.PathLike,
    arguments: Mapping[str, Any],
    resumed: str | os.PathLike | None = None,
    anyway: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the arguments that decide what is learned into the folder of a run, and return them; of a resumed one compare
    them before. Arguments that only one of the two has are not compared.

    Args:
        resumed (`str` or path, *optional*): the folder with the first arguments of a resumed run: a checkpoint.
        anyway (`list[str]`): arguments that may differ; `accepted_changes` tells of them.
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
            values = "; ".join(f"{name} = {changed[name][1]!r}, begun with {changed[name][0]!r}" for name in refused)
            hint = ""
            if {*LENGTH} & {*refused}:
                hint = "To train longer, give --train_longer same_schedule or new_schedule. "
            raise ValueError(
                f"a resumed run must have the arguments that it began with: {values}. {hint}Begin a new run from its model "
                f"in another --output_dir, or give --resume_anyway {' '.join(changed)} (not for "
                f"{', '.join(sorted(STORED))}: the checkpoint holds them)"
            )
        record = first | record
        if changed:
            accepted = {"step": checkpoint_step(Path(resumed).resolve()), **changed}
            record["resumed_anyway"] = [*first.get("resumed_anyway", []), accepted]
    Path(folder).mkdir(parents=True, exist_ok=True)
    replace_text(Path(folder, ARGUMENTS_FILE), json.dumps(record, indent=2) + "\n")
    return record


def accepted_changes(folder: str | os.PathLike) -> str | None:
    """Return the arguments that --resume_anyway changed in a run, as "bf16, optim from step 20 on"; None without any."""
    lines = []
    for change in read_json(Path(folder, ARGUMENTS_FILE)).get("resumed_anyway", []):
        step = change.pop("step")
        lines.append(", ".join(change))
        if step >= 0:
            lines[-1] += f" from step {step} on"
    return "; ".join(lines) or None

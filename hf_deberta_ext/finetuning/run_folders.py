# SPDX-License-Identifier: Apache-2.0
"""Prepare output folders for one or several seeds; runs are resumed, and their folders renamed, only if a flag says so."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import free_name
from ..training.folder_lock import LOCK_FILE, lock_folder, unlock_folders
from ..training.run_folder import ARGUMENTS_FILE, begin_run, find_checkpoint, resume_checkpoint, sync_ranks
from .arguments import DataArguments, FineTuningArguments, ModelArguments

__all__ = ["begin_folder", "begin_seed", "check_overwrite", "first_checkpoint", "is_finished", "seed_checkpoint"]


def first_checkpoint(args: FineTuningArguments) -> str | None:
    """Return the checkpoint to resume from, or None for a new run and for several seeds (see `seed_checkpoint`).

    Raises:
        ValueError: if there is no run to resume, or the folder of a new run has files and --overwrite_output_dir is not set.
    """
    folder = Path(args.output_dir)
    if args.seeds and str(args.resume_from_checkpoint).lower() == "auto":
        args.resume_from_checkpoint = "last" if (folder / ARGUMENTS_FILE).is_file() else None
    resume = args.resume_from_checkpoint
    if args.seeds and resume is not None:
        if str(resume).lower() not in ("true", "last"):
            raise ValueError(f"--resume_from_checkpoint must be 'last' with --seeds, got {resume!r}")
        if not (folder / ARGUMENTS_FILE).is_file():
            raise ValueError(f"there is no run in {folder} to resume: remove --resume_from_checkpoint")
        sync_ranks(args, folder)
        return None
    checkpoint = None if resume is None else find_checkpoint(args)
    if checkpoint is not None and Path(checkpoint).resolve().parent == folder.resolve():
        return checkpoint
    try:
        # A new run, possibly from another run's checkpoint
        resume_checkpoint(folder, None)
    except ValueError as error:
        if not args.overwrite_output_dir:
            if not args.do_train:
                # Often the folder of the model itself, where neither resuming nor --overwrite_output_dir would help.
                raise ValueError(f"{folder} is not empty: choose another --output_dir for the results") from error
            raise ValueError(f"{error}; --overwrite_output_dir renames the folder and starts a new run") from error
    return checkpoint


def check_overwrite(data_args: DataArguments, model_args: ModelArguments, args: FineTuningArguments):
    """Check that --overwrite_output_dir would rename neither an input of the run nor the working directory."""
    if not args.overwrite_output_dir:
        return
    if args.resume_from_checkpoint is not None:
        raise ValueError("--resume_from_checkpoint and --overwrite_output_dir are mutually exclusive: remove one")
    folder = Path(args.output_dir).resolve()
    sources = [*data_args.train_file, *data_args.validation_file, *data_args.test_file]
    # Files can be given as NAME=FILE.
    sources += [source.partition("=")[2] for source in sources]
    sources += [model_args.model_name_or_path, model_args.config_name, model_args.tokenizer_name, Path.cwd()]
    for source in filter(None, sources):
        if Path(source).resolve().is_relative_to(folder):
            raise ValueError(f"--overwrite_output_dir would rename {source}, which is in use: choose another --output_dir")


def begin_folder(args: FineTuningArguments, arguments: Mapping[str, Any]):
    """Create and lock the folder of a run; with --overwrite_output_dir, rename an old folder first.

    Args:
        arguments (`dict`): result of `repeated_arguments`; compared with the earlier arguments if several seeds are resumed.
    """
    folder = Path(args.output_dir)
    if args.overwrite_output_dir and folder.exists() and (folder.is_file() or {*os.listdir(folder)} - {LOCK_FILE}):
        print(f"{folder} was not empty; renamed it to {move_aside(folder)}", flush=True)
    lock_folder(folder)
    if args.seeds:
        # For a single seed, the trainer saves the arguments.
        begin_run(folder, arguments, args.resume_from_checkpoint and folder, args.allow_changed_args)


def begin_seed(args: FineTuningArguments):
    """Create and lock the folder of a seed; first rename an old folder with neither results nor a complete checkpoint."""
    folder = Path(args.output_dir)
    resumed = seed_checkpoint(folder) or is_finished(folder)
    if not resumed:
        try:
            resume_checkpoint(folder, None)
        except ValueError:
            print(f"{folder} has no complete checkpoint: renamed to {move_aside(folder)}; restarting the seed", flush=True)
    lock_folder(folder)
    if is_finished(folder):
        print(f"{folder} is already complete", flush=True)


def seed_checkpoint(folder: Path) -> str | None:
    """Return the latest complete checkpoint in the folder of a seed, or None."""
    try:
        return resume_checkpoint(folder, "last")
    except ValueError:
        return None


def is_finished(folder: Path) -> bool:
    """Return True if the folder of a run contains results and a model card, which is the last file that a run writes."""
    return (folder / "README.md").is_file() and (folder / "all_results.json").is_file()


def move_aside(folder: Path) -> Path:
    """Rename a folder to the first free name of NAME.old-1, NAME.old-2, ...; return the new path."""
    folder = folder.resolve()
    if folder.is_dir():
        lock_folder(folder)
        unlock_folders(folder)
    return folder.rename(free_name(folder))

# SPDX-License-Identifier: Apache-2.0
"""The folders of fine-tuning runs, of one seed or of several: nothing in them is overwritten, resumed or wiped unasked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..training.run_folder import ARGUMENTS_FILE, begin_run, resume_checkpoint
from .arguments import DataArguments, FineTuningArguments, ModelArguments

__all__ = ["begin_folder", "begin_seed", "check_overwrite", "first_checkpoint", "is_finished", "seed_checkpoint"]


def check_overwrite(data_args: DataArguments, model_args: ModelArguments, args: FineTuningArguments):
    """Neither what the run reads nor the working directory is in the folder that --overwrite_output_dir moves away.

    Raises:
        ValueError: it is.
    """
    if not args.overwrite_output_dir:
        return
    if args.resume_from_checkpoint is not None:
        raise ValueError("--resume_from_checkpoint and --overwrite_output_dir are both given: which?")
    folder = Path(args.output_dir).resolve()
    if Path.cwd().is_relative_to(folder):
        raise ValueError(
            f"--overwrite_output_dir would move the working directory {Path.cwd()} aside: choose another --output_dir"
        )
    names = (model_args.model_name_or_path, model_args.config_name, model_args.tokenizer_name)
    for source in (*names, *data_args.train_file, *data_args.validation_file, *data_args.test_file):
        # A file may be given as NAME=FILE.
        parts = () if source is None else (source, source.partition("=")[2])
        if any(part and Path(part).resolve().is_relative_to(folder) for part in parts):
            raise ValueError(f"--overwrite_output_dir would move {source} aside: choose another --output_dir")


def first_checkpoint(args: FineTuningArguments) -> str | None:
    """The checkpoint from which the run goes on, or None for a new run; with --seeds each has its own, and this is None.

    Raises:
        ValueError: a new run in a folder that is not empty, without --overwrite_output_dir; or nothing to resume.
    """
    resume, folder = args.resume_from_checkpoint, Path(args.output_dir)
    if args.seeds and resume is not None:
        if str(resume).lower() not in ("true", "last"):
            raise ValueError(f"--resume_from_checkpoint must be 'last' with --seeds, got {resume}")
        if not (folder / ARGUMENTS_FILE).is_file():
            raise ValueError(f"there is no run in {folder} to resume; leave --resume_from_checkpoint out")
        return None
    checkpoint = None if resume is None else resume_checkpoint(folder, resume)
    if checkpoint is not None and Path(checkpoint).resolve().parent == folder.resolve():
        return checkpoint
    try:
        # A new run, perhaps from a checkpoint of another.
        resume_checkpoint(folder, None)
    except ValueError as error:
        if not args.overwrite_output_dir:
            if not args.do_train:
                # Often the folder of the very model: neither resuming nor moving it aside would help.
                raise ValueError(f"{folder} is not empty: choose another --output_dir for what is measured here") from error
            seeds = args.seeds and (folder / ARGUMENTS_FILE).is_file()
            advice = "go on with --resume_from_checkpoint last; " if seeds else ""
            raise ValueError(f"{error}; {advice}--overwrite_output_dir moves it aside") from error
    return checkpoint


def begin_folder(args: FineTuningArguments, fixed: Mapping[str, Any]):
    """Makes the run's folder, after an old one is moved aside where that is asked for; or compares the arguments of a run
    that is resumed.

    Args:
        fixed (`dict`): what a resumed run must repeat.
    Raises:
        ValueError: resumed with other arguments.
    """
    folder = Path(args.output_dir)
    if args.overwrite_output_dir and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        print(f"{folder} is not empty: it is {_move_aside(folder)} now", flush=True)
    begin_run(folder, fixed, args.resume_from_checkpoint is not None)


def begin_seed(args: FineTuningArguments, fixed: Mapping[str, Any]):
    """The same for the folder of a seed, which is new, finished, or to be resumed; one without a whole checkpoint is moved
    aside, and begins anew."""
    folder = Path(args.output_dir)
    if is_finished(folder):
        begin_run(folder, fixed, resuming=True)
        print(f"{folder} is finished", flush=True)
        return
    resuming = seed_checkpoint(folder) is not None
    if not resuming:
        try:
            resume_checkpoint(folder, None)
        except ValueError:
            print(f"{folder} has no whole checkpoint: it is {_move_aside(folder)} now, and begins anew", flush=True)
    begin_run(folder, fixed, resuming)


def seed_checkpoint(folder: Path) -> str | None:
    """The last whole checkpoint in the folder of a seed, or None."""
    try:
        return resume_checkpoint(folder, "last")
    except ValueError:
        return None


def is_finished(folder: Path) -> bool:
    """The card is written last."""
    return (folder / "README.md").is_file() and (folder / "all_results.json").is_file()


def _move_aside(folder: Path) -> Path:
    """Renames a folder to its name and .old-1, or the next free number."""
    folder, number = folder.resolve(), 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    return folder.rename(aside)

# SPDX-License-Identifier: Apache-2.0
"""The folder of a training run: nothing in it is overwritten, and it is resumed only with the arguments that began it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ..model.checkpoint_files import checkpoint_step
from .checkpoints import is_part, replace_text, why_not_whole

logger = logging.get_logger(__name__)

__all__ = ["ARGUMENTS_FILE", "TOKENIZER_FOLDER", "begin_run", "resume_checkpoint"]

ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"
# What a run writes before its first checkpoint, and writes again from the same arguments.
BEGINNINGS = {ARGUMENTS_FILE, TOKENIZER_FOLDER}


def resume_checkpoint(folder: str | os.PathLike, resume: str | bool | None) -> str | None:
    """The checkpoint from which a run goes on, or None for a new run.

    Args:
        folder (`str` or path): the run's output folder.
        resume (`str` or `bool`, *optional*): True, "true" or "last" for the last whole checkpoint in `folder` (a run that is
            killed while it writes one leaves a part, which is passed over); a checkpoint's folder; None, False or "false":
            a new run, which needs a folder that is not there, is empty, or holds the beginnings of one that was stopped
            before its first checkpoint.

    Raises:
        ValueError: a new run in a folder that is not empty, or a folder without a whole checkpoint.
    """
    folder = Path(folder)
    if resume in (None, False) or str(resume).lower() == "false":
        if folder.exists() and (not folder.is_dir() or not all(map(_is_beginning, folder.iterdir()))):
            last = _last_whole(folder)
            advice = "" if last is None else f"go on from {last} with --resume_from_checkpoint last, or "
            raise ValueError(f"{folder} is not empty: {advice}choose another --output_dir")
        return None
    if resume is True or str(resume).lower() in ("true", "last"):
        checkpoints, last = _checkpoints(folder), _last_whole(folder)
        if last is None:
            cut = ""
            if checkpoints:
                cut = f" ({checkpoints[0].name} is no whole checkpoint: {why_not_whole(checkpoints[0])})"
            raise ValueError(
                f"there is no checkpoint-* in {folder} to resume from{cut}; leave --resume_from_checkpoint out"
                + (", and choose another --output_dir" if cut else "")
            )
        step = checkpoint_step(Path(last))
        if cut := [checkpoint.name for checkpoint in checkpoints if checkpoint_step(checkpoint) > step]:
            logger.warning(f"{', '.join(cut)} in {folder} is not whole: the run goes on from {Path(last).name}")
    else:
        last = str(resume)
    if (problem := why_not_whole(Path(last))) is not None:
        raise ValueError(f"{last} is no whole checkpoint: {problem}; resume from an earlier one")
    return last


def _checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)


def _last_whole(folder: Path) -> str | None:
    return next((str(checkpoint) for checkpoint in _checkpoints(folder) if why_not_whole(checkpoint) is None), None)


def _is_beginning(file: Path) -> bool:
    return file.name in BEGINNINGS or is_part(file.name)


def begin_run(folder: str | os.PathLike, arguments: Mapping[str, Any], resuming: bool):
    """Writes the arguments that decide what is learned into a new run's folder; compares them in a resumed one.

    Raises:
        ValueError: resumed with other arguments; names each with both values.
    """
    file = Path(folder, ARGUMENTS_FILE)
    wanted = json.loads(json.dumps(arguments, default=str))
    if resuming and file.is_file():
        begun = json.loads(file.read_text(encoding="utf-8"))
        names = [name for name in sorted({*begun, *wanted}) if begun.get(name) != wanted.get(name)]
        if names:
            changed = "; ".join(f"{name} = {wanted.get(name)!r}, begun with {begun.get(name)!r}" for name in names)
            raise ValueError(
                f"a resumed run must have the arguments that it began with: {changed}. To train its model further with "
                "others, begin a new run from the model in the folder, with another --output_dir"
            )
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(wanted, indent=2) + "\n")

# SPDX-License-Identifier: Apache-2.0
"""The folder of a training run: nothing in it is overwritten, and it is resumed only with the arguments that began it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

__all__ = ["ARGUMENTS_FILE", "TOKENIZER_FOLDER", "begin_run", "resume_checkpoint"]

ARGUMENTS_FILE, TOKENIZER_FOLDER = "run_arguments.json", "tokenizer"
# What a run writes before its first checkpoint, and writes again from the same arguments.
BEGINNINGS = {ARGUMENTS_FILE, TOKENIZER_FOLDER}


def resume_checkpoint(folder: str | os.PathLike, resume: str | bool | None) -> str | None:
    """The checkpoint from which a run goes on, or None for a new run.

    Args:
        folder (`str` or path): the run's output folder.
        resume (`str` or `bool`, *optional*): True, "true" or "last" for the last checkpoint in `folder`; a checkpoint's
            folder; None, False or "false" for a new run, which needs a folder that is not there, is empty, or holds the
            beginnings of a run that was stopped before its first checkpoint.

    Raises:
        ValueError: a new run in a folder that is not empty, or a folder without a whole checkpoint.
    """
    folder = Path(folder)
    if resume in (None, False) or str(resume).lower() == "false":
        if folder.exists() and (not folder.is_dir() or {file.name for file in folder.iterdir()} - BEGINNINGS):
            last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
            advice = "" if last is None else f"go on from {last} with --resume_from_checkpoint last, or "
            raise ValueError(f"{folder} is not empty: {advice}choose another --output_dir")
        return None
    if resume is True or str(resume).lower() in ("true", "last"):
        last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
        if last is None:
            raise ValueError(f"there is no checkpoint-* in {folder} to resume from; leave --resume_from_checkpoint out")
    else:
        last = str(resume)
    if not Path(last, "trainer_state.json").is_file():
        raise ValueError(f"{last} is no whole checkpoint: it has no trainer_state.json; resume from an earlier one")
    return last


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
    file.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")

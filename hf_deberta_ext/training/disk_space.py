# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or read-only: a warning before a run, and one line when it happens."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.utils import logging

from ..files import format_size
from ..model.checkpoint_files import checkpoint_step

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainingArguments

logger = logging.get_logger(__name__)

__all__ = ["DiskError", "checkpoint_size", "disk_errors", "warn_of_little_space", "write_text"]

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
# safetensors and tokenizers give the code as text, torch.save none: it says where it stopped.
TEXTS = re.compile(r"\(os error (\d+)\)|unexpected pos \d+ vs \d+|PytorchStreamWriter failed|iostream error")


class DiskError(OSError):
    """A file of a run could not be written; the message says all that a traceback could."""

    has_traceback = False


@contextlib.contextmanager
def disk_errors(place: Path, folder: Path, needed: int | None = None, again: str | None = None) -> Iterator[None]:
    """Context in which errors of a disk become a DiskError with path, bytes and the way out; others stay.

    Args:
        place (`Path`): that is written.
        folder (`Path`): the output folder.
        needed (`int`, *optional*): bytes.
        again (`str`, *optional*): what to do then; default: go on with the last whole checkpoint, or start anew.
    """
    try:
        yield
    except ValueError:
        raise
    # tokenizers has no class of its own.
    except Exception as error:
        # Not above: with publishing/ and the models, 150 MB of memory in a preparation that waits.
        from .checkpoints import checkpoint_problem

        text = TEXTS.search(str(error))
        code = getattr(error, "errno", None) or (text and text[1] and int(text[1]))
        file = getattr(error, "filename", None) if code in (errno.EACCES, errno.EPERM) else None
        is_elsewhere = isinstance(file, str) and not Path(file).resolve().is_relative_to(folder.resolve())
        if isinstance(error, DiskError) or is_elsewhere or (code not in CODES and not (text and not text[1])):
            raise
        # The disk of the nearest folder that is there.
        free = shutil.disk_usage(next(path for path in (place, *place.resolve().parents) if path.exists())).free
        checkpoints = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
        whole = next((path for path in checkpoints if path != place and checkpoint_problem(path) is None), None)
        reason = os.strerror(code) if code else "the disk is full, or a file may not be so large"
        room = f"{f'about {format_size(needed)} are needed, ' if needed else ''}{format_size(free)} are free"
        resume = f"go on with --resume_from_checkpoint {whole}" if whole else "start again without --resume_from_checkpoint"
        remedy = "Free space or choose" if code in (None, errno.ENOSPC, errno.EDQUOT) else "Choose"
        raise DiskError(
            f"{place} could not be written: {reason}; {room}. {remedy} another --output_dir, then {again or resume}"
        ) from error


def write_text(file: Path, text: str):
    """`replace_text`, in a folder that is made, with the errors of a disk."""
    from ..files import replace_text

    with disk_errors(file, file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)


def checkpoint_size(model: "nn.Module") -> int:
    """Bytes of a checkpoint, about: the weights, and two moments of each that is trained, as Adam keeps."""
    weights = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values()
    return sum(tensor.numel() * tensor.element_size() * (3 if tensor.requires_grad else 1) for tensor in weights)


def warn_of_little_space(args: "TrainingArguments", size: int):
    """Warn before the first step if the disk has less room than the checkpoints of a run need.

    Args:
        size (`int`): of one checkpoint, in bytes.
    """
    folder = Path(args.output_dir)
    free = shutil.disk_usage(folder).free
    # The oldest goes only when the newest is there.
    kept = (args.save_total_limit or 1) + 1
    count = max(1, kept - len([*folder.glob("checkpoint-*")]))
    if args.save_strategy != "no" and free < count * size:
        limit = "" if args.save_total_limit else " (and one more for each that follows, without --save_total_limit)"
        logger.warning(
            f"{folder} has {format_size(free)} free, and {count} checkpoints of about {format_size(size)} each need "
            f"{format_size(count * size)}{limit}: free space, or choose another --output_dir"
        )

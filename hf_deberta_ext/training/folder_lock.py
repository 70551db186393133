# SPDX-License-Identifier: Apache-2.0
"""Lock that lets only one run at a time use an output folder. The operating system releases it when the process ends."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from transformers.utils import logging

try:
    import fcntl
except ImportError:
    # Windows: folders are not locked.
    fcntl = None

logger = logging.get_logger(__name__)

__all__ = ["LOCK_FILE", "lock_folder", "locked_folder", "unlock_folders"]

LOCK_FILE = ".run.lock"
_held: dict[Path, IO[bytes]] = {}


def lock_folder(folder: str | os.PathLike) -> bool:
    """Lock a folder for this process, and create it if missing; return False if this process already holds the lock."""
    file = Path(folder).resolve() / LOCK_FILE
    if file in _held:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    stream = open(file, "ab")
    try:
        # Not flock, whose locks are inherited by forked processes.
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        raise ValueError(f"{folder} is locked by another run; wait until it ends, or pass another --output_dir") from error
    except (AttributeError, OSError) as error:
        logger.warning(f"the file system of {folder} does not support locks ({error}); do not start a second run in it")
    _held[file] = stream
    return True


@contextlib.contextmanager
def locked_folder(folder: str | os.PathLike) -> Iterator[None]:
    """Context manager that locks a folder with `lock_folder`, and unlocks it at the end."""
    is_new = lock_folder(folder)
    try:
        yield
    finally:
        if is_new:
            unlock_folders(folder)


def unlock_folders(*folders: str | os.PathLike):
    """Unlock these folders. If no folder is given, unlock all folders that this process has locked."""
    files = [Path(folder).resolve() / LOCK_FILE for folder in folders] or _held
    for file in _held.keys() & {*files}:
        file.unlink(missing_ok=True)
        _held.pop(file).close()

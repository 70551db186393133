# SPDX-License-Identifier: Apache-2.0
"""The lock of an output folder: one run at a time. The operating system opens it when the process ends, however it ends."""

import atexit
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

from transformers.utils import logging

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.get_logger(__name__)

__all__ = ["LOCK_FILE", "lock_folder", "locked_folder", "unlock_folders"]

LOCK_FILE = ".run.lock"
# (process, folder) -> the open file: a forked process inherits the file, but not its lock.
_held: dict[tuple[int, Path], IO[str]] = {}


def lock_folder(folder: str | os.PathLike) -> bool:
    """Lock a folder, which is made, for this process; False if the process has it already.

    Where the file system has no locks, a warning says so.

    Raises:
        ValueError: another process works in it; says which.
    """
    folder = Path(folder).resolve()
    file, key = folder / LOCK_FILE, (os.getpid(), folder)
    # Somebody may have removed or renamed the folder.
    if key in _held and file.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        opened = open(file, "a+", encoding="utf-8")
        try:
            _lock(opened)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                opened.seek(0)
                owner = opened.read().strip()
                opened.close()
                raise ValueError(
                    f"{folder} is in use: {owner or 'another process'} works in it. Wait for its end, or choose another "
                    "--output_dir"
                ) from error
            logger.warning(f"the file system of {folder} has no locks ({error.strerror}): start no second run in it")
        # Whoever had it before may have removed the file between the two lines above.
        if file.exists() and os.path.samestat(os.fstat(opened.fileno()), file.stat()):
            break
        opened.close()
    opened.truncate(0)
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    print(f"process {os.getpid()} on {socket.gethostname()}, since {now},", file=opened, flush=True)
    _held[key] = opened
    return True


@contextlib.contextmanager
def locked_folder(folder: str | os.PathLike) -> Iterator[None]:
    """Context in which a folder is locked, as by `lock_folder`."""
    is_new = lock_folder(folder)
    try:
        yield
    finally:
        if is_new:
            unlock_folders(folder)


@atexit.register
def unlock_folders(*folders: str | os.PathLike):
    """Unlock these folders, or all that this process has locked, and remove the files of the locks."""
    chosen = {Path(folder).resolve() for folder in folders}
    for process, folder in [*_held]:
        if process == os.getpid() and (folder in chosen or not chosen):
            # Windows removes no file that is open.
            with contextlib.suppress(OSError):
                (folder / LOCK_FILE).unlink()
            _held.pop((process, folder)).close()


def _lock(opened: IO[str]):
    if sys.platform == "win32":
        # Behind the text, which others read.
        opened.seek(1 << 30)
        msvcrt.locking(opened.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        # Not flock, whose locks live on in forked processes.
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)

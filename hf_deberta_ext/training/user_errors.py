# SPDX-License-Identifier: Apache-2.0
"""Errors of the user: one line on stderr, `program: error: ...`, and exit status 2, in every script and command."""

import os
import re
import sys
import traceback
from pathlib import Path

__all__ = ["ExitOnUserError"]

# A value, a file or an answer of the Hub, an optional package that is not installed.
EXPECTED = (ValueError, OSError, ImportError)
# The Hub's client lets errors of the connection through, of a package that changes with its version.
HTTP_PACKAGES = ("httpx", "httpx2", "requests")
IN_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\n")


class ExitOnUserError:
    """Context in which an error of the user ends the program with one line and exit status 2, and Ctrl-C with 130.

    The SystemExit has the line as its text. Any other error is a mistake in the code, and keeps its traceback.

    Args:
        program (`str`, *optional*): the name before the error; default: the file name of the script.
        expected (`tuple`): types of exceptions that a user can cause, beside those of the connection to the Hub.
        show_traceback (`bool`): print the traceback above the line; may be set later, when a long job has begun.

    Attributes:
        resume_advice (`str`): the end of the line after Ctrl-C.
    """

    def __init__(
        self, program: str | None = None, *, expected: tuple[type[Exception], ...] = EXPECTED, show_traceback: bool = False
    ):
        self.program = Path(sys.argv[0]).name if program is None else program
        self.expected = expected
        self.show_traceback = show_traceback
        self.resume_advice = ""

    def __enter__(self) -> "ExitOnUserError":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.exit(f"{self.program}: stopped{self.resume_advice}", 130, error)
        package = type(error).__module__.split(".")[0]
        if isinstance(error, self.expected) or (isinstance(error, Exception) and package in HTTP_PACKAGES):
            if self.show_traceback and getattr(error, "has_traceback", not isinstance(error, ImportError)):
                traceback.print_exception(error)
            rank = int(os.environ.get("RANK", 0))
            process = f" (process {rank})" if rank else ""
            self.exit(f"{self.program}: error{process}: {error_line(error)}", 2, error)

    def exit(self, text: str, status: int, error: BaseException):
        """Print the line and raise SystemExit."""
        print(text, file=sys.stderr)
        ended = SystemExit(text)
        ended.code = status
        raise ended from error


def error_line(error: BaseException) -> str:
    """Message of an error in one line; but a list, after a first line that ends with a colon, keeps its lines."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error)
    if in_worker := IN_WORKER.match(text):
        # torch gives the traceback of the worker as the message.
        text = re.split(rf"\n(?:\w+\.)*{in_worker[1]}: ", text)[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return ("\n  " if lines[0].endswith(":") else " ").join(lines)

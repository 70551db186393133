# SPDX-License-Identifier: Apache-2.0
"""Errors of the user: one line on stderr, `program: error: ...`, and exit status 2, in every script and command."""

import sys
import traceback
from pathlib import Path

__all__ = ["ExitOnUserError"]

# A value, a file or an answer of the Hub, an optional package that is not installed.
EXPECTED = (ValueError, OSError, ImportError)
# The Hub's client lets errors of the connection through, of a package that changes with its version.
HTTP_PACKAGES = ("httpx", "requests")


class ExitOnUserError:
    """Context in which an error of the user ends the program with one line and exit status 2, and Ctrl-C with 130.

    The SystemExit has the line as its text. Any other error is a mistake in the code, and keeps its traceback.

    Args:
        program (`str`, *optional*): the name before the error; default: the file name of the script.
        expected (`tuple`): types of exceptions that a user can cause.
        show_traceback (`bool`): print the traceback above the line; may be set later, when a long job has begun.

    Attributes:
        resume_advice (`str`): the end of the line after Ctrl-C.
    """

    resume_advice = ""

    def __init__(self, program: str | None = None, *, expected: tuple = EXPECTED, show_traceback: bool = False):
        self.program = program or Path(sys.argv[0]).name
        self.expected = expected
        self.show_traceback = show_traceback

    def __enter__(self) -> "ExitOnUserError":
        return self

    def __exit__(self, kind, error, trace):
        ended = SystemExit()
        if isinstance(error, KeyboardInterrupt):
            ended.args = (f"{self.program}: stopped{self.resume_advice}",)
            ended.code = 130
        elif isinstance(error, self.expected) or type(error).__module__.startswith(HTTP_PACKAGES):
            if self.show_traceback:
                traceback.print_exception(error)
            text = str(error)
            # A list keeps its lines.
            if ":\n" not in text:
                text = " ".join(text.split())
            ended.args = (f"{self.program}: error: {text or type(error).__name__}",)
            ended.code = 2
        else:
            return
        print(ended, file=sys.stderr)
        raise ended from error

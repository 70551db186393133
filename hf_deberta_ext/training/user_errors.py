# SPDX-License-Identifier: Apache-2.0
"""Errors of the user: one line on stderr, `program: error: ...`, and exit status 2, in every script and command."""

import contextlib
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["ExitOnUserError", "needs_extra", "resume_advice"]

EXPECTED = (ValueError, OSError, ImportError)


class ExitOnUserError:
    """Context in which an error of the user ends the program with one line and exit status 2, and Ctrl-C with 130.

    The SystemExit has the line as its text. Any other error is a mistake in the code, and keeps its traceback.

    Args:
        program (`str`, *optional*): the name before the error; default: the file name of the script.
        expected (`tuple`): types of exceptions that a user can cause.
        show_traceback (`bool`): print the traceback above the line; may be set later, when a long job has begun.
    """

    # The end of the line after Ctrl-C.
    resume_advice = ""

    def __init__(self, program: str | None = None, *, expected: tuple = EXPECTED, show_traceback: bool = False):
        self.program, self.expected, self.show_traceback = program or Path(sys.argv[0]).name, expected, show_traceback

    def __enter__(self) -> "ExitOnUserError":
        return self

    def __exit__(self, kind, error, trace):
        text, status = str(error) or type(error).__name__, 2
        # A list keeps its lines.
        if ":\n" not in text:
            text = " ".join(text.split())
        text = f"error: {text}"
        if isinstance(error, KeyboardInterrupt):
            text, status = f"stopped{self.resume_advice}", 130
        # The Hub's client lets errors of the connection through.
        elif not isinstance(error, self.expected) and not type(error).__module__.startswith("httpx"):
            return
        elif self.show_traceback:
            traceback.print_exception(error)
        ended = SystemExit(status)
        ended.args = (f"{self.program}: {text}",)
        print(ended, file=sys.stderr)
        raise ended from error


def resume_advice(argv: Sequence[str] | None, program: str) -> str:
    """Return the end of the line after Ctrl-C: the command that resumes a run.

    Args:
        argv (`list[str]`, *optional*): the flags that the run began with; default: those of the process.
        program (`str`): the program in usage lines; "%(prog)s" is the script of the process.
    """
    words = [*map(str, sys.argv[1:] if argv is None else argv)]
    if "--overwrite_output_dir" in words:
        words += ["--overwrite_output_dir", "false"]
    program = program.replace("%(prog)s", f"python {sys.argv[0]}")
    return f"; to resume: {program} {shlex.join(words)} --resume_from_checkpoint auto"


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Context of imports, in which the error of a missing package names the extra that brings it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{error}: pip install "hf_deberta_ext[{extra}]"') from error

# SPDX-License-Identifier: Apache-2.0
"""Print user errors as one line on stderr, `program: error: ...`, with exit status 2, in all scripts and commands."""

import contextlib
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["ExitOnUserError", "needs_extra", "resume_advice"]

EXPECTED = (ValueError, OSError, ImportError)


class ExitOnUserError:
    """Context manager that exits with one line and status 2 after a user error, and with status 130 after Ctrl-C.

    The line is also the text of the SystemExit. Other exceptions are bugs and keep their traceback.

    Args:
        program (`str`, *optional*): program name before the error; default: the file name of the script.
        expected (`tuple`): types of exceptions that a user can cause.
        show_traceback (`bool`, defaults to False): print the traceback above the line. Can be set later as an attribute.
    """

    # Text after "stopped" when Ctrl-C was pressed.
    resume_advice = ""

    def __init__(self, program: str | None = None, *, expected: tuple = EXPECTED, show_traceback: bool = False):
        self.program, self.expected, self.show_traceback = program or Path(sys.argv[0]).name, expected, show_traceback

    def __enter__(self) -> "ExitOnUserError":
        return self

    def __exit__(self, kind, error, trace):
        text, status = str(error) or type(error).__name__, 2
        # Keep line breaks only if the message contains a list.
        if ":\n" not in text:
            text = " ".join(text.split())
        text = f"error: {text}"
        if isinstance(error, KeyboardInterrupt):
            text, status = f"stopped{self.resume_advice}", 130
        # huggingface_hub does not convert connection errors.
        elif not isinstance(error, self.expected) and not type(error).__module__.startswith("httpx"):
            return
        elif self.show_traceback:
            traceback.print_exception(error)
        ended = SystemExit(status)
        ended.args = (f"{self.program}: {text}",)
        print(ended, file=sys.stderr)
        raise ended from error


def resume_advice(argv: Sequence[str] | None, program: str) -> str:
    """Return the command that resumes a run, as a text to show after Ctrl-C.

    `program` is the command to show, as in argparse's usage; "%(prog)s" in it becomes the name of the running script.
    """
    words = [*map(str, sys.argv[1:] if argv is None else argv)]
    if "--overwrite_output_dir" in words:
        words += ["--overwrite_output_dir", "false"]
    program = program.replace("%(prog)s", f"python {sys.argv[0]}")
    return f"; to resume: {program} {shlex.join(words)} --resume_from_checkpoint auto"


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Context manager for imports: if a package is missing, the error names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{error}: pip install "hf_deberta_ext[{extra}]"') from error

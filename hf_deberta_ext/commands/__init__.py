# SPDX-License-Identifier: Apache-2.0
"""The command line, `deberta-ext COMMAND ...` or `python -m hf_deberta_ext COMMAND ...`.

A command is a module of this folder that defines HELP (one line), EXAMPLE (command lines, shown at the end of --help),
add_arguments(parser) and run(arguments), which does the heavy imports and returns the exit status (None means 0). If
SHOWS_PROGRESS is set, logs and progress bars are shown as in the scripts.
"""

import argparse
import contextlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from logging import ERROR, getLogger

from safetensors import SafetensorError

from .._version import __version__
from ..training.user_errors import ExitOnUserError

__all__ = ["COMMANDS", "PROGRAM", "command_parser", "main"]

PROGRAM = "deberta-ext"
COMMANDS = (*"finetune distill predict pretrain prepare convert info card push explain eval demo".split(),)
# RuntimeError: weights that do not fit, a truncated .bin file, out of memory.
EXPECTED = (ValueError, TypeError, OSError, ImportError, RuntimeError, SafetensorError)
# First command of each group -> heading of the group.
GROUPS = {"finetune": "train and predict:", "convert": "checkpoints and the Hub:", "explain": "look inside a model:"}
LOGGERS = ("hf_deberta_ext", "transformers_modules", "transformers", "huggingface_hub")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, and run the command that they name.

    Args:
        argv (`Sequence[str]`, *optional*): Arguments without the program name; default: the arguments of the process.
    Returns:
        `int`: Exit status: the status that the command returned, 2 for an error (one line on stderr), 130 after Ctrl-C.
    """
    overview = ["DeBERTa v1, v2, v3 and mDeBERTa for transformers. COMMAND --help shows arguments and examples."]
    usage = f"{PROGRAM} [-h] [--version] [--debug] COMMAND ..."
    parser = CommandParser(f"{PROGRAM} finetune --help", prog=PROGRAM, usage=usage, epilog=None)
    # Not listed, because the usage line shows it, and the help must fit on a screen of 24 lines.
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}", help=argparse.SUPPRESS)
    # Not listed, because the help of each command shows it.
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=PROGRAM, help=argparse.SUPPRESS)
    for name in COMMANDS:
        module = importlib.import_module(f".{name}", __name__)
        if name in GROUPS:
            overview += ["", GROUPS[name]]
        overview.append(f"  {name:<10}{module.HELP}")
        command = commands.add_parser(name, example=module.EXAMPLE, description=module.HELP)
        module.add_arguments(command)
        # SUPPRESS, because a default would override a --debug before the command.
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show warnings and tracebacks")
    parser.description = "\n".join(overview)
    try:
        arguments = parser.parse_args(argv)
        if getattr(arguments, "flags", None) == []:
            commands.choices[arguments.command].error("flags are required; --help lists them")
        return _run(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the argument parser of a command."""
    module = importlib.import_module(f".{name}", __name__)
    parser = CommandParser(module.EXAMPLE, prog=f"{PROGRAM} {name}", description=module.HELP)
    module.add_arguments(parser)
    return parser


class CommandParser(argparse.ArgumentParser):
    """Parser that shows examples at the end of its help, and the first example after an error.

    If `takes_flags` is set, the arguments are not parsed, but stored as `flags` for another parser.

    Args:
        example (`str`): command lines, one per line.
    """

    takes_flags = False

    def __init__(self, example: str, **options):
        self.example = example.strip().replace("\n", "\n  ")
        options = {"epilog": f"examples:\n  {self.example}"} | options
        # A shortened option would become ambiguous with the next new option that starts with it.
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def parse_known_args(self, args=None, namespace=None):
        if not self.takes_flags or {"-h", "--help"} & {*args}:
            return super().parse_known_args(args, namespace)
        return argparse.Namespace(flags=[*args]), []

    def error(self, message: str):
        """Print usage, error and example, and exit with status 2."""
        first = re.split(r"(?<!\\)\n", self.example)[0]
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}\nfor example: {first}\n")


def _run(arguments: argparse.Namespace) -> int:
    from ..checkpoints.files import check_source

    module = importlib.import_module(f".{arguments.command}", __name__)
    quiet = _quiet()
    if arguments.debug or getattr(module, "SHOWS_PROGRESS", False):
        quiet = contextlib.nullcontext()
    with ExitOnUserError(f"{PROGRAM} {arguments.command}", expected=EXPECTED, show_traceback=arguments.debug):
        try:
            with quiet:
                if getattr(arguments, "model", None) is not None:
                    check_source(arguments.model)
                status = module.run(arguments)
            # Flush here, because an error for a closed pipe cannot be handled at exit.
            sys.stdout.flush()
            return int(status or 0)
        except BrokenPipeError:
            # `deberta-ext info x | head -1`: without this, Python would flush again at exit, and print an error.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that hides warnings, log messages of levels below ERROR, and progress bars.

    If stderr is a terminal, the progress bars of downloads remain visible."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    levels = {name: getLogger(name).level for name in LOGGERS}
    has_bars = logging.is_progress_bar_enabled()
    has_download_bars = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LOGGERS:
            getLogger(name).setLevel(ERROR)
        # This also disables the progress bars of huggingface_hub.
        logging.disable_progress_bar()
        if has_download_bars and sys.stderr.isatty():
            enable_progress_bars()
        try:
            yield
        finally:
            for name, level in levels.items():
                getLogger(name).setLevel(level)
            if has_bars:
                logging.enable_progress_bar()
            if not has_download_bars:
                disable_progress_bars()

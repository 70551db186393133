# SPDX-License-Identifier: Apache-2.0
"""The command line, `deberta-ext COMMAND ...` or `python -m hf_deberta_ext COMMAND ...`.

A command is a module of this folder with HELP (one line), EXAMPLE (command lines, shown at the end of its --help),
add_arguments(parser), and run(arguments), which returns the exit status (None is 0) and does the heavy imports. With
SHOWS_PROGRESS it logs, and shows progress bars, as a script does.
"""

import argparse
import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from logging import ERROR, getLogger
from typing import Any

from safetensors import SafetensorError

from .._version import __version__
from ..training.user_errors import ExitOnUserError

__all__ = ["COMMANDS", "PROGRAM", "command_parser", "main"]

PROGRAM = "deberta-ext"
COMMANDS = ("finetune", "pretrain", "prepare", "convert", "info", "card", "push", "explain", "eval", "demo")
# RuntimeError: weights that do not fit, a truncated .bin file, no memory.
EXPECTED = (ValueError, TypeError, OSError, ImportError, RuntimeError, SafetensorError)
LOGGERS = ("hf_deberta_ext", "transformers_modules", "transformers", "huggingface_hub")


class CommandParser(argparse.ArgumentParser):
    """Parser of a command. With `takes_flags` its words are not read here: they become `flags`, of another parser."""

    takes_flags = False

    def parse_known_args(self, args=None, namespace=None):
        if not self.takes_flags or {"-h", "--help"} & {*args}:
            return super().parse_known_args(args, namespace)
        return argparse.Namespace(flags=[*args]), []


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv (`Sequence[str]`, *optional*): The arguments without the program's name; default: those of the process.

    Returns:
        `int`: The exit status: 0, what the command returned, 2 for an error (one line on stderr), 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="DeBERTa v1, v2, v3 and mDeBERTa for transformers: training, checkpoints, the Hub, and figures.",
        epilog=f"{PROGRAM} COMMAND --help has the arguments of a command and examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name in COMMANDS:
        module = importlib.import_module(f".{name}", __name__)
        command = commands.add_parser(name, help=module.HELP, **_texts(module))
        module.add_arguments(command)
        # Without a default, which would undo a --debug before the command.
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show warnings and tracebacks")
    try:
        return _run(parser.parse_args(argv))
    except SystemExit as ended:
        return int(ended.code or 0)


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command, as in `deberta-ext NAME --help`."""
    module = importlib.import_module(f".{name}", __name__)
    parser = CommandParser(prog=f"{PROGRAM} {name}", **_texts(module))
    module.add_arguments(parser)
    return parser


def _texts(module: Any) -> dict[str, Any]:
    return dict(
        description=module.HELP,
        epilog="examples:\n  " + module.EXAMPLE.strip().replace("\n", "\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # A shortened option would change its meaning with the next option that begins alike.
        allow_abbrev=False,
    )


def _run(arguments: argparse.Namespace) -> int:
    from ..training.model_sources import check_source

    module = importlib.import_module(f".{arguments.command}", __name__)
    quiet = _quiet()
    if arguments.debug or getattr(module, "SHOWS_PROGRESS", False):
        quiet = contextlib.nullcontext()
    with ExitOnUserError(f"{PROGRAM} {arguments.command}", expected=EXPECTED, show_traceback=arguments.debug):
        try:
            with quiet:
                if getattr(arguments, "model", None) is not None:
                    check_source(arguments.model, "model")
                status = module.run(arguments)
            # Here and not at the exit, where nothing could be done about a reader that has gone.
            sys.stdout.flush()
            return int(status or 0)
        except BrokenPipeError:
            # `deberta-ext info x | head -1`: the exit would flush, and complain, once more.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context in which only errors are logged, and only downloads to a terminal have progress bars."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    levels = {name: getLogger(name).level for name in LOGGERS}
    has_bars = logging.is_progress_bar_enabled()
    has_download_bars = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LOGGERS:
            getLogger(name).setLevel(ERROR)
        # transformers switches the bars of huggingface_hub, too.
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

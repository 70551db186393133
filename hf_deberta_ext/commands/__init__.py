# SPDX-License-Identifier: Apache-2.0
"""The command line, `deberta-ext COMMAND ...` or `python -m hf_deberta_ext COMMAND ...`.

A command is a module of this folder with HELP (one line), EXAMPLE (whole command lines, the end of its --help),
add_arguments(parser), and run(arguments), which returns the exit status (None is 0). It imports what is heavy inside run.
"""

import argparse
import contextlib
import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from logging import ERROR, getLogger
from types import ModuleType

from safetensors import SafetensorError

from .._version import __version__
from ..training.user_errors import ExitOnUserError

__all__ = ["COMMANDS", "PROGRAM", "command_parser", "main"]

PROGRAM = "deberta-ext"
# RuntimeError: weights that do not fit, a truncated .bin file, no memory.
EXPECTED = (ValueError, TypeError, OSError, ImportError, RuntimeError, SafetensorError)
COMMANDS = ("convert", "info", "card", "push", "explain", "eval", "demo")
DESCRIPTION = "DeBERTa v1, v2, v3 and mDeBERTa for transformers: checkpoints, model cards, the Hub, and figures."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; `argv` are the arguments without the program's name, by default those of the process.

    Returns:
        `int`: the exit status: 0, what the command returned, 2 for an error (one line on stderr), 130 where Ctrl-C
        stopped it.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    # No option before the command takes a value.
    name = next((argument for argument in argv if not argument.startswith("-")), None)
    try:
        if name is not None and name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
            _parser().error(f"there is no command {name!r}; {advice}")
        arguments = _parser(name).parse_args(argv)
        return _run(importlib.import_module(f".{name}", __name__), name, arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command, as in `deberta-ext NAME --help`."""
    module = importlib.import_module(f".{name}", __name__)
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {name}", **_texts(module))
    module.add_arguments(parser)
    return parser


def _parser(name: str | None = None) -> argparse.ArgumentParser:
    """With one command, which alone is imported; None = with all of them, for the list of --help."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=f"{PROGRAM} COMMAND --help has the arguments of a command and examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command_name in COMMANDS if name is None else (name,):
        module = importlib.import_module(f".{command_name}", __name__)
        command = commands.add_parser(command_name, help=module.HELP, **_texts(module))
        module.add_arguments(command)
        # Without a default: it would undo a --debug before the command.
        debug = dict(default=argparse.SUPPRESS, help="show warnings, and the traceback of an error")
        command.add_argument("--debug", action="store_true", **debug)
    return parser


def _texts(module: ModuleType) -> dict:
    lines = "\n".join(f"  {line}" for line in module.EXAMPLE.strip().splitlines())
    return dict(
        description=module.HELP,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # A shortened option would change its meaning with the next option that begins alike.
        allow_abbrev=False,
    )


def _run(module: ModuleType, name: str, arguments: argparse.Namespace) -> int:
    with ExitOnUserError(f"{PROGRAM} {name}", expected=EXPECTED, show_traceback=arguments.debug):
        try:
            with contextlib.nullcontext() if arguments.debug else _quiet():
                check_model(arguments)
                status = module.run(arguments)
            # Here and not at the exit, where nothing could be done about a reader that has gone.
            sys.stdout.flush()
            return int(status or 0)
        except BrokenPipeError:
            # `deberta-ext info x | head -1`: nobody reads on. The exit would flush, and complain, once more.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1


def check_model(arguments: argparse.Namespace):
    """Find out at once that a model is neither a folder nor to be had from the Hub."""
    if isinstance(model := getattr(arguments, "model", None), str):
        from ..training.model_sources import check_reachable

        check_reachable(model, revision=getattr(arguments, "revision", None))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, transformers and the Hub's client report errors alone, and the progress of downloads only to a terminal."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    # Our own messages, and those of model code that came from the Hub, are not transformers'.
    loggers = [(log, log.level) for log in map(getLogger, ("hf_deberta_ext", "transformers_modules"))]
    verbosities = [(module, module.get_verbosity()) for module in (logging, hub_logging)]
    bars = logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for module, _ in verbosities:
                module.set_verbosity_error()
            for log, _ in loggers:
                log.setLevel(ERROR)
            # The switch of transformers turns the Hub's as well.
            logging.disable_progress_bar()
            (enable_progress_bars if sys.stderr.isatty() else disable_progress_bars)()
            yield
        finally:
            for module, verbosity in verbosities:
                module.set_verbosity(verbosity)
            for log, level in loggers:
                log.setLevel(level)
            (logging.enable_progress_bar if bars else logging.disable_progress_bar)()

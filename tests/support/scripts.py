# SPDX-License-Identifier: Apache-2.0
"""The example scripts and `deberta-ext`: parse their command lines without running them, or start them as processes."""

import argparse
import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from transformers import HfArgumentParser

ROOT = Path(__file__).resolve().parents[2]
# Programs; docstring_corpus.py is a module that they import.
FILES = [*sorted((ROOT / "examples").glob("*.py")), *sorted((ROOT / "examples" / "benchmarks").glob("*.py"))]
EXAMPLES = {file.stem: file for file in FILES if "__main__" in file.read_text("utf-8")}
# README and guides.
DOCUMENTS = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "examples/evidence.md"]
DOCUMENTS += [f"{folder}/README.md" for folder in ("examples", "model_cards", "tests")]
PAGES = ["README.md", *sorted(str(file.relative_to(ROOT)) for file in (ROOT / "examples" / "guides").glob("*.md"))]


class _Parsed(BaseException):
    """Raised when a program has parsed its flags, to end it; the program must not catch it."""


@cache
def module_of(program: str) -> ModuleType:
    if program == "deberta-ext":
        from hf_deberta_ext import __main__ as module

        return module
    spec = importlib.util.spec_from_file_location(program, EXAMPLES[program])
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look up their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def command_line(flags: dict) -> list[str]:
    """Return the flags that are not None as a command line."""
    return [str(part) for name, value in flags.items() if value is not None for part in (f"--{name}", value)]


def start(*command, **environment) -> subprocess.Popen:
    """Start a process that can import this package; its output is read through a pipe."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def flags_of(program: str, argv: list[str], monkeypatch) -> dict:
    """Return the values that a program parses from its command line, by name.

    Args:
        program (`str`): name of an example without .py, or "deberta-ext".
    Raises:
        SystemExit: if the program rejects the command line.
    """

    def ended(read):
        def wrapped(*args, **kwargs):
            raise _Parsed(read(*args, **kwargs))

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", ended(argparse.ArgumentParser.parse_args))
        patch.setattr(HfArgumentParser, "parse_args_into_dataclasses", ended(HfArgumentParser.parse_args_into_dataclasses))
        patch.setattr(sys, "argv", [program, *argv])
        try:
            module_of(program).main()
        except _Parsed as parsed:
            groups = parsed.args[0] if isinstance(parsed.args[0], tuple) else parsed.args
            return {name: value for group in groups for name, value in vars(group).items()}
    # The command-line program returns its status.
    raise SystemExit(f"{program} rejected its flags")

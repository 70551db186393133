# SPDX-License-Identifier: Apache-2.0
"""The command line in general; each command has its own tests."""

import importlib
import re
import shlex
import sys
import types
import warnings

import pytest
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from hf_deberta_ext.commands import COMMANDS, command_parser, main


@pytest.fixture
def command(monkeypatch):
    """Return command(run), which replaces `info` by a test command with one argument, `source`."""

    def install(run):
        module = types.ModuleType("hf_deberta_ext.commands.info")
        module.HELP, module.EXAMPLE = "a command of this test", "deberta-ext info x"
        module.add_arguments = lambda parser: parser.add_argument("source")
        module.run = run
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def fails(error):
    def run(arguments):
        raise error

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_that_its_parser_takes(name, capsys):
    module = importlib.import_module(f"hf_deberta_ext.commands.{name}")
    assert main(["--help"]) == 0
    assert f"{name} {' '.join(module.HELP.split())}" in " ".join(capsys.readouterr().out.split())
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: deberta-ext {name} ")
    examples = module.EXAMPLE.strip()
    assert " ".join(printed.split()).endswith(" ".join(examples.split()))
    for line in examples.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        assert words[:2] == ["deberta-ext", name]
        command_parser(name).parse_args(words[2:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND\nfor example: deberta-ext finetune --help"),
        (["convret", "a", "b"], "invalid choice: 'convret'"),
        (["info"], "the following arguments are required: FOLDER_OR_ID"),
        (["convert", "a", "b", "--over"], "unrecognized arguments: --over"),
        (["convert", "a", "b", "--head", "none"], "argument --head: invalid choice: 'none'"),
    ],
)
def test_wrong_usage_has_status_2_and_says_what_is_wrong(arguments, message, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""
    assert printed.err.startswith("usage: deberta-ext")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_its_arguments_says_what_to_give_with_an_example(name, capsys):
    first = importlib.import_module(f"hf_deberta_ext.commands.{name}").EXAMPLE.strip().splitlines()[0]
    words = {"finetune": ["glue"], "distill": ["text"], "pretrain": ["mlm"]}.get(name, [])
    for given in ([name], [name, *words]):
        assert main(given) == 2
        printed = capsys.readouterr().err
        assert re.search("required|missing", printed) and f"\nfor example: {first}" in printed


LOST = type("ConnectError", (Exception,), {"__module__": "httpx"})


@pytest.mark.parametrize(
    ("error", "line"),
    [
        *((kind("x is wrong"), "error: x is wrong") for kind in (ValueError, TypeError, OSError, ImportError, RuntimeError)),
        (SafetensorError("header too small"), "error: header too small"),
        (LOST("no route to host"), "error: no route to host"),
        (ValueError("two problems:\n- a\n- b"), "error: two problems:\n- a\n- b"),
        (ValueError(), "error: ValueError"),
        (FileNotFoundError(2, "No such file or directory", "x"), "error: [Errno 2] No such file or directory: 'x'"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_an_error_is_one_line(error, line, command, capsys):
    command(fails(error))
    assert main(["info", "x"]) == (130 if line == "stopped" else 2)
    printed = capsys.readouterr()
    assert printed.err == f"deberta-ext info: {line}\n" and printed.out == ""


def test_our_own_mistakes_keep_their_traceback(command):
    command(fails(KeyError("x")))
    with pytest.raises(KeyError):
        main(["info", "x"])


@pytest.mark.parametrize("arguments", [["--debug", "info", "x"], ["info", "x", "--debug"]])
def test_debug_shows_the_traceback_before_the_line(arguments, command, capsys):
    command(fails(ValueError("x is wrong")))
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback") and printed.endswith("deberta-ext info: error: x is wrong\n")


@pytest.mark.parametrize("debug", [False, True])
def test_warnings_are_shown_with_debug_only(debug, command, capsys, caplog):
    names = ("hf_deberta_ext.checkpoints.loading", "transformers_modules.some.modeling_deberta_ext")

    def noisy(arguments):
        warnings.warn("a warning of python", stacklevel=1)
        for name in (*names, "transformers.modeling_utils"):
            transformers_logging.get_logger(name).warning(f"a warning of {name}")
        print("the output")

    command(noisy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert main(["info", "x", *(["--debug"] if debug else [])]) == 0
    assert [str(warning.message) for warning in caught] == ["a warning of python"] * debug
    assert {*caplog.messages} >= ({f"a warning of {name}" for name in names} if debug else set())
    assert capsys.readouterr().out == "the output\n" and (debug or not caplog.messages)


def test_a_missing_package_is_told_with_the_extra_that_brings_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "hf_deberta_ext.finetuning.loop", None)
    assert main(["finetune", "classification", "--do_train"]) == 2
    assert 'pip install "hf_deberta_ext[train]"' in capsys.readouterr().err

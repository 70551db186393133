# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: what is found, said and returned, whatever the command; each command has its own tests."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging

from hf_deberta_ext import __version__
from hf_deberta_ext.commands import COMMANDS, command_parser, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def command(monkeypatch):
    """command(run): puts a command of our own in the place of `info`, with one argument, `source`."""

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


def program(*arguments, **options):
    """The command line in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "hf_deberta_ext", *arguments]
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120) | options
    return subprocess.run(command, env=environment, **options)


def test_the_help_lists_every_command_with_its_line(capsys):
    assert main(["--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name in COMMANDS:
        module = importlib.import_module(f"hf_deberta_ext.commands.{name}")
        assert f"{name} {' '.join(module.HELP.split())}" in printed


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_its_examples(name, capsys):
    module = importlib.import_module(f"hf_deberta_ext.commands.{name}")
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: deberta-ext {name} ")
    lines = [line.strip() for line in module.EXAMPLE.strip().splitlines()]
    assert [line.strip() for line in printed.strip().splitlines()[-len(lines) :]] == lines
    assert "\n" not in module.HELP and module.HELP


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_that_the_parser_takes(name):
    module = importlib.import_module(f"hf_deberta_ext.commands.{name}")
    lines = module.EXAMPLE.replace("\\\n", " ").strip().splitlines()
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["deberta-ext", name]
        command_parser(name).parse_args(words[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_explained_and_never_shortened(name):
    parser = command_parser(name)
    assert not parser.allow_abbrev
    assert [action.dest for action in parser._actions if not action.help] == []


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"deberta-ext {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["convret", "a", "b"], "there is no command 'convret'; did you mean convert?"),
        (["zzz"], "there is no command 'zzz'; there are convert, info, card, push, explain"),
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


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_the_status_is_what_the_command_returns(returned, status, command):
    command(lambda arguments: returned)
    assert main(["info", "x"]) == status


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError, ImportError, RuntimeError])
def test_an_error_is_one_line_and_status_2(error, command, capsys):
    command(fails(error("x is wrong; give y")))
    assert main(["info", "x"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "deberta-ext info: error: x is wrong; give y\n" and printed.out == ""


def test_an_error_of_the_system_names_the_file(command, capsys):
    command(lambda arguments: open(arguments.source))
    assert main(["info", "no such file"]) == 2
    assert capsys.readouterr().err == "deberta-ext info: error: no such file: No such file or directory\n"


def test_the_lines_of_a_longer_message_follow_the_first(command, capsys):
    command(fails(ValueError("two problems:\n\n- a\n- b\n")))
    assert main(["info", "x"]) == 2
    assert capsys.readouterr().err == "deberta-ext info: error: two problems:\n  - a\n  - b\n"


def test_an_error_without_words_is_named(command, capsys):
    command(fails(ValueError()))
    assert main(["info", "x"]) == 2
    assert capsys.readouterr().err == "deberta-ext info: error: ValueError\n"


def test_damaged_weights_and_lost_connections_are_errors_of_the_user_too(command, capsys):
    from safetensors import SafetensorError

    lost = type("ConnectError", (Exception,), {"__module__": "httpx"})
    for error in (SafetensorError("header too small"), lost("no route to host")):
        command(fails(error))
        assert main(["info", "x"]) == 2
        assert capsys.readouterr().err == f"deberta-ext info: error: {error}\n"


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


def test_ctrl_c_is_one_line_and_status_130(command, capsys):
    command(fails(KeyboardInterrupt()))
    assert main(["info", "x"]) == 130
    assert capsys.readouterr().err == "deberta-ext info: stopped\n"


def noisy(arguments):
    warnings.warn("a warning of python", stacklevel=1)
    for name in ("hf_deberta_ext.model.pretrained_model", "transformers_modules.some.modeling_deberta_ext"):
        transformers_logging.get_logger(name).warning(f"a warning of {name}")
    transformers_logging.get_logger("transformers.modeling_utils").warning("a warning of transformers")
    print("the output")


def test_warnings_do_not_drown_the_output(command, capsys, caplog):
    command(noisy)
    assert main(["info", "x"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "the output\n" and printed.err == "" and caplog.messages == []


def test_debug_shows_the_warnings(command, caplog):
    command(noisy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert main(["info", "x", "--debug"]) == 0
    assert [str(warning.message) for warning in caught] == ["a warning of python"]
    assert {message.split(".")[0] for message in caplog.messages} >= {
        "a warning of hf_deberta_ext", "a warning of transformers_modules",
    }  # fmt: skip


@pytest.mark.parametrize("error", [None, ValueError("x")])
def test_verbosity_and_progress_bars_are_afterwards_what_they_were(error, command):
    import logging

    from huggingface_hub.utils import are_progress_bars_disabled
    from huggingface_hub.utils import logging as hub_logging

    def state():
        return (
            transformers_logging.get_verbosity(),
            hub_logging.get_verbosity(),
            transformers_logging.is_progress_bar_enabled(),
            are_progress_bars_disabled(),
            logging.getLogger("hf_deberta_ext").level,
        )

    states = []

    def run(arguments):
        states.append(state())
        if error is not None:
            raise error

    before = state()
    command(run)
    main(["info", "x"])
    assert state() == before
    assert states[0][0] == logging.ERROR and not states[0][2] and states[0][3]


def test_the_installed_script_calls_main():
    import configparser

    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert re.findall(r"deberta-ext\s*=\s*(\S+)", setup["options.entry_points"]["console_scripts"]) == [
        "hf_deberta_ext.commands:main"
    ]


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    read, write = os.pipe()
    os.close(read)
    try:
        done = program("info", str(tmp_path), stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")

# SPDX-License-Identifier: Apache-2.0
"""Flags of a script: their declaration, and parsing by `HfArgumentParser`."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from transformers import HfArgumentParser

from ..files import as_list

__all__ = ["command_line", "option", "overrides", "parse_flags"]


def option(default: Any, text: str, **options) -> Any:
    """Return a dataclass field for a flag with the help `text`; `options` are arguments of `add_argument`, or aliases."""
    metadata = {"help": text, **options}
    if default is list:
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


class FlagParser(HfArgumentParser):
    """`HfArgumentParser` that omits the flags `hidden` from --help, and shows only one spelling of each other flag."""

    def __init__(self, groups: Sequence[type], hidden: Collection[str], **options):
        self.hidden = hidden
        # An abbreviation would become ambiguous with the next new flag that starts with it.
        super().__init__(groups, allow_abbrev=False, **options)
        self.add_argument("--help_all", action="help", help="show these and all Trainer flags: --learning_rate, ...")

    def add_argument(self, *names: str, **options) -> argparse.Action:
        if options.get("dest", names[0].lstrip("-")) in self.hidden:
            options["help"] = argparse.SUPPRESS
        action = super().add_argument(*names, **options)
        # --output-dir is also accepted, but not shown.
        action.option_strings = [name for name in action.option_strings if "-" not in name.lstrip("-")]
        return action


def parse_flags(
    groups: Sequence[type],
    argv: Sequence[str] | None,
    *,
    description: str,
    usage: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    elsewhere: Mapping[str, str] | None = None,
    recipe: Callable[[dict[str, Any], int, torch.device | None], tuple[dict[str, Any], str | None]] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse a command line. Its first word may be a .json or .yaml file of flags, which later flags override.

    Args:
        groups: dataclasses of flags. --help omits the flags in the class attribute `refused`.
        argv (`list[str]`, *optional*): command line; default: the arguments of the process.
        description (`str`): description; `--help` shows its first paragraph.
        usage (`str`, *optional*): usage line for `--help`.
        defaults (`dict`, *optional*): defaults of this script, by name.
        elsewhere (`dict[str, str]`, *optional*): flag that only other scripts have -> advice for the error message.
        recipe (`Callable`, *optional*): maps (flags of the command line, processes, device) to (defaults by name, text to
            print or None).
    Returns:
        Instances of the dataclasses, and the flags of the command line by name.
    Raises:
        ValueError: a flag is unknown, its value is wrong, or it has no effect with the given values of other flags.
    """
    if argv is None:
        argv = sys.argv[1:]
    if argv and Path(argv[0]).suffix in (".json", ".yaml", ".yml"):
        argv = [*flags_of_file(Path(argv[0])), *argv[1:]]
    hidden, names = set(), []
    for group in groups:
        names += [field.name for field in fields(group) if field.init]
        hidden |= {*getattr(group, "refused", ())}
        if "--help_all" not in argv:
            # Fields of TrainingArguments, compared by name because corpus preparation does not import it.
            inherited = [field for base in group.__mro__ if base.__name__ == "TrainingArguments" for field in fields(base)]
            hidden |= {field.name for field in fields(group) if field in inherited}
    parser = FlagParser(groups, hidden, description=description.split("\n\n")[0], usage=usage)
    parser.set_defaults(**(defaults or {}))
    absent = object()
    parsed, unknown = parser.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(names, absent)))
    refuse_unknown(unknown, names, elsewhere or {})
    flags = {name: value for name, value in vars(parsed).items() if value is not absent}
    if recipe is not None:
        device = None
        if flags.get("use_cpu"):
            device = torch.device("cpu")
        settings, table = recipe(flags, int(os.environ.get("WORLD_SIZE", 1)), device)
        parser.set_defaults(**settings)
        if table is not None and int(os.environ.get("RANK", 0)) == 0:
            print(table, flush=True)
    parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    refuse_idle(parsed, flags)
    return parsed, flags


def flags_of_file(file: Path) -> list[str]:
    """Return the flags in a .json or .yaml file as command-line arguments."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid {file.suffix[1:]}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} must contain an object with flags as keys, got {type(values).__name__}")
    return command_line(values)


def command_line(flags: Mapping[str, Any]) -> list[str]:
    """Convert a dict of flags to a command line. Values that are not texts become JSON; list items follow their flag."""
    argv = []
    for name, value in flags.items():
        if as_list(value):
            argv.append(f"--{name}")
        for item in as_list(value):
            if isinstance(item, Path):
                item = str(item)
            elif not isinstance(item, str):
                item = json.dumps(item)
            argv.append(item)
    return argv


def overrides(text: str | None, flag: str = "--config_overrides") -> dict[str, Any]:
    """Parse "a=1,b=x" into a dict. Values are parsed as JSON if possible, else kept as text."""
    values = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{flag} expects name=value,name=value, got {part!r} in {text!r}")
        try:
            values[name.strip()] = json.loads(value)
        except ValueError:
            values[name.strip()] = value.strip()
    return values


def refuse_unknown(unknown: Sequence[str], names: Sequence[str], elsewhere: Mapping[str, str]):
    """Raise a ValueError for unknown flags. The message suggests the flags with the most similar names."""
    problems = []
    for text in [*filter(lambda text: text.startswith("--"), unknown)] or unknown[:1]:
        flag = text.partition("=")[0].lstrip("-").replace("-", "_")
        close = [name for name in names if name.startswith(flag)] or difflib.get_close_matches(flag, names, 1)
        nearest = " or --".join(close[:3]) or "help_all"
        problems.append(f"unknown flag --{flag}; did you mean --{nearest}?")
        if flag in elsewhere:
            problems[-1] = f"--{flag} is not a flag of this script: {elsewhere[flag]}"
    if problems:
        raise ValueError("; ".join(problems))


def refuse_idle(groups: Sequence[Any], flags: Mapping[str, Any]):
    """Raise a ValueError if a flag of the command line has another value than its default, but would have no effect.

    The attribute `needs` of a dataclass, or of its bases, maps the name of a flag to a pair (text, function). The text says
    when the flag has no effect, such as "without --lora". The function maps an object with the values of all groups to True
    if the flag has an effect.
    """
    values, needs, defaults = SimpleNamespace(), {}, {}
    for group in groups:
        vars(values).update(vars(group))
        defaults |= {field.name: field.default for field in fields(group)}
        for kind in reversed(type(group).__mro__):
            needs |= vars(kind).get("needs", {})
    for name, (case, acts) in needs.items():
        if name in flags and flags[name] not in (defaults[name], []) and not acts(values):
            raise ValueError(f"--{name} {flags[name]} has no effect {case}; change the other flags, or remove --{name}")

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
    """Return a field of a dataclass of flags, with its help text; `options` are those of argparse, such as `choices`.

    The default `list` is an empty list.
    """
    metadata = {"help": text, **options}
    if default is list:
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


class FlagParser(HfArgumentParser):
    """`HfArgumentParser` whose --help leaves the flags `hidden` out, and shows one spelling of the others."""

    def __init__(self, groups: Sequence[type], hidden: Collection[str], **options):
        self.hidden = hidden
        # An abbreviation would change its meaning with the next flag that begins alike.
        super().__init__(groups, allow_abbrev=False, **options)
        self.add_argument("--help_all", action="help", help="these flags, and those of Trainer: --learning_rate, ...")

    def add_argument(self, *names: str, **options) -> argparse.Action:
        if options.get("dest", names[0].lstrip("-")) in self.hidden:
            options["help"] = argparse.SUPPRESS
        action = super().add_argument(*names, **options)
        # --output-dir is taken, too.
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
    """Parse a command line. Flags win over those of a .json or .yaml file, which its first word may name.

    Args:
        groups: dataclasses of flags. --help leaves out those that an attribute `refused` of the class names.
        description, usage (`str`): for `--help`, the description's first paragraph.
        defaults (`dict`, *optional*): of this script, by name.
        elsewhere (`dict[str, str]`, *optional*): names of flags of other scripts -> what to give here.
        recipe (`Callable`, *optional*): (flags of the command line, processes, device) -> (defaults by name, a text to
            print about them, or None), which --recipe and other flags decide.
    Returns:
        Instances of the dataclasses, and the flags of the command line by name.
    Raises:
        ValueError: a flag is unknown, its value is wrong, or it has no effect without another.
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
            # TrainingArguments' own; a preparation does not import it.
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
    """Return the command line for a .json or .yaml file of flags by name."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no {file.suffix[1:]}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold flags by name, got {type(values).__name__}")
    return command_line(values)


def command_line(flags: Mapping[str, Any]) -> list[str]:
    """Return the command line for flags by name: numbers, true and null as in JSON, several values in a list."""
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
    """Return "a=1,b=x" as fields; numbers, true, false and null as in JSON, anything else is text."""
    values = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{flag} takes name=value,name=value, got {part!r} in {text!r}")
        try:
            values[name.strip()] = json.loads(value)
        except ValueError:
            values[name.strip()] = value.strip()
    return values


def refuse_unknown(unknown: Sequence[str], names: Sequence[str], elsewhere: Mapping[str, str]):
    """Refuse unknown flags: say what to give in their place, or which flag is spelt most like them."""
    problems = []
    for text in [*filter(lambda text: text.startswith("--"), unknown)] or unknown[:1]:
        flag = text.partition("=")[0].lstrip("-").replace("-", "_")
        close = [name for name in names if name.startswith(flag)] or difflib.get_close_matches(flag, names, 1)
        nearest = " or --".join(close[:3]) or "help_all"
        problems.append(f"unknown flag --{flag}: is it --{nearest}?")
        if flag in elsewhere:
            problems[-1] = f"--{flag} is no flag of this script: {elsewhere[flag]}"
    if problems:
        raise ValueError("; ".join(problems))


def refuse_idle(groups: Sequence[Any], flags: Mapping[str, Any]):
    """Refuse flags of the command line that would have no effect, unless they are at their default.

    `needs` of a dataclass of flags, or of one that it extends, has for the name of a flag (where it has no effect: "without
    --lora", a function of the values of all groups: whether it has one).
    """
    values, needs, defaults = SimpleNamespace(), {}, {}
    for group in groups:
        vars(values).update(vars(group))
        defaults |= {field.name: field.default for field in fields(group)}
        for kind in reversed(type(group).__mro__):
            needs |= vars(kind).get("needs", {})
    for name, (case, acts) in needs.items():
        if name in flags and flags[name] not in (defaults[name], []) and not acts(values):
            raise ValueError(f"--{name} {flags[name]} has no effect {case}: change that, or leave --{name} out")

# SPDX-License-Identifier: Apache-2.0
"""Flags of a script, for `HfArgumentParser`: how they are declared, which were given, which a resumed run must repeat."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from transformers import HfArgumentParser, TrainingArguments

__all__ = ["fixed_arguments", "given_flags", "option", "overrides"]


def option(default: Any, text: str, **more) -> Any:
    """A field of a dataclass of flags, with its help text; `choices` and the like as in argparse."""
    return field(default=default, metadata={"help": text, **more})


def given_flags(parser: HfArgumentParser, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The flags that stand on the command line, without defaults, by name."""
    names = [field.name for kind in parser.dataclass_types for field in dataclasses.fields(kind) if field.init]
    absent = object()
    parsed, _ = parser.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(names, absent)))
    return {name: value for name, value in vars(parsed).items() if value is not absent}


def fixed_arguments(groups: Sequence[Any], args: TrainingArguments, names: Sequence[str] = ()) -> dict[str, Any]:
    """What a resumed run must not change, or it would not be the same run.

    Args:
        groups: dataclasses of flags, all of whose fields count but those of the machine and of the model card alone.
        names: fields of `args` that count beside seeds, steps and what the optimizer reads.
    """
    free = {"num_proc", "cache_dir", "token", "attn_implementation", "license", "card_language"}
    ours = {}
    for group in groups:
        ours |= {name: value for name, value in dataclasses.asdict(group).items() if name not in free}
    common = (
        "seed", "data_seed", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type", "warmup_steps",
        "weight_decay", "optim",
    )  # fmt: skip
    return ours | {name: getattr(args, name) for name in (*common, *names)}


def overrides(text: str | None, flag: str = "--config_overrides") -> dict[str, Any]:
    """ "a=1,b=x" as fields; numbers, true, false and null as in JSON, anything else is text.

    Raises:
        ValueError: a part without "=".
    """
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

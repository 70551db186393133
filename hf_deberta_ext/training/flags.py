# SPDX-License-Identifier: Apache-2.0
"""Flags of a script, for `HfArgumentParser`: their declaration and parsing, and the answers to unknown and removed ones."""

import argparse
import dataclasses
import difflib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import HfArgumentParser

from .progress import hide_short_bars

__all__ = ["LEAVE_OUT", "REMOVED", "given_flags", "option", "overrides", "parse_flags", "show_one_spelling"]

LEAVE_OUT = "leave it out"
# Flags that scripts of older transformers had -> their replacement.
REMOVED = {
    "adafactor": "--optim adafactor",
    "dispatch_batches": "--accelerator_config",
    "evaluate_during_training": "--eval_strategy steps",
    "evaluation_strategy": "--eval_strategy",
    "fp16_backend": LEAVE_OUT,
    "fp16_opt_level": LEAVE_OUT,
    "fsdp_min_num_params": "--fsdp_config",
    "fsdp_transformer_layer_cls_to_wrap": "--fsdp_config",
    "group_by_length": "--train_sampling_strategy group_by_length",
    "half_precision_backend": LEAVE_OUT,
    "include_inputs_for_metrics": "--include_for_metrics inputs",
    "include_tokens_per_second": "--include_num_input_tokens_seen",
    "jit_mode_eval": "--torch_compile",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "max_length": "--max_seq_length",
    "no_cuda": "--use_cpu",
    "overwrite_cache": LEAVE_OUT,
    "past_index": LEAVE_OUT,
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "push_to_hub_model_id": "--hub_model_id",
    "push_to_hub_organization": "--hub_model_id ORGANIZATION/NAME",
    "push_to_hub_token": "--hub_token",
    "ray_scope": LEAVE_OUT,
    "save_safetensors": f"{LEAVE_OUT}: weights are always safetensors",
    "sharded_ddp": "--fsdp",
    "split_batches": "--accelerator_config",
    "torch_dtype": "--dtype",
    "torchdynamo": "--torch_compile_backend",
    "tpu_num_cores": LEAVE_OUT,
    "use_auth_token": "--token",
    "use_fast_tokenizer": f"{LEAVE_OUT}: tokenizers are fast where there is a fast one",
    "use_ipex": LEAVE_OUT,
    "use_legacy_prediction_loop": LEAVE_OUT,
    "use_mps_device": f"{LEAVE_OUT}: an accelerator is used where there is one",
    "warmup_ratio": "--warmup_steps, which takes a share below 1, as in --warmup_steps 0.1",
    "xpu_backend": "--ddp_backend",
}


# Subjects of --help by the name of the class of flags, or of one that it extends, in the order shown.
SUBJECTS = {
    "ModelArguments": "model",
    "HubArguments": "model",
    "TokenizerArguments": "model",
    "DataArguments": "data",
    "CorpusArguments": "data",
    "MaskingArguments": "masking",
    "RunArguments": "run",
    "SiftArguments": "SiFT",
    "TrainingArguments": "Trainer",
}


def option(default: Any, text: str, **options) -> Any:
    """A field of a dataclass of flags, with its help text; `options` are those of argparse, such as `choices`.

    The default `list` is an empty list.
    """
    given_default = dict(default_factory=list) if default is list else dict(default=default)
    return field(**given_default, metadata={"help": text, **options})


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
    """Parse a command line, or the one .json or .yaml file that it names.

    Args:
        groups: dataclasses of flags. --help leaves out those that an attribute `refused` of the class names, and `needs`
            says which flags have an effect with others alone, as `refuse_idle` reads it.
        argv (`list[str]`, *optional*): without the name of the program; None = the program's own.
        description (`str`): of which `--help` shows the first paragraph.
        usage (`str`, *optional*): in place of argparse's.
        defaults (`dict`, *optional*): of this script, by name.
        elsewhere (`dict[str, str]`, *optional*): as in `refuse_unknown`.
        recipe (`Callable`, *optional*): (flags of the command line, processes, device) -> (defaults by name, a text to
            print about them, or None), which --recipe and other flags decide.
    Returns:
        Instances of the dataclasses, and the flags of the command line by name.
    Raises:
        ValueError: a flag is unknown or gone, its value is wrong, or it has no effect without another. Errors that argparse
            finds end the program.
    """
    parser = HfArgumentParser(groups, description=description.split("\n\n")[0], usage=usage)
    parser.set_defaults(**(defaults or {}))
    argv = [*(sys.argv[1:] if argv is None else argv)]
    if len(argv) == 1 and Path(argv[0]).suffix in (".json", ".yaml", ".yml"):
        argv = flags_of_file(Path(argv[0]))
    group_help(parser, with_trainer="--help_all" in argv)
    refuse_unknown(argv, parser, elsewhere)
    flags = given_flags(parser, argv)
    if recipe is not None:
        device = torch.device("cpu") if flags.get("use_cpu") else None
        settings, table = recipe(flags, int(os.environ.get("WORLD_SIZE", 1)), device)
        parser.set_defaults(**settings)
        if table is not None and int(os.environ.get("RANK", 0)) == 0:
            print(table, flush=True)
    if flags.get("seeds") and "seed" in flags:
        raise ValueError("--seed and --seeds are both given: which?")
    parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    refuse_idle(parsed, flags)
    hide_short_bars()
    return parsed, flags


def group_help(parser: HfArgumentParser, *, with_trainer: bool):
    """Show the flags of a script by subject, Trainer's own only `with_trainer`, which --help_all asks for."""
    text = "these flags, and those of transformers' Trainer: --do_train, --learning_rate, --num_train_epochs, ..."
    parser.add_argument("--help_all", action="help", help=text)
    # Of the classes that inherit a field, the last one declares it, or the last that declares it anew.
    subjects = {}
    for kind in parser.dataclass_types:
        parsed = {field.name for field in dataclasses.fields(kind) if field.init}
        for base in reversed(kind.__mro__):
            subject = next((SUBJECTS[other.__name__] for other in base.__mro__ if other.__name__ in SUBJECTS), "run")
            subjects |= dict.fromkeys(parsed & {*vars(base).get("__annotations__", ())}, subject)
    groups = {title: parser.add_argument_group(title) for title in ("recipe", *dict.fromkeys(SUBJECTS.values()), "LoRA")}
    refused = {name for kind in parser.dataclass_types for name in getattr(kind, "refused", ())}
    own = parser._optionals._group_actions
    for action in [action for action in own if action.dest in subjects]:
        title = "recipe" if action.dest == "recipe" else "LoRA" if action.dest.startswith("lora") else subjects[action.dest]
        own.remove(action)
        groups[title]._group_actions.append(action)
        if (title == "Trainer" and not with_trainer) or action.dest in refused:
            action.help = argparse.SUPPRESS
    show_one_spelling(parser)


def show_one_spelling(parser: argparse.ArgumentParser):
    """Leave spellings with hyphens (--output-dir), which are taken all the same, out of help and messages."""
    for action in parser._actions:
        spellings = [name for name in action.option_strings if "-" not in name.lstrip("-")]
        action.option_strings = spellings or action.option_strings


def flags_of_file(file: Path) -> list[str]:
    """The command line for a file of flags by name."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the file of arguments {file} cannot be read: {error.strerror}") from error
    import yaml

    try:
        values = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file} is no {file.suffix[1:]}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold flags by name, got {type(values).__name__}")
    argv = []
    for name, value in values.items():
        if value is None or value == []:
            continue
        items = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
        argv += [f"--{name}", *(str(item).lower() if isinstance(item, bool) else str(item) for item in items)]
    return argv


def given_flags(parser: HfArgumentParser, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The flags of the command line, without defaults, by name."""
    names = [field.name for kind in parser.dataclass_types for field in dataclasses.fields(kind) if field.init]
    absent = object()
    parsed, _ = parser.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(names, absent)))
    return {name: value for name, value in vars(parsed).items() if value is not absent}


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


def refuse_unknown(argv: Sequence[str], parser: HfArgumentParser, elsewhere: Mapping[str, str] | None = None):
    """Refuse flags that are gone, and misspelt ones, which HfArgumentParser would list without advice.

    Args:
        elsewhere (`dict[str, str]`, *optional*): flags of other scripts of this kind -> their replacement here.
    Raises:
        ValueError: names all of them, each with its replacement.
    """
    flags = [*parser._option_string_actions]
    elsewhere = elsewhere or {}
    problems = []
    for text in argv:
        flag = text.partition("=")[0]
        if not flag.startswith("--") or any(option.startswith(flag) for option in flags):
            continue
        name = flag[2:].replace("-", "_")
        instead = elsewhere.get(name) or REMOVED.get(name)
        if instead:
            advice = instead if instead.startswith(LEAVE_OUT) else f"give {instead}"
            reason = "is no flag of this script" if name in elsewhere else "is gone from transformers"
            problems.append(f"--{name} {reason}: {advice}")
        else:
            close = difflib.get_close_matches(f"--{name}", flags, 1)
            problems.append(f"unknown flag {flag}" + (f": is it {close[0]}?" if close else " (--help_all shows all)"))
    if problems:
        raise ValueError("; ".join(problems))


def refuse_idle(groups: Sequence[Any], flags: Mapping[str, Any]):
    """Refuse flags that would have no effect. Those at their default pass, and so does what a recipe sets.

    Args:
        groups: instances of dataclasses of flags. `needs` of a class, or of one that it extends, has for the name of a flag
            (where it has no effect: "without --lora", a function of the values of all groups: whether it has one).
        flags (`dict`): of the command line, by name.
    Raises:
        ValueError: names the first of them, and the reason.
    """
    values = SimpleNamespace(**{name: value for group in groups for name, value in vars(group).items()})
    for group in groups:
        needs = {name: need for kind in reversed(type(group).__mro__) for name, need in vars(kind).get("needs", {}).items()}
        defaults = {field.name: field.default for field in dataclasses.fields(group)}
        for name, (case, acts) in needs.items():
            if name in flags and flags[name] not in (defaults[name], []) and not acts(values):
                value = " ".join(map(str, value)) if isinstance(value := flags[name], list) else value
                raise ValueError(f"--{name} {value} has no effect {case}: change that, or leave --{name} out")

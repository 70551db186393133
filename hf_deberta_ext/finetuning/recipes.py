# SPDX-License-Identifier: Apache-2.0
"""Published fine-tuning settings by model size and task, adapted to the hardware.

A recipe sets epochs, batch size, learning rate, warm-up, classifier dropout and maximum length. The hardware determines
micro-batches and precision. The user's flags override both:

    RECIPES["v3-large"]["sst2"].learning_rate  # 6e-6
    recipe_arguments("v3-large", "sst2", {"per_device_train_batch_size": 8})["gradient_accumulation_steps"]  # 4

As in the official code, recipes train with weight decay 0.01, ε = 1e-6 and gradients clipped at norm 1. They also set
`published_optimizer` (Adam without bias correction, learning rate multiplied by 1 - step / steps), unless the flags set
another optimizer or schedule.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, TrainingArguments

from ..training.batch_size import (
    CPU_MICRO_BATCH,
    HARDWARE_FLAGS,
    half_precision,
    micro_batches,
    settings_table,
    training_device,
)
from ..training.published_optimizer import OWN_OPTIMIZER

__all__ = ["RECIPES", "FineTuningRecipe", "divergence_warnings", "find_recipe", "recipe_arguments", "recipe_table"]


@dataclass(frozen=True)
class FineTuningRecipe:
    """Settings of one published fine-tuning run.

    Args:
        epochs (`int`), learning_rate (`float`): as in `TrainingArguments`.
        warmup_steps (`float`): number of warm-up steps; below 1, a fraction of all steps.
        batch (`int`): examples per optimizer step, over all micro-batches and processes.
        classifier_dropout (`float`): dropout probability before the classifier.
        max_length (`int`): maximum input length in tokens.
        from_mnli (`bool`): whether training starts from the checkpoint of this size that was fine-tuned on MNLI.
        half_precision (`bool`): whether the published run used float16; here bfloat16 if the accelerator supports it.
        sift_weight (`float`): weight of the adversarial loss; 0 = none.
    """

    epochs: int
    warmup_steps: float
    learning_rate: float
    batch: int
    classifier_dropout: float
    max_length: int
    from_mnli: bool = False
    half_precision: bool = False
    sift_weight: float = 0.0


# Settings of all recipes: weight decay, ε, clipping and schedule.
COMMON = dict(weight_decay=0.01, adam_epsilon=1e-6, max_grad_norm=1.0, published_optimizer=True)
# Tasks that use the settings of another task.
SAME_AS = {"conll2003": "ner", "xnli": "mnli"}


# By size and task. Source: the scripts of microsoft/DeBERTa, experiments/.
RECIPES: dict[str, dict[str, FineTuningRecipe]] = {}
for _size, _tasks in json.loads(Path(__file__).with_name("recipes.json").read_text(encoding="utf-8")).items():
    RECIPES[_size] = {task: FineTuningRecipe(**settings) for task, settings in _tasks.items()}
# Tokens per micro-batch that fit in 24 GB of accelerator memory (a conservative estimate), by size of the model.
GPU_TOKENS = {"xxlarge": 1024, "xlarge": 2048, "large": 4096, "": 16384}


def find_recipe(name: str, task: str | None) -> FineTuningRecipe:
    """Return the recipe of a model size (such as "v3-large") for a task; raise a ValueError if there is none."""
    if name not in RECIPES:
        raise ValueError(f"--recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    if task is None:
        raise ValueError(f"--recipe needs --task_name, one of {', '.join(RECIPES[name])}")
    task = SAME_AS.get(task.lower(), task.lower())
    if task not in RECIPES[name]:
        sizes = ", ".join(size for size in RECIPES if task in RECIPES[size])
        raise ValueError(
            f"--recipe {name} has no settings for {task}, only for {', '.join(RECIPES[name])}; recipes for {task}: "
            f"{sizes or 'none'}"
        )
    return RECIPES[name][task]


def recipe_arguments(
    name: str,
    task: str | None,
    flags: Mapping[str, Any] | None = None,
    *,
    processes: int = 1,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Return the training arguments of a recipe for this hardware, by name; leave out arguments that `flags` contains.

    per_device_train_batch_size x gradient_accumulation_steps x processes is exactly the recipe's batch; set both flags for
    another batch size. The classifier dropout is left out: it is a field of the model (see `find_recipe`).
    """
    recipe, flags = find_recipe(name, task), flags or {}
    device = training_device(device)
    arguments = dict(
        num_train_epochs=float(recipe.epochs),
        warmup_steps=recipe.warmup_steps,
        learning_rate=recipe.learning_rate,
        max_seq_length=recipe.max_length,
        **COMMON,
    )
    if OWN_OPTIMIZER & {*flags}:
        del arguments["published_optimizer"]
    if recipe.sift_weight:
        arguments |= dict(sift_weight=recipe.sift_weight, sift_preset="official")
    if "max_steps" in flags:
        # max_steps overrides num_train_epochs in Trainer. A short run must not end before the end of the warm-up.
        del arguments["num_train_epochs"]
        if flags["max_steps"] < 2 * recipe.warmup_steps:
            arguments["warmup_steps"] = 0.1
    if recipe.half_precision:
        arguments |= half_precision(device, flags)
    tokens = next(tokens for size, tokens in GPU_TOKENS.items() if size in name)
    fitting = CPU_MICRO_BATCH if device.type == "cpu" else max(1, tokens // recipe.max_length)
    arguments |= micro_batches(recipe.batch, flags, processes, fitting)
    return {name: value for name, value in arguments.items() if name not in flags}


def recipe_table(name: str, task: str, settings: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    """Format a table of the settings, grouped by their source: recipe, hardware (see `recipe_arguments`) or flags."""
    recipe = find_recipe(name, task)
    on_cpu = recipe_arguments(name, task, device=torch.device("cpu"))
    published = {flag: value for flag, value in on_cpu.items() if flag not in HARDWARE_FLAGS}
    dropout = ("dropout before the classifier", str(recipe.classifier_dropout), "recipe")
    head = f"recipe {name} for {task} (microsoft/DeBERTa; batch {recipe.batch})"
    return "\n".join([head, *settings_table(published, settings, flags, dropout)])


def divergence_warnings(
    config: PretrainedConfig, args: TrainingArguments, model: str = "", *, lora: bool = False
) -> list[str]:
    """Return warnings about settings that are known not to converge or not to learn.

    mDeBERTa is recognised by the size of its vocabulary or by the name `model`.
    """
    warnings = []
    layers, rate = getattr(config, "num_hidden_layers", None) or 0, f"--learning_rate {args.learning_rate:g}"
    if lora and args.learning_rate <= 5e-5:
        warnings.append(f"{rate} is too low for --lora: use 6e-5 to 5e-4")
    if not lora and layers >= 24 and args.learning_rate > 3e-5:
        warnings.append(f"{rate} often does not converge with {layers} layers: published runs use 3e-6 to 1e-5")
    if args.fp16 and (getattr(config, "vocab_size", None) == 251000 or "mdeberta" in model.lower()):
        warnings.append("--fp16 with mDeBERTa gives NaN or infinite losses: use --bf16, or neither")
    return warnings

# SPDX-License-Identifier: Apache-2.0
"""Published settings of fine-tuning, by size of the model and task, fitted to the hardware at hand.

A recipe fixes what is learned: epochs, batch, learning rate, warm-up, dropout before the classifier, length. The hardware
decides the micro-batches and the precision of the arithmetic, and flags of the user win over both:

    RECIPES["v3-large"]["sst2"].learning_rate  # 6e-6
    recipe_arguments("v3-large", "sst2", {"per_device_train_batch_size": 8})["gradient_accumulation_steps"]  # 4

The official code trains with Adam without bias correction, weight decay 0.01, ε 1e-6, gradients clipped at norm 1, and a
learning rate that falls as 1 - step / steps: `published_optimizer`, which a flag of optimizer or schedule switches off.
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

__all__ = [
    "RECIPES",
    "FineTuningRecipe",
    "divergence_warnings",
    "find_recipe",
    "recipe_arguments",
    "recipe_table",
]


@dataclass(frozen=True)
class FineTuningRecipe:
    """The settings of one published fine-tuning.

    Args:
        epochs (`int`), warmup_steps (`float`, below 1 a share of all steps), learning_rate (`float`).
        batch (`int`): examples of an optimizer step, over all micro-batches and processes.
        classifier_dropout (`float`): before the classifier.
        max_length (`int`): tokens of an example.
        from_mnli (`bool`): begins at the checkpoint of this size that is fine-tuned on MNLI.
        half_precision (`bool`): the published run was in float16. Here bfloat16 where the accelerator has it.
        sift_weight (`float`): weight of the adversarial loss, 0 = none.
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


# ε, weight decay, clipping and schedule of all.
COMMON = dict(weight_decay=0.01, adam_epsilon=1e-6, max_grad_norm=1.0, published_optimizer=True)
# Tasks with the settings of another.
SAME_AS = {"conll2003": "ner", "xnli": "mnli"}


def _recipes() -> dict[str, dict[str, FineTuningRecipe]]:
    # Source: the scripts of microsoft/DeBERTa, experiments/.
    published = json.loads(Path(__file__).with_name("recipes.json").read_text(encoding="utf-8"))
    recipes: dict[str, dict[str, FineTuningRecipe]] = {}
    for size, tasks in published.items():
        recipes[size] = {task: FineTuningRecipe(**settings) for task, settings in tasks.items()}
    return recipes


RECIPES = _recipes()
# Tokens of a micro-batch that an accelerator of 24 GB should hold; cautious.
GPU_TOKENS = {"xxlarge": 1024, "xlarge": 2048, "large": 4096, "": 16384}


def find_recipe(name: str, task: str | None) -> FineTuningRecipe:
    """Return the recipe of a size for a task.

    Raises:
        ValueError: there is none; says what there is.
    """
    if name not in RECIPES:
        raise ValueError(f"--recipe {name!r} is unknown; there are {', '.join(RECIPES)}")
    if task is None:
        raise ValueError(f"--recipe needs --task_name, one of {', '.join(RECIPES[name])}")
    task = SAME_AS.get(task.lower(), task.lower())
    if task not in RECIPES[name]:
        sizes = ", ".join(size for size in RECIPES if task in RECIPES[size])
        raise ValueError(
            f"--recipe {name} has no settings for {task}, only for {', '.join(RECIPES[name])}; sizes for {task}: "
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
    """Return the settings of the recipe and of the hardware, as arguments by name; those that flags set are left out.

    per_device_train_batch_size x gradient_accumulation_steps x processes is the recipe's batch, exactly. Give both numbers
    to train with another batch. The dropout before the classifier is a field of the model: see `find_recipe`.

    Args:
        flags (`dict`, *optional*): of the user, by name.
        processes (`int`): that train together.
        device (`torch.device`, *optional*): on which each trains; None = the accelerator, or the CPU.
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
        # Trainer would count steps all the same; and a short run would end before it is warm.
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
    """Return the table of the settings of a recipe, of the hardware (`recipe_arguments`) and of flags that replaced them."""
    recipe = find_recipe(name, task)
    on_cpu = recipe_arguments(name, task, device=torch.device("cpu"))
    published = {flag: value for flag, value in on_cpu.items() if flag not in HARDWARE_FLAGS}
    dropout = ("dropout before the classifier", str(recipe.classifier_dropout), "recipe")
    head = f"recipe {name} for {task} (microsoft/DeBERTa; batch {recipe.batch})"
    return "\n".join([head, *settings_table(published, settings, flags, dropout)])


def divergence_warnings(
    config: PretrainedConfig, args: TrainingArguments, model: str = "", *, lora: bool = False
) -> list[str]:
    """Return sentences about settings that are known not to converge, or not to learn; the name of the model says mDeBERTa
    where its vocabulary does not."""
    warnings = []
    layers, rate = getattr(config, "num_hidden_layers", None) or 0, f"--learning_rate {args.learning_rate:g}"
    if lora and args.learning_rate <= 5e-5:
        warnings.append(f"{rate} with --lora is one for whole models: adapters take 6e-5 to 5e-4")
    if not lora and layers >= 24 and args.learning_rate > 3e-5:
        warnings.append(f"{rate} on {layers} layers often does not converge: published runs take 3e-6 to 1e-5")
    if args.fp16 and (getattr(config, "vocab_size", None) == 251000 or "mdeberta" in model.lower()):
        warnings.append("--fp16 with mDeBERTa gives losses that are not finite: take --bf16, or neither")
    return warnings

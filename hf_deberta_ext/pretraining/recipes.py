# SPDX-License-Identifier: Apache-2.0
"""Choose the settings of a pre-training run, from a named recipe or from defaults for a new model.

A recipe sets what affects training: sizes, batch, steps, learning rate, loss. The micro-batch and the precision depend on
the hardware. Flags of the user override all these settings:

    arguments = recipe_arguments(RECIPES["v3-study"], {"per_device_train_batch_size": 32}, processes=8)
    arguments["gradient_accumulation_steps"]  # 8: 32 x 8 x 8 = 2,048
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..training.batch_size import (
    CPU_MICRO_BATCH,
    HARDWARE_FLAGS,
    half_precision,
    micro_batches,
    settings_table,
    training_device,
)
from ..training.flags import overrides
from ..training.published_optimizer import OWN_OPTIMIZER

__all__ = ["FROM_SCRATCH", "RECIPES", "Recipe", "chosen_settings", "recipe_arguments", "recipe_table"]


@dataclass(frozen=True)
class Recipe:
    """Settings of pre-training by replaced token detection, and also by masked-language modelling if `trains_mlm`.

    Most fields are values for the flag of the same name, for both generator and discriminator; None = the flag's default.
    The other fields are:

    Args:
        description, source (`str`): the trained model, and the publication of the settings.
        preset (`str`): size of the discriminator, a name of `DebertaExtConfig.from_preset`; the generator is half as deep.
        batch (`int`): examples of an optimizer step, over all micro-batches and processes.
        half_precision (`bool`, default True): use bfloat16, or float16 (as published) on CUDA GPUs without bfloat16.
        trains_mlm (`bool`, default False): the recipe is also for masked-language modelling.
    """

    description: str
    source: str
    preset: str
    batch: int
    max_steps: int | None
    learning_rate: float
    # Values below 1 are a share of all steps.
    warmup_steps: float
    # In decoupled steps, this weight only matters for clipped gradients, because Adam divides by the gradients' size.
    rtd_lambda: float
    stepping: Literal["joint", "decoupled"]
    embedding_sharing: Literal["gdes", "es", "nes", "all"] = "gdes"
    max_length: int = 512
    model: str | None = None
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    max_grad_norm: float = 1.0
    published_optimizer: bool = True
    half_precision: bool = True
    config_overrides: str | None = None
    masking: str | None = None
    masking_rate: float | None = None
    final_masking_rate: float | None = None
    num_train_epochs: float | None = None
    lr_scheduler_type: str | None = None
    trains_mlm: bool = False


OFFICIAL = Recipe(
    "the official script's base model",
    source="microsoft/DeBERTa, experiments/language_model/rtd.sh",
    preset="v3-base",
    batch=256,
    max_steps=1_000_000,
    learning_rate=1e-4,
    warmup_steps=10_000,
    rtd_lambda=10.0,
    stepping="decoupled",
)


def further(size: str) -> Recipe:
    """Return Microsoft's recipe to continue the training of a published model."""
    model = f"microsoft/deberta-v3-{size}"
    description = f"{model}, trained further as in the official script"
    steps = dict(max_steps=100_000, learning_rate=5e-5)
    return replace(OFFICIAL, description=description, preset=f"v3-{size}", model=model, **steps)


RECIPES: dict[str, Recipe] = {
    "v3-study": Recipe(
        "the base model on Wikipedia and books with which the paper compares NES, ES and GDES",
        source="DeBERTaV3 (He et al. 2021), section 3",
        preset="v3-base",
        batch=2048,
        max_steps=125_000,
        learning_rate=5e-4,
        warmup_steps=10_000,
        rtd_lambda=50.0,
        stepping="joint",
    ),
    "official-xsmall": replace(
        OFFICIAL, description="the official script's xsmall model", preset="v3-xsmall", batch=64, learning_rate=3e-4
    ),
    "official-base": OFFICIAL,
    "official-large": replace(OFFICIAL, description="the official script's large model", preset="v3-large"),
    "official-xsmall-continue": further("xsmall"),
    "official-small-continue": further("small"),
    "small-cpu": Recipe(
        "a model of 4 layers x 256 on some ten million words, on a CPU or any accelerator",
        source="this project, after LTG-BERT",
        preset="electra-small",
        config_overrides="num_hidden_layers=4,embedding_size=256",
        batch=64,
        max_steps=None,
        num_train_epochs=10.0,
        learning_rate=1e-3,
        warmup_steps=0.02,
        lr_scheduler_type="cosine",
        rtd_lambda=50.0,
        stepping="joint",
        max_length=128,
        weight_decay=0.1,
        adam_beta2=0.98,
        masking="word",
        masking_rate=0.3,
        final_masking_rate=0.15,
        published_optimizer=False,
        trains_mlm=True,
    ),
}

# Fields of a recipe that are not flags; fields that are flags; flags only of replaced token detection.
ABOUT = ("description", "source", "batch", "half_precision", "trains_mlm")
FLAGS = tuple(field.name for field in fields(Recipe) if field.name not in ABOUT)
RTD_FLAGS = ("embedding_sharing", "stepping", "rtd_lambda")

# Defaults of a new model without a recipe. Trainer's suit fine-tuning: rate 5e-5, no warm-up or weight decay, batch of 8.
FROM_SCRATCH = dict(learning_rate=5e-4, warmup_steps=0.05, weight_decay=0.1, adam_beta2=0.98, adam_epsilon=1e-6)
BATCH = 64


def chosen_settings(
    given_flags: Mapping[str, Any], processes: int = 1, device: torch.device | None = None, *, rtd: bool
) -> tuple[dict[str, Any], str | None]:
    """Return values for flags that the user did not set (from a recipe, or for a new model), and a text that lists them.

    With --recipe, the values are those of the recipe and the hardware. Without --recipe, they are defaults for training a
    new model; but if --model is set, return ({}, None), so that Trainer's defaults are used.

    Args:
        given_flags, processes, device: as in `recipe_arguments`.
        rtd (`bool`): True for replaced token detection, False for masked-language modelling.
    """
    name = given_flags.get("recipe")
    if name is not None:
        if not (rtd or RECIPES[name].trains_mlm):
            others = ", ".join(other for other, recipe in RECIPES.items() if recipe.trains_mlm)
            raise ValueError(
                f"--recipe must be one of {others}, got {name}, which is only for run_rtd.py (replaced token detection)"
            )
        settings = recipe_arguments(RECIPES[name], given_flags, processes=processes, device=device)
        if not rtd:
            for flag in RTD_FLAGS:
                settings.pop(flag, None)
        return settings, recipe_table(name, settings, given_flags, processes)
    if given_flags.get("model") is not None:
        return {}, None
    settings = dict(FROM_SCRATCH)
    sizes = HARDWARE_FLAGS[:2]
    if not {*sizes} & {*given_flags}:
        # At most 8 x 512 tokens per micro-batch.
        size = min(BATCH, max(1, CPU_MICRO_BATCH * 512 // max(1, given_flags.get("max_length", 512))))
        settings |= zip(sizes, (size, max(1, BATCH // size // processes)), strict=True)
    settings = {flag: value for flag, value in settings.items() if flag not in given_flags}
    if not settings:
        return {}, None
    text = ", ".join(f"{flag} {value}" for flag, value in settings.items())
    return settings, f"from scratch: {text} (change these values by flags or --recipe)"


def recipe_arguments(
    recipe: Recipe, given_flags: Mapping[str, Any] | None = None, *, processes: int = 1, device: torch.device | None = None
) -> dict[str, Any]:
    """Return the arguments that recipe and hardware determine, by name, except arguments that the user gave.

    per_device_train_batch_size x gradient_accumulation_steps x processes equals the recipe's batch. The default per-device
    size is the largest that divides each process's share of the batch and fits: on a CPU, at most 8 x 512 tokens;
    on an accelerator, as many examples as are estimated to fit in memory. To train with another batch, give both
    per_device_train_batch_size and gradient_accumulation_steps.

    Args:
        given_flags (`dict`, *optional*): arguments that the user gave, by name.
        processes (`int`, default 1): number of training processes.
        device (`torch.device`, *optional*): device of each process; None = the accelerator if there is one, else the CPU.
    Raises:
        ValueError: if the recipe's batch is not a multiple of the given sizes.
    """
    given_flags = dict(given_flags or {})
    device = training_device(device)
    arguments = {name: getattr(recipe, name) for name in FLAGS if getattr(recipe, name) is not None}
    if OWN_OPTIMIZER & {*given_flags}:
        del arguments["published_optimizer"]
    if given_flags.get("published_optimizer"):
        arguments.pop("lr_scheduler_type", None)
    if "model" in arguments | given_flags:
        # The checkpoint defines the size.
        del arguments["preset"]
    if {"model", "preset"} & {*given_flags}:
        arguments.pop("config_overrides", None)
    if "num_train_epochs" in given_flags:
        # Otherwise max_steps overrides the epochs.
        arguments.pop("max_steps", None)
    if "max_steps" in given_flags:
        arguments.pop("num_train_epochs", None)
    if {"max_steps", "num_train_epochs"} & {*given_flags} and recipe.max_steps is not None:
        # Use the recipe's share of the steps; otherwise a short run would end during warm-up.
        arguments["warmup_steps"] = recipe.warmup_steps / recipe.max_steps
    if recipe.half_precision:
        arguments |= half_precision(device, given_flags)
    fitting = CPU_MICRO_BATCH * 512 // recipe.max_length
    if device.type != "cpu":
        fitting = fitting_examples(recipe, device_memory(device))
    arguments |= micro_batches(recipe.batch, given_flags, processes, fitting)
    return {name: value for name, value in arguments.items() if name not in given_flags}


def device_memory(device: torch.device) -> int:
    """Return the memory of the accelerator in bytes; 0 if torch does not report it."""
    module = getattr(torch, device.type)
    if device.type == "mps":
        return module.recommended_max_memory()
    if not hasattr(module, "get_device_properties"):
        return 0
    return module.get_device_properties(device).total_memory


def fitting_examples(recipe: Recipe, memory: int) -> int:
    """Estimate how many examples of a micro-batch fit in `memory` bytes with attention that is not fused.

    A parameter takes 16 bytes (weight, gradient and Adam's moments in float32). For the backward pass, an example stores
    about 34 bytes per token, layer and hidden unit. It also stores four [N, N] matrices with 2 bytes per element for each
    layer and head, and two float32 copies of the generator's logits for 15 % of the tokens.
    """
    config = DebertaExtConfig.from_preset(recipe.preset, **overrides(recipe.config_overrides))
    N, d, layers = recipe.max_length, config.hidden_size, config.num_hidden_layers * 3 / 2
    parameters = layers * (4 * d * d + 2 * d * config.intermediate_size) + 2 * config.vocab_size * d
    example = layers * (34 * N * d + 4 * 2 * config.num_attention_heads * N * N) + 0.15 * N * config.vocab_size * 8
    return int((0.9 * memory - 16 * parameters) / example)


def recipe_table(name: str, arguments: Mapping[str, Any], given_flags: Mapping[str, Any], processes: int = 1) -> str:
    """Format a run's settings, one per line: those of the recipe, the hardware and the user's flags, and the batch size.

    Args:
        arguments (`dict`): result of `recipe_arguments`.
        given_flags (`dict`): flags of the user; flags that are not in the recipe are ignored.
    """
    recipe = RECIPES[name]
    published = {flag: getattr(recipe, flag) for flag in FLAGS}
    used = dict(arguments) | dict(given_flags)
    size, accumulation = used["per_device_train_batch_size"], used["gradient_accumulation_steps"]
    batch = size * accumulation * processes
    total = f"{batch:,}"
    if batch != recipe.batch:
        total += f", recipe: {recipe.batch:,}"
    lines = [
        f"recipe {name}: {recipe.description} ({recipe.source})",
        *settings_table(published, arguments, given_flags),
        f"  batch: {size} per device x {accumulation} accumulation steps x {processes} processes = {total}",
    ]
    return "\n".join(lines)

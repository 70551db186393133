# SPDX-License-Identifier: Apache-2.0
"""Test recipes: published numbers, exact batches, and overriding flags."""

import dataclasses

import pytest
import torch

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.pretraining import DataArguments, MaskingArguments, ModelArguments, PretrainingArguments, recipes
from hf_deberta_ext.pretraining.recipes import FLAGS, FROM_SCRATCH, RECIPES, RTD_FLAGS, chosen_settings, recipe_arguments
from hf_deberta_ext.training import batch_size as hardware

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SIZE, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"


@pytest.fixture
def accelerator(monkeypatch):
    """Return a function (gigabytes, bf16) that simulates an accelerator."""

    def use(gigabytes, bf16=True):
        monkeypatch.setattr(recipes, "device_memory", lambda device: gigabytes << 30)
        monkeypatch.setattr(hardware, "is_torch_bf16_gpu_available", lambda: bf16)

    return use


@pytest.mark.parametrize(
    "name, batch, max_steps, learning_rate, rtd_lambda, stepping, layers, width",
    [
        ("v3-study", 2048, 125_000, 5e-4, 50, "joint", 12, 768),
        ("official-xsmall", 64, 1_000_000, 3e-4, 10, "decoupled", 12, 384),
        ("official-base", 256, 1_000_000, 1e-4, 10, "decoupled", 12, 768),
        ("official-large", 256, 1_000_000, 1e-4, 10, "decoupled", 24, 1024),
        ("official-xsmall-continue", 256, 100_000, 5e-5, 10, "decoupled", 12, 384),
        ("official-small-continue", 256, 100_000, 5e-5, 10, "decoupled", 6, 768),
    ],
)
def test_recipes_have_the_published_settings(name, batch, max_steps, learning_rate, rtd_lambda, stepping, layers, width):
    recipe = RECIPES[name]
    assert (recipe.batch, recipe.max_steps, recipe.learning_rate) == (batch, max_steps, learning_rate)
    assert (recipe.rtd_lambda, recipe.stepping, recipe.embedding_sharing) == (rtd_lambda, stepping, "gdes")
    assert (recipe.warmup_steps, recipe.max_length) == (10_000, 512)
    config = DebertaExtConfig.from_preset(recipe.preset)
    assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
    assert (recipe.model is not None) == name.endswith("-continue")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("processes", [1, 2, 8, 64])
@pytest.mark.parametrize("gigabytes", [None, 1, 16, 80], ids=["cpu", "tiny", "16 GiB", "80 GiB"])
def test_batch_is_the_published_one_on_any_hardware(name, processes, gigabytes, accelerator):
    accelerator(gigabytes or 0)
    arguments = recipe_arguments(RECIPES[name], processes=processes, device=CPU if gigabytes is None else CUDA)
    size = arguments[SIZE]
    assert size * arguments[ACCUMULATION] * processes == RECIPES[name].batch
    assert size & (size - 1) == 0


def test_memory_or_one_of_the_two_numbers_decides_the_other(accelerator):
    sizes, recipe = [], RECIPES["v3-study"]
    for gigabytes in (1, 16, 40, 80, 10_000):
        accelerator(gigabytes)
        sizes.append(recipe_arguments(recipe, device=CUDA)[SIZE])
    assert sizes[0] == 1 and sizes == sorted(sizes) and len({*sizes}) > 3 and sizes[-1] == 2048
    assert recipe_arguments(recipe, {SIZE: 32}, processes=8, device=CPU)[ACCUMULATION] == 8
    assert recipe_arguments(recipe, {ACCUMULATION: 16}, processes=8, device=CPU)[SIZE] == 16
    # Not a power of two, but the exact batch.
    assert recipe_arguments(RECIPES["official-base"], {SIZE: 256}, device=CPU)[ACCUMULATION] == 1
    both = recipe_arguments(recipe, {SIZE: 3, ACCUMULATION: 5}, processes=3, device=CPU)
    assert not {SIZE, ACCUMULATION} & {*both}


@pytest.mark.parametrize(
    "device, bf16, expected",
    [(CPU, True, {}), (CUDA, True, {"bf16": True}), (CUDA, False, {"fp16": True}), (torch.device("mps"), False, {})],
)
def test_half_precision_is_what_the_hardware_has(device, bf16, expected, accelerator):
    accelerator(16, bf16)
    arguments = recipe_arguments(RECIPES["v3-study"], device=device)
    assert {name: arguments[name] for name in ("bf16", "fp16") if name in arguments} == expected
    given = recipe_arguments(RECIPES["v3-study"], {"fp16": False}, device=device)
    assert not {"bf16", "fp16"} & {*given}


@pytest.mark.parametrize("rtd", [False, True])
def test_a_recipe_for_both_objectives_sets_what_the_script_knows(rtd):
    settings, text = chosen_settings({"recipe": "small-cpu"}, device=CPU, rtd=rtd)
    assert {*RTD_FLAGS} <= {*settings} if rtd else not {*RTD_FLAGS} & {*settings}
    assert (settings["masking_rate"], settings["final_masking_rate"], settings["learning_rate"]) == (0.3, 0.15, 1e-3)
    assert settings[SIZE] * settings[ACCUMULATION] == 64 and settings["warmup_steps"] == 0.02 and "small-cpu" in text
    for flag, gone in (
        ({"preset": "v3-small"}, {"preset", "config_overrides"}), ({"model": "mine"}, {"preset", "config_overrides"}),
        ({"max_steps": 9}, {"num_train_epochs"}), ({"published_optimizer": True}, {"lr_scheduler_type"}),
    ):  # fmt: skip
        others, _ = chosen_settings({"recipe": "small-cpu", **flag}, device=CPU, rtd=rtd)
        assert {*settings} - {*others} == gone | ({*flag} & {*settings})


def test_a_recipe_of_replaced_tokens_is_refused_for_masked_language_modelling():
    with pytest.raises(ValueError, match=r"--recipe must be one of small-cpu, got v3-study, which is only for run_rtd.py"):
        chosen_settings({"recipe": "v3-study"}, rtd=False)


@pytest.mark.parametrize(
    ("processes", "length", "split"), [(1, 512, (8, 8)), (1, 128, (32, 2)), (3, 64, (64, 1)), (4, 512, (8, 2))]
)
def test_a_model_from_scratch_is_not_trained_with_settings_of_fine_tuning(processes, length, split):
    settings, text = chosen_settings({"max_length": length}, processes, rtd=False)
    assert settings["learning_rate"] == 5e-4 and 0 < settings["warmup_steps"] < 1 and settings["weight_decay"] > 0
    assert (settings[SIZE], settings[ACCUMULATION]) == split
    assert text.startswith("from scratch: learning_rate 0.0005, warmup_steps 0.05, ")
    given = {"learning_rate": 1e-4, SIZE: 4}
    others, text = chosen_settings(given, processes, rtd=True)
    assert {*settings} - {*others} == {*given, ACCUMULATION} and "learning_rate" not in text
    assert chosen_settings({"model": "mine"}, rtd=False) == ({}, None) == chosen_settings(settings, rtd=True)


def test_fields_of_a_recipe_are_arguments_of_the_training(tmp_path):
    """Check all names: an unknown one would be printed, but have no effect."""
    groups = (PretrainingArguments, ModelArguments, DataArguments, MaskingArguments)
    known = {field.name for group in groups for field in dataclasses.fields(group)}
    assert {*FLAGS} - {*RTD_FLAGS} | {*FROM_SCRATCH} <= known


@pytest.mark.parametrize(
    "given, processes, message",
    [
        ({SIZE: 48}, 1, "batch of 2048 must be divisible by --per_device_train_batch_size 48 x 1 processes"),
        ({ACCUMULATION: 3}, 1, "must be divisible by --gradient_accumulation_steps 3 x 1 processes"),
        ({}, 3, "batch of 2048 must be divisible by 3 processes"),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(given, processes, message):
    with pytest.raises(ValueError, match=message):
        recipe_arguments(RECIPES["v3-study"], given, processes=processes, device=CPU)

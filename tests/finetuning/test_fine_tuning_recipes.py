# SPDX-License-Identifier: Apache-2.0
"""Published fine-tuning settings: values, split of the batch, and warnings of settings that do not converge."""

import pytest
import torch
from transformers import BertConfig, DebertaV2Config, DistilBertConfig, GPT2Config

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.finetuning.arguments import DataArguments, FineTuningArguments, ModelArguments
from hf_deberta_ext.finetuning.loop import set_recipe_fields
from hf_deberta_ext.finetuning.models import set_classifier_dropout
from hf_deberta_ext.finetuning.recipes import RECIPES, FineTuningRecipe, divergence_warnings, find_recipe, recipe_arguments


def test_recipes_are_those_of_the_scripts_and_tasks_of_other_names_take_those_of_their_kind():
    half = dict(half_precision=True)
    assert RECIPES["v3-large"]["sst2"] == FineTuningRecipe(8, 500, 6e-6, 32, 0.1, 128, **half)
    assert RECIPES["base"]["cola"] == FineTuningRecipe(6, 100, 2e-5, 32, 0.15, 64)
    assert RECIPES["xlarge"]["stsb"] == FineTuningRecipe(4, 100, 7e-6, 32, 0.2, 128, from_mnli=True, **half)
    assert RECIPES["v2-xxlarge"]["ner"] == FineTuningRecipe(15, 0.1, 2.5e-6, 16, 0.0, 512, **half)
    assert RECIPES["v3-small-sift"]["mnli"] == FineTuningRecipe(6, 1000, 3.5e-5, 64, 0.1, 256, sift_weight=5.0)
    assert [len(recipes) for recipes in RECIPES.values()] == [12] * 5 + [10] + [1] * 8
    assert find_recipe("v3-large", "conll2003") == RECIPES["v3-large"]["ner"]
    assert find_recipe("base", "xnli") == find_recipe("base", "MNLI") == RECIPES["base"]["mnli"]


@pytest.mark.parametrize("name, model", [("large", "deberta-large"), ("large", "deberta-large-mnli"), ("v3-large", "base")])
def test_another_model_than_one_of_mnli_is_warned_of(name, model, caplog):
    set_recipe_fields(name, DebertaExtConfig(), DataArguments(task_name="rte"), ModelArguments(model_name_or_path=model))
    assert ("expects a model that was first fine-tuned on MNLI" in caplog.text) == (model == "deberta-large")


@pytest.mark.parametrize("size", RECIPES)
@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_the_batch_is_the_published_one_however_it_is_cut(size, processes):
    for task, recipe in RECIPES[size].items():
        for given in ({}, {"per_device_train_batch_size": 1}, {"gradient_accumulation_steps": 2}):
            if recipe.batch // processes % 2:
                continue
            used = recipe_arguments(size, task, given, processes=processes, device=torch.device("cpu")) | given
            cut = used["per_device_train_batch_size"] * used["gradient_accumulation_steps"] * processes
            assert cut == recipe.batch


@pytest.mark.parametrize(
    ("size", "task", "message"),
    [
        ("huge", "sst2", "--recipe must be one of base, large, .*, got 'huge'"),
        ("base", None, "needs --task_name, one of mnli, cola"),
        ("v3-large", "race", r"v3-large has no settings for race, .*recipes for race: base, large"),
        ("v3-small", "poetry", r"v3-small has no settings for poetry, only for mnli; recipes for poetry: none$"),
    ],
)
def test_unknown_sizes_and_tasks_list_what_there_is(size, task, message):
    with pytest.raises(ValueError, match=message):
        find_recipe(size, task)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (DebertaV2Config(), "cls_dropout"),
        (BertConfig(), "classifier_dropout"),
        (DistilBertConfig(), "seq_classif_dropout"),
        (GPT2Config(), None),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_dropout_before_the_classifier_has_its_name_in_each_family_or_none(config, field):
    before = config.to_dict()
    assert set_classifier_dropout(config, 0.37, ()) == (field is not None)
    assert config.to_dict() == before | ({field: 0.37} if field else {})
    before = config.to_dict()
    set_classifier_dropout(config, 0.5, {field})
    assert config.to_dict() == before


def training(tmp_path, **more):
    return FineTuningArguments(output_dir=str(tmp_path), do_train=True, **more)


@pytest.mark.parametrize(
    ("layers", "rate", "lora", "message"),
    [
        (24, 5e-5, False, "5e-05 often does not converge with 24 layers"),
        (24, 3e-5, False, None),
        # A recipe's learning rate is for full fine-tuning and too low for adapters.
        (24, 1e-5, True, "--learning_rate 1e-05 is too low for --lora"),
        (24, 2e-4, True, None),
    ],
)
def test_learning_rates_that_do_not_fit_a_model_are_warned_of(layers, rate, lora, message, tmp_path):
    config = BertConfig(num_hidden_layers=layers)
    warnings = divergence_warnings(config, training(tmp_path, learning_rate=rate), lora=lora)
    assert [message in warning for warning in warnings] == [True] * (message is not None)


def test_half_precision_with_mdeberta_is_warned_of(tmp_path):
    args = training(tmp_path)
    # Only set as an attribute, because a machine without an accelerator refuses the flag.
    args.fp16 = True
    multilingual, other = (DebertaV2Config(vocab_size=size, num_hidden_layers=12) for size in (251000, 128100))
    assert "mDeBERTa" in divergence_warnings(multilingual, args)[0]
    assert "mDeBERTa" in divergence_warnings(other, args, "microsoft/mdeberta-v3-base")[0]
    assert divergence_warnings(other, args) == []
    assert divergence_warnings(multilingual, training(tmp_path)) == []

# SPDX-License-Identifier: Apache-2.0
"""Every flag of every training script changes the weights, is rejected before the run starts, or is listed as having no
effect.

The tables name all flags, including transformers' TrainingArguments: a flag that a new version adds fails a test until it
is in one of the tables.
"""

import dataclasses
import importlib.util
import re

import pytest
from flag_runs import FINE_TUNING, PRETRAINING, SIZES, FlagRuns, groups_of
from transformers import TrainingArguments

from hf_deberta_ext.training.arguments import RunArguments

OTHER = "the folder of another model"
# Flags that change the weights -> a value that the runs of `FlagRuns` do not have. Trainer's flags come first.
TRAINER = dict(
    per_device_train_batch_size=2, num_train_epochs=2, max_steps=2, learning_rate=1e-3, lr_scheduler_type="constant",
    lr_scheduler_kwargs='{"num_cycles": 2}', warmup_steps=2, optim="adafactor", optim_args="momentum=0.9", weight_decay=0.5,
    adam_beta1=0.5, adam_beta2=0.5, adam_epsilon=1e-3, optim_target_modules="all-linear", gradient_accumulation_steps=2,
    average_tokens_across_devices="false", max_grad_norm=1e-4, label_smoothing_factor=0.1, bf16="true", fp16="true",
    neftune_noise_alpha=5, load_best_model_at_end="true", seed=1, data_seed=1, dataloader_drop_last="true", label_names="x",
    train_sampling_strategy="group_by_length", length_column_name="x",
    accelerator_config='{"gradient_accumulation_kwargs": {"num_steps": 2}}',
)  # fmt: skip
EVALUATED = dict(eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end="true")
# (name, value, flags with which it has an effect, or loses it)
TRAINER_BESIDE = [
    ("lr_scheduler_kwargs", '{"num_cycles": 2}', dict(lr_scheduler_type="cosine_with_restarts")),
    ("lr_scheduler_kwargs", '{"num_cycles": 2}', dict(lr_scheduler_type="constant")),
    ("warmup_steps", 2, dict(lr_scheduler_type="constant")),
    ("warmup_steps", 2, dict(published_optimizer="true")),
    ("adam_beta1", 0.5, dict(optim="adafactor")),
    ("adam_beta2", 0.5, dict(published_optimizer="true")),
    ("adam_epsilon", 1e-3, dict(optim="sgd")),
    ("optim_args", "momentum=0.9", dict(optim="sgd")),
    ("data_seed", 1, dict(train_sampling_strategy="group_by_length")),
    ("data_seed", 1, dict(train_sampling_strategy="sequential")),
    ("length_column_name", "x", dict(train_sampling_strategy="group_by_length")),
]
EVALUATED_BESIDE = [("greater_is_better", "true", EVALUATED | dict(metric_for_best_model="loss"))]
OWN_FINE_TUNING = dict(
    model_type="stock", from_scratch="true", config_name=OTHER, config_overrides="hidden_dropout_prob=0.3",
    tokenizer_name=OTHER, dtype="bfloat16", lora="true", lora_r=4, lora_alpha=32, lora_dropout=0.5,
    lora_target_modules="query_proj", max_seq_length=8, max_train_samples=5, published_optimizer="true", sift_weight=1,
    sift_preset="official", sift_learning_rate=0.5, sift_init_size=0.1, sift_steps=2, sift_radius=1e-3, sift_norm="linf",
    sift_projection="clamp", sift_loss="mse", sift_form="adversarial", sift_same_dropout="false",
    sift_detach_embeddings="true", sift_gradient_eps=1.0, sift_start_step=1, problem_type="regression",
    label_all_tokens="true", class_weights="balanced", balanced_sampling="true",
)  # fmt: skip
# With dropout; the passes of a step may share its masks.
SIFT = dict(sift_weight=1, config_overrides="hidden_dropout_prob=0.3")
OWN_FINE_TUNING_BESIDE = [
    *((name, value, dict(lora="true")) for name, value in OWN_FINE_TUNING.items() if name.startswith("lora_")),
    *((name, value, SIFT) for name, value in OWN_FINE_TUNING.items() if name.startswith("sift_") and name not in SIFT),
    ("sift_radius", 1e-3, dict(sift_weight=1, sift_projection="none")),
    ("sift_loss", "mse", dict(sift_weight=1, sift_form="adversarial")),
    ("doc_stride", 2, dict(max_seq_length=12)),
    ("long_sentences", "refuse", dict(max_seq_length=6)),
]
OWN_PRETRAINING = dict(
    preset="base", config_overrides=f"{SIZES}0.3", published_optimizer="true", train_tokenizer="byte-level-bpe",
    vocab_size=280, byte_fallback="true", lowercase="true", documents="line", packing="best_fit", max_length=16,
    min_tokens=20, max_train_samples=5, shuffle_buffer=2, validation_documents=9, masking="ngram", masking_rate=0.3,
    final_masking_rate=0.05, max_ngram=2, span_p=0.6, max_span=2, mask_share=0.5,
    masking_policy="official", mlm_weight=0.5, sop_weight=0.5, nsp_weight=0.5, sbo_weight=0.5,
    z_loss=0.1, embedding_sharing="nes", rtd_lambda=10, temperature=0.3, generator_layers=2,
    generator_overrides="hidden_size=16", generator_model=OTHER, loss_without_special_tokens="true", stepping="decoupled",
    discriminator_learning_rate=1e-3, discriminator_warmup_steps=2, discriminator_lr_scheduler_type="constant",
    discriminator_max_grad_norm=0.01,
)  # fmt: skip
NEW_TOKENIZER = dict(tokenizer=None, train_tokenizer="unigram", vocab_size=300)
FURTHER = dict(model=OTHER, tokenizer=None, preset=None, config_overrides=None)
OWN_PRETRAINING_BESIDE = [
    ("tokenizer", OTHER, {}),
    ("tokenizer", OTHER, dict(train_tokenizer="byte-level-bpe")),
    ("vocab_size", 280, dict(tokenizer=None, train_tokenizer="byte-level-bpe")),
    ("byte_fallback", "true", NEW_TOKENIZER),
    ("lowercase", "true", NEW_TOKENIZER),
    ("random_share", 1.0, dict(mask_share=0.0)),
    ("masking_policy", "official", dict(masking="ngram")),
    ("masking_duplicates", 1, dict(num_train_epochs=2)),
    ("max_ngram", 2, dict(masking="ngram", masking_rate=0.3)),
    ("span_p", 0.6, dict(masking="span", masking_rate=0.3)),
    ("max_span", 2, dict(masking="span", masking_rate=0.3)),
    ("preset", "base", FURTHER),
    ("config_overrides", "hidden_dropout_prob=0.1", FURTHER),
    ("generator_model", OTHER, FURTHER),
    ("discriminator_warmup_steps", 2, dict(lr_scheduler_type="constant")),
    ("warmup_steps", 2, dict(lr_scheduler_type="constant", discriminator_lr_scheduler_type="linear")),
]
# Patterns of flags that are not tried: they choose models, data, columns and the script's actions; log, evaluate, save,
# push; change memory and speed, the machine and the processes; or only allow what is otherwise an error.
NOT_TRIED = """
    model model_name_or_path task_name .*_name data_config train_data train_file train_split text_columns? .*_columns?
    delimiter encoding on_empty on_duplicates split_seed
    language train_language eval_languages validation_.* test_file do_.* (overwrite_)?output_dir seeds recipe streaming
    allow_changed_args resume_.* ignore_data_skip restore_callback.* ignore_mismatched_sizes
    trust_remote_code version_2_with_negative
    sift_layer_norm log(ging)?_.* disable_tqdm report_to project trackio_.* include_.* debug skip_memory_metrics eval_.*
    predictions?_.* per_device_eval_batch_size batch_eval_metrics .*_full_eval max_(eval|predict)_samples n_best_size
    max_answer_length null_score_diff_threshold return_entity_level_metrics metric_for_best_model save_.*
    warmup_ratio enable_jit_checkpoint push_to_hub hub_.* token cache_dir license card_language .*revision use_cpu tf32
    .*_checkpointing(_kwargs)? torch_compile.* .*liger_kernel.* torch_empty_cache_steps auto_find_batch_size full_determinism
    attn_implementation .*num_workers num_proc pad_to_.* max_file_bytes parallelism_config ddp_.* fsdp.* deepspeed local_rank
    dataloader_.* use_cache remove_unused_columns train_longer
""".split()
ENTRIES = {
    "Trainer": [*((name, value, {}) for name, value in TRAINER.items()), *TRAINER_BESIDE],
    "fine-tuning": [*((name, value, {}) for name, value in OWN_FINE_TUNING.items()), *OWN_FINE_TUNING_BESIDE],
    "pre-training": [*((name, value, {}) for name, value in OWN_PRETRAINING.items()), *OWN_PRETRAINING_BESIDE],
}
KINDS = [*FINE_TUNING, *PRETRAINING]
ONE_LABEL = "glue, one label"
# Flags that are tried only with the common flags of a run on one label.
REFUSED = """lr_scheduler_kwargs optim_args optim_target_modules average_tokens_across_devices fp16 load_best_model_at_end
    length_column_name label_names""".split()
# A stream needs --max_steps, which replaces epochs, as in Trainer; the other flags have this value already.
WITHOUT = {("mlm, streaming", "num_train_epochs"), ("glue, regression", "problem_type"), ("rtd, decoupled", "stepping")}
SMOOTHED = {ONE_LABEL, "superglue, copa", "race, 4 choices", "ner"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return FlagRuns(tmp_path_factory.mktemp("runs"))


def effect(runs, kind, name, value, others):
    """Return `FlagRuns.effect`; an error line must name the flag, or one of the others."""
    value = {OTHER: runs.other}.get(value, value)
    others = {other: {OTHER: runs.other}.get(given, given) for other, given in others.items()}
    found = runs.effect(kind, name, value, others)
    if found.startswith("refused"):
        assert any(word in found for word in (name.removesuffix("_weight"), str(value), *others)), found
    return found


def flags_of_kind(kind):
    return {field.name for group in groups_of(kind) for field in dataclasses.fields(group) if field.init}


def test_every_flag_is_in_one_table():
    tried = {name for entries in (*ENTRIES.values(), EVALUATED_BESIDE) for name, *_ in entries}
    known = {field.name for field in dataclasses.fields(TrainingArguments)}.union(*map(flags_of_kind, KINDS))
    unnamed = {name for name in known - tried if not re.fullmatch("|".join(NOT_TRIED), name)}
    assert not unnamed, "new flags: add them to TRAINER to try them, or to NOT_TRIED"


@pytest.mark.parametrize(
    ("name", "value", "others"), ENTRIES["Trainer"], ids=lambda value: " ".join(value) if isinstance(value, dict) else None
)
def test_flags_of_trainer_shape_the_weights_or_are_refused(name, value, others, runs):
    found = effect(runs, ONE_LABEL, name, value, others)
    assert found != "ignored"
    if not others:
        assert found.startswith("refused") == (name in REFUSED), found


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_smoothed_or_a_line_refuses_it(kind, runs):
    """Previously, run_squad.py trained without smoothing, and a multi-label run warned only in its log."""
    found = effect(runs, kind, "label_smoothing_factor", 0.1, {})
    expected = "acts" if kind in SMOOTHED else "refused: "
    assert found.startswith(expected)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_an_optimizer_without_its_package_is_refused_before_anything_begins(tmp_path):
    """Previously, Trainer's own error came only after the first output of the run."""
    RunArguments(str(tmp_path), optim="sgd", use_cpu=True)
    with pytest.raises((ImportError, ValueError), match="bitsandbytes"):
        RunArguments(str(tmp_path), optim="adamw_bnb_8bit", use_cpu=True)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_trains_and_evaluates_on_a_gpu(kind, runs):
    """Previously, pre-training counted the targets of a batch on a GPU into a tensor on the CPU."""
    weights = runs.run(kind, use_cpu="false", bf16="true", do_eval="true", eval_strategy="steps", eval_steps=2)
    assert all(weight.isfinite().all() for weight in weights.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_flag_of_any_script_is_ignored(kind, runs):
    flags, failed = flags_of_kind(kind), {}
    own = "fine-tuning" if kind in FINE_TUNING else "pre-training"
    for name, value, others in (*ENTRIES["Trainer"], *EVALUATED_BESIDE, *ENTRIES[own]):
        if {name, *others} <= flags and (kind, name) not in WITHOUT:
            try:
                found = effect(runs, kind, name, value, others)
            except AssertionError as error:
                found = f"ignored: {error}"
            if found.startswith("ignored"):
                failed[f"{name} {value} {others}"] = found
    assert not failed

# SPDX-License-Identifier: Apache-2.0
"""Load configuration, tokenizer and model for fine-tuning, from any folder or Hub id that transformers can read."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..checkpoints.adapters import PEFT_TASKS, module_to_save
from ..checkpoints.files import ADAPTER_CONFIG_FILE, check_source, is_adapter_folder, read_json
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..tokenization import check_tokenizer, check_vocabulary, load_tokenizer
from ..training.checkpoints import readable_weights
from ..training.flags import overrides
from ..training.model_sources import announce_official, named_tokenizer
from .arguments import ModelArguments

__all__ = ["add_adapters", "load_config", "load_model", "load_tokenizer_for", "set_classifier_dropout", "set_fields"]

logger = logging.get_logger(__name__)

# Model types that use this package's tokenizers, because only its tokenizers produce the tokens of the published code.
DEBERTA = ("deberta", "deberta-v2", "deberta-ext")
# Names of the layers that get adapters: the first row whose names are all in the model (query and value, or a joint layer).
ADAPTED = (
    ("query_proj", "value_proj"),
    ("in_proj",),
    ("query", "value"),
    ("q_lin", "v_lin"),
    ("q_proj", "v_proj"),
    ("Wqkv",),
)
DROPOUT_FIELDS = ("cls_dropout", "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")


def load_config(model_args: ModelArguments) -> PretrainedConfig:
    """Load the configuration and set the fields of --config_overrides; official DeBERTa models get a `DebertaExtConfig`."""
    source, flag = model_args.model_name_or_path, "--model_name_or_path"
    if model_args.config_name:
        source, flag = model_args.config_name, "--config_name"
    check_source(source, f"{flag}: ")
    fields = overrides(model_args.config_overrides)
    arguments = model_args.model_download() | fields
    try:
        if is_read_as_ours(source, model_args):
            config = DebertaExtConfig.from_pretrained(source, **arguments)
        else:
            config = AutoConfig.from_pretrained(source, trust_remote_code=model_args.trust_remote_code, **arguments)
    except StrictDataclassError as error:
        raise ValueError(f"the configuration of {source} or --config_overrides has an invalid value: {error}") from error
    if model_args.model_type == "stock" and config.model_type == DebertaExtConfig.model_type:
        raise ValueError(
            f"--model_type stock needs a checkpoint of transformers, got {source} with model_type deberta-ext: remove "
            "--model_type, or convert the checkpoint with deberta-ext convert --to deberta-v2"
        )
    if "/" in str(attention := getattr(config, "_attn_implementation", None)):
        raise ValueError(
            f"the configuration of {source} has attn_implementation = {attention!r}, for which transformers would run code "
            "from the Hub: remove this field; if you trust the code, pass the value as --attn_implementation instead"
        )
    for name in fields:
        if name in DROPOUT_FIELDS:
            # Heads also read this field if the configuration class does not declare it.
            setattr(config, name, fields[name])
        if not hasattr(config, name):
            declared = ", ".join(sorted(config.to_dict()))
            raise ValueError(f"--config_overrides: {type(config).__name__} has no field {name!r}, only {declared}")
    return config


def is_read_as_ours(source: str, model_args: ModelArguments) -> bool:
    """Return whether to use this package's model class, as set by --model_type or, by default, by the checkpoint."""
    if model_args.model_type is not None:
        return model_args.model_type == DebertaExtConfig.model_type
    if is_adapter_folder(model_args.model_name_or_path):
        # An adapter's weights are named after the modules of the model class that it was trained with.
        return False
    return announce_official(
        source,
        hint="; --model_type stock uses transformers' class",
        trust_remote_code=model_args.trust_remote_code,
        **model_args.model_download(),
    )


def set_fields(config: PretrainedConfig, fields: Mapping[str, Any]):
    """Set the fields of a task in the configuration: num_labels, id2label, label2id, problem_type."""
    # Setting num_labels may reset the names of the labels, so it is set first.
    for name in sorted(fields, key=lambda name: name != "num_labels"):
        setattr(config, name, fields[name])


def set_classifier_dropout(config: PretrainedConfig, dropout: float, overridden: Collection[str]) -> bool:
    """Set the classifier's dropout, unless its field is in `overridden`; return False if the config has no such field."""
    if {*DROPOUT_FIELDS} & {*overridden}:
        return True
    names = [name for name in DROPOUT_FIELDS if hasattr(config, name)]
    if config.model_type in DEBERTA:
        names = ["cls_dropout"]
    for name in names[:1]:
        setattr(config, name, dropout)
    return bool(names)


def load_tokenizer_for(config: PretrainedConfig, model_args: ModelArguments) -> PreTrainedTokenizerBase:
    """Load the tokenizer, and check that it fits the model; for DeBERTa models, use this package's tokenizers."""
    source, flag, arguments = model_args.model_name_or_path, "--model_name_or_path", model_args.model_download()
    if model_args.tokenizer_name is not None:
        source, flag, arguments = model_args.tokenizer_name, "--tokenizer_name", model_args.download()

    def load_any() -> PreTrainedTokenizerBase:
        try:
            return AutoTokenizer.from_pretrained(source, trust_remote_code=model_args.trust_remote_code, **arguments)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"cannot load the tokenizer of {source} ({reason}): give --tokenizer_name") from error

    with named_tokenizer(source, flag):
        if config.model_type not in DEBERTA:
            tokenizer = load_any()
        else:
            try:
                tokenizer = load_tokenizer(source, **arguments)
            except OSError as error:
                try:
                    # DeBERTa models with the vocabulary of another family, such as vocab.txt.
                    tokenizer = load_any()
                    check_vocabulary(tokenizer)
                except ValueError:
                    raise error from None
    if config.model_type in DEBERTA:
        check_tokenizer(tokenizer, config)
        return tokenizer
    ids = tokenizer("hello")["input_ids"]
    if tokenizer.cls_token_id is not None and tokenizer.cls_token_id not in ids:
        raise ValueError(
            f"the tokenizer of {source} must add {tokenizer.cls_token} to a text such as 'hello', got "
            f"{tokenizer.convert_ids_to_tokens(ids)}: the tokenizer's files define no post-processor that adds special "
            "tokens; give another tokenizer with --tokenizer_name"
        )
    check_vocabulary(tokenizer, config.get_text_config(), source=source)
    return tokenizer


def load_model(
    model_args: ModelArguments,
    config: PretrainedConfig,
    auto_class: Any,
    *,
    is_trained: bool = True,
) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint with a head for the task; return the model and the names of its new (random) weights.

    The parameters are converted to --dtype. An adapter (LoRA) is loaded with its base model.

    Args:
        is_trained (`bool`, defaults to `True`): whether the model will be trained; if not, new random weights are an error.
    Raises:
        ValueError: if the model type has no class for the task; weights of the encoder are missing; the head is for another
            number of labels; or the weights are corrupt or do not fit the configuration.
        OSError: if the checkpoint does not exist.
    """
    arguments = dict(dtype=getattr(torch, model_args.dtype), trust_remote_code=model_args.trust_remote_code)
    if model_args.attn_implementation is not None:
        arguments["attn_implementation"] = model_args.attn_implementation
    if model_args.from_scratch:
        return auto_class.from_config(config, **arguments), []
    source = model_args.model_name_or_path
    adapter = source if is_adapter_folder(source) else None
    if adapter:
        source = read_json(Path(adapter, ADAPTER_CONFIG_FILE))["base_model_name_or_path"]
    verbosity = logging.get_verbosity()
    # New weights are reported below in one line.
    logging.set_verbosity_error()
    try:
        with readable_weights(source, model_args.config_overrides):
            model, info = auto_class.from_pretrained(
                source,
                config=config,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **arguments,
                **model_args.model_download(),
            )
    finally:
        logging.set_verbosity(verbosity)
    new_weights = check_loaded(model, info, source, new_head=model_args.ignore_mismatched_sizes or bool(adapter))
    if adapter:
        from peft import PeftModel

        with readable_weights(adapter, model_args.config_overrides):
            # The adapter contains the head.
            return PeftModel.from_pretrained(model, adapter, is_trainable=True), []
    if new_weights and not is_trained:
        raise ValueError(
            f"{source} has no matching weights for {', '.join(new_weights)}, so predictions would be random: give "
            "--do_train, or a model that was fine-tuned for this task"
        )
    if new_weights:
        logger.warning(f"newly initialised weights, to be trained: {', '.join(new_weights)}")
    return model, new_weights


def check_loaded(model: PreTrainedModel, info: Mapping[str, Any], source: str, *, new_head: bool) -> list[str]:
    """Check which weights `from_pretrained` loaded; return the names of new weights, which must be in the head or pooler.

    `info` is the loading info of `from_pretrained`. If `new_head` is False, a head of another shape raises a ValueError.
    """
    body = f"{model.base_model_prefix}."
    changed = {name for name, _, _ in info["mismatched_keys"]}
    for name, stored, built in sorted(info["mismatched_keys"]):
        shapes = f"{name} of {source} must have shape {list(built)}, got {list(stored)}"
        if name.startswith(body):
            raise ValueError(f"{shapes}: the configuration does not fit the weights; check --config_overrides")
        if not new_head:
            raise ValueError(
                f"{shapes}: this head has {stored[0]} outputs, the task needs {built[0]}. Give --ignore_mismatched_sizes "
                "to create a new head, or a checkpoint without a head"
            )
    missing = {*info["missing_keys"]}
    lost = sorted(name for name in missing if name.startswith(body) and "pooler" not in name)
    if lost:
        raise ValueError(
            f"{source} lacks {len(lost)} weights of its encoder, such as {lost[0]}: give a complete checkpoint, or "
            "--from_scratch for random weights"
        )
    return sorted(missing | changed)


def add_adapters(model: PreTrainedModel, new_weights: Sequence[str], model_args: ModelArguments, pipeline: str) -> nn.Module:
    """Add low-rank adapters (LoRA) to a model, to train them together with the head and all other new weights."""
    from peft import LoraConfig, get_peft_model

    linear = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    targets = model_args.lora_target_modules or next((names for names in ADAPTED if {*names} <= linear), ())
    if not targets or not {*targets} <= linear:
        layers = ", ".join(sorted(linear))
        raise ValueError(f"--lora_target_modules must be linear layers of this model ({layers}), got {[*targets]}")
    body, head = f"{model.base_model_prefix}.", set()
    for name, _ in model.named_parameters():
        # New weights can also be in the encoder, such as BERT's pooler if the checkpoint is a masked language model.
        if not name.startswith(body):
            head.add(name.split(".")[0])
        elif name in new_weights:
            head.add(body + name.split(".")[1])
    config = LoraConfig(
        task_type=PEFT_TASKS.get(pipeline),
        r=model_args.lora_r,
        lora_alpha=model_args.lora_alpha,
        lora_dropout=model_args.lora_dropout,
        target_modules=list(targets),
        modules_to_save=sorted(module_to_save(model, name) for name in head),
    )
    return get_peft_model(model, config)

# SPDX-License-Identifier: Apache-2.0
"""Flags of all pre-training scripts, and checks of these flags before any long computation."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import TrainingArguments

from ..checkpoints.files import check_source
from ..data.languages import check_languages
from ..files import as_list
from ..model.attention_deberta_ext import BACKENDS
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..training.flags import option, overrides
from ..training.hub_arguments import HubArguments
from ..training.model_sources import announce_official
from .corpus_arguments import ELSEWHERE, CorpusArguments, TokenizerArguments, check_corpus, tokenizer_options
from .masking import POLICIES, UNITS, MaskingOptions
from .packing import PAIR_MODES
from .prepared_corpus import is_prepared, read_manifest, tokenizer_folder
from .recipes import RECIPES

__all__ = [
    "ELSEWHERE",
    "DataArguments",
    "MaskingArguments",
    "ModelArguments",
    "check_arguments",
    "model_config",
    "prepared_settings",
]


@dataclass
class ModelArguments(TokenizerArguments, HubArguments):
    """Flags for the model, which is new or from a checkpoint, and for the tokenizer."""

    model: str | None = option(
        None,
        "checkpoint to continue from (folder or Hub id); default: a new model, see --preset",
        aliases=["--model_name_or_path"],
    )
    recipe: str | None = option(None, "name of predefined settings, which other flags override", choices=[*RECIPES])
    preset: str = option("v3-base", "preset of a new model (DebertaExtConfig.from_preset): base, v3-small, ...")
    config_overrides: str | None = option(
        None, "configuration fields to replace, such as num_hidden_layers=4,pos_att_type=c2p|p2c,emd_layers=1"
    )
    attn_implementation: str | None = option(
        None, f"attention backend: {', '.join(BACKENDS)}; default: the best one for each call"
    )
    license: str | None = option(None, "license of the model, for the model card, as named on the Hub: apache-2.0, mit, ...")

    needs: ClassVar = {
        "tokenizer": ("with --train_tokenizer", lambda args: args.train_tokenizer is None),
        "preset": ("with --model", lambda args: args.model is None),
        "vocab_size": ("without --train_tokenizer", lambda args: may_train_tokenizer(args)),
    }


def may_train_tokenizer(args: Any) -> bool:
    """Return True if a tokenizer is trained, or if no flag gives an existing tokenizer."""
    return args.train_tokenizer is not None or not (args.tokenizer or args.model or is_prepared(*args.train_data))


@dataclass
class DataArguments(CorpusArguments):
    """Flags for the text data, and for splitting the text into examples."""

    validation_data: list[str] = option(
        list, "held-out data, given like --train_data; default: a part of --train_data", aliases=["--validation_file"]
    )
    validation_split: str = option("validation", "split of the Hub data set with the held-out data")
    streaming: bool = option(False, "read, tokenise and pack in the workers during the training; needs --max_steps")
    shuffle_buffer: int = option(10_000, "buffer size, in examples, for shuffling with --streaming or prepared data")
    num_proc: int | None = option(None, "processes to tokenise and pack", aliases=["--preprocessing_num_workers"])
    max_train_samples: int | None = option(None, "maximum number of training examples, for tests")
    max_eval_samples: int | None = option(None, "maximum number of evaluation examples")
    card_language: str | None = option(None, "ISO code of the language of the training text, for the model card")

    needs: ClassVar = {
        "shuffle_buffer": (
            "without --streaming or prepared data",
            lambda args: args.streaming or is_prepared(*args.train_data),
        ),
    }


@dataclass
class MaskingArguments:
    """Flags for masking."""

    masking: str = option("word", "unit that is masked as a whole", choices=[*UNITS])
    masking_rate: float = option(0.15, "share of tokens to mask", aliases=["--mlm_probability"])
    final_masking_rate: float | None = option(
        None, "final masking rate; the rate falls linearly from --masking_rate, and evaluations use the final rate"
    )
    max_ngram: int = option(3, "maximum length of an n-gram, in words; P(n) is proportional to 1/n")
    span_p: float = option(0.2, "parameter of the span lengths n: P(n) is proportional to (1 - span_p)^n")
    max_span: int = option(10, "maximum length of a span, in words")
    mask_share: float = option(0.8, "share of the chosen tokens that become [MASK]")
    random_share: float = option(0.1, "share of the chosen tokens that become random tokens; the rest is unchanged")
    masking_policy: str = option(
        "uniform",
        "uniform: mask all positions equally often; official: like Microsoft's code, never mask the end of a full row",
        choices=[*POLICIES],
    )
    masking_duplicates: int | None = option(
        None, "number of different masks of an example, for static masking (RoBERTa: 10); default: new masks in each epoch"
    )

    needs: ClassVar = {
        "max_ngram": ("without --masking ngram", lambda args: args.masking == "ngram"),
        "span_p": ("without --masking span", lambda args: args.masking == "span"),
        "max_span": ("without --masking span", lambda args: args.masking == "span"),
    }


def check_arguments(data_args: DataArguments, model_args: ModelArguments, args: TrainingArguments):
    """Raise a ValueError for invalid flags or combinations of flags, before any long computation."""
    check_corpus(data_args)
    check_languages(as_list(data_args.card_language), "--card_language")
    tokenizer_options(model_args)
    if data_args.is_prepared:
        check_prepared(data_args, model_args, args)
    if (data_args.streaming or data_args.is_prepared) and args.train_sampling_strategy != "random":
        raise ValueError(
            f"--train_sampling_strategy {args.train_sampling_strategy} cannot be used with --streaming or prepared data, "
            "which define the order of the examples; remove --train_sampling_strategy, or use text without --streaming"
        )
    if data_args.streaming:
        if args.max_steps < 1:
            raise ValueError("--streaming needs --max_steps, because the number of examples in a stream is not known")
        if data_args.num_proc is not None:
            raise ValueError(
                "--num_proc only works for data that is packed before training; remove --num_proc or --streaming"
            )
        if args.accelerator_config.split_batches:
            raise ValueError("--accelerator_config split_batches and --streaming are mutually exclusive; remove one of them")
        # Each process reads the stream and selects its share, because rows of unequal length cannot be dispatched.
        args.accelerator_config.dispatch_batches = False
    nodes = args.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
    if nodes > 1 and model_args.train_tokenizer is not None:
        raise ValueError(
            f"--train_tokenizer needs one machine, got {nodes}; train the tokenizer on one machine, then pass --tokenizer"
        )


def prepared_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of --packing and --max_length with which --train_data was prepared, except for flags in `flags`."""
    sources = flags.get("train_data", ())
    if len(sources) != 1 or not is_prepared(*sources):
        return {}
    packing = read_manifest(sources[0])["packing"]
    settings = dict(packing=packing["mode"], max_length=packing["max_length"])
    return {name: value for name, value in settings.items() if name not in flags}


def check_prepared(data_args: DataArguments, model_args: ModelArguments, args: TrainingArguments):
    """Check that the flags fit a prepared corpus. If neither --model nor --tokenizer is set, use the corpus's tokenizer."""
    folder = data_args.train_data[0]
    if len(data_args.train_data) > 1:
        raise ValueError(
            f"--train_data must be one prepared folder, got {' '.join(data_args.train_data)}; prepare all data in one folder"
        )
    packing = read_manifest(folder)["packing"]
    wanted = dict(packing=data_args.packing, max_length=data_args.max_length)
    prepared = dict(packing=packing["mode"], max_length=packing["max_length"])
    if packing["mode"] in PAIR_MODES:
        wanted["sentence_pairs"] = "nsp" if getattr(args, "nsp_weight", 0) > 0 else "consecutive"
        prepared["sentence_pairs"] = packing["sentence_pairs"]
    if wanted != prepared:
        raise ValueError(
            f"{folder} was packed with {prepared}, got {wanted}; use the same values, or prepare another folder. Without "
            "--packing and --max_length, the run uses the values of the prepared folder"
        )
    of_text = dict(
        streaming=data_args.streaming,
        validation_documents=data_args.validation_documents,
        train_tokenizer=model_args.train_tokenizer,
    )
    if not data_args.validation_data:
        of_text["text_column"] = data_args.text_column != "text"
        of_text["language"] = data_args.language not in ("en", packing["language"])
    for name, is_given in of_text.items():
        if is_given:
            raise ValueError(f"--{name} only works for text, but {folder} is a prepared corpus; remove --{name}")
    if model_args.model is None and model_args.tokenizer is None:
        model_args.tokenizer = tokenizer_folder(folder)


def masking_options(arguments: MaskingArguments, max_length: int) -> MaskingOptions:
    """Return the masking options that the flags set."""
    return MaskingOptions(
        unit=arguments.masking,
        rate=arguments.masking_rate,
        max_ngram=arguments.max_ngram,
        span_p=arguments.span_p,
        max_span=arguments.max_span,
        mask_share=arguments.mask_share,
        random_share=arguments.random_share,
        policy=arguments.masking_policy,
        max_length=max_length,
        final_rate=arguments.final_masking_rate,
    )


def config_overrides(text: str | None, flag: str = "--config_overrides") -> dict[str, Any]:
    """Parse "a=1,b=x" as fields of the configuration (see `overrides`); raise a ValueError for unknown fields."""
    values = overrides(text, flag)
    fields = {field.name for field in dataclasses.fields(DebertaExtConfig)}
    for name in values:
        if name not in fields:
            raise ValueError(f"{flag} got an unknown field {name!r}, expected one of {', '.join(sorted(fields))}")
    return values


def model_config(model_args: ModelArguments, **fields) -> DebertaExtConfig:
    """Return the configuration of the model, before the vocabulary of a new tokenizer is known.

    Args:
        fields: fields that other flags set; `--config_overrides` has precedence.
    """
    changes = fields | config_overrides(model_args.config_overrides)
    if model_args.model is None:
        if model_args.tokenizer is None and model_args.train_tokenizer is None:
            raise ValueError("a new model needs a tokenizer; pass --tokenizer, or --train_tokenizer unigram")
        return DebertaExtConfig.from_preset(model_args.preset, **changes)
    if model_args.train_tokenizer is not None:
        raise ValueError(f"--model {model_args.model} needs its own tokenizer; remove --train_tokenizer")
    download = model_args.model_download()
    check_source(model_args.model, "--model: ")
    announce_official(model_args.model, **download)
    return DebertaExtConfig.from_pretrained(model_args.model, **changes, **download)


def check_length(config: DebertaExtConfig, max_length: int, model_args: ModelArguments):
    """Raise a ValueError if --max_length exceeds the model's absolute position table."""
    rows = config.max_position_embeddings
    if not config.has_absolute_positions or max_length <= rows:
        return
    hint = f"call model.extend_position_embeddings({max_length}), save the model, and train the saved model"
    if model_args.model is None:
        hint = f"pass --config_overrides max_position_embeddings={max_length}"
    raise ValueError(
        f"--max_length must be at most {rows}, the rows of the model's absolute position table, got {max_length}; lower "
        f"--max_length, or {hint}"
    )

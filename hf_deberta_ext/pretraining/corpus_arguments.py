# SPDX-License-Identifier: Apache-2.0
"""Flags for corpora and tokenizers, in corpus preparation and pre-training. This module imports no Trainer and no models."""

import functools
from dataclasses import dataclass

from ..data.languages import check_languages
from ..training.flags import option
from .corpus import DOCUMENTS, has_columns
from .packing import MODES
from .prepared_corpus import is_prepared

__all__ = ["ELSEWHERE", "CorpusArguments", "TokenizerArguments", "check_corpus", "tokenizer_options"]

# Flags of transformers' own pre-training scripts -> their replacement.
ELSEWHERE = {
    "config_name": "use --preset and --config_overrides",
    "dtype": "use --bf16 to compute in half precision; parameters are trained in float32",
    "line_by_line": "use --documents line",
    "low_cpu_mem_usage": "remove it",
    "model_type": "use --preset",
    "overwrite_output_dir": "remove it; a new run needs a new --output_dir",
    "pad_to_max_length": "remove it; a batch is padded to its longest row",
    "torch_dtype": "use --bf16 to compute in half precision; parameters are trained in float32",
    "trust_remote_code": "remove it; all models are from this package",
    "validation_split_percentage": "use --validation_documents",
    "whole_word_mask": "use --masking word",
}
SMALLEST = {"max_length": 8} | dict.fromkeys(
    ["min_tokens", "validation_documents", "shuffle_buffer", "num_proc", "max_train_samples", "max_eval_samples"], 1
)


@dataclass
class TokenizerArguments:
    """Flags to select an existing tokenizer, or to train a new one."""

    tokenizer: str | None = option(
        None, "folder or Hub id; default: the tokenizer of --model or of the prepared data", aliases=["--tokenizer_name"]
    )
    train_tokenizer: str | None = option(None, "tokenizer to train on --train_data", choices=["byte-level-bpe", "unigram"])
    vocab_size: int = option(32000, "vocabulary size of the tokenizer to train")
    byte_fallback: bool = option(False, "unigram: encode unknown characters as bytes")
    lowercase: bool = option(False, "unigram: lowercase all text")


@dataclass
class CorpusArguments:
    """Flags for documents, and for packing documents into examples."""

    train_data: list[str] = option(
        list,
        "files, folders, one Hub data set, or a prepared corpus",
        aliases=["--train_file", "--dataset_name"],
    )
    documents: str = option("blank_line", "what ends a document in text files", choices=[*DOCUMENTS])
    text_column: str = option("text", "text column of jsonl, csv, parquet and Hub data")
    data_config: str | None = option(None, "configuration of a Hub data set", aliases=["--dataset_config_name"])
    train_split: str = option("train", "split of a Hub data set to train on")
    validation_documents: int | None = option(
        None, "documents to hold out without --validation_data; default: a tenth, at most 100; with --streaming: 100"
    )
    packing: str = option("full_sentences", "how documents are packed into examples", choices=[*MODES])
    max_length: int = option(512, "maximum tokens per example, including [CLS] and [SEP]", aliases=["--max_seq_length"])
    min_tokens: int = option(1, "minimum tokens per document; shorter documents are dropped")
    language: str = option("en", "ISO code of the text's language, for sentence splitting")

    @functools.cached_property
    def is_prepared(self) -> bool:
        """True if the training data are a prepared corpus; cached, because the folder can be remote."""
        return is_prepared(*self.train_data)


def check_corpus(arguments: CorpusArguments):
    """Check the flags of a corpus: data, minimum values, language and text column."""
    if not arguments.train_data:
        raise ValueError("--train_data is required: pass files, folders or a Hub data set")
    for name, least in SMALLEST.items():
        value = getattr(arguments, name, None)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    check_languages([arguments.language], "--language")
    sources = [*arguments.train_data, *getattr(arguments, "validation_data", ())]
    if arguments.text_column != "text" and not arguments.is_prepared and not has_columns(sources):
        raise ValueError(f"{' '.join(sources)} is plain text without columns: remove --text_column {arguments.text_column}")


def tokenizer_options(arguments: TokenizerArguments) -> dict[str, bool]:
    """Return the options of `train_unigram` that are set; without --train_tokenizer unigram, each raises a ValueError."""
    options = {name: True for name in ("byte_fallback", "lowercase") if getattr(arguments, name)}
    if options and arguments.train_tokenizer != "unigram":
        raise ValueError(f"--{next(iter(options))} requires --train_tokenizer unigram: pass both or neither")
    return options

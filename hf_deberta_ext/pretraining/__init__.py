# SPDX-License-Identifier: Apache-2.0
"""Pre-training: corpora, tokenizers, packing, masking, objectives and trainers. Names are imported on first use."""

import importlib
from typing import Any

_MODULES = {
    ".analysis.embedding_similarity": ("average_cosine_similarity",),
    ".analysis.results": ("replaced_token_table",),
    "corpus": ("load_corpus", "texts"),
    "dynamic_masking": ("EpochCallback", "MaskingCollator", "NumberedExamples", "NumberedStream", "lower_rate"),
    "masking": ("MaskingOptions", "MaskingVocabulary", "RowGenerator"),
    "objectives": ("OBJECTIVES", "MultiObjectiveMaskedLM", "Objective", "count_targets", "row_statistics"),
    "packing": ("PackingReport", "pack"),
    "recipes": ("FROM_SCRATCH", "RECIPES", "Recipe", "chosen_settings", "recipe_arguments", "recipe_table"),
    "replaced_token_trainer": ("ReplacedTokenArguments", "ReplacedTokenTrainer", "check_stepping"),
    "report": ("evaluation_table", "plot_objectives", "plot_replaced_tokens"),
    "run_arguments": ("DataArguments", "MaskingArguments", "ModelArguments"),
    "span_boundary": ("SpanBoundaryHead", "span_boundaries"),
    "tokenizer_training": ("tokenizer_report", "train_byte_level_bpe", "train_tokenizer", "train_unigram"),
    "trainer": ("PretrainingArguments", "PretrainingTrainer"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__: list[str] = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

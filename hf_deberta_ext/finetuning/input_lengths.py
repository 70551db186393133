# SPDX-License-Identifier: Apache-2.0
"""Find the maximum input length of a model, and the longest row of a data set."""

from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

__all__ = ["check_fast", "longest_input", "longest_row", "position_limit"]

logger = logging.get_logger(__name__)

# Model types whose positions start at pad_token_id + 1, so that fewer positions are left for tokens.
_SHIFTED = (
    "camembert data2vec-text ibert lilt longformer luke markuplm mpnet roberta roberta-prelayernorm xlm-roberta "
    "xlm-roberta-xl xmod"
).split()


def position_limit(config: PretrainedConfig) -> int | None:
    """Return the maximum number of tokens of a model with absolute positions; None for other models (DeBERTa v2, v3)."""
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows < 1 or not getattr(config, "position_biased_input", True):
        return None
    if config.model_type in _SHIFTED:
        return rows - (config.pad_token_id or 0) - 1
    return rows


def longest_input(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, max_seq_length: int | None, default: int
) -> int:
    """Return the maximum input length in tokens; longer inputs are truncated.

    Args:
        max_seq_length (`int`, *optional*): value of --max_seq_length. For a model with absolute positions, a value above the
            limit of model and tokenizer is reduced to this limit, with a warning. Other models accept any value; a warning
            is logged for a value above the length that was used in pre-training.
        default (`int`): value if --max_seq_length is not set; reduced in the same way, without a warning.
    """
    length, limit = max_seq_length or default, position_limit(config)
    if limit is not None:
        limit = min(limit, tokenizer.model_max_length)
    if limit is None or length <= limit:
        trained = getattr(config, "max_position_embeddings", None) or length
        if max_seq_length is not None and length > trained:
            logger.warning(f"--max_seq_length {length} exceeds the model's pre-training length of {trained} tokens")
        return length
    if max_seq_length is not None:
        logger.warning(f"--max_seq_length {max_seq_length} exceeds the model's limit; using {limit} tokens")
    return limit


def check_fast(tokenizer: PreTrainedTokenizerBase, task: str, lack: str):
    """Raise a ValueError if the tokenizer is not fast; the message names `task` and what the tokenizer lacks (`lack`)."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"{task} needs a fast tokenizer (with a tokenizer.json), got {type(tokenizer).__name__}, {lack}: give a "
            "fast tokenizer with --tokenizer_name"
        )


def longest_row(rows: Dataset) -> int:
    """Return the length of the longest list in `input_ids`, which has one list per row or choice; 0 if there are no rows."""
    import pyarrow
    from pyarrow import compute

    longest = 0
    # Arrow arrays, because Python lists of a large data set take too much memory.
    for batch in rows.select_columns("input_ids").with_format("arrow").iter(1000):
        ids = batch["input_ids"]
        while pyarrow.types.is_nested(ids.type.value_type):
            ids = compute.list_flatten(ids)
        longest = max(longest, compute.max(compute.list_value_length(ids)).as_py() or 0)
    return longest

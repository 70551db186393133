# SPDX-License-Identifier: Apache-2.0
"""Maximum input lengths of models, and the longest row of a data set."""

from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

__all__ = ["longest_input", "longest_row", "position_limit"]

logger = logging.get_logger(__name__)

# The position of their first token is pad_token_id + 1.
_SHIFTED = (
    "camembert data2vec-text ibert lilt longformer luke markuplm mpnet roberta roberta-prelayernorm xlm-roberta "
    "xlm-roberta-xl xmod"
).split()


def position_limit(config: PretrainedConfig) -> int | None:
    """Return the number of tokens for which a model has absolute positions; None for one without (DeBERTa v2, v3)."""
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows < 1 or not getattr(config, "position_biased_input", True):
        return None
    if config.model_type in _SHIFTED:
        return rows - (config.pad_token_id or 0) - 1
    return rows


def longest_input(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, max_seq_length: int | None, default: int
) -> int:
    """Return the length in tokens to which inputs are truncated.

    Args:
        max_seq_length (`int`, *optional*): the flag; clipped to the limit of the model (with absolute positions also of
            its tokenizer) with a warning. Relative positions take any length, with a warning beyond the pre-training's.
        default (`int`): without the flag; clipped without a warning.
    """
    length, limit = max_seq_length or default, position_limit(config)
    if limit is not None:
        limit = min(limit, tokenizer.model_max_length)
    if limit is None or length <= limit:
        trained = getattr(config, "max_position_embeddings", None) or length
        if max_seq_length is not None and length > trained:
            logger.warning(f"--max_seq_length {length} is more than the {trained} tokens of the model's pre-training")
        return length
    if max_seq_length is not None:
        logger.warning(f"--max_seq_length {max_seq_length} is more than the model takes: it becomes {limit}")
    return limit


def longest_row(rows: Dataset) -> int:
    """Return tokens of the longest `input_ids`, also where a row has several (choices); 0 without rows."""
    import pyarrow
    from pyarrow import compute

    longest = 0
    # Not as Python lists, of which large data makes too many.
    for batch in rows.select_columns("input_ids").with_format("arrow").iter(1000):
        ids = batch["input_ids"]
        while pyarrow.types.is_nested(ids.type.value_type):
            ids = compute.list_flatten(ids)
        longest = max(longest, compute.max(compute.list_value_length(ids)).as_py() or 0)
    return longest

# SPDX-License-Identifier: Apache-2.0
"""Digests of values, Arrow arrays and tokenizers. Does not import torch: each preparation process imports this module."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from xxhash import xxh3_64

__all__ = ["add_values", "json_digest", "tokenizer_digest"]


def add_values(digest: Any, array: Any):
    """Add the values of an Arrow array to a digest. For a slice, only the values in the slice are added."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if array.null_count:
        add_values(digest, array.is_valid())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        add_values(digest, pc.list_value_length(array).fill_null(0))
        add_values(digest, array.flatten())
    elif pa.types.is_primitive(kind) and not pa.types.is_temporal(kind):
        digest.update(str(kind).encode())
        digest.update(array.drop_null().to_numpy(zero_copy_only=False))
    else:
        digest.update(json_digest(array.to_pylist()).encode())


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Return the digest of a tokenizer's vocabulary, normalisation, special tokens and padding side. Truncation and padding
    are not included, because calls of the tokenizer change them."""
    if not hasattr(tokenizer, "get_vocab"):
        return None
    state: Any = sorted(tokenizer.get_vocab().items())
    if hasattr(tokenizer, "backend_tokenizer"):
        # In this JSON text, truncation and padding come before the added tokens. Parsing the whole text would take a second.
        state = tokenizer.backend_tokenizer.to_str().partition('"added_tokens"')[2]
    return json_digest([state, tokenizer.all_special_tokens, tokenizer.padding_side])


def json_digest(value: Any) -> str:
    """Return the digest of plain values, arrays and tensors."""
    return xxh3_64(json.dumps(value, default=plain).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return a mapping as a dictionary, an array as a list, and anything else as its `repr`."""
    if isinstance(value, Mapping):
        return dict(value)
    return getattr(value, "tolist", partial(repr, value))()

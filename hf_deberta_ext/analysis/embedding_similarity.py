# SPDX-License-Identifier: Apache-2.0
"""Average cosine similarity of word embeddings, as in the DeBERTaV3 paper's comparison of embedding-sharing methods."""

from collections.abc import Iterable

import torch
from torch import nn

__all__ = ["average_cosine_similarity", "word_tables"]

# Number of rows to normalise at a time: a float64 copy of the whole table would take twice its memory.
CHUNK = 16384


def average_cosine_similarity(table: torch.Tensor, rows: torch.Tensor | None = None) -> float:
    """Compute the mean cosine similarity over all pairs of different word embeddings (DeBERTaV3, He et al. 2021, section 3).

    mean over i != j of cos(e_i, e_j) = (|sum_i u_i|^2 - n) / (n (n - 1)),  u_i = e_i / |e_i|

    This function computes the right side, in float64, because it needs O(V E) instead of O(V^2 E) operations.

    Args:
        table (`torch.Tensor`): word embeddings, [V, E].
        rows (`torch.Tensor`, *optional*): rows to compare, as indices [n] or bool [V]; default: all. Exclude special tokens
            and rows that pad the table to a round size.
    Returns:
        The similarity, in [-1, 1]. Zero rows, such as the embedding of [PAD], are excluded.
    Raises:
        ValueError: the table is not finite, or has fewer than two nonzero rows.
    """
    table = table.detach()
    if rows is not None:
        # Use each row once: a repeated row would count as a pair of words with a cosine of 1.
        numbers = torch.arange(len(table))[torch.as_tensor(rows).cpu()]
        table = table[numbers.unique().to(table.device)]
    total = torch.zeros(table.shape[1], dtype=torch.float64, device=table.device)
    n = 0
    for chunk in table.split(CHUNK):
        norms = chunk.double().norm(dim=1, keepdim=True)
        nonzero = norms.squeeze(1) != 0
        total += (chunk.double()[nonzero] / norms[nonzero]).sum(dim=0)
        n += int(nonzero.sum())
    if n < 2:
        raise ValueError(f"table must have at least two nonzero rows, got {n} in shape {list(table.shape)}")
    similarity = (total.dot(total).item() - n) / (n * (n - 1))
    if similarity != similarity:
        raise ValueError("table must be finite, got NaN or infinity; did the training diverge?")
    return similarity


def word_tables(generator: nn.Module, discriminator: nn.Module, special: Iterable[int]) -> dict[str, torch.Tensor]:
    """Return {"generator": table, "discriminator": table}: the word embeddings [V', E] without the rows of `special` ids."""
    tables = {}
    for name, model in (("generator", generator), ("discriminator", discriminator)):
        embedding = model.get_input_embeddings()
        # With GDES, the discriminator's table is the sum of the generator's table and its own difference.
        table = embedding.table() if hasattr(embedding, "table") else embedding.weight.detach()
        is_word = torch.ones(len(table), dtype=torch.bool, device=table.device)
        is_word[list(special)] = False
        tables[name] = table[is_word]
    return tables

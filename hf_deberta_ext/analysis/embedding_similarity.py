# SPDX-License-Identifier: Apache-2.0
"""Average cosine similarity of word embeddings, by which DeBERTaV3 compares ways to share them."""

from collections.abc import Iterable

import torch
from torch import nn

__all__ = ["average_cosine_similarity", "word_tables"]

# Rows normalised at a time: a float64 copy of a whole table would take twice its memory.
CHUNK = 16384


def average_cosine_similarity(table: torch.Tensor, rows: torch.Tensor | None = None) -> float:
    """Compute the mean cosine of two different word embeddings (DeBERTaV3, He et al. 2021, section 3: NES, ES and GDES).

    mean over i != j of cos(e_i, e_j) = (|sum_i u_i|^2 - n) / (n (n - 1)),  u_i = e_i / |e_i|

    The right side takes O(V E) instead of O(V^2 E). It is computed in float64.

    Args:
        table (`torch.Tensor`): one word embedding per row, [V, E].
        rows (`torch.Tensor`, *optional*): which rows to compare: indices [n], or bool [V]; None compares all of them. Leave
            out special tokens and rows that pad the table to a round size.
    Returns:
        The similarity, in [-1, 1]. Rows of zeros, such as the embedding of [PAD], have no direction and are left out.
    Raises:
        ValueError: the table is not finite, or fewer than two rows are left.
    """
    table = table.detach()
    if rows is not None:
        # Each row once: a repeated one would count as a pair of words whose cosine is 1.
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
        raise ValueError(f"at least two rows that are not zero are needed, got {n} in a table {list(table.shape)}")
    similarity = (total.dot(total).item() - n) / (n * (n - 1))
    if similarity != similarity:
        raise ValueError("the table holds NaN or infinity: did the training diverge?")
    return similarity


def word_tables(generator: nn.Module, discriminator: nn.Module, special: Iterable[int]) -> dict[str, torch.Tensor]:
    """Return the word embeddings [V', E] of a generator and a discriminator, without those of special tokens."""
    tables = {}
    for name, model in (("generator", generator), ("discriminator", discriminator)):
        embedding = model.get_input_embeddings()
        # Under GDES, the sum of the generator's table and the discriminator's own.
        table = embedding.table() if hasattr(embedding, "table") else embedding.weight.detach()
        is_word = torch.ones(len(table), dtype=torch.bool, device=table.device)
        is_word[list(special)] = False
        tables[name] = table[is_word]
    return tables

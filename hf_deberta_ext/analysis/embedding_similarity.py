# SPDX-License-Identifier: Apache-2.0
"""Average cosine similarity of word embeddings, by which DeBERTaV3 compares ways to share them."""

import torch

__all__ = ["average_cosine_similarity"]

# Rows that are made unit vectors at a time: a float64 copy of a whole table would take twice its memory.
CHUNK = 16384


def average_cosine_similarity(table: torch.Tensor, rows: torch.Tensor | None = None) -> float:
    """The mean cosine of two different word embeddings (DeBERTaV3, He et al. 2021, section 3: NES, ES and GDES).

    mean over i != j of cos(e_i, e_j) = (|sum_i u_i|^2 - n) / (n (n - 1)),  u_i = e_i / |e_i|

    The right side takes O(V E) instead of O(V^2 E). In float64.

    Args:
        table (`torch.Tensor`): one word embedding a row, [V, E].
        rows (`torch.Tensor`, *optional*): which rows to compare, all of them without it: indices [n], or bool [V]. Leave out
            special tokens and rows that pad the table to a round size.
    Returns:
        The similarity, in [-1, 1]. Rows of zeros, such as that of [PAD], have no direction and are left out.
    Raises:
        ValueError: `table` is not [V, E] or not finite, `rows` does not fit it, or fewer than two rows are left.
    """
    if table.dim() != 2:
        raise ValueError(f"table must have shape [V, E], got {list(table.shape)}; give embedding.weight")
    table = table.detach()
    if rows is not None:
        table = table[_row_numbers(rows, len(table)).to(table.device)]
    total = torch.zeros(table.shape[1], dtype=torch.float64, device=table.device)
    n = 0
    for chunk in table.split(CHUNK):
        norms = chunk.double().norm(dim=1, keepdim=True)
        nonzero = norms.squeeze(1) != 0
        total += (chunk.double()[nonzero] / norms[nonzero]).sum(dim=0)
        n += int(nonzero.sum())
    if n < 2:
        raise ValueError(f"two rows that are not zero are needed to compare, got {n} in a table {list(table.shape)}")
    similarity = (total.dot(total).item() - n) / (n * (n - 1))
    if similarity != similarity:
        raise ValueError("the table holds values that are not finite: look for where the training diverged")
    return similarity


def _row_numbers(rows, V: int) -> torch.Tensor:
    """`rows` as indices, each once."""
    rows = torch.as_tensor(rows)
    if rows.dtype == torch.bool:
        if rows.shape != (V,):
            raise ValueError(f"bool rows must have shape [{V}], one a row of the table, got {list(rows.shape)}")
        return rows.nonzero().squeeze(1)
    if rows.dim() != 1 or rows.is_floating_point():
        raise ValueError(f"rows must be indices [n] or bool [{V}], got {rows.dtype} {list(rows.shape)}")
    outside = rows[(rows < 0) | (rows >= V)]
    if len(outside):
        raise ValueError(f"row {outside[0].item()} is not in the table: it has {V} rows, counted from 0")
    # Twice the same row would count as a pair of words whose cosine is 1.
    return rows.unique()

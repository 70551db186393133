# SPDX-License-Identifier: Apache-2.0
"""Inputs of attention over lengths, masks, terms and tables, and one call for the backends of plain PyTorch."""

import math

import torch

from hf_deberta_ext import disentangled_attention_blocked, disentangled_attention_eager, disentangled_attention_sdpa
from hf_deberta_ext.model.relative_position import RelativePosition

__all__ = ["BACKENDS", "B", "H", "call", "make_inputs", "whole"]

BACKENDS = {"blocked": disentangled_attention_blocked, "sdpa": disentangled_attention_sdpa}
B, H = 2, 2


def make_mask(kind, N):
    """[B, 1, 1 or N, N]; True = may attend."""
    places = torch.arange(N)
    lengths = torch.tensor([N, (N + 1) // 2])[:, None]
    if kind == "none":
        return None
    if kind == "right":
        return (places < lengths)[:, None, None]
    if kind == "left":
        return (places >= N - lengths)[:, None, None]
    document = places // max(1, N // 3)
    mask = (document[:, None] == document).expand(B, 1, N, N).clone()
    if kind == "dead-row":
        mask[0, 0, N // 2] = False
    return mask


def make_inputs(N, terms, table="buckets", mask="none", *, d=8, length=None, dtype=torch.float32, seed=0, device="cpu"):
    """Leaves Q_c, K_c, V_c, K_r, Q_r (the content as transposed views), and the other arguments."""
    generator = torch.Generator().manual_seed(seed)
    position = RelativePosition(buckets=16 if table == "buckets" else -1, max_distance=40 if table == "buckets" else N + 3)
    R = 32 if table == "buckets" else 2 * (N + 3)
    content = [torch.randn(B, N, H * d, generator=generator).unflatten(-1, (H, d)).transpose(1, 2) for _ in range(3)]
    tables = [torch.randn(H, R, d, generator=generator) for _ in range(2)]
    leaves = [x.to(device, dtype).requires_grad_() for x in (*content, *tables)]
    mask = make_mask(mask, N)
    options = dict(
        delta=position(length or N).to(device), terms=terms, scale=1 / math.sqrt(d * (1 + len(terms))),
        mask=mask if mask is None else mask.to(device),
    )  # fmt: skip
    return leaves, options | dict(reach=position.max_distance)


def call(backend, leaves, options, **more):
    Q_c, K_c, V_c, K_r, Q_r = leaves
    options = options | more
    if backend != "blocked":
        options = {name: value for name, value in options.items() if name != "reach"}
    out = {"eager": disentangled_attention_eager, **BACKENDS}[backend](Q_c, K_c, V_c, K_r=K_r, Q_r=Q_r, **options)
    return out[0] if backend == "eager" else out


def whole(x):
    return x.flatten()[None]

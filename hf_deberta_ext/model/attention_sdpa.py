# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention by torch's scaled_dot_product_attention: the position terms become its additive mask."""

from contextlib import nullcontext

import torch
from torch.nn import functional

__all__ = ["disentangled_attention_sdpa"]


def disentangled_attention_sdpa(
    Q_c: torch.Tensor,
    K_c: torch.Tensor,
    V_c: torch.Tensor,
    *,
    K_r: torch.Tensor | None = None,
    Q_r: torch.Tensor | None = None,
    delta: torch.Tensor | None = None,
    terms: tuple[str, ...] = (),
    scale: float,
    mask: torch.Tensor | None = None,
    query_positions: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    reach: int | None = None,
) -> torch.Tensor:
    """Disentangled attention, DeBERTa Eq. (4); arguments as in `disentangled_attention_eager`.

    The bias [B, H, Q, N] is made once, in float32, by gathers, which torch.compile fuses into one pass without index
    tensors: there this is the fastest form on CPU.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c.
    """
    wide = torch.promote_types(Q_c.dtype, torch.float32)
    with nullcontext() if Q_c.device.type == "meta" else torch.autocast(Q_c.device.type, enabled=False):
        q, k, v = Q_c.to(wide) * scale, K_c.to(wide), V_c.to(wide)
        bias = None
        if terms:
            shape = (*q.shape[:3], k.shape[2])
            keys = torch.arange(k.shape[2], device=q.device)
            queries = keys if query_positions is None else query_positions[:, None]
            offset = queries.unsqueeze(-1) - keys + delta.shape[0] // 2  # [N, N] or [B, 1, Q, N]
            row = delta[offset].expand(shape)
            bias = q.new_zeros(())
            if "c2p" in terms:
                bias = bias + (q @ K_r.to(wide).mT).gather(-1, row)
            if "p2c" in terms:
                bias = bias + (k @ (Q_r.to(wide) * scale).mT).gather(-1, row.mT).mT
            if "p2p" in terms:
                p2p = (Q_r.to(wide)[:, delta] * K_r.to(wide)[:, delta.flip(0)]).sum(-1) * scale  # [H, 2L - 1]
                bias = bias + p2p.expand(shape[0], -1, -1).gather(-1, offset.expand(shape).flatten(2)).view(shape)
        if mask is not None:
            bias = q.new_zeros(()) if bias is None else bias
            bias = bias.where(mask, torch.finfo(wide).min)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout_p, scale=1.0)
        if mask is not None:
            # A row that may attend to nothing would be the mean of all values.
            out = out * mask.any(-1, keepdim=True)
        return out.to(Q_c.dtype)

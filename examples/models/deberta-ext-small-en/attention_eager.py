# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention as the equation is written: the reference for every other backend."""

from contextlib import nullcontext

import torch

__all__ = ["disentangled_attention_eager"]


def disentangled_attention_eager(
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Disentangled attention, DeBERTa (He et al. 2021) Eq. (4), dense.

    A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_r[delta(i, j)] + K_c[j]·Q_r[delta(i, j)],  out = softmax(scale · A) V_c.
    The paper writes delta(j, i) in the third term; all released code and weights use delta(i, j). The term p2p, in no
    released model, is Q_r[delta(i, j)]·K_r[delta(j, i)], a bias for each head that depends on i - j alone.

    Args:
        Q_c (`torch.Tensor`): content queries, [B, H, Q, d].
        K_c, V_c (`torch.Tensor`): content keys and values, [B, H, N, d].
        K_r, Q_r (`torch.Tensor`, *optional*): projections of the relative table P, [H, R, d]; needed by c2p and p2c.
        delta (`torch.LongTensor`, *optional*): [2L - 1] offset table, L >= N, delta(i, j) = delta[i - j + L - 1], in [0, R).
        terms (`tuple[str, ...]`): which of c2p, p2c, p2p to add.
        scale (`float`): 1 / sqrt(s·d), s = 1 + number of position terms; applied before the products, so that half
            precision does not overflow.
        mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, Q, N]; True = may attend. A row with no True gives
            zeros (as the official code; stock transformers gives the mean of V_c).
        query_positions (`torch.LongTensor`, *optional*): [B, Q] position i of each query; None: query q is at q, Q = N.
        dropout_p (`float`): dropout of the probabilities.
        reach (`int`, *optional*): delta is constant for i - j >= reach and for i - j <= -reach; not used here.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c and the probabilities [B, H, Q, N] after dropout. Logits and softmax are
        computed in float32 (float64 stays), also under autocast.
    """
    dtype = Q_c.dtype
    wide = torch.promote_types(dtype, torch.float32)
    device_type = Q_c.device.type
    with nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False):
        Q_c, K_c = Q_c.to(wide) * scale, K_c.to(wide)
        A = Q_c @ K_c.transpose(-1, -2)  # [B, H, Q, N]
        if terms:
            N = K_c.shape[-2]
            keys = torch.arange(N, device=Q_c.device)
            queries = keys if query_positions is None else query_positions[:, None]  # [N] or [B, 1, Q]
            offset = queries.unsqueeze(-1) - keys + delta.shape[0] // 2  # [N, N] or [B, 1, Q, N]
            row = delta[offset].expand_as(A)
        if "c2p" in terms:
            c2p = Q_c @ K_r.to(wide).transpose(-1, -2)  # [B, H, Q, R]
            A = A + c2p.gather(-1, row)
        if "p2c" in terms:
            p2c = K_c @ (Q_r.to(wide) * scale).transpose(-1, -2)  # [B, H, N, R]
            A = A + p2c.gather(-1, row.transpose(-1, -2)).transpose(-1, -2)
        if "p2p" in terms:
            p2p = (Q_r.to(wide)[:, delta] * K_r.to(wide)[:, delta.flip(0)]).sum(-1) * scale  # [H, 2L - 1]
            bias = p2p[:, offset]  # [H, N, N] or [H, B, 1, Q, N]
            A = A + (bias if query_positions is None else bias.squeeze(2).transpose(0, 1))
        if mask is not None:
            A = A.masked_fill(~mask, torch.finfo(wide).min)
        probs = A.softmax(-1)
        if mask is not None:
            probs = probs.masked_fill(~mask, 0.0)
        if dropout_p > 0:
            probs = torch.nn.functional.dropout(probs, dropout_p)
        probs = probs.to(dtype)
        return probs @ V_c.to(dtype), probs

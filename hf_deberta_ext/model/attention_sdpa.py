# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention by torch's scaled_dot_product_attention: the position terms become its additive mask."""

import torch
from torch.nn import functional

from .attention_inputs import AttentionInputs, without_autocast

__all__ = ["disentangled_attention_sdpa"]


def disentangled_attention_sdpa(inputs: AttentionInputs) -> torch.Tensor:
    """Compute disentangled attention, DeBERTa Eq. (4), by torch's SDPA; see `AttentionInputs`.

    The bias [B, H, Q, N] is made once, in float32, by gathers, which torch.compile fuses into one pass without index
    tensors: there this is the fastest form on CPU.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c.
    """
    dtype, mask, bias = inputs.Q_c.dtype, inputs.mask, None
    wide = torch.promote_types(dtype, torch.float32)
    with without_autocast(inputs.Q_c.device):
        q, k, v = inputs.Q_c.to(wide) * inputs.scale, inputs.K_c.to(wide), inputs.V_c.to(wide)
        if inputs.terms:
            bias = inputs.position_scores(q, k)
        elif mask is not None:
            bias = q.new_zeros(())
        if mask is not None:
            bias = bias.where(mask, torch.finfo(wide).min)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=inputs.dropout_p, scale=1.0)
        if mask is not None:
            # A row that may attend to nothing would be the mean of all values.
            out = out * mask.any(-1, keepdim=True)
        return out.to(dtype)

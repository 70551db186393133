# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention as the equation is written: the reference for every other backend."""

import torch

from .attention_inputs import AttentionInputs, without_autocast

__all__ = ["disentangled_attention_eager"]


def disentangled_attention_eager(inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute disentangled attention densely, DeBERTa (He et al. 2021) Eq. (4); see `AttentionInputs`.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c and the probabilities [B, H, Q, N] after dropout. Logits and softmax are
        computed in float32 (float64 stays), also under autocast.
    """
    dtype, mask = inputs.Q_c.dtype, inputs.mask
    wide = torch.promote_types(dtype, torch.float32)
    with without_autocast(inputs.Q_c.device):
        q, k = inputs.Q_c.to(wide) * inputs.scale, inputs.K_c.to(wide)
        A = q @ k.mT  # [B, H, Q, N]
        if inputs.terms:
            A = A + inputs.position_scores(q, k)
        if mask is not None:
            A = A.masked_fill(~mask, torch.finfo(wide).min)
        probs = A.softmax(-1)
        if mask is not None:
            probs = probs.masked_fill(~mask, 0.0)
        if inputs.dropout_p > 0:
            probs = torch.nn.functional.dropout(probs, inputs.dropout_p)
        probs = probs.to(dtype)
        return probs @ inputs.V_c.to(dtype), probs

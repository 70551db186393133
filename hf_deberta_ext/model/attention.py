# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DisentangledSelfAttention`: projections around the attention function, with the parameter names of deberta-v2."""

import math

import torch
from torch import nn

from .attention_eager import disentangled_attention_eager

__all__ = ["DisentangledSelfAttention"]


class DisentangledSelfAttention(nn.Module):
    """Multi-head disentangled self-attention (DeBERTa section 3.1), without the output projection.

    Args:
        config: any object with `hidden_size`, `num_attention_heads`, `attention_probs_dropout_prob`,
            `hidden_dropout_prob`, `relative_attention`, `pos_att_type` (list) and `share_att_key`.
    """

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.terms = tuple(config.pos_att_type) if config.relative_attention else ()
        # Stock models count the terms that are named even where relative_attention is off.
        self.scale = 1 / math.sqrt(self.head_size * (1 + len(config.pos_att_type)))

        size = config.hidden_size
        self.query_proj = nn.Linear(size, size)
        self.key_proj = nn.Linear(size, size)
        self.value_proj = nn.Linear(size, size)
        self.share_att_key = config.share_att_key
        if not self.share_att_key:
            if "c2p" in self.terms or "p2p" in self.terms:
                self.pos_key_proj = nn.Linear(size, size)
            if "p2c" in self.terms or "p2p" in self.terms:
                self.pos_query_proj = nn.Linear(size, size)
        self.pos_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """[..., N, H·d] -> [..., H, N, d]"""
        return x.unflatten(-1, (self.num_heads, self.head_size)).transpose(-2, -3)

    def project_positions(self, rel_embeddings: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """K_r and Q_r, [H, R, d] each, from the relative table [R, H·d]; None where no term needs it."""
        if not self.terms:
            return None, None
        P = self.pos_dropout(rel_embeddings)
        K_r = Q_r = None
        if "c2p" in self.terms or "p2p" in self.terms:
            K_r = self.split_heads((self.key_proj if self.share_att_key else self.pos_key_proj)(P))
        if "p2c" in self.terms or "p2p" in self.terms:
            Q_r = self.split_heads((self.query_proj if self.share_att_key else self.pos_query_proj)(P))
        return K_r, Q_r

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rel_embeddings: torch.Tensor | None = None,
        query_states: torch.Tensor | None = None,
        delta: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            hidden_states (`torch.Tensor`): keys and values, [B, N, hidden].
            attention_mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, Q, N]; True = may attend.
            rel_embeddings (`torch.Tensor`, *optional*): the relative table P, [R, hidden].
            query_states (`torch.Tensor`, *optional*): a query stream of its own (EMD), [B, Q, hidden]; None = hidden_states.
            delta (`torch.LongTensor`, *optional*): [2N - 1] offset table of `RelativePosition`.
            query_positions (`torch.LongTensor`, *optional*): [B, Q] positions of the queries, needed where Q != N.

        Returns:
            context [B, Q, hidden] and probabilities [B, H, Q, N].
        """
        Q_c = self.split_heads(self.query_proj(hidden_states if query_states is None else query_states))
        K_c = self.split_heads(self.key_proj(hidden_states))
        V_c = self.split_heads(self.value_proj(hidden_states))
        K_r, Q_r = self.project_positions(rel_embeddings)
        context, probs = disentangled_attention_eager(
            Q_c,
            K_c,
            V_c,
            K_r=K_r,
            Q_r=Q_r,
            delta=delta,
            terms=self.terms,
            scale=self.scale,
            mask=attention_mask,
            query_positions=query_positions,
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        return context.transpose(1, 2).flatten(2), probs

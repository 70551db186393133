# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Layers, the encoder and the pooler, with the parameter names of deberta-v2."""

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from .attention import DisentangledSelfAttention
from .convolution import ConvLayer
from .input_validation import is_traced
from .layer_sharing import owned_halves, run_layer, stored_layers
from .position_cache import PositionCache
from .relative_position import RelativePosition
from .unpadding import PackedSequences

__all__ = ["ContextPooler", "DebertaExtEncoder", "DebertaExtLayer"]


class ResidualOutput(nn.Module):
    """LayerNorm(dropout(dense(x)) + residual): the end of both halves of a layer."""

    def __init__(self, config, in_features: int):
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class DebertaExtAttention(nn.Module):
    """Disentangled self-attention and its output; the residual is the query stream."""

    def __init__(self, config):
        super().__init__()
        self.self = DisentangledSelfAttention(config)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden_states, attention_mask, rel_embeddings, query_states, **options):
        context, probs = self.self(hidden_states, attention_mask, rel_embeddings, query_states, **options)
        residual = hidden_states if query_states is None else query_states
        return self.output(context, residual), probs


class FeedForward(nn.Module):
    """The first half of the feed-forward network: act(dense(x))."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class DebertaExtLayer(GradientCheckpointingLayer):
    """One encoder layer. Under cross-layer sharing, layers after the first do not own the shared submodules."""

    def __init__(self, config, index: int = 0):
        super().__init__()
        self.owns_attention, self.owns_feed_forward = owned_halves(config, index)
        if self.owns_attention:
            self.attention = DebertaExtAttention(config)
        if self.owns_feed_forward:
            self.intermediate = FeedForward(config)
            self.output = ResidualOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rel_embeddings: torch.Tensor | None = None,
        query_states: torch.Tensor | None = None,
        *,
        first: Callable[[], "DebertaExtLayer"] | None = None,
        passes: int = 1,
        **options,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Arguments and options as in `DisentangledSelfAttention`; `first()` returns the layer that owns the shared half.
        Returns states and probabilities, of the last of the passes, whose queries are the states of the one before.

        Tensors with gradients come first, so that callers pass them by position: reentrant checkpointing loses keywords.
        """
        attention = self.attention if self.owns_attention else first().attention
        feed_forward = self if self.owns_feed_forward else first()
        if passes > 1:
            options["keys_values"] = attention.self.keys_and_values(hidden_states)
        for _ in range(passes):
            states, probs = attention(hidden_states, attention_mask, rel_embeddings, query_states, **options)
            query_states = feed_forward.output(feed_forward.intermediate(states), states)
        return query_states, probs


class DebertaExtEncoder(PositionCache):
    """The layers, the relative table that they share, and the convolution."""

    def __init__(self, config):
        super().__init__()
        self.num_layers = config.num_hidden_layers
        self.layer = nn.ModuleList([DebertaExtLayer(config, index) for index in range(stored_layers(config))])
        self.relative_table_size = config.relative_table_size
        if self.relative_table_size:
            self.rel_embeddings = nn.Embedding(self.relative_table_size, config.hidden_size)
            self.relative_position = RelativePosition(buckets=config.position_buckets, max_distance=config.relative_distance)
            if config.norm_rel_ebd == "layer_norm":
                self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.conv = None
        if config.conv_kernel_size > 0:
            self.conv = ConvLayer(config)

    def get_rel_embedding(self, length: int | None = None, device: torch.device | None = None) -> torch.Tensor | None:
        """Return the relative table [R, hidden] as the layers read it: looked up, so that it is an activation, no parameter.

        With `length`, only the rows that sequences of this length read. `device` is the device of the states, because
        offloaded weights are elsewhere; None: the device of the table.
        """
        if not self.relative_table_size:
            return None
        first, end = 0, self.relative_table_size
        if length is not None:
            first, end = self.relative_position.row(1 - length), self.relative_position.row(length - 1) + 1
        if device is None:
            device = self.rel_embeddings.weight.device
        P = self.rel_embeddings(torch.arange(first, end, device=device))
        if hasattr(self, "LayerNorm"):
            P = self.LayerNorm(P)
        return P

    def positions(self, length: int, device: torch.device) -> tuple[torch.Tensor | None, dict]:
        """Return relative embeddings [R, hidden], and delta and reach, for up to `length` tokens on `device`."""
        if not self.relative_table_size:
            return None, {}
        delta, reach = self.relative_position(length), self.relative_position.max_distance
        traced = is_traced()
        if torch.is_grad_enabled() and not traced:
            delta = delta - self.relative_position.row(1 - length)
            return self.get_rel_embedding(length, device), dict(delta=delta, reach=reach)
        # At inference the whole table, and one object as long as its values stay: the layers cache its projections.
        P = self.get_rel_embedding(device=device)
        if P.device.type == "cpu" and not traced:
            P = self.kept_table(P)
        return P, dict(delta=delta, reach=reach)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        skip_last_layer: bool = False,
        packed: PackedSequences | None = None,
    ) -> BaseModelOutput:
        """
        Args:
            hidden_states (`torch.Tensor`): output of the embeddings, [B, N, hidden].
            attention_mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, N, N]; True = may attend.
            token_mask (`torch.BoolTensor`, *optional*): [B, N]; False = padding.
            skip_last_layer (`bool`): stop before the last layer, which EMD runs itself.
            packed (`PackedSequences`, *optional*): the documents of hidden_states [1, T, hidden]; without masks.
        """
        embeddings = hidden_states
        longest = hidden_states.shape[1]
        if packed is not None:
            longest = max(packed.lengths)
        rel_embeddings, options = self.positions(longest, hidden_states.device)
        options.update(packed=packed, output_attentions=output_attentions)
        all_states, all_probs = [hidden_states], []
        for index in range(self.num_layers - skip_last_layer):
            hidden_states, probs = run_layer(self.layer, index, hidden_states, attention_mask, rel_embeddings, **options)
            if index == 0 and self.conv is not None:
                hidden_states = self.conv(embeddings, hidden_states, token_mask, packed)
            if output_hidden_states:
                all_states.append(hidden_states)
            if output_attentions:
                all_probs.append(probs)
        return BaseModelOutput(
            last_hidden_state=hidden_states,
            hidden_states=tuple(all_states) if output_hidden_states else None,
            attentions=tuple(all_probs) if output_attentions else None,
        )


class ContextPooler(nn.Module):
    """act(dense(dropout(state of [CLS]))), [B, hidden] -> [B, hidden]."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.activation = ACT2FN[config.pooler_hidden_act]

    def forward(self, cls_state: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(self.dropout(cls_state)))

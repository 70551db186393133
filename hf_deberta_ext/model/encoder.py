# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Embeddings, layers and the encoder, with the parameter names of deberta-v2."""

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from .attention import DisentangledSelfAttention
from .relative_position import RelativePosition
from .unpadding import PackedSequences

__all__ = ["ContextPooler", "DebertaExtEmbeddings", "DebertaExtEncoder", "DebertaExtLayer"]


class DebertaExtEmbeddings(nn.Module):
    """word (+ token type) (+ position) -> embed_proj if E != hidden -> LayerNorm -> padding to zero -> dropout."""

    def __init__(self, config):
        super().__init__()
        E = config.embedding_size
        self.max_positions = config.max_position_embeddings
        self.position_biased_input = config.position_biased_input
        self.word_embeddings = nn.Embedding(config.vocab_size, E, padding_idx=config.pad_token_id)
        if config.has_absolute_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, E)
        if config.type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, E)
        self.has_token_types = config.type_vocab_size > 0
        self.embed_proj = nn.Linear(E, config.hidden_size, bias=False) if config.hidden_size != E else None
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def absolute_positions(
        self,
        length: int,
        position_ids: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        packed: PackedSequences | None = None,
        *,
        device: torch.device,
    ) -> torch.Tensor:
        """[1 or B, N, E] rows of the absolute position table; without `position_ids` they count from the first real token,
        so that left padding changes nothing, and from the first token of each packed document.

        `device` is that of the states: weights that are offloaded are elsewhere until their module runs.

        Raises:
            ValueError: the input is longer than the table, or `position_ids` are not [1 or B, N].
        """
        if position_ids is not None and position_ids.shape[-1] != length:
            raise ValueError(f"position_ids must have shape [1 or B, {length}], got {list(position_ids.shape)}")
        if position_ids is None:
            longest = length if packed is None else max(packed.lengths)
            if longest > self.max_positions:
                raise ValueError(
                    f"the input has {longest} tokens, but the absolute position table ends at max_position_embeddings = "
                    f"{self.max_positions}; shorten the input or call model.extend_position_embeddings({longest})"
                )
            if packed is not None:
                return self.position_embeddings(packed.positions[None])
            position_ids = torch.arange(length, device=device)[None]
            if token_mask is not None:
                first = token_mask.int().argmax(1, keepdim=True)
                position_ids = (position_ids - first).clamp(min=0)
        return self.position_embeddings(position_ids)

    def project(self, embeddings: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., hidden]"""
        return embeddings if self.embed_proj is None else self.embed_proj(embeddings)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        packed: PackedSequences | None = None,
    ) -> torch.Tensor:
        """[B, N] ids or [B, N, E] `inputs_embeds`, and `token_mask` [B, N] bool (False = padding) -> [B, N, hidden]."""
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
        embeddings = inputs_embeds.to(self.LayerNorm.weight.dtype)
        if self.position_biased_input:
            N, device = embeddings.shape[1], embeddings.device
            embeddings = embeddings + self.absolute_positions(N, position_ids, token_mask, packed, device=device)
        if self.has_token_types:
            if token_type_ids is None:
                token_type_ids = embeddings.new_zeros(embeddings.shape[:2], dtype=torch.long)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        embeddings = self.LayerNorm(self.project(embeddings))
        if token_mask is not None:
            embeddings = embeddings * token_mask[..., None].to(embeddings.dtype)
        return self.dropout(embeddings)


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
        return self.output(context, hidden_states if query_states is None else query_states), probs


class FeedForward(nn.Module):
    """The first half of the feed-forward network: act(dense(x))."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class DebertaExtLayer(GradientCheckpointingLayer):
    """One encoder layer. Under cross-layer sharing, layers after the first lack what they borrow from it."""

    def __init__(self, config, index: int = 0):
        super().__init__()
        self.owns_attention = index == 0 or config.share_layers != "attention"
        self.owns_feed_forward = index == 0 or config.share_layers != "ffn"
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
        **options,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Arguments and options as in `DisentangledSelfAttention`; `first()` lends the shared half. Returns states and
        probabilities.

        Tensors with gradients come first, so that callers pass them by position: reentrant checkpointing loses keywords.
        """
        attention = self.attention if self.owns_attention else first().attention
        feed_forward = self if self.owns_feed_forward else first()
        states, probs = attention(hidden_states, attention_mask, rel_embeddings, query_states, **options)
        return feed_forward.output(feed_forward.intermediate(states), states), probs


class ConvLayer(nn.Module):
    """The convolution of DeBERTa-v2 ("nGiE"): LN(layer 0's output + act(dropout(conv(embeddings)))), padding to zero."""

    def __init__(self, config):
        super().__init__()
        size, kernel = config.hidden_size, config.conv_kernel_size
        self.conv = nn.Conv1d(size, size, kernel, padding=(kernel - 1) // 2, groups=config.conv_groups)
        self.LayerNorm = nn.LayerNorm(size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.activation = ACT2FN[config.conv_act]

    def forward(
        self,
        embeddings: torch.Tensor,
        states: torch.Tensor,
        token_mask: torch.Tensor | None,
        packed: PackedSequences | None = None,
    ) -> torch.Tensor:
        if packed is None:
            out = self.conv(embeddings.transpose(1, 2)).transpose(1, 2)
        else:
            # With free places between them, documents see zeros beyond their ends, as padding is.
            places, length = packed.windows(self.conv.padding[0])
            spaced = embeddings.new_zeros(1, length, embeddings.shape[2]).index_copy(1, places, embeddings)
            out = self.conv(spaced.transpose(1, 2)).transpose(1, 2).index_select(1, places)
        if token_mask is not None:
            out = out.masked_fill(~token_mask[..., None], 0.0)
        out = self.LayerNorm(states + self.activation(self.dropout(out)))
        return out if token_mask is None else out * token_mask[..., None].to(out.dtype)


class DebertaExtEncoder(nn.Module):
    """The stack of layers, the relative position table that they share, and the convolution."""

    def __init__(self, config):
        super().__init__()
        self.num_layers = config.num_hidden_layers
        stored = 1 if config.share_layers == "all" else config.num_hidden_layers
        self.layer = nn.ModuleList([DebertaExtLayer(config, index) for index in range(stored)])
        self.relative_table_size = config.relative_table_size
        if self.relative_table_size:
            self.rel_embeddings = nn.Embedding(self.relative_table_size, config.hidden_size)
            self.relative_position = RelativePosition(buckets=config.position_buckets, max_distance=config.relative_distance)
            if config.norm_rel_ebd == "layer_norm":
                self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.conv = ConvLayer(config) if config.conv_kernel_size > 0 else None
        self.kept_rel_embedding = None

    def run_layer(
        self,
        index: int,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        rel_embeddings: torch.Tensor | None,
        query_states: torch.Tensor | None = None,
        **options,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Layer `index` of `num_layers`, wherever its weights are stored; arguments as in `DebertaExtLayer`."""
        layer = self.layer[min(index, len(self.layer) - 1)]
        if not (layer.owns_attention and layer.owns_feed_forward):
            # As a function: accelerate moves whatever argument can be moved to the device of the layer, weights with it.
            options["first"] = lambda: self.layer[0]
        return layer(hidden_states, attention_mask, rel_embeddings, query_states, **options)

    def get_rel_embedding(self, length: int | None = None, device: torch.device | None = None) -> torch.Tensor | None:
        """[R, hidden], the relative table as the layers read it: looked up, so that it is an activation, no parameter.

        With `length`, only the rows that sequences of this length need, from `first_row` on. `device` is that of the states,
        which offloaded weights are not on; None: that of the table.
        """
        if not self.relative_table_size:
            return None
        first, end = 0, self.relative_table_size
        if length is not None:
            first, end = self.first_row(length), self.relative_position.row(length - 1) + 1
        device = self.rel_embeddings.weight.device if device is None else device
        P = self.rel_embeddings(torch.arange(first, end, device=device))
        return self.LayerNorm(P) if hasattr(self, "LayerNorm") else P

    def first_row(self, length: int) -> int:
        return self.relative_position.row(1 - length)

    def positions(self, length: int, device: torch.device) -> tuple[torch.Tensor | None, dict]:
        """The relative table and what else attention needs to know about positions in sequences of up to `length`, for
        states on `device`."""
        if not self.relative_table_size:
            return None, {}
        delta, reach = self.relative_position(length), self.relative_position.max_distance
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if torch.is_grad_enabled() and not traced:
            return self.get_rel_embedding(length, device), dict(delta=delta - self.first_row(length), reach=reach)
        # At inference the whole table, and the same object while it is the same: its projections are kept by the layers.
        P = self.get_rel_embedding(device=device)
        if P.device.type == "cpu" and not traced:
            kept = self.kept_rel_embedding
            if kept is None or kept.dtype != P.dtype or not torch.equal(kept, P):
                self.kept_rel_embedding = P
            P = self.kept_rel_embedding
        return P, dict(delta=delta, reach=reach)

    def __getstate__(self):
        return super().__getstate__() | {"kept_rel_embedding": None}

    def train(self, mode: bool = True):
        self.kept_rel_embedding = None
        return super().train(mode)

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
            skip_last_layer (`bool`): stop before the last layer, for EMD, which runs it in its own way.
            packed (`PackedSequences`, *optional*): the documents of hidden_states [1, T, hidden]; without masks.
        """
        embeddings = hidden_states
        longest = hidden_states.shape[1] if packed is None else max(packed.lengths)
        rel_embeddings, options = self.positions(longest, hidden_states.device)
        options.update(packed=packed, output_attentions=output_attentions)
        all_states, all_probs = [hidden_states], []
        for index in range(self.num_layers - skip_last_layer):
            hidden_states, probs = self.run_layer(index, hidden_states, attention_mask, rel_embeddings, **options)
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

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Embeddings of words, token types and absolute positions, with the parameter names of deberta-v2."""

import torch
from torch import nn

from .unpadding import PackedSequences

__all__ = ["DebertaExtEmbeddings"]


class DebertaExtEmbeddings(nn.Module):
    """word (+ token type) (+ position) -> embed_proj if E != hidden -> LayerNorm -> padding to zero -> dropout."""

    def __init__(self, config):
        super().__init__()
        E = config.embedding_size
        self.embedding_size = E
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
        """Return [1 or B, N, E] rows of the absolute position table; without `position_ids` they count from the first real
        token, so that left padding changes nothing, and from the first token of each packed document.

        `device` is the device of the states: weights that are offloaded are elsewhere until their module runs.

        Raises:
            ValueError: the input is longer than the table.
        """
        if position_ids is None:
            longest = length
            if packed is not None:
                longest = max(packed.lengths)
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
        """Project [..., E] -> [..., hidden]."""
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
        """Embed [B, N] ids or [B, N, E] `inputs_embeds`, with `token_mask` [B, N] bool (False = padding) -> [B, N,
        hidden]."""
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
        # Other shapes would be broadcast.
        if inputs_embeds.shape[-1] != self.embedding_size:
            raise ValueError(
                f"inputs_embeds must have embedding_size = {self.embedding_size} columns, got {list(inputs_embeds.shape)}"
            )
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

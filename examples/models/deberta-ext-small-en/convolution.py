# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""n-gram induced input encoding (nGiE): the convolution beside the first layer of DeBERTa-v2."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from .unpadding import PackedSequences

__all__ = ["ConvLayer"]


class ConvLayer(nn.Module):
    """LN(output of layer 0 + act(dropout(conv(embeddings)))), zero at padding."""

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
            # With zeros between the documents, as at padding.
            places, length = packed.windows(self.conv.padding[0])
            spaced = embeddings.new_zeros(1, length, embeddings.shape[2]).index_copy(1, places, embeddings)
            out = self.conv(spaced.transpose(1, 2)).transpose(1, 2).index_select(1, places)
        if token_mask is not None:
            out = out.masked_fill(~token_mask[..., None], 0.0)
        out = self.LayerNorm(states + self.activation(self.dropout(out)))
        return out if token_mask is None else out * token_mask[..., None].to(out.dtype)

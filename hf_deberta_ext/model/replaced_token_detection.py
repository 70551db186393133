# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The head of replaced token detection (DeBERTa-v3; ELECTRA's objective)."""

import torch
from torch import nn
from transformers.activations import ACT2FN

__all__ = ["ReplacedTokenDetectionHead"]


class ReplacedTokenDetectionHead(nn.Module):
    """`mask_predictions.*` of the official checkpoints: w·act(dense(LayerNorm(h + h_cls))) for each token.

    The [CLS] state is added to every token, which is in the released code but not in the paper.
    """

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor, cls_states: torch.Tensor | None = None) -> torch.Tensor:
        """[B, N, hidden] -> [B, N] logits; positive = the token was replaced. `cls_states` [B, 1 or N, hidden]: the [CLS]
        state for each token; None = the first token's."""
        states = self.LayerNorm((hidden_states[:, :1] if cls_states is None else cls_states) + hidden_states)
        return self.classifier(self.activation(self.dense(states))).squeeze(-1)

# SPDX-License-Identifier: Apache-2.0
"""Sizes and random weights of tiny models."""

import torch

TINY = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
# Token ids that a joint model never replaces.
SPECIAL = [0, 1, 2, 3, 63]
# Kinds of embedding sharing.
SHARING = ["gdes", "es", "nes", "all"]


def random_weights(model, seed=0, std=0.15):
    """Fill every parameter with random numbers large enough to matter; return the model in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.empty(parameter.shape).normal_(0, std, generator=generator)
            parameter.copy_(1 + noise if name.endswith("LayerNorm.weight") else noise)
    return model.eval()

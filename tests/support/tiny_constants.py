# SPDX-License-Identifier: Apache-2.0
"""Constants of the tiny models that the fixtures of conftest.py build."""

__all__ = ["SHARING", "SPECIAL", "TINY"]

TINY = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
# Token ids that a joint model never replaces.
SPECIAL = [0, 1, 2, 3, 63]
# Forms of embedding sharing.
SHARING = ["gdes", "es", "nes", "all"]

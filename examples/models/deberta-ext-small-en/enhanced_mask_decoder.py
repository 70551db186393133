# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The Enhanced Mask Decoder (DeBERTa section 3.2) and the masked-language-model head."""

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2FN

__all__ = ["EnhancedMaskDecoder", "MaskedLMHead", "labelled_positions"]


class EnhancedMaskDecoder(nn.Module):
    """Runs the encoder's last layer n times with a query stream that has seen absolute positions.

    With H the input of the last layer (its keys and values, in every pass) and I the first query:
    Q_1 = layer(query = I, keys and values = H), Q_{t+1} = layer(query = Q_t, keys and values = H). All passes share the
    layer's weights. The released models use n = 2 and I = positions + H. n = 1 and I = H is BERT's decoder.

    Args:
        num_layers (`int`): n.
        input (`str`): I, "position+hidden", "position" or "hidden".
    """

    def __init__(self, num_layers: int = 2, input: str = "position+hidden"):
        super().__init__()
        self.num_layers, self.input = num_layers, input

    def forward(
        self,
        hidden_states: torch.Tensor,
        positions: torch.Tensor | None,
        layer: Callable[[torch.Tensor, torch.Tensor | None, int], torch.Tensor],
        query_positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Decode queries on the input of the last layer.

        Args:
            hidden_states (`torch.Tensor`): H, [B, N, hidden].
            positions (`torch.Tensor`, *optional*): absolute position states, [1 or B, N, hidden]; unused for "hidden".
            layer (`Callable`): `layer(query_states, query_positions, n)` -> [B, Q, hidden], n passes of the last layer on H.
            query_positions (`torch.LongTensor`, *optional*): [B, Q] the positions to decode; None = all, Q = N. Queries do
                not see each other, so this is exact.

        Returns:
            [B, Q, hidden].
        """
        queries = hidden_states
        if self.input != "hidden":
            queries = positions.expand_as(hidden_states)
            if self.input == "position+hidden":
                queries = queries + hidden_states
        if query_positions is not None:
            index = query_positions[..., None].expand(-1, -1, queries.shape[-1])
            queries = queries.gather(1, index)
        return layer(queries, query_positions, self.num_layers)


def labelled_positions(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the positions of the labels [B, N] that are not -100.

    Returns:
        positions [B, Q], Q = the largest number of labels in a row (at least 1), each row's labelled positions in order and
        then filler, and a mask [B, Q] that is False on the filler.
    """
    labelled = labels != -100
    counts = labelled.sum(1)
    Q = max(int(counts.max()), 1)
    positions = (~labelled).to(torch.uint8).argsort(dim=1, stable=True)[:, :Q]
    return positions, torch.arange(Q, device=labels.device) < counts[:, None]


class LMTransform(nn.Module):
    """dense (hidden -> E), activation, LayerNorm, and the decoder, tied to the word embeddings [V, E]."""

    def __init__(self, config):
        super().__init__()
        E = config.embedding_size
        self.dense = nn.Linear(config.hidden_size, E)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(E, config.layer_norm_eps)
        # The bias has the name that official checkpoints store, and no other: FSDP shards no parameter of two modules.
        self.decoder = nn.Linear(E, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: torch.Tensor, transformed: bool = False) -> torch.Tensor:
        """Return logits [..., V] of [..., hidden], or of [..., E] states that another head has `transformed`."""
        if not transformed:
            states = self.LayerNorm(self.activation(self.dense(states)))
        return self.decoder(states) + self.bias


class MaskedLMHead(nn.Module):
    """`lm_predictions.lm_head.*` of the official checkpoints: [..., hidden] -> [..., vocab_size] logits."""

    def __init__(self, config):
        super().__init__()
        self.lm_head = LMTransform(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden_states)

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Gradient-disentangled embedding sharing, GDES (DeBERTaV3 section 3.3): E_D = sg(E_G) + E_delta."""

import torch
from torch import nn

__all__ = ["DeltaEmbedding", "GradientDisentangledEmbedding"]


class DeltaEmbedding(nn.Embedding):
    """A table that begins at zero. A class of its own, because transformers initialises modules by their class, and leaves
    out those without parameters of their own, such as the next."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)


class GradientDisentangledEmbedding(nn.Module):
    """The discriminator's embedding table under GDES, by two look-ups: the generator's row, of which no gradient comes back,
    and the row of a table of its own, E_delta, which begins at zero and takes all of the gradient.

    No table of the sums is ever made for a forward pass, and there are no hooks, so that copies, checkpoints, compilers and
    distributed wrappers see an embedding like any other.

    Args:
        source (`nn.Embedding`): the generator's table [V, E]. It stays the generator's: here it is no parameter.
    """

    def __init__(self, source: nn.Embedding):
        super().__init__()
        self.delta = DeltaEmbedding(source.num_embeddings, source.embedding_dim, padding_idx=source.padding_idx)
        self.borrow(source)

    def borrow(self, source: nn.Embedding):
        """Reads `source` from now on: after the generator's table was exchanged."""
        # In a tuple, where nn.Module does not find it and register it twice.
        self._source = (source,)

    @property
    def source(self) -> nn.Embedding:
        return self._source[0]

    @property
    def num_embeddings(self) -> int:
        return self.delta.num_embeddings

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] ids -> [..., E]"""
        return self.source(ids).detach() + self.delta(ids)

    @torch.no_grad()
    def table(self) -> torch.Tensor:
        """[V, E], E_G + E_delta, summed in float32: what an exported discriminator stores."""
        weight = self.source.weight
        return (weight.float() + self.delta.weight.float()).to(weight.dtype)

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Embedding sharing between generator and discriminator: ES, NES and GDES (DeBERTaV3 section 3.3), and the whole encoder."""

import torch
from torch import nn

__all__ = ["TABLES", "DeltaEmbedding", "GradientDisentangledEmbedding", "embedding_tables", "share_embeddings"]

TABLES = ("word_embeddings", "position_embeddings")


def share_embeddings(method: str, generator: nn.Module, discriminator: nn.Module) -> list[str]:
    """Let the encoder `discriminator` share the embedding tables E of the encoder `generator`.

    Args:
        method (`str`): `config.embedding_sharing`:

            - "es", embedding sharing (ELECTRA): E_D = E_G, one table, which both losses train.
            - "nes", no embedding sharing: two tables.
            - "gdes", gradient-disentangled: E_D = sg(E_G) + E_delta, by `GradientDisentangledEmbedding`.
            - "all": the two, of one size, share every weight of their encoders (ELECTRA section 3.2).

    Returns:
        names of the parameters that the two have in common, for transformers to tie.
    """
    tables = [name for name in TABLES if hasattr(discriminator.embeddings, name)]
    if method == "es":
        return [f"embeddings.{name}.weight" for name in tables]
    if method == "all":
        return [name for name, _ in discriminator.named_parameters()]
    if method == "gdes":
        for name in tables:
            source = getattr(generator.embeddings, name)
            setattr(discriminator.embeddings, name, GradientDisentangledEmbedding(source))
    return []


def embedding_tables(encoder: nn.Module) -> dict[str, torch.Tensor]:
    """Return the word and position tables of an encoder that shares none, by name."""
    return {name: getattr(encoder.embeddings, name).weight for name in TABLES if hasattr(encoder.embeddings, name)}


class DeltaEmbedding(nn.Embedding):
    """A table that begins at zero. A separate class, because transformers initialises modules by their class, and leaves
    out modules without parameters, such as the next."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)


class GradientDisentangledEmbedding(nn.Module):
    """The discriminator's embedding table under GDES, by two look-ups: the generator's row, which gets no gradient, and the
    row of a separate table, E_delta, which begins at zero and takes all of the gradient.

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
        """Read `source` from now on, after the generator's table was exchanged."""
        # In a tuple, where nn.Module does not find it and register it twice.
        self._source = (source,)

    @property
    def source(self) -> nn.Embedding:
        return self._source[0]

    @property
    def num_embeddings(self) -> int:
        return self.delta.num_embeddings

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [...] -> [..., E]."""
        return self.source(ids).detach() + self.delta(ids)

    @torch.no_grad()
    def table(self) -> torch.Tensor:
        """Return [V, E], E_G + E_delta, summed in float32: what an exported discriminator stores."""
        weight = self.source.weight
        return (weight.float() + self.delta.weight.float()).to(weight.dtype)

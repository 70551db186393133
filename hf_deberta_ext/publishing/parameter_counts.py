# SPDX-License-Identifier: Apache-2.0
"""How many parameters each part of a preset has, counted on models without weights."""

import functools
from dataclasses import dataclass

from ..model.configuration_deberta_ext import DebertaExtConfig

__all__ = ["ParameterCounts", "count_parameters"]


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a preset, counted on models without weights.

    Args:
        layers (`int`): all layers, with the convolution of v2.
        relative (`int`): the relative position table and its LayerNorm.
        words, positions (`int`): the tables of words and of absolute positions.
        embedding_norm (`int`): the LayerNorm of the embeddings.
        position_projections (`int`): those of `layers` that project the relative table alone (v1).
        unpublished_biases (`int`): those of `layers` that v1's files do not have, and that are zero here.
        pooler, masked_lm_head, detection_head (`int`): what heads add; the decoder of the second is the table of words.
    """

    layers: int
    relative: int
    words: int
    positions: int
    embedding_norm: int
    position_projections: int
    unpublished_biases: int
    pooler: int
    masked_lm_head: int
    detection_head: int

    @property
    def encoder(self) -> int:
        return self.layers + self.relative

    @property
    def embeddings(self) -> int:
        return self.words + self.positions + self.embedding_norm

    @property
    def total(self) -> int:
        return self.encoder + self.embeddings


@functools.cache
def count_parameters(name: str) -> ParameterCounts:
    """Counts the parameters of a preset; nothing is allocated.

    Raises:
        ValueError: there is no such preset.
    """
    import torch

    from ..model.encoder import ContextPooler
    from ..model.masked_language_model import DebertaExtForMaskedLM
    from ..model.replaced_token_detection import ReplacedTokenDetectionHead

    config = DebertaExtConfig.from_preset(name)
    with torch.device("meta"):
        model = DebertaExtForMaskedLM(config)
        heads = [ContextPooler(config), ReplacedTokenDetectionHead(config)]
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}

    def count(*parts: str) -> int:
        return sum(size for key, size in sizes.items() if any(part in key for part in parts))

    own_positions = not config.share_att_key
    counts = ParameterCounts(
        layers=count("encoder.layer.", "encoder.conv."),
        relative=count("encoder.rel_embeddings", "encoder.LayerNorm"),
        words=count("word_embeddings"),
        positions=count("position_embeddings"),
        embedding_norm=count("embeddings.LayerNorm"),
        position_projections=count("pos_key_proj", "pos_query_proj"),
        unpublished_biases=count("self.key_proj.bias", "pos_key_proj.bias") if own_positions else 0,
        pooler=sum(parameter.numel() for parameter in heads[0].parameters()),
        masked_lm_head=count("lm_predictions"),
        detection_head=sum(parameter.numel() for parameter in heads[1].parameters()),
    )
    assert counts.total + counts.masked_lm_head == sum(sizes.values())
    return counts

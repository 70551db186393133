# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""ALBERT's cross-layer parameter sharing (Lan et al. 2020, section 3.1).

The encoder runs `num_hidden_layers` layers. With `share_layers` = "all" it stores only layer 0, which runs every time; with
"ffn" or "attention" it stores that half of a layer only in layer 0.
"""

import torch
from torch import nn

__all__ = ["owned_halves", "run_layer", "stored_layers"]


def stored_layers(config) -> int:
    """Return the number of layers that are stored."""
    if config.share_layers == "all":
        return 1
    return config.num_hidden_layers


def owned_halves(config, index: int) -> tuple[bool, bool]:
    """Tell if layer `index` stores its attention, and its feed-forward network."""
    return index == 0 or config.share_layers != "attention", index == 0 or config.share_layers != "ffn"


def run_layer(
    layers: nn.ModuleList,
    index: int,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    rel_embeddings: torch.Tensor | None,
    query_states: torch.Tensor | None = None,
    **options,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run layer `index` of the encoder with the stored `layers`; arguments and results as in `DebertaExtLayer`."""
    layer = layers[min(index, len(layers) - 1)]
    if not (layer.owns_attention and layer.owns_feed_forward):
        # As a function: accelerate moves whatever argument can be moved to the device of the layer, weights with it.
        options["first"] = lambda: layers[0]
    return layer(hidden_states, attention_mask, rel_embeddings, query_states, **options)

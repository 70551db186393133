# SPDX-License-Identifier: Apache-2.0
"""Verify a converted checkpoint: compare its tensors and encoder outputs with the original model."""

import copy
from pathlib import Path

import torch
from transformers import DebertaV2Model, PreTrainedModel

from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from .deberta_v2 import to_deberta_v2_state_dict

__all__ = ["check_folder"]

# Maximum difference relative to the largest output, for float32 sums in another order.
TOLERANCE = 1e-4


def check_folder(model: DebertaExtPreTrainedModel, folder: Path, to: str) -> list[str]:
    """Load the checkpoint in `folder` and compare it with `model`; return one line of text for each comparison.

    Raises:
        ValueError: If a tensor or an output of the encoder differs from the model's.
    """
    decoder = {}
    state_dict = type(model).state_dict
    if to == "deberta-v2":
        state_dict = to_deberta_v2_state_dict
        if hasattr(model, "lm_predictions"):
            # deberta-v2 configurations do not have these fields.
            decoder = dict(emd_layers=model.config.emd_layers, emd_input=model.config.emd_input)
    reread = type(model).from_pretrained(folder, dtype=model.dtype, **decoder)
    expected, got = state_dict(model), state_dict(reread)
    different = {*expected} ^ {*got}
    different |= {name for name in {*expected} & {*got} if not torch.equal(expected[name], got[name])}
    if different:
        raise ValueError(f"{len(different)} tensors of the written folder differ from the model, such as {min(different)}")
    checks = [f"{len(expected)} tensors are equal"]
    others = {"the written folder": getattr(reread, "discriminator", reread).base_model}
    if to == "deberta-v2":
        others["transformers' DebertaV2Model"] = DebertaV2Model.from_pretrained(folder)
    states = encoder_states(getattr(model, "discriminator", model).base_model)
    for name, other in others.items():
        difference = (encoder_states(other) - states).abs().max() / states.abs().max()
        # Also True if the difference is NaN, because weights overflowed the dtype.
        if not difference <= TOLERANCE:
            raise ValueError(f"the outputs of {name} differ from the source by {difference:.1g} of the largest output")
        checks.append(f"the outputs of {name} differ by at most {difference:.1g} of the largest output")
    return checks


@torch.no_grad()
def encoder_states(encoder: PreTrainedModel) -> torch.Tensor:
    """Return the encoder's states at the real tokens of a fixed input, computed in float32, where rounding is small."""
    length = min(16, encoder.config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7 + 5).view(2, length) % encoder.config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    states = copy.deepcopy(encoder).float().eval()(ids, attention_mask=mask).last_hidden_state
    return states[mask.bool()]

# SPDX-License-Identifier: Apache-2.0
"""Verify a converted checkpoint: compare the tensors and outputs of the folder with those of the model."""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers

from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from ..tokenization import load_tokenizer
from .deberta_v2 import to_deberta_v2_state_dict

__all__ = ["check_folder", "check_written_tokenizer", "compute_outputs"]

# Largest difference of outputs, relative to the largest output: the same weights, summed in another order, in float32.
TOLERANCE = 1e-4


def check_folder(model: DebertaExtPreTrainedModel, folder: Path, to: str) -> list[str]:
    """Read a written folder again and compare it with the model; return the comparisons as lines.

    Raises:
        ValueError: A tensor or an output differs from that of the model.
    """
    decoder = {}
    state_dict = type(model).state_dict
    if to == "deberta-v2":
        state_dict = to_deberta_v2_state_dict
        if hasattr(model, "lm_predictions"):
            # deberta-v2 has no place for these fields.
            decoder = dict(emd_layers=model.config.emd_layers, emd_input=model.config.emd_input)
    reread = type(model).from_pretrained(folder, dtype=model.dtype, **decoder).eval()
    expected, got = state_dict(model), state_dict(reread)
    if expected.keys() != got.keys():
        raise ValueError(f"other tensors were written than the model has: {', '.join(sorted({*expected} ^ {*got})[:3])}")
    for name, tensor in expected.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are not finite as {tensor.dtype}; choose another --dtype")
        if not torch.equal(tensor, got[name]):
            raise ValueError(f"{name} is not what was written")
    # In float32: rounding in half precision depends on the order of the sums.
    reference = copy.deepcopy(model).float()
    checks = [f"{len(expected)} tensors are equal", compare_outputs(reference, reread.float(), "what was written")]
    if to == "deberta-v2":
        names = ["DebertaV2Model"]
        if model.base_model is not model and not hasattr(model, "lm_predictions") and not hasattr(model, "mask_predictions"):
            names.append(type(model).__name__.replace("DebertaExt", "DebertaV2"))
        for name in names:
            stock = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
            same = reference.base_model if name == "DebertaV2Model" else reference
            checks.append(compare_outputs(same, stock, f"transformers' {name}"))
    return checks


def compare_outputs(model: Any, other: Any, name: str) -> str:
    """Compare the outputs of two models; the largest difference is relative to the largest output."""
    expected, got = compute_outputs(model), compute_outputs(other)
    largest = 0.0
    for key, values in expected.items():
        difference = (values - got[key]).abs().max() / values.abs().max().clamp(min=1e-12)
        # NaN stays, and is refused below.
        largest = torch.maximum(difference, torch.tensor(largest)).item()
    if not largest <= TOLERANCE:
        raise ValueError(f"the outputs of {name} differ from the source's by {largest:.1g} of the largest")
    return f"the outputs of {name} differ by at most {largest:.1g} of the largest"


def check_written_tokenizer(tokenizer: Any, folder: Path) -> str:
    """Compare the tokenizer in a written folder with the one that was saved there."""
    reread = load_tokenizer(folder)
    text = "The new store, opened beside the new mall: naïve 1,234.5 [MASK]!"
    if reread.get_vocab() != tokenizer.get_vocab() or reread(text, text).data != tokenizer(text, text).data:
        raise ValueError("the tokenizer that was written does not encode as the one that was read")
    return f"the tokenizer has the same {len(tokenizer)} tokens and encodes alike"


def compute_outputs(model: Any) -> dict[str, torch.Tensor]:
    """Return the outputs in float32 for a fixed input of two rows, the second padded; outputs at padding are left out."""
    length = min(16, model.config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7 + 5).view(2, length) % model.config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    inputs = dict(input_ids=ids, attention_mask=mask)
    if "MultipleChoice" in type(model).__name__:
        inputs = dict(input_ids=ids[None], attention_mask=mask[None])
    elif "EntityScoring" in type(model).__name__:
        inputs["entity_indices"] = ids.new_tensor([[[1, 2]]] * 2)
    with torch.no_grad():
        output = dict(model(**inputs))
        if hasattr(model, "generator"):
            logits = model.generator(**inputs).logits
            output = {"discriminator_logits": output["discriminator_logits"], "generator_logits": logits}
    outputs = {}
    for name, value in output.items():
        if torch.is_tensor(value):
            is_token_wise = value.shape[:2] == mask.shape
            outputs[name] = value[mask.bool()].float() if is_token_wise else value.float()
    return outputs

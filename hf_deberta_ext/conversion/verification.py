# SPDX-License-Identifier: Apache-2.0
"""Verification of a converted checkpoint: tensors and outputs of the folder beside those of the model."""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers

from ..model.pretrained_model import DebertaExtPreTrainedModel
from ..tokenization import load_tokenizer
from .deberta_v2 import to_deberta_v2_state_dict

__all__ = ["check_folder", "check_written_tokenizer", "compute_outputs", "measure_rounding"]

# Of outputs, relative to the largest: the same weights, summed in another order, in float32.
TOLERANCE = 1e-4


def check_folder(model: DebertaExtPreTrainedModel, folder: Path, to: str) -> list[str]:
    """Read a written folder again; returns in words which comparisons were made.

    Raises:
        ValueError: a tensor or an output differs from the model's.
    """
    # deberta-v2 has no place for these fields.
    names = ("emd_layers", "emd_input") if to == "deberta-v2" and hasattr(model, "lm_predictions") else ()
    decoder = {name: getattr(model.config, name) for name in names}
    reread = type(model).from_pretrained(folder, dtype=model.dtype, **decoder).eval()
    expected, got = (to_deberta_v2_state_dict(m) if to == "deberta-v2" else m.state_dict() for m in (model, reread))
    if names := sorted({*expected} ^ {*got}):
        raise ValueError(f"what was written has other tensors than the model: {', '.join(names[:3])}")
    for name, tensor in expected.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are not finite as {tensor.dtype}; choose another --dtype")
        if not torch.equal(tensor, got[name]):
            raise ValueError(f"{name} is not what was written")
    # Rounding in half precision depends on the order of the sums.
    reference = copy.deepcopy(model).float()
    worst = largest_difference(compute_outputs(reference), compute_outputs(reread.float()))
    if not worst <= TOLERANCE:
        raise ValueError(f"the outputs of what was written differ from the source's by {worst:.1g} of the largest")
    checks = [f"{len(expected)} tensors are equal; the outputs {in_words(worst)}"]
    if to == "deberta-v2":
        del reread, got
        checks.append(check_with_transformers(reference, folder))
    return checks


def check_with_transformers(model: DebertaExtPreTrainedModel, folder: Path) -> str:
    """Compare the encoder, in float32, with transformers' own class, and the head where that class computes the same."""
    names = ["DebertaV2Model"]
    if model.base_model is not model and not hasattr(model, "lm_predictions") and not hasattr(model, "mask_predictions"):
        names.append(type(model).__name__.replace("DebertaExt", "DebertaV2"))
    differences = []
    for name in names:
        stock = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
        expected = compute_outputs(model.base_model if name == "DebertaV2Model" else model)
        differences.append(largest_difference(expected, compute_outputs(stock)))
        if not differences[-1] <= TOLERANCE:
            worst = f"{differences[-1]:.1g} of the largest"
            raise ValueError(f"the outputs of transformers' {name} differ from the source's by {worst}")
    return f"the outputs of transformers' {' and '.join(names)} {in_words(max(differences))} (in float32)"


def measure_rounding(original: DebertaExtPreTrainedModel, model: DebertaExtPreTrainedModel, dtype: str) -> str:
    """The effect of a narrower dtype than `dtype`, that of the file, on the outputs; `original` is the model in float32.

    Raises:
        ValueError: outputs that are not finite.
    """
    worst = largest_difference(compute_outputs(original), compute_outputs(model))
    if not worst < float("inf"):
        raise ValueError(f"the outputs are not finite in {model.dtype}; choose another --dtype")
    return f"{str(model.dtype).removeprefix('torch.')} instead of {dtype} changes the outputs by {worst:.1g} of the largest"


def check_written_tokenizer(tokenizer: Any, folder: Path) -> str:
    """Compare the tokenizer in a written folder with the one that was saved there."""
    reread = load_tokenizer(folder)
    text = "The new store, opened beside the new mall: naïve 1,234.5 [MASK]!"
    if reread.get_vocab() != tokenizer.get_vocab() or reread(text, text).data != tokenizer(text, text).data:
        raise ValueError("the tokenizer that was written does not encode as the one that was read")
    return f"the tokenizer has the same {len(tokenizer)} tokens and encodes alike"


def compute_outputs(model: Any) -> dict[str, torch.Tensor]:
    """Outputs in float32 for a fixed input of two rows, the second padded; outputs at padding are left out."""
    length = min(16, model.config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7 + 5).view(2, length) % model.config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    with torch.no_grad():
        if "MultipleChoice" in type(model).__name__:
            return {"logits": model(ids[None], attention_mask=mask[None]).logits.float()}
        entities = dict(entity_indices=ids.new_tensor([[[1, 2]]] * 2)) if "EntityScoring" in type(model).__name__ else {}
        output = {**model(ids, attention_mask=mask, **entities)}
        if hasattr(model, "generator"):
            logits = model.generator(ids, attention_mask=mask).logits
            output = {"discriminator_logits": output["discriminator_logits"], "generator_logits": logits}
    tensors = {name: x.float() for name, x in output.items() if torch.is_tensor(x)}
    is_token = mask.bool()
    return {name: x[is_token] if x.shape[:2] == mask.shape else x for name, x in tensors.items()}


def largest_difference(expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> float:
    """Of any output, relative to its largest expected value; NaN where an output has one."""
    differences = [((x - got[name]).abs().max() / x.abs().max().clamp(min=1e-12)).item() for name, x in expected.items()]
    return torch.tensor(differences, dtype=torch.float64).max().item()


def in_words(difference: float) -> str:
    return f"differ by at most {difference:.1g} of the largest" if difference else "are equal"

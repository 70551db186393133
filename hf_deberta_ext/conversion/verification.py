# SPDX-License-Identifier: Apache-2.0
"""Verify a converted checkpoint: compare its tensors and encoder outputs with the original model, and int8 decisions."""

import copy
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import DebertaV2Model, PreTrainedModel, PreTrainedTokenizerBase

from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from .deberta_v2 import to_deberta_v2_state_dict

__all__ = ["check_folder", "compare_int8"]

# Maximum difference relative to the largest output, for float32 sums in another order.
TOLERANCE = 1e-4
# Models whose logits are decisions about one text.
OF_SINGLE_TEXTS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM")


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


@torch.inference_mode()
def compare_int8(
    model: DebertaExtPreTrainedModel,
    int8: DebertaExtPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str] | None = None,
) -> list[str]:
    """Compare a float32 model with its int8 copy, one text at a time; return one line of text for each comparison.

    Decisions are the largest logits. A model without logits for single texts is compared by the states of its encoder.

    Args:
        texts (`Sequence[str]`, *optional*): texts to compare; default: 100 paragraphs of Python's reference.
    """
    if texts is None:
        paragraphs = "\n\n".join(topics.values()).split("\n\n")
        texts = [" ".join(paragraph.split()) for paragraph in paragraphs if len(paragraph) > 100][:100]
    has_logits = type(model).__name__.endswith(OF_SINGLE_TEXTS)
    pair = [model, int8] if has_logits else [model.base_model, int8.base_model]
    equal, decisions, cosines, seconds = 0, 0, [], [[], []]
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        results = []
        for side, times in zip(pair, seconds, strict=True):
            start = time.perf_counter()
            outputs = side(**inputs)
            times.append(time.perf_counter() - start)
            names = [name for name in ("logits", "start_logits", "end_logits", "last_hidden_state") if name in outputs]
            results.append([outputs[name].float() for name in names])
        for exact, rounded in zip(*results, strict=True):
            cosines.append(torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0).item())
            same = exact.argmax(-1) == rounded.argmax(-1)
            equal, decisions = equal + int(same.sum()), decisions + same.numel()
    before, after = (1000 * statistics.median(times) for times in seconds)
    lines = [f"{len(texts)} texts, one at a time: {before:.1f} ms in float32, {after:.1f} ms in int8 (medians)"]
    if has_logits:
        lines.append(f"{equal} of {decisions} decisions are equal ({equal / decisions:.1%})")
    compared = "logits" if has_logits else "states"
    lines.append(f"cosine of the {compared}: {statistics.mean(cosines):.4f} on average, lowest {min(cosines):.4f}")
    return lines

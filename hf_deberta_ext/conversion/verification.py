# SPDX-License-Identifier: Apache-2.0
"""Verify a converted model: compare its tensors, outputs and decisions with the original model."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import DebertaV2Model, PreTrainedModel, PreTrainedTokenizerBase

from ..export import reads_absolute_positions
from ..model.modeling_deberta_ext import (
    DebertaExtForMultipleChoice,
    DebertaExtForSequenceClassification,
    DebertaExtPreTrainedModel,
)
from .deberta_v2 import to_deberta_v2_state_dict

__all__ = ["OnnxFile", "check_folder", "check_onnx", "compare_on_texts", "onnx_differences"]

# Maximum difference relative to the largest output, for float32 sums in another order.
TOLERANCE = 1e-4
# Models that predict the index of the largest logit for one text.
OF_SINGLE_TEXTS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM")
# (rows, tokens, side of the padding): lengths and batch sizes other than those of the traced inputs.
SHAPES = ((1, 1, "none"), (3, 2, "right"), (4, 37, "left"), (2, 73, "right"))


def check_folder(model: DebertaExtPreTrainedModel, folder: Path, to: str) -> list[str]:
    """Load the checkpoint in `folder` and compare this model with `model`; return one line of text for each comparison."""
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
        checks.append(check_difference(name, (encoder_states(other) - states).abs().max() / states.abs().max()))
    return checks


def check_difference(name: str, difference: torch.Tensor | float) -> str:
    """Describe a relative difference of outputs in one line; raise a ValueError if the difference exceeds `TOLERANCE`."""
    # Also True if the difference is NaN, because weights overflowed the dtype.
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the outputs of {name} differ from the model's outputs by up to {difference:.1g}, relative to the largest "
            f"output, expected at most {TOLERANCE:g}"
        )
    return f"the outputs of {name} differ by at most {difference:.1g}, relative to the largest output"


@torch.no_grad()
def encoder_states(encoder: PreTrainedModel) -> torch.Tensor:
    """Compute the encoder's states for a fixed input in float32, where rounding errors are small; drop states at padding."""
    length = min(16, encoder.config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7 + 5).view(2, length) % encoder.config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    states = copy.deepcopy(encoder).float().eval()(ids, attention_mask=mask).last_hidden_state
    return states[mask.bool()]


class OnnxFile:
    """Model in an ONNX file. Call it with named tensors to get a dict of outputs. It runs on as many threads as torch."""

    def __init__(self, file: Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        arrays = self.session.run(self.outputs, {name: inputs[name].numpy() for name in self.inputs})
        return dict(zip(self.outputs, map(torch.from_numpy, arrays), strict=True))


def check_onnx(model: DebertaExtPreTrainedModel, file: Path) -> str:
    """Compare a float32 ONNX file with its model on random inputs of several shapes; return a line of text."""
    return check_difference("the file", max(onnx_differences(model, file)))


@torch.inference_mode()
def onnx_differences(
    model: DebertaExtPreTrainedModel, file: Path, shapes: Sequence[tuple[int, int, str]] = SHAPES
) -> Iterator[float]:
    """For each of `shapes`, yield the largest difference between the outputs of an ONNX file and of its model, relative to
    the largest output; outputs at padding are ignored.

    Args:
        shapes: (batch size, length, padding) of the random inputs. If padding is "right" or "left", the right or left half
            of every second row is padding; "none": no padding. Lengths are limited to the table of absolute positions, if
            there is one.
    """
    exported, longest = OnnxFile(file), max(length for _, length, _ in shapes)
    if reads_absolute_positions(model):
        longest = model.config.max_position_embeddings
    for batch, length, padding in shapes:
        shape = [batch, min(length, longest)]
        if isinstance(model, DebertaExtForMultipleChoice):
            shape.insert(1, 3)
        ids = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
        mask, half = torch.ones_like(ids), shape[-1] // 2
        if padding == "right":
            mask[1::2, ..., max(1, half) :] = 0
        elif padding == "left":
            mask[1::2, ..., :half] = 0
        types = torch.zeros_like(ids)
        if model.config.type_vocab_size > 1:
            types[..., half:] = 1
        inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=types)
        expected, largest, difference = model(**inputs), 0.0, 0.0
        for name, values in exported(**inputs).items():
            exact = expected[name]
            # Logits of tokens, not of rows
            if exact.shape[: mask.dim()] == mask.shape and not isinstance(model, DebertaExtForSequenceClassification):
                exact, values = exact[mask.bool()], values[mask.bool()]
            difference = max(difference, (exact - values).abs().max().item())
            largest = max(largest, exact.abs().max().item())
        yield difference / largest


@torch.inference_mode()
def compare_on_texts(
    model: DebertaExtPreTrainedModel,
    converted: Callable[..., Mapping[str, torch.Tensor]],
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str] | None = None,
) -> list[str]:
    """Compare a float32 model with its converted form, one text at a time; return one line of text for each comparison.

    A decision is the index of the largest logit. Decisions are only compared for models whose prediction for one text is
    such an index: sequence and token classification, question answering, masked language models. For other models, only
    logits or states are compared.

    Args:
        converted: int8 model or `OnnxFile`.
        name (`str`): name of the converted form.
        texts (`Sequence[str]`, *optional*): texts to compare; default: 100 paragraphs of Python's reference.
    """
    if texts is None:
        paragraphs = "\n\n".join(topics.values()).split("\n\n")
        texts = [" ".join(paragraph.split()) for paragraph in paragraphs if len(paragraph) > 100][:100]
    has_decisions = type(model).__name__.endswith(OF_SINGLE_TEXTS)
    sides: list[Callable[..., Mapping[str, torch.Tensor]]] = [model, converted]
    if not has_decisions and isinstance(converted, DebertaExtPreTrainedModel):
        sides = [model.base_model, converted.base_model]
    equal, decisions, cosines, seconds = 0, 0, [], [[], []]
    for text in texts:
        encoded = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
        inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        results = []
        for side, times in zip(sides, seconds, strict=True):
            start = time.perf_counter()
            outputs = side(**inputs)
            times.append(time.perf_counter() - start)
            names = [key for key in ("logits", "start_logits", "end_logits", "last_hidden_state") if key in outputs]
            results.append([outputs[key].float() for key in names])
        for exact, rounded in zip(*results, strict=True):
            cosines.append(torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0).item())
            same = exact.argmax(-1) == rounded.argmax(-1)
            equal, decisions = equal + int(same.sum()), decisions + same.numel()
    before, after = (1000 * statistics.median(times) for times in seconds)
    lines = [f"{len(texts)} texts, one at a time: {before:.1f} ms in float32, {after:.1f} ms in {name} (medians)"]
    if has_decisions:
        lines.append(f"{equal} of {decisions} decisions are equal ({equal / decisions:.1%})")
    compared = "states" if names == ["last_hidden_state"] else "logits"
    lines.append(f"cosine of the {compared}: {statistics.mean(cosines):.4f} on average, lowest {min(cosines):.4f}")
    return lines

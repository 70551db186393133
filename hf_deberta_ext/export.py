# SPDX-License-Identifier: Apache-2.0
"""Models as graphs: `torch.export` programs and ONNX files with dynamic shapes, int8, and what they lose against torch.

ONNX needs `pip install 'hf_deberta_ext[onnx]'`.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from ._version import __version__
from .model.attention import DisentangledSelfAttention
from .model.configuration_deberta_ext import DebertaExtConfig

__all__ = ["OnnxParity", "OnnxShape", "export_onnx", "export_program", "onnx_parity", "parity_shapes", "quantise_onnx"]

# What the graph of a model gives back, by the class's name: remote code brings a second copy of the class.
OUTPUTS = {
    "DebertaExtModel": ("last_hidden_state",),
    "DebertaExtForMaskedLM": ("logits",),
    "DebertaExtForReplacedTokenDetection": ("logits",),
    "DebertaExtForSequenceClassification": ("logits",),
    "DebertaExtForTokenClassification": ("logits",),
    "DebertaExtForQuestionAnswering": ("start_logits", "end_logits"),
    "DebertaExtForMultipleChoice": ("logits",),
}
JOINT, MASKED_LM, CHOICES = "DebertaExtForPreTraining", "DebertaExtForMaskedLM", "DebertaExtForMultipleChoice"
# Outputs [B, C] and so on, of a whole row; all others have one place for each token.
OF_THE_ROW = ("DebertaExtForSequenceClassification", CHOICES)
# The first with LayerNormalization, which onnxruntime runs as one operation, and all that the graphs need.
OPSET = 18
# The shape that is traced. No two sizes are equal, or the graph would hold them to be one.
TRACED = dict(batch=2, choices=3, length=20)


def export_program(model: PreTrainedModel, *, choices: int | None = None) -> torch.export.ExportedProgram:
    """The model in eval mode as a `torch.export` program, for any batch and length.

    Its inputs are keywords, int64 [B, N] each ([B, C, N] for multiple choice): input_ids, attention_mask (1 = token; needed,
    all ones without padding), and token_type_ids if `type_vocab_size` > 0. It returns a dict of last_hidden_state, logits,
    or start_logits and end_logits, as the model names them. Padded places are computed like others, never left out.

    Args:
        model: any model of this package but the joint one of pre-training, of any dtype, on any device.
        choices (`int`, *optional*): fixes the number of choices of multiple choice; None: any number.

    Returns:
        `torch.export.ExportedProgram`; `.module()` runs, `torch.export.save` writes it. Lengths go up to
        `max_position_embeddings` where the model reads absolute positions (`DebertaExtForMaskedLM`, `position_biased_input`).

    Raises:
        TypeError: not a model of this package.
        ValueError: the joint model of pre-training, or `choices` for another head than multiple choice or below 1.
    """
    name = _model_name(model)
    if choices is not None and (name != CHOICES or choices < 1):
        raise ValueError(f"choices is for {CHOICES}, a number from 1 on; got {choices} for {name}")
    sizes = TRACED | ({"choices": choices} if choices is not None else {})
    shape = tuple(size for dimension, size in sizes.items() if dimension != "choices" or name == CHOICES)
    # Not all ones: some code looks for that.
    mask = torch.ones(shape, dtype=torch.long, device=model.device)
    mask[-1, ..., -3:] = 0
    inputs = {"input_ids": torch.full_like(mask, model.config.pad_token_id or 0), "attention_mask": mask}
    if model.config.type_vocab_size > 0:
        inputs["token_type_ids"] = torch.zeros_like(mask)

    longest = {"max": model.base_model.embeddings.max_positions} if _reads_absolute_positions(model) else {}
    dims = [torch.export.Dim("batch", min=1), torch.export.Dim("sequence", min=1, **longest)]
    if name == CHOICES:
        dims.insert(1, torch.export.Dim("choices", min=1) if choices is None else None)
    dynamic = {axis: dim for axis, dim in enumerate(dims) if dim is not None}
    with _ready_for_tracing(model), torch.no_grad():
        return torch.export.export(
            _Named(model, OUTPUTS[name]), (), inputs, dynamic_shapes=dict.fromkeys(inputs, dynamic), strict=False
        )


class _Named(nn.Module):
    """The model with a plain dict of its outputs: a program can be loaded without transformers."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model, self.names = model, names

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            output_attentions=False,
            output_hidden_states=False,
            return_dict=True,
        )
        return {name: outputs[name] for name in self.names}


def _model_name(model: nn.Module) -> str:
    """The class of the model in `OUTPUTS`, also that of a subclass."""
    names = [cls.__name__ for cls in type(model).__mro__]
    if JOINT in names:
        raise ValueError(
            f"{JOINT} is a generator and a discriminator; export one of them: model.export_discriminator() or "
            "model.export_generator()"
        )
    of_ours = getattr(getattr(model, "config", None), "model_type", None) == DebertaExtConfig.model_type
    name = next((name for name in names if name in OUTPUTS), None)
    if name is None or not of_ours:
        raise TypeError(f"{type(model).__name__} is none of {', '.join(OUTPUTS)}; adapters have to be merged first")
    return name


def _reads_absolute_positions(model: PreTrainedModel) -> bool:
    config = model.config
    if config.position_biased_input:
        return True
    return _model_name(model) == MASKED_LM and config.has_mask_decoder and config.emd_input != "hidden"


@contextmanager
def _ready_for_tracing(model: PreTrainedModel) -> Iterator[None]:
    """Eval mode, padded, on a backend that is plain torch; afterwards as it was."""
    configs = {id(module.config): module.config for module in model.modules() if isinstance(module, DisentangledSelfAttention)}
    # Remote code has a class of its own.
    configs[id(model.config)] = model.config
    backends = {key: config._attn_implementation for key, config in configs.items()}
    modes = [(module, module.training) for module in model.modules()]
    unpadding = model.base_model.unpadding
    try:
        model.eval()
        model.set_unpadding(False)
        for config in configs.values():
            config._attn_implementation = "sdpa"
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = backends[key]
        model.set_unpadding(unpadding)
        for module, mode in modes:
            module.training = mode

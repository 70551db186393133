# SPDX-License-Identifier: Apache-2.0
"""int8 models for inference on CPUs: a quarter of the size, and several times as fast as float32.

Weights of linear layers have one scale per output, and activations one scale per token; the common input of queries, keys
and values has one scale per call. The word embeddings have one scale per row. Heads, LayerNorm, softmax and the table of
relative position embeddings stay in float32.

`quantise` converts a model, and `save_pretrained` saves it. `from_pretrained` and pipelines load it again if hf_deberta_ext
is imported, because the import registers the quantisation method with transformers. `deberta-ext convert MODEL FOLDER --to
int8` also reports how many predictions stay the same.
"""

import warnings
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .model.attention_deberta_ext import DisentangledSelfAttention

__all__ = ["Int8Config", "Int8Embedding", "Int8Linear", "Int8Quantizer", "quantise"]

METHOD = "deberta_ext_int8"
# Attention is computed in bfloat16, which is faster than float32; the error is smaller than the error of the int8 products.
ATTENTION_INPUTS = ("query_proj", "key_proj", "value_proj")


def int8_rows(weight: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `weight` [rows, columns] as int8 in [-largest, largest], and the scale [rows] of each row, float32."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp(min=1e-12) / largest
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Int8Module(nn.Module):
    """Base class of modules with int8 weights. The scales, and all other floating-point tensors, stay in float32."""

    def _apply(self, fn, recurse=True):
        # Every conversion (`to`, `half`, `bfloat16`, `double`) of a model that contains this module calls this method.
        dtype = fn(self.scale.new_empty(0)).dtype
        if dtype != torch.float32:
            raise ValueError(
                f"an int8 model cannot be converted to {str(dtype).removeprefix('torch.')}: load the original "
                "float32 model, and convert this float32 model instead"
            )
        return super()._apply(fn, recurse)


class Int8Linear(Int8Module):
    """Linear layer with int8 weights; activations are quantised to 8 bits in each call, with one scale per row.

    Weights are in [-64, 64], because CPUs without VNNI add two products in 16 bits, which saturates with weights up to 127.

    Args:
        in_features, out_features (`int`): sizes, as in `torch.nn.Linear`.
        dtype (`torch.dtype`): dtype of the output.
    """

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(out_features))
        self.register_buffer("bias", torch.zeros(out_features))
        self.dtype = dtype
        # The weights in the form that torch's operator reads, made by the first call.
        self.packed: Any = None
        self.register_load_state_dict_post_hook(forget_packed)

    def __getstate__(self):
        return vars(self) | {"packed": None}

    def fill(self, linear: nn.Linear):
        """Set the weights to the rounded weights of `linear`."""
        self.weight, self.scale = int8_rows(linear.weight, 64)
        if linear.bias is not None:
            self.bias = linear.bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.packed
        if packed is None:
            self.packed = packed = pack(self, with_bias=False)
        # torch's operator takes one scale per call: divide each row by its largest value first.
        x = x.float()
        largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        out = torch.ops.quantized.linear_dynamic.default(x / largest, packed)
        return torch.addcmul(self.bias, out, largest).to(self.dtype)


def forget_packed(module: nn.Module, keys: Any):
    """Discard the packed weights of a module after its weights were reloaded."""
    module.packed = None


def pack(*layers: Int8Linear, with_bias: bool = True) -> Any:
    """Concatenate the weights of layers with the same input, and pack them for torch's int8 product on this CPU."""
    weight, scale, bias = (torch.cat([getattr(x, name) for x in layers]) for name in ("weight", "scale", "bias"))
    zeros = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():
        # torch 2.13 announces that quantised tensors will be removed, but the operator takes nothing else.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        quantised = torch.quantize_per_channel(weight * scale[:, None], scale, zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(quantised, bias if with_bias else None)


class Int8Attention(DisentangledSelfAttention):
    """Attention with one int8 matrix product for queries, keys and values; the rest is computed in bfloat16."""

    packed: Any = None

    def __getstate__(self):
        return super().__getstate__() | {"packed": None}

    def project_content(self, hidden_states, query_states, keys_values) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if query_states is not None or keys_values is not None:
            return super().project_content(hidden_states, query_states, keys_values)
        packed = self.packed
        if packed is None:
            self.packed = packed = pack(self.query_proj, self.key_proj, self.value_proj)
        projected = torch.ops.quantized.linear_dynamic.default(hidden_states.float(), packed).to(self.query_proj.dtype)
        return tuple(self.split_heads(x) for x in projected.chunk(3, -1))


class Int8Embedding(Int8Module):
    """Embedding table with int8 rows; returns float32."""

    def __init__(self, num_embeddings: int, embedding_dim: int):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.register_buffer("weight", torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(num_embeddings))

    def fill(self, table: nn.Embedding):
        """Quantise the rows of `table` to int8, and store them."""
        self.weight, self.scale = int8_rows(table.weight, 127)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids] * self.scale[ids][..., None]


@register_quantization_config(METHOD)
class Int8Config(QuantizationConfigMixin):
    """`quantization_config` of an int8 model in config.json."""

    def __init__(self, **kwargs):
        self.quant_method = METHOD


@register_quantizer(METHOD)
class Int8Quantizer(HfQuantizer):
    """Quantizer with which `from_pretrained` and `save_pretrained` load and save int8 models."""

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs):
        if not self.pre_quantized:
            raise ValueError("expected an int8 checkpoint: create one with `deberta-ext convert MODEL FOLDER --to int8`")
        replace_modules(model)

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        # Scales and LayerNorm are float32, even if the caller passes dtype="bfloat16".
        return torch.float32

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def replace_modules(model: PreTrainedModel) -> list[tuple[nn.Module, nn.Module]]:
    """Replace the linear layers of the encoder and pooler, and the word embeddings, by empty int8 modules.

    Word embeddings that an output layer shares stay in float32.

    Returns:
        (replaced module, int8 module) pairs.
    """
    replaced = []
    for parent in (model.base_model, getattr(model, "pooler", None)):
        if parent is None:
            continue
        for path, module in list(parent.named_modules()):
            if type(module) is nn.Linear:
                dtype = torch.bfloat16 if path.endswith(ATTENTION_INPUTS) else torch.float32
                new = Int8Linear(module.in_features, module.out_features, dtype)
                parent.set_submodule(path, new)
                replaced.append((module, new))
            elif type(module) is DisentangledSelfAttention:
                module.__class__ = Int8Attention
                module.register_load_state_dict_post_hook(forget_packed)
    if model.get_output_embeddings() is None:
        table = model.get_input_embeddings()
        new = Int8Embedding(table.num_embeddings, table.embedding_dim)
        model.set_input_embeddings(new)
        replaced.append((table, new))
    return replaced


def quantise(model: PreTrainedModel) -> PreTrainedModel:
    """Convert a float32 model of this package to int8, in place, and return it in eval mode.

    Raises:
        ValueError: the model is not float32 on the CPU, or is already int8.
    """
    if getattr(model, "is_quantized", False):
        raise ValueError("expected a float32 model, but the model is already quantised: load the original float32 model")
    weights = {(parameter.dtype, parameter.device.type) for parameter in model.parameters()}
    if weights != {(torch.float32, "cpu")}:
        raise ValueError(
            f'expected a float32 model on the CPU, got {sorted(map(str, weights))}: load the model with dtype="float32"'
        )
    with torch.no_grad():
        for old, new in replace_modules(model):
            new.fill(old)
    model.config.quantization_config = Int8Config()
    model.hf_quantizer = Int8Quantizer(model.config.quantization_config)
    model.is_quantized = True
    return model.eval()

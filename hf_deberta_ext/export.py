# SPDX-License-Identifier: Apache-2.0
"""Export models as `torch.export` programs or ONNX files with dynamic shapes, and quantise ONNX files to int8.

`deberta-ext convert MODEL FOLDER --to onnx` also compares the outputs of the file and of the model.
Requires `pip install 'hf_deberta_ext[onnx]'`.
"""

import importlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ._version import __version__
from .checkpoints.loading import in_eval_mode
from .heads import HEADS, Head
from .model.configuration_deberta_ext import DebertaExtConfig

__all__ = ["export_onnx", "export_program", "quantise_onnx", "reads_absolute_positions"]

# The first version with all required operators, and with LayerNormalization, which onnxruntime runs as one operation.
OPSET = 18
# torch 2.6 requires an upper bound for dynamic sizes.
ANY = 2**31 - 1
# Sizes of the example inputs for tracing. All differ, because torch.export would treat equal sizes as one dimension.
TRACED = dict(batch=2, choices=3, sequence=20)


def export_program(model: PreTrainedModel, *, choices: int | None = None) -> torch.export.ExportedProgram:
    """Export the model in eval mode as a `torch.export` program, for any batch size and length.

    The program takes keyword arguments, int64 [B, N] ([B, C, N] for multiple choice): input_ids, attention_mask (1 = token;
    required, all ones without padding), and token_type_ids if `type_vocab_size` > 0. It returns a dict: depending on the
    model, last_hidden_state, or logits, or both start_logits and end_logits. Padding is computed like any token, never
    skipped. If the embeddings or the Enhanced Mask Decoder (EMD) read absolute positions, the length is at most
    `max_position_embeddings`.

    Args:
        model: Model of this package, of any dtype, on any device; no joint model (generator and discriminator) and no
            entity-scoring model.
        choices (`int`, *optional*): Fixed number of choices for multiple choice; None: any number.

    Returns:
        `torch.export.ExportedProgram`; run it with `.module()`, save it with `torch.export.save`. torch 2.6 cannot save it.

    Raises:
        TypeError: The model does not belong to this package.
        ValueError: The model is joint, scores entities or is int8, or `choices` is passed for another head than multiple
            choice.
    """
    head = exported_head(model)
    sizes = dict(TRACED)
    dims: dict[str, Any] = {name: torch.export.Dim(name, min=1, max=ANY) for name in TRACED}
    if reads_absolute_positions(model):
        dims["sequence"] = torch.export.Dim("sequence", min=1, max=model.base_model.embeddings.max_positions)
    if choices is not None:
        if head.labels != "choice":
            expected = HEADS["multiple-choice"].model_class
            raise ValueError(f"choices is only valid for {expected}, got {choices} for {head.model_class}")
        sizes["choices"], dims["choices"] = choices, None
    if head.labels != "choice":
        del sizes["choices"], dims["choices"]
    # Not all ones, because a mask without padding may take another code path.
    mask = torch.ones(*sizes.values(), dtype=torch.long, device=model.device)
    mask[-1, ..., -3:] = 0
    inputs = {"input_ids": torch.full_like(mask, model.config.pad_token_id or 0), "attention_mask": mask}
    if model.config.type_vocab_size > 0:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    dynamic = {axis: dim for axis, dim in enumerate(dims.values()) if dim is not None}
    with traceable(model), torch.no_grad():
        return torch.export.export(
            _Named(model, head.outputs), (), inputs, dynamic_shapes=dict.fromkeys(inputs, dynamic), strict=False
        )


class _Named(nn.Module):
    """Wrapper that returns the outputs of `model` as a dict, so that an exported program loads without transformers."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model, self.names = model, names

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        # Tells torch that these sizes are equal, before products of them are compared (multiple choice).
        if attention_mask.shape != input_ids.shape:
            raise ValueError(f"attention_mask must have shape {list(input_ids.shape)}, got {list(attention_mask.shape)}")
        options = dict(output_attentions=False, output_hidden_states=False, return_dict=True)
        outputs = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **options)
        return {name: outputs[name] for name in self.names}


def exported_head(model: nn.Module) -> Head:
    """Return the entry of `HEADS` for the class of a model, or for one of its base classes.

    Classes are compared by name, because remote code has its own copies of the classes.

    Raises:
        TypeError: The model does not belong to this package.
        ValueError: The model is joint, scores entities or is int8.
    """
    names = [cls.__name__ for cls in type(model).__mro__]
    head = next(filter(lambda head: head.model_class in names, HEADS.values()), None)
    if head is None or model.config.model_type != DebertaExtConfig.model_type:
        raise TypeError(f"expected a model of hf_deberta_ext, got {type(model).__name__}; merge adapters first")
    if getattr(model, "is_quantized", False):
        raise ValueError("an int8 model cannot be exported: export the float32 model, then call quantise_onnx on the file")
    if head == HEADS["pretraining"]:
        raise ValueError(
            f"{head.model_class} cannot be exported as one graph; export model.export_discriminator() or "
            "model.export_generator()"
        )
    if head == HEADS["entity-scoring"]:
        raise ValueError(f"{head.model_class} reads entity_indices, which exported graphs do not take; export model.deberta")
    return head


def reads_absolute_positions(model: PreTrainedModel) -> bool:
    """Return True if the embeddings or the Enhanced Mask Decoder read absolute positions, which limits the input length."""
    config = model.config
    decodes_positions = config.has_mask_decoder and config.emd_input != "hidden"
    return config.position_biased_input or (exported_head(model) == HEADS["masked-lm"] and decodes_positions)


@contextmanager
def traceable(model: PreTrainedModel) -> Iterator[None]:
    """Context manager that sets eval mode, no unpadding and the backend "eager" for tracing, then restores the settings."""
    # transformers has no public attribute for the current backend.
    backend, unpadding = model.config._attn_implementation, model.base_model.unpadding
    try:
        model.set_unpadding(False)
        model.set_attn_implementation("eager")
        with in_eval_mode(model):
            yield
    finally:
        model.set_attn_implementation(backend)
        model.set_unpadding(unpadding)


def export_onnx(
    model: PreTrainedModel,
    path: str | os.PathLike,
    *,
    opset: int = OPSET,
    choices: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Export the program of `export_program` to an ONNX file, for any batch size and length.

    Inputs and outputs have the names in `export_program`; the dynamic axes are named batch, choices and sequence. The
    metadata contain the architecture, the version of this package and, for a classifier, its labels. Weights of more than
    1.5 GB are stored in a second file, with ".data" appended to the name.

    Args:
        path (`str`): A file name that ends in .onnx; its folder is created if missing.
        opset (`int`): Version of the ONNX operators, at least 18.
        choices (`int`, *optional*): Fixed number of choices, as in `export_program`.
        overwrite (`bool`): Replace an existing file. If the export fails, the existing file is unchanged.

    Raises:
        ImportError: onnx or onnxscript is missing.
        TypeError, ValueError: As in `export_program`; also if the weights are not float32, the file name does not end in
            .onnx, or opset is less than 18.
        FileExistsError: The file exists and `overwrite` is False.
    """
    path = check_new_file(path, overwrite)
    if opset < OPSET:
        raise ValueError(f"opset must be {OPSET} or newer, got {opset}")
    head = exported_head(model)
    if model.dtype != torch.float32:
        raise ValueError(f"the model must be float32, got {model.dtype}; call model.float()")
    onnx, _ = _require("onnx", "onnxscript")
    program = export_program(model, choices=choices)
    # The exporter warns about its internals and about optional packages.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        translated = torch.onnx.export(program, dynamo=True, opset_version=opset, output_names=head.outputs, verbose=False)
    with written_at_once(path) as part:
        translated.save(part)
        proto = onnx.load(part, load_external_data=False)
        tidy_graph(proto.graph)
        metadata = {"hf_deberta_ext": __version__, "architecture": head.model_class}
        if head.pipeline_tag in ("text-classification", "token-classification"):
            metadata["id2label"] = json.dumps(model.config.id2label)
        onnx.helper.set_model_props(proto, metadata)
        onnx.save(proto, part)
    return path


def quantise_onnx(
    path: str | os.PathLike, out: str | os.PathLike, *, embeddings: bool = False, overwrite: bool = False
) -> Path:
    """Write an int8 copy of an ONNX file for CPUs.

    Weights of matrix products have one scale per column; scales of activations are computed in each call. Three parts stay
    in float32: the products with position projections, the attention scores, and the softmax.

    Weights are in [-64, 64] (`reduce_range` in onnxruntime, recorded in the file's metadata), because CPUs without VNNI
    add two products in 16 bits, which saturates with weights up to 127.

    Args:
        path (`str`): A file written by `export_onnx`.
        out (`str`): The new file name, which ends in .onnx.
        embeddings (`bool`): Also quantise the embedding tables, with one scale for all rows: smaller, less exact.
        overwrite (`bool`): Replace an existing file.

    Raises:
        ImportError: onnx or onnxruntime is missing.
        ValueError: `out` and `path` are the same file, or `out` does not end in .onnx.
        FileExistsError: The new file exists and `overwrite` is False.
    """
    path, out = Path(path), check_new_file(out, overwrite)
    if path.resolve() == out.resolve():
        raise ValueError(f"out must have another name than the input file, got {str(path)!r} for both")
    operations = ["MatMul"]
    if embeddings:
        operations.append("Gather")
    onnx, quantization, shapes = _require("onnx", "onnxruntime.quantization", "onnxruntime.quantization.shape_inference")
    two_files = data_file(path).exists()
    with written_at_once(out) as part, tempfile.TemporaryDirectory() as folder:
        # Folds operations on weights into constants, above all the projections of the relative table. Quantising these
        # projections dynamically in each call would cost a classifier ten points of accuracy (SST-2).
        constant = Path(folder) / "constant.onnx"
        shapes.quant_pre_process(
            path, constant, skip_symbolic_shape=True, save_as_external_data=two_files, all_tensors_to_one_file=True
        )
        graph = onnx.load(constant, load_external_data=False).graph
        rank = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
        positions = [node.name for node in graph.node if node.op_type == "MatMul" and rank.get(node.input[1], 2) > 2]
        quantization.quantize_dynamic(
            constant,
            part,
            op_types_to_quantize=operations,
            nodes_to_exclude=positions,
            per_channel=True,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
            use_external_data_format=two_files,
            extra_options={"MatMulConstBOnly": True},
        )
        proto = onnx.load(part, load_external_data=False)
        metadata = {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
        del proto.metadata_props[:]
        onnx.helper.set_model_props(proto, metadata | {"quantisation": "int8 weights, dynamic", "reduce_range": "true"})
        onnx.save(proto, part)
    return out


def check_new_file(path: str | os.PathLike, overwrite: bool) -> Path:
    """Return `path`; raise an error if it does not end in .onnx, or exists and `overwrite` is False."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"the file name must end in .onnx, got {path}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} already exists; pass overwrite=True to replace it, or another name")
    return path


def data_file(path: Path) -> Path:
    """Return the path of the data file, a second file for the large weights of the ONNX file `path`."""
    return path.with_name(path.name + ".data")


@contextmanager
def written_at_once(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path to write to, then moves the file and its data file to `path`.

    The temporary file has the name of `path` in another folder, because an ONNX file stores the name of its data file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx_") as folder:
        part = Path(folder) / path.name
        yield part
        data_file(path).unlink(missing_ok=True)
        for file in sorted(Path(folder).iterdir()):
            os.replace(file, path.with_name(file.name))


def _require(*names: str) -> list:
    """Import the packages `names`, which the extra `onnx` installs."""
    try:
        return list(map(importlib.import_module, names))
    except ImportError as error:
        raise ImportError(f"ONNX export requires {error.name}: pip install 'hf_deberta_ext[onnx]'") from error


def tidy_graph(graph):
    """Name the dynamic axes batch, choices and sequence, and remove torch's debug information from a graph.

    The debug information contains local paths, and shapes that make onnxruntime's quantisation fail when it transposes a
    weight.
    """
    sizes = graph.input[0].type.tensor_type.shape.dim
    names = ("batch", "choices", "sequence") if len(sizes) == 3 else ("batch", "sequence")
    renamed = {size.dim_param: name for size, name in zip(sizes, names, strict=True) if size.dim_param}
    for value in [*graph.input, *graph.output]:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = renamed[size.dim_param]
    weights = {tensor.name: tensor.name.removeprefix("model.") for tensor in graph.initializer}
    for tensor in graph.initializer:
        tensor.name = weights[tensor.name]
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = weights.get(name, name)
    del graph.value_info[:]
    for part in [graph, *graph.input, *graph.output, *graph.node, *graph.initializer]:
        del part.metadata_props[:]

# SPDX-License-Identifier: Apache-2.0
"""Models as graphs: `torch.export` programs and ONNX files with dynamic shapes, int8, and what they lose against torch.

ONNX needs `pip install 'hf_deberta_ext[onnx]'`.
"""

import importlib
import json
import logging
import math
import os
import statistics
import tempfile
import time
import warnings
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
from .model.heads import HEADS, Head
from .model.pretrained_model import in_eval_mode

__all__ = [
    "OnnxParity", "export_onnx", "export_program", "onnx_parity", "parity_shapes", "quantise_onnx",
    "reads_absolute_positions",
]  # fmt: skip

# The first with LayerNormalization, which onnxruntime runs as one operation, and all that the graphs need.
OPSET = 18
# torch 2.6 refuses sizes without an end.
ANY = 2**31 - 1
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
        `torch.export.ExportedProgram`; `.module()` runs, `torch.export.save` writes it (torch 2.6 cannot). Where the model
        reads absolute positions, in the input or in EMD, lengths go up to the end of that table.

    Raises:
        TypeError: not a model of this package.
        ValueError: the joint model of pre-training, or `choices` for another head than multiple choice or below 1.
    """
    head = exported_head(model)
    has_choices = head.labels == "choice"
    if choices is not None and (not has_choices or choices < 1):
        model_class = HEADS["multiple-choice"].model_class
        raise ValueError(f"choices is for {model_class}, a number from 1 on; got {choices} for {head.model_class}")
    sizes = TRACED | ({"choices": choices} if choices is not None else {})
    shape = tuple(size for dimension, size in sizes.items() if dimension != "choices" or has_choices)
    # Not all ones: some code looks for that.
    mask = torch.ones(shape, dtype=torch.long, device=model.device)
    mask[-1, ..., -3:] = 0
    inputs = {"input_ids": torch.full_like(mask, model.config.pad_token_id or 0), "attention_mask": mask}
    if model.config.type_vocab_size > 0:
        inputs["token_type_ids"] = torch.zeros_like(mask)

    longest = model.base_model.embeddings.max_positions if reads_absolute_positions(model) else ANY
    dims = [torch.export.Dim("batch", min=1, max=ANY), torch.export.Dim("sequence", min=1, max=longest)]
    if has_choices:
        dims.insert(1, torch.export.Dim("choices", min=1, max=ANY) if choices is None else None)
    dynamic = {axis: dim for axis, dim in enumerate(dims) if dim is not None}
    with traceable(model), torch.no_grad():
        return torch.export.export(
            _Named(model, head.outputs), (), inputs, dynamic_shapes=dict.fromkeys(inputs, dynamic), strict=False
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


def exported_head(model: nn.Module) -> Head:
    """The entry in `HEADS` of a model or of its base class, by name: remote code brings a second copy of the class.

    Raises:
        TypeError: not a model of this package.
        ValueError: the joint model of pre-training.
    """
    heads = {head.model_class: head for head in HEADS.values()}
    head = next((heads[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in heads), None)
    is_ours = getattr(getattr(model, "config", None), "model_type", None) == DebertaExtConfig.model_type
    if head == HEADS["pretraining"]:
        raise ValueError(
            f"{head.model_class} is a generator and a discriminator; export one of them: model.export_discriminator() or "
            "model.export_generator()"
        )
    if head == HEADS["entity-scoring"]:
        raise ValueError(f"{head.model_class} reads entity_indices, which exported graphs do not; export model.deberta")
    if head is None or not is_ours:
        names = ", ".join(name for name in heads if name != HEADS["pretraining"].model_class)
        raise TypeError(f"{type(model).__name__} is none of {names}; adapters have to be merged first")
    return head


def reads_absolute_positions(model: PreTrainedModel) -> bool:
    """Tell models whose input is no longer than a table: with positions in the input, or in EMD."""
    config = model.config
    decodes_positions = config.has_mask_decoder and config.emd_input != "hidden"
    return config.position_biased_input or (exported_head(model) == HEADS["masked-lm"] and decodes_positions)


@contextmanager
def traceable(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model is in eval mode, padded, and on a backend that is plain torch."""
    attentions = [module for module in model.modules() if isinstance(module, DisentangledSelfAttention)]
    # Remote code has a class of its own.
    configs = {id(config): config for config in (model.config, *(module.config for module in attentions))}
    backends = {key: config._attn_implementation for key, config in configs.items()}
    unpadding = model.base_model.unpadding
    try:
        model.set_unpadding(False)
        for config in configs.values():
            config._attn_implementation = "eager"
        with in_eval_mode(model):
            yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = backends[key]
        model.set_unpadding(unpadding)


def export_onnx(
    model: PreTrainedModel,
    path: str | os.PathLike,
    *,
    opset: int = OPSET,
    choices: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the model as ONNX, for any batch and length: the graph of `export_program`.

    Inputs and outputs have the names of `export_program`, and their free sizes are called batch, choices and sequence. The
    metadata hold the architecture, the version of this package and, of a classifier, its labels. Weights of more than 1.5 GB
    lie in a second file, named as the first with ".data" behind it, and both stay together.

    Args:
        path (`str`): a file that ends in .onnx; its folder is made if need be.
        opset (`int`): version of the ONNX operators, from 18 on.
        choices (`int`, *optional*): as in `export_program`.
        overwrite (`bool`): replace a file that is there. If the export fails, that stays as it was.

    Returns:
        `Path` of the file.

    Raises:
        ImportError: onnx or onnxscript is missing.
        TypeError, ValueError: as in `export_program`; weights that are not float32; another ending; an older opset.
        FileExistsError: the file is there and `overwrite` is not given.
    """
    path = check_new_file(path, overwrite)
    if opset < OPSET:
        raise ValueError(f"opset must be {OPSET} or newer, got {opset}")
    head = exported_head(model)
    if model.dtype != torch.float32:
        raise ValueError(
            f"the model is in {model.dtype}, in which most ONNX runtimes lack operations on CPU; give model.float()"
        )
    onnx, _ = _require("onnx", "onnxscript")
    program = export_program(model, choices=choices)
    # What torch's exporter says of its own insides and of packages that it does without.
    with warnings.catch_warnings(), errors_alone():
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
    """Writes an int8 copy of an ONNX file, for CPUs: weights of matrix products with a scale for each column, activations
    with a scale that is found anew in each call. Products with positions, scores and softmax stay in float32.

    The weights lie between -64 and 64 (`reduce_range` of onnxruntime, noted in the file's metadata): CPUs without VNNI add
    two products in 16 bits, which weights up to 127 saturate.

    Args:
        path (`str`): a file of `export_onnx`.
        out (`str`): the new file, which ends in .onnx.
        embeddings (`bool`): the tables of embeddings as well, with one scale for all rows: a smaller file, further away.
        overwrite (`bool`): replace a file that is there.

    Returns:
        `Path` of the new file.

    Raises:
        ImportError: onnx or onnxruntime is missing.
        ValueError: `out` is `path`, or ends otherwise.
        FileNotFoundError, FileExistsError: no file at `path`; the new file is there and `overwrite` is not given.
    """
    path, out = check_file(path), check_new_file(out, overwrite)
    if path.resolve() == out.resolve():
        raise ValueError(f"{path} would replace itself; give the int8 file another name")
    onnx, quantization, shapes = _require("onnx", "onnxruntime.quantization", "onnxruntime.quantization.shape_inference")
    two_files = data_file(path).exists()
    with errors_alone(), written_at_once(out) as part, tempfile.TemporaryDirectory() as folder:
        # What depends on weights alone becomes a constant: the projections of the relative table, above all. Left to be
        # quantised in each call, they cost a classifier ten points of accuracy (SST-2).
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
            op_types_to_quantize=["MatMul", "Gather"] if embeddings else ["MatMul"],
            nodes_to_exclude=positions,
            per_channel=True,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
            use_external_data_format=two_files,
            extra_options={"MatMulConstBOnly": True},
        )
        metadata = {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
        proto = onnx.load(part, load_external_data=False)
        del proto.metadata_props[:]
        onnx.helper.set_model_props(proto, metadata | {"quantisation": "int8 weights, dynamic", "reduce_range": "true"})
        onnx.save(proto, part)
    return out


def check_file(path: str | os.PathLike) -> Path:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; export_onnx writes one")
    return path


def check_new_file(path: str | os.PathLike, overwrite: bool) -> Path:
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"the name must end in .onnx, got {path}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it, or another name")
    return path


def data_file(path: Path) -> Path:
    return path.with_name(path.name + ".data")


@contextmanager
def written_at_once(path: Path) -> Iterator[Path]:
    """A file of the same name, since it names its second file, in a folder beside; moved to `path` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx_") as folder:
        part = Path(folder) / path.name
        yield part
        data_file(path).unlink(missing_ok=True)
        for file in sorted(Path(folder).iterdir()):
            os.replace(file, path.with_name(file.name))


def _require(*names: str) -> list:
    """Packages of the extra `onnx`."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise ImportError(f"{error.name} is missing, which ONNX needs: pip install 'hf_deberta_ext[onnx]'") from error


@contextmanager
def errors_alone() -> Iterator[None]:
    """Inside, no logger reports anything below an error."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)


def tidy_graph(graph):
    """Remove torch's notes for debugging: paths of this machine in each node, names of sizes, and shapes inside, which stop
    onnxruntime's quantisation where it transposes a weight."""
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


@dataclass(frozen=True)
class OnnxParity:
    """An ONNX file beside its model, for inputs of one shape.

    Args:
        batch (`int`): rows; of multiple choice, questions.
        length (`int`): tokens of a row, padding included.
        padding (`str`): "none", "right" or "left"; every second row is padded, to half of its length.
        difference (`float`): largest absolute difference of any output at a real token.
        largest (`float`): largest absolute value of the model's own outputs there.
        agreement (`float`, *optional*): share of equal decisions: labels, words, answers' ends, replaced or not; None for an
            encoder and for regression, which decide nothing.
        torch_seconds, onnx_seconds (`float`, *optional*): median time of a call.
    """

    batch: int
    length: int
    padding: str
    difference: float
    largest: float
    agreement: float | None
    torch_seconds: float | None = None
    onnx_seconds: float | None = None


def parity_shapes(model: PreTrainedModel) -> list[tuple[int, int, str]]:
    """Shapes (batch, length, padding) for `onnx_parity` at which a graph that holds a size fixed goes wrong: one row, one
    and two tokens, padding on both sides, beyond the traced length, and beyond the relative table and
    `max_position_embeddings` or, where the model reads absolute positions, up to their end."""
    if reads_absolute_positions(model):
        far = model.base_model.embeddings.max_positions
    else:
        far = max(model.config.max_position_embeddings, model.config.relative_distance) + 9
    middle = min(37, far)
    return [
        (1, 1, "none"), (3, 2, "right"), (TRACED["batch"], min(TRACED["length"], far), "none"), (1, middle, "none"),
        (4, middle, "right"), (4, middle, "left"), (1, far, "none"), (2, far, "right"),
    ]  # fmt: skip


def onnx_parity(
    model: PreTrainedModel,
    path: str | os.PathLike,
    shapes: Sequence[tuple[int, int, str]] | None = None,
    *,
    tokens: Sequence[int] | None = None,
    choices: int = 3,
    repeats: int = 0,
    seed: int = 0,
) -> list[OnnxParity]:
    """Runs an ONNX file in onnxruntime and its model in torch, as it is otherwise used, on the same inputs.

    Args:
        path (`str`): a file of `export_onnx` or `quantise_onnx`.
        shapes (`list[tuple[int, int, str]]`, *optional*): batch, length, padding; None: `parity_shapes(model)`.
        tokens (`list[int]`, *optional*): ids of a text, from which the rows are taken one after the other; None: random.
        choices (`int`): choices of multiple choice.
        repeats (`int`): calls that are timed, of model and file in turns, after one that is not; 0: no times. onnxruntime
            has as many threads as torch.

    Returns:
        A row for each shape.

    Raises:
        ImportError: onnxruntime is missing.
        FileNotFoundError: no such file.
        ValueError: the file has other inputs or outputs than the model, an unknown padding, or fewer tokens than needed.
    """
    head, path = exported_head(model), check_file(path)
    (onnxruntime,) = _require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = tuple(output.name for output in session.get_outputs())
    names = [value.name for value in session.get_inputs()]
    if outputs != head.outputs or ("token_type_ids" in names) != (model.config.type_vocab_size > 0):
        raise ValueError(f"{path} has inputs {names} and outputs {[*outputs]}, which are not those of {head.model_class}")

    rows = []
    generator = torch.Generator().manual_seed(seed)
    for batch, length, padding in parity_shapes(model) if shapes is None else shapes:
        shape = (batch, choices, length) if head.labels == "choice" else (batch, length)
        inputs = parity_inputs(model, shape, padding, tokens, generator)
        on_device = {key: value.to(model.device) for key, value in inputs.items()}
        arrays = {key: value.numpy() for key, value in inputs.items()}
        times = []
        for _ in range(1 + repeats):
            with in_eval_mode(model), torch.inference_mode():
                start = time.perf_counter()
                results = model(**on_device)
                middle = time.perf_counter()
            start_onnx = time.perf_counter()
            arrays_out = session.run(None, arrays)
            times.append((middle - start, time.perf_counter() - start_onnx))
        expected = {key: results[key].cpu() for key in outputs}
        got = {key: torch.from_numpy(array) for key, array in zip(outputs, arrays_out, strict=True)}
        medians = [statistics.median(seconds) for seconds in zip(*times[1:], strict=True)] if repeats else [None, None]
        compared = compare_outputs(head, expected, got, inputs["attention_mask"].bool())
        rows.append(OnnxParity(batch, length, padding, *compared, *medians))
    return rows


def parity_inputs(model, shape, padding: str, tokens, generator) -> dict[str, torch.Tensor]:
    """Inputs [B, N] or [B, C, N]; every second row is padded to half of its length, though a token is left."""
    count, length = math.prod(shape), shape[-1]
    if tokens is None:
        ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    elif len(tokens) < count:
        raise ValueError(f"inputs of shape {list(shape)} take {count} tokens, got {len(tokens)}")
    else:
        ids = torch.tensor(tokens[:count]).view(shape)
    mask = torch.ones(count // length, length, dtype=torch.long)
    if padding in ("right", "left"):
        mask[1::2, max(1, length // 2) :] = 0
        mask = mask.flip(1) if padding == "left" else mask
    elif padding != "none":
        raise ValueError(f"padding must be 'none', 'right' or 'left', got {padding!r}")
    mask = mask.view(shape)
    inputs = {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id or 0), "attention_mask": mask}
    if model.config.type_vocab_size > 0:
        inputs["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(shape).contiguous()
    return inputs


def compare_outputs(
    head: Head, expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor], mask: torch.Tensor
) -> tuple[float, float, float | None]:
    """Largest difference and largest value at real tokens, and the share of equal decisions."""
    differences, sizes, decisions = [], [], []
    for key, values in expected.items():
        exported = got[key]
        if head.labels == "span":
            lowest = torch.finfo(values.dtype).min
            decisions.append(values.where(mask, lowest).argmax(1) == exported.where(mask, lowest).argmax(1))
        if head.labels not in ("row", "choice"):
            values, exported = values[mask], exported[mask]
        differences.append((values - exported).abs().max().item())
        sizes.append(values.abs().max().item())
        if head == HEADS["replaced-token-detection"]:
            decisions.append((values > 0) == (exported > 0))
        elif key == "logits" and values.shape[-1] > 1:
            decisions.append(values.argmax(-1) == exported.argmax(-1))
    agreement = torch.cat(decisions).float().mean().item() if decisions else None
    return max(differences), max(sizes), agreement

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Files of a checkpoint: names, JSON, indices of shards, headers and weights, with one error for each kind of damage."""

import json
import math
import os
import pickle
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

__all__ = [
    "ADAPTER_CONFIG_FILE", "ADAPTER_WEIGHT_FILES", "GENERATOR_CONFIG_FILE", "GENERATOR_FILE", "TOKENIZER_FILES",
    "TOKENIZER_PATTERNS", "UNREADABLE_WEIGHTS", "WEIGHT_FILES", "WEIGHT_PATTERNS", "Tensor", "check_dtypes",
    "checkpoint_step", "header_tensor", "is_adapter_folder", "is_weight_file", "microsoft_weights",
    "read_index", "read_json", "read_tensors", "read_weights", "stale_weights", "tokenizer_files",
]  # fmt: skip

# Of a whole model and of an adapter, in the order in which transformers and peft look for them.
WEIGHT_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
ADAPTER_CONFIG_FILE, ADAPTER_WEIGHT_FILES = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
# The generator beside an official discriminator (v3).
GENERATOR_CONFIG_FILE, GENERATOR_FILE = "generator_config.json", "pytorch_model.generator.bin"
# Weights of other frameworks.
UNREADABLE_WEIGHTS = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "*.gguf", "*.onnx")
# Any of them is a tokenizer, in the order in which this package looks for them; tokenizer_config.json alone is none.
TOKENIZER_FILES = ("spm.model", "vocab.json", "tokenizer.json", "vocab.txt")
# All that belongs to weights and tokenizers, for publishing: whole files, shards, variants (model.fp16.safetensors).
WEIGHT_PATTERNS = (
    "model.safetensors", "model[.-]*.safetensors", "model.safetensors.index.json", "model.*.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model[.-]*.bin", "pytorch_model.bin.index.json", "pytorch_model.*.bin.index.json",
    ADAPTER_CONFIG_FILE, *ADAPTER_WEIGHT_FILES,
)  # fmt: skip
TOKENIZER_PATTERNS = (
    *TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "sentencepiece.bpe.model",
    "sentencepiece.model", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
# A whole file, a shard or an index; no variants (model.fp16.safetensors), which are loaded on request alone.
MODEL_WEIGHTS = re.compile(r"(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
ADAPTER_FILES = re.compile(r"adapter_(config\.json|model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?)")
ONNX_DATA = re.compile(r"(.*\.onnx)[._]data")
# safetensors' names of the types -> torch's.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
          "I16": "int16", "U8": "uint8", "I8": "int8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
          "F8_E5M2": "float8_e5m2", "C64": "complex64"}  # fmt: skip
AGAIN = "download or save it again"
LFS_POINTER = b"version https://git-lfs"
# Of torch.load, for files that are truncated or no pickles at all.
TORCH_ERRORS = (RuntimeError, EOFError, OSError, LookupError, AttributeError, ValueError, TypeError, zipfile.BadZipFile)


def is_weight_file(name: str) -> bool:
    """Tell weights of a model or adapter, whole, in shards, or of FSDP, by the name of the file."""
    is_adapter = ADAPTER_FILES.fullmatch(name) and name != ADAPTER_CONFIG_FILE
    return bool(MODEL_WEIGHTS.fullmatch(name) or is_adapter or name == "pytorch_model_fsdp.bin")


def is_adapter_folder(folder: str | os.PathLike) -> bool:
    """Tell a folder with an adapter of peft, and without the weights of a whole model."""
    has_model = any(Path(folder, name).is_file() for name in WEIGHT_FILES)
    return Path(folder, ADAPTER_CONFIG_FILE).is_file() and not has_model


def stale_weights(published: Iterable[str], new: Iterable[str]) -> list[str]:
    """Files in a repository that would be loaded instead of the `new` ones, or together with them, folder by folder.

    For a model: its earlier shards, index or whole file, and an adapter, which would be applied to it. For an adapter: an
    older adapter. For a graph of ONNX: its earlier data file.
    """
    new, stale = {*new}, []
    for path in sorted({*published} - new):
        folder, slash, name = path.rpartition("/")
        if (data := ONNX_DATA.fullmatch(path)) and data[1] in new:
            stale.append(path)
            continue
        siblings = {file.removeprefix(folder + slash) for file in new if file.rpartition("/")[0] == folder}
        is_adapter = ADAPTER_CONFIG_FILE in siblings
        has_model = not is_adapter and any(map(MODEL_WEIGHTS.fullmatch, siblings))
        if ((has_model or is_adapter) and ADAPTER_FILES.fullmatch(name)) or (has_model and MODEL_WEIGHTS.fullmatch(name)):
            stale.append(path)
    return stale


def microsoft_weights(folder: str | os.PathLike) -> str | None:
    """Name of the weights that Microsoft's trainer wrote into a folder, pytorch.model-NNNNNN.bin; None without any.

    Raises:
        ValueError: there are several, or others as well.
    """
    names = sorted(file.name for file in Path(folder).glob("pytorch.model-*.bin"))
    others = [name for name in WEIGHT_FILES if Path(folder, name).is_file()] if names else []
    if len(names + others) > 1:
        raise ValueError(f"{folder} holds {', '.join(others + names)}: leave there the weights that are meant alone")
    return names[0] if names else None


def tokenizer_files(folder: str | os.PathLike) -> list[str]:
    """Names of the files in `folder` of which each is a tokenizer."""
    return [name for name in TOKENIZER_FILES if Path(folder, name).is_file()]


def checkpoint_step(folder: Path) -> int:
    """The step after which Trainer wrote a checkpoint, by the name of its folder; -1 for any other name."""
    number = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(number[1]) if number else -1


def read_json(file: str | os.PathLike) -> dict[str, Any]:
    """A JSON object; {} without the file.

    Raises:
        ValueError: the file holds something else, or no JSON.
    """
    file = Path(file)
    if not file.is_file():
        return {}
    text = file.read_bytes()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "a Git LFS pointer, not the file itself" if text.startswith(LFS_POINTER) else f"not JSON ({error})"
        raise ValueError(f"{file} is {reason}; {AGAIN}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(content).__name__}; {AGAIN}")
    return content


def read_index(file: str | os.PathLike) -> dict[str, str]:
    """Tensor -> name of the shard, a file in the folder of the index.

    Raises:
        ValueError: the index is damaged, or names files elsewhere.
    """
    shards = read_json(file).get("weight_map")
    if not (isinstance(shards, dict) and shards and all(isinstance(name, str) for name in shards.values())):
        raise ValueError(f"the weight_map of {file} must name a file for each tensor; {AGAIN}")
    for name in shards.values():
        if PurePosixPath(name).name != name or PureWindowsPath(name).name != name:
            raise ValueError(f"{file} names the file {name!r}, which is not in the same folder; nothing was read")
    return shards


@dataclass(frozen=True)
class Tensor:
    """Shape and dtype of a tensor in a file; `dtype` is a name like "float16"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


def header_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """A tensor as a header of safetensors describes it: `dtype` is "F32" or the like."""
    return Tensor(tuple(shape), DTYPES.get(dtype, dtype))


def read_weights(file: str | os.PathLike) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors or .bin file; pickled code is not run.

    Raises:
        ValueError: the file is damaged, a Git LFS pointer, or holds something else than tensors by name; or weights that are
            no floating-point numbers.
    """
    refuse_pointer(file)
    if not str(file).endswith(".safetensors"):
        tensors = load_bin(file, map_location="cpu")
    else:
        try:
            tensors = load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is truncated or damaged ({error}); {AGAIN}") from error
    check_dtypes(file, tensors)
    return tensors


def check_dtypes(file: str | os.PathLike, tensors: dict[str, Any]):
    """
    Raises:
        ValueError: a weight or bias is not of floating-point numbers: it would be converted in silence.
    """
    for name, tensor in tensors.items():
        dtype = str(getattr(tensor, "dtype", "float")).removeprefix("torch.")
        if name.endswith(("weight", "bias")) and not ("float" in dtype or dtype.startswith("F")):
            raise ValueError(f"{file} is damaged: {name} is of {dtype}, not of floating-point numbers; {AGAIN}")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Shapes and dtypes of the tensors in a .safetensors or .bin file, without their values.

    Raises:
        ValueError: as in `read_weights`.
    """
    refuse_pointer(file)
    if file.suffix == ".safetensors":
        return read_header(file)
    # Old files, which are no archives, cannot be mapped: they are read.
    content = load_bin(file, map_location="meta", mmap=zipfile.is_zipfile(file) or None)
    tensors = {name: value for name, value in content.items() if torch.is_tensor(value)}
    return {name: Tensor(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in tensors.items()}


def load_bin(file: str | os.PathLike, **options) -> dict[str, Any]:
    """The content of a file of `torch.save`, by name; `options` as in `torch.load`."""
    try:
        content = torch.load(file, weights_only=True, **options)
    except (FileNotFoundError, torch.OutOfMemoryError):
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is damaged, or holds pickled objects that are not tensors; they are not run. If you trust the file, "
            "load it with torch yourself and save its tensors as safetensors"
        ) from error
    except TORCH_ERRORS as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{file} is truncated or damaged ({type(error).__name__}: {reason}); {AGAIN}") from error
    if not (isinstance(content, dict) and all(isinstance(name, str) for name in content)):
        raise ValueError(f"{file} must hold tensors by name, got {type(content).__name__}; save model.state_dict()")
    return content


def read_header(file: Path) -> dict[str, Tensor]:
    """Shapes and dtypes of the tensors of a .safetensors file; safetensors finds whatever is wrong with its header or size.

    Raises:
        ValueError: as in `read_weights`.
    """
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return {name: header_tensor(x.get_shape(), x.get_dtype()) for name, x in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{file} is truncated or damaged ({error}); {AGAIN}") from error


def refuse_pointer(file: str | os.PathLike):
    """
    Raises:
        ValueError: the file is a Git LFS pointer.
    """
    with open(file, "rb") as data:
        if data.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(f"{file} is a Git LFS pointer, not the file itself: git lfs pull, or {AGAIN}")

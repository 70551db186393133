# SPDX-License-Identifier: Apache-2.0
"""Names and readers of the files of a checkpoint: JSON, indices of shards, headers and weights."""

import json
import math
import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers.utils import cached_file

__all__ = [
    "ADAPTER_CONFIG_FILE",
    "ADAPTER_WEIGHT_FILES",
    "GENERATOR_CONFIG_FILE",
    "GENERATOR_FILE",
    "TOKENIZER_FILES",
    "WEIGHT_FILES",
    "Tensor",
    "check_source",
    "checkpoint_step",
    "damage_named",
    "header_tensor",
    "is_adapter_folder",
    "is_weight_file",
    "microsoft_weights",
    "optional_file",
    "read_index",
    "read_json",
    "read_tensors",
    "read_weights",
    "refuse_integers",
    "tokenizer_files",
    "weight_files",
]

# Of a whole model and of an adapter, in the order in which transformers and peft look for them.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
ADAPTER_CONFIG_FILE, ADAPTER_WEIGHT_FILES = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
# The generator beside an official discriminator (v3).
GENERATOR_CONFIG_FILE, GENERATOR_FILE = "generator_config.json", "pytorch_model.generator.bin"
# Any of them is a tokenizer, in the order in which this package looks for them; tokenizer_config.json is not one.
TOKENIZER_FILES = ("spm.model", "vocab.json", "tokenizer.json", "vocab.txt")
# A whole file, a shard or an index; no variants (model.fp16.safetensors), which are loaded only on request.
WEIGHTS = re.compile(r"((pytorch_|adapter_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?|pytorch_model_fsdp\.bin)")
# safetensors' names of the types -> torch's.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "U8": "uint8",
    "I8": "int8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def check_source(source: str | os.PathLike, flag: str = ""):
    """Check that a model or tokenizer is named by a folder, or in the form of a Hub id.

    Args:
        flag (`str`): beginning of the message, such as "--model: ".

    Raises:
        OSError: there is no such folder, and no repository can have this id.
    """
    if Path(source).is_dir():
        return
    with suppress(HFValidationError):
        validate_repo_id(str(source))
        if not Path(source).exists():
            return
    raise OSError(f"{flag}expected a folder or a Hub id, got {source}: there is no such folder")


def is_weight_file(name: str) -> bool:
    """Tell weights of a model or adapter, whole, in shards, or of FSDP, by the name of the file."""
    return WEIGHTS.fullmatch(name) is not None


def is_adapter_folder(folder: str | os.PathLike) -> bool:
    """Tell a folder with an adapter of peft, and without the weights of a whole model."""
    has_model = any(Path(folder, name).is_file() for name in WEIGHT_FILES)
    return Path(folder, ADAPTER_CONFIG_FILE).is_file() and not has_model


def microsoft_weights(folder: str | os.PathLike) -> str | None:
    """Return the name of the weights that Microsoft's trainer wrote into a folder, pytorch.model-NNNNNN.bin, or None.

    Raises:
        ValueError: there are several, or others as well.
    """
    names = sorted(file.name for file in Path(folder).glob("pytorch.model-*.bin"))
    if not names:
        return None
    names += [name for name in WEIGHT_FILES if Path(folder, name).is_file()]
    if len(names) > 1:
        raise ValueError(f"{folder} holds {', '.join(names)}: keep only the weights that are meant")
    return names[0]


def weight_files(
    source: str | os.PathLike,
    names: Sequence[str] = WEIGHT_FILES,
    *,
    use_safetensors: bool | None = None,
    variant: str | None = None,
    **download,
) -> list[Path]:
    """Return the weights of a folder or repo that would be loaded: one file, or all shards of an index; [] without any.

    Args:
        names (`Sequence[str]`): the files to look for, the first one that is there counts.
        use_safetensors (`bool`, *optional*): True = only safetensors, False = only .bin.
        variant (`str`, *optional*): as in transformers, model.VARIANT.safetensors, model.safetensors.index.VARIANT.json.
        download: `revision`, `token`, `cache_dir`, `subfolder`, `local_files_only`, ... of transformers' `cached_file`.
    """
    folder = Path(source, download.get("subfolder") or "")
    microsoft = microsoft_weights(folder)
    if microsoft is not None:
        return [folder / microsoft]
    for name in names:
        if use_safetensors is not None and use_safetensors != ("safetensors" in name):
            continue
        if variant is not None:
            stem, _, ending = name.rpartition(".")
            name = f"{stem}.{variant}.{ending}"
        path = optional_file(source, name, **download)
        if path is None:
            continue
        if not name.endswith(".json"):
            return [Path(path)]
        shards = sorted(set(read_index(path).values()))
        if folder.is_dir():
            return [folder / shard for shard in shards]
        return [Path(cached_file(source, shard, **download)) for shard in shards]
    return []


def tokenizer_files(folder: str | os.PathLike) -> list[str]:
    """Return the names of the files in `folder` of which each is a tokenizer."""
    return [name for name in TOKENIZER_FILES if Path(folder, name).is_file()]


def checkpoint_step(folder: Path) -> int:
    """Return the step after which Trainer wrote a checkpoint, by the name of its folder; -1 for any other name."""
    number = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(number[1]) if number else -1


def optional_file(source: str | os.PathLike, name: str, **download) -> str | None:
    """Return the path of a file of a folder or repo, or None if it is not there.

    Args:
        download: `revision`, `token`, `cache_dir`, `subfolder`, `local_files_only`, ... of transformers' `cached_file`.
    """
    try:
        return cached_file(source, name, **download)
    except OSError:
        return None


def read_json(file: str | os.PathLike) -> dict[str, Any]:
    """Read a JSON object; return {} without the file.

    Raises:
        ValueError: the file holds something else, or no JSON.
    """
    file = Path(file)
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); download or save it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


def read_index(file: str | os.PathLike) -> dict[str, str]:
    """Return the name of the shard of each tensor, a file in the folder of the index.

    Raises:
        ValueError: the index names no files, or files elsewhere.
    """
    shards = read_json(file).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"the weight_map of {file} must name a file for each tensor")
    for name in shards.values():
        if Path(name).name != name:
            raise ValueError(f"{file} names the file {name!r}, which is not in the same folder; nothing was read")
    return shards


@dataclass(frozen=True)
class Tensor:
    """Shape and dtype of a tensor in a file; `dtype` is a name like "float16"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def header_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """Make a tensor of what a header of safetensors says; `dtype` is "F32" or the like."""
    return Tensor(tuple(shape), DTYPES.get(dtype, dtype))


@contextmanager
def damage_named(file: str, *more: type[Exception]) -> Iterator[None]:
    """Turn errors of weights that cannot be read, and `more`, into a ValueError that names them; torch's own error advises
    to run pickled code."""
    try:
        yield
    except (SafetensorError, pickle.UnpicklingError, EOFError, *more) as error:
        raise ValueError(
            f"{file} is truncated or damaged, or holds pickled objects that are not tensors; they are not run. Download or "
            f"save it again ({type(error).__name__}: {str(error).partition('.')[0]})"
        ) from error


def read_weights(file: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Return the tensors of a .safetensors or .bin file; pickled code is not run.

    Raises:
        ValueError: the file is damaged.
    """
    with damage_named(str(file), RuntimeError, OSError, LookupError):
        if str(file).endswith(".safetensors"):
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)


def refuse_integers(tensors: Mapping[str, Any], source: str):
    """Refuse weights that are integers, which loading would convert without a word.

    Raises:
        ValueError: one is not of floating-point numbers.
    """
    for name, tensor in tensors.items():
        if name.endswith((".weight", ".bias")) and "float" not in str(tensor.dtype):
            raise ValueError(f"{source}: {name} is of {tensor.dtype}, expected floating-point weights: convert them first")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return shapes and dtypes of the tensors in a .safetensors or .bin file, without their values.

    Raises:
        ValueError: the file is damaged.
    """
    tensors = {}
    with damage_named(str(file), RuntimeError, OSError, LookupError):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as opened:
                for name in opened.keys():
                    entry = opened.get_slice(name)
                    tensors[name] = header_tensor(entry.get_shape(), entry.get_dtype())
            return tensors
        # Old files, which are no archives, cannot be mapped: they are read.
        content = torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file))
    for name, value in content.items():
        if torch.is_tensor(value):
            tensors[name] = Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return tensors

# SPDX-License-Identifier: Apache-2.0
"""Names and readers of checkpoint files: JSON, shard indices, headers and weights."""

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

# Weights of a model and of an adapter, in the order in which transformers and peft look for them.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
ADAPTER_CONFIG_FILE, ADAPTER_WEIGHT_FILES = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
# The generator in the repositories of official discriminators (v3).
GENERATOR_CONFIG_FILE, GENERATOR_FILE = "generator_config.json", "pytorch_model.generator.bin"
# Files that define a tokenizer, in the order in which this package looks for them; tokenizer_config.json is not enough.
TOKENIZER_FILES = ("spm.model", "vocab.json", "tokenizer.json", "vocab.txt")
# File names of weights: single files, shards and indices. Variants (model.fp16.safetensors) are only loaded on request.
WEIGHTS = re.compile(r"((pytorch_|adapter_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?|pytorch_model_fsdp\.bin)")


def check_source(source: str | os.PathLike, flag: str = ""):
    """Check that `source` is an existing folder, or has the form of a Hub id.

    Args:
        flag (`str`): text at the beginning of the error message, such as "--model: ".
    """
    if Path(source).is_dir():
        return
    with suppress(HFValidationError):
        validate_repo_id(str(source))
        if not Path(source).exists():
            return
    raise OSError(f"{flag}expected a folder or a Hub id, got {source}: there is no such folder")


def is_weight_file(name: str) -> bool:
    """Return True if a file named `name` has weights: a single file, a shard, an index, an adapter, or a file of FSDP."""
    return WEIGHTS.fullmatch(name) is not None


def is_adapter_folder(folder: str | os.PathLike) -> bool:
    """Return True for a folder with a peft adapter and without the weights of a model."""
    has_model = any(Path(folder, name).is_file() for name in WEIGHT_FILES)
    return Path(folder, ADAPTER_CONFIG_FILE).is_file() and not has_model


def microsoft_weights(folder: str | os.PathLike) -> str | None:
    """Return the name of the file pytorch.model-NNNNNN.bin, written by Microsoft's trainer, in a folder; None if missing."""
    names = sorted(file.name for file in Path(folder).glob("pytorch.model-*.bin"))
    if not names:
        return None
    names += [name for name in WEIGHT_FILES if Path(folder, name).is_file()]
    if len(names) > 1:
        raise ValueError(f"{folder} must have only one weights file, got {', '.join(names)}; remove the wrong ones")
    return names[0]


def weight_files(
    source: str | os.PathLike,
    names: Sequence[str] = WEIGHT_FILES,
    *,
    use_safetensors: bool | None = None,
    variant: str | None = None,
    **download,
) -> list[Path]:
    """Return the weight files to read for a folder or repository: one file, all shards of an index, or [] if there are none.

    Args:
        names (`Sequence[str]`): files to look for; the first existing one is used.
        use_safetensors (`bool`, *optional*): True: only safetensors; False: only .bin; None: both.
        variant (`str`, *optional*): read model.VARIANT.safetensors or model.safetensors.index.VARIANT.json.
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
    """Return the names of the files in `folder` that define a tokenizer."""
    return [name for name in TOKENIZER_FILES if Path(folder, name).is_file()]


def checkpoint_step(folder: Path) -> int:
    """Return the step in the name of a checkpoint folder of Trainer, "checkpoint-STEP"; -1 for any other name."""
    number = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(number[1]) if number else -1


def optional_file(source: str | os.PathLike, name: str, **download) -> str | None:
    """Return the path of a file in a folder or repository, or None if the file does not exist.

    Args:
        download: `revision`, `token`, `cache_dir`, `subfolder`, `local_files_only`, ... of transformers' `cached_file`.
    """
    try:
        return cached_file(source, name, **download)
    except OSError:
        return None


def read_json(file: str | os.PathLike) -> dict[str, Any]:
    """Read a JSON object from a file; return {} if the file does not exist."""
    file = Path(file)
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); download or save it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must contain a JSON object, got {type(content).__name__}")
    return content


def read_index(file: str | os.PathLike) -> dict[str, str]:
    """Read an index file; return {tensor name: file name of its shard}. Shards are in the folder of the index."""
    shards = read_json(file).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"the weight_map in {file} must map each tensor to a file name, got {shards!r}")
    for name in shards.values():
        if Path(name).name != name:
            raise ValueError(f"{file} must only name files in its own folder, got {name!r}; nothing was read")
    return shards


@dataclass(frozen=True)
class Tensor:
    """Shape and dtype name ("float16") of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def header_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """Create a `Tensor` from the shape and dtype name ("F32") in a safetensors header."""
    from transformers.modeling_utils import str_to_torch_dtype

    return Tensor(tuple(shape), str(str_to_torch_dtype.get(dtype, dtype)).removeprefix("torch."))


@contextmanager
def damage_named(file: str, *more: type[Exception]) -> Iterator[None]:
    """Context manager that turns errors of safetensors and pickle, and errors of the types `more`, into a ValueError.

    The ValueError names `file`. Only the first sentence of the original message is kept, because torch's whole message
    advises users to allow pickled code.
    """
    try:
        yield
    except (SafetensorError, pickle.UnpicklingError, EOFError, *more) as error:
        raise ValueError(
            f"{file} is truncated or corrupt, or contains pickled objects other than tensors, which were not loaded. "
            f"Download or save the file again ({type(error).__name__}: {str(error).partition('.')[0]})"
        ) from error


def read_weights(file: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Load the tensors of a .safetensors or .bin file, without running pickled code."""
    with damage_named(str(file), RuntimeError, OSError, LookupError):
        if str(file).endswith(".safetensors"):
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True)


def refuse_integers(tensors: Mapping[str, Any], source: str):
    """Raise a ValueError if a weight or bias is not floating-point, because loading would silently convert integers."""
    for name, tensor in tensors.items():
        if name.endswith((".weight", ".bias")) and "float" not in str(tensor.dtype):
            raise ValueError(
                f"{source}: {name} must have a floating-point dtype, got {tensor.dtype}; convert it to float32 first"
            )


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the shapes and dtypes of the tensors in a .safetensors or .bin file, without reading their values."""
    tensors = {}
    with damage_named(str(file), RuntimeError, OSError, LookupError):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as opened:
                for name in opened.keys():
                    entry = opened.get_slice(name)
                    tensors[name] = header_tensor(entry.get_shape(), entry.get_dtype())
            return tensors
        # Old files, which are not zip archives, do not support mmap.
        content = torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file))
    for name, value in content.items():
        if torch.is_tensor(value):
            tensors[name] = Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return tensors

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Files of a checkpoint: their names, the tensors that their headers name, whether they are whole. No weight is read."""

import json
import math
import os
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .checkpoint_layouts import WEIGHT_FILES

__all__ = [
    "ADAPTER_WEIGHT_FILES", "TOKENIZER_FILES", "WEIGHT_FILES", "Tensor", "header_tensor", "read_index", "read_json",
    "read_tensors", "shown_size", "tokenizer_files",
]  # fmt: skip

# WEIGHT_FILES are those of a whole model; both are in the order in which loading looks for them.
ADAPTER_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# Any of them is a tokenizer, in the order in which this package looks for them; tokenizer_config.json alone is none.
TOKENIZER_FILES = ("spm.model", "vocab.json", "tokenizer.json", "vocab.txt")
# safetensors' names of the types -> torch's.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
          "I16": "int16", "U8": "uint8", "I8": "int8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
          "F8_E5M2": "float8_e5m2"}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """What a file says of a tensor; `dtype` is a name like "float16"."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


def tokenizer_files(folder: str | os.PathLike) -> list[str]:
    """Names of the files in it of which each is a tokenizer."""
    return [name for name in TOKENIZER_FILES if Path(folder, name).is_file()]


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; {} without the file.

    Raises:
        ValueError: it is something else.
    """
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        why = "a Git LFS pointer, not the file itself" if _is_pointer(file) else f"not JSON: {error}"
        raise ValueError(f"{file} is {why}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value


def read_index(file: Path) -> dict[str, str]:
    """Tensor -> name of the file beside the index that holds it.

    Raises:
        ValueError: the index is damaged, or names files elsewhere.
    """
    index = read_json(file)
    if "weight_map" not in index:
        raise ValueError(f"{file.name} has no weight_map")
    files = index["weight_map"]
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"the weight_map of {file.name} must name a file for each tensor")
    if outside := next((name for name in files.values() if Path(name).name != name or "\\" in name), None):
        raise ValueError(f"{file.name} names the file {outside!r}, which is not beside it")
    return files


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Shapes and dtypes of the tensors in a .safetensors or .bin file; what is no tensor is left out.

    Raises:
        ValueError: the file is cut off, a Git LFS pointer, damaged, or holds pickled code.
    """
    if _is_pointer(file):
        raise ValueError(f"{file.name} is a Git LFS pointer, not the weights: git lfs pull, or download it again")
    if file.suffix == ".safetensors":
        return _read_header(file)
    try:
        # Old files, which are no archives, cannot be mapped: they are read.
        state_dict = torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file) or None)
    except pickle.UnpicklingError as error:
        if "invalid load key" in str(error) or "truncated" in str(error):
            raise ValueError(f"{file.name} is damaged, or no file of torch") from error
        raise ValueError(f"{file.name} holds pickled objects that are not tensors; they are not run") from error
    except (RuntimeError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{file.name} is cut off or damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(state_dict, dict):
        raise ValueError(f"{file.name} must hold a dict of tensors, not a {type(state_dict).__name__}")
    tensors = {key: value for key, value in state_dict.items() if torch.is_tensor(value)}
    return {key: Tensor(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for key, x in tensors.items()}


def _is_pointer(file: Path) -> bool:
    with open(file, "rb") as data:
        return data.read(40).startswith(b"version https://git-lfs")


def _read_header(file: Path) -> dict[str, Tensor]:
    """A .safetensors file: 8 bytes for the length of the header, the header as JSON, the data."""
    size = file.stat().st_size
    with open(file, "rb") as data:
        start = data.read(8)
        length = int.from_bytes(start, "little") if len(start) == 8 else size
        if 8 + length > size:
            raise ValueError(f"{file.name} is cut off within its header, after {size} bytes, or no safetensors file")
        try:
            header = json.loads(data.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file.name} is no safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError(f"{file.name} is no safetensors file: its header is a JSON {type(header).__name__}, not an object")
    header.pop("__metadata__", None)
    if wrong := next((key for key, entry in header.items() if not _is_entry(entry)), None):
        raise ValueError(f"{file.name} is damaged: its header does not tell type, shape and place of {wrong}")
    whole = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != whole:
        what = "is cut off" if size < whole else "has bytes behind its end"
        raise ValueError(f"{file.name} {what}: {size} bytes, where its header tells of {whole}")
    return {key: header_tensor(entry["shape"], entry["dtype"]) for key, entry in header.items()}


def _is_entry(entry: Any) -> bool:
    """Whether it is what a header says of a tensor."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, place = entry.get("shape"), entry.get("data_offsets")
    numbers = [*shape, *place] if isinstance(shape, list) and isinstance(place, list) and len(place) == 2 else [None]
    return all(type(number) is int and number >= 0 for number in numbers)


def header_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """A tensor as a header of safetensors describes it: `dtype` is "F32" or the like."""
    return Tensor(tuple(shape), DTYPES.get(dtype, dtype))


def shown_size(size: int, *, digits: int | None = None) -> str:
    """ "812 B" or "1.2 MB": decimal, as on the Hub.

    Args:
        digits (`int`, *optional*): significant digits ("3.14 GB", "874 MB"); None = one behind the point.
    """
    if size < 1000:
        return f"{size} B"
    value, units = size / 1000, ["kB", "MB", "GB"]
    # What would be rounded to 1000 is one of the next unit.
    while len(units) > 1 and value >= 1000 - (0.05 if digits is None else 0.5):
        value, units = value / 1000, units[1:]
    return f"{value:.1f} {units[0]}" if digits is None else f"{value:#.{digits}g} {units[0]}".replace(". ", " ")

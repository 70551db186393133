# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Checkpoints that are cut off, torn apart or full of NaN: each file that cannot be read is named, with the way out."""

import json
import pickle
import zipfile
from pathlib import PurePosixPath, PureWindowsPath

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

__all__ = ["MismatchedSizesError", "not_numbers", "read_json", "read_weights", "shards_of", "without_sizes"]

AGAIN = "download or save it again"
# What torch.load raises for files that are cut off or no pickles at all.
TORCH_ERRORS = (RuntimeError, EOFError, OSError, LookupError, AttributeError, ValueError, TypeError, zipfile.BadZipFile)


class MismatchedSizesError(ValueError, RuntimeError):
    """Weights of other sizes than the model's. transformers raises a RuntimeError here, which code may wait for."""


def read_json(path: str) -> dict:
    """A JSON file that holds an object.

    Raises:
        ValueError: it holds something else, or no JSON.
    """
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path} is no JSON file ({error}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, {{...}}, got {type(content).__name__}; {AGAIN}")
    return content


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors or .bin file; pickled code is not run.

    Raises:
        ValueError: the file is damaged, or holds something else than tensors by name.
    """
    path = str(path)
    if path.endswith(".safetensors"):
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is no whole safetensors file ({error}); {AGAIN}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is damaged, or holds pickled objects that are not tensors; they are not run. If you trust the file, "
            "load it with torch yourself and save its tensors as safetensors"
        ) from error
    except TORCH_ERRORS as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(f"{path} is no whole file of torch ({type(error).__name__}: {error}); {AGAIN}") from error
    if not (isinstance(content, dict) and all(isinstance(key, str) for key in content)):
        raise ValueError(f"{path} must hold tensors by name, got {type(content).__name__}; save model.state_dict()")
    return content


def shards_of(path: str) -> list[str]:
    """The files that an index names, each beside it.

    Raises:
        ValueError: the index is damaged, or names files elsewhere.
    """
    shards = read_json(path).get("weight_map")
    if not (isinstance(shards, dict) and shards and all(isinstance(name, str) for name in shards.values())):
        raise ValueError(f"{path} must have a weight_map of tensors and files; {AGAIN}")
    names = sorted(set(shards.values()))
    for name in names:
        if PurePosixPath(name).name != name or PureWindowsPath(name).name != name:
            raise ValueError(f"{path} names the file {name!r}, which is not beside it; nothing was read")
    return names


def not_numbers(model: nn.Module) -> list[str]:
    """Names of the parameters with NaN or infinity among their values; one wait for each device."""
    devices: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        # Not on meta, nor what a quantizer or a shard of several devices has made of it.
        if type(parameter) is nn.Parameter and parameter.is_floating_point() and parameter.device.type != "meta":
            devices.setdefault(parameter.device, {})[name] = parameter.detach()
    found = []
    for parameters in devices.values():
        # NaN and infinity pass into a sum, which takes no memory; a sum may also pass what its dtype holds.
        sums = [
            _computable(x).sum(dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
            for x in parameters.values()
        ]
        fine = torch.stack([x.isfinite() for x in sums]).tolist()
        suspects = [name for name, is_fine in zip(parameters, fine, strict=True) if not is_fine]
        found += [name for name in suspects if not bool(_computable(parameters[name]).isfinite().all())]
    return found


def _computable(x: torch.Tensor) -> torch.Tensor:
    """torch has no sums of 8-bit floats."""
    return x.float() if x.dtype.itemsize == 1 else x


def without_sizes(place: str, mismatched: set[tuple]) -> str:
    """The message for tensors of other sizes than the model's: (name, in the file, in the model) each."""
    listed = sorted((name, list(stored), list(built)) for name, stored, built in mismatched)
    some = "; ".join(f"{name} is {stored} in the file and {built} in the model" for name, stored, built in listed[:3])
    more = f" (and {len(listed) - 3} more)" if len(listed) > 3 else ""
    return (
        f"{place}: the weights do not have the sizes that its config.json asks for: {some}{more}; correct the "
        "configuration, or pass ignore_mismatched_sizes=True to draw these tensors anew"
    )

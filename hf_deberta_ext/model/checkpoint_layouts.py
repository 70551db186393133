# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Reading the checkpoints of Microsoft and of transformers' DeBERTa classes: files, key names, the fused layout of v1."""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.utils import cached_file

from .checkpoint_files import (
    AGAIN,
    GENERATOR_CONFIG_FILE,
    GENERATOR_FILE,
    WEIGHT_FILES,
    check_dtypes,
    microsoft_weights,
    read_index,
    read_json,
    read_tensors,
    read_weights,
)
from .official_configurations import MICROSOFT

__all__ = [
    "LoadingReport", "check_files", "check_names", "convert_official", "read_generator",
    "read_state_dict", "set_fields_of_head",
]  # fmt: skip

# Of both families, whole keys; in the order in which they apply.
_RENAMES = [
    (r"^bert\.", "deberta."),
    # The head that transformers writes with legacy=True.
    (r"^cls\.predictions\.transform\.", "lm_predictions.lm_head."),
    (r"^cls\.predictions\.bias$", "lm_predictions.lm_head.bias"),
    # v1: the query and value biases and the position projections of the fused layout.
    (r"attention\.self\.q_bias$", "attention.self.query_proj.bias"),
    (r"attention\.self\.v_bias$", "attention.self.value_proj.bias"),
    (r"attention\.self\.pos_proj\.", "attention.self.pos_key_proj."),
    (r"attention\.self\.pos_q_proj\.", "attention.self.pos_query_proj."),
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
]
# The other way round, without the signs of patterns: parts of our names, and those that a file may have in their place.
_FILE_NAMES = [
    ("deberta.", ""),
    ("query_proj.weight", "in_proj.weight"),
    *((ours, re.sub(r"[\\^$]", "", theirs)) for theirs, ours in _RENAMES),
]
_DROPPED = [
    (r"^config$", "not a tensor: the training configuration that old files carry"),
    (r"(^|\.)position_ids$", "a constant"),
    (r"^cls\.predictions\.decoder\.", "tied to the word embeddings and the bias"),
]
_FUSED = re.compile(r"^(.*attention\.self\.)in_proj\.weight$")
_DELTA = re.compile(r"^(.*_embeddings\.)_weight$")


@dataclass
class LoadingReport:
    """Report on loading: the fate of each tensor of a checkpoint and of each parameter of the model; `print` it.

    Args:
        source (`str`): folder or repo id.
        loaded (`list[str]`): parameters of the model that came from the file.
        converted (`dict[str, list[str]]`): key in the file -> parameters that it became, where the names differ.
        initialised (`list[str]`): parameters that the file does not have: newly drawn.
        unused (`dict[str, str]`): key in the file -> why nothing reads it.
        notes (`list[str]`): decisions that change what the model computes.
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    converted: dict[str, list[str]] = field(default_factory=dict)
    initialised: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def complete(self, names: set[str], info: dict):
        """Fill in the result of loading: `names` are the model's parameters, `info` the loading info of transformers."""
        self.initialised = sorted({*info["missing_keys"], *(mismatch[0] for mismatch in info["mismatched_keys"])})
        self.loaded = sorted(names - {*self.initialised})
        file_keys = {new: key for key, converted in self.converted.items() for new in converted}
        unexpected = {file_keys.get(key, key) for key in info["unexpected_keys"]}
        self.unused |= dict.fromkeys(sorted(unexpected), "no such parameter in this model")
        self.converted = {key: new for key, new in self.converted.items() if key not in unexpected}

    def summary(self) -> str:
        """One line of counts, with the parts of the model, or of the file, that are new or unused."""

        def count(names, what: str) -> str:
            parts = sorted({name.removeprefix("deberta.").partition(".")[0] for name in names})
            return f"{len(names)} {what}" + (f" ({', '.join(parts)})" if parts else "")

        converted = f" ({len(self.converted)} tensors of the file converted)" if self.converted else ""
        loaded = f"{self.source}: {len(self.loaded)} parameters loaded{converted}"
        return f"{loaded}, {count(self.initialised, 'newly initialised')}, {count(self.unused, 'unused')}"

    def __str__(self) -> str:
        lines = [self.summary(), *(f"note: {note}" for note in self.notes)]
        lines += [f"newly initialised: {key}" for key in self.initialised]
        lines += [f"unused: {key} ({reason})" for key, reason in self.unused.items()]
        lines += [f"converted: {key} -> {', '.join(new)}" for key, new in self.converted.items()]
        return "\n".join(lines)


def read_state_dict(name_or_path: str, *, use_safetensors: bool | None = None, variant: str | None = None, **download):
    """All tensors of a folder or repo, whole or in shards, safetensors or .bin (loaded without running pickled code).

    Args:
        use_safetensors (`bool`, *optional*): True = safetensors alone, False = .bin alone.
        variant (`str`, *optional*): as in transformers, model.VARIANT.safetensors, model.safetensors.index.VARIANT.json.
        download: `revision`, `token`, `cache_dir`, `subfolder`, `local_files_only`, ... of transformers' `cached_file`.

    Raises:
        OSError: none of the files is there.
        ValueError: a file is damaged, a .bin file holds other pickled objects than tensors and plain values, or an index
            names a file that is not beside it.
    """
    state_dict: dict = {}
    for file in weight_files(name_or_path, use_safetensors, variant, **download):
        state_dict.update(read_weights(file))
    return state_dict


def weight_files(
    name_or_path: str, use_safetensors: bool | None = None, variant: str | None = None, **download
) -> Iterator[str]:
    """Paths of the files that `read_state_dict` reads; arguments and errors as there."""
    folder = os.path.join(name_or_path, download.get("subfolder") or "")
    if (name := microsoft_weights(folder)) and variant is None:
        yield os.path.join(folder, name)
        return
    names = [name for name in WEIGHT_FILES if use_safetensors is None or ("safetensors" in name) == use_safetensors]
    if variant is not None:
        names = [f"{stem}.{variant}.{ending}" for stem, ending in (name.rsplit(".", 1) for name in names)]
    for name in names:
        path = cached_file(
            name_or_path,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=True,
            **download,
        )
        if path is not None:
            shards = sorted({*read_index(path).values()}) if name.endswith(".json") else None
            yield from [path] if shards is None else (cached_file(name_or_path, shard, **download) for shard in shards)
            return
    raise OSError(f"{name_or_path} has no weights: none of {', '.join(names)}")


def check_files(name_or_path: str, *, quantized: bool = False, **source):
    """Check headers of weights, and indices of shards, which transformers would follow anywhere; arguments as above.

    Args:
        quantized (`bool`): weights may be integers.

    Raises:
        ValueError: one is damaged, or names files elsewhere; or weights are no floating-point numbers.
    """
    try:
        files = [*weight_files(name_or_path, **source)]
    except OSError:
        # An adapter, or a format that transformers converts; or it says what is missing.
        return
    for file in files if not quantized else ():
        check_dtypes(file, read_tensors(Path(file)))


def read_generator(name_or_path: str, **download) -> tuple[dict, dict | None] | None:
    """The generator that the v3 repos hold beside the discriminator: its tensors, and its configuration where there is one;
    None without it."""
    optional = dict(_raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False, **download)
    weights = cached_file(name_or_path, GENERATOR_FILE, **optional)
    if weights is None:
        return None
    stock = cached_file(name_or_path, GENERATOR_CONFIG_FILE, **optional)
    if stock is None:
        return read_weights(weights), None
    return read_weights(weights), read_json(stock)


def convert_official(
    state_dict: dict, config, delta_bases: dict | None = None
) -> tuple[dict[str, torch.Tensor], LoadingReport]:
    """Convert the tensors of an official checkpoint to the names of this package.

    v1's `in_proj.weight` [3·hidden, hidden] holds, head after head, d rows of q, d of k, d of v; it has no key bias, and
    neither has `pos_proj`. Our projections have one; zero is the only value that computes the same.

    Args:
        state_dict (`dict`): as read from the file.
        config (`DebertaExtConfig`): for the number of heads.
        delta_bases (`dict`, *optional*): the generator's tables by name ("word_embeddings"), to which the deltas of a
            checkpoint that holds nothing else are added.

    Returns:
        the converted tensors, and a report whose `converted` and `unused` are filled.

    Raises:
        ValueError: only a GDES delta (`_weight`) of an embedding table is there, or a fused weight has the wrong shape.
    """
    report = LoadingReport(source="")
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state_dict.items():
        reason = next((reason for pattern, reason in _DROPPED if re.search(pattern, key)), None)
        if reason is None and not torch.is_tensor(value):
            reason = f"not a tensor but {type(value).__name__}"
        if match := _DELTA.match(key):
            table, base = match[1] + "weight", (delta_bases or {}).get(match[1].split(".")[-2])
            if table not in state_dict and base is not None and torch.is_tensor(value):
                # In the precision of the file, which is that of the sum.
                tensors[table] = (base.to(value.dtype).float() + value.float()).to(value.dtype)
                report.converted[key] = [table]
                report.notes.append(f"{key} was added to the generator's table")
                continue
            if table not in state_dict:
                raise ValueError(
                    f"the checkpoint has {key} but no {table}: it is the difference from the generator's table that "
                    "gradient-disentangled embedding sharing trains, not a table. Add the generator's table to it, or "
                    "save the discriminator again after a forward pass of the official code"
                )
            reason = f"the difference from the generator's table; {table} already contains it"
        if reason is not None:
            report.unused[key] = reason
            continue
        for new, tensor in convert_tensor(key, value, config):
            tensors[new] = tensor
            if new != key:
                report.converted.setdefault(key, []).append(new)
    return tensors, report


def set_fields_of_head(config, tensors: dict[str, torch.Tensor], stored_config: dict):
    """Set the fields of the configuration that Microsoft's code does not write: the number of labels, which transformers'
    has in `stored_config`, and the dense layer of a token classifier."""
    labels = len(tensors.get("classifier.weight", ()))
    if labels and stored_config.get("model_type") == MICROSOFT and not {"num_labels", "id2label"} & {*stored_config}:
        config.num_labels = labels
    # One output is the head of ReCoRD.
    if "proj.weight" in tensors and labels > 1:
        config.classifier_act = "gelu"


def convert_tensor(key: str, tensor: torch.Tensor, config):
    """Yield (name here, tensor) for each part of one tensor of the file."""
    name = key
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    if match := _FUSED.match(name):
        heads, hidden = config.num_attention_heads, config.hidden_size
        if tensor.shape != (3 * hidden, hidden):
            raise ValueError(f"{key} must have shape [{3 * hidden}, {hidden}], got {list(tensor.shape)}")
        per_head = tensor.view(heads, 3, hidden // heads, hidden)
        for index, projection in enumerate(("query_proj", "key_proj", "value_proj")):
            yield f"{match[1]}{projection}.weight", per_head[:, index].reshape(hidden, hidden)
        yield f"{match[1]}key_proj.bias", tensor.new_zeros(hidden)
        return
    yield name, tensor
    if key.endswith("attention.self.pos_proj.weight"):
        yield name.removesuffix("weight") + "bias", tensor.new_zeros(tensor.shape[0])


def check_names(source: str, info: dict):
    """Check transformers' loading info: a missing name beside an unexpected one that is one edit away was damaged.

    Raises:
        ValueError: says which; the tensor would be drawn anew.
    """
    unexpected_keys = sorted(info["unexpected_keys"])
    for missing in sorted(info["missing_keys"]):
        names = [missing, *(missing.replace(ours, theirs, 1) for ours, theirs in _FILE_NAMES if ours in missing)]
        for name, unexpected in itertools.product(names, unexpected_keys):
            if abs(len(name) - len(unexpected)) > 1:
                continue
            # Behind what both begin with, one character is another, one too many, or one too few.
            same = len(os.path.commonprefix([name, unexpected]))  # noqa: RUF071 - no paths
            a, b = name[same:], unexpected[same:]
            if a[1:] in (b[1:], b) or a == b[1:]:
                raise ValueError(
                    f"{source} has no weights {missing}, but has an unexpected {unexpected}: is the name damaged? {AGAIN}, "
                    "or correct the name"
                )

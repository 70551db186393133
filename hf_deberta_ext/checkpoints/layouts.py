# SPDX-License-Identifier: Apache-2.0
"""Read official checkpoints (of Microsoft, or of transformers' DeBERTa classes) and convert them to this package's names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.utils import cached_file

from .files import GENERATOR_CONFIG_FILE, GENERATOR_FILE, WEIGHT_FILES, optional_file, read_json, read_weights, weight_files
from .official_configurations import MICROSOFT

__all__ = ["LoadingReport", "convert_official", "read_generator", "read_state_dict", "set_fields_of_head"]

# (pattern in a key, replacement) for v1 and v2/v3, in the order in which they apply.
_RENAMES = [
    (r"^bert\.", "deberta."),
    # The head of transformers with legacy=True.
    (r"^cls\.predictions\.transform\.", "lm_predictions.lm_head."),
    (r"^cls\.predictions\.bias$", "lm_predictions.lm_head.bias"),
    # v1: query and value biases and position projections of the fused layout.
    (r"attention\.self\.q_bias$", "attention.self.query_proj.bias"),
    (r"attention\.self\.v_bias$", "attention.self.value_proj.bias"),
    (r"attention\.self\.pos_proj\.", "attention.self.pos_key_proj."),
    (r"attention\.self\.pos_q_proj\.", "attention.self.pos_query_proj."),
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
]
_DROPPED = [
    (r"^config$", "not a tensor: the training configuration, which old files contain"),
    (r"(^|\.)position_ids$", "a constant"),
    (r"^cls\.predictions\.decoder\.", "tied to the word embeddings and the bias"),
]
_FUSED = re.compile(r"^(.*attention\.self\.)in_proj\.weight$")
_DELTA = re.compile(r"^(.*_embeddings\.)_weight$")


@dataclass
class LoadingReport:
    """Report on a loaded checkpoint: which tensors were used, and which parameters were newly initialised.

    Args:
        source (`str`): folder or repository id.
        loaded (`list[str]`): parameters that were loaded from the checkpoint.
        converted (`dict[str, list[str]]`): key in the checkpoint -> parameters made from this tensor, if their names
            differ from the key.
        initialised (`list[str]`): parameters that are missing in the checkpoint and newly initialised.
        unused (`dict[str, str]`): key in the checkpoint -> reason why it is not used.
        notes (`list[str]`): decisions that change the outputs of the model.
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    converted: dict[str, list[str]] = field(default_factory=dict)
    initialised: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def complete(self, names: set[str], info: dict):
        """Fill in the fields from the `names` of the model's parameters and the loading `info` of transformers."""
        self.initialised = sorted({*info["missing_keys"], *(mismatch[0] for mismatch in info["mismatched_keys"])})
        self.loaded = sorted(names - {*self.initialised})
        file_keys = {new: key for key, converted in self.converted.items() for new in converted}
        unexpected = {file_keys.get(key, key) for key in info["unexpected_keys"]}
        self.unused |= dict.fromkeys(sorted(unexpected), "no such parameter in this model")
        self.converted = {key: new for key, new in self.converted.items() if key not in unexpected}

    def summary(self) -> str:
        """Return one line with the numbers of loaded, converted, newly initialised and unused tensors."""
        return (
            f"{self.source}: {len(self.loaded)} parameters loaded ({len(self.converted)} tensors of the file converted), "
            f"{len(self.initialised)} newly initialised, {len(self.unused)} unused"
        )

    def __str__(self) -> str:
        lines = [self.summary(), *(f"note: {note}" for note in self.notes)]
        lines += [f"newly initialised: {key}" for key in self.initialised]
        lines += [f"unused: {key} ({reason})" for key, reason in self.unused.items()]
        lines += [f"converted: {key} -> {', '.join(new)}" for key, new in self.converted.items()]
        return "\n".join(lines)


def read_state_dict(source: str, **options) -> dict[str, torch.Tensor]:
    """Load all tensors of a folder or repository, from safetensors or .bin files, without running pickled code."""
    files = weight_files(source, **options)
    if not files:
        if not Path(source).is_dir():
            # Raises transformers' error, which says whether the file is absent or only not cached.
            download = {name: value for name, value in options.items() if name not in ("use_safetensors", "variant")}
            cached_file(source, WEIGHT_FILES[0], **download)
        raise OSError(f"{source} has no weights: expected one of {', '.join(WEIGHT_FILES)}")
    state_dict: dict[str, torch.Tensor] = {}
    for file in files:
        state_dict.update(read_weights(file))
    return state_dict


def read_generator(source: str, **download) -> tuple[dict, dict | None] | None:
    """Return (tensors, configuration) of the generator in an official v3 repository; None if it has no generator.

    The configuration is None if the repository has no generator_config.json.
    """
    weights = optional_file(source, GENERATOR_FILE, **download)
    if weights is None:
        return None
    stock = optional_file(source, GENERATOR_CONFIG_FILE, **download)
    return read_weights(weights), None if stock is None else read_json(stock)


def convert_official(
    state_dict: dict, config, delta_bases: dict | None = None
) -> tuple[dict[str, torch.Tensor], LoadingReport]:
    """Convert the tensors of an official checkpoint to this package's names.

    v1 has one fused weight for queries, keys and values, `in_proj.weight` [3·hidden, hidden]: for each head of size d, it
    has d rows for the query, then d for the key, then d for the value. v1 has no biases for keys and for `pos_proj`, so
    these parameters are set to zero.

    Args:
        state_dict (`dict`): tensors of the checkpoint by key.
        config (`DebertaExtConfig`): configuration with the number of heads.
        delta_bases (`dict`, *optional*): the generator's embedding tables by name ("word_embeddings"). Required if the
            checkpoint has gradient-disentangled embedding sharing (GDES) and stores only E_delta, the differences from the
            generator's tables. Each converted table is then the sum of the generator's table and its E_delta.

    Returns:
        The converted tensors by parameter name, and a `LoadingReport` with `converted`, `unused` and `notes`.
    """
    report = LoadingReport(source="")
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state_dict.items():
        reason = next((reason for pattern, reason in _DROPPED if re.search(pattern, key)), None)
        if reason is None and not torch.is_tensor(value):
            reason = f"not a tensor but {type(value).__name__}"
        delta = _DELTA.match(key)
        if delta:
            table = delta[1] + "weight"
            base = (delta_bases or {}).get(table.split(".")[-2])
            reason = f"the difference from the generator's table, which is already included in {table}"
            if table not in state_dict:
                if base is None:
                    raise ValueError(
                        f"expected {table}, got only {key}: gradient-disentangled embedding sharing trains this difference "
                        "from the generator's table. Pass the generator's table to from_pretrained as delta_bases. Or run a "
                        "forward pass of the official code, which adds the difference to the generator's table, and save "
                        "the discriminator again"
                    )
                # Add in float32, and round the sum to the checkpoint's dtype.
                tensors[table] = (base.to(value.dtype).float() + value.float()).to(value.dtype)
                report.converted[key] = [table]
                report.notes.append(f"{key} was added to the generator's table")
                continue
        if reason is not None:
            report.unused[key] = reason
            continue
        for new, tensor in convert_tensor(key, value, config):
            tensors[new] = tensor
            if new != key:
                report.converted.setdefault(key, []).append(new)
    return tensors, report


def set_fields_of_head(config, tensors: dict[str, torch.Tensor], stored_config: dict):
    """Set fields of `config` that Microsoft's configurations lack: the number of labels (from the classifier's shape),
    and `classifier_act` if a token classifier has a dense layer."""
    labels = len(tensors.get("classifier.weight", ()))
    if labels and stored_config.get("model_type") == MICROSOFT and not {"num_labels", "id2label"} & {*stored_config}:
        config.num_labels = labels
    # The ReCoRD head also has proj, and one output.
    if "proj.weight" in tensors and labels > 1:
        config.classifier_act = "gelu"


def convert_tensor(key: str, tensor: torch.Tensor, config) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (parameter name, tensor) for each parameter that a tensor of the checkpoint contains."""
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

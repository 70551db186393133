# SPDX-License-Identifier: Apache-2.0
"""Digests of what a run learns from: its examples, its tokenizer, the weights and the configuration that it begins with."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import Trainer
from xxhash import xxh3_64

from .._version import __version__
from ..checkpoints.files import is_weight_file
from ..model.attention_deberta_ext import choose_backend
from .digests import add_values, json_digest, tokenizer_digest
from .manifest import digest_of
from .run_folder import is_decided_by_evaluation

__all__ = ["examples_digest", "run_contents", "weights_digest"]

# Of a data set that is neither a list nor of the package datasets, whose rows may be made when they are read.
MOST_ROWS = 1000
# Fields of a configuration that say nothing about the weights, or that Trainer sets.
NO_SETTINGS = ("_attn", "_name", "architectures", "attn_", "auto_map", "dtype", "torch_dtype", "transformers", "use_cache")


def run_contents(trainer: Trainer) -> dict[str, Any]:
    """Return what shapes the weights beside the arguments of a training, as entries of run_arguments.json."""
    args, model, collator, rows = trainer.args, trainer.model, trainer.data_collator, trainer.train_dataset
    if hasattr(model, "peft_config"):
        model = model.get_base_model()
    config = getattr(model, "config", None)
    source = getattr(model, "name_or_path", None) or ""
    contents = {
        "data_digest": examples_digest(rows),
        # The order of PreparedRows, in code without the script's flags.
        "shuffle_buffer": getattr(getattr(rows, "dataset", None), "buffer", None),
        "tokenizer_digest": tokenizer_digest(trainer.processing_class),
        "trained_parameters": sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
        "attn_implementation": attention_backend(config, args.device),
        "hf_deberta_ext": __version__,
        "data_collator": getattr(collator, "__name__", type(collator).__name__),
    }
    if hasattr(rows, "lanes"):
        # The order of a NumberedStream.
        contents["stream_lanes"] = len(rows.lanes)
    if is_decided_by_evaluation(args):
        contents["evaluation_data_digest"] = examples_digest(trainer.eval_dataset)
    # Checkpoints of the run itself are no beginning. _commit_hash is private: the one place that knows the commit.
    if not Path(source).resolve().is_relative_to(Path(args.output_dir).resolve()):
        contents["weights_digest"] = weights_digest(source, getattr(config, "_commit_hash", None))
    for name, value in plain_values(collator).items():
        contents[f"data_collator.{name}"] = value
    if hasattr(config, "to_dict"):
        for name, value in config.to_dict().items():
            if not name.startswith(NO_SETTINGS) and not name.endswith("_token_id"):
                contents[f"config.{name}"] = value
    return {name: value for name, value in contents.items() if value is not None}


def plain_values(value: Any) -> dict[str, Any]:
    """Return numbers and strings among the attributes of an object, and of dataclasses among them."""
    values = {}
    for name, other in getattr(value, "__dict__", {}).items():
        if dataclasses.is_dataclass(other):
            values[name] = plain_values(other)
        elif isinstance(other, bool | int | float | str):
            values[name] = other
    return values


def attention_backend(config: Any, device: torch.device) -> str | None:
    """Return the attention implementation by name, also where a model of this package chooses it for itself."""
    # Private: a configuration has no public name for it.
    name = getattr(config, "_attn_implementation", None)
    if name is not None or getattr(config, "model_type", None) != "deberta-ext":
        return name
    head_size = config.hidden_size // config.num_attention_heads
    return choose_backend(None, device, torch.float32, head_size)[0]


def examples_digest(dataset: Any) -> str | None:
    """Return number of rows and digest of their values; None for a stream.

    Every value counts of a list and of a `datasets.Dataset`, whatever files, chunks or indices it is made of; of other data
    sets `MOST_ROWS` rows, evenly spread, and none where they are drawn anew each time.
    """
    if isinstance(dataset, Mapping):
        return json_digest({name: examples_digest(part) for name, part in dataset.items()})
    if hasattr(dataset, "epoch_columns"):
        # NumberedExamples; a NumberedStream has lanes
        dataset = getattr(dataset, "dataset", dataset)
    # PreparedRows
    if hasattr(dataset, "digest"):
        return dataset.digest
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return None
    if hasattr(dataset, "with_format"):
        digest = xxh3_64()
        for table in dataset.with_format("arrow").iter(batch_size=10_000):
            for name in sorted(table.column_names):
                digest.update(name.encode())
                add_values(digest, table[name].combine_chunks())
        return f"{len(dataset)} rows, {digest.hexdigest()}"
    if isinstance(dataset, list | tuple):
        return f"{len(dataset)} rows, {json_digest(list(dataset))}"
    rows = range(0, len(dataset), max(1, len(dataset) // MOST_ROWS))
    with torch.random.fork_rng(devices=[]):
        digest, again = (json_digest([dataset[row] for row in rows]) for _ in range(2))
    if digest != again:
        digest = "drawn when they are read"
    return f"{len(dataset)} rows, {digest}"


def weights_digest(source: str | None, commit: str | None = None) -> str | None:
    """Return the digest of the weight files in a folder, or the commit on the Hub of a model; None for new weights."""
    if not source or not Path(source).is_dir():
        return commit
    return json_digest([digest_of(file) for file in sorted(Path(source).iterdir()) if is_weight_file(file.name)])

# SPDX-License-Identifier: Apache-2.0
"""Describe a checkpoint (configuration, tensor shapes, heads, tokenizer) without loading its weights into memory."""

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_safetensors_metadata, snapshot_download
from huggingface_hub.errors import NotASafetensorsRepoError

from ..checkpoints.configuration import is_joint
from ..checkpoints.files import (
    ADAPTER_CONFIG_FILE,
    GENERATOR_FILE,
    WEIGHT_FILES,
    Tensor,
    check_source,
    header_tensor,
    is_adapter_folder,
    read_json,
    read_tensors,
    tokenizer_files,
    weight_files,
)
from ..checkpoints.layouts import convert_official, set_fields_of_head
from ..checkpoints.official_configurations import MICROSOFT, OFFICIAL_TYPES, configuration_file
from ..heads import HEADS, model_class
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..tokenization import check_tokenizer, load_tokenizer

__all__ = ["CheckpointContents", "compare_with_class", "describe", "description_text", "fetch", "read_contents"]

# File patterns for downloads: all files except weights, and the two formats of weights.
SMALL_FILES = ["*.json", "*.md", "*.model", "*.py", "*.txt"]
SAFETENSORS = ["model.safetensors", "model-*.safetensors"]
PICKLES = ["pytorch_model.bin", "pytorch_model-*.bin", "pytorch.model-*.bin"]
# Configuration fields that a description shows.
SIZES = """
    num_hidden_layers hidden_size num_attention_heads intermediate_size vocab_size max_position_embeddings
""".split()
HEAD_MODULES = dict(lm_predictions="masked-lm", mask_predictions="replaced-token-detection", qa_outputs="question-answering")
CLASSIFIERS = {"sequence-classification", "token-classification", "multiple-choice", "entity-scoring"}
TITLES = dict(kind="what", sizes="shape", generator_sizes="generator", base_model="base model")


@dataclass
class CheckpointContents:
    """Configuration, tensor shapes and problems of a checkpoint, without the values of its tensors.

    Args:
        source (`str`): Folder or repository id, as passed to `read_contents`.
        folder (`Path`): Local folder with the files.
        stored (`dict`): Fields of config.json.
        config (`DebertaExtConfig`, *optional*): Configuration of the loaded model; None if loading would fail.
        tensors (`dict[str, Tensor]`): Shape and dtype of each tensor by its key in the files; empty if the weights are .bin
            files on the Hub that were not downloaded.
        shapes (`dict[str, tuple]`): Shape of each parameter after conversion, by its name without the prefix "deberta.".
        problems (`list[str]`): Reasons why the checkpoint cannot be loaded.
    """

    source: str
    folder: Path
    stored: dict[str, Any]
    config: DebertaExtConfig | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def is_joint(self) -> bool:
        """True if the checkpoint is a generator and a discriminator in one model of this package."""
        return is_joint(self.stored)

    @property
    def has_generator(self) -> bool:
        """True if Microsoft's generator is in the folder, next to the discriminator."""
        return (self.folder / GENERATOR_FILE).is_file()

    @property
    def dtypes(self) -> list[str]:
        """Names of the floating-point dtypes of the tensors."""
        return sorted({tensor.dtype for tensor in self.tensors.values() if "float" in tensor.dtype})

    @property
    def heads(self) -> list[str]:
        """Keys of `HEADS` whose weights are in the files, except "base". Heads listed in config.json come first."""
        if self.is_joint:
            return ["pretraining"]
        architectures = [name.partition("For")[2] for name in self.stored.get("architectures") or []]
        named = [name for name, head in HEADS.items() if head.model_class.partition("For")[2] in architectures]
        modules = {name.partition(".")[0] for name in self.shapes}
        found = [head for module, head in HEAD_MODULES.items() if module in modules]
        if "classifier" in modules:
            # The heads in `CLASSIFIERS` all name their parameters "classifier".
            if not CLASSIFIERS.isdisjoint(named):
                found += CLASSIFIERS.intersection(named)
            elif "pooler" in modules:
                found.append("sequence-classification")
            elif "proj" in modules and self.shapes["classifier.weight"][0] == 1:
                found.append("entity-scoring")
            else:
                found.append("token-classification")
        if "replaced-token-detection" in found and self.has_generator:
            found.append("pretraining")
        return sorted(found, key=lambda head: head not in named)

    def kind(self) -> str:
        """Return the model type and architectures, such as "deberta-v2 (DebertaV2ForMaskedLM)"."""
        return f"{self.stored['model_type']} ({', '.join(self.stored.get('architectures') or ['no architecture named'])})"


def fetch(source: str, *, revision: str | None = None, weights: bool = False) -> Path:
    """Return a local folder: `source` itself, or the downloaded repository, with weights only if `weights` is True."""
    if os.path.isdir(source):
        return Path(source)
    check_source(source)
    folder = Path(snapshot_download(source, revision=revision, allow_patterns=SMALL_FILES))
    if weights:
        # The folder is named after the commit: download the weights of the same commit, even if the branch has moved.
        snapshot_download(source, revision=folder.name, allow_patterns=[*SAFETENSORS, GENERATOR_FILE, "[0-9]_*/*"])
        if not [*folder.glob("model*.safetensors")]:
            snapshot_download(source, revision=folder.name, allow_patterns=PICKLES)
    return folder


def read_contents(source: str, *, revision: str | None = None, weights: bool = False) -> CheckpointContents:
    """Read the contents of a folder or Hub repository that has a config.json.

    If `weights` is False, the weights of a repository are not downloaded: only the headers of safetensors files are read.
    """
    folder = fetch(source, revision=revision, weights=weights)
    file = Path(configuration_file(folder) or folder / "config.json")
    if not file.is_file():
        raise OSError(f"{source} has no config.json")
    contents = CheckpointContents(source, folder, {"model_type": MICROSOFT} | read_json(file))
    model_type = contents.stored["model_type"]
    if model_type not in (*OFFICIAL_TYPES, DebertaExtConfig.model_type):
        contents.problems.append(f"config.json has model_type {model_type!r}; this package only loads DeBERTa")
        return contents
    try:
        contents.config = DebertaExtConfig.from_dict(dict(contents.stored))
        contents.tensors = read_headers(source, folder)
        contents.shapes = convert_shapes(contents)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        # RuntimeError: a truncated .bin file.
        contents.problems.append(str(error))
    return contents


def read_headers(source: str, folder: Path) -> dict[str, Tensor]:
    """Read the shape and dtype of each tensor: from weight files in `folder`, else from the Hub repository `source`.

    Return {} for a repository without safetensors files.
    """
    tensors: dict[str, Tensor] = {}
    files = weight_files(folder)
    if not files and os.path.isdir(source):
        raise OSError(f"{source} has no weights: expected one of {', '.join(WEIGHT_FILES)}")
    if os.path.isdir(source) or (files and files[0].is_file()):
        for file in files:
            tensors |= read_tensors(file)
        return tensors
    try:
        remote = get_safetensors_metadata(source, revision=folder.name)
    except NotASafetensorsRepoError:
        return {}
    for file in remote.files_metadata.values():
        tensors |= {key: header_tensor(tensor.shape, tensor.dtype) for key, tensor in file.tensors.items()}
    return tensors


def convert_shapes(contents: CheckpointContents) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter after conversion. Set the fields of `contents.config` that loading would set."""
    tensors = empty_tensors(contents.tensors)
    config, folder = contents.config, contents.folder
    if contents.stored["model_type"] in OFFICIAL_TYPES:
        bases = {}
        if contents.has_generator:
            generator = empty_tensors(read_tensors(folder / GENERATOR_FILE))
            bases = {key.split(".")[-2]: tensor for key, tensor in generator.items()}
        tensors, _ = convert_official(tensors, config, bases)
        set_fields_of_head(config, tensors, contents.stored)
        # As in from_pretrained: without an absolute position table, the model has no Enhanced Mask Decoder.
        if config.has_mask_decoder and not any("embeddings.position_embeddings." in name for name in tensors):
            config.emd_layers, config.emd_input = 1, "hidden"
    return {name.removeprefix("deberta."): tuple(tensor.shape) for name, tensor in tensors.items()}


def empty_tensors(tensors: dict[str, Tensor]) -> dict[str, torch.Tensor]:
    """Return a tensor of the same shape for each of `tensors`, without values (on the meta device)."""
    return {key: torch.empty(tensor.shape, device="meta") for key, tensor in tensors.items()}


def compare_with_class(contents: CheckpointContents, head: str) -> tuple[list[str], list[str]]:
    """Compare the files with the model class of `head`; return messages on missing parameters and on wrong shapes."""
    if contents.is_joint:
        head = "pretraining"
    elif head == "pretraining":
        head = "replaced-token-detection"
    with torch.device("meta"):
        model = model_class(head)(contents.config)
    missing, resized = [], []
    for name, parameter in model.state_dict().items():
        shape = contents.shapes.get(name.removeprefix("deberta."))
        if shape is None and name not in model.all_tied_weights_keys:
            missing.append(f"{name} is not in the files")
        elif shape is not None and shape != tuple(parameter.shape):
            resized.append(
                f"{name} must have shape {list(parameter.shape)} (by config.json), got {list(shape)} in the files"
            )
    return missing, resized


def describe(source: str, *, revision: str | None = None, download: bool = False) -> dict[str, Any]:
    """Return a dict that describes a folder or repository, as `deberta-ext info --json` prints it."""
    folder = fetch(source, revision=revision, weights=download)
    if is_adapter_folder(folder):
        adapter = read_json(folder / ADAPTER_CONFIG_FILE)
        kind = f"a peft adapter ({adapter.get('peft_type')}), not a model"
        labels = [*read_json(folder / "config.json").get("id2label", {}).values()]
        base = adapter.get("base_model_name_or_path")
        return dict(source=source, kind=kind, base_model=base, labels=labels, problems=[])
    if not (folder / "config.json").exists() and not configuration_file(folder):
        if not tokenizer_files(folder):
            raise OSError(f"{source} has no config.json: expected a model, adapter or tokenizer")
        return dict(source=source, kind="a tokenizer", tokenizer=tokenizer_text(folder, None), problems=[])
    contents = read_contents(source, revision=revision, weights=download)
    facts: dict[str, Any] = dict(source=source, kind=contents.kind(), problems=contents.problems)
    config = contents.config
    if config is None:
        return facts
    facts["sizes"] = {name: getattr(config, name) for name in SIZES}
    if contents.is_joint:
        generator = config.generator_config()
        facts["generator_sizes"] = {name: getattr(generator, name) for name in SIZES}
    facts["tokenizer"] = tokenizer_text(folder, config)
    if not contents.tensors:
        if not contents.problems:
            facts["weights"] = "not read, because the Hub has them as .bin files; pass --download to read them"
        return facts
    head = (contents.heads or ["base"])[0]
    if not contents.problems:
        missing, resized = compare_with_class(contents, head)
        contents.problems += resized[:3] + missing[:3]
    counts: Counter[str] = Counter()
    for name, shape in contents.shapes.items():
        counts[name.partition(".")[0]] += math.prod(shape)
    facts |= dict(parameters=dict(counts), dtypes=contents.dtypes, heads=contents.heads)
    if {"sequence-classification", "token-classification"}.intersection(contents.heads):
        facts["labels"] = [*config.id2label.values()]
    facts["load"] = f"hf_deberta_ext.{HEADS[head].model_class}.from_pretrained({source!r})"
    return facts


def tokenizer_text(folder: Path, config: DebertaExtConfig | None) -> str:
    """Return one line about the tokenizer in `folder`, or the reason why it cannot be loaded or does not fit `config`."""
    try:
        tokenizer = load_tokenizer(folder)
        check_tokenizer(tokenizer, config)
    except (ValueError, OSError, ImportError) as error:
        return f"none: {error}"
    return f"{tokenizer_files(folder)[0]}, {len(tokenizer)} tokens, model_max_length {tokenizer.model_max_length}"


def description_text(facts: dict[str, Any]) -> str:
    """Format the result of `describe` for people: one line for each entry, with its title and value."""
    lines = [facts["source"]]
    for name, value in facts.items():
        if name in ("sizes", "generator_sizes"):
            value = ", ".join(f"{field} {size}" for field, size in value.items())
        elif name == "parameters":
            parts = ", ".join(f"{part} {count:,}" for part, count in value.items())
            value = f"{sum(value.values()):,}: {parts}"
        elif isinstance(value, list):
            value = ", ".join(value) or "none"
        if name not in ("source", "problems"):
            lines.append(f"  {TITLES.get(name, name.replace('_', ' ')):18} {value}")
    result = "can be loaded"
    for problem in facts["problems"]:
        lines.append(f"  problem            {problem}")
        result = "cannot be loaded"
    return "\n".join([*lines, f"  result             {result}"])

# SPDX-License-Identifier: Apache-2.0
"""Contents of a checkpoint: files, tensors and heads, and the parameters that loading it would miss. No weight is read."""

import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, is_offline_mode, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers.utils import cached_file

from ..model import heads, modeling_deberta_ext
from ..model.checkpoint_files import (
    GENERATOR_CONFIG_FILE,
    GENERATOR_FILE,
    UNREADABLE_WEIGHTS,
    WEIGHT_FILES,
    Tensor,
    header_tensor,
    microsoft_weights,
    read_index,
    read_json,
    read_tensors,
)
from ..model.checkpoint_layouts import convert_official, set_fields_of_head
from ..model.configuration_deberta_ext import DebertaExtConfig, is_joint
from ..model.joint_checkpoints import SHAPES
from ..model.modeling_deberta_ext import DebertaExtModel, DebertaExtPreTrainedModel
from ..model.official_configurations import MICROSOFT, OFFICIAL_TYPES, configuration_file
from ..model.presets import PRESETS
from ..training.model_sources import check_reachable

__all__ = ["HEADS", "CheckpointContents", "fetch", "read_contents"]

# The names of the heads on the command line.
HEADS: dict[str, type[DebertaExtPreTrainedModel]] = {
    name: getattr(modeling_deberta_ext, head.model_class) for name, head in heads.HEADS.items()
}
# Everything of a repository but weights; modules of sentence-transformers ("2_Dense/") may have some of their own.
SMALL_FILES = ["*.json", "*.md", "*.model", "*.py", "*.txt"]
# The fields that make the shape of a published size; dropout and the like do not.
SHAPE_FIELDS = {*SHAPES, "vocab_size", "num_hidden_layers", "max_position_embeddings"}


@dataclass
class CheckpointContents:
    """Result of `read_contents`.

    Args:
        source (`str`): the folder or repository id as it was given.
        folder (`Path`): where its files lie here.
        config (`dict`): config.json, or {} without one.
        weight_files (`dict[str, int]`): file -> bytes, of the weights that `from_pretrained` reads.
        tensors (`dict[str, Tensor]`): key in these files -> shape and dtype.
        generator_tensors (`dict[str, Tensor]`): the same of the generator beside an official discriminator.
        converted (`dict[str, tuple]`): our name -> shape of what loading makes of these tensors.
        model_config (`DebertaExtConfig`, *optional*): the configuration as this package reads it.
        new (`dict[str, list[str]]`): head -> parameters that its class has and the files have not, or in another shape.
        unread (`list[str]`): keys in the files that no class reads.
        problems (`list[str]`): why it cannot be loaded.
        missing (`list[str]`): what else is not there, or is not as it should be.
    """

    source: str
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    weight_files: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    generator_tensors: dict[str, Tensor] = field(default_factory=dict)
    converted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    model_config: DebertaExtConfig | None = None
    new: dict[str, list[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def is_official(self) -> bool:
        """Of Microsoft's or transformers' DeBERTa classes."""
        return self.config.get("model_type") in OFFICIAL_TYPES

    @property
    def is_ours(self) -> bool:
        return self.config.get("model_type") == DebertaExtConfig.model_type

    @property
    def is_joint(self) -> bool:
        """Generator and discriminator in one model of ours."""
        return self.is_ours and is_joint(self.config)

    @property
    def by_transformers(self) -> bool:
        """Saved by transformers' classes and not by Microsoft."""
        return "transformers_version" in self.config or any(key.startswith("cls.predictions.") for key in self.tensors)

    @property
    def dtypes(self) -> dict[str, int]:
        """Name of a dtype -> number of tensors in it, the most frequent first."""
        return dict(Counter(tensor.dtype for tensor in self.tensors.values()).most_common())

    @property
    def heads(self) -> list[str]:
        """The heads whose parameters are all in the files, "base" aside; the one that config.json names comes first."""
        complete = [name for name, new in self.new.items() if not new and name != "base"]
        # Architectures of this package, or of transformers for the same task.
        tasks = {re.sub(r"^Deberta(Ext|V2)?", "", name) for name in self.config.get("architectures") or []}
        first = [name for name in complete if HEADS[name].__name__.removeprefix("DebertaExt") in tasks]
        if "pooler.dense.weight" in self.converted or "entity-scoring" in complete:
            # The classifiers of whole texts and of entities have the names of a token's as well.
            complete = [name for name in complete if name != "token-classification"]
        return first + [name for name in complete if name not in first]

    @property
    def preset(self) -> str | None:
        """The name of the published size that it has."""
        if self.model_config is None:
            return None
        differences = {name: {*self.model_config.difference(DebertaExtConfig.from_preset(name))} for name in PRESETS}
        return next((name for name, fields in differences.items() if not SHAPE_FIELDS & fields), None)

    def parameters(self) -> dict[str, int]:
        """Part of the model -> number of parameters in the files."""
        counts: Counter[str] = Counter()
        for name, shape in self.converted.items():
            part = f"{name.split('.')[0]} " if self.is_joint else ""
            name = name.partition(".")[2] if self.is_joint else name
            name = name.removeprefix("deberta.")
            first = name.split(".")[0]
            counts[part + first] += math.prod(shape)
        return dict(counts)

    def kind(self) -> str:
        """In words, such as "DeBERTa v3 as published by Microsoft"."""
        model_type = self.config.get("model_type")
        architecture = ", ".join(self.config.get("architectures") or [])
        if self.is_joint:
            return "generator and discriminator of replaced token detection in one model, of this package"
        if self.is_ours:
            return f"a model of this package ({architecture or 'no architecture named'})"
        if not self.is_official:
            return f"a model of another type: {model_type} ({architecture or 'no architecture named'})"
        old = self.model_config is not None and not self.model_config.share_att_key
        family = "v1" if model_type == "deberta" or old else "v2" if self.config.get("conv_kernel_size") else "v3"
        if model_type != "deberta" and self.config.get("vocab_size", 0) >= PRESETS["mdeberta-v3-base"]["vocab_size"]:
            family = "mDeBERTa v3"
        name = family if family.startswith("m") else f"DeBERTa {family}"
        if self.by_transformers:
            return f"{name} as transformers saves it ({model_type}, {architecture or 'no architecture named'})"
        if model_type == MICROSOFT:
            return f"{name} as Microsoft's trainer leaves it"
        beside = ", discriminator and generator" if self.generator_tensors else ""
        return f"{name} as Microsoft publishes it ({model_type}{beside})"


def fetch(source: str, *, revision: str | None = None, weights: bool = False) -> Path:
    """The folder in which the files of a folder or Hub repository lie; from the Hub without weights unless asked for.

    Raises:
        OSError: there is no such folder or repository, or it cannot be reached.
    """
    if os.path.isdir(source):
        return Path(source)
    if os.path.exists(source):
        raise OSError(f"{source} is a file; give the folder that it is in, or a repository id")
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise OSError(f"there is no folder {source}")
    try:
        check_reachable(source, revision=revision)
        patterns = [*SMALL_FILES, *(["[0-9]_*/*"] if weights else [])]
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
        if weights:
            fetch_weights(source, commit=folder.name)
    except HFValidationError as error:
        raise OSError(f"{source} is neither a folder nor a repository id") from error
    except RevisionNotFoundError as error:
        raise OSError(f"{source} has no revision {revision}") from error
    except GatedRepoError as error:
        raise OSError(f"{source} is gated: ask for access on its page, and log in with hf auth login") from error
    except RepositoryNotFoundError as error:
        raise OSError(
            f"there is no folder {source}, and no such repository on the Hub (or it is private and the token does not "
            "open it: hf auth login)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise OSError(f"the Hub cannot be reached, and not all that is needed of {source} is in its cache") from error
    return folder


def fetch_weights(source: str, commit: str):
    """Download the weights that `from_pretrained` reads, at one commit: the branch may have moved meanwhile."""
    options = dict(revision=commit, _raise_exceptions_for_missing_entries=False)
    for name in WEIGHT_FILES:
        path = cached_file(source, name, **options)
        if path is None:
            continue
        if name.endswith(".json"):
            for shard in sorted({*read_index(path).values()}):
                cached_file(source, shard, **options)
        break
    cached_file(source, GENERATOR_FILE, **options)


def read_contents(source: str, *, revision: str | None = None, weights: bool = False) -> CheckpointContents:
    """Read the contents of a folder or Hub repository with a config.json.

    Args:
        weights (`bool`): download the weights of a repository as well; otherwise the headers of safetensors files are read
            from the Hub, and of .bin files nothing is known.

    Raises:
        OSError: no such folder or repository, or no config.json in it.
        ValueError: config.json is not JSON.
    """
    folder = fetch(source, revision=revision, weights=weights)
    contents = CheckpointContents(source, folder)
    file = configuration_file(folder).get("_configuration_file", "config.json")
    if not (folder / file).is_file():
        raise OSError(f"{source} has no config.json")
    contents.config = {"model_type": MICROSOFT} | read_json(folder / file)
    read_weight_headers(contents)
    if contents.is_official or contents.is_ours:
        compare_with_classes(contents)
    else:
        kind = contents.config["model_type"]
        contents.problems.append(f"config.json has model_type {kind!r}; this package loads DeBERTa alone")
    return contents


def read_weight_headers(contents: CheckpointContents):
    """Fill in files and tensors: from the folder, and from the headers of safetensors files that are on the Hub alone."""
    folder = contents.folder
    remote = {} if os.path.isdir(contents.source) else remote_sizes(contents)
    name = microsoft_weights(folder)
    name = name or next((name for name in WEIGHT_FILES if (folder / name).exists() or name in remote), None)
    if name is None:
        unreadable = sorted({file.name for pattern in UNREADABLE_WEIGHTS for file in folder.glob(pattern)})
        note = f"; {', '.join(unreadable)} cannot be read here" if unreadable else ""
        contents.problems.append(f"no weights: none of {', '.join(WEIGHT_FILES)}{note}")
        return
    shards, keys = [name], None
    if name.endswith(".json"):
        try:
            keys = read_index(folder / name)
        except ValueError as error:
            contents.problems.append(str(error))
            return
        shards = sorted({*keys.values()})
    for shard in shards:
        if (folder / shard).exists():
            contents.weight_files[shard] = (folder / shard).stat().st_size
        elif shard in remote:
            contents.weight_files[shard] = remote[shard]
        else:
            contents.problems.append(f"{shard}, which {name} names, is not there")
            continue
        if shard in remote and not ((folder / shard).exists() or shard.endswith(".safetensors")):
            contents.missing.append(f"what is in {shard}, which is on the Hub and not here: --download gets it")
            continue
        try:
            contents.tensors |= (
                read_tensors(folder / shard) if (folder / shard).exists() else remote_tensors(contents, shard)
            )
        except ValueError as error:
            contents.problems.append(str(error))
    if keys is not None and contents.tensors and not contents.problems and (lost := sorted({*keys} - {*contents.tensors})):
        contents.problems.append(f"{len(lost)} tensors that {name} names are in no shard, such as {lost[0]}")
    if contents.is_official and (folder / GENERATOR_FILE).exists():
        try:
            contents.generator_tensors = read_tensors(folder / GENERATOR_FILE)
        except ValueError as error:
            contents.problems.append(str(error))


def remote_tensors(contents: CheckpointContents, name: str) -> dict[str, Tensor]:
    """Tensors of a safetensors file on the Hub, from its header."""
    metadata = HfApi().parse_safetensors_file_metadata(contents.source, name, revision=contents.folder.name)
    return {key: header_tensor(tensor.shape, tensor.dtype) for key, tensor in metadata.tensors.items()}


def remote_sizes(contents: CheckpointContents) -> dict[str, int]:
    """File -> bytes of a repository; {} where the Hub cannot be asked: then only what was downloaded is known."""
    if is_offline_mode():
        return {}
    try:
        info = HfApi().model_info(contents.source, revision=contents.folder.name, files_metadata=True)
    except HfHubHTTPError as error:
        contents.missing.append(f"the list of files on the Hub: {str(error).splitlines()[0]}")
        return {}
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def compare_with_classes(contents: CheckpointContents):
    """Compare the tensors with the parameters of each class: new, unread, and those without which nothing can be loaded."""
    try:
        config = DebertaExtConfig.from_dict(dict(contents.config))
    except (ValueError, TypeError) as error:
        contents.problems.append(f"config.json: {error}")
        return
    contents.model_config = config
    if contents.problems or not contents.tensors:
        return
    # Shapes alone, in the form in which loading renames and splits them.
    tensors = as_meta(contents.tensors)
    if contents.is_official:
        # Loading adds the difference to the generator's table.
        bases = {key.split(".")[-2]: tensor for key, tensor in as_meta(contents.generator_tensors).items()}
        try:
            renamed, report = convert_official(tensors, config, bases)
        except ValueError as error:
            contents.problems.append(str(error))
            return
        contents.unread = sorted(report.unused)
        set_fields_of_head(config, renamed, contents.config)
    else:
        renamed = tensors
    prefixed = contents.is_joint or any(name.startswith("deberta.") for name in renamed)
    shapes = {name if prefixed else f"deberta.{name}": tuple(tensor.shape) for name, tensor in renamed.items()}
    contents.converted = shapes
    # As loading does: without absolute positions there is nothing for EMD to decode with.
    no_table = not any(name.endswith("embeddings.position_embeddings.weight") for name in shapes)
    if contents.is_official and no_table and config.has_mask_decoder:
        config.emd_layers, config.emd_input = 1, "hidden"
        if any(name.startswith("lm_predictions.") for name in shapes):
            contents.missing.append(
                "the table of absolute positions: masked words are predicted without the Enhanced Mask Decoder"
            )
    deltas = {key.removesuffix("_weight") for key in contents.tensors if key.endswith("_embeddings._weight")}
    # Whole only together with the generator.
    incomplete = any(f"{table}weight" not in contents.tensors for table in deltas)
    read = set()
    for head in ["pretraining"] if contents.is_joint else [name for name in HEADS if name != "pretraining"]:
        expected = parameter_shapes(HEADS[head], config)
        read |= {*expected}
        contents.new[head] = sorted(name for name, shape in expected.items() if shapes.get(name) != shape)
    if contents.generator_tensors:
        joint = contents.new["replaced-token-detection"] + new_in_generator(contents, config)
        contents.new = {"pretraining": joint} if incomplete else contents.new | {"pretraining": joint}
    # Written by old torch.save files beside the table.
    tied = {"lm_predictions.lm_head.decoder.weight", "generator.lm_predictions.lm_head.decoder.weight"}
    contents.unread += sorted({*shapes} - read - tied)
    check_encoder(contents, parameter_shapes(HEADS["pretraining" if contents.is_joint else "base"], config))


def as_meta(tensors: dict[str, Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of these shapes without values."""
    return {key: torch.empty(tensor.shape, device="meta") for key, tensor in tensors.items()}


def new_in_generator(contents: CheckpointContents, config: DebertaExtConfig) -> list[str]:
    """Parameters that the generator beside an official discriminator has and its file has not."""
    stock = read_json(contents.folder / GENERATOR_CONFIG_FILE)
    generator_config = DebertaExtConfig.from_dict(stock) if stock else config.generator_config()
    tensors, _ = convert_official(as_meta(contents.generator_tensors), generator_config)
    expected = parameter_shapes(HEADS["masked-lm"], generator_config)
    return [f"generator.{name}" for name in expected if name not in tensors or tensors[name].shape != expected[name]]


def parameter_shapes(model_class: type[DebertaExtPreTrainedModel], config: DebertaExtConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the tensors in a file of this class, with the prefix that all heads share."""
    with torch.device("meta"):
        model = model_class(config)
    tied = {*model.all_tied_weights_keys}
    prefix = "deberta." if model_class is DebertaExtModel else ""
    return {prefix + name: tuple(x.shape) for name, x in model.state_dict().items() if name not in tied}


def check_encoder(contents: CheckpointContents, expected: dict[str, tuple[int, ...]]):
    """Report missing parameters, which loading would draw at random, and the first of another shape, where it would stop."""
    shapes = contents.converted
    missing = [name for name in expected if name not in shapes]
    if len(missing) == len(expected):
        keys = ", ".join(sorted(contents.tensors)[:3])
        contents.problems.append(f"no tensor belongs in a DeBERTa; the keys are like {keys}")
    elif missing:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        contents.problems.append(f"parameters that are not in the file: {missing[0]}{rest}")
    if resized := next((name for name in expected if name in shapes and shapes[name] != expected[name]), None):
        sizes = f"has shape {list(shapes[resized])}, but config.json makes it {list(expected[resized])}"
        contents.problems.append(f"{resized} {sizes}")

# SPDX-License-Identifier: Apache-2.0
"""What the files in the folder of a model tell of it: what it is, its size, how it was trained, what was measured."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.checkpoint_files import (
    ADAPTER_WEIGHT_FILES,
    WEIGHT_FILES,
    Tensor,
    read_json,
    read_shards,
    read_tensors,
    tokenizer_files,
)

__all__ = ["ModelFolder", "read_folder", "shown_path"]

HEADS = {
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForReplacedTokenDetection": "fine-tune",
}


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a model, as far as its files can be read without loading it.

    Args:
        config (`dict`): config.json.
        adapter (`dict`): adapter_config.json; empty = a whole model.
        tensors (`dict`): what the headers of the .safetensors tell, by name; empty where there are none.
        results (`dict`): all_results.json, or else the *_results.json that there are.
        arguments (`dict`): run_arguments.json, the flags of the run.
        state (`dict`): trainer_state.json.
        report (`dict`): run_report.json, of a pre-training.
    """

    folder: Path
    config: Mapping[str, Any]
    adapter: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    results: Mapping[str, Any]
    arguments: Mapping[str, Any]
    state: Mapping[str, Any]
    report: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """Name of the model's class, "" where it is not known."""
        return str((self.config.get("architectures") or [""])[0])

    @property
    def kind(self) -> str:
        """What the model does, as `loading_code` calls it."""
        if self.is_joint:
            return "joint"
        return next((kind for head, kind in HEADS.items() if self.architecture.endswith(head)), "encoder")

    @property
    def is_joint(self) -> bool:
        """Whether it is generator and discriminator in one model."""
        return self.config.get("model_type") == "deberta-ext" and self.architecture.endswith("ForPreTraining")

    @property
    def custom_code(self) -> bool:
        """Whether loading it needs the code in the folder."""
        return "auto_map" in self.config

    @property
    def base_has_code(self) -> bool:
        """Whether the model that an adapter is for has code of its own, as far as the adapter or the base's folder tells."""
        library = str((self.adapter.get("auto_mapping") or {}).get("parent_library") or "transformers")
        base = Path(str(self.adapter.get("base_model_name_or_path") or ""), "config.json")
        return library.split(".")[0] != "transformers" or (bool(self.adapter) and "auto_map" in read_json(base))

    @property
    def has_tokenizer(self) -> bool:
        return bool(tokenizer_files(self.folder))

    @property
    def labels(self) -> list[str]:
        """Names of the classes, none where they are only numbered."""
        labels = self.config.get("id2label") or {}
        names = [str(labels[number]) for number in sorted(labels, key=lambda number: int(number))]
        return [] if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names

    def parameters(self, beginning: str = "") -> dict[str, int]:
        """Numbers of parameters, "all" and by part: "embeddings", "encoder", "heads"; empty where they are not known.

        Args:
            beginning (`str`): of the names that count: "generator." for a half of a joint model.
        """
        counts = {"all": 0, "embeddings": 0, "encoder": 0, "heads": 0}
        for name, tensor in self.tensors.items():
            # Buffers of older files.
            if name.startswith(beginning) and not name.endswith("position_ids"):
                part = "embeddings" if ".embeddings." in f".{name}" else "encoder" if ".encoder." in f".{name}" else "heads"
                counts[part] += tensor.size
                counts["all"] += tensor.size
        return counts if counts["all"] else {}

    @property
    def dtypes(self) -> list[str]:
        return sorted({tensor.dtype for tensor in self.tensors.values()})


def read_folder(folder: str | os.PathLike) -> ModelFolder:
    """
    Raises:
        ValueError: it is no folder of a model; a file in it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    config, adapter = read_json(folder / "config.json"), read_json(folder / "adapter_config.json")
    if not config and not adapter:
        raise ValueError(f"{folder} is no folder of a model: it has neither config.json nor adapter_config.json")
    results = read_json(folder / "all_results.json")
    if not results:
        for file in sorted(folder.glob("*_results.json")):
            results |= read_json(file)
    arguments, state, report = (
        read_json(folder / name) for name in ("run_arguments.json", "trainer_state.json", "run_report.json")
    )
    return ModelFolder(folder, config, adapter, _tensors(folder, bool(adapter)), results, arguments, state, report)


def _tensors(folder: Path, adapter: bool) -> dict[str, Tensor]:
    """Of the first file of weights that loading would take, if it is in safetensors or an index of such files.

    Raises:
        ValueError: a file is damaged, or not there though an index names it.
    """
    names = ADAPTER_WEIGHT_FILES if adapter else WEIGHT_FILES
    name = next((name for name in names if (folder / name).is_file()), "")
    if ".safetensors" not in name:
        return {}
    tensors: dict[str, Tensor] = {}
    for file in read_shards(folder / name) if name.endswith(".json") else [name]:
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file} is not there, a shard of the weights that {name} names")
        tensors |= read_tensors(folder / file)
    return tensors


def shown_path(source: Any) -> str:
    """A Hub id as it is, of a file or folder only the name; NAME=FILE without NAME. Unlike `shown_source` it does not need
    the file to be there: it may lie on the machine of the run."""
    text = str(source).partition("=")[2] or str(source)
    parts = [part for part in re.split(r"[/\\]", text) if part not in ("", ".", "..", "~")]
    local = text.startswith((".", "/", "~", "\\")) or "\\" in text or ":" in text or len(parts) > 2 or Path(text).exists()
    if not local or not parts:
        return text
    return "/".join(parts[-2:] if parts[-1] in ("discriminator", "generator") else parts[-1:])

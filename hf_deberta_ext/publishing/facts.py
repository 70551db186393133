# SPDX-License-Identifier: Apache-2.0
"""Collect the contents of a model card from a training run and the files of a model's folder, without loading weights."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..analysis.results import measured_metrics
from ..checkpoints.adapters import PEFT_TASKS
from ..checkpoints.files import (
    ADAPTER_WEIGHT_FILES,
    WEIGHT_FILES,
    Tensor,
    read_json,
    read_tensors,
    tokenizer_files,
    weight_files,
)
from ..heads import HEADS, PARTS

__all__ = ["AUTO_MODELS", "REPORT_FILE", "ModelFolder", "RunFacts", "read_folder", "read_halves"]

REPORT_FILE = "run_report.json"
# Task name on the Hub -> Auto class that loads the model; "encoder" is a model without a head.
AUTO_MODELS = {"encoder": "AutoModel"}
# End of the class name -> task name on the Hub; "fine-tune" is a discriminator.
KINDS = {}
for _head in HEADS.values():
    if _head.auto_class in ("AutoModel", "AutoModelForPreTraining"):
        continue
    KINDS[_head.model_class.removeprefix("DebertaExt")] = _head.pipeline_tag or "fine-tune"
    if _head.pipeline_tag is not None:
        AUTO_MODELS[_head.pipeline_tag] = _head.auto_class
PEFT_KINDS = {task: kind for kind, task in PEFT_TASKS.items()}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a training run for its model card, stored in run_report.json. Data sources are names without folders."""

    # Task name, such as "sst2"; None for pre-training and for tasks without a name.
    task: str | None = None
    # Task name on the Hub; None: derived from the model's class.
    pipeline: str | None = None
    # Objectives of pre-training: name in the results -> title.
    objectives: Mapping[str, str] = field(default_factory=dict)
    # `measured_on`: name of the evaluation data. `sets`: evaluation set ("" is the main one) -> (configuration, split) on
    # the Hub. `datasets`: Hub ids.
    measured_on: str | None = None
    sets: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    datasets: Sequence[str] = ()
    # Initial checkpoint, and its id and revision on the Hub. `from_scratch`: training started from random weights.
    base_model: str | None = None
    base_model_id: str | None = None
    base_revision: str | None = None
    from_scratch: bool = False
    # Rows of the tables "Training" and "Hardware". A value is text, a number, or a list or dictionary of texts and numbers.
    training: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    # Numbers of all and of trained parameters, including adapters. `text_columns`: a classifier's inputs (two for pairs).
    parameters: int | None = None
    trained_parameters: int | None = None
    text_columns: Sequence[str] = ()
    # `longest`: maximum input length in training, in tokens. `tokens`: number of tokens in all documents of pre-training.
    longest: int | None = None
    tokens: int | None = None
    # Number of examples, if only the first examples of a set were used; else None.
    train_samples: int | None = None
    eval_samples: int | None = None
    seeds: Sequence[int] = ()
    # Whether the checkpoint was selected on the evaluation data, and whether the model was also trained on these data.
    best_chosen: bool = False
    trained_on_results: bool = False
    # ISO codes of the languages. Identifier of the licence on the Hub.
    language: Sequence[str] = ()
    license: str | None = None
    # `opening`: Markdown that replaces the generated description. `figure`: image file that shows the results.
    opening: str | None = None
    figure: str | None = None
    # Where the model fails: paragraphs in Markdown.
    failures: Sequence[str] = ()
    # `diverged`: a warning, if training diverged. `limits`: sentences to add before the generated limits.
    diverged: str | None = None
    limits: Sequence[str] = ()


@dataclass(frozen=True)
class ModelFolder:
    """Contents of a model's folder, read without loading the model."""

    # `folder`: folder of the card. `model_folder`: folder of the model; after several seeds, the first seed's folder.
    folder: Path
    model_folder: Path
    # "discriminator" or "generator" if the folder has this half of the joint model in the parent folder; otherwise "".
    half: str
    # Contents of config.json and adapter_config.json; tensors by name, from .safetensors only; contents of all_results.json
    # (of the first seed); results over several seeds. If a file is missing, the value is {}.
    config: Mapping[str, Any]
    adapter: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    results: Mapping[str, Any]
    summary: Mapping[str, Any]
    run: RunFacts

    @property
    def title(self) -> str:
        """Name of the folder, or "JOINT: HALF" (such as "rtd: generator") for a half of a joint model."""
        folder = self.folder.resolve()
        return f"{folder.parent.name}: {self.half}" if self.half else folder.name

    @property
    def repo(self) -> str:
        """Name of the folder to load the model from: for a generator or discriminator, the folder of the joint model."""
        if self.half:
            return self.folder.resolve().parent.name
        return self.model_folder.resolve().relative_to(self.folder.resolve().parent).as_posix()

    @property
    def architecture(self) -> str:
        """Name of the model's class; "" if unknown."""
        if self.adapter:
            return str((self.adapter.get("auto_mapping") or {}).get("base_model_class", ""))
        return str((self.config.get("architectures") or [""])[0])

    @property
    def kind(self) -> str:
        """Task name on the Hub, such as "fill-mask"; else "encoder" (no head), "fine-tune" (a discriminator) or "joint"."""
        if self.is_joint:
            return "joint"
        name = self.architecture or str((self.config.get("architectures") or [""])[0])
        kind = KINDS.get(next(filter(name.endswith, KINDS), ""), "encoder")
        return self.run.pipeline or PEFT_KINDS.get(str(self.adapter.get("task_type")), kind)

    @property
    def is_joint(self) -> bool:
        """True if the model contains both generator and discriminator."""
        return self.config.get("model_type") == "deberta-ext" and self.architecture.endswith("ForPreTraining")

    @property
    def is_pretraining(self) -> bool:
        return self.is_joint or self.half != "" or "eval_mlm_loss" in self.results

    @property
    def custom_code(self) -> bool:
        """True if the model, or the base model of an adapter, needs code from its repository (trust_remote_code)."""
        base = Path(str(self.adapter.get("base_model_name_or_path")), "config.json")
        library = str((self.adapter.get("auto_mapping") or {}).get("parent_library", "transformers"))
        return "auto_map" in self.config or library.split(".")[0] != "transformers" or "auto_map" in read_json(base)

    @property
    def has_tokenizer(self) -> bool:
        return len(tokenizer_files(self.model_folder)) > 0

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by name, without the prefix "eval_"; means over the seeds if there are several."""
        if not self.summary:
            return measured_metrics(self.results)
        names = filter(lambda name: name.startswith("eval_"), self.summary)
        return {name.removeprefix("eval_"): self.summary[name]["mean"] for name in names}

    @property
    def labels(self) -> list[str]:
        """Names of the classes; [] if all names are only numbers, such as LABEL_0."""
        labels = self.config.get("id2label") or {}
        names = [str(labels[number]) for number in sorted(labels, key=int)]
        if all(re.fullmatch(r"LABEL_\d+", name) for name in names):
            return []
        return names

    @property
    def parameters(self) -> int:
        """Number of parameters; 0 if the weights are not in safetensors."""
        return sum(tensor.size for name, tensor in self.tensors.items() if not name.endswith("position_ids"))


def read_folder(folder: str | os.PathLike, run: RunFacts | None = None) -> ModelFolder:
    """Read the files of a model, of a half of a joint model (generator or discriminator), or of a run over several seeds.

    If `run` is None, it is read from run_report.json.

    Raises:
        ValueError: if the folder contains no model, or if one of its files is damaged.
    """
    folder = Path(folder)
    place, half = folder.resolve(), ""
    if place.name in PARTS and (place.parent / "config.json").is_file():
        half, place = place.name, place.parent
    results = read_json(place / "all_results.json")
    summary, model_folder = {}, folder
    if isinstance(results.get("seeds"), list):
        summary, model_folder = results, folder / f"seed-{results['seeds'][0]}"
        results = read_json(model_folder / "all_results.json")
    config, adapter = read_json(model_folder / "config.json"), read_json(model_folder / "adapter_config.json")
    if not config and not adapter:
        raise ValueError(f"{model_folder} has neither config.json nor adapter_config.json: pass the folder of a model")
    if run is None:
        kept, names = read_json(place / REPORT_FILE).get("card", {}), {entry.name for entry in fields(RunFacts)}
        run = RunFacts(**{name: kept[name] for name in names & kept.keys()})
    tensors: dict[str, Tensor] = {}
    for file in weight_files(model_folder, ADAPTER_WEIGHT_FILES if adapter else WEIGHT_FILES):
        if file.suffix == ".safetensors":
            tensors |= read_tensors(file)
    return ModelFolder(folder, model_folder, half, config, adapter, tensors, results, summary, run)


def read_halves(model: ModelFolder) -> list[ModelFolder]:
    """Read the generator and the discriminator of a joint model; [] if the model is not a joint model."""
    if not model.is_joint:
        return []
    folders = [model.folder / half for half in PARTS]
    return [read_folder(folder, model.run) for folder in folders if (folder / "config.json").is_file()]

# SPDX-License-Identifier: Apache-2.0
"""Facts for a model card: what a run tells, and what the files of a model's folder hold. No weights are loaded."""

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

__all__ = ["AUTO_MODELS", "REPORT_FILE", "ModelFolder", "RunFacts", "read_folder"]

REPORT_FILE = "run_report.json"
# The Hub's name of a task -> the Auto class that loads its model; "encoder" is a model without a head.
AUTO_MODELS = {"encoder": "AutoModel"}
# End of the class's name -> the Hub's name of the task, "fine-tune" for a discriminator.
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
    """Facts that only a run knows; run_report.json keeps them. Sources are named without their folder."""

    # "sst2"; None for pre-training, or for a task without a name.
    task: str | None = None
    # The Hub's name of the kind of task; None takes it from the model's class.
    pipeline: str | None = None
    # Of a pre-training: name in the results -> title.
    objectives: Mapping[str, str] = field(default_factory=dict)
    # The data of the results, (configuration, split) on the Hub of each evaluation set ("" for the main one), and Hub ids.
    measured_on: str | None = None
    sets: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    datasets: Sequence[str] = ()
    # The checkpoint that was trained further, its id and its revision on the Hub; or the training began from random weights.
    base_model: str | None = None
    base_model_id: str | None = None
    base_revision: str | None = None
    from_scratch: bool = False
    # Rows of two tables; a value is text, a number, a list or a dictionary of these.
    training: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    # Numbers of parameters, of the model with its adapters; columns of a text classifier: one, or two for pairs.
    parameters: int | None = None
    trained_parameters: int | None = None
    text_columns: Sequence[str] = ()
    # Tokens of the longest input of the training, and in all documents of a pre-training.
    longest: int | None = None
    tokens: int | None = None
    # Only the first so many examples were taken.
    train_samples: int | None = None
    eval_samples: int | None = None
    seeds: Sequence[int] = ()
    # The checkpoint was selected on the evaluation data; they were also trained on.
    best_chosen: bool = False
    trained_on_results: bool = False
    # ISO codes, and the Hub's name of the licence.
    language: Sequence[str] = ()
    license: str | None = None
    # Markdown in place of the usual description, and the file of a picture of the results.
    opening: str | None = None
    figure: str | None = None
    # Where the model fails: paragraphs in Markdown.
    failures: Sequence[str] = ()
    # A sentence about a training that diverged, and sentences before the usual limits.
    diverged: str | None = None
    limits: Sequence[str] = ()


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder, as far as its files can be read without loading the model."""

    # Of the card, and of the model: the same, or the folder of the first of several seeds.
    folder: Path
    model_folder: Path
    # "discriminator" or "generator" for a half of a joint model, which lies in the folder above; or "".
    half: str
    # config.json and adapter_config.json, shapes of tensors by name, all_results.json (of the first seed), results over
    # several seeds; {} without the file. Only .safetensors have shapes.
    config: Mapping[str, Any]
    adapter: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    results: Mapping[str, Any]
    summary: Mapping[str, Any]
    run: RunFacts

    @property
    def title(self) -> str:
        """The folder's name, of a half "JOINT: HALF"."""
        folder = self.folder.resolve()
        return f"{folder.parent.name}: {self.half}" if self.half else folder.name

    @property
    def repo(self) -> str:
        """The folder from which the model is loaded, without the folders above: of a half the joint model's."""
        if self.half:
            return self.folder.resolve().parent.name
        return self.model_folder.resolve().relative_to(self.folder.resolve().parent).as_posix()

    @property
    def architecture(self) -> str:
        """Name of the model's class; "" where it is unknown."""
        if self.adapter:
            return str((self.adapter.get("auto_mapping") or {}).get("base_model_class", ""))
        return str((self.config.get("architectures") or [""])[0])

    @property
    def kind(self) -> str:
        """The Hub's name of the task, "encoder", "fine-tune" (a discriminator) or "joint"."""
        if self.is_joint:
            return "joint"
        name = self.architecture or str((self.config.get("architectures") or [""])[0])
        kind = KINDS.get(next(filter(name.endswith, KINDS), ""), "encoder")
        return self.run.pipeline or PEFT_KINDS.get(str(self.adapter.get("task_type")), kind)

    @property
    def is_joint(self) -> bool:
        """Generator and discriminator in one model."""
        return self.config.get("model_type") == "deberta-ext" and self.architecture.endswith("ForPreTraining")

    @property
    def is_pretraining(self) -> bool:
        return self.is_joint or self.half != "" or "eval_mlm_loss" in self.results

    @property
    def custom_code(self) -> bool:
        """Loading the model needs code in its folder, or in the folder of an adapter's base."""
        base = Path(str(self.adapter.get("base_model_name_or_path")), "config.json")
        library = str((self.adapter.get("auto_mapping") or {}).get("parent_library", "transformers"))
        return "auto_map" in self.config or library.split(".")[0] != "transformers" or "auto_map" in read_json(base)

    @property
    def has_tokenizer(self) -> bool:
        return len(tokenizer_files(self.model_folder)) > 0

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by name, without "eval_"; means over several seeds."""
        if not self.summary:
            return measured_metrics(self.results)
        names = filter(lambda name: name.startswith("eval_"), self.summary)
        return {name.removeprefix("eval_"): self.summary[name]["mean"] for name in names}

    @property
    def labels(self) -> list[str]:
        """Names of the classes; [] where they are only numbered."""
        labels = self.config.get("id2label") or {}
        names = [str(labels[number]) for number in sorted(labels, key=int)]
        if all(re.fullmatch(r"LABEL_\d+", name) for name in names):
            return []
        return names

    @property
    def parameters(self) -> int:
        """Number of parameters; 0 where the weights are not in safetensors."""
        return sum(tensor.size for name, tensor in self.tensors.items() if not name.endswith("position_ids"))


def read_folder(folder: str | os.PathLike, run: RunFacts | None = None) -> ModelFolder:
    """Read the files of a model, of a half of a joint model, or of a run over several seeds.

    Args:
        run (*optional*): facts of the run; None reads those that run_report.json keeps.

    Raises:
        ValueError: the folder holds no model, or a file in it is damaged.
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
        raise ValueError(f"{model_folder} has neither config.json nor adapter_config.json: expected the folder of a model")
    if run is None:
        kept, names = read_json(place / REPORT_FILE).get("card", {}), {entry.name for entry in fields(RunFacts)}
        run = RunFacts(**{name: kept[name] for name in names & kept.keys()})
    tensors: dict[str, Tensor] = {}
    for file in weight_files(model_folder, ADAPTER_WEIGHT_FILES if adapter else WEIGHT_FILES):
        if file.suffix == ".safetensors":
            tensors |= read_tensors(file)
    return ModelFolder(folder, model_folder, half, config, adapter, tensors, results, summary, run)

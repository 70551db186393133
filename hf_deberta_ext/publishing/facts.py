# SPDX-License-Identifier: Apache-2.0
"""Facts about a model from the files in its folder: architecture, size, training, results. No weights are loaded."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..model.checkpoint_files import (
    ADAPTER_WEIGHT_FILES,
    WEIGHT_FILES,
    Tensor,
    read_index,
    read_json,
    read_tensors,
    tokenizer_files,
)
from ..model.heads import HEADS
from .card_metadata import as_list, is_hub_id
from .results import measured_metrics

__all__ = [
    "HALVES", "REPORT_FILE", "ModelFolder", "RunFacts", "read_folder", "shown_source",
]  # fmt: skip

REPORT_FILE = "run_report.json"
# Folders of a joint model that are models by themselves.
HALVES = ("discriminator", "generator")
# End of the class's name -> kind: the Hub's name of the task, "fine-tune" for a discriminator.
KINDS = {
    head.model_class.removeprefix("DebertaExt"): head.pipeline_tag or "fine-tune"
    for head in HEADS.values()
    if head.auto_class not in ("AutoModel", "AutoModelForPreTraining")
}
PEFT_KINDS = {
    "SEQ_CLS": "text-classification", "TOKEN_CLS": "token-classification", "QUESTION_ANS": "question-answering",
}  # fmt: skip
# Flags of a run -> rows of the table of the training, in this order; a value of "", 0, false or [] has no row.
RECIPE = {
    "task_name": "task", "dataset_name": "data set", "train_file": "data", "train_data": "data", "recipe": "recipe",
    "max_seq_length": "longest input, tokens", "max_length": "longest example, tokens", "packing": "packing",
    "masking": "masking", "masking_rate": "share of masked tokens", "per_device_train_batch_size": "batch of a device",
    "gradient_accumulation_steps": "accumulation steps", "world_size": "processes", "optim": "optimizer",
    "learning_rate": "learning rate", "lr_scheduler_type": "schedule", "warmup_steps": "warm-up",
    "weight_decay": "weight decay", "sift_weight": "weight of SiFT", "seed": "seed",
}  # fmt: skip
SOURCES = ("dataset_name", "train_file", "train_data")


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts for the model card that only a run knows; run_report.json keeps them. Sources are named without their place.

    Args:
        task (`str`, *optional*): "sst2"; None = pre-training, or a task without a name.
        pipeline (`str`, *optional*): the Hub's name of the kind of task; None = that of the model's class.
        objectives (`dict[str, str]`): name in the results -> title, of a pre-training.
        measured_on (`str`, *optional*): the data of the results.
        sets (`dict`): (configuration, split) on the Hub of each evaluation set, "" for the main one.
        datasets (`list[str]`): ids on the Hub.
        base_model (`str`, *optional*): the checkpoint that was trained further, and `base_model_id` its id on the Hub.
        base_revision (`str`, *optional*): of it on the Hub.
        from_scratch (`bool`): the training began from random weights.
        training, hardware (`dict`): rows of two tables; a value is text, a number, a list or a dictionary of these.
        parameters, trained_parameters (`int`, *optional*): of the model with its adapters.
        text_columns (`list[str]`): of a text classifier: one, or two for pairs.
        longest (`int`, *optional*): tokens of the longest input of the training.
        tokens (`int`, *optional*): in the documents of a pre-training.
        train_samples, eval_samples (`int`, *optional*): only the first so many examples were taken.
        seeds (`list[int]`): of the training.
        best_chosen (`bool`): the best of several checkpoints was chosen on the data of the results.
        trained_on_results (`bool`): a file that was measured on was trained on, too.
        language (`list[str]`): ISO codes.
        license (`str`, *optional*): the Hub's name of it.
        opening, figure (`str`, *optional*): Markdown in place of the usual description, and a picture of the results.
        diverged (`str`, *optional*): the sentence of a training that diverged.
        limits (`list[str]`): sentences before the usual ones.
    """

    task: str | None = None
    pipeline: str | None = None
    objectives: Mapping[str, str] = field(default_factory=dict)
    measured_on: str | None = None
    sets: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    datasets: Sequence[str] = ()
    base_model: str | None = None
    base_model_id: str | None = None
    base_revision: str | None = None
    from_scratch: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    trained_parameters: int | None = None
    text_columns: Sequence[str] = ()
    longest: int | None = None
    tokens: int | None = None
    train_samples: int | None = None
    eval_samples: int | None = None
    seeds: Sequence[int] = ()
    best_chosen: bool = False
    trained_on_results: bool = False
    language: Sequence[str] = ()
    license: str | None = None
    opening: str | None = None
    figure: str | None = None
    diverged: str | None = None
    limits: Sequence[str] = ()


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a model, as far as its files can be read without loading it.

    Args:
        folder (`Path`): of the card; `model_folder` holds the model, that of the first seed where there are several.
        config (`dict`): config.json.
        adapter (`dict`): adapter_config.json; empty = a whole model.
        tensors (`dict`): shapes and dtypes in the headers of the .safetensors, by name; empty where there are none.
        results (`dict`): all_results.json, or else all *_results.json.
        summary (`dict`): results over several seeds.
        has_log (`bool`): the folder has the arguments or the state of its training.
        run (`RunFacts`): of run_report.json, or as far as arguments and state of a training have them.
    """

    folder: Path
    model_folder: Path
    config: Mapping[str, Any]
    adapter: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    results: Mapping[str, Any]
    summary: Mapping[str, Any]
    has_log: bool
    run: RunFacts

    @property
    def title(self) -> str:
        """The folder's name; that of a half of a joint model after the name of the joint model."""
        folder = self.folder.resolve()
        return f"{folder.parent.name}: {folder.name}" if self.half else folder.name

    @property
    def half(self) -> str | None:
        """ "discriminator" or "generator" for a half of a joint model in the folder of that."""
        folder = self.folder.resolve()
        return folder.name if _joint_folder(folder) else None

    @property
    def architecture(self) -> str:
        """Name of the model's class, "" where it is not known: the configuration of an adapter may be that of its base."""
        if self.adapter:
            return str((self.adapter.get("auto_mapping") or {}).get("base_model_class") or "")
        return str((self.config.get("architectures") or [""])[0])

    @property
    def kind(self) -> str:
        """The Hub's name of the task, "encoder", "fine-tune" (a discriminator) or "joint", as for `loading_code`."""
        if self.is_joint:
            return "joint"
        kind = self.run.pipeline or PEFT_KINDS.get(str(self.adapter.get("task_type")))
        name = self.architecture or str((self.config.get("architectures") or [""])[0])
        return kind or next((kind for end, kind in KINDS.items() if name.endswith(end)), "encoder")

    @property
    def is_joint(self) -> bool:
        """Generator and discriminator in one model."""
        return self.config.get("model_type") == "deberta-ext" and self.architecture.endswith("ForPreTraining")

    @property
    def detects_replaced_tokens(self) -> bool:
        """Its results are those of a generator and a discriminator."""
        return "eval_discriminator_loss" in self.results

    @property
    def is_pretraining(self) -> bool:
        return self.is_joint or self.half is not None or "eval_mlm_loss" in self.results

    @property
    def custom_code(self) -> bool:
        """Loading it needs the code in the folder."""
        return "auto_map" in self.config

    @property
    def base_has_code(self) -> bool:
        """The model of an adapter has code of its own, as far as the adapter or the base's folder says."""
        library = str((self.adapter.get("auto_mapping") or {}).get("parent_library") or "transformers")
        base = Path(str(self.adapter.get("base_model_name_or_path") or ""), "config.json")
        return library.split(".")[0] != "transformers" or (bool(self.adapter) and "auto_map" in read_json(base))

    @property
    def has_tokenizer(self) -> bool:
        return bool(tokenizer_files(self.model_folder))

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by name, without "eval_"; means of several seeds."""
        if self.summary:
            metrics = {name: value for name, value in self.summary.items() if name.startswith("eval_")}
            return {name.removeprefix("eval_"): value["mean"] for name, value in metrics.items()}
        return measured_metrics(self.results)

    @property
    def labels(self) -> list[str]:
        """Names of the classes, none where they are only numbered."""
        labels = self.config.get("id2label") or {}
        names = [str(labels[number]) for number in sorted(labels, key=lambda number: int(number))]
        return [] if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names

    def parameters(self, prefix: str = "") -> dict[str, int]:
        """Numbers of parameters: "all", "embeddings", "encoder", "heads"; empty where they are not known.

        Args:
            prefix (`str`): of the names that count: "generator." for a half of a joint model.
        """
        counts = {"all": 0, "embeddings": 0, "encoder": 0, "heads": 0}
        for name, tensor in self.tensors.items():
            # Buffers of older files.
            if name.startswith(prefix) and not name.endswith("position_ids"):
                part = "embeddings" if ".embeddings." in f".{name}" else "encoder" if ".encoder." in f".{name}" else "heads"
                counts[part] += tensor.size
                counts["all"] += tensor.size
        return counts if counts["all"] else {}

    @property
    def dtypes(self) -> list[str]:
        return sorted({tensor.dtype for tensor in self.tensors.values()})


def read_folder(folder: str | os.PathLike) -> ModelFolder:
    """Read the files of a model, of a run, of a half of a joint model or of a run over several seeds.

    Raises:
        ValueError: the folder holds no model; a file in it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    results = read_json(folder / "all_results.json")
    summary = results if isinstance(results.get("seeds"), list) else {}
    model_folder = folder / f"seed-{summary['seeds'][0]}" if summary else folder
    config, adapter = read_json(model_folder / "config.json"), read_json(model_folder / "adapter_config.json")
    if not config and not adapter:
        raise ValueError(f"{model_folder} is no folder of a model: it has neither config.json nor adapter_config.json")
    # The run of a half of a joint model is that of the joint model.
    run_folder = _joint_folder(folder.resolve()) or folder
    if summary or run_folder != folder:
        results = read_json((model_folder if summary else run_folder) / "all_results.json")
    if not results:
        for file in sorted(folder.glob("*_results.json")):
            results |= read_json(file)
    arguments, state, report = (
        read_json(run_folder / name) for name in ("run_arguments.json", "trainer_state.json", REPORT_FILE)
    )
    if "card" in report:
        names = {entry.name for entry in fields(RunFacts)}
        run = RunFacts(**{name: value for name, value in report["card"].items() if name in names})
    else:
        run = facts_of_arguments(folder, arguments, state, results, adapter)
    tensors = weight_tensors(model_folder, ADAPTER_WEIGHT_FILES if adapter else WEIGHT_FILES)
    has_log = bool(arguments or state or "card" in report)
    return ModelFolder(folder, model_folder, config, adapter, tensors, results, summary, has_log, run)


def shown_source(source: str | os.PathLike) -> str:
    """A Hub id, or the name of a file or folder without its place on a machine, this one or that of the run; of a half of a
    joint model with the name of the joint one. "NAME=FILE" is shown as the file."""
    text = str(source)
    if Path(text).exists():
        names = [*Path(text).resolve().parts]
    else:
        text = text.partition("=")[2] or text
        names = [name for name in re.split(r"[/\\]", text) if name not in ("", ".", "..", "~")]
        is_local = text.startswith((".", "/", "~")) or "\\" in text or ":" in text or len(names) > 2 or Path(text).exists()
        if not is_local or not names:
            return text
    return "/".join(names[-2:] if names[-1] in HALVES else names[-1:])


def _joint_folder(folder: Path) -> Path | None:
    """The folder of the joint model that the model in an absolute path is a half of."""
    return folder.parent if folder.name in HALVES and (folder.parent / "config.json").is_file() else None


def facts_of_arguments(
    folder: Path,
    arguments: Mapping[str, Any],
    state: Mapping[str, Any],
    results: Mapping[str, Any],
    adapter: Mapping[str, Any],
) -> RunFacts:
    """The facts that a folder without a run's own has: a checkpoint, the output of a trainer in Python, an adapter."""

    def hub_id(source: str | None) -> str | None:
        """A source of the form owner/name that is no folder beside or above the model's."""
        if source is None or "/" not in source or not is_hub_id(source):
            return None
        return None if any((place / source).exists() for place in (Path(), *folder.resolve().parents)) else source

    base = arguments.get("model_name_or_path") or arguments.get("model") or adapter.get("base_model_name_or_path")
    base = None if arguments.get("from_scratch") else base
    is_pretraining, dataset = "train_data" in arguments, arguments.get("dataset_name")
    measured_on = None
    if files := as_list(arguments.get("validation_file") or arguments.get("validation_data")):
        measured_on = ", ".join(map(shown_source, files))
    elif dataset or arguments.get("task_name"):
        measured_on = shown_source(dataset) if dataset else f"the validation data of {arguments['task_name']}"
    return RunFacts(
        task=arguments.get("task_name"),
        measured_on=measured_on,
        datasets=as_list(hub_id(dataset)) if not files else [],
        base_model=shown_source(base) if base else None,
        base_model_id=hub_id(base),
        base_revision=adapter.get("revision"),
        training=training_rows(arguments, state, results, adapter),
        hardware=hardware_rows(arguments, results),
        text_columns=arguments.get("text_columns") or (),
        longest=arguments.get("max_length") if is_pretraining else arguments.get("max_seq_length"),
        seeds=as_list(arguments.get("seed")),
        language=as_list(arguments.get("card_language")),
        figure="curves.png" if (folder / "curves.png").is_file() else None,
    )


def training_rows(
    arguments: Mapping[str, Any], state: Mapping[str, Any], results: Mapping[str, Any], adapter: Mapping[str, Any]
) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for flag, row in RECIPE.items():
        value = arguments.get(flag)
        if value not in (None, "", [], 0, False):
            rows[row] = [shown_source(source) for source in as_list(value)] if flag in SOURCES else value
    if arguments.get("lora"):
        rows["LoRA"] = f"rank {arguments['lora_r']}, alpha {arguments['lora_alpha']:g}"
    elif adapter:
        rows["LoRA"] = f"rank {adapter.get('r')}, alpha {adapter.get('lora_alpha')}"
    metric, best = state.get("best_metric"), state.get("best_model_checkpoint")
    measurements = {
        "examples": results.get("train_samples"),
        "steps": state.get("global_step"),
        "epochs": state.get("epoch"),
        "best checkpoint": f"{shown_source(best)}, {metric:.4g}" if best and isinstance(metric, (int, float)) else None,
    }
    return rows | {name: value for name, value in measurements.items() if value}


def hardware_rows(arguments: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    resumed = results.get("train_resumed_at_step")
    seconds = "seconds of training" + ("" if resumed is None else f", from step {resumed} on")
    half = next((half for half in ("bf16", "fp16") if arguments.get(half)), None)
    rows = {
        "precision": f"{half} autocast" if half else None,
        seconds: results.get("train_runtime"),
    }
    return {name: value for name, value in rows.items() if value is not None}


def weight_tensors(folder: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of the first file that is there, which loading would take, if it is in safetensors or an index of such files.

    Raises:
        ValueError: a file is damaged, or missing though an index names it.
    """
    name = next((name for name in names if (folder / name).is_file()), "")
    if ".safetensors" not in name:
        return {}
    tensors: dict[str, Tensor] = {}
    for file in sorted({*read_index(folder / name).values()}) if name.endswith(".json") else [name]:
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file} is not there, a shard of the weights that {name} names")
        tensors |= read_tensors(folder / file)
    return tensors

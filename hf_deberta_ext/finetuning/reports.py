# SPDX-License-Identifier: Apache-2.0
"""What a fine-tuning run leaves for people: curves and card, of one run or over several seeds."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from ..analysis.plots import plot_comparison, plot_curves
from ..data.files import named_files, shown_files
from ..publishing.card import shown_source
from ..training.batch_size import hardware_facts
from ..training.checkpoints import replace_text
from .arguments import DataArguments, FineTuningArguments, ModelArguments
from .cards import TaskFacts, task_limits, write_seeds_card, write_task_card
from .input_lengths import longest_row
from .task import EncodedTask, TaskData
from .tasks.glue import KnownTask
from .trainer import TaskTrainer, set_prefix

__all__ = ["PreparedRun", "report_run", "report_seeds"]

logger = logging.get_logger(__name__)

CURVES_FILE, SEEDS_FILE = "curves.png", "seeds.png"


@dataclass(frozen=True)
class PreparedRun:
    """A run whose texts are features and whose folder is made; several seeds differ in `args`, `checkpoint` and `model`."""

    data: TaskData
    task: EncodedTask
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    data_args: DataArguments
    model_args: ModelArguments
    args: FineTuningArguments
    checkpoint: str | None
    model: nn.Module | None = None


def report_run(prepared: PreparedRun, trainer: TaskTrainer, measured: Mapping[str, float]):
    """Curves and card of one run. Of a resumed run that had finished, the training's results are those written then."""
    args, folder = trainer.args, Path(trainer.args.output_dir)
    model = trainer.accelerator.unwrap_model(trainer.model)
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    results = json.loads((folder / "all_results.json").read_text(encoding="utf-8")) | dict(measured)
    facts = _facts(prepared, args, folder, results=results, steps=trainer.state.global_step)
    write_task_card(
        folder,
        facts,
        metrics=results,
        model=type(inner).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        evaluated_on=_evaluation_files(prepared),
        limits=_limits(prepared, args, facts, results, [args.seed]),
        figure=_draw_curves(prepared, trainer.state.log_history, folder),
    )


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _evaluation_files(prepared: PreparedRun) -> str | None:
    """Names of the files that results are of, or None where they are of the data set."""
    files = named_files(prepared.data_args.validation_file, what="--validation_file")
    return shown_files([path for paths in files.values() for path in paths]) or None


def _facts(
    prepared: PreparedRun,
    args: FineTuningArguments,
    folder: Path,
    *,
    results: Mapping[str, Any],
    steps: int | None = None,
) -> TaskFacts:
    """What the cards say of data, recipe and hardware.

    Args:
        folder (`Path`): of a model, which tells what its code and its adapter are.
        results (`dict`): of all_results.json; of several seeds nothing.
    """
    data, model_args, data_args = prepared.data, prepared.model_args, prepared.data_args
    config, adapter = (_read(folder / name) for name in ("config.json", "adapter_config.json"))
    # A data set may be a folder, too, of which only the name is shown.
    from_hub = not (data_args.train_file or data_args.validation_file or Path(data.dataset).exists())
    training = {
        "data": shown_source(data.dataset),
        "examples": f"{data.num_train:,} to train on, {data.num_evaluation:,} to evaluate on",
        "longest input": longest_row(prepared.task.train),
        "steps": steps or (args.max_steps if args.max_steps > 0 else None),
        "epochs": results.get("epoch", args.num_train_epochs if args.max_steps <= 0 else None),
        "batch": f"{args.train_batch_size} x {args.gradient_accumulation_steps} x {args.world_size} processes",
        "learning rate": f"{args.learning_rate:g}, {args.lr_scheduler_type.value}, warm-up {args.warmup_steps:g}",
        "weight decay": args.weight_decay,
        "recipe": args.recipe,
        "SiFT": f"weight {args.sift_weight:g}, {args.sift_preset}" if args.sift_weight else None,
        "LoRA": f"rank {model_args.lora_r}, alpha {model_args.lora_alpha:g}" if model_args.lora else None,
        "seed": None if args.seeds else args.seed,
    }
    return TaskFacts(
        task=data.name,
        pipeline=data.pipeline,
        dataset=shown_source(data.dataset),
        from_hub=from_hub,
        sets=_sets(prepared, from_hub),
        training={name: value for name, value in training.items() if value is not None},
        hardware=hardware_facts(args, parameters=model_args.dtype, results=results),
        base_model=None if model_args.from_scratch else model_args.model_name_or_path,
        base_revision=model_args.model_revision,
        adapter_base=adapter.get("base_model_name_or_path"),
        custom_code="auto_map" in config,
        text_columns=getattr(data, "text_columns", ()),
        problem_type=data.config_fields().get("problem_type"),
        language=data_args.card_language or (_xnli_languages(data) if from_hub else None),
        license=model_args.license,
    )


def _sets(prepared: PreparedRun, from_hub: bool) -> dict[str, tuple[str | None, str]]:
    """Configuration and split of each evaluation set, as far as a known task says them."""
    known = getattr(prepared.data, "task", None)
    if from_hub and isinstance(known, KnownTask) and known.dataset == prepared.data.dataset:
        return dict(known.evaluation)
    return {name: (None, "validation") for name in prepared.task.evaluation}


def _xnli_languages(data: TaskData) -> list[str] | None:
    """Of XNLI the configurations are languages."""
    if data.name != "xnli":
        return None
    return [*dict.fromkeys([*data.task.train[:1], *(language for language, _ in data.task.evaluation.values())])]


def _limits(
    prepared: PreparedRun, args: FineTuningArguments, facts: TaskFacts, results: Mapping[str, Any], seeds: Sequence[int]
) -> list[str]:
    files = named_files(prepared.data_args.validation_file, what="--validation_file")
    measured = {Path(path).resolve() for paths in files.values() for path in paths}
    return task_limits(
        facts,
        metrics=results,
        measured_on=_evaluation_files(prepared) or f"the validation data of {facts.dataset}",
        longest=longest_row(prepared.task.train),
        seeds=seeds,
        chosen=args.load_best_model_at_end,
        seen=bool(measured & {Path(path).resolve() for path in prepared.data_args.train_file}),
        train_samples=prepared.data_args.max_train_samples,
        eval_samples=prepared.data_args.max_eval_samples,
    )


def _draw_curves(prepared: PreparedRun, history: list[dict[str, Any]], folder: Path) -> str | None:
    """Losses, and the main metric of each set; None where nothing was logged, or there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning(f"no {CURVES_FILE}: matplotlib is not installed")
        return None
    names = [f"{set_prefix('eval', name)}_{prepared.task.metric}" for name in prepared.task.evaluation]
    logged = {name for entry in history for name in entry}
    panels = [("", ["run"], part) for part in (["loss", "eval_loss"], names) if {*part} & logged]
    if not panels:
        return None
    plot_curves({"run": history}, folder / CURVES_FILE, panels=panels)
    return CURVES_FILE


def report_seeds(
    prepared: PreparedRun, args: FineTuningArguments, summary: Mapping[str, Any], results: Mapping[int, Mapping[str, Any]]
):
    """all_results.json, a figure and a card over all seeds.

    Args:
        summary (`dict`): what `summarise_seeds` returned for `results`, what each seed has measured.
    """
    folder, data, task = Path(args.output_dir), prepared.data, prepared.task
    replace_text(folder / "all_results.json", json.dumps(summary, indent=2) + "\n")
    names = {name or data.name: f"{set_prefix('eval', name)}_{task.metric}" for name in task.evaluation}
    scores = {name: summary[key]["values"] for name, key in names.items() if key in summary}
    figure = None
    if scores and importlib.util.find_spec("matplotlib") is not None:
        plot_comparison(scores, folder / SEEDS_FILE, label=task.metric)
        figure = SEEDS_FILE
    facts = _facts(prepared, args, folder / f"seed-{args.seeds[0]}", results={})
    measured = next(iter(results.values()))
    write_seeds_card(
        folder, facts, summary=summary, limits=_limits(prepared, args, facts, measured, args.seeds), figure=figure
    )

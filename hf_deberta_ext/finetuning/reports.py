# SPDX-License-Identifier: Apache-2.0
"""Report a fine-tuning run with one or several seeds: curves, baselines, thresholds and model card."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from ..analysis.plots import metric_label, plot_comparison, plot_curves
from ..analysis.results import summary_table
from ..checkpoints.files import read_json
from ..data.files import named_files, shown_files
from ..files import as_list, drop_none, is_hub_id, replace_text, shown_source
from ..publishing.card import write_run_card
from ..publishing.facts import REPORT_FILE, RunFacts
from ..training.batch_size import batch_summary, hardware_facts
from ..training.published_optimizer import optimizer_name
from ..training.run_folder import accepted_changes, folder_summary
from .arguments import DataArguments, FineTuningArguments, ModelArguments
from .failures import failure_summary
from .input_lengths import longest_row
from .task import EncodedTask, TaskData
from .trainer import TaskTrainer, set_prefix

__all__ = ["PreparedRun", "check_thresholds", "print_baselines", "report_run", "report_seeds"]

logger = logging.get_logger(__name__)

CURVES_FILE, SEEDS_FILE = "curves.png", "seeds.png"


@dataclass(frozen=True)
class PreparedRun:
    """Inputs of a training run; runs with different seeds differ only in `args`, `checkpoint` and `model`.

    `trainer_class` takes the arguments of `TaskTrainer`; `card_rows` are added to the training table of the model card.
    """

    data: TaskData
    task: EncodedTask
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    data_args: DataArguments
    model_args: ModelArguments
    args: FineTuningArguments
    checkpoint: str | None
    model: nn.Module | None = None
    trainer_class: Callable[..., TaskTrainer] = TaskTrainer
    card_rows: Mapping[str, Any] = field(default_factory=dict)

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Metrics of the baselines by name; empty if there is no training data, or --do_eval is not set."""
        has_training_data = self.args.do_train or self.data_args.train_file
        if not (has_training_data and self.args.do_eval):
            return {}
        return self.data.baselines


def better_baselines(prepared: PreparedRun, metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each evaluation set on which a baseline is at least as good as the model in the main metric.

    Args:
        metrics (`dict`): values by name, such as "eval_accuracy"; with several seeds, values are {"mean": ...}.
    """
    sentences, metric = [], prepared.task.metric
    for name in prepared.task.evaluation:
        full_name = f"{set_prefix('eval', name)}_{metric}"
        value, lines = metrics.get(full_name), lines_across(prepared.baselines, full_name)
        if isinstance(value, Mapping):
            value = value["mean"]
        if value is None or not lines:
            continue
        best = max(lines, key=lines.__getitem__)
        if lines[best] >= value:
            relation = "worse" if lines[best] > value else "no better"
            of_set = f" on {name}" if name else ""
            numbers = f"{metric} {value:.4f} against {lines[best]:.4f}"
            sentences.append(f"The model is {relation} than the baseline {best}{of_set}: {numbers}.")
    return sentences


def check_thresholds(prepared: PreparedRun):
    """Raise a ValueError if the task has no thresholds to save, or there is no local config.json to save them in."""
    config, model = prepared.config, prepared.model_args.model_name_or_path
    has_two = config.problem_type == "single_label_classification" and config.num_labels == 2
    if not has_two and config.problem_type != "multi_label_classification":
        raise ValueError("--save_thresholds needs texts with two classes, or with several labels per text: remove this flag")
    if not prepared.args.do_train and not Path(model, "config.json").is_file():
        raise ValueError(
            f"--save_thresholds writes to the config.json of a model in a local folder, got --model_name_or_path {model}: "
            "download the model, or add --do_train, which saves the trained model in --output_dir"
        )


def save_thresholds(prepared: PreparedRun, model: nn.Module):
    """Save the thresholds with the best F1 on the main evaluation set in config.json, as `decision_thresholds`."""
    file = Path(prepared.args.output_dir, "config.json")
    if not prepared.args.do_train:
        file = Path(prepared.model_args.model_name_or_path, "config.json")
    thresholds = model.config.decision_thresholds = read_failures(prepared)["thresholds"]
    content = read_json(file) | {"decision_thresholds": thresholds}
    replace_text(file, json.dumps(content, indent=2, sort_keys=True) + "\n")
    print(f"thresholds in {file}: {', '.join(f'{name} {value:.4f}' for name, value in thresholds.items())}", flush=True)


def read_failures(prepared: PreparedRun) -> dict[str, Any]:
    """Read the error analysis (STEM_failures.json) of the main evaluation set; {} if there is none."""
    name = set_prefix("eval", next(iter(prepared.task.evaluation), ""))
    return read_json(Path(prepared.args.output_dir, f"{name}_failures.json"))


def print_baselines(prepared: PreparedRun):
    """Print the label counts of the training data, and the metrics of the baselines for comparison with the model."""
    if prepared.data.label_counts:
        print(f"labels: {shown_counts(prepared.data.label_counts)}", flush=True)
    for name, scores in prepared.baselines.items():
        print(f"{name}: {', '.join(f'{metric} {value:.4f}' for metric, value in scores.items())}", flush=True)


def shown_counts(counts: Mapping[str, int]) -> str:
    """Format counts by name as a text: "negative 1,200, positive 800"."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def report_run(prepared: PreparedRun, trainer: TaskTrainer, metrics: Mapping[str, float]):
    """Save the log, baselines, thresholds, curves and model card of one run; print a summary and warnings."""
    args, folder = trainer.args, Path(trainer.args.output_dir)
    if args.do_train:
        trainer.save_state()
    if not args.should_save:
        return
    if prepared.baselines:
        file = folder / "all_results.json"
        replace_text(file, json.dumps(read_json(file) | {"baselines": prepared.baselines}, indent=4) + "\n")
    if args.save_thresholds:
        save_thresholds(prepared, trainer.accelerator.unwrap_model(trainer.model))
    if args.do_train:
        write_run_card(folder, facts_of_training(prepared, trainer))
        print(folder_summary(folder), flush=True)
    for sentence in better_baselines(prepared, metrics):
        print(sentence, flush=True)
    if args.do_train:
        trainer.print_divergence()


def facts_of_training(prepared: PreparedRun, trainer: TaskTrainer) -> RunFacts:
    """Draw the curves of one run, and return the content of its model card.

    The training results are read from all_results.json. Resuming a finished run does not train again, so its card keeps
    the earlier results.
    """
    args, folder = trainer.args, Path(trainer.args.output_dir)
    model = trainer.accelerator.unwrap_model(trainer.model)
    results = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
    steps = str(trainer.state.global_step)
    if args.load_best_model_at_end:
        steps += f", weights of step {trainer.state.best_global_step}"
    figure = draw_curves(prepared.task, trainer.state.log_history, folder, prepared.baselines)
    facts = replace(
        run_facts(prepared, args, results=results, steps=steps),
        seeds=[args.seed],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained_parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        figure=figure,
        diverged=trainer.divergence(),
        limits=better_baselines(prepared, results),
    )
    if failures := read_failures(prepared):
        pictures = [f"![{name}]({name})" for name in failures["figures"]]
        facts = replace(facts, failures=[*failure_summary(failures), " ".join(pictures)])
    return facts


def run_facts(
    prepared: PreparedRun, args: FineTuningArguments, *, results: Mapping[str, Any], steps: str | None = None
) -> RunFacts:
    """Return data, settings and hardware for a model card; `results` is from all_results.json ({} for several seeds)."""
    data, model_args, data_args = prepared.data, prepared.model_args, prepared.data_args
    files = named_files(data_args.validation_file, source="--validation_file")
    evaluation_files = [Path(path) for path in chain.from_iterable(files.values())]
    trained_on = {Path(path).resolve() for path in data_args.train_file}
    facts = RunFacts(
        task=data.name,
        pipeline=data.pipeline,
        measured_on=shown_files(evaluation_files) or f"the validation data of {shown_source(data.dataset)}",
        sets=dict.fromkeys(prepared.task.evaluation, (None, "validation")),
        base_revision=model_args.model_revision,
        from_scratch=model_args.from_scratch,
        training=training_facts(prepared, args, results, steps),
        hardware=hardware_facts(args, parameters=model_args.dtype, results=results),
        text_columns=data.text_columns,
        longest=longest_row(prepared.task.train),
        train_samples=data_args.max_train_samples,
        eval_samples=data_args.max_eval_samples,
        seeds=args.seeds,
        best_chosen=args.load_best_model_at_end,
        trained_on_results=not trained_on.isdisjoint(file.resolve() for file in evaluation_files),
        language=as_list(data_args.card_language),
        license=model_args.license,
    )
    base = model_args.model_name_or_path
    if not model_args.from_scratch:
        facts = replace(facts, base_model=shown_source(base))
        if is_hub_id(base) and not Path(base).exists():
            facts = replace(facts, base_model_id=base)
    # A data set in a local folder is not on the Hub: the card only shows its name.
    if data_args.train_file or data_args.validation_file or Path(data.dataset).exists() or not is_hub_id(data.dataset):
        return facts
    facts, known = replace(facts, datasets=[data.dataset]), getattr(data, "task", None)
    if known is not None and known.dataset == data.dataset:
        facts = replace(facts, sets=dict(known.evaluation))
    if data.name == "xnli" and not facts.language:
        # The configurations of XNLI are languages.
        languages = [config for config, _ in (*known.train.values(), *known.evaluation.values())]
        facts = replace(facts, language=[*dict.fromkeys(languages)])
    return facts


def training_facts(
    prepared: PreparedRun, args: FineTuningArguments, results: Mapping[str, Any], steps: str | None
) -> dict[str, Any]:
    """Return the training settings for the model card; see `run_facts` for the arguments."""
    data, model_args = prepared.data, prepared.model_args
    training = {
        "data": shown_source(data.dataset),
        "examples": f"{data.num_train:,} to train on, {data.num_evaluation:,} to evaluate on",
        "training labels": shown_counts(data.label_counts) or None,
        "longest input": longest_row(prepared.task.train),
        "steps": steps,
        "epochs": results.get("epoch"),
        "batch": batch_summary(args),
        "learning rate": f"{args.learning_rate:g}, warm-up {args.warmup_steps:g}",
        "optimizer": optimizer_name(args),
        "weight decay": args.weight_decay,
        "recipe": args.recipe,
    }
    if args.max_steps > 0:
        training["steps"] = steps or args.max_steps
    else:
        training["epochs"] = results.get("epoch", args.num_train_epochs)
    if args.sift_weight:
        training["SiFT"] = f"weight {args.sift_weight:g}, {args.sift_preset}"
    training |= prepared.card_rows
    if model_args.lora:
        training["LoRA"] = f"rank {model_args.lora_r}, alpha {model_args.lora_alpha:g}"
    if not args.seeds:
        training["seed"] = args.seed
    training["changed when resumed"] = accepted_changes(args.output_dir)
    return drop_none(training)


def draw_curves(
    task: EncodedTask, history: list[dict[str, Any]], folder: Path, baselines: Mapping[str, Mapping[str, float]]
) -> str | None:
    """Draw the losses and the main metric of each set (with baselines if there is only one set); return the file's name.

    Return None if nothing was logged or matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning(f"{CURVES_FILE} is not drawn: matplotlib is not installed")
        return None
    names = [f"{set_prefix('eval', name)}_{task.metric}" for name in task.evaluation]
    logged = {name for entry in history for name in entry}
    panels = [("", ["run"], values) for values in (["loss", "eval_loss"], names) if {*values} & logged]
    if not panels:
        return None
    # With several sets, one panel would have too many lines.
    lines = {name: lines_across(baselines, name) for name in names if len(names) == 1}
    plot_curves({"run": history}, folder / CURVES_FILE, panels=panels, baselines=lines)
    return CURVES_FILE


def lines_across(baselines: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, float]:
    """Return the values of a metric such as "eval_accuracy" for all baselines, by name of the baseline."""
    return drop_none({name: scores.get(metric.removeprefix("eval_")) for name, scores in baselines.items()})


def report_seeds(prepared: PreparedRun, summary: dict[str, Any]):
    """Write all_results.json, a figure and a model card of all seeds. Print the scores, the baselines that are at least as
    good as the model, and the seeds that diverged."""
    folder, data, task = Path(prepared.args.output_dir), prepared.data, prepared.task
    if prepared.baselines:
        summary["baselines"] = prepared.baselines
    replace_text(folder / "all_results.json", json.dumps(summary, indent=2) + "\n")
    names = {name or data.name: f"{set_prefix('eval', name)}_{task.metric}" for name in task.evaluation}
    scores = {name: summary[key]["values"] for name, key in names.items() if key in summary}
    figure = None
    if scores and importlib.util.find_spec("matplotlib") is not None:
        lines = lines_across(summary.get("baselines", {}), *names.values()) if len(names) == 1 else None
        plot_comparison(scores, folder / SEEDS_FILE, label=metric_label(task.metric), baselines=lines)
        figure = SEEDS_FILE
    diverged = ""
    for seed in summary["seeds"]:
        sentence = read_json(folder / f"seed-{seed}" / REPORT_FILE).get("card", {}).get("diverged")
        if sentence:
            diverged += f"Seed {seed}: {sentence}\n"
    facts, limits = run_facts(prepared, prepared.args, results={}), better_baselines(prepared, summary)
    write_run_card(folder, replace(facts, figure=figure, diverged=diverged.strip() or None, limits=limits))
    sentences = "\n".join([*limits, diverged.strip()]).strip()
    print(f"\n{summary_table(summary)}\n\n{sentences}", flush=True)

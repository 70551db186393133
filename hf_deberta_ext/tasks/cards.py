# SPDX-License-Identifier: Apache-2.0
"""Model cards of fine-tuned models: how to use them, what was measured, how they were trained."""

import os
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runs.card import base_model_names, facts_table, shown_source, write_card

__all__ = ["measured_metrics", "summarise_seeds", "summary_table", "write_seeds_card", "write_task_card"]

AUTO_MODELS = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
}
PIPELINE = """from transformers import pipeline

# The path of this folder, or its Hub id.
model = pipeline("{pipeline}", "{folder}"{more})
print(model("A text.")){pairs}"""
AUTO_MODEL = """from transformers import {auto}, AutoTokenizer

folder = "{folder}"  # the path of this folder, or its Hub id
model = {auto}.from_pretrained(folder{trust})
tokenizer = AutoTokenizer.from_pretrained(folder{trust})"""
ADAPTER = """from peft import PeftModel
from transformers import AutoConfig, {auto}, AutoTokenizer

folder = "{folder}"  # the path of this folder, or its Hub id
base = "{base}"  # the path or Hub id of the model that was fine-tuned
config = AutoConfig.from_pretrained(folder{trust})
model = {auto}.from_pretrained(base, config=config, ignore_mismatched_sizes=True{trust})
model = PeftModel.from_pretrained(model, folder)
tokenizer = AutoTokenizer.from_pretrained(folder{trust})"""
# What Trainer measures beside the metrics of the task.
OF_THE_RUN = re.compile(r"(runtime|.*_per_second|samples|epoch|model_preparation_time|jit_compilation_time|mem_.*)")


def measured_metrics(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, float]:
    """Those that tell how good a model is, without speeds and counts, named without `stem`; losses last."""
    named = {name.removeprefix(f"{stem}_"): value for name, value in metrics.items() if name.startswith(f"{stem}_")}
    sets = {name.removesuffix("_samples") for name in named if name.endswith("_samples")}
    measured = {
        name: value
        for name, value in named.items()
        if isinstance(value, (int, float))
        and not any(OF_THE_RUN.fullmatch(name.removeprefix(f"{part}_")) for part in ("", *sets))
    }
    # Losses behind what people compare.
    return dict(sorted(measured.items(), key=lambda item: item[0].endswith("loss")))


def summarise_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation (None for one seed) and values, in the order of the seeds, of each metric that all have.

    Args:
        results (`dict[int, dict]`): what was measured, by seed, as in all_results.json.
    """
    summary: dict[str, Any] = {"seeds": [*results]}
    for stem in ("eval", "predict"):
        runs = [measured_metrics(metrics, stem) for metrics in results.values()]
        for name in runs[0]:
            if not all(name in run for run in runs):
                continue
            values = [run[name] for run in runs]
            summary[f"{stem}_{name}"] = dict(
                mean=statistics.mean(values),
                standard_deviation=statistics.stdev(values) if len(values) > 1 else None,
                values=values,
            )
    return summary


def summary_table(summary: Mapping[str, Any]) -> str:
    """What `summarise_seeds` returned, a row a metric, as Markdown."""
    lines = [
        f"| metric | mean | standard deviation | {' | '.join(f'seed {seed}' for seed in summary['seeds'])} |",
        "| --- " * (3 + len(summary["seeds"])) + "|",
    ]
    for name, part in summary.items():
        if name != "seeds":
            cells = [part["mean"], part["standard_deviation"], *part["values"]]
            lines.append(f"| {name} | {' | '.join('' if cell is None else f'{cell:.4f}' for cell in cells)} |")
    return "\n".join(lines)


def write_task_card(
    folder: str | os.PathLike,
    *,
    task: str,
    pipeline: str,
    dataset: str,
    evaluated_on: str | None = None,
    metrics: Mapping[str, Any],
    facts: Mapping[str, Any],
    model: str,
    parameters: int,
    trained: int,
    base_model: str | None,
    custom_code: bool = False,
    adapter_base: str | None = None,
    from_hub: bool = False,
    figure: str | None = None,
) -> Path:
    """Writes README.md, the model card that the Hub shows, into the folder of a fine-tuned model.

    Args:
        task (`str`): its name, "sst2".
        pipeline (`str`): the Hub's name of the kind of task.
        dataset (`str`): Hub id, if `from_hub`, or names of files.
        evaluated_on (`str`, *optional*): names of the files that `metrics` are of; None = the validation data of `dataset`.
        metrics (`dict`): what was measured, "eval_accuracy" and the like.
        facts (`dict`): rows of the table of the training; a value is text, a number, a list or a dictionary of these.
        model (`str`): name of the model's class.
        parameters, trained (`int`): how many the model has, and how many of them were trained.
        base_model (`str`, *optional*): the checkpoint that was fine-tuned, a Hub id or a folder, of which the card has the
            name only; None = random weights.
        custom_code (`bool`): the model needs the code in its folder.
        adapter_base (`str`, *optional*): the model that the adapter (LoRA) in the folder is for; None = a whole model.
        figure (`str`, *optional*): file of the curves.
    """
    title = Path(folder).resolve().name
    scores = measured_metrics(metrics)
    trust = ", trust_remote_code=True" if custom_code else ""
    auto = AUTO_MODELS.get(pipeline, "AutoModel")
    if adapter_base:
        usage = ADAPTER.format(auto=auto, folder=title, base=shown_source(adapter_base), trust=trust)
    elif pipeline in ("text-classification", "token-classification"):
        more = trust + (', aggregation_strategy="first"' if pipeline == "token-classification" else "")
        pairs = '  # a pair: {"text": "A text.", "text_pair": "Another."}' if pipeline == "text-classification" else ""
        usage = PIPELINE.format(pipeline=pipeline, folder=title, more=more, pairs=pairs)
    else:
        usage = AUTO_MODEL.format(auto=auto, folder=title, trust=trust)
    results = ["Nothing was measured."]
    if scores:
        measured_on = evaluated_on or f"the validation data of {dataset}"
        results = [_results_table(scores), f"Measured on {measured_on}."]
    if figure is not None:
        results.append(f"![Losses and metrics during the training]({figure})")
    size = f"It has {parameters / 1e6:.1f} million parameters."
    if adapter_base:
        size += f" {trained / 1e6:.2f} million of them were trained (low-rank adapters and the head)."
    return write_card(
        folder,
        opening=f"{model} for {_task(task, pipeline)}, {_beginning(base_model)}, with hf_deberta_ext and\ntransformers' "
        f"Trainer. {size}",
        usage=usage,
        sections={"Results": "\n\n".join(results), "Training": facts_table(facts)},
        metadata=dict(
            library_name="peft" if adapter_base else "transformers", pipeline_tag=pipeline,
            tags=["hf_deberta_ext", *(["lora"] if adapter_base else [])], base_model=_hub_id(base_model),
            datasets=[dataset] if from_hub and _is_id(dataset) else None,
            metrics=[name for name in scores if not name.endswith("loss")] or None,
            eval_results=_eval_results(scores, task, pipeline, dataset, from_hub) or None,
        ),
        brings_code=custom_code and not adapter_base,
    )  # fmt: skip


def write_seeds_card(
    folder: str | os.PathLike,
    *,
    task: str,
    pipeline: str,
    summary: Mapping[str, Any],
    facts: Mapping[str, Any],
    base_model: str | None,
    figure: str | None = None,
) -> Path:
    """Writes README.md into the folder that holds the runs of several seeds.

    Args:
        summary (`dict`): what `summarise_seeds` returned.
        task, pipeline, facts, base_model, figure: as in `write_task_card`.
    """
    seeds = ", ".join(map(str, summary["seeds"]))
    results = [
        summary_table(summary),
        "Mean and standard deviation over seeds, after the last step: nothing is chosen among the seeds.",
        *([] if figure is None else [f"![The scores of the seeds]({figure})"]),
    ]
    return write_card(
        folder,
        opening=f"A model for {_task(task, pipeline)}, {_beginning(base_model)}, {len(summary['seeds'])} times with the "
        f"seeds {seeds}: the folder of each holds a model and its card.",
        usage=None,
        sections={"Results": "\n\n".join(results), "Training": facts_table(facts)},
        metadata=dict(pipeline_tag=pipeline, tags=["hf_deberta_ext"], base_model=_hub_id(base_model)),
    )


def _task(task: str, pipeline: str) -> str:
    return pipeline if task == pipeline else f"{task} ({pipeline})"


def _beginning(base_model: str | None) -> str:
    return "trained from random weights" if base_model is None else f"fine-tuned from {shown_source(base_model)}"


def _hub_id(base_model: str | None) -> str | None:
    _, base_id = base_model_names(base_model)
    return base_id if base_id is not None and _is_id(base_id) else None


def _is_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None


def _eval_results(scores: Mapping[str, float], task: str, pipeline: str, dataset: str, from_hub: bool) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=pipeline, dataset_type=dataset if from_hub and _is_id(dataset) else "text", dataset_name=task,
            dataset_split="validation", metric_type=name, metric_value=round(value, 4),
        )
        for name, value in scores.items()
        if not name.endswith("loss")
    ]  # fmt: skip


def _results_table(scores: Mapping[str, float]) -> str:
    lines = ["| metric | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {value:.4f} |" for name, value in scores.items())])

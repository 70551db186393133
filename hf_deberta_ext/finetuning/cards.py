# SPDX-License-Identifier: Apache-2.0
"""Model cards of fine-tuned models: how to use them, what was measured, how they were trained."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..publishing.card import base_model_names, shown_number, shown_source, write_card
from ..publishing.card_metadata import as_list, is_hub_id, one_or_list
from ..publishing.loading_code import AUTO_MODELS, loading_code
from ..publishing.results import (
    eval_results,
    examples_sentence,
    is_score,
    measured_metrics,
    number_of_examples,
    results_table,
)

__all__ = ["TaskFacts", "summarise_seeds", "summary_table", "task_limits", "write_seeds_card", "write_task_card"]

# What text classifiers are tried on: by task where its texts have a form of their own, or else by their columns.
TEXTS = {
    "multirc": ("She sat on the bank of the river.", "Where did she sit? On the bank."),
    "record": ("Ann and Mary met at the river.", "Mary saw Ann there."),
    "wic": ("bank: She sat on the bank of the river.", "He went to the bank for a loan."),
    "wsc": ("Mary saw # Ann # , and * she * waved .",),
    ("sentence1", "sentence2"): ("She sat by the river.", "She was sitting beside the river."),
    ("premise", "hypothesis"): ("She sat on the bank of the river.", "She was near water."),
    ("question1", "question2"): ("Where did she sit?", "What did she sit on?"),
    ("question", "sentence"): ("Where did she sit?", "She sat on the bank of the river."),
    ("question", "passage"): ("Did she sit?", "She sat on the bank of the river."),
}
# Of data sets on the Hub, as their cards say.
DATASET_LANGUAGES = {
    "allenai/swag": "en", "aps/super_glue": "en", "clue/clue": "zh", "ehovy/race": "en", "eriktks/conll2003": "en",
    "jaredfern/codah": "en", "leondz/wnut_17": "en", "nyu-mll/glue": "en", "rajpurkar/squad": "en",
    "rajpurkar/squad_v2": "en",
}  # fmt: skip
# Below so many examples the chance of the sample is larger than most differences that people report.
FEW = 1000


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What the card of a run and that of several seeds have in common.

    Args:
        task (`str`): its name, "sst2".
        pipeline (`str`): the Hub's name of the kind of task.
        dataset (`str`): Hub id, if `from_hub`, or names of files.
        sets (`dict`): (configuration, split) on the Hub of each evaluation set, "" for the main one.
        training (`dict`): rows of the table of data and recipe; a value is text, a number, a list or a dictionary of these.
        hardware (`dict`): rows of the table of hardware and time.
        base_model (`str`, *optional*): the checkpoint that was fine-tuned, a Hub id or a folder, of which the card has the
            name only; None = random weights.
        base_revision (`str`, *optional*): of it on the Hub.
        adapter_base (`str`, *optional*): the model that the adapter (LoRA) in the folder is for; None = a whole model.
        custom_code (`bool`): the model needs the code in its folder.
        text_columns (`list[str]`): of a text classifier: one, or two for pairs.
        problem_type (`str`, *optional*): of a text classifier.
        language (`str` or `list[str]`, *optional*): ISO codes; None = those of the data set, if they are known.
        license (`str`, *optional*): the Hub's name of it.
    """

    task: str
    pipeline: str
    dataset: str
    from_hub: bool = False
    sets: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    base_model: str | None = None
    base_revision: str | None = None
    adapter_base: str | None = None
    custom_code: bool = False
    text_columns: Sequence[str] = ()
    problem_type: str | None = None
    language: str | Sequence[str] | None = None
    license: str | None = None

    @property
    def dataset_id(self) -> str | None:
        """The data's id on the Hub, or None."""
        return self.dataset if self.from_hub and is_hub_id(self.dataset) else None

    @property
    def languages(self) -> list[str]:
        """Those that were given, or those of the data set."""
        return as_list(self.language) or as_list(DATASET_LANGUAGES.get(self.dataset_id or ""))


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
    facts: TaskFacts,
    *,
    metrics: Mapping[str, Any],
    model: str,
    parameters: int,
    trained: int,
    evaluated_on: str | None = None,
    limits: Sequence[str] = (),
    figure: str | None = None,
) -> Path:
    """Writes README.md, the model card that the Hub shows, into the folder of a fine-tuned model.

    Args:
        metrics (`dict`): what was measured, "eval_accuracy" and the like.
        model (`str`): name of the model's class.
        parameters, trained (`int`): how many the model has, and how many of them were trained.
        evaluated_on (`str`, *optional*): names of the files that `metrics` are of; None = those of the data set.
        limits (`list[str]`): sentences, see `task_limits`.
        figure (`str`, *optional*): file of the curves.
    """
    measured, results = measured_metrics(metrics), ["Nothing was measured."]
    if measured:
        on = evaluated_on or f"the validation data of {facts.dataset}"
        results = [results_table(measured), " ".join([f"Measured on {on}.", *examples_sentence(metrics)])]
    size = f"It has {shown_number(parameters)} parameters."
    if facts.adapter_base:
        size += f" {shown_number(trained)} of them were trained (low-rank adapters and the head)."
    return _write_card(
        folder,
        facts,
        opening=f"{model} for {_task(facts)}, {_beginning(facts)}, with hf_deberta_ext and\ntransformers' Trainer. {size}",
        repo=Path(folder).resolve().name,
        results=[*results, *_figure("Losses and metrics during the training", figure)],
        limits=limits,
        measured=measured,
    )


def write_seeds_card(
    folder: str | os.PathLike,
    facts: TaskFacts,
    *,
    summary: Mapping[str, Any],
    limits: Sequence[str] = (),
    figure: str | None = None,
) -> Path:
    """Writes README.md into the folder that holds the runs of several seeds, each in a folder of its own, seed-N.

    Args:
        summary (`dict`): what `summarise_seeds` returned.
        limits, figure: as in `write_task_card`.
    """
    seeds, results = summary["seeds"], ["Nothing was measured."]
    if len(summary) > 1:
        results = [summary_table(summary), "Mean and standard deviation over seeds: nothing is chosen among the seeds."]
    times = f"{len(seeds)} times with the seeds" if len(seeds) > 1 else "once, with the seed"
    return _write_card(
        folder,
        facts,
        opening=f"A model for {_task(facts)}, {_beginning(facts)}, {times} {', '.join(map(str, seeds))}:\n"
        "the folder of each seed holds a model and its card.",
        repo=f"{Path(folder).resolve().name}/seed-{seeds[0]}",
        results=[*results, *_figure("The scores of the seeds", figure)],
        limits=limits,
        measured={name.removeprefix("eval_"): part["mean"] for name, part in summary.items() if name.startswith("eval_")},
        note=f"mean of {len(seeds)} seeds" if len(seeds) > 1 else None,
    )


def _write_card(
    folder: str | os.PathLike,
    facts: TaskFacts,
    *,
    opening: str,
    repo: str,
    results: Sequence[str],
    limits: Sequence[str],
    measured: Mapping[str, float],
    note: str | None = None,
) -> Path:
    """
    Args:
        repo (`str`): the folder that the code of the card loads.
        measured (`dict`): metrics for the model index, and `note` behind their names.
    """
    _, base_id = base_model_names(facts.base_model)
    index = eval_results(
        measured, task_type=facts.pipeline, dataset=facts.dataset_id, dataset_name=facts.task, sets=facts.sets, note=note
    )
    texts = TEXTS.get(facts.task) or TEXTS.get((*facts.text_columns,))
    return write_card(
        folder,
        opening=opening,
        load=loading_code(
            facts.pipeline if facts.pipeline in AUTO_MODELS else "encoder", repo, custom_code=facts.custom_code,
            texts=texts or ("A text.", "Another text.")[: max(1, len(facts.text_columns))],
            problem_type=facts.problem_type, adapter_base=facts.adapter_base, base_revision=facts.base_revision,
        ),
        brings_code=facts.custom_code,
        results="\n\n".join(results),
        training=facts.training,
        hardware=facts.hardware,
        limits=limits,
        metadata=dict(
            language=one_or_list(facts.languages), license=facts.license,
            library_name="peft" if facts.adapter_base else "transformers", pipeline_tag=facts.pipeline,
            tags=["deberta", "hf_deberta_ext", *(["lora"] if facts.adapter_base else [])],
            base_model=base_id if is_hub_id(base_id) else None,
            datasets=None if facts.dataset_id is None else [facts.dataset_id],
            metrics=[*dict.fromkeys(result.metric_type for result in index)] or None, eval_results=index or None,
        ),
    )  # fmt: skip


def task_limits(
    facts: TaskFacts,
    *,
    metrics: Mapping[str, Any],
    measured_on: str,
    longest: int | None = None,
    seeds: Sequence[int] = (),
    chosen: bool = False,
    seen: bool = False,
    train_samples: int | None = None,
    eval_samples: int | None = None,
) -> list[str]:
    """What a card says of where a model ends, as far as the run knows it.

    Args:
        metrics (`dict`): what was measured, "eval_accuracy" and the like.
        measured_on (`str`): the data that they are of.
        longest (`int`, *optional*): tokens of the longest input of the training.
        seeds (`list[int]`): of the training.
        chosen (`bool`): the best of several checkpoints was taken, by the data that the results are of.
        seen (`bool`): a file that was measured on was trained on, too.
        train_samples, eval_samples (`int`, *optional*): only the first so many examples were taken.
    """
    limits, measured, counts = [], measured_metrics(metrics), number_of_examples(metrics)
    if facts.adapter_base:
        limits.append("The folder holds an adapter and a head: nothing works without the model that they were trained on.")
    if longest:
        inputs = {
            "question-answering": f"windows of at most {longest} tokens: longer texts are read in several",
            "multiple-choice": f"choices of at most {longest} tokens, context and question included: longer contexts were "
            "cut, or did not occur",
        }.get(facts.pipeline, f"inputs of at most {longest} tokens: longer ones were cut, or did not occur")
        limits.append(f"It was trained on {inputs}.")
    if train_samples:
        limits.append(f"It was trained on the first {train_samples:,} examples of the data alone.")
    if len(seeds) == 1:
        limits.append(
            f"It is one run, with the seed {seeds[0]}: how much the results differ from seed to seed is not known."
        )
    if measured:
        first = f", the first {eval_samples:,} examples of each set," if eval_samples else ""
        limits.append(f"It was measured on {measured_on}{first} and nothing else: other texts may be harder.")
        if (few := min(counts.values(), default=FEW)) < FEW:
            limits.append(f"{few} examples are few: small differences between models are chance there.")
        if seen:
            limits.append("What it was measured on it was trained on, too: the results say nothing of other texts.")
        if chosen:
            limits.append(
                "The best of several checkpoints was chosen on the data of the results, which are too good for it."
            )
        if not all(map(is_score, (name for name in measured if not name.endswith("loss")))):
            limits.append("Scores called best are at the threshold that is best on this very data.")
    else:
        limits.append("Nothing was measured: how good it is is not known.")
    if facts.languages:
        limits.append(f"The data is in {', '.join(facts.languages)}: nothing is known of other languages.")
    if facts.base_model is None:
        limits.append("It was trained from random weights, without pre-training.")
    else:
        base = shown_source(facts.base_model)
        limits.append(f"What the model that it began as ({base}) does not know, or has learned wrongly, stays.")
    return limits


def _task(facts: TaskFacts) -> str:
    return facts.pipeline if facts.task == facts.pipeline else f"{facts.task} ({facts.pipeline})"


def _beginning(facts: TaskFacts) -> str:
    base = facts.base_model
    return "trained from random weights" if base is None else f"fine-tuned from {shown_source(base)}"


def _figure(caption: str, file: str | None) -> list[str]:
    return [] if file is None else [f"![{caption}]({file})"]

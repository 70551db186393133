# SPDX-License-Identifier: Apache-2.0
"""What a run has measured: which numbers tell how good a model is, as a table, and for the metadata of its card."""

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "eval_results",
    "examples_sentence",
    "is_score",
    "measured_metrics",
    "number_of_examples",
    "results_table",
    "set_names",
]

# What Trainer measures beside the metrics of a task, and numbers of examples and words.
NO_METRIC = re.compile(
    r"(runtime|.*_per_second|samples|epoch|model_preparation_time|jit_compilation_time|mem_.*|(.*_)?(total|number|targets))"
)
# What the Hub knows, also of one kind of entity, of one group of examples or averaged in some way: PER_f1, macro_f1.
METRIC = re.compile(r"(?:.*_)?(accuracy|f1|precision|recall)")
# A score at the threshold that is best on the very data, and that threshold.
AT_BEST = re.compile(r"(.*_)?best_.*|.*_thresh")


def set_names(metrics: Mapping[str, Any], stem: str = "eval") -> list[str]:
    """Names of the evaluation sets, "" for the main one: of each the number of examples is among the metrics."""
    pattern = re.compile(rf"{stem}_(?:(.+)_)?samples")
    return [match[1] or "" for match in map(pattern.fullmatch, metrics) if match]


def number_of_examples(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, int]:
    """How many examples were measured on, by the name of the set."""
    return {name: metrics[f"{stem}_{name}_samples" if name else f"{stem}_samples"] for name in set_names(metrics, stem)}


def measured_metrics(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, float]:
    """Those that tell how good a model is, without speeds and counts, named without `stem`; losses last."""
    named = {name.removeprefix(f"{stem}_"): value for name, value in metrics.items() if name.startswith(f"{stem}_")}
    measured = {
        name: value
        for name, value in named.items()
        if isinstance(value, (int, float))
        and not any(NO_METRIC.fullmatch(name.removeprefix(f"{part}_")) for part in ("", *set_names(metrics, stem)))
    }
    # Losses behind what people compare.
    return dict(sorted(measured.items(), key=lambda item: item[0].endswith("loss")))


def examples_sentence(metrics: Mapping[str, Any]) -> list[str]:
    """How many examples were measured on, in words; nothing where it is not known."""
    counts = number_of_examples(metrics)
    numbers = ", ".join(f"{count:,}{f' ({name})' if name else ''}" for name, count in counts.items())
    return [f"Examples: {numbers}."] if counts else []


def is_score(name: str) -> bool:
    """Whether models can be compared by a measured metric: it is no loss, no threshold and no score at the best one."""
    return not name.endswith("loss") and AT_BEST.fullmatch(name) is None


def results_table(measured: Mapping[str, float]) -> str:
    """Markdown with a row for each metric."""
    lines = ["| metric | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {value:.4f} |" for name, value in measured.items())])


def eval_results(
    measured: Mapping[str, float],
    *,
    task_type: str,
    task_name: str | None = None,
    dataset: str | None,
    dataset_name: str,
    sets: Mapping[str, tuple[str | None, str | None]],
    note: str | None = None,
) -> list[Any]:
    """`huggingface_hub.EvalResult`s of the scores among the metrics, for the model index of a card.

    Args:
        measured (`dict`): by name, that of its evaluation set in front: "accuracy", "mm_accuracy".
        dataset (`str`, *optional*): its id on the Hub; None for other texts, whose type on the Hub is "text".
        sets (`dict`): (configuration, split) on the Hub of each evaluation set, "" for the main one.
        note (`str`, *optional*): what a value is, behind the metric's name: "mean of 3 seeds".
    """
    from huggingface_hub import EvalResult

    results = []
    for name, value in measured.items():
        if not is_score(name):
            continue
        own = next((part for part in sets if part and name.startswith(f"{part}_")), "")
        metric = name.removeprefix(f"{own}_") if own else name
        metric = match[1] if (match := METRIC.fullmatch(metric)) else metric
        config, split = sets.get(own, (None, "validation"))
        named = name if name != metric else None
        results.append(
            EvalResult(
                task_type=task_type, task_name=task_name, dataset_type=dataset or "text", dataset_name=dataset_name,
                dataset_config=config, dataset_split=split, metric_type=metric, metric_value=round(value, 4),
                metric_name=f"{named or metric} ({note})" if note else named,
            )
        )  # fmt: skip
    return results

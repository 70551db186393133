# SPDX-License-Identifier: Apache-2.0
"""Results of a run: the metrics that compare models, as tables in Markdown and as metadata of a card."""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "MAX_PERPLEXITY", "eval_results", "is_score", "learned_nothing", "markdown_table", "measured_metrics",
    "number_of_examples",
    "objectives_table", "replaced_token_table", "results_table", "summarise_seeds", "summary_table",
]  # fmt: skip

# Stands for all that are larger, of models that know less than nothing.
MAX_PERPLEXITY = 1e6
# Measurements of Trainer beside the metrics of a task, and numbers of examples and words.
NO_METRIC = re.compile(
    r"(runtime|.*_per_second|samples|epoch|model_preparation_time|jit_compilation_time|mem_.*|(.*_)?(total|number|targets))"
)
# Metrics of the Hub, also of one kind of entity, of one group of examples or averaged in some way: PER_f1, macro_f1.
METRIC = re.compile(r"(?:.*_)?(accuracy|f1|precision|recall)")
# A score at the threshold that is best on the very data, and that threshold.
AT_BEST = re.compile(r"(.*_)?best_.*|.*_thresh")


def number_of_examples(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, int]:
    """Examples of each evaluation set by its name, "" for the main one."""
    pattern = re.compile(rf"{stem}_(?:(.+)_)?samples")
    return {match[1] or "": metrics[match[0]] for match in map(pattern.fullmatch, metrics) if match}


def measured_metrics(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, float]:
    """Metrics without speeds and counts, named without `stem`; losses last."""
    metrics_of_stem = {
        name.removeprefix(f"{stem}_"): value for name, value in metrics.items() if name.startswith(f"{stem}_")
    }
    sets = ("", *number_of_examples(metrics, stem))
    measured = {
        name: value
        for name, value in metrics_of_stem.items()
        if isinstance(value, (int, float))
        and not any(NO_METRIC.fullmatch(name.removeprefix(f"{prefix}_")) for prefix in sets)
    }
    return dict(sorted(measured.items(), key=lambda item: item[0].endswith("loss")))


def is_score(name: str) -> bool:
    """True for a metric by which models can be compared: no loss, no threshold and no score at the best one."""
    return not name.endswith("loss") and AT_BEST.fullmatch(name) is None


def eval_results(
    measured: Mapping[str, float],
    *,
    task_type: str,
    task_name: str | None = None,
    dataset: str | None,
    dataset_name: str,
    sets: Mapping[str, Sequence[str | None]],
    note: str | None = None,
) -> list[Any]:
    """`huggingface_hub.EvalResult`s of the scores among the metrics, for the model index of a card.

    Args:
        measured (`dict`): by name, that of its evaluation set in front: "accuracy", "mm_accuracy".
        dataset (`str`, *optional*): its id on the Hub; None for other texts, whose type on the Hub is "text".
        sets (`dict`): (configuration, split) on the Hub of each evaluation set, "" for the main one.
        note (`str`, *optional*): for every value, behind the metric's name: "mean of 3 seeds".
    """
    from huggingface_hub import EvalResult

    results = []
    for name, value in measured.items():
        if not is_score(name) or shown_metric(name, value).startswith(">"):
            continue
        own_set = next((prefix for prefix in sets if prefix and name.startswith(f"{prefix}_")), "")
        metric = name.removeprefix(f"{own_set}_") if own_set else name
        metric = match[1] if (match := METRIC.fullmatch(metric)) else metric
        config, split = sets.get(own_set, (None, "validation"))
        full_name = name if name != metric else None
        results.append(
            EvalResult(
                task_type=task_type, task_name=task_name, dataset_type=dataset or "text", dataset_name=dataset_name,
                dataset_config=config, dataset_split=split, metric_type=metric, metric_value=round(value, 4),
                metric_name=f"{full_name or metric} ({note})" if note else full_name,
            )
        )  # fmt: skip
    return results


def summarise_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation (None for one seed) and values, in the order of the seeds, of each metric that all have.

    Args:
        results (`dict[int, dict]`): all_results.json by seed.
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


def shown_metric(name: str, value: float, digits: int = 4) -> str:
    """A metric with so many digits behind the point, and never long."""
    if name.endswith("perplexity") and value >= MAX_PERPLEXITY:
        return "> 1e6"
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def markdown_table(*rows: Sequence[str]) -> str:
    """A table of rows of cells, the first of which is its head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *others))


def results_table(measured: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """A row for each metric, with a column for each baseline {"majority class": {"accuracy": ...}}."""
    rows = [("metric", "value", *(baselines or ()))]
    for name, value in measured.items():
        cells = [value, *(scores.get(name) for scores in (baselines or {}).values())]
        rows.append((name, *("" if cell is None else shown_metric(name, cell) for cell in cells)))
    return markdown_table(*rows)


def summary_table(summary: Mapping[str, Any]) -> str:
    """The result of `summarise_seeds`, a row for each metric, with a column for each baseline under "baselines"."""
    baselines = summary.get("baselines", {})
    rows = [("metric", "mean", "standard deviation", *(f"seed {seed}" for seed in summary["seeds"]), *baselines)]
    for name, metric in summary.items():
        if name not in ("seeds", "baselines"):
            cells = [metric["mean"], metric["standard_deviation"], *metric["values"]]
            cells += [scores.get(name.removeprefix("eval_")) for scores in baselines.values()]
            rows.append((name, *("" if cell is None else shown_metric(name, cell) for cell in cells)))
    return markdown_table(*rows)


def objectives_table(metrics: Mapping[str, float], objectives: Mapping[str, str]) -> str:
    """The result of `PretrainingTrainer.evaluate`, a row for each objective.

    Args:
        objectives (`dict[str, str]`): name in the metrics -> title.
    """
    columns = ("loss", "perplexity", "accuracy", "targets")
    rows = [(title, *metric_cells(metrics, name, columns)) for name, title in objectives.items()]
    return markdown_table(("objective", *columns), *rows)


def replaced_token_table(metrics: Mapping[str, float]) -> str:
    """The result of `ReplacedTokenTrainer.evaluate`, a row for generator and discriminator."""
    columns = ("loss", "perplexity", "accuracy", "precision", "recall", "targets")
    inputs = {"generator": "masked tokens", "discriminator": "all tokens"}
    rows = [(f"{half}, {tokens}", *metric_cells(metrics, half, columns)) for half, tokens in inputs.items()]
    return markdown_table(("part", *columns), *rows)


def metric_cells(metrics: Mapping[str, float], prefix: str, names: Sequence[str]) -> list[str]:
    """Cells of a table for the metrics eval_PREFIX_NAME; those that are not there are empty."""
    cells = []
    for name in names:
        value = metrics.get(f"eval_{prefix}_{name}")
        if value is None:
            cells.append("")
        elif isinstance(value, int):
            cells.append(f"{value:,}")
        else:
            cells.append(shown_metric(name, value, 2 if name == "perplexity" else 4))
    return cells


def learned_nothing(metrics: Mapping[str, float]) -> bool:
    """True if the discriminator is no better than a guess that knows only the share of replaced tokens."""
    return metrics["eval_discriminator_loss"] > 0.99 * metrics["eval_discriminator_guess_loss"]

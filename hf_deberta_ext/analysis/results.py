# SPDX-License-Identifier: Apache-2.0
"""Select metrics from the results of a run, summarise them over seeds, and format them as Markdown tables."""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "is_score",
    "learned_nothing",
    "markdown_table",
    "measured_metrics",
    "number_of_examples",
    "objectives_table",
    "replaced_token_table",
    "results_table",
    "shown_metric",
    "summarise_seeds",
    "summary_table",
]

# Entries that are not metrics of a task: measurements of Trainer (times, speeds, memory) and numbers of examples and words.
NO_METRIC = re.compile(
    r"(runtime|.*_per_second|samples|epoch|model_preparation_time|jit_compilation_time|mem_.*|(.*_)?(total|number|targets))"
)
# Metrics such as best_f1, which use the threshold that is best on the evaluated data, and the threshold itself.
AT_BEST = re.compile(r"(.*_)?best_.*|.*_thresh")


def number_of_examples(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, int]:
    """Return {name of an evaluation set: number of examples} from metrics such as eval_mm_samples; "" = main set."""
    counts = {}
    for name, value in metrics.items():
        if match := re.fullmatch(rf"{stem}_(?:(.+)_)?samples", name):
            counts[match[1] or ""] = value
    return counts


def measured_metrics(metrics: Mapping[str, Any], stem: str = "eval") -> dict[str, float]:
    """Return the metrics with the prefix `stem`_, except speeds and counts, under their names without this prefix.

    Overall metrics such as f1 come first, then metrics of one class (PER_f1) or of another evaluation set (mm_f1),
    then losses."""
    sets = "|".join(map(re.escape, number_of_examples(metrics, stem)))
    measured = {}
    for full_name, value in metrics.items():
        name = full_name.removeprefix(f"{stem}_")
        plain = re.sub(rf"^({sets})_", "", name)
        if name != full_name and isinstance(value, (int, float)) and NO_METRIC.fullmatch(plain) is None:
            measured[name] = value
    overall = tuple(f"_{name}" for name in measured)
    return dict(sorted(measured.items(), key=lambda metric: (metric[0].endswith("loss"), metric[0].endswith(overall))))


def is_score(name: str) -> bool:
    """Return True for a metric that is suitable to compare models: not a loss, a threshold or a "best_..." score."""
    return not name.endswith("loss") and AT_BEST.fullmatch(name) is None


def summarise_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """For each metric that all runs have, compute mean, standard deviation (None for one seed) and list of values.

    Args:
        results (`dict[int, dict]`): seed -> contents of all_results.json of the run with this seed.
    """
    summary: dict[str, Any] = {"seeds": [*results]}
    for stem in ("eval", "predict"):
        runs = [measured_metrics(metrics, stem) for metrics in results.values()]
        for name in runs[0]:
            values = [run[name] for run in runs if name in run]
            if len(values) < len(runs):
                continue
            entry = {"mean": statistics.mean(values), "standard_deviation": None, "values": values}
            if len(values) > 1:
                entry["standard_deviation"] = statistics.stdev(values)
            summary[f"{stem}_{name}"] = entry
    return summary


def shown_metric(name: str, value: float | None, digits: int = 4) -> str:
    """Format a metric with `digits` decimals. None becomes "", and a perplexity of at least 1e6 becomes "> 1e6"."""
    if value is None:
        return ""
    if name.endswith("perplexity") and value >= 1e6:
        return "> 1e6"
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def markdown_table(*rows: Sequence[str]) -> str:
    """Return a Markdown table; the first row is the header."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *others))


def results_table(measured: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """Return a Markdown table with a row per metric, and columns for its value and for each baseline.

    Args:
        baselines (`dict`, *optional*): name of the baseline -> metrics, such as {"majority class": {"accuracy": ...}}."""
    baselines = baselines or {}
    rows = [("metric", "value", *baselines)]
    for name, value in measured.items():
        row = [name, shown_metric(name, value)]
        for scores in baselines.values():
            row.append(shown_metric(name, scores.get(name)))
        rows.append(row)
    return markdown_table(*rows)


def summary_table(summary: Mapping[str, Any]) -> str:
    """Format a result of `summarise_seeds` as a Markdown table with a row per metric.

    The columns are the mean, the standard deviation, each seed, and each entry of "baselines" if the result has this key.
    """
    baselines = summary.get("baselines", {})
    rows = [("metric", "mean", "standard deviation", *map("seed {}".format, summary["seeds"]), *baselines)]
    for name, metric in summary.items():
        if name in ("seeds", "baselines"):
            continue
        cells = [metric["mean"], metric["standard_deviation"], *metric["values"]]
        cells += [scores.get(name.removeprefix("eval_")) for scores in baselines.values()]
        rows.append((name, *(shown_metric(name, cell) for cell in cells)))
    return markdown_table(*rows)


def objectives_table(
    metrics: Mapping[str, float],
    objectives: Mapping[str, str],
    columns: Sequence[str] = ("loss", "perplexity", "accuracy", "targets"),
) -> str:
    """Return a Markdown table of the evaluation metrics of a pre-training run, with a row per objective.

    Args:
        objectives (`dict[str, str]`): NAME -> title of the row that shows "eval_NAME_loss" and the other metrics of NAME.
        columns: metrics to show; cells of missing metrics are empty."""
    rows = [("objective", *columns)]
    for prefix, title in objectives.items():
        cells = [title]
        for column in columns:
            value = metrics.get(f"eval_{prefix}_{column}")
            if isinstance(value, int):
                cells.append(f"{value:,}")
            else:
                cells.append(shown_metric(column, value, {"perplexity": 2}.get(column, 4)))
        rows.append(cells)
    return markdown_table(*rows)


def replaced_token_table(metrics: Mapping[str, float]) -> str:
    """Format the metrics of `ReplacedTokenTrainer.evaluate` as a Markdown table; rows are generator and discriminator."""
    parts = {"generator": "generator, masked tokens", "discriminator": "discriminator, all tokens"}
    return objectives_table(metrics, parts, ("loss", "perplexity", "accuracy", "precision", "recall", "targets"))


def learned_nothing(metrics: Mapping[str, float]) -> bool:
    """Return True if the discriminator is hardly better than a constant prediction.

    The constant prediction gives every token the same probability of being replaced: the share of tokens that are replaced.
    "Hardly better": a loss above 99 % of the loss of the constant prediction, or above 95 % with a recall below 1 %."""
    loss, guess = metrics["eval_discriminator_loss"], metrics["eval_discriminator_guess_loss"]
    return loss > 0.99 * guess or (loss > 0.95 * guess and metrics["eval_discriminator_recall"] < 0.01)

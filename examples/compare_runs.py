# SPDX-License-Identifier: Apache-2.0
"""Draws what several runs logged into one figure, and puts their last evaluations into one table.

    python examples/compare_runs.py --runs "EMD=runs/emd" "no EMD=runs/plain" \\
        --metrics eval_mlm_perplexity eval_mlm_accuracy --output_dir comparison

Several folders with one name are seeds: the table gives mean and standard deviation, and the difference in the first metric
from the first run with the p value of Student's t test; the figure has the first of them. Writes
comparison.png, comparison.md and comparison.json into the output folder, and for runs of run_rtd.py
embedding_similarity.png: how alike the word embeddings of generator and discriminator are at the end.
"""

import argparse
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

from scipy.stats import ttest_ind

from hf_deberta_ext.analysis.plots import plot_curves, plot_embedding_similarity
from hf_deberta_ext.publishing.results import markdown_table
from hf_deberta_ext.training.user_errors import ExitOnUserError


def parse_args(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="NAME=FOLDER, output folders of Trainer scripts")
    parser.add_argument("--metrics", nargs="+", default=["eval_loss"], help="names in the log; a panel and a column each")
    parser.add_argument("--output_dir", type=Path, default=Path("comparison"), help="folder to write to")
    return parser.parse_args(argv)


def read_runs(runs: list[str]) -> dict[str, list[list[dict]]]:
    """The log of each folder, by the name of the run.

    Raises:
        ValueError: an entry is not NAME=FOLDER, or a folder has no trainer_state.json.
    """
    histories = defaultdict(list)
    for entry in runs:
        name, equals, folder = entry.partition("=")
        file = Path(folder, "trainer_state.json")
        if not equals:
            raise ValueError(f"--runs takes NAME=FOLDER, got {entry!r}")
        if not file.is_file():
            raise ValueError(f"{file} is not there: {folder} is no output folder of a finished run")
        histories[name].append(json.loads(file.read_text(encoding="utf-8"))["log_history"])
    return dict(histories)


def last_values(name: str, history: list[dict], metric: str) -> tuple[int, float]:
    """The step and the value of the last entry that has the metric."""
    found = [(entry["step"], entry[metric]) for entry in history if metric in entry]
    if not found:
        logged = sorted({key for entry in history for key in entry})
        raise ValueError(f"the run {name} did not log {metric}; it logged {', '.join(logged)}")
    return found[-1]


def check_objectives(histories: dict[str, list[list[dict]]], metrics: list[str]):
    """Refuse to compare sums of losses of different objectives.

    Raises:
        ValueError: "loss" or "eval_loss" is asked for, and the runs log different terms of it.
    """
    logged = {name: {key for entry in logs[0] for key in entry} for name, logs in histories.items()}
    parts = {name: sorted(key for key in keys if re.fullmatch("eval_.+_loss", key)) for name, keys in logged.items()}
    if {"loss", "eval_loss"} & {*metrics} and len({*map(tuple, parts.values())}) > 1:
        shown = "; ".join(f"{name}: {', '.join(keys) or 'a loss alone'}" for name, keys in parts.items())
        common = sorted(set.intersection(*logged.values()) - {"loss", "eval_loss"})
        metric = next((key for key in common if key.startswith("eval_") and key.endswith(("_loss", "_accuracy"))), None)
        advice = f"give --metrics {metric}" if metric else "they have no measure of quality in common"
        raise ValueError(f"the losses of these runs are sums of different objectives ({shown}): {advice}")


def summarise(histories: dict[str, list[list[dict]]], metrics: list[str]) -> dict:
    """{run: {metric: {mean, standard_deviation, values, steps}}}"""
    summary = {}
    for name, logs in histories.items():
        summary[name] = {}
        for metric in metrics:
            steps, values = zip(*(last_values(name, log, metric) for log in logs), strict=True)
            deviation = statistics.stdev(values) if len(values) > 1 else None
            summary[name][metric] = dict(
                mean=statistics.mean(values), standard_deviation=deviation, values=values, steps=steps
            )
    return summary


def similarities(firsts: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """{run: {"generator": x, "discriminator": y}}, of the runs that logged it."""
    found = {}
    for name, history in firsts.items():
        for part in ("generator", "discriminator"):
            values = [entry[f"eval_{part}_similarity"] for entry in history if f"eval_{part}_similarity" in entry]
            if values:
                found.setdefault(name, {})[part] = values[-1]
    return found


def table(summary: dict, metrics: list[str]) -> str:
    """A row for each run; where there are seeds, with its difference in the first metric from the first run."""
    baseline = next(iter(summary))
    expected = summary[baseline][metrics[0]]["values"]
    compared = len(summary) > 1 and any(len(row[metrics[0]]["values"]) > 1 for row in summary.values())
    rows = [("run", "seeds", "steps", *metrics, *([f"{metrics[0]}: difference from {baseline}"] if compared else []))]
    for name, row in summary.items():
        first = row[metrics[0]]
        cells = []
        for metric in metrics:
            entry = row[metric]
            deviation = entry["standard_deviation"]
            cells.append(f"{entry['mean']:.4g}" + ("" if deviation is None else f" ± {deviation:.2g}"))
        steps = ", ".join(map(str, sorted({*first["steps"]})))
        if compared:
            cells.append("" if name == baseline else difference(first["values"], expected, "+.2g"))
        rows.append((name, str(len(first["values"])), steps, *cells))
    return markdown_table(*rows)


def difference(values: list[float], first: list[float], form: str = "+.2f") -> str:
    """Difference of means, and the p value of Student's t test (equal variances, two-sided)."""
    gap = format(statistics.mean(values) - statistics.mean(first), form)
    if min(len(values), len(first)) < 2:
        return f"{gap} (one seed: noise unknown)"
    if len({*values}) == len({*first}) == 1:
        return f"{gap} (seeds do not differ)"
    return f"{gap} (p = {ttest_ind(values, first).pvalue:.2g})"


def main(argv=None):
    args = parse_args(argv)
    with ExitOnUserError():
        histories = read_runs(args.runs)
        summary = summarise(histories, args.metrics)
        check_objectives(histories, args.metrics)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    titles = {
        metric: metric.removeprefix("eval_").replace("_", " ") if len(args.metrics) > 1 else "" for metric in args.metrics
    }
    panels = [(titles[metric], [*histories], [metric]) for metric in args.metrics]
    logarithmic = [metric for metric in args.metrics if metric.endswith("perplexity")]
    firsts = {name: logs[0] for name, logs in histories.items()}
    plot_curves(firsts, args.output_dir / "comparison.png", panels=panels, log_scale=logarithmic)
    if similar := similarities(firsts):
        plot_embedding_similarity(similar, args.output_dir / "embedding_similarity.png")
    text = table(summary, args.metrics)
    (args.output_dir / "comparison.md").write_text(text + "\n", encoding="utf-8")
    (args.output_dir / "comparison.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

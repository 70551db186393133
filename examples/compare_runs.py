# SPDX-License-Identifier: Apache-2.0
"""Draw the logs of several runs in one figure, and compare their last evaluations in one table.

    python examples/compare_runs.py --runs "EMD=runs/emd" "no EMD=runs/plain" \\
        --metrics eval_mlm_perplexity eval_mlm_accuracy --output_dir comparison

Several folders with the same name are seeds of one run. The figure then shows the first seed, and the table has mean and
standard deviation and, for the first metric, the difference from the first run, with the p value of Student's t
test. Writes comparison.png, comparison.md and comparison.json into the output folder. For runs of run_rtd.py, also writes
embedding_similarity.png, the final similarity of the word embeddings in generator and discriminator.
"""

import argparse
import json
import re
import statistics
from pathlib import Path

from scipy.stats import ttest_ind

from hf_deberta_ext.analysis.plots import plot_curves, plot_embedding_similarity
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.training.user_errors import ExitOnUserError


def parse_args(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="NAME=FOLDER, the output folder of a run")
    parser.add_argument(
        "--metrics", nargs="+", default=["eval_loss"], help="names in the log, each with a panel and a column"
    )
    parser.add_argument("--output_dir", type=Path, default=Path("comparison"), help="folder to write to")
    return parser.parse_args(argv)


def read_runs(runs: list[str]) -> dict[str, list[list[dict]]]:
    """Read the logs of the folders; return {name of the run: logs of its seeds}.

    Raises:
        ValueError: if an entry is not NAME=FOLDER, or a folder has no trainer_state.json.
    """
    histories: dict[str, list[list[dict]]] = {}
    for entry in runs:
        name, equals, folder = entry.partition("=")
        file = Path(folder, "trainer_state.json")
        if not equals:
            raise ValueError(f"--runs must be NAME=FOLDER, got {entry!r}")
        if not file.is_file():
            raise ValueError(f"there is no {file}: {folder} is not the output folder of a finished run")
        histories.setdefault(name, []).append(json.loads(file.read_text(encoding="utf-8"))["log_history"])
    return histories


def last_entry(history: list[dict], metric: str) -> dict | None:
    """Return the last entry that has the metric; None if no entry has it."""
    for entry in reversed(history):
        if metric in entry:
            return entry
    return None


def check_objectives(histories: dict[str, list[list[dict]]]):
    """Check that the compared losses are sums of the same objectives.

    Raises:
        ValueError: if the runs log different terms of the loss.
    """
    terms = {}
    for name, (history, *_) in histories.items():
        logged = {key for entry in history for key in entry if re.fullmatch("eval_.+_loss", key)}
        terms[name] = ", ".join(sorted(logged)) or "only a loss"
    if len({*terms.values()}) > 1:
        shown = "; ".join(f"{name}: {losses}" for name, losses in terms.items())
        raise ValueError(f"the losses of these runs are sums of different objectives ({shown}): choose different --metrics")


def summarise(histories: dict[str, list[list[dict]]], metrics: list[str]) -> dict:
    """Summarise the logs as {run: {metric: {mean, standard_deviation, values, steps}}}.

    Raises:
        ValueError: if a run did not log a metric.
    """
    summary: dict[str, dict[str, dict]] = {}
    for name, logs in histories.items():
        summary[name] = {}
        for metric in metrics:
            entries = [last_entry(log, metric) for log in logs]
            if None in entries:
                raise ValueError(f"the run {name} did not log {metric}; its last entry is {logs[0][-1]}")
            values = [entry[metric] for entry in entries]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            row = dict(mean=statistics.mean(values), standard_deviation=deviation, values=values)
            summary[name][metric] = row | dict(steps=[entry["step"] for entry in entries])
    return summary


def similarities(histories: dict[str, list[list[dict]]]) -> dict[str, dict[str, float]]:
    """Return {run: {"generator": x, "discriminator": y}}, the last similarities of word embeddings that the runs logged."""
    found: dict[str, dict[str, float]] = {}
    for name, (history, *_) in histories.items():
        for part in ("generator", "discriminator"):
            entry = last_entry(history, f"eval_{part}_similarity")
            if entry is not None:
                found.setdefault(name, {})[part] = entry[f"eval_{part}_similarity"]
    return found


def table(summary: dict, metrics: list[str]) -> str:
    """Return a table with a row for each run and, if there are several seeds, its difference from the first run in the
    first metric.
    """
    baseline = next(iter(summary))
    expected = summary[baseline][metrics[0]]["values"]
    has_seeds = any(len(row[metrics[0]]["values"]) > 1 for row in summary.values())
    titles = ["run", "seeds", "steps", *metrics]
    if has_seeds:
        titles.append(f"{metrics[0]}: difference from {baseline}")
    rows = [tuple(titles)]
    for name, row in summary.items():
        first = row[metrics[0]]
        cells = [name, str(len(first["values"])), ", ".join(map(str, sorted({*first["steps"]})))]
        for metric in metrics:
            cells.append(f"{row[metric]['mean']:.4g}")
            if row[metric]["standard_deviation"] is not None:
                cells[-1] += f" ± {row[metric]['standard_deviation']:.2g}"
        if has_seeds:
            cells.append("" if name == baseline else difference(first["values"], expected, "+.2g"))
        rows.append(tuple(cells))
    return markdown_table(*rows)


def difference(values: list[float], first: list[float], form: str = "+.2f") -> str:
    """Format the difference of means and the p value of Student's t test (equal variances, two-sided)."""
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
        if {"loss", "eval_loss"} & {*args.metrics}:
            check_objectives(histories)
    folder = args.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    panels = []
    for metric in args.metrics:
        title = metric.removeprefix("eval_").replace("_", " ") if len(args.metrics) > 1 else ""
        panels.append((title, [*histories], [metric]))
    logarithmic = [metric for metric in args.metrics if metric.endswith("perplexity")]
    firsts = {name: logs[0] for name, logs in histories.items()}
    plot_curves(firsts, folder / "comparison.png", panels=panels, log_scale=logarithmic)
    similar = similarities(histories)
    if similar:
        plot_embedding_similarity(similar, folder / "embedding_similarity.png")
    text = table(summary, args.metrics)
    (folder / "comparison.md").write_text(text + "\n", encoding="utf-8")
    (folder / "comparison.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

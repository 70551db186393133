# SPDX-License-Identifier: Apache-2.0
"""Fine-tune several checkpoints on text classification tasks with several seeds and learning rates, and compare their
scores with one another and with baselines without pre-training.

    python examples/compare_checkpoints.py --checkpoints "MLM=mlm" "GDES=gdes/discriminator" --random "untrained=mlm" \\
        --tasks sst2 mrpc stsb cola rte --data_folder glue --seeds 1 2 3 --learning_rates 1e-4 3e-4 5e-4 --output_dir scores

    python examples/compare_checkpoints.py --checkpoints "GDES=gdes/discriminator" "MLM=mlm" \\
        --train_file train.tsv --validation_file dev.tsv --text_columns sentence --label_column label \\
        --num_train_epochs 2 --learning_rate 2e-4 --max_train_samples 20000 --output_dir mine

Each checkpoint is fine-tuned as in run_glue.py, and all flags of run_glue.py are accepted (--max_steps, --recipe, ...).
Runs, models and cards are in output_dir/TASK/NAME. The scores are measured after the last epoch. If several learning rates
are tried, the table shows the rate with the best mean score on the validation data, then the mean scores of the other
rates. Batches contain rows of similar length. On a CPU, small models train faster with `--jobs 2`: two processes run at a
time, each with half of the threads.

Writes results.json after each checkpoint, then table.md and a figure for each task. Run the same command again to resume;
you can add checkpoints, tasks and rates, but other settings need another folder.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from compare_runs import difference

from hf_deberta_ext.analysis.plots import plot_comparison
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.files import replace_text
from hf_deberta_ext.finetuning.arguments import parse
from hf_deberta_ext.finetuning.loop import prepare, train_and_report
from hf_deberta_ext.finetuning.reports import PreparedRun
from hf_deberta_ext.finetuning.run_folders import is_finished
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData
from hf_deberta_ext.training.checkpoints import digest_of
from hf_deberta_ext.training.digests import json_digest
from hf_deberta_ext.training.folder_lock import unlock_folders
from hf_deberta_ext.training.user_errors import ExitOnUserError

# Defaults for run_glue.py's flags in this script.
DEFAULTS = (
    "--learning_rate 2e-5 --num_train_epochs 3 --warmup_steps 0.1 --weight_decay 0.01 --per_device_train_batch_size 32 "
    "--max_seq_length 128 --train_sampling_strategy group_by_length --eval_strategy epoch --save_strategy no"
).split()
# Small training sets, which need more than three epochs.
MORE_EPOCHS = dict.fromkeys(("cola", "mrpc", "rte", "stsb", "wnli"), ("--num_train_epochs", "10"))


class Run(NamedTuple):
    """Runs of one checkpoint on one task ("" if --tasks is not set) at one learning rate, with all seeds."""

    task: str
    name: str
    rate: str
    prepared: PreparedRun
    flags: list[str]


def main(argv: list[str] | None = None):
    more = "All flags of run_glue.py are accepted, see python examples/run_glue.py --help_all"
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False, epilog=more)
    add = parser.add_argument
    add("--checkpoints", nargs="+", default=[], help="NAME=FOLDER or NAME=HUB_ID; the first is the reference")
    add("--random", nargs="+", default=[], help="NAME=FOLDER: train a model with FOLDER's configuration from random weights")
    add("--tasks", nargs="+", default=[], help="GLUE tasks, instead of --task_name or files")
    add("--data_folder", type=Path, help="folder with TASK/train.* and TASK/validation.*, .tsv or .jsonl.gz (default: Hub)")
    add("--seeds", nargs="+", default=["1", "2", "3"], help="seeds of new weights, dropout and data order (default: 1 2 3)")
    add("--learning_rates", nargs="+", default=[], help="learning rates, each tried with all seeds")
    add("--jobs", type=int, default=1, help="number of processes, which share the threads (default: 1)")
    add("--output_dir", type=Path, required=True)
    args, flags = parser.parse_known_args(argv)
    with ExitOnUserError() as program:
        sources = read_sources(args)
        runs = []
        for task in args.tasks or [""]:
            task_flags = [*MORE_EPOCHS.get(task, ()), *flags]
            if task:
                task_flags += data_flags(task, args.data_folder)
            for name, source in sources.items():
                for rate in args.learning_rates or [""]:
                    run_flags = fine_tuning_flags(source, args, task_flags, args.output_dir / task / name, rate)
                    prepared = prepare_run(run_flags)
                    runs.append(Run(task, name, f"{prepared.args.learning_rate:g}", prepared, run_flags))
        file = args.output_dir / "results.json"
        results = earlier_results(file, sources, runs)
        program.show_traceback = True
        if args.jobs > 1:
            fine_tune_in_processes(runs, args.jobs)
        for task, name, rate, prepared, _ in runs:
            if task not in results["baselines"]:
                results["baselines"][task] = prepared.data.baselines
            # Fill the cache of this property: the digest of the data did not change, so the baselines did not change either.
            vars(prepared.data)["baselines"] = results["baselines"][task]
            results["scores"].setdefault(task, {}).setdefault(name, {})[rate] = train_and_report(prepared)
            replace_text(file, json.dumps(results, indent=2) + "\n")
        write_report(args.output_dir, results, runs)


def read_sources(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Read {name: {folder, random, fingerprint}} of --checkpoints and --random.

    Raises:
        ValueError: if there is no checkpoint, an entry is not NAME=FOLDER, or a name is repeated.
    """
    sources: dict[str, dict[str, Any]] = {}
    for option in ("checkpoints", "random"):
        for entry in getattr(args, option):
            name, equals, folder = entry.partition("=")
            if not (equals and name and folder) or Path(name).name != name:
                raise ValueError(f"--{option} must be NAME=FOLDER, got {entry!r}")
            if name in sources:
                raise ValueError(f"two checkpoints are named {name!r}: use a different name for each")
            files = []
            for pattern in ("config.json", "tokenizer.json", "spm.model", "*.safetensors"):
                files += Path(folder).glob(pattern)
            sources[name] = dict(folder=folder, random=option == "random", fingerprint=digest(files))
    if not sources:
        raise ValueError("nothing to fine-tune: pass --checkpoints NAME=FOLDER ...")
    return sources


def data_flags(task: str, folder: Path | None) -> list[str]:
    """Return run_glue.py's data flags for a task of --tasks."""
    flags = ["--task_name", task]
    if folder is not None:
        for split in ("train", "validation"):
            # MNLI's matched set comes before the mismatched one. A missing file raises an error when it is read.
            files = [*sorted(Path(folder, task).glob(f"{split}*.*")), Path(folder, task, f"{split}.jsonl")]
            flags += [f"--{split}_file", str(files[0])]
    return flags


def fine_tuning_flags(source: dict[str, Any], args: argparse.Namespace, flags: list[str], folder: Path, rate: str):
    """Return run_glue.py's flags that fine-tune a checkpoint."""
    argv = [*DEFAULTS, *flags, "--model_name_or_path", source["folder"]]
    if rate:
        folder = folder / f"rate-{rate}"
        argv += ["--learning_rate", rate]
    if source["random"]:
        argv.append("--from_scratch")
    argv += ["--output_dir", str(folder), "--do_train", "--do_eval"]
    return [*argv, "--seeds", *args.seeds, "--resume_from_checkpoint", "auto"]


def prepare_run(flags: list[str]) -> PreparedRun:
    """Read and check the data and the model of a fine-tuning run as run_glue.py does; the model is not kept."""
    prepared = prepare(TextClassificationData, *parse(flags, TextClassificationArguments, description=__doc__ or ""))
    return dataclasses.replace(prepared, model=None)


def fine_tune_in_processes(runs: Sequence[Run], jobs: int):
    """Train all seeds of the runs with run_glue.py, `jobs` processes at a time.

    Raises:
        ChildProcessError: if a process fails; it has printed the reason.
    """
    threads = max(1, torch.get_num_threads() // jobs)

    def fine_tune(number: int, run: Run):
        folder = Path(run.prepared.args.output_dir)
        if all(is_finished(folder / f"seed-{seed}") for seed in run.prepared.args.seeds):
            return
        # Each process locks its own folder.
        unlock_folders(folder)
        command = [sys.executable, Path(__file__).with_name("run_glue.py"), *run.flags]
        # The variables of tqdm give each process its own line on the terminal.
        settings = dict(TQDM_POSITION=str(number % jobs), TQDM_DESC=run.name, OMP_NUM_THREADS=str(threads))
        # The tables are printed here, in order.
        done = subprocess.run(command, env=os.environ | settings, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise ChildProcessError(f"fine-tuning {run.name} in {folder} ended with exit status {done.returncode}")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(fine_tune, range(len(runs)), runs))


def earlier_results(file: Path, sources: dict[str, dict[str, Any]], runs: list[Run]) -> dict[str, Any]:
    """Read results.json, or return empty results if it does not exist, and add the checkpoints to the results.

    Raises:
        ValueError: if the file was made from other data, or from other weights with the same name.
    """
    results = dict(data={}, checkpoints={}, baselines={}, scores={})
    if file.is_file():
        results |= json.loads(file.read_text(encoding="utf-8"))
    for task, _, _, prepared, _ in runs:
        data_args = prepared.data_args
        data = digest([Path(path.rpartition("=")[2]) for path in (*data_args.train_file, *data_args.validation_file)])
        if results["data"].setdefault(task, data) != data:
            raise ValueError(f"the data differ from the data of {file}: choose another --output_dir")
    for name, source in sources.items():
        if results["checkpoints"].get(name, source) != source:
            raise ValueError(
                f"{name!r} has other weights than its entry in {file}: rename the checkpoint, or choose another --output_dir"
            )
    results["checkpoints"] |= sources
    return results


def digest(files: list[Path]) -> str | None:
    """Return the digest of the contents of files; None without files, such as for a Hub id."""
    if not files:
        return None
    return json_digest([digest_of(file) for file in sorted(files)])


def write_report(folder: Path, results: dict[str, Any], runs: list[Run]):
    """Write table.md, with a row for each baseline and checkpoint of each task, and a figure for each task."""
    lines = [("task", "metrics", "classifier", "learning rate", "score", f"difference from {runs[0].name}")]
    for task in dict.fromkeys(run.task for run in runs):
        lines += task_rows(task, [run for run in runs if run.task == task], results, folder)
    text = markdown_table(*lines) + (
        f"\n\nPercent; mean ± standard deviation over the seeds {' '.join(map(str, runs[0].prepared.args.seeds))}, after "
        "the last epoch. If several learning rates were tried, the table shows the rate with the best mean score on these "
        "validation rows, then the mean scores of the other rates. The difference is in the metric of the figure. The "
        "p value (Student's t test, two-sided) only reflects variation across seeds, not the choice of the validation rows."
    )
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}")


def task_rows(task: str, runs: list[Run], results: dict[str, Any], folder: Path) -> list[tuple[str, ...]]:
    """Return the rows of a task, and draw its figure."""
    prepared, scores, baselines = runs[0].prepared, results["scores"][task], results["baselines"][task]
    # One cell has all metrics; the task's main metric selects the rate and is compared.
    metrics = [key for key in scores[runs[0].name][runs[0].rate] if key.startswith("eval_") and key != "eval_loss"]
    own = next(key for key in metrics if key.endswith(f"_{prepared.task.metric}"))
    titles = [key.removeprefix("eval_") for key in metrics]
    first_cells = (task or prepared.data.name, " / ".join(titles).replace("_", " "))
    rows = []
    compared: dict[str, list[float]] = {}
    for name in dict.fromkeys(run.name for run in runs):
        means = {run.rate: 100 * scores[name][run.rate][own]["mean"] for run in runs if run.name == name}
        best = max(means, key=means.__getitem__)
        others = ", ".join(f"{rate}: {mean:.2f}" for rate, mean in means.items() if rate != best)
        percent = {key: [100 * value for value in scores[name][best][key]["values"]] for key in metrics}
        compared[name] = percent[own]
        gap = difference(percent[own], compared[runs[0].name]) if len(compared) > 1 else ""
        cell = " / ".join(map(spread, percent.values()))
        rows.append((*first_cells, name, f"{best} ({others})" if others else best, cell, gap))
    first = statistics.mean(compared[runs[0].name])
    lines_across, baseline_rows = {}, []
    for name, values in baselines.items():
        lines_across[name] = 100 * values[own.removeprefix("eval_")]
        cell = " / ".join(f"{100 * values[title]:.2f}" for title in titles)
        baseline_rows.append((*first_cells, name, "", cell, f"{lines_across[name] - first:+.2f}"))
    label = f"{first_cells[0]}: {own.removeprefix('eval_').replace('_', ' ')} (%)"
    plot_comparison(compared, folder / f"{task or 'results'}.png", label=label, baselines=lines_across)
    return baseline_rows + rows


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()

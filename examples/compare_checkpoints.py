# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes several checkpoints on one task of text classification, with several seeds each, and compares their scores.

    python examples/compare_checkpoints.py --checkpoints "GDES=gdes/discriminator" "MLM=mlm" --random "untrained=mlm" \\
        --train_file train.tsv --validation_file dev.tsv --text_columns sentence --label_column label --seeds 1 2 3 \\
        --num_train_epochs 2 --learning_rate 2e-4 --max_train_samples 20000 --output_dir sst2

Each checkpoint is fine-tuned as by run_glue.py, all of whose flags are taken (--task_name, --recipe, ...): its runs, models
and cards are in output_dir/NAME. The scores are those after the last epoch: nothing is chosen on the validation data. Rows
of similar length are trained on together.

Writes results.json after each checkpoint, then table.md and results.png. The same command again goes on where it was
stopped; checkpoints can be added, and other settings need another folder.
"""

import argparse
import dataclasses
import hashlib
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from hf_deberta_ext.analysis.plots import plot_comparison
from hf_deberta_ext.finetuning.arguments import parse
from hf_deberta_ext.finetuning.loop import prepare, train_and_report
from hf_deberta_ext.finetuning.reports import PreparedRun
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData
from hf_deberta_ext.publishing.results import markdown_table
from hf_deberta_ext.training.checkpoints import replace_text
from hf_deberta_ext.training.run_folder import ARGUMENTS_FILE
from hf_deberta_ext.training.user_errors import ExitOnUserError

# Of run_glue.py's flags, where the command line names no other value.
DEFAULTS = (
    "--learning_rate 2e-5 --num_train_epochs 3 --warmup_steps 0.1 --weight_decay 0.01 --per_device_train_batch_size 32 "
    "--max_seq_length 128 --train_sampling_strategy group_by_length --eval_strategy epoch --save_strategy no"
).split()


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        epilog="All other flags are those of run_glue.py: python examples/run_glue.py --help",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoints", nargs="+", default=[], help="NAME=FOLDER or NAME=HUB_ID; the first is compared with"
    )
    parser.add_argument("--random", nargs="+", default=[], help="NAME=FOLDER: its architecture with random weights")
    parser.add_argument(
        "--seeds", nargs="+", default=["1", "2", "3"], help="of new weights, dropout and order; default: 1 2 3"
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    args, flags = parser.parse_known_args(argv)
    with ExitOnUserError() as program:
        sources = read_sources(args)
        runs = {name: prepare_checkpoint(source, args, flags, name) for name, source in sources.items()}
        file = args.output_dir / "results.json"
        results = earlier_results(file, sources, runs)
        program.show_traceback = True
        for name, prepared in runs.items():
            results["scores"][name] = train_and_report(prepared)
            replace_text(file, json.dumps(results, indent=2) + "\n")
        write_report(args.output_dir, {name: results["scores"][name] for name in runs}, next(iter(runs.values())))


def read_sources(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """{name: {folder, random, fingerprint}} of --checkpoints and --random.

    Raises:
        ValueError: nothing to compare, an entry that is not NAME=FOLDER, or a repeated name.
    """
    sources: dict[str, dict[str, Any]] = {}
    for option in ("checkpoints", "random"):
        for entry in getattr(args, option):
            name, equals, folder = entry.partition("=")
            if not (equals and name and folder) or Path(name).name != name:
                raise ValueError(f"--{option} takes NAME=FOLDER, got {entry!r}")
            if name in sources:
                raise ValueError(f"two checkpoints are named {name!r}: give each a name of its own")
            files = [file for file in Path(folder).glob("*") if file.name in ("config.json", "tokenizer.json", "spm.model")]
            files += Path(folder).glob("*.safetensors")
            sources[name] = dict(folder=folder, random=option == "random", fingerprint=digest(files))
    if not sources:
        raise ValueError("there is nothing to fine-tune: give --checkpoints NAME=FOLDER ...")
    return sources


def prepare_checkpoint(source: dict[str, Any], args: argparse.Namespace, flags: list[str], name: str) -> PreparedRun:
    """Read and check the data and the model of a checkpoint as run_glue.py does; the model is not kept."""
    folder = args.output_dir / name
    argv = [*DEFAULTS, *flags, "--model_name_or_path", source["folder"], "--output_dir", str(folder)]
    argv += ["--do_train", "--do_eval", "--seeds", *args.seeds, *(["--from_scratch"] if source["random"] else [])]
    if (folder / ARGUMENTS_FILE).is_file():
        argv += ["--resume_from_checkpoint", "last"]
    prepared = prepare(TextClassificationData, *parse(argv, TextClassificationArguments, description=__doc__ or ""))
    return dataclasses.replace(prepared, model=None)


def earlier_results(file: Path, sources: dict[str, dict[str, Any]], runs: dict[str, PreparedRun]) -> dict[str, Any]:
    """Read results.json, or begin it.

    Raises:
        ValueError: it was made from other data, or from other weights of the same name.
    """
    data_args = next(iter(runs.values())).data_args
    data = digest([Path(path.rpartition("=")[2]) for path in (*data_args.train_file, *data_args.validation_file)])
    results = dict(data=data, checkpoints={}, scores={})
    if file.is_file():
        results = json.loads(file.read_text(encoding="utf-8"))
    if results["data"] != data:
        raise ValueError(f"the data are not those from which {file} was made: choose another --output_dir")
    for name, source in sources.items():
        if results["checkpoints"].get(name, source) != source:
            raise ValueError(
                f"{name!r} is not the checkpoint from which {file} was made: rename it, or choose another --output_dir"
            )
    results["checkpoints"] |= sources
    return results


def digest(files: list[Path]) -> str | None:
    """SHA-256 of the contents of files; None without files, as of a Hub id."""
    sha = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()[:16] if files else None


def write_report(folder: Path, scores: dict[str, dict[str, Any]], prepared: PreparedRun):
    """Write table.md and results.png: all metrics, and differences of the task's own from that of the first checkpoint."""
    rows = next(iter(prepared.task.evaluation.values())).rows
    metrics = [name for name in next(iter(scores.values())) if name.startswith("eval_") and name != "eval_loss"]
    first, main_metric = next(iter(scores)), next(name for name in metrics if name.endswith(f"_{prepared.task.metric}"))
    titles = [name.removeprefix("eval_").replace("_", " ") for name in metrics]
    lines = [("checkpoint", "seeds", *titles, f"difference in {prepared.task.metric} from {first}")]
    values = {name: [100 * value for value in summary[main_metric]["values"]] for name, summary in scores.items()}
    for name, summary in scores.items():
        cells = [spread([100 * value for value in summary[metric]["values"]]) for metric in metrics]
        compared = "" if name == first else difference(values[name], values[first])
        lines.append((name, str(len(summary["seeds"])), *cells, compared))
    text = markdown_table(*lines) + (
        "\n\nPercent; mean ± standard deviation over seeds, after the last epoch. The difference is that of the means, ± "
        "two standard errors of it; smaller than these it is within noise (a rough guide where seeds are few). They are "
        f"those of the seeds alone: the {len(rows)} validation rows, the same for all, are a sample too."
    )
    baselines = {}
    if prepared.task.metric == "accuracy":
        majority = Counter(prepared.task.train["labels"]).most_common(1)[0][0]
        baselines["majority class"] = 100 * rows["labels"][:].count(majority) / len(rows)
        text += f" The majority class has an accuracy of {baselines['majority class']:.2f}."
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    plot_comparison(values, folder / "results.png", label=f"{prepared.task.metric} (%)", baselines=baselines)
    print(f"\n{text}")


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def difference(values: list[float], first: list[float]) -> str:
    """Difference of means ± two standard errors, sqrt(s_1^2 / n_1 + s_2^2 / n_2), and its significance."""
    gap = statistics.mean(values) - statistics.mean(first)
    if min(len(values), len(first)) < 2:
        return f"{gap:+.2f} (one seed: noise unknown)"
    noise = 2 * (statistics.variance(values) / len(values) + statistics.variance(first) / len(first)) ** 0.5
    return f"{gap:+.2f} ± {noise:.2f}" + (" (within noise)" if abs(gap) < noise or gap == 0 else "")


if __name__ == "__main__":
    main()

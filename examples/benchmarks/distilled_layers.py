# SPDX-License-Identifier: Apache-2.0
"""Distil a text classifier into students of several depths, and compare accuracy and latency with and without the teacher.

    python examples/benchmarks/distilled_layers.py --teacher sentence-transformers/all-MiniLM-L6-v2 \\
        --student examples/models/deberta-ext-small-en --layers 2 4 6 --output_dir layers --task_name qqp \\
        --max_train_samples 20000 --num_train_epochs 2 --learning_rate 3e-4 --per_device_train_batch_size 32

First, the teacher is fine-tuned on the task. Then each student, which has some layers of --student, is trained twice: with
the labels and the teacher's outputs, and with only the labels. All flags of run_glue.py are accepted, and are the same
for all models. The latency is the median time to tokenise and classify one text or pair of the validation data on one
thread; the models take turns.

Writes table.md and layers.png. Run the same command again to resume; you can add layers.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import positive, spread, take_turns
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hf_deberta_ext  # noqa: F401  (registers its models)
from hf_deberta_ext.analysis.plots.figure import finish_axes, new_figure, save_figure
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.distillation import run as distillation
from hf_deberta_ext.files import replace_text
from hf_deberta_ext.finetuning import loop
from hf_deberta_ext.finetuning.arguments import parse
from hf_deberta_ext.finetuning.run_folders import is_finished
from hf_deberta_ext.finetuning.tasks import load_task

DEFAULTS = "--warmup_steps 0.1 --weight_decay 0.01 --train_sampling_strategy group_by_length --save_strategy no".split()
PARTS = {"student": "with teacher", "without_teacher": "without teacher"}


def main(argv: list[str] | None = None):
    more = "All flags of run_glue.py are accepted, see python examples/run_glue.py --help_all"
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False, epilog=more)
    add = parser.add_argument
    add("--teacher", required=True, help="folder or Hub id of the model to fine-tune as teacher")
    add("--teacher_learning_rate", default="1e-4", help="learning rate of the teacher (default: 1e-4)")
    add("--student", required=True, help="folder or Hub id of the checkpoint from which the students take layers")
    add("--layers", type=positive, nargs="+", default=[2, 4, 6], help="numbers of layers of the students (default: 2 4 6)")
    add("--seeds", nargs="+", default=["1"], help="seeds of each student (default: 1)")
    add("--soft_labels_weight", type=float, default=0.7, help="weight of the teacher's labels (default: 0.7)")
    add("--metric", default="accuracy", help="metric to compare (default: accuracy)")
    add("--repeats", type=positive, default=20, help="timed rounds of each model (default: 20)")
    add("--texts", type=positive, default=50, help="texts of a round (default: 50)")
    add("--output_dir", type=Path, required=True)
    args, flags = parser.parse_known_args(argv)
    flags = [*DEFAULTS, *flags, "--do_train", "--do_eval", "--resume_from_checkpoint", "auto"]
    folder, task = args.output_dir, load_task("glue")
    teacher = folder / "teacher"
    source = ["--model_name_or_path", args.teacher, "--learning_rate", args.teacher_learning_rate]
    teacher_flags = [*flags, *source, "--output_dir", str(teacher)]
    if not is_finished(teacher):
        loop.main(task, teacher_flags, description=__doc__)
    results = {layers: distil(args, flags, teacher, layers) for layers in args.layers}

    data_args, model_args, _, _ = parse(teacher_flags, task.arguments, description=__doc__)
    data = task.read(data_args, model_args)
    texts = zip(*data.texts(data.parts["validation"][""].rows), strict=True)
    models = {0: teacher} | {layers: folder / f"layers-{layers}/student/seed-{args.seeds[0]}" for layers in args.layers}
    latencies, sizes = measure(models, [text for text, _ in zip(texts, range(args.texts), strict=False)], args.repeats)
    key = f"eval_{args.metric}"
    scores = {name: {layers: results[layers][name][key]["values"] for layers in args.layers} for name in PARTS}
    teacher_score = results[args.layers[0]]["teacher"][key]
    baselines = {name: values[args.metric] for name, values in data.baselines.items()}

    rows = [("", f"{args.metric} {PARTS['student']}", PARTS["without_teacher"], "ms", "parameters")]
    rows += [(name, "", f"{value:.3f}", "", "") for name, value in baselines.items()]
    rows.append(("teacher", "", f"{teacher_score:.3f}", *cost(latencies[0], sizes[0])))
    for layers in args.layers:
        cells = [shown(scores[name][layers]) for name in PARTS]
        rows.append((f"{layers} layers", *cells, *cost(latencies[layers], sizes[layers])))
    text = markdown_table(*rows)
    replace_text(folder / "table.md", text + "\n")
    draw(folder / "layers.png", args.metric, scores, latencies, teacher_score, baselines)
    print(f"\n{text}")


def distil(args: argparse.Namespace, flags: Sequence[str], teacher: Path, layers: int) -> dict[str, Any]:
    """Train a student of `layers` layers with and without the teacher; return the metrics of the three models."""
    folder = args.output_dir / f"layers-{layers}"
    if (folder / "comparison.json").is_file():
        return json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    student = ["--model_name_or_path", args.student, "--student_layers", str(layers), "--seeds", *args.seeds]
    weights = ["--soft_labels_weight", str(args.soft_labels_weight), "--label_weight", f"{1 - args.soft_labels_weight:g}"]
    output = ["--teacher_outputs", str(args.output_dir / "teacher_outputs"), "--output_dir", str(folder)]
    return distillation.main("glue", [*flags, "--teacher", str(teacher), *student, *weights, *output])


def measure(
    folders: Mapping[int, Path], texts: Sequence[tuple[str, ...]], repeats: int
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the median milliseconds for a text on one thread, and the number of parameters, of the model in each folder."""
    torch.set_num_threads(1)
    calls: dict[int, Callable[[], None]] = {}
    sizes = {}
    for key, folder in folders.items():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        sizes[key] = model.num_parameters()

        @torch.inference_mode()
        def classify(tokenizer=tokenizer, model=model):
            for text in texts:
                model(**tokenizer(*text, truncation=True, return_tensors="pt"))

        classify()
        calls[key] = classify
    times = take_turns(calls, repeats)
    return {key: 1000 * spread(values)[0] / len(texts) for key, values in times.items()}, sizes


def cost(latency: float, size: int) -> tuple[str, str]:
    return f"{latency:.1f}", f"{size / 1e6:.1f} M"


def shown(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def draw(
    path: Path,
    metric: str,
    scores: Mapping[str, Mapping[int, Sequence[float]]],
    latencies: Mapping[int, float],
    teacher_score: float,
    baselines: Mapping[str, float],
):
    """Draw the scores against the latency: a line for each part of `PARTS`, with a dot for each number of layers."""
    figure = new_figure(7)
    axes = figure.subplots()
    for (part, title), style in zip(PARTS.items(), ("o-", "s--"), strict=True):
        layers = sorted(scores[part])
        means = [statistics.mean(scores[part][number]) for number in layers]
        errors = [statistics.pstdev(scores[part][number]) for number in layers]
        axes.errorbar(
            [latencies[number] for number in layers], means, errors, fmt=style, capsize=4, label=f"student {title}"
        )
        if part == "student":
            for number, mean in zip(layers, means, strict=True):
                place = (latencies[number], mean)
                axes.annotate(f"{number} layers", place, (0, 9), textcoords="offset points", ha="center", fontsize=9)
    axes.plot([latencies[0]], [teacher_score], "*", color="0.2", markersize=13, label="teacher")
    for (name, score), style in zip(baselines.items(), (":", "-."), strict=False):
        axes.axhline(score, color="0.5", linestyle=style, linewidth=1.2, label=name)
    axes.set_xlabel("milliseconds for a text or pair (one thread)")
    axes.set_ylabel(metric)
    finish_axes(axes)
    axes.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    save_figure(figure, path)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes several checkpoints on one task of text classification, with several seeds each, and compares their accuracy.

    python examples/compare_checkpoints.py --checkpoints "GDES=gdes/discriminator" "MLM=mlm" --random "untrained=mlm" \\
        --train_file train.tsv --validation_file dev.tsv --text_columns sentence --label_column label --seeds 1 2 3 \\
        --num_train_epochs 2 --learning_rate 2e-4 --max_train_samples 20000 --output_dir sst2

Any model that AutoModelForSequenceClassification reads will do, in a folder or on the Hub. Files end in .tsv (no quotes, as
in GLUE), .csv or .jsonl, each also .gz; give two --text_columns for pairs. The accuracy is that after the last epoch:
nothing is chosen on the validation file. Rows of similar length are trained on together.

Writes results.json after each run, then table.md and results.png. The same command again goes on where it was stopped; more
seeds or checkpoints can be added, and other settings need another folder.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

import hf_deberta_ext
from hf_deberta_ext.analysis.plots import plot_comparison
from hf_deberta_ext.tokenization import load_tokenizer

# No word is a missing value, and no column an index.
PLAIN = dict(keep_default_na=False, index_col=False, encoding="utf-8-sig")
READERS = {
    ".tsv": ("csv", dict(delimiter="\t", quoting=csv.QUOTE_NONE) | PLAIN),
    ".csv": ("csv", PLAIN),
    ".jsonl": ("json", {}),
}
DEBERTA = ("deberta", "deberta-v2", "deberta-ext")
# What must be equal in all runs of a folder.
SETTINGS = (
    "text_columns", "label_column", "max_train_samples", "max_length", "num_train_epochs", "learning_rate", "warmup_steps",
    "weight_decay", "per_device_train_batch_size", "bf16",
)  # fmt: skip


def parse_args(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkpoints", nargs="+", default=[], help="NAME=FOLDER or NAME=HUB_ID; the first is compared with"
    )
    parser.add_argument("--random", nargs="+", default=[], help="NAME=FOLDER: its architecture with random weights")
    parser.add_argument("--train_file", type=Path, required=True)
    parser.add_argument("--validation_file", type=Path, required=True)
    parser.add_argument("--text_columns", nargs="+", required=True, help="one, or two for pairs")
    parser.add_argument("--label_column", default="label")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of new weights, dropout and order")
    parser.add_argument("--max_train_samples", type=int, help="rows drawn from the train file, the same for all runs")
    parser.add_argument("--max_length", type=int, default=128, help="tokens of a row; more are cut off")
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--warmup_steps", type=float, default=0.1, help="share of the steps, or their number")
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--per_device_train_batch_size", type=int, default=32)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--output_dir", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    try:
        compare(args)
    except (ValueError, OSError) as error:
        # What a user can mend; anything else deserves its traceback.
        sys.exit(f"compare_checkpoints: {error}")


def compare(args: argparse.Namespace):
    # 1. What is wrong shows here, before anything is trained.
    check_numbers(args)
    sources = read_sources(args)
    train, validation = (read_file(file, args) for file in (args.train_file, args.validation_file))
    labels = label_names(train, validation, args)
    if args.max_train_samples is not None:
        drawn = random.Random(0).sample(range(rows_in(train)), min(args.max_train_samples, rows_in(train)))
        train = {column: [values[row] for row in drawn] for column, values in train.items()}
    results = begin(args, sources)
    models = {name: prepare(name, source, labels, args) for name, source in sources.items()}

    # 2. Fine-tune
    true = np.array([labels.index(label) for label in validation[args.label_column]])
    majority = labels.index(Counter(train[args.label_column]).most_common(1)[0][0])
    baseline = scores(np.full(len(true), majority), true, len(labels))
    results["rows"] = dict(train=rows_in(train), validation=len(true))
    results["majority_class"] = dict(label=str(labels[majority])) | baseline
    finished = {(run["checkpoint"], run["seed"]) for run in results["runs"]}
    wanted = [(seed, name) for seed in args.seeds for name in models]
    encoded = {}
    for number, (seed, name) in enumerate(wanted, start=1):
        if (name, seed) in finished:
            continue
        config, tokenizer = models[name]
        if name not in encoded:
            encoded[name] = [encode(columns, labels, tokenizer, args) for columns in (train, validation)]
        run = fine_tune(sources[name], config, tokenizer, *encoded[name], seed, args)
        results["runs"].append(dict(checkpoint=name, seed=seed) | run)
        write_json(args.output_dir / "results.json", results)
        print(
            f"{number} of {len(wanted)}: {name}, seed {seed}: accuracy {100 * run['accuracy']:.2f}, {run['seconds']} s",
            flush=True,
        )

    # 3. Report
    names = [*models]
    runs = [run for run in results["runs"] if run["checkpoint"] in names and run["seed"] in args.seeds]
    text = report(names, runs, baseline, labels, len(true))
    (args.output_dir / "table.md").write_text(text + "\n", encoding="utf-8")
    accuracies = {name: [100 * run["accuracy"] for run in runs if run["checkpoint"] == name] for name in names}
    plot_comparison(
        accuracies,
        args.output_dir / "results.png",
        label="accuracy (%)",
        baselines={"majority class": 100 * baseline["accuracy"]},
    )
    print(f"\n{text}")


def check_numbers(args: argparse.Namespace):
    for name in ("num_train_epochs", "per_device_train_batch_size", "max_train_samples"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if args.max_length < 8:
        raise ValueError(f"--max_length must be at least 8, got {args.max_length}")
    if len(args.text_columns) > 2:
        raise ValueError(f"--text_columns takes one column, or two for pairs, got {', '.join(args.text_columns)}")
    if args.label_column in args.text_columns:
        raise ValueError(f"the label {args.label_column!r} is one of --text_columns: a model could read it off")
    if len({*args.seeds}) < len(args.seeds):
        raise ValueError(f"each of --seeds must differ from the others, got {args.seeds}")


def read_sources(args: argparse.Namespace) -> dict[str, dict]:
    """{name: {folder, random, fingerprint}}, in the order given.

    Raises:
        ValueError: nothing to compare, an entry that is not NAME=FOLDER, or a name given twice.
    """
    sources = {}
    for option in ("checkpoints", "random"):
        for entry in getattr(args, option):
            name, equals, folder = entry.partition("=")
            if not (equals and name and folder):
                raise ValueError(f"--{option} takes NAME=FOLDER, got {entry!r}")
            if name in sources:
                raise ValueError(f"two checkpoints are named {name!r}: give each a name of its own")
            sources[name] = dict(folder=folder, random=option == "random", fingerprint=fingerprint(folder))
    if not sources:
        raise ValueError("there is nothing to fine-tune: give --checkpoints NAME=FOLDER ...")
    return sources


def fingerprint(folder: str) -> str | None:
    """A digest of a folder's model and tokenizer, so that runs from other weights are not mixed; None for a Hub id."""
    files = [file for file in sorted(Path(folder).glob("*")) if file.suffix in (".json", ".safetensors", ".bin", ".model")]
    # What Trainer adds to the folder is no part of the model.
    files = [file for file in files if not file.name.endswith(("_results.json", "_state.json", "training_args.bin"))]
    return digest(files) if files else None


def digest(files: list[Path]) -> str:
    sha = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()[:16]


def read_file(file: Path, args: argparse.Namespace) -> dict[str, list]:
    """The columns of a file that are needed, by name.

    Raises:
        ValueError: not there, of another kind, empty, or without a column; a text that is none, or a row without a label.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetBuildError, DatasetGenerationError

    if not file.is_file():
        raise ValueError(f"{file} is not there")
    suffix = Path(file.name.removesuffix(".gz")).suffix
    if suffix not in READERS:
        raise ValueError(f"{file} must end in {', '.join(READERS)} (also .gz)")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty")
    kind, options = READERS[suffix]
    try:
        rows = load_dataset(kind, data_files=str(file), split="train", **options)
    except (DatasetBuildError, DatasetGenerationError) as error:
        raise ValueError(f"{file} cannot be read as {suffix}: {error.__cause__ or error}") from error
    except ValueError as error:
        # What it says of a file with a header alone: Instruction "train" corresponds to no data!
        raise ValueError(f"{file} has no rows ({error})") from error
    columns = [*args.text_columns, args.label_column]
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise ValueError(
            f"{file} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, rows.column_names))}"
        )
    if len(rows) == 0:
        raise ValueError(f"{file} has no rows")
    rows = rows.select_columns(columns).to_dict()
    for column in args.text_columns:
        wrong = next((number for number, text in enumerate(rows[column], start=1) if not isinstance(text, str)), None)
        if wrong is not None:
            raise ValueError(f"row {wrong} of {file} has no text in {column!r}, but {rows[column][wrong - 1]!r}")
    for number, label in enumerate(rows[args.label_column], start=1):
        if label is None or label == "":
            raise ValueError(f"row {number} of {file} has no label in {args.label_column!r}")
        if not isinstance(label, (int, str)):
            raise ValueError(f"row {number} of {file} has the label {label!r}: labels are text or whole numbers, one a row")
    return rows


def rows_in(columns: dict[str, list]) -> int:
    return len(next(iter(columns.values())))


def label_names(train: dict[str, list], validation: dict[str, list], args: argparse.Namespace) -> list:
    """The labels of the train file, sorted.

    Raises:
        ValueError: there is one label only, or the validation file has another.
    """
    labels = sorted({*train[args.label_column]}, key=lambda label: (str(type(label)), label))
    if len(labels) < 2:
        raise ValueError(f"{args.train_file} has the one label {labels[0]!r}: there is nothing to learn")
    unseen = {*validation[args.label_column]} - {*labels}
    if unseen:
        some = ", ".join(sorted(map(repr, unseen))[:5])
        raise ValueError(f"{args.validation_file} has labels that {args.train_file} has not: {some}; it has {labels[:20]}")
    return labels


def prepare(name: str, source: dict, labels: list, args: argparse.Namespace):
    """Configuration and tokenizer of a checkpoint, with which its model can be loaded.

    Raises:
        ValueError: the tokenizer, --max_length or the weights do not fit the model.
    """
    config = AutoConfig.from_pretrained(source["folder"], num_labels=len(labels))
    config.id2label = {index: str(label) for index, label in enumerate(labels)}
    config.label2id = {text: index for index, text in config.id2label.items()}
    config.problem_type = "single_label_classification"
    # The stock classes of the DeBERTa family are not those of the published vocabularies.
    load = load_tokenizer if config.model_type in DEBERTA else AutoTokenizer.from_pretrained
    tokenizer = load(source["folder"])
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{name}: its tokenizer has {len(tokenizer)} tokens, its model {config.vocab_size}: not of one run")
    rows = getattr(config, "max_position_embeddings", None)
    if rows is not None and getattr(config, "position_biased_input", True) and rows < args.max_length:
        raise ValueError(f"{name} has {rows} absolute positions: give --max_length {rows} or less, got {args.max_length}")
    load_model(source, config)
    return config, tokenizer


def begin(args: argparse.Namespace, sources: dict[str, dict]) -> dict:
    """What results.json of the folder holds, or the beginnings of it.

    Raises:
        ValueError: it was made with other settings, from other data, or from other weights of the same name.
    """
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings |= {f"{name}_sha256": digest([getattr(args, name)]) for name in ("train_file", "validation_file")}
    file = args.output_dir / "results.json"
    args.output_dir.mkdir(parents=True, exist_ok=True)
    results = (
        json.loads(file.read_text(encoding="utf-8")) if file.is_file() else dict(settings=settings, checkpoints={}, runs=[])
    )
    begun = results["settings"]
    changed = [
        f"{name} = {value!r}, there {begun.get(name)!r}" for name, value in settings.items() if begun.get(name) != value
    ]
    if changed:
        raise ValueError(f"{file} was made with other settings: {'; '.join(changed)}. Choose another --output_dir")
    done = {run["checkpoint"] for run in results["runs"]}
    for name, source in sources.items():
        known = results["checkpoints"].get(name, source)
        if name in done and (known["random"], known["fingerprint"]) != (source["random"], source["fingerprint"]):
            raise ValueError(
                f"{name!r} is not what it was when {file} was made (from {known['folder']}): give it another name, "
                "or choose another --output_dir"
            )
    results["checkpoints"] |= sources
    results["versions"] = dict(
        python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__,
        hf_deberta_ext=hf_deberta_ext.__version__, device="cuda" if torch.cuda.is_available() else "cpu",
        threads=torch.get_num_threads(),
    )  # fmt: skip
    return results


def encode(columns: dict[str, list], labels: list, tokenizer, args: argparse.Namespace) -> list[dict]:
    texts = [columns[column] for column in args.text_columns]
    encoding = tokenizer(*texts, truncation=True, max_length=args.max_length)
    numbers = {label: index for index, label in enumerate(labels)}
    return [
        {key: values[row] for key, values in encoding.items()} | {"labels": numbers[label]}
        for row, label in enumerate(columns[args.label_column])
    ]


def fine_tune(source: dict, config, tokenizer, train: list, validation: list, seed: int, args: argparse.Namespace) -> dict:
    """One run: the scores after the last epoch, the accuracy after each, and the seconds it took."""
    set_seed(seed)
    model = load_model(source, config)
    with tempfile.TemporaryDirectory() as scratch:
        training_args = TrainingArguments(
            output_dir=scratch, seed=seed, num_train_epochs=args.num_train_epochs, learning_rate=args.learning_rate,
            warmup_steps=args.warmup_steps, weight_decay=args.weight_decay, lr_scheduler_type="linear", bf16=args.bf16,
            per_device_train_batch_size=args.per_device_train_batch_size, per_device_eval_batch_size=64,
            eval_strategy="epoch", save_strategy="no", logging_strategy="epoch", report_to="none", disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(), train_sampling_strategy="group_by_length",
        )  # fmt: skip
        trainer = Trainer(
            model,
            training_args,
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=train,
            eval_dataset=validation,
            compute_metrics=lambda output: scores(output.predictions.argmax(-1), output.label_ids, config.num_labels),
        )
        trainer.remove_callback(PrinterCallback)
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    epochs = [entry for entry in trainer.state.log_history if "eval_accuracy" in entry]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return dict(
        accuracy=epochs[-1]["eval_accuracy"], f1=epochs[-1]["eval_f1"], loss=epochs[-1]["eval_loss"], train_loss=losses[-1],
        accuracy_by_epoch=[entry["eval_accuracy"] for entry in epochs], seconds=round(seconds, 1),
    )  # fmt: skip


def load_model(source: dict, config):
    """The checkpoint with a new classifier, in float32.

    Raises:
        ValueError: a weight of its body is not in the checkpoint, which would be random without a word.
    """
    if source["random"]:
        return AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    verbosity = transformers.logging.get_verbosity()
    # Each run would report that the classifier is new.
    transformers.logging.set_verbosity_error()
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source["folder"], config=config, dtype=torch.float32, output_loading_info=True
        )
    finally:
        transformers.logging.set_verbosity(verbosity)
    body = f"{model.base_model_prefix}."
    missing = sorted(name for name in info["missing_keys"] if name.startswith(body) and "pooler" not in name)
    if missing:
        raise ValueError(
            f"{source['folder']} lacks {len(missing)} weights of its model, {missing[0]} for one: give the folder of an "
            "exported model, or --random for new weights"
        )
    return model


def scores(predicted: np.ndarray, true: np.ndarray, num_labels: int) -> dict[str, float]:
    """Accuracy and F1: of the second label where there are two, else the mean over the labels (macro); both in [0, 1]."""
    labels = [1] if num_labels == 2 else range(num_labels)
    f1 = []
    for label in labels:
        found, there = predicted == label, true == label
        f1.append(2 * (found & there).sum() / max(1, found.sum() + there.sum()))
    return dict(accuracy=float((predicted == true).mean()), f1=float(np.mean(f1)))


def report(names: list[str], runs: list[dict], baseline: dict, labels: list, rows: int) -> str:
    """The table, and what may be read from it."""
    of = {
        name: {key: [100 * run[key] for run in runs if run["checkpoint"] == name] for key in ("accuracy", "f1")}
        for name in names
    }
    f1_name = f"F1 of {labels[1]!s}" if len(labels) == 2 else "macro F1"
    lines = [
        f"| checkpoint | seeds | accuracy (%) | {f1_name} (%) | difference from {names[0]} | seconds a run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        seconds = statistics.mean(run["seconds"] for run in runs if run["checkpoint"] == name)
        compared = "" if name == names[0] else difference(of[name]["accuracy"], of[names[0]]["accuracy"])
        cells = [name, str(len(of[name]["accuracy"])), *map(spread, of[name].values()), compared, f"{seconds:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(f"| majority class | | {100 * baseline['accuracy']:.2f} | {100 * baseline['f1']:.2f} | | |")
    best = max(statistics.mean(of[name]["accuracy"]) for name in names) / 100
    error = 100 * (best * (1 - best) / rows) ** 0.5
    return "\n".join(lines) + (
        "\n\nMean ± standard deviation over seeds, after the last epoch. The difference is that of the mean accuracies, ± "
        "two standard errors of it; smaller than these it is within noise (a rough guide where seeds are few). They are "
        f"those of the seeds alone: the {rows} validation rows, the same for all, are a sample too, from which one accuracy "
        f"has a standard error of {error:.1f} points."
    )


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def difference(values: list[float], first: list[float]) -> str:
    """Difference of means ± two standard errors, sqrt(s_1^2 / n_1 + s_2^2 / n_2), and what it means."""
    gap = statistics.mean(values) - statistics.mean(first)
    if min(len(values), len(first)) < 2:
        return f"{gap:+.2f} (one seed: noise unknown)"
    noise = 2 * (statistics.variance(values) / len(values) + statistics.variance(first) / len(first)) ** 0.5
    return f"{gap:+.2f} ± {noise:.2f}" + (" (within noise)" if abs(gap) < noise or gap == 0 else "")


def write_json(file: Path, value: dict):
    """Whole or not at all, wherever it is stopped."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(part, file)


if __name__ == "__main__":
    main()

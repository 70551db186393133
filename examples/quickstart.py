# SPDX-License-Identifier: Apache-2.0
"""Train a text classifier that loads anywhere, and measure how much pre-training helped, on 2 CPU cores and without the
internet.

    python examples/quickstart.py                            # which package does a docstring's summary come from?
    python examples/quickstart.py --train_file my.csv        # your own texts, columns "text" and "label"
    python examples/quickstart.py --from_text articles.txt   # pre-train a model on your own text first
    python examples/quickstart.py --short                    # only a check that it runs; the scores are meaningless

Fine-tunes the small English DeBERTa of this repository (or `--model`) with three seeds, and compares it with the same
architecture from random weights, the majority class and TF-IDF + logistic regression. All flags of run_glue.py are
accepted: `--text_columns review --label_column stars`. Without --validation_file, a fifth of --train_file is held out.

--output_dir holds the classifiers with their cards (pre-trained/seed-1 is the first), table.md, results.png and
results.json. Run the same command again to resume.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent / "models" / "deberta-ext-small-en"
NAMES = ("pre-trained", "random weights")
# Settings of --from_text: a model that pre-trains in minutes.
PRETRAINING = (
    "--train_tokenizer byte-level-bpe --vocab_size 6000 --packing full_sentences --max_length 64 --masking token "
    "--masking_rate 0.4 --learning_rate 3e-3 --warmup_steps 0.1 --adam_beta2 0.98 --per_device_train_batch_size 32 "
    "--save_steps 200 --save_total_limit 1 --config_overrides "
    "hidden_size=192,num_hidden_layers=2,num_attention_heads=4,intermediate_size=768,max_position_embeddings=128,"
    "position_buckets=32,initializer_range=0.05,hidden_dropout_prob=0,attention_probs_dropout_prob=0"
).split()
FINETUNING = (
    "--learning_rate 5e-4 --num_train_epochs 6 --per_device_train_batch_size 16 --per_device_eval_batch_size 64 "
    "--max_seq_length 64 --eval_strategy no"
).split()
DROPOUT = "--config_overrides hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1".split()
SHORT = "--max_train_samples 60 --max_eval_samples 60 --num_train_epochs 1".split()


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("quickstart_output"),
        help="output folder: a new one, or the folder of an earlier run of the same command, to resume it",
    )
    parser.add_argument("--model", help="folder or Hub id of another model to fine-tune, with learning rate 2e-5")
    parser.add_argument("--from_text", type=Path, metavar="FILE", help="first pre-train a small model on this text")
    parser.add_argument("--pretrain_steps", type=int, default=1400, help="pre-training steps of --from_text")
    parser.add_argument("--train_file", type=Path, help="csv, tsv, json, jsonl or parquet (default: the docstrings)")
    parser.add_argument("--validation_file", type=Path, help="evaluation data (default: a fifth of --train_file)")
    parser.add_argument("--seeds", nargs="+", help="seeds of the runs (default: 1 2 3, with --short: 1)")
    parser.add_argument("--short", action="store_true", help="only 60 texts, one epoch and one seed")
    args, flags = parser.parse_known_args(argv)
    if args.validation_file and not args.train_file:
        parser.error("--validation_file needs --train_file")
    if args.from_text and args.model:
        parser.error("--from_text and --model are mutually exclusive")
    # Imported late, so that --help does not wait for torch.
    import compare_checkpoints
    import torch

    from hf_deberta_ext.finetuning.arguments import parse
    from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData
    from hf_deberta_ext.training.user_errors import ExitOnUserError

    # If a flag is given twice, the last one is used.
    chosen = [*FINETUNING, *DROPOUT]
    seeds = ["1", "2", "3"]
    # Small batches gain little from a second thread, so two processes run at a time.
    jobs = "2"
    if args.model:
        chosen += ["--learning_rate", "2e-5"]
    if args.short:
        chosen += SHORT
        seeds = ["1"]
    if args.short or torch.cuda.is_available() or torch.get_num_threads() == 1:
        jobs = "1"
    flags = chosen + flags
    with ExitOnUserError():
        # Wrong flags, columns and labels end the program here, before pre-training.
        checked = ["--do_train", "--output_dir", str(args.output_dir), *flags]
        data_args, *_ = parse(checked, TextClassificationArguments, description="")
        create_output_dir(args)
        train, validation = args.train_file, args.validation_file
        if validation is None:
            train, validation = split_data(args, data_args)
        TextClassificationData(dataclasses.replace(data_args, train_file=[str(train)], validation_file=[str(validation)]))
    model = args.model or MODEL
    if args.from_text:
        model = pretrain(args)
    sides = ["--checkpoints", f"{NAMES[0]}={model}", "--random", f"{NAMES[1]}={model}", "--jobs", jobs]
    files = ["--train_file", str(train), "--validation_file", str(validation), "--output_dir", str(args.output_dir)]
    compare_checkpoints.main([*sides, "--seeds", *(args.seeds or seeds), *files, *flags])
    folder = sorted(args.output_dir.joinpath(NAMES[0]).glob("seed-*"))[0]
    check_reload(folder, first_texts(validation))
    print(f"\n{folder} holds a classifier. It predicts the same in a fresh process without hf_deberta_ext.")


def create_output_dir(args: argparse.Namespace):
    """Create the output folder, and save the flags that determine its content in quickstart.json.

    Raises:
        ValueError: if the folder holds other files, or the results of another command.
    """
    names = ("model", "from_text", "pretrain_steps", "train_file", "validation_file", "short")
    command = {name: str(getattr(args, name)) for name in names}
    file = args.output_dir / "quickstart.json"
    earlier, made_first = {}, set()
    if file.is_file():
        earlier, made_first = json.loads(file.read_text(encoding="utf-8")), {file.name, "data"}
    if args.output_dir.exists() and earlier != command and {*os.listdir(args.output_dir)} - made_first:
        other = [f"--{name} {earlier[name]}" for name in earlier if earlier[name] != command[name]]
        origin = f"made with {', '.join(other)}" if other else "not made by quickstart"
        raise ValueError(f"{args.output_dir} is not empty ({origin}): choose another --output_dir")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(command, indent=2) + "\n", encoding="utf-8")


def split_data(args: argparse.Namespace, data_args: Any) -> list[Path]:
    """Write the training and evaluation texts into the output folder, as two files."""
    import docstring_corpus

    from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationData

    if args.train_file:
        options = dict(train_file=[str(args.train_file)], max_train_samples=None, max_eval_samples=None)
        data = TextClassificationData(dataclasses.replace(data_args, validation_share=0.2, **options))
        parts = [data.parts[kind][""].rows for kind in ("train", "validation")]
    else:
        examples = docstring_corpus.task_examples(docstring_corpus.collect_docstrings())
        names = docstring_corpus.PACKAGES
        parts = docstring_corpus.split_by_package(examples)
        parts = [[{"text": text, "label": names[label]} for text, label in part] for part in parts]
    folder = args.output_dir / "data"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "train.jsonl", folder / "validation.jsonl"]
    for file, part in zip(files, parts, strict=True):
        lines = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in part]
        file.write_text("".join(lines), encoding="utf-8")
    return files


def pretrain(args: argparse.Namespace) -> Path:
    """Train a tokenizer and a masked language model on --from_text, unless this is done; return the model's folder."""
    import run_mlm

    folder = args.output_dir / "pretrained"
    if not (folder / "all_results.json").is_file():
        steps = args.pretrain_steps
        if args.short:
            steps = 20
        files = ["--train_data", str(args.from_text), "--output_dir", str(folder), "--resume_from_checkpoint", "auto"]
        run_mlm.main([*files, *PRETRAINING, "--max_steps", str(steps)])
    return folder


def first_texts(file: Path) -> list[str]:
    """Return all texts, from any column, in the first 100 rows of a file."""
    from hf_deberta_ext.data.files import read_files

    rows = read_files(file, source="--validation_file").take(100)
    return [text for row in rows for text in row.values() if isinstance(text, str)]


def predict_logits(folder: str, texts: list[str], **options) -> list[list[float]]:
    """Load a classifier with the Auto classes; return its logits for each text."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    with torch.no_grad():
        return [model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0].tolist() for text in texts]


# The fresh process cannot import hf_deberta_ext or triton; this file needs neither when it is imported.
FRESH_PROCESS = """
import json, runpy, sys
sys.modules.update(hf_deberta_ext=None, triton=None)
script, folder = sys.argv[1:]
print(json.dumps(runpy.run_path(script)["predict_logits"](folder, json.load(sys.stdin), trust_remote_code=True)))
"""


def check_reload(folder: Path, texts: list[str]):
    """Compare the logits of a saved classifier here with its logits in a process that cannot import hf_deberta_ext.

    The process is offline and has an empty cache of remote code.

    Raises:
        RuntimeError: if the process fails, or its logits differ by more than 1e-4.
    """
    import numpy as np

    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"HF_HOME": scratch, "HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-I", "-c", FRESH_PROCESS, __file__, str(folder.resolve())]
        options = dict(input=json.dumps(texts), env=environment, capture_output=True, text=True)
        done = subprocess.run(command, **options)
    if done.returncode:
        raise RuntimeError(f"{folder} did not load in a fresh process:\n{done.stderr[-2000:]}")
    reloaded = json.loads(done.stdout.splitlines()[-1])
    difference = np.abs(np.array(reloaded) - predict_logits(str(folder), texts)).max()
    if not difference <= 1e-4:
        raise RuntimeError(
            f"{folder} gives logits that differ by {difference:.1e} in a fresh process without hf_deberta_ext"
        )


if __name__ == "__main__":
    main()

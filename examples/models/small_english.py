# SPDX-License-Identifier: Apache-2.0
"""Write the training text of deberta-ext-small-en, and create its folder from a training run.

    python examples/models/small_english.py corpus DATA corpus/       # DATA contains wikipedia_en, squad_v1 and manuals_en
    python examples/run_mlm.py --train_data corpus/train --validation_data corpus/held_out/wikipedia_en.jsonl \\
        --train_tokenizer unigram --vocab_size 16000 --lowercase --card_language en --max_length 128 --masking word --masking_rate 0.2 \\
        --config_overrides hidden_size=256,num_hidden_layers=6,num_attention_heads=4,intermediate_size=1024,position_buckets=64,\\
    max_relative_positions=512,hidden_dropout_prob=0,attention_probs_dropout_prob=0 --learning_rate 2e-3 \\
        --max_steps 20000 --warmup_steps 200 --lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs '{"num_decay_steps": 1500}' \\
        --weight_decay 0.1 --adam_beta2 0.98 --adam_epsilon 1e-6 --per_device_train_batch_size 64 --bf16 --seed 1 \\
        --logging_steps 20 --save_steps 250 --eval_strategy steps --eval_steps 250 --max_eval_samples 500 --output_dir run
    python examples/models/small_english.py save run examples/models/deberta-ext-small-en
    # take the weights of a run of distil_small_english.py, and measure them on held-out text (the rate 0 changes no weight)
    python examples/run_mlm.py --model distilled --train_data corpus/held_out --validation_data corpus/held_out --max_steps 1 \
        --learning_rate 0 --max_length 256 --masking word --masking_rate 0.2 --max_eval_samples 500 --seed 3 --output_dir held_out
    python examples/models/small_english.py distilled distilled held_out examples/models/deberta-ext-small-en
    # only update the code files; add the table of compare_checkpoints.py to the card
    python examples/models/small_english.py code examples/models/deberta-ext-small-en
    python examples/models/small_english.py scores gate examples/models/deberta-ext-small-en

From step 3,357 on, rows have 256 tokens: the same command with `--max_length 256 --per_device_train_batch_size 32
--resume_from_checkpoint last --allow_changed_args batch_size data_collator.options data_digest max_length
per_device_train_batch_size`. With longer rows, the model learned to copy words from the context: if a copy of the sentence
precedes it, the model finds 32 % of the masked words at step 3,250, 45 % at 4,000 and 60 % at 4,750 (28 % without the copy).

The learning rate is constant until the last steps, so that a model can be finished from a copy of any checkpoint, here of
step 5,083, with a rate that falls at once: `--max_steps 5333 --lr_scheduler_kwargs '{"num_decay_steps": 250}' --allow_changed_args ... max_steps
lr_scheduler_kwargs`. A step takes 2.5 seconds on one core with bfloat16 products (AMD EPYC), about 5 without. After
400 steps, the training loss was 5.25 with the rate 2e-3 and 5.29 with 1e-3 (one seed).

The third stage starts from these weights with a new optimizer, on two cores (1.7 seconds a step): the same flags with
`torchrun --nproc_per_node 2`, `--model examples/models/deberta-ext-small-en` instead of the flags of the tokenizer, `--max_length
256 --per_device_train_batch_size 16 --warmup_steps 100 --seed 2`, and only the dropout rates in the overrides.
After 1,259 steps, the rate falls over 901: `--max_steps 2160 --lr_scheduler_kwargs '{"num_decay_steps": 901, "decay_type": "1-sqrt"}'`.

The fourth stage does the same from the weights of the third: 3,000 steps, with a falling rate in the last 1,200: `--seed 3
--max_steps 3000 --lr_scheduler_kwargs '{"num_decay_steps": 1200, "decay_type": "1-sqrt"}'`, 1.5 seconds a step.

    python examples/models/small_english.py save run examples/models/deberta-ext-small-en --earlier 2.53 7493

The documents are the articles of wikipedia_en, the contexts of squad_v1's training questions (each once, by article), and
the sections of manuals_en.
"""

import argparse
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCES = [
    "wikipedia_en: 2,900 articles of the English Wikipedia (CC BY-SA 3.0), 8.1 million words",
    "squad_v1: the contexts of SQuAD 1.1's training questions (Wikipedia, CC BY-SA 4.0), 2.2 million words",
    "manuals_en: English manuals of Debian's documentation packages, 5.3 million words: linux-doc, git-doc, manpages (GPL-2 "
    "mostly), postgresql-doc (PostgreSQL licence), perl-doc (GPL or Artistic), sqlite3-doc (public domain), "
    "libreoffice-help (MPL-2.0), rust-doc (MIT or Apache-2.0), Debian's own (GPL-2+ or CC BY-SA)",
]
TEACHER = "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0): cosines of pairs and embeddings of sentences of the same text"
OPENING = (
    "A small English DeBERTa (v3's attention, Enhanced Mask Decoder) with {:.1f} million parameters for lower-case text, "
    "pre-trained on CPU cores with hf_deberta_ext{}. It is meant for small tasks and for experiments on a laptop."
)
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, positions in (
        ("corpus", ("data", "folder")),
        ("save", ("run", "folder")),
        ("distilled", ("run", "held_out", "folder")),
        ("code", ("folder",)),
        ("scores", ("scores", "folder")),
    ):
        command = commands.add_parser(name)
        for position in positions:
            command.add_argument(position, type=Path)
        if name == "save":
            text = "passes over the text and steps in which the initial weights of the run were trained"
            command.add_argument("--earlier", nargs=2, type=float, default=[0, 0], metavar=("PASSES", "STEPS"), help=text)
    args = vars(parser.parse_args())
    functions = {
        "corpus": write_corpus,
        "save": save_model,
        "distilled": save_distilled,
        "code": renew_code,
        "scores": add_scores,
    }
    functions[args.pop("command")](**args)


def write_corpus(data: Path, folder: Path):
    """Write train/*.jsonl and held_out/wikipedia_en.jsonl, with a document per line."""
    sources = {
        "train/wikipedia_en": (row["text"] for row in rows(data / "wikipedia_en" / "train.jsonl.gz")),
        "train/squad_v1": squad_articles(data / "squad_v1"),
        "held_out/wikipedia_en": (row["text"] for row in rows(data / "wikipedia_en" / "validation.jsonl.gz")),
    }
    for file in sorted(data.joinpath("manuals_en").glob("*.txt.gz")):
        text = gzip.open(file, "rt", encoding="utf-8").read()
        name = file.name.removesuffix(".txt.gz")
        sources[f"train/manual_{name}"] = (section for section in text.split("\n\n") if section.strip())
    for name, texts in sources.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def rows(path: Path) -> Iterator[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def squad_articles(folder: Path) -> list[str]:
    """Return a text for each article: its distinct contexts, in the order of the questions."""
    contexts: dict[str, dict[str, None]] = {}
    for name in ("train", "train_ambiguous_start"):
        for row in rows(folder / f"{name}.jsonl.gz"):
            contexts.setdefault(row["title"], {})[row["context"]] = None
    return ["\n\n".join(article) for article in contexts.values()]


def save_model(run: Path, folder: Path, earlier: list[float]):
    """Write a run's model in float16, with dropout for fine-tuning, and its tokenizer, code, curves and card.

    Args:
        earlier (`list[float]`): passes over the text and steps in which the initial weights of the run were trained.
    """
    from hf_deberta_ext.publishing.card import write_run_card
    from hf_deberta_ext.publishing.facts import RunFacts

    report = json.loads((run / "run_report.json").read_text(encoding="utf-8"))
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    model = write_weights(run, folder)
    for name in ("curves.png", "all_results.json"):
        shutil.copyfile(run / name, folder / name)
    card = report["card"]
    card["training"] |= dict(data=SOURCES, tokenizer="unigram, 16,000 pieces in lower case, trained on the same text")
    passes, steps = earlier
    if steps:
        card["training"]["steps"] = f"{card['training']['steps']:,} with a new optimizer, after {steps:,.0f} in earlier stages"
        card |= dict(from_scratch=True, base_model=None)
    facts = card | dict(
        license="cc-by-sa-4.0",
        parameters=model.num_parameters(),
        opening=OPENING.format(model.num_parameters() / 1e6, ""),
        limits=[
            f"The model was trained for only {passes + results['epoch']:.2f} epochs.",
            "The training text is encyclopedic and technical.",
        ],
    )
    write_run_card(folder, RunFacts(**facts))


def save_distilled(run: Path, held_out: Path, folder: Path):
    """Replace the weights with the weights of a run of distil_small_english.py, and the results and the card with new ones.

    Args:
        held_out (`Path`): run of run_mlm.py with the results of the new weights on held-out text.
    """
    from hf_deberta_ext.publishing.card import write_run_card
    from hf_deberta_ext.publishing.facts import REPORT_FILE, RunFacts

    model = write_weights(run, folder)
    results = json.loads((held_out / "all_results.json").read_text(encoding="utf-8"))
    measured = {name: value for name, value in results.items() if name.startswith("eval_")}
    (folder / "all_results.json").write_text(json.dumps(measured, indent=4) + "\n", encoding="utf-8")
    card = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))["card"]
    report = json.loads((run / "training.json").read_text(encoding="utf-8"))
    names = dict(pairs="pairs", embeddings="embeddings", sentences="masked sentences", passages="masked passages")
    card["training"]["distillation"] = {
        "steps": report["steps"],
        "learning rate": report["learning_rate"],
        "rows of a step": {name: report["rows"][key] for key, name in names.items()},
        "weights of the losses": {name: report["weights"][key] for key, name in names.items()},
    }
    card["training"]["teacher"] = TEACHER
    card["hardware"]["seconds of distillation"] = report["seconds"]
    distilled = " and then distilled from all-MiniLM-L6-v2 on the same text"
    card["opening"] = OPENING.format(model.num_parameters() / 1e6, distilled)
    write_run_card(folder, RunFacts(**card))


def write_weights(run: Path, folder: Path) -> Any:
    """Write a run's model in float16, with dropout for fine-tuning, and its tokenizer and code."""
    from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
    from hf_deberta_ext.tokenization import load_tokenizer

    model = DebertaExtForMaskedLM.from_pretrained(run, **DROPOUT)
    model.half().save_pretrained(folder)
    # Loading uses float32: a CPU takes 16 times as long for a training step in float16.
    DebertaExtConfig.from_pretrained(folder, dtype="float32").save_pretrained(folder)
    load_tokenizer(run, model_max_length=model.config.max_position_embeddings).save_pretrained(folder)
    return model


def renew_code(folder: Path):
    """Replace the model code in the folder by the code of the installed package."""
    from hf_deberta_ext import DebertaExtConfig

    config = DebertaExtConfig.from_pretrained(folder)
    for file in folder.glob("*.py"):
        file.unlink()
    config.save_pretrained(folder)


def add_scores(scores: Path, folder: Path):
    """Put the table of compare_checkpoints.py into the card; replace an earlier table."""
    from hf_deberta_ext.publishing.card import put_section

    put_section(folder / "README.md", "## Fine-tuned\n\n" + (scores / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

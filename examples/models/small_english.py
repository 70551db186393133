# SPDX-License-Identifier: Apache-2.0
"""The text that deberta-ext-small-en was trained on, and its folder made from a finished run.

    python examples/models/small_english.py corpus DATA corpus/       # DATA holds wikipedia_en, squad_v1 and manuals_en
    python examples/run_mlm.py --train_data corpus/train ...          # the commands are in the model's card
    python examples/models/small_english.py save RUN examples/models/deberta-ext-small-en
    python examples/models/small_english.py code examples/models/deberta-ext-small-en     # its code files alone, renewed

Documents: the articles of wikipedia_en; of squad_v1 the contexts of the training questions, each once, by article; the
sections of manuals_en.
"""

import argparse
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

SOURCES = [
    "wikipedia_en: 2,900 articles of the English Wikipedia (CC BY-SA 3.0), 8.1 million words",
    "squad_v1: the contexts of SQuAD 1.1's training questions (Wikipedia, CC BY-SA 4.0), 2.2 million words",
    "manuals_en: English manuals of Debian's documentation packages, 5.3 million words: linux-doc, git-doc, manpages (GPL-2 "
    "mostly), postgresql-doc (PostgreSQL licence), perl-doc (GPL or Artistic), sqlite3-doc (public domain), "
    "libreoffice-help (MPL-2.0), rust-doc (MIT or Apache-2.0), Debian's own (GPL-2+ or CC BY-SA)",
]
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, positions in (("corpus", ("data", "folder")), ("save", ("run", "folder")), ("code", ("folder",))):
        command = commands.add_parser(name)
        for position in positions:
            command.add_argument(position, type=Path)
    args = vars(parser.parse_args())
    {"corpus": write_corpus, "save": save_model, "code": renew_code}[args.pop("command")](**args)


def write_corpus(data: Path, folder: Path):
    """Write train/*.jsonl and held_out/wikipedia_en.jsonl, a document a line."""
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
    """The contexts of each article, each once, in the order of the questions."""
    contexts: dict[str, dict[str, None]] = {}
    for name in ("train", "train_ambiguous_start"):
        for row in rows(folder / f"{name}.jsonl.gz"):
            contexts.setdefault(row["title"], {})[row["context"]] = None
    return ["\n\n".join(article) for article in contexts.values()]


def save_model(run: Path, folder: Path):
    """Write the model of a run in float16, with dropout for fine-tuning, its tokenizer, code, curves and card."""
    from hf_deberta_ext import DebertaExtForMaskedLM
    from hf_deberta_ext.publishing.card import write_run_card
    from hf_deberta_ext.publishing.facts import RunFacts
    from hf_deberta_ext.tokenization import load_tokenizer

    report = json.loads((run / "run_report.json").read_text(encoding="utf-8"))
    model = DebertaExtForMaskedLM.from_pretrained(run, **DROPOUT)
    model.half().save_pretrained(folder)
    load_tokenizer(run, model_max_length=model.config.max_position_embeddings).save_pretrained(folder)
    for name in ("curves.png", "all_results.json"):
        shutil.copyfile(run / name, folder / name)
    card = report["card"]
    card["training"] |= dict(data=SOURCES, tokenizer="unigram, 16,000 pieces in lower case, trained on the same text")
    millions = model.num_parameters() / 1e6
    facts = card | dict(
        license="cc-by-sa-4.0",
        parameters=model.num_parameters(),
        opening=f"A small English DeBERTa (v3's attention, Enhanced Mask Decoder) of {millions:.1f} million parameters, "
        "lower case, pre-trained on CPU cores with hf_deberta_ext. It is for trying things on a laptop, and small tasks.",
        limits=["Its text is encyclopedic and technical, its longest training input 128 tokens."],
    )
    write_run_card(folder, RunFacts(**facts))


def renew_code(folder: Path):
    """Write the package's model code into the folder, in place of an older version's."""
    from hf_deberta_ext import DebertaExtConfig

    config = DebertaExtConfig.from_pretrained(folder)
    for file in folder.glob("*.py"):
        file.unlink()
    config.save_pretrained(folder)


if __name__ == "__main__":
    main()

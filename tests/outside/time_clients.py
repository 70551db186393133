# SPDX-License-Identifier: Apache-2.0
"""Times GLiNER and CrossEncoder with transformers' DeBERTa-v2 and with ours: medians of runs in turn, and their ratio.

    python tests/outside/time_clients.py gliner cross_encoder --threads 2 --repeats 7
    python tests/outside/time_clients.py cross_encoder --pairs $DEBERTA_EXT_DATA/squad_v1/validation.jsonl.gz --texts 96

In an environment that has gliner or sentence-transformers. Models of v3-small's shape with random weights; texts of half
to all of the words. CrossEncoder, in its own batches of 32, is timed beside BERT and ModernBERT of the same depth too.
"""

import argparse
import gzip
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from client_journeys import SIZES, make_models, replaced  # noqa: E402
from scripts import PAGES  # noqa: E402

from hf_deberta_ext.tokenization import load_tokenizer  # noqa: E402

SHAPE = dict(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072, position_buckets=256)


def gliner(models: Path, texts: list[str]) -> dict:
    from gliner import GLiNER

    config = {"model_name": str(models / "stock" / "encoder"), "max_len": 384}
    stock, ours = GLiNER.from_config(config), GLiNER.from_config(config)
    replaced(ours)
    return {name: lambda m=m: m.inference(texts, ["person", "place"]) for name, m in (("stock", stock), ("ours", ours))}


def cross_encoder(models: Path, texts: list[str] | list[tuple[str, str]]) -> dict:
    from sentence_transformers import CrossEncoder

    rows = [text if isinstance(text, tuple) else ("Which files does the index name?", text) for text in texts]
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "ours" / "scorer")
    for name, more in (("Bert", {}), ("ModernBert", {"intermediate_size": 1152})):
        special = {
            f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "cls", "sep", "bos", "eos")
        }
        sizes = {key: value for key, value in (SIZES | SHAPE).items() if key not in ("type_vocab_size", "position_buckets")}
        config = getattr(transformers, f"{name}Config")(**(sizes | special | more), vocab_size=len(tokenizer), num_labels=1)
        getattr(transformers, f"{name}ForSequenceClassification")(config).save_pretrained(models / name / "scorer")
        tokenizer.save_pretrained(models / name / "scorer")
    found = {
        name: CrossEncoder(str(models / name / "scorer"), trust_remote_code=True, device="cpu")
        for name in ("stock", "ours", "Bert", "ModernBert")
    }
    return {name: lambda m=m: m.predict(rows, show_progress_bar=False) for name, m in found.items()}


def read_pairs(file: Path, count: int) -> list[tuple[str, str]]:
    """Two texts a row, of rows at equal steps; of SQuAD, questions with the paragraph and with the answer's sentence."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if "answers" not in rows[0]:
        chosen = rows[:: max(1, len(rows) // count)][:count]
        return [tuple([value for value in row.values() if isinstance(value, str)][:2]) for row in chosen]
    pairs = []
    for row in rows[:: max(1, len(rows) // (count // 2))][: count // 2]:
        context, start = row["context"], row["answers"]["answer_start"][0]
        first, last = context.rfind(". ", 0, start) + 1, context.find(". ", start)
        pairs += [(row["question"], context), (row["question"], context[first : last + 1 if last >= 0 else None].strip())]
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="+", choices=("gliner", "cross_encoder"))
    parser.add_argument("--words", nargs="+", type=int, default=[40, 160], help="of the longest text (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--pairs", type=Path, help="of cross_encoder: .jsonl.gz, two texts a row, or SQuAD's; --texts pairs")
    parser.add_argument("--processor_time", action="store_true", help="not the clock's: for one thread on a busy machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    found = " ".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES).split()
    if options.pairs:
        pairs = read_pairs(options.pairs, options.texts)
        options.clients, options.words = ["cross_encoder"], ["real"]
    tokenizer = load_tokenizer(ROOT / "examples" / "models" / "deberta-ext-small-en")
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder), SIZES | SHAPE, ("encoder", "scorer"), tokenizer)
        for client, words in itertools.product(options.clients, options.words):
            if options.pairs:
                texts = pairs
            else:
                texts = [" ".join(found[i * words : i * words + words * (8 + i % 8) // 15]) for i in range(options.texts)]
            runs = globals()[client](Path(folder), texts)
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for repeat in range(options.repeats + 1):
                for name, run in runs.items():
                    started = clock()
                    run()
                    if repeat:  # the first warms up
                        seconds[name].append(clock() - started)
            spread = "; ".join(
                f"{name} {statistics.median(s):.2f} s, {min(s):.2f} to {max(s):.2f}" for name, s in seconds.items()
            )
            ours = statistics.median(seconds.pop("ours"))
            ratios = ", ".join(f"{statistics.median(s) / ours:.2f} of {name}" for name, s in seconds.items())
            print(f"{client}, {words} words: times the speed {ratios} ({spread})", flush=True)


if __name__ == "__main__":
    main()

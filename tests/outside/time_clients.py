# SPDX-License-Identifier: Apache-2.0
"""Time GLiNER and CrossEncoder with transformers' DeBERTa-v2 and with ours: medians of alternating runs, and their ratio.

    python tests/outside/time_clients.py gliner cross_encoder --threads 2 --repeats 7
    python tests/outside/time_clients.py cross_encoder --pairs $DEBERTA_EXT_DATA/squad_v1/validation.jsonl.gz --texts 96
    python tests/outside/time_clients.py zero_shot bert_score --model nli --pairs mnli.jsonl.gz --texts 32 --threads 1

Runs in an environment that has gliner, sentence-transformers or bert-score. Without --model, the models have v3-small's
shape and random weights; the texts have between half and all of the words. CrossEncoder uses its own batches of 32, and is
also compared with BERT and ModernBERT of the same depth.

With --model, a deberta-v2 checkpoint for sequence classification, cross_encoder, zero_shot and bert_score are timed with
transformers' class, with its attention replaced, with this package's class and with int8, and their scores are compared.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "examples" / "benchmarks")]

from client_journeys import SIZES, make_models, replaced  # noqa: E402
from measuring import take_turns  # noqa: E402
from scripts import PAGES  # noqa: E402

from hf_deberta_ext import DebertaExtForSequenceClassification  # noqa: E402
from hf_deberta_ext.int8 import quantise  # noqa: E402
from hf_deberta_ext.tokenization import load_tokenizer  # noqa: E402

SHAPE = dict(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072, position_buckets=256)


def gliner(models: Path, texts: list[str]) -> dict:
    from gliner import GLiNER

    config = {"model_name": str(models / "stock" / "encoder"), "max_len": 384}
    sides = {}
    for name in ("stock", "ours", "stock, quantize", "ours, quantize"):
        sides[name] = model = GLiNER.from_config(config)
        if "ours" in name:
            replaced(model)
        if "quantize" in name:
            model.quantize("int8")
    return {name: lambda model=model: model.inference(texts, ["person", "place"]) for name, model in sides.items()}


def cross_encoder(models: Path, texts: list) -> dict:
    from sentence_transformers import CrossEncoder

    rows = [("Which files does the index name?", text) if isinstance(text, str) else text for text in texts]
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "ours" / "scorer")
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep", "bos", "eos")}
    sizes = SIZES | SHAPE | special
    del sizes["type_vocab_size"], sizes["position_buckets"]
    for name, more in (("Bert", {}), ("ModernBert", {"intermediate_size": 1152})):
        config = getattr(transformers, f"{name}Config")(**(sizes | more), vocab_size=len(tokenizer), num_labels=1)
        getattr(transformers, f"{name}ForSequenceClassification")(config).save_pretrained(models / name / "scorer")
        tokenizer.save_pretrained(models / name / "scorer")
    runs = {}
    for name in ("stock", "ours", "Bert", "ModernBert"):
        model = CrossEncoder(str(models / name / "scorer"), trust_remote_code=True, device="cpu")
        runs[name] = lambda model=model: model.predict(rows, show_progress_bar=False)
    return runs


def ranked(source: str, pairs: list) -> tuple:
    """Return a CrossEncoder, and a function that returns its scores of `pairs`."""
    from sentence_transformers import CrossEncoder

    ranker = CrossEncoder(source, device="cpu")
    return ranker, lambda: ranker.predict(pairs, show_progress_bar=False).tolist()


def classified(source: str, pairs: list) -> tuple:
    """Return the model of a pipeline, and a function that scores four labels for the first text of each pair."""
    pipe = transformers.pipeline("zero-shot-classification", source, dtype="float32", device="cpu")
    labels = ["history", "travel", "money", "work"]

    def run():
        answers = pipe([text for text, _ in pairs], labels, batch_size=8)
        return [dict(zip(answer["labels"], answer["scores"], strict=True))[label] for answer in answers for label in labels]

    return pipe.model, run


def compared(source: str, pairs: list) -> tuple:
    """Return the model of a BERTScorer, and a function that returns F1 of each pair."""
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=source, num_layers=8, batch_size=16, device="cpu", use_fast_tokenizer=True)
    return scorer._model, lambda: scorer.score(*map(list, zip(*pairs, strict=True)))[2].tolist()


def with_checkpoint(client: str, checkpoint: str, folder: Path, pairs: list) -> dict:
    """Return the function of a client by side: transformers' class, replaced attention, this package's class, int8."""
    model = DebertaExtForSequenceClassification.from_pretrained(checkpoint, dtype="float32")
    model.save_pretrained(folder / "ours")
    quantise(model).save_pretrained(folder / "int8")
    for name in ("ours", "int8"):
        transformers.AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder / name)
    make = {"cross_encoder": ranked, "zero_shot": classified, "bert_score": compared}[client]
    runs, expected = {}, None
    for side in ("stock", "replaced", "ours", "int8"):
        source = str(folder / side) if side in ("ours", "int8") else checkpoint
        model, run = make(source, pairs)
        if side == "replaced":
            replaced(model)
        scores = torch.tensor(run())
        expected = scores if expected is None else expected
        print(f"{client}, {side}: scores differ by at most {(scores - expected).abs().max():.1e}")
        runs[side] = run
    return runs


def read_pairs(file: Path, count: int) -> list[tuple[str, str]]:
    """Return evenly spaced pairs of MNLI, or SQuAD's questions with their paragraph and the sentence of the answer."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if "premise" in rows[0]:
        return [(row["premise"], row["hypothesis"]) for row in rows[:: max(1, len(rows) // count)][:count]]
    pairs = []
    for row in rows[:: max(1, len(rows) // (count // 2))][: count // 2]:
        context, start = row["context"], row["answers"]["answer_start"][0]
        first, last = context.rfind(". ", 0, start) + 1, context.find(". ", start)
        pairs += [(row["question"], context), (row["question"], context[first : last + 1 if last >= 0 else None].strip())]
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="+", choices=("gliner", "cross_encoder", "zero_shot", "bert_score"))
    parser.add_argument("--model", help="deberta-v2 folder for cross_encoder, zero_shot and bert_score; needs --pairs")
    parser.add_argument("--words", nargs="+", type=int, default=[40, 160], help="words in the longest text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--pairs", type=Path, help="SQuAD or MNLI file (.jsonl.gz); takes --texts pairs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    words = " ".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES).split()
    inputs = {}
    for longest in options.words:
        lengths = [longest * (8 + i % 8) // 15 for i in range(options.texts)]
        inputs[f"{longest} words"] = [" ".join(words[i * longest :][:length]) for i, length in enumerate(lengths)]
    if options.pairs:
        inputs = {"pairs": read_pairs(options.pairs, options.texts)}
    tokenizer = load_tokenizer(ROOT / "examples" / "models" / "deberta-ext-small-en")
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder), SIZES | SHAPE, ("encoder", "scorer"), tokenizer)
        for client in options.clients:
            for name, texts in inputs.items():
                if options.model:
                    runs = with_checkpoint(client, options.model, Path(folder), texts)
                else:
                    runs = {"gliner": gliner, "cross_encoder": cross_encoder}[client](Path(folder), texts)
                for run in runs.values():
                    run()
                seconds = take_turns(runs, options.repeats)
                ours = statistics.median(seconds["ours"])
                for side, times in seconds.items():
                    median = statistics.median(times)
                    spread = f"{median:.2f} s, {min(times):.2f} to {max(times):.2f}"
                    print(f"{client}, {name}, {side}: {spread}; ours has {median / ours:.2f} times its speed", flush=True)


if __name__ == "__main__":
    main()

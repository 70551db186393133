# SPDX-License-Identifier: Apache-2.0
"""Outputs of sentence-transformers and pipelines for saved folders, with the package or without it."""

from pathlib import Path

import torch

WORDS = ["w7 w8 w9 w12 w40 w41 w42", "w30", "w9 w12 w7"]
PAIRS = [("w7 w8", "w9 w12 w40 w41 w42"), ("w30", "w31"), ("w9 w12 w7 w8 w8", "w50")]
LABELS = ["w20", "w21 w22"]
TASKS = {
    "fill-mask": ("masked_lm", "w7 [MASK] w9 w12", {"top_k": 4}),
    "text-classification": ("classifier", WORDS, {"top_k": None}),
    "text-classification of a pair": ("classifier", {"text": "w7 w8", "text_pair": "w9 w12"}, {"top_k": None}),
    "text-classification in a batch": ("classifier", WORDS, {"top_k": None, "batch_size": 3}),
    "token-classification": ("tagger", WORDS[0], {}),
    "zero-shot-classification": ("classifier", WORDS[0], {"candidate_labels": LABELS, "hypothesis_template": "w25 {}"}),
    "feature-extraction": ("encoder", WORDS[1:], {}),
}


def pipelines(folder: Path) -> dict:
    """Return the outputs of each pipeline of `TASKS`."""
    from transformers import pipeline

    answers = {}
    for name, (model, given, options) in TASKS.items():
        task = name.split()[0]
        pipe = pipeline(task, model=str(folder / model), trust_remote_code=True, device="cpu")
        answers[name] = pipe(given, **options)
    return answers


def sentence_transformers(folder: Path) -> dict:
    """Return CrossEncoder scores, and SentenceTransformer embeddings from a plain folder and from its own saved folder."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    options = dict(trust_remote_code=True, device="cpu")
    results = {}
    for name in ("scorer", "classifier"):
        encoder = CrossEncoder(str(folder / name), **options)
        results[name] = torch.from_numpy(encoder.predict(PAIRS))
    # A folder that was not saved by SentenceTransformer gets mean pooling, which must ignore padding.
    for name in ("encoder", "sentence_encoder"):
        model = SentenceTransformer(str(folder / name), **options)
        results[name] = torch.from_numpy(model.encode(WORDS, batch_size=3))
        results[f"{name}, one by one"] = torch.from_numpy(model.encode(WORDS, batch_size=1))
    return results


def run(folder: Path) -> dict:
    return {"pipelines": pipelines(folder), "sentence_transformers": sentence_transformers(folder)}

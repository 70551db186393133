# SPDX-License-Identifier: Apache-2.0
"""A reranker behind vLLM: real pairs, bfloat16, and load with wrong requests and clients that leave.

DEBERTA_EXT_RERANKER=FOLDER replaces the tiny model by a fine-tuned deberta-v2 checkpoint with one label, and
DEBERTA_EXT_LOAD_SECONDS=600 the 20 seconds of load:

    DEBERTA_EXT_RERANKER=mine DEBERTA_EXT_LOAD_SECONDS=600 python -m pytest -s -m serve tests/serving/test_vllm_load.py
"""

import asyncio
import gzip
import json
import os
import random
import statistics
from pathlib import Path

import pytest
import torch
from task_files import DATA, needs_data
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
)

pytest.importorskip("vllm", reason="needs an environment with vLLM: tests/serving/constraints.txt")
from server_load import load
from vllm_server import FIELDS, PAIRS, TOKENIZER, logits_one_by_one, scores_of, server

pytestmark = pytest.mark.serve

RERANKER = os.environ.get("DEBERTA_EXT_RERANKER")
SECONDS = float(os.environ.get("DEBERTA_EXT_LOAD_SECONDS", "20"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if RERANKER:
        return Path(RERANKER)
    folder, tokenizer = tmp_path_factory.mktemp("models") / "rank", AutoTokenizer.from_pretrained(TOKENIZER)
    sizes = FIELDS | dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=1)
    torch.manual_seed(0)
    DebertaV2ForSequenceClassification(DebertaV2Config(**sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """Return expected(pairs, dtype): the scores of transformers, one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def scores(pairs, dtype="float32"):
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval()
        logits = logits_one_by_one(model, tokenizer, pairs, truncation=True, max_length=512)
        return logits[:, 0].float().sigmoid()

    return scores


@pytest.fixture(scope="module")
def client(folder):
    with server(folder, "--io-processor-plugin", "deberta_pairs") as client:
        yield client


def real_pairs(count):
    """Return pairs of MNLI and SQuAD, of about 10 to more than 512 tokens, in random order."""
    pairs = []
    for file, first, second in (
        ("glue/mnli/validation_matched.jsonl.gz", "premise", "hypothesis"),
        ("squad_v1/validation.jsonl.gz", "question", "context"),
    ):
        with gzip.open(Path(DATA) / file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        pairs += [(row[first], row[second]) for row in random.Random(0).sample(rows, count // 2)]
    random.Random(1).shuffle(pairs)
    return pairs


@needs_data
def test_scores_of_1000_real_pairs_64_at_a_time_are_those_of_transformers_one_by_one(client, expected):
    pairs = real_pairs(1000)
    wanted = expected(pairs)
    difference = (scores_of(client.base_url, pairs) - wanted).abs().max()
    print(f"\n1,000 pairs, scores from {wanted.min():.3f} to {wanted.max():.3f}: differences of at most {difference:.1e}")
    assert difference < 1e-5


def test_wrong_requests_and_clients_that_leave_change_no_score(client, expected):
    pairs = PAIRS[:60]
    seen = asyncio.run(load(client.base_url, pairs, expected(pairs).tolist(), SECONDS))
    print(f"{seen.good} good answers, {seen.difference:.1e} from transformers; {seen.gone} clients left")
    print({name: dict(statuses) for name, statuses in seen.statuses.items()})
    assert not seen.failures
    assert seen.good > 20 and seen.gone > 5
    assert seen.difference < 1e-5
    refused = {name: {*statuses} <= {*range(400, 500)} for name, statuses in seen.statuses.items()}
    assert all(refused.values()), refused
    assert (scores_of(client.base_url, pairs) - expected(pairs)).abs().max() < 1e-5
    memory = [megabytes for _, megabytes in seen.memory]
    half = len(memory) // 2
    assert statistics.median(memory[half:]) < 1.1 * statistics.median(memory[:half])


def test_bfloat16_is_as_precise_as_in_transformers(folder, expected):
    pairs = real_pairs(200) if DATA else PAIRS
    exact, rounded = expected(pairs), expected(pairs, "bfloat16")
    with server(folder, "--dtype", "bfloat16") as client:
        served = scores_of(client.base_url, pairs)
    errors = [(scores - exact).abs() for scores in (served, rounded)]
    print("\nbfloat16, largest and mean error: served {:.1e}, {:.1e}; transformers {:.1e}, {:.1e}".format(
        *(value for error in errors for value in (error.max(), error.mean()))
    ))  # fmt: skip
    assert 0 < errors[0].max() <= 2 * errors[1].max()
    assert errors[0].mean() <= 1.5 * errors[1].mean()

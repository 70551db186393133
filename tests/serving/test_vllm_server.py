# SPDX-License-Identifier: Apache-2.0
"""vLLM with the plugin as a server: what clients get over HTTP is what transformers computes, one text at a time."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
    DebertaV2Model,
)

from hf_deberta_ext import DebertaExtForSequenceClassification

pytest.importorskip("vllm", reason="needs an environment with vLLM: tests/serving/constraints.txt")
httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.serve

TOKENIZER = Path(__file__).parents[2] / "examples/models/deberta-ext-small-en"
LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}
WORDS = "the a cat dog house river tree green old new walks sees finds under over and big small man woman city".split()
FIELDS = dict(
    hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128, relative_attention=True,
    pos_att_type=["p2c", "c2p"], position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
    position_biased_input=False, type_vocab_size=0, max_position_embeddings=512, layer_norm_eps=1e-7, pooler_hidden_size=64,
)  # fmt: skip


ON_CPU = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_NO_USAGE_STATS": "1"}


def text(count, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


PAIRS = [(text(3 + n % 9, n), text((4, 16, 64, 250, 380)[n % 5], -n)) for n in range(120)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of each kind of model with random weights, and the model that clients' answers are compared with."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), AutoTokenizer.from_pretrained(TOKENIZER)
    common = FIELDS | dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, initializer_range=0.06)
    types = dict(type_vocab_size=2, conv_kernel_size=3, conv_act="gelu", position_biased_input=True, num_labels=1)
    torch.manual_seed(0)
    made = {
        "rank": DebertaV2ForSequenceClassification(DebertaV2Config(**common | types)),
        "nli": DebertaV2ForSequenceClassification(DebertaV2Config(**common, id2label=LABELS)),
        "ner": DebertaV2ForTokenClassification(DebertaV2Config(**common, num_labels=5)),
        "embed": DebertaV2Model(DebertaV2Config(**common)),
    }
    for name, model in made.items():
        model.eval().save_pretrained(folder / name)
        if name == "nli":
            DebertaExtForSequenceClassification.from_pretrained(folder / name).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder, made, tokenizer


@contextmanager
def server(folder, *flags):
    """Serve a folder; yield a client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "m"]
    command += ["--runner", "pooling", "--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", "2048"]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with open(f"{folder}.log", "w") as log:
        process = subprocess.Popen(
            [*map(str, command), "--port", str(port), *flags],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    client.get("/health")
                    break
                except httpx.TransportError:
                    time.sleep(0.5)
            else:
                pytest.fail(Path(f"{folder}.log").read_text()[-3000:])
            yield client
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def post(client, path, **body):
    response = client.post(path, json={"model": "m", **body})
    assert response.status_code == 200, response.text
    return response.json()


def logits_one_by_one(model, tokenizer, inputs, **options):
    with torch.no_grad():
        return torch.cat([model(**tokenizer(*parts, return_tensors="pt", **options)).logits for parts in inputs])


def test_a_reranker(models):
    """A model with token types, a convolution and absolute positions, which /score and /rerank can carry."""
    folder, made, tokenizer = models
    expected = logits_one_by_one(made["rank"], tokenizer, PAIRS)[:, 0].sigmoid()

    async def scores(url):
        """64 requests at a time."""
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            free = asyncio.Semaphore(64)

            async def score(pair):
                async with free:
                    answer = await client.post("/score", json={"model": "m", "text_1": pair[0], "text_2": pair[1]})
                return answer.json()["data"][0]["score"]

            return torch.tensor(await asyncio.gather(*map(score, PAIRS)))

    with server(folder / "rank") as client:
        assert (asyncio.run(scores(client.base_url)) - expected).abs().max() < 1e-5
        query, documents = PAIRS[0][0], [second for _, second in PAIRS[:5]]
        ranked = post(client, "/rerank", query=query, documents=documents)["results"]
        pairs = [(query, document) for document in documents]
        order = logits_one_by_one(made["rank"], tokenizer, pairs)[:, 0].sort(descending=True)
        assert [row["index"] for row in ranked] == order.indices.tolist()
        long = "the cat", "dog " * 700
        refused = client.post("/score", json={"model": "m", "text_1": long[0], "text_2": long[1]})
        assert refused.status_code == 400 and "512" in refused.text
        kept = post(client, "/score", text_1=long[0], text_2=long[1], truncate_prompt_tokens=-1)["data"][0]["score"]
        truncated = logits_one_by_one(made["rank"], tokenizer, [long], truncation=True, max_length=512)
        assert kept == pytest.approx(truncated[0, 0].sigmoid().item(), abs=1e-5)
        assert client.post("/score", json={"model": "m"}).status_code in (400, 422)


def test_an_nli_model_of_this_package(models):
    """Texts by /classify, pairs by the plugin deberta_pairs."""
    folder, made, tokenizer = models
    texts, pairs = [second for _, second in PAIRS[:40]], [list(pair) for pair in PAIRS[:40]]
    expected = {
        "texts": logits_one_by_one(made["nli"], tokenizer, [(text,) for text in texts]).softmax(-1),
        "pairs": logits_one_by_one(made["nli"], tokenizer, pairs).softmax(-1),
    }
    with server(folder / "nli", "--io-processor-plugin", "deberta_pairs") as client:
        answers = {
            "texts": post(client, "/classify", input=texts)["data"],
            "pairs": post(client, "/pooling", data={"pairs": pairs})["data"],
        }
        for kind, rows in answers.items():
            assert (torch.tensor([row["probs"] for row in rows]) - expected[kind]).abs().max() < 1e-5
            assert [row["label"] for row in rows] == [LABELS[n] for n in expected[kind].argmax(-1).tolist()]
        for data, named in [
            ({"pairs": ["x", "y"]}, "expected"),
            ({"pairs": [["x", "dog " * 700]]}, "at most 512 tokens"),
        ]:
            refused = client.post("/pooling", json={"model": "m", "data": data})
            assert refused.status_code == 400 and named in refused.text
        long = ["x", "dog " * 700]
        (kept,) = post(client, "/pooling", data={"pairs": [long], "truncate": True})["data"]
        truncated = logits_one_by_one(made["nli"], tokenizer, [long], truncation=True, max_length=512).softmax(-1)
        assert kept["probs"] == pytest.approx(truncated[0].tolist(), abs=1e-5)


def test_a_token_classifier(models):
    folder, made, tokenizer = models
    texts = [second for _, second in PAIRS[:10]]
    with server(folder / "ner") as client:
        rows = post(client, "/pooling", input=texts, task="token_classify")["data"]
    for row, part in zip(rows, texts, strict=True):
        expected = logits_one_by_one(made["ner"], tokenizer, [(part,)])[0].softmax(-1)
        assert (torch.tensor(row["data"]) - expected).abs().max() < 1e-5


def test_an_encoder(models):
    folder, made, tokenizer = models
    texts = [second for _, second in PAIRS[:10]]
    with server(folder / "embed") as client:
        rows = post(client, "/v1/embeddings", input=texts)["data"]
    for row, part in zip(rows, texts, strict=True):
        with torch.no_grad():
            mean = made["embed"](**tokenizer(part, return_tensors="pt")).last_hidden_state[0].mean(0)
        assert (torch.tensor(row["embedding"]) - torch.nn.functional.normalize(mean, dim=0)).abs().max() < 1e-5


def test_options_that_are_not_supported_end_the_server_with_their_names(models):
    folder, _, _ = models
    code = "from vllm import LLM; LLM({!r}, runner='pooling', dtype='float32', enable_lora=True)".format(str(folder / "nli"))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ON_CPU)
    assert ended.returncode and "lora" in (ended.stdout + ended.stderr).lower()

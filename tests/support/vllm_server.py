# SPDX-License-Identifier: Apache-2.0
"""A vLLM server with the plugin, and the requests and expected answers of the tests in tests/serving."""

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

import httpx
import pytest
import torch

TOKENIZER = Path(__file__).parents[2] / "examples/models/deberta-ext-small-en"
ON_CPU = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_NO_USAGE_STATS": "1"}
FLAGS = "--runner pooling --dtype float32 --enforce-eager --max-num-batched-tokens 2048 --served-model-name m".split()
FIELDS = dict(
    hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128, relative_attention=True,
    pos_att_type=["p2c", "c2p"], position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
    position_biased_input=False, type_vocab_size=0, max_position_embeddings=512, layer_norm_eps=1e-7, pooler_hidden_size=64,
    initializer_range=0.06,
)  # fmt: skip
WORDS = "the a cat dog house river tree green old new walks sees finds under over and big small man woman city".split()


def text(count, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


PAIRS = [(text(3 + n % 9, n), text((4, 16, 64, 250, 380)[n % 5], -n)) for n in range(120)]


@contextmanager
def server(folder, *flags):
    """Serve a folder as the model "m"; yield a client. `flags` replace those of FLAGS with the same name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *FLAGS, *address, *flags]
    file = Path(f"{folder}.log")
    with open(file, "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=ON_CPU, start_new_session=True)
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
                pytest.fail(file.read_text()[-3000:])
            yield client
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def post(client, path, **body):
    response = client.post(path, json={"model": "m", **body})
    assert response.status_code == 200, response.text
    return response.json()


def scores_of(url, pairs, at_once=64):
    """Return the scores of pairs by /score, one pair per request; pairs that are too long are truncated."""

    async def run():
        free = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:

            async def score(pair):
                body = {"model": "m", "text_1": pair[0], "text_2": pair[1], "truncate_prompt_tokens": -1}
                async with free:
                    answer = await client.post("/score", json=body)
                return answer.json()["data"][0]["score"]

            return torch.tensor(await asyncio.gather(*map(score, pairs)))

    return asyncio.run(run())


def logits_one_by_one(model, tokenizer, inputs, **options):
    """Return the logits of each of `inputs`, a text or a pair in a tuple, in a call of its own."""
    with torch.no_grad():
        return torch.cat([model(**tokenizer(*parts, return_tensors="pt", **options)).logits for parts in inputs])

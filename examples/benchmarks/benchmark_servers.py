# SPDX-License-Identifier: Apache-2.0
"""Measure requests per second of a reranker over HTTP: vLLM with this package's plugin, and 30 lines of FastAPI.

    python examples/benchmarks/benchmark_servers.py MODEL --pairs mnli.jsonl.gz squad.jsonl.gz --requests 500 --clients 64

MODEL is a folder of a deberta-v2 or deberta-ext checkpoint with one label. Runs in an environment with vLLM, httpx, fastapi
and uvicorn. Every server scores the same pairs, one pair per request; the table has requests per second, the median and the
99th percentile of the time of a request, and the largest difference of a score from transformers' model on one pair at a
time. `--url` also measures a server that already runs, such as infinity:

    infinity_emb v2 --model-id MODEL --served-model-name model --no-bettertransformer --port 7997
    python examples/benchmarks/benchmark_servers.py ... --url http://127.0.0.1:7997
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
# Columns of a row that make a pair, in the order in which they are tried.
COLUMNS = (("premise", "hypothesis"), ("question", "context"), ("sentence1", "sentence2"))
SIDES = {
    "vLLM and this package": ("vllm",),
    "FastAPI, this package, one by one": ("plain", "ours", "one"),
    "FastAPI, this package, dynamic batches": ("plain", "ours", "batches"),
    "FastAPI, transformers, one by one": ("plain", "stock", "one"),
    "FastAPI, transformers, dynamic batches": ("plain", "stock", "batches"),
}
RUNNING = "the server at --url"


def load(model: str, side: str):
    """Return a function that scores a list of pairs."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from hf_deberta_ext import DebertaExtForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(model)
    classes = {"ours": DebertaExtForSequenceClassification, "stock": AutoModelForSequenceClassification}
    classifier = classes[side].from_pretrained(model, dtype="float32").eval()

    @torch.inference_mode()
    def score(pairs: list[list[str]]) -> list[float]:
        firsts, seconds = zip(*pairs, strict=True)
        inputs = tokenizer([*firsts], [*seconds], padding=True, truncation=True, return_tensors="pt")
        return classifier(**inputs).logits[:, 0].sigmoid().tolist()

    return score


def serve(model: str, side: str, mode: str, port: str):
    """Serve POST /score {"text_1", "text_2"}: one pair at a time, or all waiting pairs, at most 64, in one batch."""
    import uvicorn
    from fastapi import FastAPI

    score = load(model, side)
    app = FastAPI()
    waiting: asyncio.Queue = asyncio.Queue()
    most = 64 if mode == "batches" else 1

    async def work():
        while True:
            requests = [await waiting.get()]
            while len(requests) < most and not waiting.empty():
                requests.append(waiting.get_nowait())
            scores = await asyncio.to_thread(score, [pair for pair, _ in requests])
            for (_, answer), value in zip(requests, scores, strict=True):
                answer.set_result(value)

    @app.on_event("startup")
    async def start():
        app.state.worker = asyncio.create_task(work())

    @app.get("/health")
    async def health():
        return {}

    @app.post("/score")
    async def answer(request: dict):
        future = asyncio.get_running_loop().create_future()
        await waiting.put(([request["text_1"], request["text_2"]], future))
        return {"data": [{"score": await future}]}

    uvicorn.run(app, host=HOST, port=int(port), log_level="warning")


def command(model: str, port: str, kind: str, *options: str) -> list[str]:
    if kind == "plain":
        return [sys.executable, __file__, model, "--serve", *options, port]
    flags = "--runner pooling --dtype float32 --enforce-eager --max-num-seqs 64 --max-num-batched-tokens 8192".split()
    address = ["--host", HOST, "--port", port, "--served-model-name", "model"]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *flags, *address]


def read_pairs(files: list[str], count: int) -> dict[str, list[list[str]]]:
    """Return `count` pairs from each file, and `count` from all of them in random order as "mixed"."""
    sets = {}
    for file in files:
        with (gzip.open if file.endswith(".gz") else open)(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line, _ in zip(lines, range(20 * count), strict=False)]
        names = next(names for names in COLUMNS if names[0] in rows[0])
        pairs = [[row[name] for name in names] for row in rows]
        sets[Path(file).parent.name] = random.Random(0).sample(pairs, count)
    if len(files) > 1:
        sets["mixed"] = random.Random(1).sample([pair for pairs in sets.values() for pair in pairs], count)
    return sets


async def measure(pairs: list[list[str]], clients: int, url: str, rerank: bool) -> tuple[list[float], list[float], float]:
    """Send the pairs to /rerank or /score; return the scores, the sorted seconds of each request, and the total seconds."""
    import httpx

    limits, free = httpx.Limits(max_connections=clients), asyncio.Semaphore(clients)
    path, rows, score = ("/rerank", "results", "relevance_score") if rerank else ("/score", "data", "score")
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def request(pair: list[str]) -> tuple[float, float]:
            if rerank:
                body = {"model": "model", "query": pair[0], "documents": [pair[1]]}
            else:
                body = {"model": "model", "text_1": pair[0], "text_2": pair[1], "truncate_prompt_tokens": -1}
            async with free:
                start = time.perf_counter()
                response = await client.post(path, json=body)
                response.raise_for_status()
                return response.json()[rows][0][score], time.perf_counter() - start

        await asyncio.gather(*map(request, pairs[:clients]))
        start = time.perf_counter()
        answers = await asyncio.gather(*map(request, pairs))
        total = time.perf_counter() - start
    scores, seconds = zip(*answers, strict=True)
    return [*scores], sorted(seconds), total


@contextmanager
def running(model: str, side: str, url: str | None):
    """Run the server of a side, on a free port; yield its address, which is `url` for a server that already runs."""
    if side == RUNNING:
        yield url
        return
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = str(free.getsockname()[1])
    with open("servers.log", "ab") as log:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        process = subprocess.Popen(command(model, port, *SIDES[side]), stdout=log, stderr=log, env=environment)
    try:
        wait_until_ready(process, f"http://{HOST}:{port}")
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(process: subprocess.Popen, url: str):
    import httpx

    while process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(1)
    raise SystemExit("the server ended before it was ready; see servers.log")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", nargs="+", metavar="FILE", help=".jsonl or .jsonl.gz of MNLI or SQuAD")
    parser.add_argument("--requests", type=int, default=500, help="requests per set")
    parser.add_argument("--clients", type=int, default=64, help="requests at a time")
    parser.add_argument(
        "--sides", nargs="+", choices=[*SIDES, RUNNING], help="servers to measure, in this order; default: all"
    )
    parser.add_argument("--url", help="address of a server that already runs and has /rerank and a model named model")
    parser.add_argument(
        "--serve", nargs=3, metavar=("ours|stock", "one|batches", "PORT"), help="only serve a model by FastAPI"
    )
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.model, *arguments.serve)
    sets = read_pairs(arguments.pairs, arguments.requests)
    score = load(arguments.model, "stock")
    expected = {}
    for name, pairs in sets.items():
        expected[name] = [score([pair])[0] for pair in pairs]
    print("| server | pairs | requests/s | median, ms | 99th percentile, ms | scores differ by |")
    print("| --- | --- | --- | --- | --- | --- |")
    sides = arguments.sides or [*SIDES]
    if arguments.url and not arguments.sides:
        sides.append(RUNNING)
    for side in sides:
        with running(arguments.model, side, arguments.url) as url:
            for name, pairs in sets.items():
                scores, seconds, total = asyncio.run(measure(pairs, arguments.clients, url, side == RUNNING))
                difference = max(abs(a - b) for a, b in zip(scores, expected[name], strict=True))
                median, worst = (1000 * seconds[int(len(seconds) * share)] for share in (0.5, 0.99))
                print(
                    f"| {side} | {name} | {len(pairs) / total:.1f} | {median:.0f} | {worst:.0f} | {difference:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

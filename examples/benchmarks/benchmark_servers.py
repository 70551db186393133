# SPDX-License-Identifier: Apache-2.0
"""Requests per second of a classifier over HTTP: vLLM with this package's plugin, and 30 lines of FastAPI around a model.

    python examples/benchmarks/benchmark_servers.py MODEL --pairs mnli.jsonl.gz squad.jsonl.gz --requests 500 --clients 64

MODEL is a folder of a deberta-v2 or deberta-ext checkpoint in float32. Runs in an environment with httpx, psutil, fastapi,
uvicorn and, unless --sides leaves it out, vLLM. Every server scores the same pairs, one pair per request, and the servers
take turns for --rounds. The table has requests per second, the median and the 99th percentile of the time of a request, the
memory of the server process after the requests, and the largest difference of a score (the sigmoid of the first logit) from
transformers' model on one pair at a time.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

HOST, PORT = "127.0.0.1", 8107
# Columns of a row that make a pair, in the order in which they are tried.
COLUMNS = (("premise", "hypothesis"), ("question", "context"), ("sentence1", "sentence2"))
SIDES = {
    "vLLM and this package": ("vllm",),
    "FastAPI, this package, one by one": ("plain", "ours", "one"),
    "FastAPI, this package, dynamic batches": ("plain", "ours", "batches"),
    "FastAPI, this package, int8, one by one": ("plain", "int8", "one"),
    "FastAPI, this package, int8, dynamic batches": ("plain", "int8", "batches"),
    "FastAPI, transformers, one by one": ("plain", "stock", "one"),
    "FastAPI, transformers, dynamic batches": ("plain", "stock", "batches"),
}


def load(model: str, side: str):
    """Return a scoring function of a list of pairs."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from hf_deberta_ext import DebertaExtForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(model)
    model_class = DebertaExtForSequenceClassification if side == "ours" else AutoModelForSequenceClassification
    classifier = model_class.from_pretrained(model, dtype="float32").eval()

    @torch.inference_mode()
    def score(pairs: list[list[str]]) -> list[float]:
        firsts, seconds = zip(*pairs, strict=True)
        inputs = tokenizer([*firsts], [*seconds], padding=True, truncation=True, return_tensors="pt")
        return classifier(**inputs).logits[:, 0].sigmoid().tolist()

    return score


def serve(model: str, side: str, mode: str):
    """Serve POST /score {"text_1", "text_2"}: one pair at a time, or all waiting pairs, at most 40, in one batch."""
    import uvicorn
    from fastapi import FastAPI

    score = load(model, side)
    app = FastAPI()
    waiting, lock = [], threading.Lock()

    # FastAPI calls these functions in its threads.
    @app.get("/health")
    def health():
        return {}

    @app.post("/score")
    def answer(body: dict):
        request = {"pair": [body["text_1"], body["text_2"]]}
        if mode == "batches":
            waiting.append(request)
        with lock:
            if mode == "one":
                waiting.append(request)
            # The first thread computes all pairs that wait, and the others then find their scores.
            if "score" not in request:
                batch = waiting[:]
                del waiting[: len(batch)]
                for each, value in zip(batch, score([each["pair"] for each in batch]), strict=True):
                    each["score"] = value
        return {"data": [{"score": request["score"]}]}

    uvicorn.run(app, host=HOST, port=PORT, log_level="warning")


def save_int8(model: str, folder: str):
    """Save an int8 copy of a model and its tokenizer."""
    from transformers import AutoTokenizer

    from hf_deberta_ext import DebertaExtForSequenceClassification
    from hf_deberta_ext.int8 import quantise

    quantise(DebertaExtForSequenceClassification.from_pretrained(model, dtype="float32")).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def command(model: str, kind: str, *options: str) -> list[str]:
    """Return the command that starts a server."""
    if kind == "plain":
        return [sys.executable, __file__, model, "--serve", *options]
    flags = "--runner pooling --dtype float32 --enforce-eager --max-num-seqs 64 --max-num-batched-tokens 8192".split()
    address = ["--host", HOST, "--port", str(PORT), "--served-model-name", "model"]
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


async def measure(pairs: list[list[str]], clients: int) -> tuple[list[float], list[float], float]:
    """Return the scores, the seconds of each request, and the seconds of all."""
    import httpx

    limits, free = httpx.Limits(max_connections=clients), asyncio.Semaphore(clients)
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{PORT}", timeout=600, limits=limits) as client:

        async def request(pair: list[str]) -> tuple[float, float]:
            body = {"model": "model", "text_1": pair[0], "text_2": pair[1], "truncate_prompt_tokens": -1}
            async with free:
                start = time.perf_counter()
                response = await client.post("/score", json=body)
                response.raise_for_status()
                return response.json()["data"][0]["score"], time.perf_counter() - start

        await asyncio.gather(*map(request, pairs[:clients]))
        start = time.perf_counter()
        answers = await asyncio.gather(*map(request, pairs))
        total = time.perf_counter() - start
    scores, seconds = zip(*answers, strict=True)
    return [*scores], [*seconds], total


class Result:
    """Times of requests, memory and differences of scores over all rounds of a server with a set of pairs."""

    def __init__(self):
        self.seconds, self.total, self.memory, self.difference = [], 0.0, 0, 0.0

    def add(self, scores: list[float], seconds: list[float], total: float, expected: list[float], memory: int):
        self.seconds += seconds
        self.total += total
        self.memory = max(self.memory, memory)
        self.difference = max(self.difference, *(abs(a - b) for a, b in zip(scores, expected, strict=True)))

    def row(self) -> str:
        """Return the cells of a row of the table."""
        seconds = sorted(self.seconds)
        median, worst = (1000 * seconds[int(len(seconds) * share)] for share in (0.5, 0.99))
        rate = len(seconds) / self.total
        return f"{rate:.1f} | {median:.0f} | {worst:.0f} | {self.memory / 1e6:.0f} | {self.difference:.1e}"


@contextmanager
def server(words: list[str]):
    """Context manager that starts a server, waits until it is ready, yields its process, and ends it."""
    import httpx
    import psutil

    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    with open("servers.log", "ab") as log:
        process = psutil.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit("the server ended before it was ready; see servers.log")
            try:
                if httpx.get(f"http://{HOST}:{PORT}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(1)
        yield process
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", nargs="+", metavar="FILE", help=".jsonl or .jsonl.gz of MNLI or SQuAD")
    parser.add_argument("--requests", type=int, default=500, help="requests per set")
    parser.add_argument("--clients", type=int, default=64, help="requests at a time")
    parser.add_argument("--rounds", type=int, default=1, help="how many times each server is started and measured")
    parser.add_argument("--sides", nargs="+", default=[*SIDES], choices=[*SIDES])
    parser.add_argument("--serve", nargs=2, metavar=("ours|int8|stock", "one|batches"), help="only serve a model by FastAPI")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.model, *arguments.serve)
    sets = read_pairs(arguments.pairs, arguments.requests)
    score = load(arguments.model, "stock")
    expected = {}
    for name, pairs in sets.items():
        expected[name] = [score([pair])[0] for pair in pairs]
    results = {(side, name): Result() for side in arguments.sides for name in sets}
    with tempfile.TemporaryDirectory() as int8:
        if any("int8" in SIDES[side] for side in arguments.sides):
            save_int8(arguments.model, int8)
        for _ in range(arguments.rounds):
            for side in arguments.sides:
                folder = int8 if "int8" in SIDES[side] else arguments.model
                with server(command(folder, *SIDES[side])) as process:
                    for name, pairs in sets.items():
                        scores, seconds, total = asyncio.run(measure(pairs, arguments.clients))
                        results[side, name].add(scores, seconds, total, expected[name], process.memory_info().rss)
    print("| server | pairs | requests/s | median, ms | 99th percentile, ms | memory, MB | scores differ by |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (side, name), result in results.items():
        print(f"| {side} | {name} | {result.row()} |")


if __name__ == "__main__":
    main()

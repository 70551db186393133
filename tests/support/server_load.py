# SPDX-License-Identifier: Apache-2.0
"""Load of a server of a reranker: good requests, requests that it must refuse, and clients that leave."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil

PAIR = {"model": "m", "text_1": "a cat", "text_2": "a dog"}


def pooled(data) -> dict:
    return {"model": "m", "data": data}


# Name -> path and body: an object, or the bytes themselves.
BAD = {
    "too many tokens": ("/score", PAIR | {"text_2": "dog " * 700}),
    "a million characters": ("/score", PAIR | {"text_2": "dog " * 250_000}),
    "a word of a million characters": ("/score", PAIR | {"text_2": "d" * 1_000_000}),
    "too many tokens in one of many documents": ("/rerank", {"model": "m", "query": "a", "documents": ["b", "dog " * 700]}),
    "JSON that ends early": ("/score", b'{"model": "m", "text_1": "a cat", "te'),
    "no JSON": ("/score", b"text_1=a+cat&text_2=a+dog"),
    "an empty body": ("/score", b""),
    "bytes that are not UTF-8": ("/score", b'{"model": "m", "text_1": "\xff\xfe", "text_2": "a dog"}'),
    "arrays nested 100,000 times": ("/score", b'{"model": "m", "text_1": ' + b"[" * 100_000),
    "a missing field": ("/score", {"model": "m", "text_1": "a cat"}),
    "a number as a text": ("/score", PAIR | {"text_2": 3}),
    "an object as a text": ("/score", PAIR | {"text_2": {"a": "dog"}}),
    "two texts and three": ("/score", PAIR | {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
    "a word as a number of tokens": ("/score", PAIR | {"truncate_prompt_tokens": "many"}),
    "another model": ("/score", PAIR | {"model": "other"}),
    "another path": ("/scores", PAIR),
    "pairs: no object": ("/pooling", pooled(3)),
    "pairs: none": ("/pooling", pooled({"pairs": []})),
    "pairs: a text less": ("/pooling", pooled({"pairs": [["a cat"]]})),
    "pairs: a number as a text": ("/pooling", pooled({"pairs": [["a cat", 3]]})),
    "pairs: too many tokens": ("/pooling", pooled({"pairs": [["a cat", "a dog"], ["a cat", "dog " * 700]]})),
    "pairs: truncate is no bool": ("/pooling", pooled({"pairs": [["a cat", "a dog"]], "truncate": "no"})),
    "pairs: half of a character": ("/pooling", rb'{"model": "m", "data": {"pairs": [["a cat", "a dog\ud800"]]}}'),
    "pairs: a million characters": ("/pooling", pooled({"pairs": [["a cat", "dog " * 250_000]]})),
}
HUGE = [name for name in BAD if "million" in name]


@dataclass
class Seen:
    """Results of a load: the largest difference of a good score, statuses of bad requests, and times with memory in MB."""

    good: int = 0
    gone: int = 0
    difference: float = 0.0
    failures: Counter = field(default_factory=Counter)
    statuses: dict[str, Counter] = field(default_factory=lambda: {name: Counter() for name in BAD})
    memory: list[tuple[float, float]] = field(default_factory=list)


def resident() -> float:
    """Return the resident memory of all processes that this process started, in MB."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


async def leave(address: httpx.URL, pair: tuple[str, str], randomness: random.Random):
    """Send a request, or its first half, and close the connection without reading an answer."""
    body = json.dumps(PAIR | {"text_1": pair[0], "text_2": pair[1]}).encode()
    head = f"POST /score HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(head.encode() + body[: randomness.choice((len(body), len(body) // 2))])
    await writer.drain()
    await asyncio.sleep(randomness.uniform(0, 0.2))
    writer.transport.abort()


async def load(url: httpx.URL, pairs, expected: list[float], seconds: float, clients: int = 24, report=print) -> Seen:
    """Load the server at `url` for `seconds` with `clients` requests at a time; `expected` are the scores of `pairs`."""
    seen = Seen()

    async def good(client, randomness):
        number = randomness.randrange(len(pairs))
        first, second = pairs[number]
        path, body = randomness.choice((
            ("/score", PAIR | {"text_1": first, "text_2": second}),
            ("/pooling", pooled({"pairs": [[first, second]]})),
        ))  # fmt: skip
        answer = await client.post(path, json=body)
        if answer.status_code != 200:
            seen.failures[f"{path}: {answer.status_code} {answer.text[:200]}"] += 1
            return
        (row,) = answer.json()["data"]
        score = row["score"] if path == "/score" else row["probs"][0]
        seen.difference = max(seen.difference, abs(score - expected[number]))
        seen.good += 1

    async def bad(client, name):
        path, body = BAD[name]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
        seen.statuses[name][answer.status_code] += 1

    def a_bad(randomness):
        # A huge body takes about a second of the front end's time.
        return randomness.choice(HUGE if randomness.random() < 0.02 else [name for name in BAD if name not in HUGE])

    async def client_of(number):
        randomness = random.Random(number)
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            while time.monotonic() < start + seconds:
                kind = randomness.choices(("good", "bad", "gone"), weights=(5, 3, 2))[0]
                try:
                    if kind == "good":
                        await good(client, randomness)
                    elif kind == "bad":
                        await bad(client, a_bad(randomness))
                    else:
                        await leave(url, randomness.choice(pairs), randomness)
                        seen.gone += 1
                except httpx.HTTPError as error:
                    seen.failures[f"{kind}: {type(error).__name__}"] += 1

    async def watch():
        while True:
            seconds_passed, megabytes = time.monotonic() - start, resident()
            seen.memory.append((seconds_passed, megabytes))
            report(f"{seconds_passed:4.0f} s: {megabytes:5.0f} MB, {seen.good} good answers, {seen.gone} clients left")
            await asyncio.sleep(min(60, seconds / 10))

    # The first figure of the memory has what each request needs.
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        for name in BAD:
            await bad(client, name)
    start = time.monotonic()
    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(client_of, range(clients)))
    watching.cancel()
    seen.memory.append((time.monotonic() - start, resident()))
    return seen

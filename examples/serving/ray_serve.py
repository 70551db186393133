# SPDX-License-Identifier: Apache-2.0
"""Serve a reranker with Ray Serve, by two replicas with dynamic batches: POST /score {"text_1": text, "text_2": text}.

    pip install hf_deberta_ext "ray[serve]"
    cd examples/serving && serve run ray_serve:app model=MODEL

MODEL is the absolute path of a DeBERTa checkpoint with one label.
"""

import asyncio

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.serve import Application
from transformers import AutoTokenizer

from hf_deberta_ext import DebertaExtForSequenceClassification

api = FastAPI()


class Pair(BaseModel):
    text_1: str
    text_2: str


@serve.deployment(num_replicas=2, max_ongoing_requests=64, ray_actor_options={"num_cpus": 1})
@serve.ingress(api)
class Reranker:
    def __init__(self, model: str):
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = DebertaExtForSequenceClassification.from_pretrained(model, dtype="float32").eval()

    @torch.inference_mode()
    def compute(self, pairs: list[Pair]) -> list[float]:
        firsts, seconds = [pair.text_1 for pair in pairs], [pair.text_2 for pair in pairs]
        longest = self.model.config.max_position_embeddings
        inputs = self.tokenizer(firsts, seconds, padding=True, truncation=True, max_length=longest, return_tensors="pt")
        return self.model(**inputs).logits[:, 0].sigmoid().tolist()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0)
    async def scores(self, pairs: list[Pair]) -> list[float]:
        return await asyncio.to_thread(self.compute, pairs)

    @api.post("/score")
    async def score(self, pair: Pair) -> dict[str, float]:
        return {"score": await self.scores(pair)}


def app(arguments: dict[str, str]) -> Application:
    return Reranker.bind(arguments["model"])

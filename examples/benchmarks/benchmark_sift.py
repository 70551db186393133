# SPDX-License-Identifier: Apache-2.0
"""Compare the cost of a training step with and without SiFT, on random weights: medians of interleaved repeats.

Ratios for a model of v3-xsmall's shape and transformers' BERT of the same size, five minutes on two CPU cores:

    python examples/benchmarks/benchmark_sift.py --threads 2

A tiny run, a few seconds:

    python examples/benchmarks/benchmark_sift.py --layers 2 --shapes 4x16 --repeats 2
"""

import argparse

import numpy as np
import torch
from measuring import positive, same_size, shape, spread, take_turns
from transformers import AutoModelForSequenceClassification

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.sift import PRESETS, Sift, SiftOptions

SIDES: dict[str, SiftOptions | None] = {
    "plain": None,
    "SiFT": PRESETS["default"],
    "SiFT, official": PRESETS["official"],
    "SiFT, K = 3": SiftOptions(steps=3),
}


def main(argv: list[str] | None = None) -> dict[tuple[str, str, str], float]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=["deberta-ext", "bert"], choices=["deberta-ext", "bert"])
    parser.add_argument("--layers", type=positive, default=12)
    parser.add_argument(
        "--shapes", nargs="+", type=shape, default=[(16, 64), (8, 128)], help="BATCHxLENGTH of the timed steps"
    )
    parser.add_argument("--repeats", type=positive, default=5, help="timed steps of each side")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    ratios = {}
    print("| model | batch | step | median ms | times plain | 10th to 90th percentile |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in args.models:
        model = build(name, args.layers, max(length for _, length in args.shapes)).to(args.device)
        for B, N in args.shapes:
            times = measure(model, (B, N), args.repeats)
            for side, values in times.items():
                median, low, high = spread(np.divide(values, times["plain"]))
                ratios[name, f"{B}x{N}", side] = median
                cells = (
                    f"{name} | {B}x{N} | {side} | {1000 * spread(values)[0]:.0f} | {median:.2f} | {low:.2f} to {high:.2f}"
                )
                print(f"| {cells} |", flush=True)
    return ratios


def build(name: str, layers: int, length: int) -> torch.nn.Module:
    """Return a classifier with dropout, in training mode."""
    torch.manual_seed(0)
    config = DebertaExtConfig.from_preset("v3-xsmall", num_hidden_layers=layers, vocab_size=30522)
    if name == "bert":
        return same_size("Bert", config, max(512, length), "ForSequenceClassification").train()
    return AutoModelForSequenceClassification.from_config(config).train()


def measure(model: torch.nn.Module, shape: tuple[int, int], repeats: int) -> dict[str, list[float]]:
    """Measure the seconds of each step, by side; the sides take turns, after a first round that is not counted."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    device = next(model.parameters()).device
    ids = torch.randint(5, model.config.vocab_size, shape, device=device)
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids[:, 0] % 2)
    calls = {side: lambda options=options: step(model, batch, optimizer, options) for side, options in SIDES.items()}
    for call in calls.values():
        call()
    return take_turns(calls, repeats, device=device.type)


def step(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, options: SiftOptions | None
):
    if options is None:
        loss = model(**batch).loss
    else:
        with Sift(model, options) as sift:
            with sift.clean_pass():
                outputs = model(**batch)
            loss = outputs.loss + sift(outputs, batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()

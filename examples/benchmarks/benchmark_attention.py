# SPDX-License-Identifier: Apache-2.0
"""Measure speed and memory of attention and whole models, compared with transformers' DeBERTa and a BERT of the same size
with SDPA.

All sides (compared implementations) run in one process and take turns; every ratio is between two calls of the same turn.
Tables show medians, and in brackets the 10th and the 90th percentile of the ratios. Weights and tokens are random. Memory
is the peak that torch's allocator provides during one call, in addition to the memory in use before.

    # 2 CPU cores, five and a half minutes; examples/guides/measured.md has the output
    python examples/benchmarks/benchmark_attention.py --backends auto eager --shapes 8x128 2x512 1x1024 1x2048 --repeats 5
    # only a check that it runs; half a minute
    python examples/benchmarks/benchmark_attention.py --preset v3-xsmall --layers 1 --shapes 1x64 --repeats 2

`attention`: one call with given keys, queries and values; the floor (lower bound) is SDPA without positions. `model`:
the encoder without a head, no padding and no mask. `padded`: batches of 32 texts with the lengths of the texts in a file;
needs --lengths_from, and uses the first of --backends with padded, unpadded and packed rows of 512 tokens. "training" is
forward and backward of the sum of squares, with the preset's dropout in models and none in `attention`. "tflops" in the CSV
files counts the operations that the equations need for the real tokens, not the operations that a side executes. `--peers`
adds ModernBERT, and the packages disentangled-flash and flashdeberta, which need CUDA.
"""

import argparse
import copy
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import measuring
import numpy as np
import torch
import transformers
from measuring import BATCH, CELLS, LONGEST
from torch import nn
from torch.nn import functional
from tqdm import tqdm
from transformers.models.deberta_v2 import modeling_deberta_v2

from hf_deberta_ext import (
    ATTENTION_BACKENDS,
    DebertaExtConfig,
    DebertaExtModel,
    DisentangledSelfAttention,
    RelativePosition,
)
from hf_deberta_ext.conversion.deberta_v2 import to_deberta_v2_config
from hf_deberta_ext.training.user_errors import ExitOnUserError

PARTS, MODES = ("attention", "model", "padded"), ("inference", "training")
BACKENDS = ("auto", *ATTENTION_BACKENDS)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Largest allowed difference of outputs, relative to their norm.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
STOCK, PLAIN, BERT, MODERN = "transformers", "SDPA without positions", "BERT + SDPA", "ModernBERT + SDPA"
FLASH, FLASH_DEBERTA = "disentangled-flash", "flashdeberta"
# Models other than DeBERTa, which have no relative positions.
OTHER = (PLAIN, BERT, MODERN)
COLUMNS = (
    "shape tokens padding mode side backend repeats seconds speedup speedup_p10 speedup_p90 over_floor over_floor_p10 "
    "over_floor_p90 tflops extra_bytes bytes_over_eager skipped"
).split()


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, help="parts to run (default: attention model, and padded with --lengths_from)")
    add("--modes", nargs="+", choices=MODES, default=list(MODES))
    add("--backends", nargs="+", choices=BACKENDS, default=["auto", "eager", "sdpa", "blocked"])
    add("--peers", nargs="+", choices=(MODERN, FLASH, FLASH_DEBERTA), default=[], help="other models and kernels to time")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=DTYPES, default="float32")
    add("--compile", action="store_true", help="compile every side of `model` with torch.compile")
    measuring.add_flags(parser, repeats=11, output_dir="benchmark_output")
    args = parser.parse_args(argv)
    if args.parts is None:
        args.parts = ["attention", "model"]
        if args.lengths_from:
            args.parts.append("padded")
    if ("padded" in args.parts) != (args.lengths_from is not None):
        parser.error("--parts padded and --lengths_from must be passed together")
    if args.tokenizer and not args.lengths_from:
        parser.error("--tokenizer counts the tokens of --lengths_from: pass both")
    if args.compile and args.parts != ["model"]:
        parser.error("--compile only applies to the part model: add --parts model")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device")
    try:
        sizes = dict(num_hidden_layers=args.layers, vocab_size=args.vocab_size)
        args.config = DebertaExtConfig.from_preset(args.preset, **sizes)
        args.lengths = []
        if args.lengths_from:
            args.lengths = measuring.text_lengths(args.lengths_from, args.tokenizer)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return args


@dataclass
class Side:
    """A compared module: `forward(**prepare(inputs))` returns states [B, N, hidden], with gradients of all parameters."""

    forward: Callable[..., torch.Tensor]
    module: nn.Module
    prepare: Callable[[dict], dict] = dict

    def backend(self) -> str:
        """Return the backend names of the last call."""
        modules = self.module.modules()
        used = {module.last_backend for module in modules if isinstance(module, DisentangledSelfAttention)} - {None}
        return "+".join(sorted({name for name, _ in used}))


def attempt(build: Callable[[], Side]) -> Side:
    """Return the side that `build` makes; if `build` fails, return a side whose calls raise an error with the reason."""
    try:
        return build()
    except Exception as error:  # of any package
        reason = measuring.first_line(error)

    def refuse(**inputs):
        raise RuntimeError(reason)

    return Side(refuse, nn.Module())


class ConstantProjection(nn.Module):
    """A projection without cost, because its result is fixed."""

    def __init__(self, result: nn.Parameter):
        super().__init__()
        self.result = result

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.result


def attention_sides(args, B: int, N: int) -> dict[str, Side]:
    """Return attention layers with the same Q, K, V and table P: transformers', ours with each backend, and SDPA."""
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = DebertaExtConfig.from_preset(args.preset, share_att_key=False, **no_dropout)
    options = dict(device=args.device, dtype=DTYPES[args.dtype])
    Q, K, V = (nn.Parameter(torch.randn(B, N, config.hidden_size, **options)) for _ in range(3))
    P = nn.Parameter(torch.randn(config.relative_table_size, config.hidden_size, **options))
    measuring.equal_far_rows(P)

    def side(module: nn.Module, call: Callable[[nn.Module], torch.Tensor]) -> Side:
        module.query_proj, module.key_proj, module.value_proj = map(ConstantProjection, (Q, K, V))
        module.pos_key_proj, module.pos_query_proj, module.P = nn.Identity(), nn.Identity(), P
        return Side(lambda: call(module), module)

    def plain(_) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2) for x in (Q, K, V))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    # Not timed, because the encoders compute relative positions once for all layers.
    buckets, distance = config.position_buckets, config.relative_distance
    delta = RelativePosition(buckets=buckets, max_distance=distance).to(args.device)(N)
    relative_pos = modeling_deberta_v2.build_relative_position(Q, K, bucket_size=buckets, max_position=distance)
    mask = torch.ones(B, 1, N, N, dtype=torch.bool, device=args.device)
    stock_config = to_deberta_v2_config(config)
    stock = modeling_deberta_v2.DisentangledSelfAttention(stock_config)
    sides = {STOCK: side(stock, lambda m: m(Q, mask, relative_pos=relative_pos, rel_embeddings=P)[0])}
    for name in args.backends:
        attention = DisentangledSelfAttention(copy.deepcopy(config))
        attention.config._attn_implementation = name
        sides[name] = side(attention, lambda m: m(Q, None, P, delta=delta, max_distance=distance)[0])

    def flash() -> Side:
        from disentangled_flash import TritonTrainingDisentangledSelfAttention

        module = TritonTrainingDisentangledSelfAttention(stock_config, assume_unpadded=True)
        # The original method multiplies by the weights of the three projections in one product.
        module._project_qkv = lambda hidden_states: (Q, K, V)
        return side(module, lambda m: m(Q, mask[:, 0, 0], rel_embeddings=P)[0])

    def flash_deberta() -> Side:
        from flashdeberta import FlashDisentangledSelfAttention

        module = FlashDisentangledSelfAttention(stock_config)
        return side(module, lambda m: m(Q, None, relative_pos=relative_pos, rel_embeddings=P)[0])

    builders = {FLASH: flash, FLASH_DEBERTA: flash_deberta}
    sides |= {name: attempt(build) for name, build in builders.items() if name in args.peers}
    return sides | {PLAIN: side(nn.Module(), plain)}


def model_sides(args, longest: int, variants: dict[str, tuple[str, bool | None]]) -> dict[str, Side]:
    """Return whole encoders for up to `longest` tokens: transformers', ours with the same weights, and other models of
    the same size.

    Args:
        variants (`dict`): maps a name to the backend and the argument of `set_unpadding`; if the name contains "packed",
            the texts of a batch share rows.
    """
    config, options = args.config, dict(device=args.device, dtype=DTYPES[args.dtype])
    # A GPU draws random weights of this size quickly.
    with torch.device(args.device):
        model = DebertaExtModel(config)
        stock = measuring.stock_model(model, transformers.DebertaV2Model).to(**options)
        bert = measuring.same_size("Bert", config, longest).to(**options)
    model = model.to(**options)

    def compiled(module: nn.Module) -> nn.Module:
        return torch.compile(module, dynamic=False) if args.compile else module

    def side(module: nn.Module, prepare: Callable[[dict], dict] = dict) -> Side:
        called = compiled(module)
        return Side(lambda **inputs: called(**inputs).last_hidden_state, module, prepare)

    def twin(module: nn.Module) -> nn.Module:
        """Return a copy of the modules that shares their parameters."""
        return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})

    def flash() -> Side:
        from disentangled_flash import enable_deberta_inference, enable_deberta_training

        without_padding = dict(assume_unpadded=not args.lengths)
        training = enable_deberta_training(copy.deepcopy(stock), **without_padding)
        inference = enable_deberta_inference(copy.deepcopy(stock).eval(), **without_padding)
        calls = compiled(training), compiled(inference)

        def forward(**inputs) -> torch.Tensor:
            if not torch.is_grad_enabled():
                length = inputs["input_ids"].shape[1]
                try:
                    inference.encoder.activate_shape(length)
                except ValueError:
                    inference.encoder.prepare_for_inference(length).activate_shape(length)
            return calls[not torch.is_grad_enabled()](**inputs).last_hidden_state

        return Side(forward, nn.ModuleList([training, inference]))

    def flash_deberta() -> Side:
        from flashdeberta import FlashDisentangledSelfAttention

        module = twin(stock)
        for layer in module.encoder.layer:
            layer.attention.self.__class__ = FlashDisentangledSelfAttention
        return side(module)

    sides = {STOCK: side(stock)}
    for name, (backend, unpadding) in variants.items():
        module = twin(model)
        # set_attn_implementation would raise an error here; with this assignment, the error becomes a row of the table.
        module.config._attn_implementation = backend
        module.set_unpadding(unpadding)
        sides[name] = side(module)
        if "packed" in name:
            sides[name].prepare = pack
    builders = {FLASH: flash, FLASH_DEBERTA: flash_deberta}
    builders[MODERN] = lambda: side(measuring.same_size("ModernBert", config, longest).to(**options))
    sides |= {name: attempt(build) for name, build in builders.items() if name in args.peers}
    return sides | {BERT: side(bert)}


def pack(inputs: dict, row: int = LONGEST) -> dict[str, torch.Tensor]:
    """Return input_ids and document_ids of a padded batch's texts, packed into rows of at most `row` tokens."""
    ids, documents = [[]], [[]]
    for text, length in zip(inputs["input_ids"], inputs["attention_mask"].sum(1).tolist(), strict=True):
        if sum(map(len, ids[-1])) + length > row:
            ids.append([])
            documents.append([])
        ids[-1].append(text[:length])
        documents[-1].append(torch.full_like(text[:length], len(ids[-1])))
    names = dict(input_ids=ids, document_ids=documents)
    return {name: nn.utils.rnn.pad_sequence([*map(torch.cat, rows)], True) for name, rows in names.items()}


def step(side: Side, mode: str, batches: list[dict]) -> list[torch.Tensor]:
    """Compute the states of each batch; "training" accumulates gradients, and drops them at the end."""
    if mode == "inference":
        with torch.inference_mode():
            return [side.forward(**inputs) for inputs in batches]
    outputs = []
    for inputs in batches:
        states = side.forward(**inputs)
        states.float().square().sum().backward()
        outputs.append(states.detach())
    side.module.zero_grad()
    return outputs


def real_tokens(states: torch.Tensor, inputs: dict) -> torch.Tensor:
    """Return [T, hidden] without padding, in the order of the texts."""
    mask = inputs.get("attention_mask", inputs.get("document_ids"))
    if mask is None:
        return states.flatten(0, 1)
    return states[mask.bool()]


def differences(outputs: dict[str, list[torch.Tensor]]) -> dict[str, str]:
    """Return the sides with states [T, hidden] that differ from transformers'; models other than DeBERTa are skipped."""
    wrong = {}
    for name in outputs.keys() - {STOCK, *OTHER}:
        for states, stock in zip(outputs[name], outputs.get(STOCK, []), strict=False):
            difference = ((states - stock).double().norm() / stock.double().norm()).item()
            if not difference <= TOLERANCE[stock.dtype]:
                wrong[name] = f"{name} and {STOCK} differ by {difference:.1e} of the norm"
    return wrong


def useful_flops(config: DebertaExtConfig, lengths: list[int], mode: str, *, whole_model: bool, positions: bool) -> float:
    """Return the operations that the equations need for texts of these lengths: matrix products, two for each
    multiplication.

    A backward pass counts twice as much as the forward pass; in attention 2.5 times, because it computes the scores again.
    """
    h, R, terms = config.hidden_size, config.relative_table_size, 0
    if positions:
        terms = len(config.pos_att_type)
    attention = sum(4 * h * N * N + 2 * terms * h * N * min(2 * N - 1, R) for N in lengths)
    linear = sum(lengths) * 2 * (4 * h * h + 2 * h * config.intermediate_size) + 2 * terms * R * h * h
    if mode == "training":
        attention, linear = 3.5 * attention, 3 * linear
    if whole_model:
        return config.num_hidden_layers * (attention + linear)
    return attention


def measure(
    labels: dict, sides: dict[str, Side], batches: list[dict], lengths: list[int], args, bar: tqdm, *, whole_model: bool
) -> list[dict]:
    """Return a row of COLUMNS for each mode and side; the row of a side that cannot run gives the reason.

    Args:
        labels (`dict`): columns that all rows have in common.
        batches (`list[dict]`): inputs; a turn uses all of them.
        lengths (`list[int]`): tokens of each text.
    """
    rows, inputs, wrong = [], {name: [side.prepare(batch) for batch in batches] for name, side in sides.items()}, {}
    # Inference also runs if only training is measured, because outputs are compared without dropout.
    for mode in MODES if "training" in args.modes else ["inference"]:
        outputs, memory, skipped, calls = {}, {}, dict(wrong), {}
        bar.set_postfix_str(f"{labels['shape']}, {mode}")
        for name, side in sides.items():
            side.module.train(mode == "training")
            try:
                outputs[name] = [*map(real_tokens, step(side, mode, inputs[name]), inputs[name])]
                if mode in args.modes and name not in wrong:
                    call = functools.partial(step, side, mode)
                    memory[name] = max(measuring.peak_bytes(functools.partial(call, [x]), args.device) for x in inputs[name])
                    calls[name] = functools.partial(call, inputs[name])
            except Exception as error:  # of any package
                skipped[name] = measuring.first_line(error)
                outputs.pop(name, None)
                calls.pop(name, None)
                side.module.zero_grad()
        if mode == "inference":
            wrong = differences(outputs)
            if {*wrong} - {*args.peers}:
                sys.exit(f"benchmark_attention: {'; '.join(wrong.values())}")
            for name, reason in wrong.items():
                skipped[name] = reason
                calls.pop(name, None)
        del outputs
        if mode not in args.modes:
            continue
        times = measuring.take_turns(calls, args.repeats, device=args.device, after=bar.update)
        for name in sides:
            row = labels | dict(mode=mode, side=name, skipped=skipped.get(name, ""), backend="")
            if name in times:
                row |= dict(backend=sides[name].backend(), repeats=args.repeats)
                row |= compare(name, times) | dict(extra_bytes=memory[name])
                kinds = dict(whole_model=whole_model, positions=name not in OTHER)
                row["tflops"] = useful_flops(args.config, lengths, mode, **kinds) / row["seconds"] / 1e12
                if memory.get("eager"):
                    row["bytes_over_eager"] = memory[name] / memory["eager"]
            rows.append(row)
    return rows


def compare(name: str, times: dict[str, list[float]]) -> dict[str, float]:
    """Return a side's median seconds, its speedup over transformers, and its time relative to the floor (SDPA or BERT)."""
    result = dict(seconds=measuring.spread(times[name])[0])
    floor = times.get(PLAIN, times.get(BERT))
    for column, above, below in (("speedup", times.get(STOCK), times[name]), ("over_floor", times[name], floor)):
        if above and below:
            ratios = measuring.spread(np.divide(above, below))
            result |= dict(zip((column, f"{column}_p10", f"{column}_p90"), ratios, strict=True))
    return result


def run_shapes(part: str, args, bar: tqdm) -> Iterator[list[dict]]:
    """Return the rows of `attention` or `model` for each shape."""
    if part == "model":
        sides = model_sides(args, max(N for _, N in args.shapes), {name: (name, None) for name in args.backends})
    for B, N in args.shapes:
        inputs = {}
        if part == "attention":
            sides = attention_sides(args, B, N)
        else:
            inputs = dict(input_ids=torch.randint(5, args.vocab_size, (B, N), device=args.device))
        if args.compile:
            torch.compiler.reset()
        labels = dict(shape=f"{B}x{N}", tokens=B * N)
        yield measure(labels, sides, [inputs], [N] * B, args, bar, whole_model=part == "model")


def run_padded(part: str, args, bar: tqdm) -> Iterator[list[dict]]:
    chosen = torch.tensor(args.lengths)[torch.randint(len(args.lengths), (args.batches, BATCH))]
    batches = [measuring.random_batch(lengths, args.vocab_size) for lengths in chosen]
    batches = [{name: x.to(args.device) for name, x in inputs.items()} for inputs in batches]
    tokens, places = int(chosen.sum()), sum(batch["input_ids"].numel() for batch in batches)
    name, padding = args.backends[0], 1 - tokens / places
    variants = {f"{name}, padded": (name, False), f"{name}, unpadded": (name, True), f"{name}, packed": (name, None)}
    bar.write(f"padded: {args.batches} batches of {BATCH} texts, {tokens} tokens, {padding:.0%} padding")
    labels = dict(shape=f"{args.batches}x{BATCH}", tokens=tokens, padding=padding)
    sides = model_sides(args, LONGEST, variants)
    yield measure(labels, sides, batches, chosen.flatten().tolist(), args, bar, whole_model=True)


def run_part(part: str, args) -> Iterator[list[dict]]:
    """Yield the rows of a part, measured shape by shape."""
    torch.manual_seed(args.seed)
    run, turns = run_shapes, len(args.shapes)
    if part == "padded":
        run, turns = run_padded, 1
    with tqdm(total=turns * len(args.modes) * args.repeats, desc=part, file=sys.stderr) as bar:
        yield from run(part, args, bar)


def main():
    args = parse_args()
    with ExitOnUserError(expected=(ValueError, OSError)):
        measuring.make_output_dir(args.output_dir, args.overwrite)
    if args.threads:
        torch.set_num_threads(args.threads)
    print(measuring.environment(args), flush=True)
    (args.output_dir / "environment.txt").write_text(measuring.environment(args) + "\n", encoding="utf-8")
    for part in args.parts:
        rows = []
        for measured in run_part(part, args):
            rows += [dict.fromkeys(COLUMNS) | row for row in measured]
            measuring.write_csv(args.output_dir / f"{part}.csv", rows)
        print(f"\n{part}\n{CELLS}")
        for mode in args.modes:
            print(f"\n{mode}\n{measuring.sides_table([row for row in rows if row['mode'] == mode])}", flush=True)
        label = "times faster than transformers"
        measuring.draw_sides([row | {"part": part} for row in rows], "speedup", label, args.output_dir / f"{part}.png")


if __name__ == "__main__":
    main()

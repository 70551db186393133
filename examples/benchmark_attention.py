# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of attention and whole models, beside transformers' DeBERTa and a BERT of the same size with SDPA.

All sides run in one process and take turns; every ratio is between two calls of the same turn. Tables show medians, and
in brackets the 10th and the 90th percentile of the ratios. Weights and tokens are random. Memory is the peak of what
torch's allocator handed out during one call, beyond what was there before.

    # 2 CPU cores, five and a half minutes; the README has what it printed
    python examples/benchmark_attention.py --backends auto eager --shapes 8x128 2x512 1x1024 1x2048 --repeats 5 --threads 2
    # does it run here? half a minute
    python examples/benchmark_attention.py --preset v3-xsmall --layers 1 --shapes 1x64 --repeats 2

`attention`: one call for keys, queries and values that are there already; the floor is SDPA without positions. `model`: the
encoder without a head, no padding and no mask. `padded`: batches of 32 texts, as long as those of a file; runs where
--lengths-from is given, with the first of --backends. "training" is forward and backward of the sum of squares, with the
preset's dropout in models and none in `attention`.
"""

import argparse
import copy
import json
import os
import platform
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Otherwise the profiler, which counts the memory, reports each start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import numpy as np
import pandas as pd
import torch
import transformers
from matplotlib.ticker import ScalarFormatter
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
from hf_deberta_ext.analysis.plots.figure import new_figure, save_figure
from hf_deberta_ext.conversion.deberta_v2 import to_deberta_v2_config, to_deberta_v2_state_dict
from hf_deberta_ext.tokenization import check_vocabulary

PARTS, MODES = ("attention", "model", "padded"), ("inference", "training")
BACKENDS = ("auto", *ATTENTION_BACKENDS)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# By how much of their norm outputs may differ.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
STOCK, PLAIN, BERT = "transformers", "SDPA without positions", "BERT + SDPA"
BATCH, LONGEST = 32, 512
COLUMNS = (
    "shape", "tokens", "padding", "mode", "side", "backend", "repeats", "seconds",
    "speedup", "speedup_p10", "speedup_p90", "over_floor", "over_floor_p10", "over_floor_p90",
    "extra_bytes", "bytes_over_eager", "skipped",
)  # fmt: skip


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, help="default: attention model, and padded with --lengths-from")
    add("--modes", nargs="+", choices=MODES, default=list(MODES))
    add("--backends", nargs="+", choices=BACKENDS, default=["auto", "eager", "sdpa", "blocked"])
    add("--shapes", nargs="+", type=shape, default=[(8, 128), (2, 512), (1, 1024)], help="default 8x128 2x512 1x1024")
    add("--preset", default="v3-base", help="size of the models; its heads in `attention` (default v3-base)")
    add("--layers", type=positive, default=2, help="of the models (default 2)")
    add("--vocab-size", type=positive, default=30522, help="of all models (default 30522)")
    add("--repeats", type=positive, default=11, help="timed calls of each side (default 11)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=DTYPES, default="float32")
    add("--threads", type=positive, help="CPU threads of torch (default: torch's own choice)")
    add("--compile", action="store_true", help="torch.compile around every side of `model`")
    add("--lengths-from", type=Path, help="a text file with one text a line")
    add("--tokenizer", help="folder or name; default: 1.3 tokens a word and 2 more")
    add("--batches", type=positive, default=4, help=f"of {BATCH} texts in `padded` (default 4)")
    add("--seed", type=int, default=0, help="of weights, tokens and the choice of texts (default 0)")
    add("--output-dir", type=Path, default=Path("benchmark_output"), help="new or empty (default benchmark_output)")
    add("--overwrite", action="store_true", help="write into an --output-dir that holds files")
    args = parser.parse_args()
    args.parts = args.parts or ["attention", "model", *(["padded"] if args.lengths_from else [])]
    if ("padded" in args.parts) != (args.lengths_from is not None):
        parser.error("the part padded and --lengths-from need each other")
    if args.tokenizer and not args.lengths_from:
        parser.error("--tokenizer needs --lengths-from: it counts the tokens of its lines")
    if args.compile and args.parts != ["model"]:
        parser.error("--compile is for the models without padding: add --parts model")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    try:
        sizes = dict(num_hidden_layers=args.layers, vocab_size=args.vocab_size)
        args.config = DebertaExtConfig.from_preset(args.preset, **sizes)
        args.lengths = text_lengths(args.lengths_from, args.tokenizer) if args.lengths_from else []
        claim_output_dir(args.output_dir, args.overwrite)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return args


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def shape(text: str) -> tuple[int, int]:
    """ "8x128" -> (8, 128)"""
    parts = text.split("x")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not batch x length, such as 8x128")
    return positive(parts[0]), positive(parts[1])


def text_lengths(file: Path, tokenizer: str | None) -> list[int]:
    """Number of tokens of each line that is not empty, at most LONGEST.

    Raises:
        OSError, ValueError: there is no such file or tokenizer, or no text in the file.
    """
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{file} holds no text; one text a line is needed")
    if tokenizer is None:
        return [min(round(1.3 * len(line.split())) + 2, LONGEST) for line in lines]
    encode = transformers.AutoTokenizer.from_pretrained(tokenizer)
    check_vocabulary(encode, source=tokenizer)
    return [len(ids) for ids in encode(lines, truncation=True, max_length=LONGEST)["input_ids"]]


def claim_output_dir(folder: Path, overwrite: bool):
    """Make the folder, or raise ValueError if it is a file, or not empty and not to be overwritten."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file; choose another --output-dir")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"{folder} is not empty; choose another --output-dir or add --overwrite")
    folder.mkdir(parents=True, exist_ok=True)


@dataclass
class Side:
    """A compared module: `forward(**inputs)` returns states [B, N, hidden], with gradients of all parameters."""

    forward: Callable[..., torch.Tensor]
    module: nn.Module

    def backend(self) -> str:
        """Names of the backends of the last call."""
        modules = self.module.modules()
        used = {module.last_backend for module in modules if isinstance(module, DisentangledSelfAttention)} - {None}
        return "+".join(sorted({name for name, _ in used}))


class ConstantProjection(nn.Module):
    """A projection that costs nothing, because its result is fixed."""

    def __init__(self, result: nn.Parameter):
        super().__init__()
        self.result = result

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # At inference the result of a projection requires no gradient, which flex_attention checks.
        return self.result if torch.is_grad_enabled() else self.result.detach()


def attention_sides(args, B: int, N: int) -> dict[str, Side]:
    """One attention layer of transformers, of ours with each backend, and SDPA, on the same Q, K, V and table P."""
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = DebertaExtConfig.from_preset(args.preset, share_att_key=False, **no_dropout)
    options = dict(device=args.device, dtype=DTYPES[args.dtype])
    Q, K, V = (nn.Parameter(torch.randn(B, N, config.hidden_size, **options)) for _ in range(3))
    P = nn.Parameter(torch.randn(config.relative_table_size, config.hidden_size, **options))
    equal_far_rows(P)

    def side(module: nn.Module, call: Callable[[nn.Module], torch.Tensor]) -> Side:
        module.query_proj, module.key_proj, module.value_proj = map(ConstantProjection, (Q, K, V))
        module.pos_key_proj, module.pos_query_proj, module.P = nn.Identity(), nn.Identity(), P
        return Side(lambda: call(module), module)

    def plain(_) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2) for x in (Q, K, V))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    # Computed once for all layers by the encoders.
    buckets, distance = config.position_buckets, config.relative_distance
    delta = RelativePosition(buckets=buckets, max_distance=distance).to(args.device)(N)
    relative_pos = modeling_deberta_v2.build_relative_position(Q, K, bucket_size=buckets, max_position=distance)
    mask = torch.ones(B, 1, N, N, dtype=torch.bool, device=args.device)
    stock = modeling_deberta_v2.DisentangledSelfAttention(to_deberta_v2_config(config))
    sides = {STOCK: side(stock, lambda m: m(Q, mask, relative_pos=relative_pos, rel_embeddings=P)[0])}
    for name in args.backends:
        config = copy.deepcopy(config)
        config._attn_implementation = None if name == "auto" else name
        attention = DisentangledSelfAttention(config)
        sides[name] = side(attention, lambda m: m(Q, None, P, delta=delta, reach=distance)[0])
    return sides | {PLAIN: side(nn.Module(), plain)}


def equal_far_rows(P: torch.Tensor):
    """Beyond the largest distance transformers reads row 0 of the table where official code, and ours, reads row 1."""
    with torch.no_grad():
        P[0] = P[1]


def model_sides(args, longest: int, variants: dict[str, tuple[str, bool | None]]) -> dict[str, Side]:
    """Whole encoders for up to `longest` tokens: transformers', ours with its weights, and a BERT of the same size.

    Args:
        variants (`dict`): by name, the backend and the argument of `set_unpadding`.
    """
    config, options = args.config, dict(device=args.device, dtype=DTYPES[args.dtype])
    model = DebertaExtModel(config).to(**options)
    if config.relative_table_size:
        equal_far_rows(model.encoder.rel_embeddings.weight)
    stock = transformers.DebertaV2Model(to_deberta_v2_config(config)).to(**options)
    missing = stock.load_state_dict(to_deberta_v2_state_dict(model), strict=False).missing_keys
    assert not missing, missing
    bert_config = transformers.BertConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads, intermediate_size=config.intermediate_size,
        hidden_act=config.hidden_act, hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob, max_position_embeddings=longest,
        attn_implementation="sdpa",
    )  # fmt: skip
    bert = transformers.BertModel(bert_config, add_pooling_layer=False).to(**options)

    modules = {STOCK: stock}
    for name, (backend, unpadding) in variants.items():
        # The modules are copied, the parameters shared.
        modules[name] = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
        # Not by set_attn_implementation, whose error would end the run; here it becomes a row of the table.
        modules[name].config._attn_implementation = None if backend == "auto" else backend
        modules[name].set_unpadding(unpadding)

    def side(module: nn.Module) -> Side:
        called = torch.compile(module, dynamic=False) if args.compile else module
        return Side(lambda **inputs: called(**inputs).last_hidden_state, module)

    return {name: side(module) for name, module in (modules | {BERT: bert}).items()}


def step(side: Side, mode: str, inputs: dict) -> torch.Tensor:
    if mode == "inference":
        with torch.inference_mode():
            return side.forward(**inputs)
    states = side.forward(**inputs)
    states.float().square().sum().backward()
    return states.detach()


def seconds(side: Side, mode: str, inputs: dict) -> float:
    side.module.zero_grad()
    synchronize = torch.cuda.synchronize if next(side.module.parameters()).is_cuda else lambda: None
    synchronize()
    began = time.perf_counter()
    step(side, mode, inputs)
    synchronize()
    return time.perf_counter() - began


def extra_bytes(side: Side, mode: str, inputs: dict) -> int:
    """Peak of the memory that one call holds, results and gradients included."""
    side.module.zero_grad()
    if next(side.module.parameters()).is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(side, mode, inputs)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(side, mode, inputs)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def check_equal(outputs: dict[str, list[torch.Tensor]], batches: list[dict]):
    """Exit if the states of a backend are not those of transformers; the floor is another model."""
    for name in outputs.keys() - {STOCK, PLAIN, BERT}:
        for states, stock, inputs in zip(outputs[name], outputs.get(STOCK, []), batches, strict=False):
            if "attention_mask" in inputs:
                states, stock = (x[inputs["attention_mask"].bool()] for x in (states, stock))
            difference = ((states - stock).double().norm() / stock.double().norm()).item()
            if not difference <= TOLERANCE[stock.dtype]:
                sys.exit(f"benchmark_attention: {name} and transformers differ by {difference:.1e} of the norm")


def measure(labels: dict, sides: dict[str, Side], batches: list[dict], args, bar: tqdm) -> list[dict]:
    """A row of COLUMNS for each mode and side; the row of a side that cannot serve a mode has the reason.

    Args:
        labels (`dict`): the columns that all rows have in common.
        batches (`list[dict]`): inputs; a turn is all of them, and sides take turns on each.
    """
    rows = []
    # Also where only training is asked for: the outputs are compared without dropout.
    for mode in MODES if "training" in args.modes else ["inference"]:
        outputs, memory, skipped = {}, {}, {}
        bar.set_postfix_str(f"{labels['shape']}, {mode}")
        for name, side in sides.items():
            side.module.train(mode == "training")
            try:
                outputs[name] = [step(side, mode, inputs) for inputs in batches]
                if mode in args.modes:
                    memory[name] = max(extra_bytes(side, mode, inputs) for inputs in batches)
            except (RuntimeError, ValueError) as error:
                skipped[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
                outputs.pop(name, None)
                side.module.zero_grad()
        if mode == "inference":
            check_equal(outputs, batches)
        if mode not in args.modes:
            continue
        order, times = deque(memory), {name: [0.0] * args.repeats for name in memory}
        for repeat in range(args.repeats):
            for inputs in batches:
                for name in order:
                    times[name][repeat] += seconds(sides[name], mode, inputs)
            order.rotate(1)
            bar.update()
        for name in sides:
            row = labels | dict(mode=mode, side=name, skipped=skipped.get(name, ""), backend="")
            if name in times:
                # Under torch.compile, modules do not note the backend.
                row |= dict(backend="" if args.compile else sides[name].backend(), repeats=args.repeats)
                row |= compare(name, times) | dict(extra_bytes=memory[name])
                if memory.get("eager"):
                    row["bytes_over_eager"] = memory[name] / memory["eager"]
            rows.append(row)
    return rows


def compare(name: str, times: dict[str, list[float]]) -> dict[str, float]:
    """Median seconds of a side, speedup over transformers, and time over that of the floor."""
    result = dict(seconds=spread(times[name])[0])
    floor = times.get(PLAIN, times.get(BERT))
    for column, above, below in (("speedup", times.get(STOCK), times[name]), ("over_floor", times[name], floor)):
        if above and below:
            ratios = spread(np.divide(above, below))
            result |= dict(zip((column, f"{column}_p10", f"{column}_p90"), ratios, strict=True))
    return result


def spread(values) -> list[float]:
    """Median, 10th and 90th percentile."""
    return np.quantile(values, (0.5, 0.1, 0.9)).tolist()


def table(frame: pd.DataFrame) -> str:
    def ratios(column: str) -> list[str]:
        values = frame[[column, f"{column}_p10", f"{column}_p90"]].itertuples(index=False)
        return ["-" if pd.isna(middle) else f"{middle:.2f} ({low:.2f}-{high:.2f})" for middle, low, high in values]

    columns = {
        "ms": (1000 * frame.seconds).map("{:.1f}".format),
        "times faster": ratios("speedup"),
        "over floor": ratios("over_floor"),
        "extra MiB": (frame.extra_bytes.astype(float) / 2**20).map("{:.1f}".format),
        "of eager's": frame.bytes_over_eager.map("{:.3f}".format),
    }
    cells = frame[["shape", "mode", "side", "backend"]].assign(**columns).replace("nan", "-")
    reasons = frame[frame.skipped != ""].apply(lambda row: f"not measured: {row.side}, {row['mode']}: {row.skipped}", axis=1)
    return "\n".join([cells.to_string(index=False), *dict.fromkeys(reasons.to_numpy().flatten())])


def draw(frame: pd.DataFrame, path: Path, title: str):
    """Ratio against shape, one panel for each mode."""
    modes, shapes = frame["mode"].unique(), [*frame["shape"].unique()]
    figure = new_figure(1.5 + 4.6 * len(modes), 4)
    for axes, mode in zip(figure.subplots(1, len(modes), squeeze=False)[0], modes, strict=True):
        for index, side in enumerate(frame["side"].unique()):
            points = frame[(frame["mode"] == mode) & (frame["side"] == side)].dropna(subset="speedup")
            errors = [points.speedup - points.speedup_p10, points.speedup_p90 - points.speedup]
            places = [shapes.index(shape) for shape in points["shape"]]
            style = dict(fmt=f"C{index % 10}o-", markersize=4, capsize=2)
            axes.errorbar(places, points.speedup, errors, label=side, **style)
        axes.set_xticks(range(len(shapes)), shapes)
        unit = "batches x texts" if title == "padded" else "batch x length"
        axes.set(title=f"{title}, {mode}", xlabel=unit, ylabel="times faster than transformers", yscale="log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    save_figure(figure, path)


def environment(args) -> str:
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    device = f"{torch.cuda.get_device_name()}, " if args.device == "cuda" else ""
    return (
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}; {device}"
        f"{cpu}, {torch.get_num_threads()} threads; {args.dtype}{', torch.compile' if args.compile else ''}; "
        f"{args.preset}, {args.layers} layers, {args.repeats} repeats, seed {args.seed}"
    )


def run_shapes(part: str, args, bar: tqdm):
    """Rows of `attention` or `model` for each shape."""
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
        yield measure(dict(shape=f"{B}x{N}", tokens=B * N), sides, [inputs], args, bar)


def run_padded(args, bar: tqdm):
    chosen = torch.tensor(args.lengths)[torch.randint(len(args.lengths), (args.batches, BATCH))]
    batches = []
    for lengths in chosen:
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.randint(5, args.vocab_size, mask.shape) * mask
        batches.append(dict(input_ids=ids.to(args.device), attention_mask=mask.long().to(args.device)))
    tokens, places = int(chosen.sum()), sum(batch["input_ids"].numel() for batch in batches)
    name, padding = args.backends[0], 1 - tokens / places
    variants = {f"{name}, padded": (name, False), f"{name}, unpadded": (name, True)}
    bar.write(f"padded: {args.batches} batches of {BATCH} texts, {tokens} tokens, {padding:.0%} padding")
    labels = dict(shape=f"{args.batches}x{BATCH}", tokens=tokens, padding=padding)
    yield measure(labels, model_sides(args, LONGEST, variants), batches, args, bar)


def main():
    args = parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(environment(args), flush=True)
    (args.output_dir / "environment.txt").write_text(environment(args) + "\n", encoding="utf-8")
    for part in args.parts:
        torch.manual_seed(args.seed)
        rows, turns = [], 1 if part == "padded" else len(args.shapes)
        with tqdm(total=turns * len(args.modes) * args.repeats, desc=part, file=sys.stderr) as bar:
            for measured in run_padded(args, bar) if part == "padded" else run_shapes(part, args, bar):
                rows += measured
                frame = pd.DataFrame(rows, columns=[*COLUMNS]).astype({"repeats": "Int64", "extra_bytes": "Int64"})
                frame.to_csv(args.output_dir / f"{part}.csv", index=False)
        print(f"\n{part}\n{table(frame)}", flush=True)
        draw(frame, args.output_dir / f"{part}.png", part)


if __name__ == "__main__":
    main()

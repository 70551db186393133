# SPDX-License-Identifier: Apache-2.0
"""Shared code of the benchmarks: flags, alternating timings, peak memory, models of equal size, tables."""

import argparse
import csv
import json
import os
import platform
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Otherwise the profiler, which counts the memory, logs each start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import numpy as np
import torch
import transformers
from matplotlib.ticker import ScalarFormatter
from torch import nn

from hf_deberta_ext.analysis.plots.figure import new_figure, save_figure
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.conversion.deberta_v2 import to_deberta_v2_config, to_deberta_v2_state_dict
from hf_deberta_ext.tokenization import check_vocabulary

# Texts of a batch, and tokens of the longest text.
BATCH, LONGEST = 32, 512


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def shape(text: str) -> tuple[int, int]:
    """Parse "8x128" as (8, 128)."""
    parts = text.split("x")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"expected BATCHxLENGTH, such as 8x128, got {text!r}")
    return positive(parts[0]), positive(parts[1])


def add_flags(parser: argparse.ArgumentParser, *, repeats: int, output_dir: str):
    """Add the flags of the benchmarks that compare whole models."""
    add = parser.add_argument
    add(
        "--shapes",
        nargs="+",
        type=shape,
        default=[(8, 128), (2, 512), (1, 1024)],
        help="BATCHxLENGTH (default 8x128 2x512 1x1024)",
    )
    add("--preset", default="v3-base", help="size of the models (default v3-base)")
    add("--layers", type=positive, default=2, help="number of layers (default 2)")
    add("--vocab_size", type=positive, default=30522, help="vocabulary size of all models (default 30522)")
    add("--repeats", type=positive, default=repeats, help=f"timed calls of each compared model (default {repeats})")
    add("--threads", type=positive, help="CPU threads of every compared model (default: torch's own choice)")
    add("--lengths_from", type=Path, help="text file with one text per line, for batches with padding")
    add("--tokenizer", help="tokenizer for --lengths_from, folder or Hub id (default: 1.3 tokens per word plus 2)")
    add("--batches", type=positive, default=4, help=f"batches of {BATCH} texts from --lengths_from (default 4)")
    add("--seed", type=int, default=0, help="seed of weights, tokens and the choice of texts (default 0)")
    add("--output_dir", type=Path, default=Path(output_dir), help=f"output folder, new or empty (default {output_dir})")
    add("--overwrite", action="store_true", help="allow an --output_dir that is not empty")


def text_lengths(file: Path, tokenizer: str | None) -> list[int]:
    """Return the number of tokens of each non-empty line, at most LONGEST.

    Raises:
        OSError, ValueError: if the file or tokenizer does not exist, or the file has no text.
    """
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{file} holds no text; expected one text per line")
    if tokenizer is None:
        return [min(round(1.3 * len(line.split())) + 2, LONGEST) for line in lines]
    encode = transformers.AutoTokenizer.from_pretrained(tokenizer)
    check_vocabulary(encode, source=tokenizer)
    return [len(ids) for ids in encode(lines, truncation=True, max_length=LONGEST)["input_ids"]]


def random_batch(
    lengths: torch.Tensor, vocab_size: int, generator: torch.Generator | None = None
) -> dict[str, torch.Tensor]:
    """Return input_ids and attention_mask [B, longest] of texts of these lengths, padded on the right."""
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.randint(5, vocab_size, mask.shape, generator=generator) * mask
    return dict(input_ids=ids, attention_mask=mask.long())


def make_output_dir(folder: Path, overwrite: bool):
    """Create the folder; raise ValueError if it is a file, or is not empty and must not be overwritten."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file; choose another --output_dir")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ValueError(f"{folder} is not empty; choose another --output_dir or pass --overwrite")
    folder.mkdir(parents=True, exist_ok=True)


def take_turns(
    calls: Mapping[str, Callable[[], Any]], repeats: int, *, device: str = "cpu", after: Callable[[], Any] = lambda: None
) -> dict[str, list[float]]:
    """Return the seconds of each of `repeats` calls, by side. A turn calls all sides; each turn starts with another side.

    On CUDA, a side's turn consists of as many calls as take about 20 ms, so that waiting for the GPU does not count.

    Args:
        after: called after each turn.
    """

    def seconds(call, count=1):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    counts = dict.fromkeys(calls, 1)
    if device == "cuda":
        counts = {name: min(50, max(1, int(0.02 / seconds(call)))) for name, call in calls.items()}
    order, times = deque(calls), {name: [] for name in calls}
    for _ in range(repeats):
        for name in order:
            times[name].append(seconds(calls[name], counts[name]))
        order.rotate(1)
        after()
    return times


def spread(values) -> list[float]:
    """Return the median, 10th and 90th percentile."""
    return np.quantile(values, (0.5, 0.1, 0.9)).tolist()


def peak_bytes(call: Callable[[], Any], device: str = "cpu") -> int:
    """Return the peak of memory that torch's allocator provides during a call, in addition to the memory in use before."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def first_line(error: BaseException) -> str:
    """Return the reason why a side could not be measured, for a table cell."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def write_csv(path: Path, rows: list[dict]):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


# Header of `sides_table`.
CELLS = "ms; times as fast as transformers (10th to 90th percentile); share of the peak; MiB beyond weights and inputs"


def sides_table(rows: list[dict]) -> str:
    """Return a Markdown table of sides by shapes, with cells in the format of `CELLS`; then why sides were not measured."""

    def cell(row: dict) -> str:
        if row["skipped"]:
            return "-"
        parts = [f"{1000 * row['seconds']:.2f}"]
        if row.get("speedup"):
            parts.append(f"{row['speedup']:.2f} ({row['speedup_p10']:.2f}-{row['speedup_p90']:.2f})")
        if row.get("share"):
            parts.append(f"{row['share']:.1%}")
        return "; ".join([*parts, f"{row['extra_bytes'] / 2**20:,.1f}"])

    cells = {(row["side"], row["shape"]): cell(row) for row in rows}
    names = {row["side"]: f"{row['side']} ({row['backend']})".removesuffix(" ()") for row in rows}
    shapes = dict.fromkeys(row["shape"] for row in rows)
    lines = [(name, *(cells.get((side, shape), "") for shape in shapes)) for side, name in names.items()]
    skipped = [row for row in rows if row["skipped"]]
    reasons = dict.fromkeys(f"not measured: {row['side']}, {row['mode']}: {row['skipped']}" for row in skipped)
    return "\n\n".join([markdown_table(("side", *shapes), *lines), *reasons])


# Names of sides in figures.
LEGEND = {"transformers": "DeBERTa of transformers", "auto": "DeBERTa of hf_deberta_ext"}


def draw_sides(rows: list[dict], key: str, label: str, path: Path) -> bool:
    """Draw the column `key` of the rows against shape, with a panel for each part and mode.

    Bars show the 10th and 90th percentile if the rows have them.

    Returns:
        `False` if no row has the column, so that nothing is drawn.
    """
    rows = [row | {"panel": f"{row['part']}, {row['mode']}"} for row in rows if row.get(key)]
    if not rows:
        return False
    panels, shapes, sides = (list(dict.fromkeys(row[name] for row in rows)) for name in ("panel", "shape", "side"))
    figure = new_figure(1.5 + 4.6 * len(panels), 4)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for index, side in enumerate(sides):
            points = [row for row in rows if (row["panel"], row["side"]) == (panel, side)]
            places, middle = [shapes.index(row["shape"]) for row in points], np.array([row[key] for row in points])
            ends = [np.array([row.get(f"{key}_{end}", row[key]) for row in points]) for end in ("p10", "p90")]
            style = dict(fmt=f"C{index % 10}o-", markersize=4, capsize=2)
            label_of_side = LEGEND.get(side, side)
            axes.errorbar(places, middle, [middle - ends[0], ends[1] - middle], label=label_of_side, **style)
        axes.set_xticks(range(len(shapes)), shapes, fontsize=8)
        axes.set(title=panel, xlabel="batch x length", ylabel=label, yscale="log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(ScalarFormatter())
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    save_figure(figure, path)
    return True


def equal_far_rows(P: torch.Tensor):
    """Copy row 1 of the relative table to row 0: beyond the largest distance, transformers reads row 0, but Microsoft's code
    and this package read row 1.
    """
    with torch.no_grad():
        P[0] = P[1]


def stock_model(model: nn.Module, stock_class: type[nn.Module]) -> nn.Module:
    """Return transformers' model with our model's weights, after `equal_far_rows` has changed their relative table."""
    if model.config.relative_table_size:
        equal_far_rows(model.base_model.encoder.rel_embeddings.weight)
    stock = stock_class(to_deberta_v2_config(model.config))
    missing = stock.load_state_dict(to_deberta_v2_state_dict(model), strict=False).missing_keys
    assert not missing, missing
    return stock


def same_size(name: str, config, longest: int, head: str = "Model") -> nn.Module:
    """Return a "Bert" or "ModernBert" with SDPA that has the width, depth and dropout of a DeBERTa, for up to `longest`
    tokens.
    """
    fields = "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size".split()
    if name == "Bert":
        fields += ["hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"]
    sizes = {field: getattr(config, field) for field in fields}
    sizes |= dict(max_position_embeddings=longest, pad_token_id=0, attn_implementation="sdpa")
    if name == "ModernBert":
        sizes |= dict(cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
        sizes |= dict(attention_dropout=config.attention_probs_dropout_prob, mlp_dropout=config.hidden_dropout_prob)
        # Its feed-forward network is gated: two thirds of the width give the same number of parameters.
        sizes["intermediate_size"] = config.intermediate_size * 2 // 3
    config = getattr(transformers, f"{name}Config")(**sizes)
    if name + head == "BertModel":
        return transformers.BertModel(config, add_pooling_layer=False)
    return getattr(transformers, name + head)(config)


def environment(args: argparse.Namespace) -> str:
    """Return versions, device and sizes of a run, in one line."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    if args.device == "cuda":
        cpu = f"{torch.cuda.get_device_name()}, {cpu}"
    compiled = ", torch.compile" * args.compile
    return (
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}; "
        f"{cpu}, {torch.get_num_threads()} threads; {args.dtype}{compiled}; "
        f"{args.preset}, {args.layers} layers, {args.repeats} repeats, seed {args.seed}"
    )

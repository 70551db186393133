# SPDX-License-Identifier: Apache-2.0
"""Measure time and memory of one classifier on a CPU: this package, transformers, ONNX Runtime and OpenVINO.

    # 2 cores, about 12 minutes: two layers of v3-base's shape, uniform lengths, then the texts of a file sorted by length
    python examples/benchmarks/benchmark_serving.py --threads 2 --lengths_from texts.txt
    # a classifier of yours, one short text at a time
    python examples/benchmarks/benchmark_serving.py --model mine --threads 1 --shapes 1x16 1x64 1x160 1x512 --repeats 12
    # only a check that it runs; half a minute
    python examples/benchmarks/benchmark_serving.py --preset v3-xsmall --layers 1 --shapes 1x32 --repeats 2

All sides (compared classifiers) run in one process and take turns; every ratio is between two calls of the same turn, and
the table shows medians. Tokens are random, and weights too without --model. transformers' DeBERTa and all sides of this
package have the same weights, so the largest difference of their logits shows the error of int8 or bfloat16. BERT and
ModernBERT have the same width and depth.
Memory is the peak of a new process that loads one side and computes the largest shape; "first answer" is the time from the
start of that process to the answer, with the files of ONNX Runtime and OpenVINO already exported.
ONNX Runtime needs `pip install 'hf_deberta_ext[onnx]'`, OpenVINO `pip install openvino`; if a side cannot run, the table
shows the reason.
"""

import argparse
import json
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import measuring
import numpy as np
import torch
import transformers
from measuring import BATCH, LONGEST
from torch import nn
from tqdm import tqdm

from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.conversion.verification import OnnxFile
from hf_deberta_ext.export import export_onnx, quantise_onnx
from hf_deberta_ext.int8 import quantise
from hf_deberta_ext.training.user_errors import ExitOnUserError

Answer = Callable[[dict[str, torch.Tensor]], torch.Tensor]
STOCK, BERT = "transformers' DeBERTa", "BERT, SDPA"


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or Hub id of a classifier; default: random weights of --preset and --layers")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="default: all")
    measuring.add_flags(parser, repeats=7, output_dir="serving_output")
    args = parser.parse_args(argv)
    args.device, args.dtype, args.compile = "cpu", "float32", False
    if args.tokenizer and not args.lengths_from:
        parser.error("--tokenizer counts the tokens of --lengths_from: pass both")
    return args


def config_of(args: argparse.Namespace) -> DebertaExtConfig:
    if args.model:
        return DebertaExtConfig.from_pretrained(args.model)
    return DebertaExtConfig.from_preset(args.preset, num_hidden_layers=args.layers, vocab_size=args.vocab_size)


# The functions of SIDES build a side from the arguments and a folder for its files; a side maps a batch to logits [B, 2].


def logits_of(module: nn.Module) -> Answer:
    return lambda inputs: module(**inputs).logits


def own_model(args: argparse.Namespace) -> DebertaExtForSequenceClassification:
    if args.model:
        return DebertaExtForSequenceClassification.from_pretrained(args.model, dtype="float32").eval()
    torch.manual_seed(args.seed)
    model = DebertaExtForSequenceClassification(config_of(args)).eval()
    if model.config.relative_table_size:
        measuring.equal_far_rows(model.base_model.encoder.rel_embeddings.weight)
    return model


def ours(args: argparse.Namespace, folder: Path, *, backend: str | None = None, dtype=torch.float32, int8=False) -> Answer:
    model = own_model(args)
    if backend is not None:
        model.set_attn_implementation(backend)
    if int8:
        return logits_of(quantise(model))
    return logits_of(model.to(dtype))


def stock(args: argparse.Namespace) -> nn.Module:
    return measuring.stock_model(own_model(args), transformers.DebertaV2ForSequenceClassification).eval()


def other_architecture(args: argparse.Namespace, folder: Path, *, name: str, dtype=torch.float32) -> Answer:
    longest = max(LONGEST, *(length for _, length in args.shapes))
    torch.manual_seed(args.seed)
    return logits_of(measuring.same_size(name, config_of(args), longest, "ForSequenceClassification").eval().to(dtype))


def onnx_file(args: argparse.Namespace, folder: Path, *, source: str, int8: bool) -> Path:
    """Return the file of the exported model, and write it if it does not exist."""
    file, small = folder / f"{source}.onnx", folder / f"{source}_int8.onnx"
    if not file.exists():
        if source == "ours":
            export_onnx(own_model(args), file)
        else:
            ids = torch.randint(5, args.vocab_size, (2, 20))
            axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}
            names = dict(input_names=[*axes], output_names=["logits"], dynamic_axes=axes)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(stock(args), (ids, torch.ones_like(ids)), file, dynamo=False, opset_version=18, **names)
    if int8 and not small.exists():
        quantise_onnx(file, small)
    if int8:
        return small
    return file


def onnx_runtime(args: argparse.Namespace, folder: Path, *, source: str, int8: bool = False) -> Answer:
    file = OnnxFile(onnx_file(args, folder, source=source, int8=int8))
    return lambda inputs: file(**inputs)["logits"]


def openvino(args: argparse.Namespace, folder: Path, *, source: str, int8: bool = False, precision: str = "f32") -> Answer:
    import openvino

    core = openvino.Core()
    # By default, OpenVINO computes in bfloat16 if the CPU supports it.
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
    compiled = core.compile_model(onnx_file(args, folder, source=source, int8=int8), "CPU", settings)
    names = {name for port in compiled.inputs for name in port.names}

    def answer(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.from_numpy(compiled({name: x.numpy() for name, x in inputs.items() if name in names})["logits"])

    return answer


SIDES: dict[str, Callable[[argparse.Namespace, Path], Answer]] = {
    STOCK: lambda args, folder: logits_of(stock(args)),
    f"{STOCK}, bfloat16": lambda args, folder: logits_of(stock(args).to(torch.bfloat16)),
    "this package": ours,
    "this package, blocked": partial(ours, backend="blocked"),
    "this package, bfloat16": partial(ours, dtype=torch.bfloat16),
    "this package, int8": partial(ours, int8=True),
    f"{STOCK}, torch.compile": lambda args, folder: logits_of(torch.compile(stock(args))),
    "this package, torch.compile": lambda args, folder: logits_of(torch.compile(own_model(args))),
    BERT: partial(other_architecture, name="Bert"),
    f"{BERT}, bfloat16": partial(other_architecture, name="Bert", dtype=torch.bfloat16),
    "ModernBERT, SDPA": partial(other_architecture, name="ModernBert"),
}
for source in ("stock", "ours"):
    SIDES |= {
        f"ONNX Runtime, {source}": partial(onnx_runtime, source=source),
        f"ONNX Runtime, {source}, int8": partial(onnx_runtime, source=source, int8=True),
        f"OpenVINO, {source}": partial(openvino, source=source),
        f"OpenVINO, {source}, int8": partial(openvino, source=source, int8=True),
        f"OpenVINO, {source}, bfloat16": partial(openvino, source=source, precision="bf16"),
    }


def batches(args: argparse.Namespace) -> dict[str, list[dict[str, torch.Tensor]]]:
    """Return the inputs to time, by the name of their column in the table."""
    generator = torch.Generator().manual_seed(args.seed)
    columns = {f"{B}x{N}": [torch.full((B,), N)] for B, N in args.shapes}
    if args.lengths_from is not None:
        lengths = torch.tensor(measuring.text_lengths(args.lengths_from, args.tokenizer))
        chosen = lengths[torch.randint(len(lengths), (args.batches * BATCH,), generator=generator)]
        columns[f"{args.batches * BATCH} texts"] = [*chosen.sort(descending=True).values.split(BATCH)]
    inputs = {}
    for column, groups in columns.items():
        inputs[column] = [measuring.random_batch(lengths, args.vocab_size, generator) for lengths in groups]
    return inputs


def peak_memory(name: str, args: argparse.Namespace, folder: Path) -> tuple[int, float]:
    """Run the largest shape with the model `name`; return the peak memory of this process in bytes, and the end time."""
    torch.set_num_threads(args.threads or torch.get_num_threads())
    largest = max((inputs for group in batches(args).values() for inputs in group), key=lambda x: x["input_ids"].numel())
    with torch.inference_mode():
        SIDES[name](args, folder)(largest)
    end, lines = time.time(), Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), end


def measured_memory(name: str, args: argparse.Namespace, folder: Path) -> tuple[int | None, float | None]:
    """Return peak memory and seconds of a new process, or None if it fails or the system does not report the memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        start = time.time()
        try:
            peak, end = pool.submit(peak_memory, name, args, folder).result()
        except Exception:  # of any library
            return None, None
    return peak, end - start


@torch.inference_mode()
def measure(args: argparse.Namespace, folder: Path) -> list[dict]:
    rows, sides = [], {}
    for name in tqdm(args.sides, desc="building", file=sys.stderr):
        row = dict(side=name, skipped="")
        rows.append(row)
        try:
            sides[name] = SIDES[name](args, folder)
            sides[name](dict(input_ids=torch.full((1, 8), 5), attention_mask=torch.ones(1, 8, dtype=torch.long)))
        except Exception as error:  # of any library
            sides.pop(name, None)
            row["skipped"] = measuring.first_line(error)
    for column, group in batches(args).items():
        outputs = {name: torch.cat([answer(inputs).float() for inputs in group]) for name, answer in sides.items()}
        calls = {name: lambda answer=answer, group=group: [*map(answer, group)] for name, answer in sides.items()}
        with tqdm(total=args.repeats, desc=column, file=sys.stderr) as bar:
            times = measuring.take_turns(calls, args.repeats, after=bar.update)
        for row in rows:
            name = row["side"]
            if name not in sides:
                continue
            median, _, p90 = measuring.spread(times[name])
            row[column] = dict(seconds=median, p90=p90)
            if STOCK in sides:
                row[column]["speedup"] = measuring.spread(np.divide(times[STOCK], times[name]))[0]
                if outputs[STOCK].shape == outputs[name].shape and not name.startswith((BERT, "ModernBERT")):
                    difference = (outputs[name] - outputs[STOCK]).abs().max().item()
                    row["difference"] = max(row.get("difference", 0.0), difference)
    for row in tqdm([row for row in rows if not row["skipped"]], desc="memory", file=sys.stderr):
        row["memory_bytes"], row["first_answer"] = measured_memory(row["side"], args, folder)
    return rows


def table(rows: list[dict], columns: list[str]) -> str:
    measured = [f"{column}: median, 90th percentile in ms (times as fast as transformers)" for column in columns]
    lines = [["side", *measured, "peak MB", "first answer, s", "logits differ by"]]
    for row in rows:
        cells = [row["side"]]
        if row["skipped"]:
            cells.append(f"not measured: {row['skipped']}")
        else:
            for column in columns:
                milliseconds = [f"{1000 * row[column][key]:.1f}" for key in ("seconds", "p90")]
                cells.append(f"{', '.join(milliseconds)} ({row[column].get('speedup', math.nan):.2f})")
            cells.append(f"{(row['memory_bytes'] or math.nan) / 1e6:.0f}")
            cells += [f"{row['first_answer'] or math.nan:.1f}", f"{row.get('difference', math.nan):.1e}"]
        lines.append(cells + [""] * (len(lines[0]) - len(cells)))
    return markdown_table(*lines)


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    with ExitOnUserError(expected=(ValueError, OSError)):
        config_of(args)
        columns = list(batches(args))
        measuring.make_output_dir(args.output_dir, args.overwrite)
    if args.threads:
        torch.set_num_threads(args.threads)
    print(measuring.environment(args), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, Path(folder))
    report = dict(environment=measuring.environment(args), rows=rows)
    (args.output_dir / "serving.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print("\n" + table(rows, columns))


if __name__ == "__main__":
    main()

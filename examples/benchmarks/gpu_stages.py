# SPDX-License-Identifier: Apache-2.0
"""Stages of gpu_study.py. A stage has cases, and a function that returns the rows of a case."""

import argparse
import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from unittest import mock

import benchmark_attention as benchmark
import torch
import transformers
from docstring_corpus import collect_docstrings
from measuring import spread, take_turns

from hf_deberta_ext import AttentionInputs, DebertaExtConfig, RelativePosition
from hf_deberta_ext.conversion.deberta_v2 import to_deberta_v2_config
from hf_deberta_ext.pretraining import load_corpus, pack, train_tokenizer

# Not public modules, but the stage `tuning` measures their table of launch parameters.
attention_triton = importlib.import_module("hf_deberta_ext.kernels.attention_triton")
triton_launches = importlib.import_module("hf_deberta_ext.kernels.triton_launches")
ROOT = Path(__file__).resolve().parents[2]
PEERS = [benchmark.FLASH, benchmark.FLASH_DEBERTA]
# Deciles of the number of words of a text in SST-2 and MNLI (validation) and in SQuAD 1.1 (question and context).
WORDS = {
    "SST-2": (2, 9, 11, 14, 16, 19, 21, 24, 27, 31, 47),
    "MNLI": (2, 12, 16, 20, 23, 26, 30, 35, 40, 48, 209),
    "SQuAD": (28, 84, 96, 104, 113, 122, 134, 147, 165, 197, 651),
}
# Errors after which the process cannot be used any more.
FATAL = re.compile(r"CUDA error|Triton Error \[CUDA\]")
KERNELS = ("forward", "dq", "dkv", "bands")
# Block, warps, stages of the loops over far and near tiles.
CANDIDATES = ["64 4 2 1", "64 4 2 2", "64 4 3 1", "64 4 3 2", "64 8 2 1", "32 4 2 1", "32 4 2 2"]


class Sizes(NamedTuple):
    """Sizes of a study; `DRY` tries every stage on a CPU.

    Attributes:
        product (`int`): rows and columns of the multiplied matrices.
        tokens (`int`): tokens of a batch, at any length.
        lengths (`tuple[int, ...]`): tokens of the inputs that are timed.
        warm_lengths (`tuple[int, ...]`): tokens of the inputs that are used to compile the kernels.
    """

    product: int = 8192
    tokens: int = 16_384
    lengths: tuple[int, ...] = (128, 512, 1024, 2048, 4096, 8192)
    warm_lengths: tuple[int, ...] = (128, 1024)
    heads: int = 12
    buckets: int = 256
    max_distance: int = 512
    repeats: int = 5
    model: str = "--layers 12 --vocab_size 128100 --repeats 5"
    texts: int = 1_000_000
    vocabulary: int = 8192
    rows: int = 32
    length: int = 512
    steps: int = 150
    logging_steps: int = 10
    overrides: Mapping[str, int] = MappingProxyType({})


FULL = Sizes()
DRY_ATTENTION = dict(product=64, tokens=16, lengths=(16,), heads=2, buckets=4, max_distance=8, repeats=1)
DRY_TRAINING = dict(texts=300, vocabulary=300, rows=2, length=32, steps=2, logging_steps=1)
DRY_MODEL = "--preset v3-xsmall --layers 1 --vocab_size 100 --repeats 1"
SMALL = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=32)
DRY = Sizes(**DRY_ATTENTION, **DRY_TRAINING, model=DRY_MODEL, overrides=SMALL)


def sizes_of(args: argparse.Namespace) -> Sizes:
    return DRY if args.dry_run else FULL


class Stage(NamedTuple):
    """A stage of the study: cases(args) returns its cases, run(case, args) runs a case and returns rows.

    Attributes:
        warm_up (`bool`): first call run(case, args, warm_up=True) for all cases in several processes, to compile the
            kernels.
    """

    cases: Callable[[argparse.Namespace], list[str]]
    run: Callable[..., list[dict]]
    warm_up: bool = False


def measure_machine(dtype: str, args: argparse.Namespace) -> list[dict]:
    n, name = sizes_of(args).product, "CPU"
    if not args.dry_run:
        name = torch.cuda.get_device_name()
    a, b = torch.randn(2, n, n, device=args.device, dtype=getattr(torch, dtype))
    seconds = spread(take_turns({dtype: lambda: a @ b}, 9, device=args.device)[dtype])[0]
    versions = [f"{module.__name__} {module.__version__}" for module in (torch, transformers, attention_triton.triton)]
    return [dict(dtype=dtype, tflops=2 * n**3 / seconds / 1e12, device=name, versions=", ".join(versions))]


def run_pytest(selection: str, args: argparse.Namespace) -> list[dict]:
    """Run tests in several processes; the tests of the stage `correctness` add their own rows to the results."""
    workers = [] if args.dry_run else ["-n", str(args.jobs), "--dist", "worksteal"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, *shlex.split(selection)]
    environment = os.environ | {"DEBERTA_EXT_STUDY": str(args.results.resolve())}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    outcome = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1].strip("= ")
    if done.returncode:
        raise RuntimeError(f"pytest {selection}: {outcome}")
    return [dict(outcome=outcome)]


def cases_of_times(args: argparse.Namespace) -> list[str]:
    """Return flags of benchmark_attention.py; the most requested cases come first."""
    if args.dry_run:
        # Triton's interpreter takes a minute for a table of this size; the stages correctness and tuning try the kernels.
        tiny = "--shapes 1x16 --dtype float32 --backends auto"
        return [f"--parts attention {tiny}", f"--parts model {tiny}", f"--parts model {tiny} --modes inference --compile"]
    every = []
    # "blocked" is for CPUs: on an H200 it took most of the stage's time.
    for dtype, part, N in itertools.product(("bfloat16", "float32"), ("attention", "model"), FULL.lengths):
        shape = f"{FULL.tokens // N}x{N}"
        backends = "auto eager triton" if dtype == "float32" else "auto eager sdpa"
        every.append(f"--parts {part} --shapes {shape} --dtype {dtype} --backends {backends}")
    # Compiling five sides takes minutes.
    return [*every, "--parts model --layers 2 --shapes 32x512 --dtype bfloat16 --backends auto --compile"]


def run_benchmark(flags: str, args: argparse.Namespace) -> list[dict]:
    words = shlex.split(f"{sizes_of(args).model} --device {args.device} {flags}")
    # A separate process for each case would take longer than the measurement.
    asked = benchmark.parse_args([*words, "--peers", benchmark.MODERN, *PEERS])
    rows = [row for measured in benchmark.run_part(asked.parts[0], asked) for row in measured]
    if args.device == "cuda":
        torch.cuda.empty_cache()
    broken = [row["skipped"] for row in rows if FATAL.search(row["skipped"])]
    if broken:
        raise RuntimeError(broken[0])
    part = asked.parts[0]
    if part == "model":
        part = f"{asked.layers}-layer model"
    return [dict(part=part, dtype=asked.dtype, compiled=asked.compile) | row for row in rows]


def cases_of_lengths(args: argparse.Namespace) -> list[str]:
    cases = []
    for name, deciles in WORDS.items():
        file = args.output_dir / f"lengths_{name}.txt"
        if args.dry_run:
            deciles = (1, 3, 9)
        # The same number of texts between any two deciles.
        counts = [low + (high - low) * i // 50 for low, high in itertools.pairwise(deciles) for i in range(50)]
        file.write_text("\n".join("word " * count for count in counts) + "\n", encoding="utf-8")
        cases.append(f"--parts padded --lengths_from {shlex.quote(str(file))} --dtype bfloat16 --backends auto")
    if args.dry_run:
        return [cases[0].replace("bfloat16", "float32 --batches 1")]
    return cases


def cases_of_tuning(args: argparse.Namespace) -> list[str]:
    if args.dry_run:
        return ["bands 16 16 4 1 1"]
    return [f"{kernel} 64 {candidate}" for kernel in KERNELS for candidate in CANDIDATES]


def tune(case: str, args: argparse.Namespace, warm_up: bool = False) -> list[dict]:
    """Time a kernel with candidate launch parameters, and with the parameters of the launch table, at each length.

    The time is measured for the whole pass (forward or backward) that contains the kernel.
    """
    kernel, d, *choice = (int(word) if word.isdecimal() else word for word in case.split())
    sizes = sizes_of(args)
    buckets, max_distance = sizes.buckets, sizes.max_distance
    candidate, rows = triton_launches.Launch(*choice), []
    for N in sizes.warm_lengths if warm_up else sizes.lengths:
        shape = (sizes.tokens // N, N, sizes.heads, d)
        half = dict(device=args.device, dtype=torch.float16, requires_grad=kernel != "forward")
        tensors = [torch.randn(shape, **half) for _ in range(3)]
        tensors += [torch.randn(sizes.heads, 2 * buckets, d, **half) for _ in range(2)]
        delta = RelativePosition(buckets=buckets, max_distance=max_distance)(N).to(args.device)
        content = [x.transpose(1, 2) for x in tensors[:3]]
        inputs = AttentionInputs(*content, (3 * d) ** -0.5, *tensors[3:], delta, ("c2p", "p2c"), max_distance=max_distance)

        def call(launches, tensors=tensors, inputs=inputs):
            with mock.patch.dict(triton_launches.LAUNCHES, launches):
                out = attention_triton.disentangled_attention_triton(inputs)
                if kernel != "forward":
                    torch.autograd.grad(out, tensors, out)

        turns = dict(table=lambda: call({}), candidate=lambda: call({(kernel, "half", d): [(0, None, candidate)]}))
        turns["candidate"]()
        if any(key[0] == kernel and key[-1] == candidate for key in attention_triton.TOO_LARGE):
            raise RuntimeError("these launch parameters need more shared memory than this GPU has")
        if warm_up:
            continue
        times = take_turns(turns, sizes.repeats, device=args.device)
        capability = attention_triton.capability(tensors[0].device)
        usual = triton_launches.find_launches(kernel, torch.float16, d, N, capability)[0]
        row = dict(kernel=kernel, d=d, N=N, launch=[*candidate], usual=[*usual], capability=10 * capability[0])
        rows.append(row | dict(seconds=spread(times["candidate"])[0], seconds_of_table=spread(times["table"])[0]))
    return rows


def training_texts(args: argparse.Namespace) -> tuple[Path, Path]:
    """Write docstrings of Python's standard library to a file, and train a tokenizer on them; return both paths."""
    file, folder = args.output_dir / "docstrings.txt", args.output_dir / "tokenizer"
    if not folder.exists():
        sizes = sizes_of(args)
        texts = [" ".join(docstring.text.split()) for docstring in itertools.islice(collect_docstrings(), sizes.texts)]
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
        train_tokenizer("byte-level-bpe", texts, sizes.vocabulary, show_progress=False).save_pretrained(folder)
    return file, folder


SCRIPTS = ("run_mlm", "run_rtd")


def train(case: str, args: argparse.Namespace) -> list[dict]:
    """Train a model of v3-xsmall's shape; return its tokens per second (without evaluation), memory and loss curve."""
    file, tokenizer = training_texts(args)
    sizes = sizes_of(args)
    with tempfile.TemporaryDirectory() as folder:
        shared = dict(output_dir=folder, save_strategy="no", report_to="none", disable_tqdm=True, seed=0, warmup_steps=0.1)
        shared |= dict(max_steps=sizes.steps, per_device_train_batch_size=sizes.rows, logging_steps=sizes.logging_steps)
        shared |= dict(learning_rate=5e-4, bf16=not args.dry_run, use_cpu=args.dry_run)
        if case in SCRIPTS:
            # Without EMD and shared embeddings, which transformers does not have.
            overrides = dict(emd_layers=1, emd_input="hidden", **sizes.overrides)
            overrides = ",".join(f"{name}={value}" for name, value in overrides.items())
            own = dict(train_data=file, documents="line", tokenizer=tokenizer, max_length=sizes.length, preset="v3-xsmall")
            own |= dict(masking="token", max_eval_samples=8, config_overrides=overrides)
            if case == "run_rtd":
                own["embedding_sharing"] = "nes"
            flags = [str(word) for name, value in (shared | own).items() for word in (f"--{name}", value)]
            __import__(case).main(flags)
            history = json.loads(Path(folder, "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
        else:
            history = train_stock(shared, file, tokenizer, sizes)
    seconds = next(entry["train_runtime"] for entry in history if "train_runtime" in entry)
    row = dict(run=case, peak_bytes=torch.cuda.max_memory_allocated())
    row["tokens_per_second"] = sizes.rows * sizes.length * sizes.steps / seconds
    curve = [dict(step=entry["step"], loss=entry["loss"]) for entry in history if "loss" in entry]
    return [row | dict(last_loss=curve[-1]["loss"], curve=curve)]


def train_stock(shared: dict, file: Path, tokenizer_folder: Path, sizes: Sizes) -> list[dict]:
    """Train transformers' DeBERTa by its Trainer and collator on the same texts in rows of equal length; return its log."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    config = DebertaExtConfig.from_preset("v3-xsmall", vocab_size=len(tokenizer), **sizes.overrides)
    transformers.set_seed(0)
    corpus = load_corpus(str(file), documents="line")
    model = transformers.DebertaV2ForMaskedLM(to_deberta_v2_config(config))
    rows, _ = pack(corpus, tokenizer, mode="full_sentences", max_length=sizes.length)
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    arguments = transformers.TrainingArguments(**shared)
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collator)
    trainer.train()
    return trainer.state.log_history


def pytest_cases(selection: str, tiny: str) -> Callable[[argparse.Namespace], list[str]]:
    return lambda args: [tiny if args.dry_run else selection]


FLOAT64 = "tests/attention/test_float64.py"
STAGES = {
    "machine": Stage(lambda args: ["bfloat16", "float16", "float32"], measure_machine),
    "correctness": Stage(pytest_cases(f"{FLOAT64} -m gpu", f"{FLOAT64} -k bfloat16-packed-0.1-16-near"), run_pytest),
    "times": Stage(cases_of_times, run_benchmark),
    "lengths": Stage(cases_of_lengths, run_benchmark),
    "tuning": Stage(cases_of_tuning, tune, warm_up=True),
    "training": Stage(lambda args: [*SCRIPTS, "run_mlm in transformers"], train),
    "tests": Stage(
        pytest_cases(
            f"tests/attention tests/training/test_flags_have_effects.py -m gpu --deselect {FLOAT64}",
            "tests/attention/test_attention_backends.py -m gpu",
        ),
        run_pytest,
    ),
}

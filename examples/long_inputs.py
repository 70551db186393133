# SPDX-License-Identifier: Apache-2.0
"""Measure whether distant text helps a masked language model: the perplexity of the same masked tokens with more and more
left context.

    python examples/long_inputs.py --models "trained at 256=examples/models/deberta-ext-small-en" \\
        --texts held_out.jsonl --lengths 128 512 1024 2048 4096 --output_dir long

Each text is split into parts of the greatest length. Tokens among the last --window tokens of a part are masked; for length
N, the model reads the last N tokens. "NAME, no buckets" has the same weights, but clamps distances where the relative table
ends; logarithmic buckets reach further. If the Enhanced Mask Decoder's table of absolute positions is shorter than the
input, the first tokens, which the table does not cover, all get its first position. To train a model with a longer table:

    python examples/long_inputs.py --extend examples/models/deberta-ext-small-en 1024 --output_dir longer
    python examples/run_mlm.py --model longer --max_length 1024 ...

Writes results.json, table.md and long_inputs.png: mean loss and perplexity, the difference from the loss at the shortest
length (Student's t over the parts), seconds and peak memory of one row.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from benchmarks.measuring import make_output_dir, peak_bytes, positive, spread, take_turns
from scipy.stats import ttest_rel
from tqdm.auto import tqdm

from hf_deberta_ext import DebertaExtForMaskedLM
from hf_deberta_ext.analysis.plots.figure import COLOURS, finish_axes, new_figure, save_figure
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.pretraining import load_corpus, texts
from hf_deberta_ext.tokenization import load_tokenizer
from hf_deberta_ext.training.user_errors import ExitOnUserError

HEADER = ("model", "tokens", "masked tokens", "loss", "perplexity", "difference", "p", "ms a row", "MiB")


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME=FOLDER", help="models with the same tokenizer")
    parser.add_argument("--texts", type=Path, nargs="+", help="files of text that no model was trained on")
    parser.add_argument(
        "--lengths", type=positive, nargs="+", default=[128, 512, 1024, 2048, 4096], help="row lengths in tokens"
    )
    parser.add_argument("--window", type=positive, default=64, help="number of tokens at the end that may be masked")
    parser.add_argument("--masking_rate", type=float, default=0.15)
    parser.add_argument("--draws", type=positive, default=3, help="number of draws of masked tokens for each part")
    parser.add_argument("--repeats", type=positive, default=5, help="timed calls of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--extend", nargs=2, metavar=("FOLDER", "LENGTH"), help="only save FOLDER with LENGTH positions")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--overwrite", action="store_true")
    args = parser.parse_args(argv)
    with ExitOnUserError():
        if args.extend:
            make_output_dir(args.output_dir, args.overwrite)
            model = DebertaExtForMaskedLM.from_pretrained(args.extend[0])
            model.extend_position_embeddings(positive(args.extend[1]))
            model.save_pretrained(args.output_dir)
            load_tokenizer(args.extend[0]).save_pretrained(args.output_dir)
            return
        if not (args.models and args.texts) or not all("=" in entry for entry in args.models):
            raise ValueError("pass --models NAME=FOLDER ... and --texts FILE ..., or --extend FOLDER LENGTH")
        if not 0 < args.masking_rate <= 1 or args.window + 2 > min(args.lengths):
            raise ValueError("--masking_rate must be in (0, 1], and --window at most the shortest length - 2")
        folders = dict(entry.split("=", 1) for entry in args.models)
        tokenizer = load_tokenizer(next(iter(folders.values())))
        parts = read_parts(args, tokenizer)
        make_output_dir(args.output_dir, args.overwrite)
        rows = []
        for name, folder in folders.items():
            model = DebertaExtForMaskedLM.from_pretrained(folder).eval()
            rows += measure(model, name, parts, tokenizer, args)
            if model.config.position_buckets > 0:
                clamped = dict(position_buckets=-1, max_relative_positions=model.config.position_buckets)
                model = DebertaExtForMaskedLM.from_pretrained(folder, **clamped).eval()
                rows += measure(model, f"{name}, no buckets", parts, tokenizer, args)
        write_report(rows, args.output_dir)


def read_parts(args: argparse.Namespace, tokenizer) -> torch.Tensor:
    """Split the texts into parts of n = max(args.lengths) - 2 tokens, without special tokens; return ids [parts, n].

    Raises:
        ValueError: if the texts have fewer than two such parts.
    """
    size, parts = max(args.lengths) - 2, []
    for text in texts(load_corpus(args.texts)):
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        parts += [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    if len(parts) < 2:
        raise ValueError(
            f"expected two or more parts of {size:,} tokens, got {len(parts)}: use longer texts or shorter --lengths"
        )
    return torch.tensor(parts)


@torch.no_grad()
def measure(model, name: str, parts: torch.Tensor, tokenizer, args: argparse.Namespace) -> list[dict]:
    """Return losses, time and memory of a model at each length."""
    rows, table = [], model.config.max_position_embeddings
    for length in tqdm(args.lengths, desc=name):
        draws, losses = torch.Generator().manual_seed(args.seed), []
        ends = [torch.full((1,), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
        positions = torch.arange(length)[None]
        if model.config.has_absolute_positions:
            positions = (positions - max(0, length - table)).clamp(min=0)
        for part in parts:
            ids = torch.cat([ends[0], part[2 - length :], ends[1]])[None]
            of_part = []
            for _ in range(args.draws):
                # The same tokens at each length.
                chosen = torch.randperm(args.window, generator=draws)[: max(1, round(args.masking_rate * args.window))]
                places, masked = length - 2 - chosen, ids.clone()
                masked[0, places] = tokenizer.mask_token_id
                labels = torch.full_like(ids, -100)
                labels[0, places] = ids[0, places]
                of_part.append(model(masked, position_ids=positions, labels=labels).loss.item())
            losses.append(np.mean(of_part))
        call = lambda ids=ids, positions=positions: model(ids, position_ids=positions, labels=labels)  # noqa: B023, E731
        seconds = spread(take_turns({"": call}, args.repeats)[""])[0]
        rows.append(dict(model=name, length=length, masked=len(parts) * args.draws * len(chosen), losses=losses))
        rows[-1] |= dict(loss=float(np.mean(losses)), seconds=seconds, peak_bytes=peak_bytes(call))
        rows[-1] |= dict(difference=rows[-1]["loss"] - rows[0]["loss"], p=None)
        if length != args.lengths[0]:
            rows[-1]["p"] = float(ttest_rel(losses, rows[0]["losses"]).pvalue)
    return rows


def write_report(rows: list[dict], folder: Path):
    (folder / "results.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    lines = []
    for row in rows:
        p = ""
        if row["p"] is not None:
            p = f"{row['p']:.2g}"
        numbers = (f"{row['loss']:.3f}", f"{math.exp(row['loss']):.1f}", f"{row['difference']:+.3f}", p)
        cost = (f"{1000 * row['seconds']:.0f}", f"{row['peak_bytes'] / 2**20:,.0f}")
        lines.append((row["model"], f"{row['length']:,}", f"{row['masked']:,}", *numbers, *cost))
    table = markdown_table(HEADER, *lines)
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    figure = new_figure(6.5)
    axes = figure.subplots()
    for index, name in enumerate(dict.fromkeys(row["model"] for row in rows)):
        points = [row for row in rows if row["model"] == name]
        style = dict(marker="o", color=COLOURS[index % len(COLOURS)], linestyle=":" if name.endswith("no buckets") else "-")
        axes.plot([row["length"] for row in points], [math.exp(row["loss"]) for row in points], label=name, **style)
    lengths = sorted({row["length"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set(xlabel="tokens of the input", ylabel="perplexity of the same masked tokens")
    finish_axes(axes)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    save_figure(figure, folder / "long_inputs.png")


if __name__ == "__main__":
    main()

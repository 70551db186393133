# SPDX-License-Identifier: Apache-2.0
"""Measure each masking strategy: share of masked tokens, their replacements, lengths and positions.

    # the docstrings of Python's standard library, 100,000 tokens, ten epochs: half a minute
    python examples/masking_statistics.py
    # any text, one document per line, with your tokenizer
    python examples/masking_statistics.py --texts articles.txt --tokenizer microsoft/deberta-v3-base --tokens 500000

Prints a row for each masking strategy: the share of masked tokens; the shares of [MASK], random and kept tokens among the
masked tokens; the share of masked tokens in the first and in the last sixteenth of a sequence; the mean length of an n-gram
or span in words; p of a chi-square test that all positions are masked equally often. Masks are drawn without replacement,
so p is close to 1 for single tokens; p of the official strategies is 0. Writes masking_statistics.json, with all histograms,
and masking_statistics.png, which draws them, into the output folder.
"""

import argparse
import json
from pathlib import Path

import torch
from docstring_corpus import collect_docstrings
from scipy.stats import chisquare
from tqdm import tqdm

from hf_deberta_ext.analysis.plots.figure import new_figure, save_figure
from hf_deberta_ext.pretraining import (
    MaskingOptions,
    MaskingVocabulary,
    RowGenerator,
    train_tokenizer,
)
from hf_deberta_ext.pretraining.masking import choose, replace, units
from hf_deberta_ext.tokenization import load_tokenizer
from hf_deberta_ext.training.batch_size import versions
from hf_deberta_ext.training.distributed import spread_seed
from hf_deberta_ext.training.model_sources import named_tokenizer
from hf_deberta_ext.training.user_errors import ExitOnUserError

MASKERS = {
    "token": dict(unit="token"),
    "word": dict(unit="word"),
    "ngram": dict(unit="ngram"),
    "span": dict(unit="span"),
    "official token": dict(unit="token", policy="official"),
    "official ngram": dict(unit="ngram", policy="official"),
}
TRAINED = ("byte-level-bpe", "unigram")
BINS = 16
HEAD = ("masker", "masked", "[MASK]", "random", "kept", "first 1/16", "last 1/16", "words", "p")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--texts", nargs="+", type=Path, help="UTF-8 files with one document per line (default: docstrings of this Python)")
    add("--tokenizer", default=TRAINED[0], help=f"folder or Hub id; or train one: {TRAINED[0]} (default) or {TRAINED[1]}")
    add("--vocab_size", type=int, default=8000, help="vocabulary size, if a tokenizer is trained (default 8000)")
    add("--tokens", type=int, default=100_000, help="number of tokens to use (default 100000)")
    add("--length", type=int, default=512, help="tokens of a sequence, including [CLS] and [SEP] (default 512)")
    add("--epochs", type=int, default=10, help="number of times to mask each sequence (default 10)")
    add("--rate", type=float, default=0.15, help="share of tokens to mask (default 0.15)")
    add("--seed", type=int, default=0)
    add("--output_dir", type=Path, default=Path("masking_statistics"), help="default masking_statistics")
    return parser.parse_args()


def read_documents(files: list[Path] | None) -> list[str]:
    """Return the non-blank lines of the files, or the docstrings of the standard library."""
    if files is None:
        return [docstring.text for docstring in collect_docstrings()]
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def full_sequences(documents: list[str], tokenizer, tokens: int, length: int) -> torch.Tensor:
    """Return token ids [sequences, length]: [CLS], text across document boundaries, [SEP].

    Raises:
        ValueError: if the text, or `tokens`, does not fill one sequence.
    """
    ids, body = [], length - 2
    for document in documents:
        if len(ids) >= tokens:
            break
        ids += tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
    count = min(len(ids), tokens) // body
    if count == 0:
        raise ValueError(f"a sequence of --length {length} needs {body} tokens, got {min(len(ids), tokens)}; pass more text")
    ends = torch.tensor([[tokenizer.cls_token_id, tokenizer.sep_token_id]]).expand(count, 2)
    return torch.cat([ends[:, :1], torch.tensor(ids[: count * body]).view(count, body), ends[:, 1:]], dim=1)


def measure(options: MaskingOptions, sequences: torch.Tensor, vocabulary: MaskingVocabulary, args, bar: tqdm) -> dict:
    """Return the statistics of one masking strategy over all sequences and epochs."""
    N, vocabulary = args.length, vocabulary.of(options.policy)
    by_position, lengths, kinds = torch.zeros(N, dtype=torch.long), torch.zeros(N + 1, dtype=torch.long), [0, 0, 0]
    unit_ids = units(sequences, vocabulary, options.whole_words)
    for epoch in range(args.epochs):
        generator = RowGenerator([spread_seed(args.seed, epoch, example) for example in range(len(sequences))])
        span_ids, _ = choose(unit_ids, options, generator)
        output = replace(sequences, span_ids, vocabulary, options, generator)
        masked = span_ids > 0
        by_position += masked.sum(0)
        is_mask, same = output[masked] == vocabulary.mask_id, output[masked] == sequences[masked]
        for k, count in enumerate((is_mask.sum(), (~is_mask & ~same).sum(), same.sum())):
            kinds[k] += int(count)
        lengths += torch.bincount(words_of_spans(unit_ids, span_ids), minlength=N + 1)
        bar.update()
    inner = by_position[1:-1]
    draws, total = args.epochs * len(sequences), int(inner.sum())
    places = torch.arange(N - 2) * BINS // (N - 2)
    sizes = torch.bincount(places)
    lengths = lengths[: int(lengths.nonzero().max()) + 1]
    return dict(
        rate=total / (draws * (N - 2)),
        **{name: kind / total for name, kind in zip(("mask", "random", "kept"), kinds, strict=True)},
        lengths_in_words=lengths.tolist()[1:],
        mean_length=float(lengths.double() @ torch.arange(len(lengths)).double() / lengths.sum()),
        coverage=(torch.bincount(places, inner.double()) / sizes / draws).tolist(),
        masked_by_position=inner.tolist(),
        p_value=float(chisquare(inner).pvalue),
    )


def words_of_spans(unit_ids: torch.Tensor, span_ids: torch.Tensor) -> torch.Tensor:
    """Return the length in units of each masked n-gram or span of all rows, [number of spans]."""
    rows = torch.arange(len(span_ids))[:, None].expand_as(span_ids)
    spans = torch.stack([rows, span_ids, unit_ids])[:, span_ids > 0].unique_consecutive(dim=1)
    return spans[:2].unique_consecutive(dim=1, return_counts=True)[1]


def table(results: dict) -> str:
    lines = [f"{HEAD[0]:16}" + "".join(f"{name:>11}" for name in HEAD[1:])]
    for name, row in results.items():
        shares = [row[key] for key in ("rate", "mask", "random", "kept")]
        cells = [f"{100 * share:.2f} %" for share in (*shares, row["coverage"][0], row["coverage"][-1])]
        cells += [f"{row['mean_length']:.2f}", f"{row['p_value']:.2g}"]
        lines.append(f"{name:16}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def draw(results: dict, rate: float, path: Path):
    """Draw the coverage by position, and the lengths of n-grams and spans."""
    figure = new_figure(11, 4)
    positions, lengths = figure.subplots(1, 2)
    for index, (name, row) in enumerate(results.items()):
        style = dict(color=f"C{index}", label=name, linestyle="--" if "official" in name else "-", marker="o", markersize=3)
        middles = [(k + 0.5) / BINS for k in range(BINS)]
        positions.plot(middles, [100 * share for share in row["coverage"]], **style)
        counts = row["lengths_in_words"]
        if len(counts) > 1:
            lengths.plot(range(1, len(counts) + 1), [100 * count / sum(counts) for count in counts], **style)
    positions.axhline(100 * rate, color="black", linewidth=0.8)
    positions.set(title="Where", xlabel="position, share of the sequence", ylabel="masked, %", ylim=(0, None))
    lengths.set(title="How long", xlabel="words of an n-gram or span", ylabel="share, %", ylim=(0, None))
    for axes in (positions, lengths):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save_figure(figure, path)


def main():
    args = parse_args()
    with ExitOnUserError():
        maskers = {
            name: MaskingOptions(rate=args.rate, max_length=args.length, **choice) for name, choice in MASKERS.items()
        }
        if args.length < BINS + 2 or args.epochs < 1:
            raise ValueError(
                f"--length must be at least {BINS + 2} and --epochs at least 1, got {args.length} and {args.epochs}"
            )
        documents = read_documents(args.texts)
        if args.tokenizer in TRAINED:
            tokenizer = train_tokenizer(args.tokenizer, documents, args.vocab_size, show_progress=False)
        else:
            with named_tokenizer(args.tokenizer, "--tokenizer"):
                tokenizer = load_tokenizer(args.tokenizer)
        vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
        sequences = full_sequences(documents, tokenizer, args.tokens, args.length)
        args.output_dir.mkdir(parents=True, exist_ok=True)
    text = sequences[:, 1:-1]
    words = int((units(sequences, vocabulary, True).amax(1) + 1).sum())
    print(f"{text.numel()} tokens in {len(text)} sequences of {args.length}; {text.numel() / words:.2f} tokens a word")
    with tqdm(total=len(MASKERS) * args.epochs, disable=None) as bar:
        results = {name: measure(options, sequences, vocabulary, args, bar) for name, options in maskers.items()}
    print(table(results))
    settings = dict(tokens=text.numel(), words=words, length=args.length, epochs=args.epochs, rate=args.rate, seed=args.seed)
    source = dict(tokenizer=args.tokenizer, vocabulary=len(tokenizer), sequences=len(sequences))
    report = dict(settings | source, versions=versions(), maskers=results)
    file = args.output_dir / "masking_statistics.json"
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    draw(results, args.rate, file.with_suffix(".png"))
    print(f"{file} and {file.with_suffix('.png')}")


if __name__ == "__main__":
    main()

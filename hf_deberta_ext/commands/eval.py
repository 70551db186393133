# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext eval`: evaluate a model on minimal pairs, with word frequencies as a baseline."""

import argparse
import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "score minimal pairs: is the good sentence more likely than the bad one?"
EXAMPLE = """\
deberta-ext eval --model my_model --pairs blimp --frequency_text train.jsonl.gz --output_dir my_model_blimp
deberta-ext eval --model my_model --pairs blimp --scoring pll within_word --max_pairs_per_phenomenon 200
deberta-ext eval --model my_discriminator --pairs mine.tsv --scoring rtd --card"""
METHODS = {
    "pll": "pseudo-log-likelihood",
    "within_word": "pseudo-log-likelihood with later tokens of the same word also masked",
    "rtd": "replaced token detection",
}
FREQUENCY = "word frequency"
TITLE = "## Minimal pairs"
STEM = "minimal_pairs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="folder or repository of a masked language model or discriminator")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument(
        "--pairs",
        nargs="+",
        required=True,
        help="files (.jsonl, .tsv, .csv, ..., each also .gz) or folders of them, with the columns sentence_good, "
        "sentence_bad and, optionally, UID (paradigm) and linguistics_term (phenomenon)",
    )
    methods = "; ".join(f"{name}: {text}" for name, text in METHODS.items())
    parser.add_argument("--scoring", nargs="+", choices=METHODS, default=["pll"], help=f"{methods}; default: pll")
    frequency_help = "files of texts, preferably the training data, for a baseline of word frequencies; default: no baseline"
    parser.add_argument("--frequency_text", nargs="+", default=[], help=frequency_help)
    most_help = "maximum number of pairs of each phenomenon to score, evenly spaced; default: all pairs"
    parser.add_argument("--max_pairs_per_phenomenon", type=int, help=most_help)
    parser.add_argument("--batch_size", type=int, default=64, help="sentences per batch; default: 64")
    parser.add_argument("--output_dir", type=Path, default=Path(STEM), help=f"folder to write to; default: {STEM}")
    parser.add_argument("--card", action="store_true", help="add table and figure to the README.md in the folder --model")


def run(arguments: argparse.Namespace) -> None:
    """Score all pairs and print a table of accuracies; write the table, a figure and minimal_pairs.json."""
    from ..analysis.minimal_pairs import pair_accuracies, thin_out, word_frequency_scores
    from ..analysis.plots import plot_minimal_pairs
    from ..analysis.plots.figure import new_figure
    from ..analysis.sentence_scoring import pseudo_log_likelihood
    from ..pretraining.corpus import load_corpus, texts
    from ..publishing.card import put_section

    most, model_folder, folder = arguments.max_pairs_per_phenomenon, Path(arguments.model), arguments.output_dir
    if most is not None and most < 1:
        raise ValueError(f"--max_pairs_per_phenomenon must be at least 1, got {most}")
    if arguments.card and not (model_folder / "README.md").is_file():
        raise ValueError(f"--card needs a README.md in {model_folder}: write one with deberta-ext card {model_folder}")
    # Raise errors about packages, texts, models or the folder now, before the long scoring.
    new_figure(1)
    pairs = read_pairs(arguments.pairs)
    if most is not None:
        pairs = thin_out(pairs, most)
    # Score each sentence only once, even if several pairs contain it.
    sentences = list(dict.fromkeys(sentence for pair in pairs for sentence in (pair.good, pair.bad)))
    baseline = {}
    if arguments.frequency_text:
        corpus = load_corpus(arguments.frequency_text, streaming=True)
        baseline[FREQUENCY] = pair_accuracies(pairs, word_frequency_scores(texts(corpus), sentences))
    scorers = {method: load_scorer(arguments, method) for method in arguments.scoring}
    folder.mkdir(parents=True, exist_ok=True)
    results, seconds = {}, {}
    for method, (model, tokenizer) in scorers.items():
        start = time.monotonic()
        options = dict(within_word=method == "within_word", show_progress=True)
        scores = pseudo_log_likelihood(model, tokenizer, sentences, arguments.batch_size, **options)
        totals = {sentence: score.total for sentence, score in zip(sentences, scores, strict=True)}
        results[method] = pair_accuracies(pairs, totals)
        seconds[method] = round(time.monotonic() - start, 1)
    results |= baseline

    name = arguments.model
    if model_folder.is_dir():
        name = model_folder.resolve().name
    report = dict(model=name, pairs=len(pairs), sentences=len(sentences), max_pairs_per_phenomenon=most, seconds=seconds)
    report |= dict(frequency_text=list(map(os.path.basename, arguments.frequency_text)), results=results)
    table = section(pairs, results, arguments)
    (folder / f"{STEM}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / f"{STEM}.md").write_text(table, encoding="utf-8")
    figure = folder / f"{STEM}.png"
    plot_minimal_pairs({name: result["phenomena"] for name, result in results.items()}, figure)
    if arguments.card:
        if folder.resolve() != model_folder.resolve():
            shutil.copyfile(figure, model_folder / figure.name)
        put_section(model_folder / "README.md", f"{table}\n![Accuracy by phenomenon]({figure.name})\n")
    print(table)


def read_pairs(sources: list[str]) -> list[Any]:
    """Read the minimal pairs in `sources`, which are files or folders of files."""
    from ..analysis.minimal_pairs import pairs_of_rows
    from ..data.files import file_kind, read_rows

    files = []
    for source in map(Path, sources):
        if source.is_dir():
            files += filter(file_kind, sorted(source.rglob("[!.]*")))
        else:
            files.append(source)
    pairs = []
    for file in files:
        pairs += pairs_of_rows(read_rows(file), file.name.partition(".")[0])
    if not pairs:
        raise ValueError(f"--pairs must contain minimal pairs, got none in {' '.join(sources)}")
    return pairs


def load_scorer(arguments: argparse.Namespace, method: str) -> tuple[Any, Any]:
    """Load the model with the head that a scoring method needs, and its tokenizer."""
    import torch
    from transformers import AutoModelForMaskedLM

    from ..analysis.explanation import load_model
    from ..checkpoints.files import ADAPTER_CONFIG_FILE, is_adapter_folder, read_json
    from ..tokenization import load_tokenizer

    source, revision = arguments.model, arguments.revision
    if is_adapter_folder(source):
        base = read_json(Path(source, ADAPTER_CONFIG_FILE)).get("base_model_name_or_path")
        raise ValueError(f"--model must be a complete model, got {source}, an adapter of {base}; merge the adapter first")
    if method == "rtd":
        explained = load_model(source, revision)
        if explained.discriminator is None:
            raise ValueError(
                f"{source} has no head for replaced token detection; use --scoring pll for masked language models"
            )
        return explained.discriminator, load_tokenizer(explained.tokenizer, revision=revision)
    options = dict(revision=revision or "main", dtype=torch.float32, output_loading_info=True)
    model, info = AutoModelForMaskedLM.from_pretrained(source, **options)
    if missing := sorted(map(str, info["missing_keys"])):
        raise ValueError(
            f"{source} has no trained masked-LM head ({missing[0]} is not in its weights); use --scoring rtd for a "
            "discriminator"
        )
    return model, load_tokenizer(source, revision=revision)


def section(pairs: list[Any], results: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Format the accuracies as a Markdown section with heading, table and notes."""
    from ..analysis.results import markdown_table

    counts = Counter(pair.phenomenon for pair in pairs)
    rows = [["phenomenon", "pairs", *results]]
    for name in sorted(counts):
        rows.append([name, f"{counts[name]:,}", *(f"{100 * x['phenomena'][name]:.1f}" for x in results.values())])
    rows.append(["mean over paradigms", f"{len(pairs):,}", *(f"{100 * x['accuracy']:.1f}" for x in results.values())])
    methods = "; ".join(f"{name}: {METHODS[name]}" for name in results if name in METHODS)
    notes = f"Percentage of pairs in which the good sentence has the higher score; ties count one half. {methods}. "
    if arguments.frequency_text:
        names = ", ".join(map(os.path.basename, arguments.frequency_text))
        notes += f"Word frequency: the sum of log frequencies of the words in {names}, a baseline without grammar."
    else:
        notes += "There is no word frequency baseline, because --frequency_text was not given."
    if arguments.max_pairs_per_phenomenon:
        most = arguments.max_pairs_per_phenomenon
        notes += f" Only up to {most} pairs per phenomenon were scored, so do not compare these results with others."
    return f"{TITLE}\n\n{markdown_table(*rows)}\n\n{notes}\n"

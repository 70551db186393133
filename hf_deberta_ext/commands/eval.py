# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext eval`: accuracy of a model on minimal pairs, beside that of word frequencies."""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "Scores minimal pairs, such as BLiMP's, and files of your own: is the good sentence more likely than the bad one?"
EXAMPLE = """\
deberta-ext eval --model my_model --pairs blimp --frequency_text train.jsonl.gz --output_dir my_model_blimp
deberta-ext eval --model my_model --pairs blimp --scoring pll within_word --max_pairs_per_phenomenon 200
deberta-ext eval --model my_discriminator --pairs mine.tsv --scoring rtd --card"""
METHODS = {
    "pll": "pseudo-log-likelihood",
    "within_word": "pseudo-log-likelihood, later tokens of the word masked",
    "rtd": "replaced token detection",
}
FREQUENCY = "word frequency"
TITLE = "## Minimal pairs"
STEM = "minimal_pairs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="folder or repository of a masked language model or discriminator")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument(
        "--pairs", nargs="+", required=True,
        help="files (.jsonl, .tsv, .csv, ..., each also .gz) or folders of them, with the columns sentence_good, "
        "sentence_bad and, if you like, UID (paradigm) and linguistics_term (phenomenon)",
    )  # fmt: skip
    methods = "; ".join(f"{name}: {text}" for name, text in METHODS.items())
    parser.add_argument("--scoring", nargs="+", choices=METHODS, default=["pll"], help=f"{methods}; default: pll")
    parser.add_argument(
        "--frequency_text", nargs="+", help="texts whose word frequencies are the baseline, best those of the training"
    )
    parser.add_argument("--max_pairs_per_phenomenon", type=int, help="a quick look: so many, evenly spread; default: all")
    parser.add_argument("--batch_size", type=int, default=64, help="rows that run together; default: 64")
    parser.add_argument("--output_dir", type=Path, default=Path(STEM), help=f"folder to write to; default: {STEM}")
    parser.add_argument("--card", action="store_true", help="put table and figure into the README.md of --model, a folder")


def run(arguments: argparse.Namespace) -> int | None:
    """Score all pairs, print the table, and write it with a figure and minimal_pairs.json.

    Raises:
        ValueError, OSError: a file is damaged or no file of pairs, or the model has not the head that --scoring needs.
        ImportError: matplotlib is not installed.
    """
    from ..analysis.minimal_pairs import pair_accuracies, thin_out, word_frequency_scores
    from ..analysis.plots import plot_minimal_pairs
    from ..analysis.plots.figure import new_figure
    from ..analysis.sentence_scoring import pseudo_log_likelihood
    from ..pretraining.corpus import load_corpus, texts
    from ..publishing.card import put_section

    most, folder = arguments.max_pairs_per_phenomenon, Path(arguments.model)
    if most is not None and most < 1:
        raise ValueError(f"--max_pairs_per_phenomenon must be at least 1, got {most}")
    if arguments.card and not (folder / "README.md").is_file():
        raise ValueError(f"--card needs a README.md in {folder}: write one with deberta-ext card {folder}")
    # Reports at once that matplotlib is missing, not after the scoring.
    new_figure(1)
    pairs = read_pairs(arguments.pairs)
    pairs = pairs if most is None else thin_out(pairs, most)
    # Pairs share sentences.
    sentences = [*dict.fromkeys(sentence for pair in pairs for sentence in (pair.good, pair.bad))]
    # Whatever is wrong with texts, models or the folder shows before the scoring.
    frequency, results, seconds = None, {}, {}
    if arguments.frequency_text:
        corpus = load_corpus(arguments.frequency_text, streaming=True)
        frequency = pair_accuracies(pairs, word_frequency_scores(texts(corpus), sentences))
    scorers = {method: load_scorer(arguments, method) for method in dict.fromkeys(arguments.scoring)}
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for method, (model, tokenizer) in scorers.items():
        start = time.monotonic()
        options = dict(within_word=method == "within_word", show_progress=True)
        scores = pseudo_log_likelihood(model, tokenizer, sentences, arguments.batch_size, **options)
        totals = {sentence: score.total for sentence, score in zip(sentences, scores, strict=True)}
        results[method], seconds[method] = pair_accuracies(pairs, totals), round(time.monotonic() - start, 1)
    if frequency is not None:
        results[FREQUENCY] = frequency

    table = section(pairs, results, arguments)
    report = dict(
        model=folder.resolve().name if folder.is_dir() else arguments.model,
        pairs=len(pairs), sentences=len(sentences), max_pairs_per_phenomenon=most, seconds=seconds,
        frequency_text=[Path(source).name for source in arguments.frequency_text or []], results=results,
    )  # fmt: skip
    (arguments.output_dir / f"{STEM}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (arguments.output_dir / f"{STEM}.md").write_text(table, encoding="utf-8")
    figure = arguments.output_dir / f"{STEM}.png"
    plot_minimal_pairs({name: result["phenomena"] for name, result in results.items()}, figure)
    if arguments.card:
        if figure.resolve() != (folder / figure.name).resolve():
            shutil.copyfile(figure, folder / figure.name)
        put_section(folder / "README.md", f"{table}\n![Accuracy by phenomenon]({figure.name})\n")
    print(table)
    return None


def read_pairs(sources: list[str]) -> list[Any]:
    """The pairs of files, and of all files in folders.

    Raises:
        ValueError, OSError: as `list_files`, `read_rows` and `pairs_of_rows`.
    """
    from ..analysis.minimal_pairs import pairs_of_rows
    from ..data.files import read_rows
    from ..pretraining.corpus import list_files

    pairs = []
    for source in sources:
        files = list_files(source)
        if files is None:
            raise FileNotFoundError(f"--pairs {source} is no file and no folder")
        for path, *_ in files:
            pairs += pairs_of_rows(read_rows(path), Path(path).name.partition(".")[0])
    if not pairs:
        raise ValueError(f"--pairs {' '.join(sources)} has no pairs")
    return pairs


def load_scorer(arguments: argparse.Namespace, method: str) -> tuple[Any, Any]:
    """The model with the head of a way of scoring, and its tokenizer.

    Raises:
        ValueError: the checkpoint has no such head, or is an adapter.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    from ..analysis.explanation import load_model
    from ..model.checkpoint_files import ADAPTER_CONFIG_FILE, is_adapter_folder, read_json
    from ..tokenization import load_tokenizer

    source, revision = arguments.model, arguments.revision
    if is_adapter_folder(source):
        base = read_json(Path(source, ADAPTER_CONFIG_FILE)).get("base_model_name_or_path")
        raise ValueError(f"{source} is an adapter of {base}: give a whole model")
    if method == "rtd":
        explained = load_model(source, revision)
        if explained.discriminator is None:
            raise ValueError(
                f"{source} has no head of replaced token detection: --scoring pll is for masked language models"
            )
        return explained.discriminator, load_tokenizer(explained.tokenizer, revision=revision)
    model, info = AutoModelForMaskedLM.from_pretrained(
        source, revision=revision or "main", dtype=torch.float32, output_loading_info=True
    )
    if missing := sorted(map(str, info["missing_keys"])):
        raise ValueError(
            f"{source} has no trained head for masked words ({missing[0]} is not in its weights): --scoring rtd is for "
            "discriminators"
        )
    return model, load_tokenizer(source, revision=revision)


def section(pairs: list[Any], results: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Heading, table and notes in Markdown."""
    from ..publishing.results import markdown_table

    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.phenomenon] = counts.get(pair.phenomenon, 0) + 1
    rows = [("phenomenon", "pairs", *results)]
    for name, count in sorted(counts.items()):
        rows.append((name, f"{count:,}", *(f"{100 * result['phenomena'][name]:.1f}" for result in results.values())))
    rows.append(
        ("mean over paradigms", f"{len(pairs):,}", *(f"{100 * result['accuracy']:.1f}" for result in results.values()))
    )
    notes = "Percent of the pairs whose good sentence has the higher score; ties count one half. "
    notes += "; ".join(f"{name}: {METHODS[name]}" for name in results if name in METHODS) + ". "
    if arguments.frequency_text:
        names = ", ".join(Path(source).name for source in arguments.frequency_text)
        notes += f"Word frequency: the sum of log frequencies of the words in {names}, which knows no grammar."
    else:
        notes += "Without the baseline of word frequencies, for which --frequency_text was not given."
    if most := arguments.max_pairs_per_phenomenon:
        notes += f" Of each phenomenon {most} pairs at most: a quick look, not a result to compare."
    return f"{TITLE}\n\n{markdown_table(*rows)}\n\n{notes}\n"

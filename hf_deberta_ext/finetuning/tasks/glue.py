# SPDX-License-Identifier: Apache-2.0
"""GLUE and XNLI: Hub names, columns and labels of their tasks, and files for GLUE's server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["GLUE", "XNLI_LANGUAGES", "KnownTask", "glue_task", "glue_values", "known_task", "write_index_tsv", "xnli_task"]


@dataclass(frozen=True)
class KnownTask:
    """Published text classification task.

    Args:
        dataset (`str`): id of the data set on the Hub.
        text_columns (`tuple[str]`): one text column, or two for pairs.
        labels (`tuple[str]`): names of the labels 0, 1, ... as on the Hub; empty for regression.
        train, evaluation, test (`dict[str, tuple[str, str]]`): set name ("" for the main set) -> (configuration, split) on
            the Hub.
        files (`dict[str, str]`): name of the test set -> name of the file that the server of GLUE or SuperGLUE expects.
        texts (`bool`, defaults to `False`): whether the server expects label names instead of numbers.
        metric (`str`, defaults to "accuracy"): metric that selects the best checkpoint.
        max_seq_length (`int`, defaults to 128): default of --max_seq_length.
    """

    dataset: str
    text_columns: tuple[str, ...]
    labels: tuple[str, ...]
    train: Mapping[str, tuple[str, str]]
    evaluation: Mapping[str, tuple[str, str]]
    test: Mapping[str, tuple[str, str]]
    files: Mapping[str, str] = field(default_factory=dict)
    texts: bool = False
    metric: str = "accuracy"
    max_seq_length: int = 128


ENTAILMENT = ("entailment", "neutral", "contradiction")
PAIR = ("sentence1", "sentence2")


def glue_task(
    name: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    file: str,
    *,
    dataset: str = "nyu-mll/glue",
    diagnostic: bool = False,
    **fields: Any,
) -> KnownTask:
    """Return a task with the splits train, validation and test of the configuration `name`; if `diagnostic`, only test."""
    train, evaluation = {"": (name, "train")}, {"": (name, "validation")}
    if diagnostic:
        train, evaluation = {}, {}
    return KnownTask(dataset, columns, labels, train, evaluation, {"": (name, "test")}, {"": file}, **fields)


GLUE: Mapping[str, KnownTask] = {
    "cola": glue_task("cola", ("sentence",), ("unacceptable", "acceptable"), "CoLA.tsv", metric="matthews_correlation"),
    "sst2": glue_task("sst2", ("sentence",), ("negative", "positive"), "SST-2.tsv"),
    "mrpc": glue_task("mrpc", PAIR, ("not_equivalent", "equivalent"), "MRPC.tsv", metric="combined_score"),
    "stsb": glue_task("stsb", PAIR, (), "STS-B.tsv", metric="combined_score"),
    "qqp": glue_task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), "QQP.tsv", metric="combined_score"),
    "mnli": KnownTask(
        "nyu-mll/glue",
        ("premise", "hypothesis"),
        ENTAILMENT,
        train={"": ("mnli", "train")},
        evaluation={"": ("mnli", "validation_matched"), "mm": ("mnli", "validation_mismatched")},
        test={"": ("mnli", "test_matched"), "mm": ("mnli", "test_mismatched")},
        files={"": "MNLI-m.tsv", "mm": "MNLI-mm.tsv"},
        texts=True,
    ),
    "qnli": glue_task("qnli", ("question", "sentence"), ("entailment", "not_entailment"), "QNLI.tsv", texts=True),
    "rte": glue_task("rte", PAIR, ("entailment", "not_entailment"), "RTE.tsv", texts=True),
    "wnli": glue_task("wnli", PAIR, ("not_entailment", "entailment"), "WNLI.tsv"),
    # Diagnostic set without training data, to predict with a model that was fine-tuned on MNLI.
    "ax": glue_task(
        "ax", ("premise", "hypothesis"), ENTAILMENT, "AX.tsv", diagnostic=True, texts=True, metric="matthews_correlation"
    ),
}
"""GLUE's tasks, by name of their configuration on the Hub."""

XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


def xnli_task(train_language: str, languages: Sequence[str], *, by_language: bool) -> KnownTask:
    """Return XNLI with one training language and one or more evaluation languages.

    If `by_language` is True, each evaluation set is named after its language; else, only one language is allowed.
    """
    for language in (train_language, *languages):
        if language not in XNLI_LANGUAGES:
            raise ValueError(f"the language of XNLI must be one of {', '.join(XNLI_LANGUAGES)}, got {language!r}")
    sets = {language if by_language else "": language for language in languages}
    return KnownTask(
        "facebook/xnli",
        ("premise", "hypothesis"),
        ENTAILMENT,
        train={"": (train_language, "train")},
        evaluation={name: (language, "validation") for name, language in sets.items()},
        test={name: (language, "test") for name, language in sets.items()},
    )


def known_task(data_args: Any) -> KnownTask | None:
    """Return the task of --task_name, or None for user data; check the flags of XNLI's languages."""
    name = data_args.task_name
    languages = [*filter(None, (data_args.language, data_args.train_language, *data_args.eval_languages))]
    if name != "xnli":
        if languages:
            raise ValueError("--language, --train_language and --eval_languages need --task_name xnli")
        if name not in (None, *GLUE):
            raise ValueError(
                f"--task_name must be one of {', '.join(GLUE)} and xnli, got {name!r}; remove it for your own data"
            )
        return GLUE.get(name)
    has_own_data = data_args.train_file or data_args.validation_file or data_args.test_file or data_args.dataset_name
    if languages and has_own_data:
        raise ValueError(
            "--language, --train_language and --eval_languages are only for XNLI on the Hub: remove them, and pass files as "
            "NAME=FILE"
        )
    if not languages and not has_own_data:
        raise ValueError("XNLI needs a language: give --language, or --train_language en --eval_languages de fr ...")
    train = data_args.train_language or data_args.language or "en"
    evaluated = data_args.eval_languages or [data_args.language or train]
    return xnli_task(train, evaluated, by_language=bool(data_args.eval_languages))


def glue_values(task: KnownTask, predicted: np.ndarray) -> list[str]:
    """Format predictions [n] for GLUE's server: names or numbers of labels, or scores clipped to [0, 5] (STS-B)."""
    if not task.labels:
        return [f"{score:.3f}" for score in np.clip(predicted, 0, 5)]
    if not task.texts:
        return [*map(str, predicted)]
    return [task.labels[number] for number in predicted]


def write_index_tsv(file: Path, values: Sequence[str]) -> Path:
    """Write a table with the columns index (from 0) and prediction; tabs and line ends in `values` become spaces."""
    lines = ["index\tprediction", *(f"{index}\t{' '.join(value.split())}" for index, value in enumerate(values))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file

# SPDX-License-Identifier: Apache-2.0
"""Metrics of classification, regression and multiple choice, and the metrics of each task.

They are those of scikit-learn and scipy, which refuse what they cannot score, with one exception: a correlation with a
constant is 0.0, where scipy gives NaN, because NaN is no JSON and a constant prediction is no reason to end a run. All are
fractions (0.9, not 90).
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from scipy.stats import pearsonr, rankdata
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.utils import check_array, check_consistent_length

__all__ = [
    "METRICS",
    "TASK_METRICS",
    "accuracy",
    "compute",
    "f1",
    "grouped_accuracy",
    "macro_f1",
    "matthews_correlation",
    "micro_f1",
    "multirc",
    "pearson",
    "spearman",
]


def accuracy(predictions: Any, references: Any) -> float:
    """Return the part of the predictions [n] that equals their reference: whole numbers, or texts on both sides."""
    return float(accuracy_score(references, predictions))


def f1(predictions: Any, references: Any, average: str = "binary") -> float:
    """Return F1 of label 1 against label 0; 0.0 where label 1 is neither predicted nor right anywhere."""
    return float(f1_score(references, predictions, average=average, zero_division=0))


def macro_f1(predictions: Any, references: Any) -> float:
    """Return the mean over labels of their F1, each against all others; labels that occur on neither side do not count."""
    return f1(predictions, references, average="macro")


def micro_f1(predictions: Any, references: Any) -> float:
    """Return F1 over all (example, label) pairs of predictions and references [examples, labels] of 0 and 1."""
    # Not by rows: scikit-learn takes those of a single label for classes.
    predictions, references = np.asarray(predictions), np.asarray(references)
    if predictions.shape != references.shape:
        raise ValueError(f"got predictions {list(predictions.shape)} for references {list(references.shape)}")
    return f1(predictions.flatten(), references.flatten())


def matthews_correlation(predictions: Any, references: Any) -> float:
    """Return Matthews' correlation of labels, of any number of them; 0.0 where one side is constant."""
    return float(matthews_corrcoef(references, predictions))


def pearson(predictions: Any, references: Any) -> float:
    """Return Pearson's correlation of numbers [n]; 0.0 where one side is constant (scipy gives NaN there)."""
    check_consistent_length(predictions, references)
    columns = [check_array(column, ensure_2d=False, dtype=np.float64) for column in (predictions, references)]
    if any(np.ptp(column) == 0 for column in columns):
        return 0.0
    return float(pearsonr(*columns).statistic)


def spearman(predictions: Any, references: Any) -> float:
    """Return Spearman's correlation of numbers [n]: Pearson's of the ranks; 0.0 where one side is constant."""
    return pearson(rankdata(predictions), rankdata(references))


def grouped_accuracy(predictions: Any, references: Any, groups: Sequence[str | None]) -> dict[str, float]:
    """Return "accuracy" over all examples, and "<group>_accuracy" over those of each group: RACE's "middle" and "high".

    Args:
        predictions, references: [n], labels.
        groups: [n], the group of each example; None for one of none.
    """
    hits = np.asarray(predictions) == np.asarray(references)
    scores = {"accuracy": accuracy(predictions, references)}
    for name in sorted({*groups} - {None}):
        scores[f"{name}_accuracy"] = float(hits[[group == name for group in groups]].mean())
    return scores


def multirc(predictions: Any, references: Any, groups: Sequence[Hashable]) -> dict[str, float]:
    """Return the metrics of MultiRC, of which SuperGLUE's score is the first and the last.

    Args:
        predictions, references: [n], 0 or 1: each example is a possible answer to a question, true or not.
        groups: [n], the question of each answer, such as (paragraph, question).
    Returns:
        "exact_match": the part of the questions with no wrong answer; "f1_m": the mean over questions of the macro-F1 of
        their answers, as `evaluate` has it; "f1_a": F1 over all answers.
    """
    predictions, references = np.asarray(predictions), np.asarray(references)
    questions: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        questions.setdefault(group, []).append(row)
    exact = [bool((predictions[rows] == references[rows]).all()) for rows in questions.values()]
    f1_m = [macro_f1(predictions[rows], references[rows]) for rows in questions.values()]
    return {"exact_match": float(np.mean(exact)), "f1_m": float(np.mean(f1_m)), "f1_a": f1(predictions, references)}


METRICS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews_correlation": matthews_correlation,
    "micro_f1": micro_f1,
    "pearson": pearson,
    "spearmanr": spearman,
}
"""Metrics of predictions and references, by the names that `evaluate` uses for GLUE."""

_BY_ACCURACY = "sst2 mnli mnli_matched mnli_mismatched qnli rte wnli xnli boolq copa wic wsc wsc.fixed axg".split()

TASK_METRICS: dict[str, tuple[str, ...]] = dict.fromkeys(_BY_ACCURACY, ("accuracy",)) | {
    "cola": ("matthews_correlation", "accuracy"),
    "mrpc": ("accuracy", "f1", "combined_score"),
    "stsb": ("pearson", "spearmanr", "combined_score"),
    "qqp": ("accuracy", "f1", "combined_score"),
    "ax": ("matthews_correlation",),
    "cb": ("accuracy", "macro_f1"),
    "multirc": ("exact_match", "f1_m", "f1_a"),
    "record": ("exact_match", "f1"),
    "axb": ("matthews_correlation",),
}
"""The metrics of a GLUE, XNLI or SuperGLUE task, for `compute`; but "record" is for `question_answering_metrics.record`."""


def compute(
    names: Sequence[str], predictions: Any, references: Any, groups: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """Compute several metrics at once: `compute(TASK_METRICS["mrpc"], predictions, references)`.

    Args:
        names: of `METRICS`; "exact_match", "f1_m" and "f1_a" of `multirc`, which need `groups`; and at the end
            "combined_score", the mean of the others.
        predictions, references: labels [n], or numbers [n] for "pearson" and "spearmanr", or [n, labels] for "micro_f1".
        groups (*optional*): [n], see `multirc`.
    """
    of_groups = {} if groups is None else multirc(predictions, references, groups)
    scores: dict[str, float] = {}
    for name in names:
        if name == "combined_score":
            scores[name] = float(np.mean([*scores.values()]))
        elif name in of_groups:
            scores[name] = of_groups[name]
        else:
            scores[name] = METRICS[name](predictions, references)
    return scores

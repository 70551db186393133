# SPDX-License-Identifier: Apache-2.0
"""Compute metrics of classification, regression and multiple choice; list the metrics of each task.

Metrics are computed by scikit-learn and scipy, which raise errors for invalid inputs. The correlation with a constant is 0.0
instead of scipy's NaN, because JSON has no NaN and a constant prediction must not end a run. All metrics except correlations
are fractions (0.9, not 90).
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
    """Compute the fraction of predictions [n] that equal their reference; the values must be all integers or all texts."""
    return float(accuracy_score(references, predictions))


def f1(predictions: Any, references: Any, average: str = "binary") -> float:
    """Compute F1 of label 1, or F1 with another `average` as in scikit-learn's `f1_score`; 0 / 0 counts as 0.0."""
    return float(f1_score(references, predictions, average=average, zero_division=0))


def macro_f1(predictions: Any, references: Any) -> float:
    """Compute F1 of each label that occurs in the predictions or references, and return the unweighted mean."""
    return f1(predictions, references, average="macro")


def micro_f1(predictions: Any, references: Any) -> float:
    """Compute micro-averaged F1 of multi-label predictions; predictions and references are [examples, labels] of 0 and 1."""
    # Flattened, because scikit-learn would read [examples, 1] as class numbers.
    predictions, references = np.asarray(predictions), np.asarray(references)
    if predictions.shape != references.shape:
        raise ValueError(f"expected predictions of shape {list(references.shape)}, got {list(predictions.shape)}")
    return f1(predictions.flatten(), references.flatten())


def matthews_correlation(predictions: Any, references: Any) -> float:
    """Compute Matthews' correlation of two or more classes; 0.0 if predictions or references are constant."""
    return float(matthews_corrcoef(references, predictions))


def pearson(predictions: Any, references: Any) -> float:
    """Compute Pearson's correlation of numbers [n]; 0.0 if predictions or references are constant (scipy: NaN)."""
    check_consistent_length(predictions, references)
    columns = [check_array(column, ensure_2d=False, dtype=np.float64) for column in (predictions, references)]
    if any(np.ptp(column) == 0 for column in columns):
        return 0.0
    return float(pearsonr(*columns).statistic)


def spearman(predictions: Any, references: Any) -> float:
    """Compute Spearman's rank correlation of numbers [n]; 0.0 if predictions or references are constant."""
    return pearson(rankdata(predictions), rankdata(references))


def grouped_accuracy(predictions: Any, references: Any, groups: Sequence[str | None]) -> dict[str, float]:
    """Compute "accuracy" over all examples and "<group>_accuracy" over each group, such as RACE's "middle" and "high"."""
    hits = np.asarray(predictions) == np.asarray(references)
    scores = {"accuracy": accuracy(predictions, references)}
    for name in sorted({*groups} - {None}):
        scores[f"{name}_accuracy"] = float(hits[[group == name for group in groups]].mean())
    return scores


def multirc(predictions: Any, references: Any, groups: Sequence[Hashable]) -> dict[str, float]:
    """Compute the metrics of MultiRC; SuperGLUE's score uses "exact_match" and "f1_a".

    `predictions` and `references` [n] are 0 or 1 for each candidate answer; `groups` [n] is the question of each answer.

    Returns:
        "exact_match": fraction of questions for which all predictions are correct; "f1_m": macro-F1 over the answers of
        each question, averaged over questions, as in the library `evaluate`; "f1_a": F1 over all answers.
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
"""Metric functions (predictions, references) -> float, by name; GLUE's metrics are named as in the library `evaluate`."""

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
"""Metrics of each GLUE, XNLI and SuperGLUE task, for `compute` (for "record": `question_answering_metrics.record`)."""


def compute(
    names: Sequence[str], predictions: Any, references: Any, groups: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """Compute several metrics at once: `compute(TASK_METRICS["mrpc"], predictions, references)`.

    Args:
        names: keys of `METRICS`; also "exact_match", "f1_m" and "f1_a", which need `groups` (see `multirc`). The last name
            can be "combined_score", the mean of all other metrics.
        predictions, references: [n] labels; [n] numbers for "pearson" and "spearmanr"; [n, labels] for "micro_f1".
        groups (*optional*): [n] question of each answer; see `multirc`.
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

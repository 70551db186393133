# SPDX-License-Identifier: Apache-2.0
"""Metrics of classification, regression and multiple choice, and the metrics of each task.

They are those of scikit-learn and scipy behind checks of their input, with one exception: a correlation with a constant is
0.0, where scipy gives NaN, because NaN is no JSON and a constant prediction is no reason to end a run. All are fractions
(0.9, not 90).
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from scipy.stats import pearsonr, rankdata
from sklearn.metrics import f1_score, matthews_corrcoef

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


def _check_values(values: np.ndarray, side: str) -> None:
    """Raises:
    ValueError: `values` are no numbers, or one of them is NaN or infinite.
    """
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{side} must be numbers, got {values.dtype} such as {values.flat[0]!r}")
    wrong = np.flatnonzero(~np.isfinite(values)) if values.dtype.kind == "f" else ()
    if len(wrong):
        raise ValueError(
            f"{side} hold {values.flat[wrong[0]]} at number {wrong[0] + 1} of {values.size} ({len(wrong)} in all), of which "
            "there is no metric; did training diverge?"
        )


def _arrays(predictions: Any, references: Any, ndim: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays of equal shape, not empty."""
    predictions, references = np.asarray(predictions), np.asarray(references)
    for side, values in (("predictions", predictions), ("references", references)):
        if values.size == 0:
            raise ValueError(f"{side} are empty: give one for each example")
        if values.ndim != ndim:
            form = "one value for each example" if ndim == 1 else "[examples, labels]"
            raise ValueError(f"{side} must be {form}, got shape {list(values.shape)}; of logits take the argmax first")
    if predictions.shape != references.shape:
        raise ValueError(
            f"there must be a prediction for each reference, got predictions {list(predictions.shape)} and references "
            f"{list(references.shape)}"
        )
    return predictions, references


def _whole(values: np.ndarray, side: str) -> np.ndarray:
    """Integer labels as int64."""
    _check_values(values, side)
    whole = values.astype(np.int64)
    if values.dtype.kind == "f" and (wrong := np.flatnonzero(whole != values)).size:
        raise ValueError(f"{side} must be labels, got {values.flat[wrong[0]]}; of logits take the argmax first")
    return whole


def _labels(predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
    """[n] and [n]: both int64 or both text."""
    predictions, references = _arrays(predictions, references)
    kinds = predictions.dtype.kind + references.dtype.kind
    if kinds == "UU":
        return predictions, references
    if "U" in kinds:
        raise ValueError(
            "predictions and references must be of one kind, names or numbers, got "
            f"{predictions[0].item()!r} and {references[0].item()!r}"
        )
    return _whole(predictions, "predictions"), _whole(references, "references")


def _numbers(predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
    """[n] and [n], float64."""
    predictions, references = _arrays(predictions, references)
    _check_values(predictions, "predictions")
    _check_values(references, "references")
    return predictions.astype(np.float64), references.astype(np.float64)


def _group_numbers(groups: Sequence[Hashable], count: int) -> tuple[list[Hashable], np.ndarray]:
    """The groups in the order in which they come, and for each example the number of its group [count]."""
    if len(groups) != count:
        raise ValueError(f"there must be a group for each prediction, got {len(groups)} groups for {count} predictions")
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    return list(numbers), index


def accuracy(predictions: Any, references: Any) -> float:
    """The part of the predictions that equals their reference.

    Args:
        predictions, references: [n], labels: whole numbers, or texts on both sides.
    Returns:
        A number in [0, 1].
    Raises:
        ValueError: empty, of different lengths, of different kinds, NaN, or logits in place of labels. So do all below.
    """
    predictions, references = _labels(predictions, references)
    return float((predictions == references).mean())


def f1(predictions: Any, references: Any) -> float:
    """F1 of label 1 against label 0; 0.0 where label 1 is neither predicted nor right anywhere.

    Args:
        predictions, references: [n], 0 or 1.
    Raises:
        ValueError: as `accuracy`; and a label other than 0 and 1.
    """
    _check_binary(*_arrays(predictions, references), "f1 is of label 1 against 0; macro_f1 takes any number of labels")
    predictions, references = _labels(predictions, references)
    return float(f1_score(references, predictions, labels=[1], average="macro", zero_division=0))


def _check_binary(predictions: np.ndarray, references: np.ndarray, way_out: str) -> None:
    for side, values in (("predictions", predictions), ("references", references)):
        outside = values[(_whole(values, side) != 0) & (values != 1)]
        if outside.size:
            raise ValueError(f"{side} must be 0 or 1, got {outside.flat[0]}; {way_out}")


def macro_f1(predictions: Any, references: Any) -> float:
    """The mean over labels of their F1, each against all others.

    Args:
        predictions, references: [n], labels. Those that occur on neither side do not count.
    """
    predictions, references = _labels(predictions, references)
    return float(f1_score(references, predictions, average="macro", zero_division=0))


def micro_f1(predictions: Any, references: Any) -> float:
    """F1 over all (example, label) pairs of a task in which an example has any number of labels.

    Args:
        predictions, references: [examples, labels], 0 or 1.
    Raises:
        ValueError: as `accuracy`; and a value other than 0 and 1.
    """
    predictions, references = _arrays(predictions, references, ndim=2)
    _check_binary(predictions, references, "micro_f1 needs a 1 for each label that an example has")
    hits = ((predictions == 1) & (references == 1)).sum()
    total = predictions.sum() + references.sum()
    return float(2 * hits / total) if total else 0.0


def matthews_correlation(predictions: Any, references: Any) -> float:
    """Matthews' correlation of labels, of any number of them; 0.0 where one side is constant, as scikit-learn has it.

    (c n - sum_k p_k t_k) / sqrt((n^2 - sum_k p_k^2) (n^2 - sum_k t_k^2)), c = hits, p_k and t_k = how often label k is
    predicted and right.

    Returns:
        A number in [-1, 1].
    """
    predictions, references = _labels(predictions, references)
    return float(matthews_corrcoef(references, predictions))


def pearson(predictions: Any, references: Any) -> float:
    """Pearson's correlation; 0.0 where one side is constant (scipy gives NaN there).

    Args:
        predictions, references: [n], numbers.
    Returns:
        A number in [-1, 1].
    """
    predictions, references = _numbers(predictions, references)
    if np.ptp(predictions) == 0 or np.ptp(references) == 0:
        return 0.0
    # A power of two loses no digit, and squares neither overflow nor vanish.
    scaled = (np.ldexp(values, -np.frexp(np.abs(values).max())[1]) for values in (predictions, references))
    return float(pearsonr(*scaled).statistic)


def spearman(predictions: Any, references: Any) -> float:
    """Spearman's correlation: Pearson's of the ranks; 0.0 where one side is constant (scipy gives NaN there).

    Args:
        predictions, references: [n], numbers.
    """
    predictions, references = _numbers(predictions, references)
    return pearson(rankdata(predictions), rankdata(references))


def grouped_accuracy(predictions: Any, references: Any, groups: Sequence[str | None]) -> dict[str, float]:
    """Accuracy over all examples, and over those of each group: RACE's "middle" and "high".

    Args:
        predictions, references: [n], labels.
        groups: [n], the group of each example; None for one of none.
    Returns:
        "accuracy", and "<group>_accuracy" for each group, sorted by name.
    Raises:
        ValueError: as `accuracy`; and groups of another length.
    """
    predictions, references = _labels(predictions, references)
    hits = predictions == references
    names, index = _group_numbers(groups, len(hits))
    scores = {"accuracy": float(hits.mean())}
    for name in sorted(name for name in names if name is not None):
        scores[f"{name}_accuracy"] = float(hits[index == names.index(name)].mean())
    return scores


def multirc(predictions: Any, references: Any, groups: Sequence[Hashable]) -> dict[str, float]:
    """MultiRC: each example is a possible answer to a question, true or not.

    Args:
        predictions, references: [n], 0 or 1.
        groups: [n], the question of each answer, such as (paragraph, question).
    Returns:
        "exact_match": the part of the questions with no wrong answer; "f1_m": the mean over questions of the macro-F1 of
        their answers, as `evaluate` has it; "f1_a": F1 over all answers. SuperGLUE's score is the first and the last.
    """
    f1_a = f1(predictions, references)
    predictions, references = _labels(predictions, references)
    names, index = _group_numbers(groups, len(predictions))
    wrong = np.bincount(index, weights=predictions != references, minlength=len(names))
    # A sort by question in place of a mask for each: 500 questions are few, 100,000 are not.
    order = np.argsort(index, kind="stable")
    questions = np.split(order, np.cumsum(np.bincount(index))[:-1])
    f1_m = float(np.mean([macro_f1(predictions[rows], references[rows]) for rows in questions]))
    return {"exact_match": float((wrong == 0).mean()), "f1_m": f1_m, "f1_a": f1_a}


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

_OF_GROUPS = ("exact_match", "f1_m", "f1_a")
_BY_ACCURACY = (
    "sst2", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "xnli", "boolq", "copa", "wic", "wsc",
    "wsc.fixed", "axg",
)  # fmt: skip

TASK_METRICS: dict[str, tuple[str, ...]] = dict.fromkeys(_BY_ACCURACY, ("accuracy",)) | {
    "cola": ("matthews_correlation", "accuracy"),
    "mrpc": ("accuracy", "f1", "combined_score"),
    "stsb": ("pearson", "spearmanr", "combined_score"),
    "qqp": ("accuracy", "f1", "combined_score"),
    "ax": ("matthews_correlation",),
    "cb": ("accuracy", "macro_f1"),
    "multirc": _OF_GROUPS,
    "record": ("exact_match", "f1"),
    "axb": ("matthews_correlation",),
}
"""The metrics of a GLUE, XNLI or SuperGLUE task, for `compute`; but "record" is for `question_answering_metrics.record`."""


def compute(
    names: str | Sequence[str], predictions: Any, references: Any, groups: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """Several metrics at once: `compute(TASK_METRICS["mrpc"], predictions, references)`.

    Args:
        names: of `METRICS`; "exact_match", "f1_m" and "f1_a" of `multirc`, which need `groups`; and "combined_score", the
            mean of all others that were asked for.
        predictions, references: labels [n], or numbers [n] for "pearson" and "spearmanr", or [n, labels] for "micro_f1".
        groups (*optional*): [n], see `multirc`.
    Returns:
        The values by name, in the order of `names`.
    Raises:
        ValueError: a name that is none of these, "exact_match" without groups, or what the metric itself finds wrong.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    valid_names = (*METRICS, *_OF_GROUPS, "combined_score")
    for name in names:
        if name not in valid_names:
            raise ValueError(f"there is no metric {name!r}; there are {', '.join(valid_names)}")
        if name in _OF_GROUPS and groups is None:
            raise ValueError(
                f"{name} needs groups: the question that each answer belongs to; for texts (ReCoRD, SQuAD) take "
                "question_answering_metrics"
            )
    scores = multirc(predictions, references, groups) if groups is not None and {*names} & {*_OF_GROUPS} else {}
    scores |= {name: METRICS[name](predictions, references) for name in names if name in METRICS}
    if "combined_score" in names:
        values = [scores[name] for name in names if name != "combined_score"]
        if not values:
            raise ValueError("combined_score is the mean of other metrics: name them too")
        scores["combined_score"] = float(np.mean(values))
    return {name: scores[name] for name in names}

# SPDX-License-Identifier: Apache-2.0
"""Exact match and word-level F1 of answers in English, as defined by SQuAD 1.1, SQuAD 2.0 and ReCoRD."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import numpy as np

__all__ = ["exact_match", "f1_of_tokens", "normalise_answer", "record", "squad_v1", "squad_v2"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise_answer(text: str) -> str:
    """Lower-case a text; remove ASCII punctuation, then the articles a, an and the; collapse whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    """Return 1.0 if both texts are equal after `normalise_answer`, else 0.0."""
    return float(normalise_answer(prediction) == normalise_answer(reference))


def f1_of_tokens(prediction: str, reference: str, *, both_empty: float = 1.0) -> float:
    """Compute F1 of the words of two texts after `normalise_answer`; repeated words count: "to to" has 2 hits in "to be to".

    Args:
        both_empty (`float`, defaults to 1.0): score of two texts without words: 1.0 in SQuAD 2.0, 0.0 in 1.1. If only one
            text has no words, the score is 0.0.
    """
    predicted, true = normalise_answer(prediction).split(), normalise_answer(reference).split()
    if not predicted and not true:
        return both_empty
    hit = sum((Counter(predicted) & Counter(true)).values())
    return 2 * hit / (len(predicted) + len(true))


def _best(score: Callable[[str, str], float], prediction: str, references: Sequence[str]) -> float:
    return max(score(prediction, reference) for reference in references)


def squad_v1(predictions: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]]) -> dict[str, float]:
    """Compute SQuAD 1.1's "exact_match" and "f1" in percent (0 to 100), with the best reference for each question."""
    return {name: 100 * score for name, score in record(predictions, references).items()}


def record(predictions: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]]) -> dict[str, float]:
    """Compute ReCoRD's "exact_match" and "f1": as in SQuAD 1.1, but from 0 to 1, as in SuperGLUE; keys are queries."""
    results = {}
    for name, score in {"exact_match": exact_match, "f1": partial(f1_of_tokens, both_empty=0.0)}.items():
        total = math.fsum(_best(score, predictions[key], texts) for key, texts in references.items())
        results[name] = total / len(references)
    return results


def _percent(scores: np.ndarray, count: int) -> float:
    return 100 * math.fsum(scores) / count


def squad_v2(
    predictions: Mapping[Hashable, str],
    references: Mapping[Hashable, Sequence[str]],
    no_answer_probabilities: Mapping[Hashable, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Compute SQuAD 2.0's metrics: as in SQuAD 1.1, but the prediction "" is correct for a question without an answer.

    References that are empty after `normalise_answer` are dropped; if none is left, the reference is "". If a probability of
    "no answer" is above the threshold, the prediction counts as "".

    Args:
        predictions (`dict[str, str]`): predicted text of each question by id; "" for no answer.
        references (`dict[str, list[str]]`): reference answers by id; an empty list for no answer.
        no_answer_probabilities (`dict[str, float]`, *optional*): probability of "no answer" by id, or any finite score that
            increases with it, such as a difference of logits.
        threshold (`float`, defaults to 1.0): predictions with a probability of at most this value are kept.
    Returns:
        "exact", "f1" (percent) and "total" (a count); the same for questions with and without an answer ("HasAns_exact",
        ..., "NoAns_total"), if there are such questions. If there are probabilities, also "best_exact" and "best_f1", the
        highest scores at any threshold, and "best_exact_thresh" and "best_f1_thresh", the lowest thresholds with these
        scores. The published script also tries to keep only some of the predictions that have equal probabilities. Its
        highest scores can therefore be scores that no threshold reaches.
    """
    has_answer = np.array([len(texts) > 0 for texts in references.values()])
    # Scores if the prediction is kept, and if it counts as "no answer". As in the published script, "no answer" is correct
    # for a question without references, but not for a question whose references all have no words.
    kept_scores = {"exact": np.zeros(len(references)), "f1": np.zeros(len(references))}
    dropped = (~has_answer).astype(float)
    for number, (key, all_texts) in enumerate(references.items()):
        texts = [text for text in all_texts if normalise_answer(text)] or [""]
        kept_scores["exact"][number] = _best(exact_match, predictions[key], texts)
        kept_scores["f1"][number] = _best(f1_of_tokens, predictions[key], texts)

    probabilities, is_kept = None, np.ones(len(references), dtype=bool)
    if no_answer_probabilities is not None:
        probabilities = np.array([no_answer_probabilities[key] for key in references])
        is_kept = probabilities <= threshold
    results: dict[str, float] = {}
    for prefix, part in (("", np.ones(len(references), dtype=bool)), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
        count = int(part.sum())
        if count:
            for name, scores in kept_scores.items():
                results[prefix + name] = _percent(np.where(is_kept, scores, dropped)[part], count)
            results[f"{prefix}total"] = count
    if probabilities is not None:
        for name, scores in kept_scores.items():
            results[f"best_{name}"], results[f"best_{name}_thresh"] = best_threshold(scores, dropped, probabilities)
    return results


def best_threshold(kept_scores: np.ndarray, dropped: np.ndarray, probabilities: np.ndarray) -> tuple[float, float]:
    """Find the lowest threshold with the highest score, in O(n log n); return the score in percent, and the threshold.

    `kept_scores` and `dropped` are the scores of each prediction if it is kept, and if it counts as "no answer".
    """
    order = np.argsort(probabilities, kind="stable")
    steps = probabilities[order]
    # totals[i]: the i questions with the lowest probabilities are kept; not reachable if the next probability is equal.
    totals = dropped.sum() + np.concatenate([[0.0], np.cumsum((kept_scores - dropped)[order])])
    reachable = np.concatenate([[True], steps[1:] != steps[:-1], [True]])
    totals = np.where(reachable, totals, -np.inf)
    # Equal sums can differ by rounding: take the first one within the tolerance.
    best = int(np.argmax(totals >= totals.max() - 1e-9))
    if best:
        threshold = float(steps[best - 1])
    else:
        # No prediction is kept. As in the published script, the threshold is 0 if all probabilities are above 0.
        threshold = 0.0 if steps[0] > 0 else math.nextafter(float(steps[0]), -math.inf)
    chosen = np.concatenate([kept_scores[order][:best], dropped[order][best:]])
    return _percent(chosen, len(kept_scores)), threshold

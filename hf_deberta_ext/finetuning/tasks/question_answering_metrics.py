# SPDX-License-Identifier: Apache-2.0
"""Exact match and F1 of answers in words, as SQuAD 1.1, SQuAD 2.0 and ReCoRD define them; English text."""

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
    """Return a text in lower case, without ASCII punctuation, then without a, an and the, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    """Return 1.0 if the two are equal after `normalise_answer`, else 0.0."""
    return float(normalise_answer(prediction) == normalise_answer(reference))


def f1_of_tokens(prediction: str, reference: str, *, both_empty: float = 1.0) -> float:
    """Return F1 over the words of the two after `normalise_answer`, as multisets: "to to" hits "to be or not to be" twice.

    Args:
        both_empty (`float`): what two answers without a word get: 1.0 in SQuAD 2.0, 0.0 in 1.1. One alone gets 0.0.
    """
    predicted, true = normalise_answer(prediction).split(), normalise_answer(reference).split()
    if not predicted and not true:
        return both_empty
    hit = sum((Counter(predicted) & Counter(true)).values())
    return 2 * hit / (len(predicted) + len(true))


def _best(score: Callable[[str, str], float], prediction: str, references: Sequence[str]) -> float:
    return max(score(prediction, reference) for reference in references)


def squad_v1(predictions: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]]) -> dict[str, float]:
    """Compute SQuAD 1.1: "exact_match" and "f1" in percent (0 to 100), for each question the best over its references."""
    return {name: 100 * score for name, score in record(predictions, references).items()}


def record(predictions: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]]) -> dict[str, float]:
    """Compute ReCoRD of entities by query: as SQuAD 1.1, but fractions (0 to 1), as all of SuperGLUE."""
    scores = {"exact_match": exact_match, "f1": partial(f1_of_tokens, both_empty=0.0)}
    return {
        name: math.fsum(_best(score, predictions[key], texts) for key, texts in references.items()) / len(references)
        for name, score in scores.items()
    }


def _percent(scores: np.ndarray, count: int) -> float:
    return 100 * math.fsum(scores) / count


def squad_v2(
    predictions: Mapping[Hashable, str],
    references: Mapping[Hashable, Sequence[str]],
    no_answer_probabilities: Mapping[Hashable, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Compute SQuAD 2.0: as 1.1, and questions may have no answer, for which "" is right.

    References that normalise to nothing are dropped; where none is left the reference is "". With probabilities, what is
    above the threshold is taken for "no answer", whatever the prediction says.

    Args:
        predictions (`dict[str, str]`): text by id, of every question, "" for no answer.
        references (`dict[str, list[str]]`): texts by id; an empty list: no answer.
        no_answer_probabilities (`dict[str, float]`): by id, or any finite number that is higher where no answer is more
            likely, such as a difference of scores.
        threshold (`float`): an answer is kept where its probability is at most this.
    Returns:
        "exact", "f1" (percent) and "total" (a count); the same for questions with and without an answer ("HasAns_exact",
        ..., "NoAns_total"), as far as there are any; and with probabilities "best_exact", "best_f1", the highest that any
        threshold reaches, and "best_exact_thresh", "best_f1_thresh", the lowest threshold that does. Equal probabilities
        move together; the published script can report a score that no threshold has.
    """
    has_answer = np.array([len(texts) > 0 for texts in references.values()])
    # What a question scores if its prediction is kept, and what it scores as "no answer". The latter asks whether there are
    # references at all, as the published script does, where references without a word could be met by "".
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
    """Return the highest score of any threshold, in percent, and the lowest threshold that gives it; O(n log n)."""
    order = np.argsort(probabilities, kind="stable")
    steps = probabilities[order]
    # totals[i]: the i questions of lowest probability are kept. Only where the next probability differs is there a
    # threshold between them.
    totals = dropped.sum() + np.concatenate([[0.0], np.cumsum((kept_scores - dropped)[order])])
    reachable = np.concatenate([[True], steps[1:] != steps[:-1], [True]])
    totals = np.where(reachable, totals, -np.inf)
    # Sums in another order differ in the last bits: the first that is as good, not the one that rounds up.
    best = int(np.argmax(totals >= totals.max() - 1e-9))
    if best:
        threshold = float(steps[best - 1])
    else:
        # Nothing is kept: 0, as published, where that is below all of them.
        threshold = 0.0 if steps[0] > 0 else math.nextafter(float(steps[0]), -math.inf)
    chosen = np.concatenate([kept_scores[order][:best], dropped[order][best:]])
    return _percent(chosen, len(kept_scores)), threshold

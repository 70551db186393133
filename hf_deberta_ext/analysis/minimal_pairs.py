# SPDX-License-Identifier: Apache-2.0
"""Accuracy on minimal pairs such as BLiMP (Warstadt et al. 2020).

A minimal pair is an acceptable and an unacceptable sentence; a model is right if it gives the acceptable sentence the
higher score. In BLiMP, a phenomenon (such as agreement) has several paradigms: sets of pairs of the same form.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .sentence_scoring import WORD

__all__ = ["MinimalPair", "pair_accuracies", "pairs_of_rows", "thin_out", "word_frequency_scores"]


class MinimalPair(NamedTuple):
    """Acceptable sentence `good` and unacceptable sentence `bad`, and the names of their `paradigm` and `phenomenon`."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def pairs_of_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], default: str) -> list[MinimalPair]:
    """Convert rows with the columns of BLiMP to minimal pairs.

    Args:
        rows: tuples (place, row). `place` says in error messages where the row is from, such as "line 3 of FILE".
            The columns sentence_good and sentence_bad are required. The columns UID (paradigm) and linguistics_term
            (phenomenon) are optional; if one of them is missing, the other is used for both.
        default (`str`): paradigm and phenomenon of rows without UID and linguistics_term.
    Raises:
        ValueError: a sentence is missing, empty or not a string; the message contains the place.
    """
    pairs = []
    for place, row in rows:
        for column in ("sentence_good", "sentence_bad"):
            sentence = row.get(column)
            if not isinstance(sentence, str) or not sentence.strip():
                raise ValueError(f"{place} must have a sentence in the column {column}, got {sentence!r}")
        phenomenon = row.get("linguistics_term")
        paradigm = str(row.get("UID") or phenomenon or default)
        pairs.append(MinimalPair(row["sentence_good"], row["sentence_bad"], paradigm, str(phenomenon or paradigm)))
    return pairs


def thin_out(pairs: Sequence[MinimalPair], most: int) -> list[MinimalPair]:
    """Select at most `most` pairs of each phenomenon, at even intervals in the order of `pairs`."""
    groups: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.phenomenon, []).append(pair)
    kept = []
    for group in groups.values():
        count = min(most, len(group))
        kept += [group[number * len(group) // count] for number in range(count)]
    return kept


def word_frequency_scores(texts: Iterable[str], sentences: Iterable[str]) -> dict[str, float]:
    """Score each sentence by the frequencies of its lower-case words in `texts`.

    The score is the sum over a sentence's words of log((c + 1) / (n + d + 1)), where `texts` contain the word c times, n
    words in total, and d distinct words. Sentences with the same words in another order have exactly the same score.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(WORD.findall(text.lower()))
    total = counts.total() + len(counts) + 1
    scores = {}
    for sentence in sentences:
        scores[sentence] = math.fsum(math.log((counts[word] + 1) / total) for word in WORD.findall(sentence.lower()))
    return scores


def pair_accuracies(pairs: Sequence[MinimalPair], scores: Mapping[str, float]) -> dict[str, Any]:
    """Compute the share of pairs in which the good sentence has the higher score; a tie counts one half.

    Args:
        scores (`dict[str, float]`): score of each sentence.
    Returns:
        A dict with "accuracy" (mean over paradigms), "paradigms" (accuracy by paradigm), "phenomena" (for each
        phenomenon, mean over its paradigms) and "ties" (number of pairs with equal scores).
    """
    points: dict[str, list[float]] = {}
    phenomena: dict[str, set[str]] = {}
    ties = 0
    for pair in pairs:
        point = float(scores[pair.good] > scores[pair.bad])
        if scores[pair.good] == scores[pair.bad]:
            point = 0.5
            ties += 1
        points.setdefault(pair.paradigm, []).append(point)
        phenomena.setdefault(pair.phenomenon, set()).add(pair.paradigm)
    paradigms = {name: statistics.fmean(values) for name, values in points.items()}
    means = {name: statistics.fmean([paradigms[each] for each in sorted(within)]) for name, within in phenomena.items()}
    return dict(accuracy=statistics.fmean(paradigms.values()), phenomena=means, paradigms=paradigms, ties=ties)

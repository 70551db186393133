# SPDX-License-Identifier: Apache-2.0
"""Minimal pairs such as BLiMP's (Warstadt et al. 2020): how often the good sentence of a pair has the higher score."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .sentence_scoring import WORD

__all__ = ["MinimalPair", "pair_accuracies", "pairs_of_rows", "thin_out", "word_frequency_scores"]


class MinimalPair(NamedTuple):
    """Two sentences of which the first is acceptable; the paradigm they are of, and the phenomenon that is of."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def pairs_of_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], default: str) -> list[MinimalPair]:
    """Pairs of (place, row), with BLiMP's columns: sentence_good, sentence_bad and, where they are there, UID (paradigm) and
    linguistics_term (phenomenon). Without one of them it is the other, without both `default`.

    Raises:
        ValueError: a sentence is missing, empty or no text; names the place.
    """
    pairs = []
    for place, row in rows:
        sentences = [row.get(column) for column in ("sentence_good", "sentence_bad")]
        for column, sentence in zip(("sentence_good", "sentence_bad"), sentences, strict=True):
            if not isinstance(sentence, str) or not sentence.strip():
                raise ValueError(f"{place} needs a sentence in the column {column}, got {sentence!r}")
        phenomenon = row.get("linguistics_term")
        paradigm = str(row.get("UID") or phenomenon or default)
        pairs.append(MinimalPair(*sentences, paradigm, str(phenomenon or paradigm)))
    return pairs


def thin_out(pairs: Sequence[MinimalPair], most: int) -> list[MinimalPair]:
    """At most so many pairs of each phenomenon, evenly spread over its pairs."""
    groups: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.phenomenon, []).append(pair)
    return [
        group[number * len(group) // min(most, len(group))]
        for group in groups.values()
        for number in range(min(most, len(group)))
    ]


def word_frequency_scores(texts: Iterable[str], sentences: Iterable[str]) -> dict[str, float]:
    """The log-likelihood of each sentence by how often its words, in lower case, are in `texts`: sum of
    log((count + 1) / (all words + different words + 1)). The order of the words makes no difference, also in rounding."""
    counts = Counter(word for text in texts for word in WORD.findall(text.lower()))
    total = counts.total() + len(counts) + 1
    return {
        sentence: math.fsum(math.log((counts[word] + 1) / total) for word in WORD.findall(sentence.lower()))
        for sentence in sentences
    }


def pair_accuracies(pairs: Sequence[MinimalPair], scores: Mapping[str, float]) -> dict[str, Any]:
    """The part of the pairs whose good sentence has the higher score; a tie counts one half.

    Args:
        scores (`dict[str, float]`): of each sentence.
    Returns:
        "accuracy", the mean over paradigms; "phenomena" and "paradigms", that of each, of a phenomenon the mean over its
        paradigms; "ties", the number of pairs.
    """
    points: dict[str, list[float]] = {}
    phenomena: dict[str, dict[str, None]] = {}
    for pair in pairs:
        good, bad = scores[pair.good], scores[pair.bad]
        points.setdefault(pair.paradigm, []).append(0.5 if good == bad else float(good > bad))
        phenomena.setdefault(pair.phenomenon, {})[pair.paradigm] = None
    paradigms = {paradigm: statistics.fmean(values) for paradigm, values in points.items()}
    return dict(
        accuracy=statistics.fmean(paradigms.values()),
        phenomena={name: statistics.fmean(map(paradigms.__getitem__, within)) for name, within in phenomena.items()},
        paradigms=paradigms,
        ties=sum(value == 0.5 for values in points.values() for value in values),
    )

# SPDX-License-Identifier: Apache-2.0
"""Precision, recall and F1 of entities as in conlleval and seqeval's default: type, start and end must be correct."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

__all__ = ["entities", "entity_scores"]


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities in the tags of a sentence (IOB2, IOB1 or BIOES, also called IOBES).

    I or E after B or I of the same type continues an entity. Any other tag except O starts a new entity, regardless of its
    prefix. For example, I-PER starts a new entity if the previous tag is O, I-LOC or E-PER.

    Returns:
        (type, first word, last word) of each entity in order, words counted from 0: [("PER", 0, 1)] for B-PER I-PER O.
    """
    spans: list[tuple[str, int, int]] = []
    previous, previous_kind = "O", ""
    for number, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix in ("I", "E") and previous in ("B", "I") and kind == previous_kind:
            spans[-1] = (kind, spans[-1][1], number)
        elif prefix != "O":
            spans.append((kind, number, number))
        previous, previous_kind = prefix, kind
    return spans


def precision_recall_f1(hit: int, predicted: int, true: int) -> dict[str, float]:
    """Compute precision, recall and F1 from the numbers of correct, predicted and true entities; 0 / 0 = 0.0."""
    return {
        "precision": hit / max(predicted, 1),
        "recall": hit / max(true, 1),
        "f1": 2 * hit / max(predicted + true, 1),
    }


def all_entities(sentences: Sequence[Sequence[str]]) -> set[tuple[int, str, int, int]]:
    """Return the entities of all sentences, each with the number of its sentence."""
    return {(number, *entity) for number, tags in enumerate(sentences) for entity in entities(tags)}


def count_types(spans: set[tuple[int, str, int, int]]) -> Counter[str]:
    """Count the entities of each type."""
    return Counter(kind for _, kind, _, _ in spans)


def entity_scores(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Compute precision, recall and F1 of all entities and of each type, and the accuracy of the tags of all sentences.

    Returns:
        "overall_precision", "overall_recall", "overall_f1" and "overall_accuracy"; for each predicted or true type, sorted,
        {"precision", "recall", "f1", "number"}, where "number" counts the true entities. Fractions, with 0 / 0 = 0.0.
    """
    guesses, answers = all_entities(predicted), all_entities(true)
    guess_types, answer_types, hit_types = map(count_types, (guesses, answers, guesses & answers))
    overall = precision_recall_f1(len(guesses & answers), len(guesses), len(answers))
    hits = sum(a == b for a, b in zip(chain.from_iterable(predicted), chain.from_iterable(true), strict=True))
    scores: dict[str, Any] = {f"overall_{name}": value for name, value in overall.items()}
    scores["overall_accuracy"] = hits / sum(map(len, true))
    for kind in sorted({*guess_types, *answer_types}):
        scores[kind] = precision_recall_f1(hit_types[kind], guess_types[kind], answer_types[kind])
        scores[kind]["number"] = answer_types[kind]
    return scores

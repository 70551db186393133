# SPDX-License-Identifier: Apache-2.0
"""Precision, recall and F1 of entities, as conlleval and seqeval's default count them: type and both ends must be right."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

__all__ = ["entities", "entity_scores"]


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities that the tags of a sentence mark, in IOB2, IOB1 or BIOES (IOBES).

    An entity goes on where I or E of its type follows B or I, and ends anywhere else. Any other tag but O begins one,
    whatever its prefix: I-PER does so after O, after I-LOC and after E-PER.

    Returns:
        (type, first word, last word) of each, in their order, counted from 0: [("PER", 0, 1)] for B-PER I-PER O.
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
    """Return the three metrics of counts; 0.0 for 0 / 0."""
    return {
        "precision": hit / max(predicted, 1),
        "recall": hit / max(true, 1),
        "f1": 2 * hit / max(predicted + true, 1),
    }


def entity_scores(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return precision, recall and F1 over all entities and for each type, and accuracy over all tags.

    Args:
        predicted, true (`list[list[str]]`): tags of each word of each sentence.
    Returns:
        "overall_precision", "overall_recall", "overall_f1", "overall_accuracy", and for each type that occurs on either
        side, sorted, {"precision", "recall", "f1", "number"}, number = how many are true. Fractions; 0.0 for 0 / 0.
    """
    guesses, answers = (
        {(number, *entity) for number, tags in enumerate(sentences) for entity in entities(tags)}
        for sentences in (predicted, true)
    )
    guess_types, answer_types, hit_types = (
        Counter(kind for _, kind, _, _ in spans) for spans in (guesses, answers, guesses & answers)
    )
    overall = precision_recall_f1(len(guesses & answers), len(guesses), len(answers))
    hits = sum(a == b for a, b in zip(chain.from_iterable(predicted), chain.from_iterable(true), strict=True))
    scores: dict[str, Any] = {f"overall_{name}": value for name, value in overall.items()}
    scores["overall_accuracy"] = hits / sum(map(len, true))
    for kind in sorted({*guess_types, *answer_types}):
        scores[kind] = precision_recall_f1(hit_types[kind], guess_types[kind], answer_types[kind])
        scores[kind]["number"] = answer_types[kind]
    return scores

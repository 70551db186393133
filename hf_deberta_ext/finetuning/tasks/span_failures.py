# SPDX-License-Identifier: Apache-2.0
"""Analyse the errors of entities (by type and kind of error) and of answers (by question word and answer length)."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..failures import MOST_ERRORS, Failures
from .entity_metrics import entities, entity_scores
from .question_answering_metrics import f1_of_tokens

__all__ = ["answer_failures", "entity_failures", "span_errors"]

# Errors of true entities, mildest first, then the error of predicted entities, "extra".
SPAN_ERRORS = ("wrong kind", "boundary", "boundary and kind", "missed", "extra")
QUESTION_WORD = re.compile(r"\b(how many|how much|what|who|whom|whose|which|when|where|why|how)\b", re.IGNORECASE)
# Groups of answers, and the maximum number of words in each group.
ANSWER_LENGTHS = {"no answer": 0, "1 word": 1, "2 words": 2, "3 to 5 words": 5, "more than 5 words": math.inf}

Entity = tuple[str, int, int]


def span_errors(true: Sequence[Entity], predicted: Sequence[Entity]) -> list[tuple[str, Entity | None, Entity | None]]:
    """Return the errors of a sentence as (error, true entity, predicted entity); entities are (kind, first word, last word).

    A true entity that is not predicted gets the first of these errors that applies: "wrong kind" (the same words are
    predicted with another kind), "boundary" (a predicted entity of the same kind overlaps), "boundary and kind" (a predicted
    entity of another kind overlaps), or "missed". A predicted entity that overlaps with no true entity is "extra".
    """

    def overlap(a: Entity, b: Entity) -> bool:
        return a[1] <= b[2] and b[1] <= a[2]

    errors: list[tuple[str, Entity | None, Entity | None]] = []
    for entity in true:
        guesses = [guess for guess in predicted if overlap(entity, guess)]
        if entity in guesses:
            continue
        same_words = [guess for guess in guesses if guess[1:] == entity[1:]]
        same_kind = [guess for guess in guesses if guess[0] == entity[0]]
        if same_words:
            errors.append(("wrong kind", entity, min(same_words)))
        elif same_kind:
            errors.append(("boundary", entity, min(same_kind)))
        elif guesses:
            errors.append(("boundary and kind", entity, min(guesses)))
        else:
            errors.append(("missed", entity, None))
    for guess in predicted:
        if not any(overlap(entity, guess) for entity in true):
            errors.append(("extra", None, guess))
    return errors


def entity_failures(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], words: Sequence[Sequence[str]]
) -> Failures:
    """Compute precision, recall, F1 and number of errors by kind of entity, and list the most frequent errors."""
    counts, examples = Counter(), Counter()
    for tags, guesses, sentence in zip(true, predicted, words, strict=True):
        for error, entity, guess in span_errors(entities(tags), entities(guesses)):
            counts[error, (entity or guess)[0]] += 1
            spelt = [f"{' '.join(sentence[span[1] : span[2] + 1])} [{span[0]}]" for span in (entity, guess) if span]
            examples[error, spelt[0], spelt[-1]] += 1
    table = []
    for kind, scores in entity_scores(predicted, true).items():
        if isinstance(scores, Mapping):
            row = {"entity": kind, "precision": scores["precision"], "recall": scores["recall"], "F1": scores["f1"]}
            table.append(row | {"number": scores["number"]} | {error: counts[error, kind] for error in SPAN_ERRORS})
    errors = []
    for (error, text, guess), count in examples.most_common(MOST_ERRORS):
        errors.append({"text": text, "error": error, "times": count} | ({"predicted": guess} if guess != text else {}))
    shown = ", ".join(f"{error} {sum(row[error] for row in table):,}" for error in SPAN_ERRORS)
    return Failures({"entities": table}, [f"Errors of entities: {shown}."], errors)


def answer_failures(
    questions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    probabilities: Mapping[str, float],
    score: Callable[[Mapping[str, str], Mapping[str, Sequence[str]]], Mapping[str, float]],
) -> Failures:
    """Compute F1 in percent by (English) question word and by answer length, and list the most confident wrong answers.

    Args:
        questions (`dict[str, str]`): text of each question by id.
        references (`dict[str, list[str]]`): reference answers by id; an empty list for no answer.
        predictions (`dict[str, str]`): predicted answers by id; "" for no answer.
        probabilities (`dict[str, float]`): probabilities of the predicted answers by id.
        score (`Callable`): (predictions, references) -> metrics with "f1" in percent, such as `squad_v1` or `squad_v2`.
    """

    def table(title: str, groups: Mapping[str, str]) -> list[dict[str, Any]]:
        rows = []
        for group, count in Counter(groups.values()).most_common():
            part = {name: references[name] for name in groups if groups[name] == group}
            rows.append({title: group, "questions": count, "F1": score(predictions, part)["f1"]})
        return rows

    words, lengths = {}, {}
    for name, question in questions.items():
        word = QUESTION_WORD.search(question)
        words[name] = word[0].lower() if word else "other"
        shortest = min((len(text.split()) for text in references[name]), default=0)
        lengths[name] = next(group for group, longest in ANSWER_LENGTHS.items() if shortest <= longest)
    tables = {"question words": table("question word", words), "answer lengths": table("answer", lengths)}
    parts = [f"{row['answer']} {row['F1']:.1f} ({row['questions']:,})" for row in tables["answer lengths"]]
    errors = []
    for name in sorted(questions, key=lambda name: -probabilities[name]):
        right = [*references[name]] or [""]
        if not any(f1_of_tokens(predictions[name], text) for text in right):
            error = {"text": questions[name], "id": name, "answer": right[0], "predicted": predictions[name]}
            errors.append(error | {"probability": float(probabilities[name])})
    return Failures(tables, [f"F1 by length of the answer (number of questions): {', '.join(parts)}."], errors[:MOST_ERRORS])

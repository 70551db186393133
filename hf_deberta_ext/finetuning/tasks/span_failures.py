# SPDX-License-Identifier: Apache-2.0
"""Where a model fails on entities and on answers: by kind and error of the span, by question word and answer length."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..failures import MOST_ERRORS, Failures
from .entity_metrics import entities, entity_scores
from .question_answering_metrics import f1_of_tokens

__all__ = ["answer_failures", "entity_failures", "span_errors"]

# Of a true entity, from the mildest error on, but "extra", which is of a predicted one.
SPAN_ERRORS = ("wrong kind", "boundary", "boundary and kind", "missed", "extra")
QUESTION_WORDS = "how many,how much,what,who,whom,whose,which,when,where,why,how".split(",")
# Groups of answers, and the largest number of words in each.
ANSWER_LENGTHS = {
    "no answer": 0,
    "1 word": 1,
    "2 words": 2,
    "3 to 5 words": 5,
    "6 to 10 words": 10,
    "more than 10 words": math.inf,
}

Entity = tuple[str, int, int]


def span_errors(true: Sequence[Entity], predicted: Sequence[Entity]) -> list[tuple[str, Entity | None, Entity | None]]:
    """Return the errors in the entities of a sentence, as (error, true entity, predicted entity).

    A true entity that is not predicted has the mildest of these errors: "wrong kind" (an entity of the same words is predicted),
    "boundary" (one of the same kind with a word in common), "boundary and kind" (one with a word in common), "missed". A
    predicted entity without a word in common with a true one is "extra".

    Args:
        true, predicted: (kind, first word, last word) of each entity.
    """
    errors: list[tuple[str, Entity | None, Entity | None]] = []
    for entity in true:
        if entity in predicted:
            continue
        options = [(SPAN_ERRORS.index("missed"), None)]
        for guess in filter(lambda guess: _overlap(entity, guess), predicted):
            if guess[1:] == entity[1:]:
                options.append((SPAN_ERRORS.index("wrong kind"), guess))
            elif guess[0] == entity[0]:
                options.append((SPAN_ERRORS.index("boundary"), guess))
            else:
                options.append((SPAN_ERRORS.index("boundary and kind"), guess))
        number, guess = min(options, key=lambda option: option[0])
        errors.append((SPAN_ERRORS[number], entity, guess))
    for guess in predicted:
        if not any(_overlap(entity, guess) for entity in true):
            errors.append(("extra", None, guess))
    return errors


def _overlap(a: Entity, b: Entity) -> bool:
    """Tell if two entities have a word in common."""
    return a[1] <= b[2] and b[1] <= a[2]


def entity_failures(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], words: Sequence[Sequence[str]]
) -> Failures:
    """Return precision, recall, F1 and errors of spans by kind of entity, and the most frequent errors in text.

    Args:
        true, predicted (`list[list[str]]`): tags of each word of each sentence.
        words (`list[list[str]]`): the words of each sentence.
    """
    by_kind, examples = Counter(), Counter()
    for tags, guessed, sentence in zip(true, predicted, words, strict=True):
        for error, entity, guess in span_errors(entities(tags), entities(guessed)):
            by_kind[error, (entity or guess)[0]] += 1
            examples[(error, *_spelt(entity, sentence), *_spelt(guess, sentence))] += 1
    table = []
    for kind, scores in entity_scores(predicted, true).items():
        if isinstance(scores, Mapping):
            row = {"kind": kind} | {name: scores[name] for name in ("precision", "recall", "f1")}
            row["entities"] = scores["number"]
            table.append(row | {error: by_kind[error, kind] for error in SPAN_ERRORS})
    totals = {error: sum(row[error] for row in table) for error in SPAN_ERRORS}
    shown = ", ".join(f"{error} {count:,}" for error, count in totals.items())
    errors = []
    for (error, text, kind, guess_text, guess_kind), count in examples.most_common(MOST_ERRORS):
        errors.append(dict(text=text or guess_text, error=error, kind=kind or "none", predicted=guess_kind or "none"))
        if guess_text not in ("", text) and text:
            errors[-1]["predicted words"] = guess_text
        errors[-1]["times"] = count
    return Failures({"kinds": table}, [f"Errors of entities: {shown}."], errors)


def _spelt(entity: Entity | None, words: Sequence[str]) -> tuple[str, str]:
    """Return words and kind of an entity; two empty texts of None."""
    if entity is None:
        return "", ""
    kind, first, last = entity
    return " ".join(words[first : last + 1]), kind


def answer_failures(
    questions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    probabilities: Mapping[str, float],
    score: Callable[[Mapping[str, str], Mapping[str, Sequence[str]]], Mapping[str, float]],
) -> Failures:
    """Return exact match and F1 by question word (of English) and by length of the answer, and the surest wrong answers.

    Args:
        questions (`dict[str, str]`): texts by id.
        references (`dict[str, list[str]]`): all right answers by id; none where there is no answer.
        predictions (`dict[str, str]`): answers by id, "" for none.
        probabilities (`dict[str, float]`): of the predictions, by id.
        score (`Callable`): (predictions, references) -> "exact_match" or "exact", and "f1", in percent.
    """
    by_word: dict[str, list[str]] = {}
    by_length: dict[str, list[str]] = {}
    for name, question in questions.items():
        by_word.setdefault(question_word(question), []).append(name)
        by_length.setdefault(answer_length(references[name]), []).append(name)

    def table(title: str, groups: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        rows = []
        for group, names in groups.items():
            scores = score({name: predictions[name] for name in names}, {name: references[name] for name in names})
            exact = scores.get("exact_match", scores.get("exact"))
            rows.append({title: group, "questions": len(names), "exact": exact, "f1": scores["f1"]})
        return rows

    order = [*QUESTION_WORDS, "other"]
    words = table("question word", {word: by_word[word] for word in order if word in by_word})
    lengths = table("answer", {length: by_length[length] for length in ANSWER_LENGTHS if length in by_length})
    parts = [f"{row['answer']} {row['f1']:.1f} ({row['questions']:,})" for row in lengths]
    remark = f"F1 by length of the answer (questions): {', '.join(parts)}."
    errors = []
    for name in sorted(questions, key=lambda name: -probabilities[name]):
        wanted = [*references[name]] or [""]
        if len(errors) < MOST_ERRORS and not any(f1_of_tokens(predictions[name], text) for text in wanted):
            error = dict(id=name, text=questions[name], answer=wanted[0] or "none", predicted=predictions[name] or "none")
            errors.append(error | {"probability": float(probabilities[name])})
    return Failures({"question words": words, "answer lengths": lengths}, [remark], errors)


def question_word(question: str) -> str:
    """Return the first of the English question words that begins a question or stands in it; "other" without any."""
    words = f" {' '.join(question.lower().split())} "
    for word in QUESTION_WORDS:
        if words.startswith(f" {word} "):
            return word
    return next((word for word in QUESTION_WORDS if f" {word} " in words), "other")


def answer_length(references: Sequence[str]) -> str:
    """Return the group of the shortest right answer's number of words."""
    words = min((len(text.split()) for text in references), default=0)
    return next(name for name, longest in ANSWER_LENGTHS.items() if words <= longest)

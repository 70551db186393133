# SPDX-License-Identifier: Apache-2.0
"""Convert start and end logits of windows to answers: n best spans, score of "no answer", and text of the answer.

The score of a span of tokens (i, j) in a window is start[i] + end[j]; the score of "no answer" is start[c] + end[c], with c
the position of [CLS]. For a question, the spans of all windows compete, and its "no answer" score is the lowest of its
windows. Answers are cut from the context by character offsets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Answers", "Windows", "answers_from_logits"]


@dataclass(frozen=True)
class Windows:
    """Windows of contexts; window w is row w of the model's input.

    Args:
        examples (`np.ndarray`): index of each window's example, int [W], ascending. An example can have no window.
        null (`np.ndarray`): position of [CLS] in each window, int [W].
        bounds (`np.ndarray`): entries bounds[w] to bounds[w + 1] - 1 of `first` and `last` are the tokens of window w,
            including padding; int [W + 1].
        first, last (`np.ndarray`): start and end of each token, in characters of the context, without white space around
            it; int [tokens]. No answer starts or ends at a token with first >= last: a token that is outside of the context,
            or only white space.
    """

    examples: np.ndarray
    null: np.ndarray
    bounds: np.ndarray
    first: np.ndarray
    last: np.ndarray


@dataclass(frozen=True)
class Answers:
    """Predicted answers by id of the question.

    Args:
        predictions (`dict`): the answer; "" = no answer.
        best (`dict`): the best non-empty answer, regardless of the score of "no answer"; "" if no span is possible.
        nbest (`dict`): {text, probability, start_logit, end_logit} by descending score, at least one. Probabilities are a
            softmax of the scores; if `with_null`, "no answer" (text "") is included.
        null_odds (`dict`): score of "no answer" minus score of the best span; empty if `with_null` is False.
    """

    predictions: dict[str, str]
    best: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]


def answers_from_logits(
    ids: Sequence[str],
    contexts: Sequence[str],
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
    with_null: bool = False,
    null_threshold: float = 0.0,
) -> Answers:
    """Return the answers to questions, from the logits of their windows.

    The candidates of a window are all pairs of its n_best most probable starts and ends, as in the published scripts,
    except that only tokens of the context are ranked. A span of characters in two windows counts once, with its higher
    score. If scores are equal, the span that starts (then ends) earlier wins. If no span is possible (no window, or no
    start before an end), the answer is "" and its logits count as 0.

    Args:
        ids, contexts (`list[str]`): ids and contexts of the examples, indexed by `windows.examples`.
        start_logits, end_logits (`np.ndarray`): [W, N] with N >= the longest window; values beyond a window are ignored.
        n_best (`int`, defaults to 20): number of starts and ends tried per window, and maximum length of `Answers.nbest`.
        max_answer_length (`int`, defaults to 30): maximum length of an answer in tokens.
        with_null (`bool`, defaults to `False`): whether questions can have no answer.
        null_threshold (`float`, defaults to 0.0): "" is predicted if null odds are above it; -inf: always, inf: never.
    """
    answers = Answers({}, {}, {}, {})
    # Question n has the windows begins[n] to begins[n + 1].
    begins = np.searchsorted(windows.examples, np.arange(len(ids) + 1)).tolist()
    for number, (key, context) in enumerate(zip(ids, contexts, strict=True)):
        spans: dict[tuple[int, int], tuple[float, float, float]] = {}
        nulls = []
        for window in range(begins[number], begins[number + 1]):
            tokens = slice(windows.bounds[window], windows.bounds[window + 1])
            length = tokens.stop - tokens.start
            logits = [np.asarray(part[window, :length], dtype=np.float64) for part in (start_logits, end_logits)]
            if not np.isfinite(logits).all():
                raise ValueError(
                    f"the logits of question {key!r} must be finite, got NaN or inf in window {window}: check the weights, "
                    "or evaluate in float32"
                )
            found = window_spans(*logits, windows.first[tokens], windows.last[tokens], n_best, max_answer_length)
            for place, scores in found.items():
                spans[place] = max(scores, spans.get(place, scores))
            nulls.append(tuple(float(part[windows.null[window]]) for part in logits))
        best = sorted(spans.items(), key=lambda span: (-span[1][0], span[0]))[:n_best]
        entries = [(score, context[begin:end], *of_tokens) for (begin, end), (score, *of_tokens) in best]
        entries = entries or [(0.0, "", 0.0, 0.0)]
        answers.best[key] = answers.predictions[key] = entries[0][1]
        if with_null:
            null = min(nulls, key=sum, default=(0.0, 0.0))
            answers.null_odds[key] = sum(null) - entries[0][0]
            if answers.null_odds[key] > null_threshold:
                answers.predictions[key] = ""
            if not best:
                entries = []
            entries = sorted([*entries, (sum(null), "", *null)], key=lambda entry: -entry[0])
        weights = [math.exp(score - entries[0][0]) for score, *_ in entries]
        answers.nbest[key] = [
            dict(text=text, probability=weight / sum(weights), start_logit=start, end_logit=end)
            for weight, (_, text, start, end) in zip(weights, entries, strict=True)
        ]
    return answers


def window_spans(
    start: np.ndarray, end: np.ndarray, first: np.ndarray, last: np.ndarray, n_best: int, max_answer_length: int
) -> dict[tuple[int, int], tuple[float, float, float]]:
    """Return the candidate spans of a window: (start, end) in characters -> (score, start logit, end logit)."""
    possible = np.flatnonzero(first < last)
    starts = possible[np.argsort(-start[possible], kind="stable")][:n_best, None]
    ends = possible[np.argsort(-end[possible], kind="stable")][None, :n_best]
    # Offsets of normalising tokenizers can decrease within a word.
    is_span = (starts <= ends) & (ends - starts < max_answer_length) & (first[starts] < last[ends])
    spans: dict[tuple[int, int], tuple[float, float, float]] = {}
    for row, column in np.argwhere(is_span).tolist():
        i, j = starts[row, 0], ends[0, column]
        place = (int(first[i]), int(last[j]))
        scores = (float(start[i] + end[j]), float(start[i]), float(end[j]))
        spans[place] = max(scores, spans.get(place, scores))
    return spans

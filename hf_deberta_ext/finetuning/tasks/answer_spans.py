# SPDX-License-Identifier: Apache-2.0
"""From start and end logits of windows to answers: n best spans, the score of "no answer", and the text they stand for.

A span of tokens (i, j) of a window scores start[i] + end[j], "no answer" start[c] + end[c] with c the place of [CLS]. A
question has the spans of all its windows, and the smallest of their scores of "no answer": one window that is not sure is
enough. Answers are cut out of the context by character offsets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Answers", "Windows", "answers_from_logits"]


@dataclass(frozen=True)
class Windows:
    """The windows of contexts that the rows of a model's input are, row by row.

    Args:
        examples (`np.ndarray`): which example a window is of, int [W], ascending. An example may have none.
        null (`np.ndarray`): the place of [CLS] in it, int [W].
        bounds (`np.ndarray`): tokens bounds[w] to bounds[w + 1] of the two below are those of window w, padding included,
            int [W + 1].
        first, last (`np.ndarray`): where the text of a token begins and ends in the context, int [tokens], white space left
            out. A token that is not of the context, or is white space, has first >= last: no answer begins or ends there.
    """

    examples: np.ndarray
    null: np.ndarray
    bounds: np.ndarray
    first: np.ndarray
    last: np.ndarray


@dataclass(frozen=True)
class Answers:
    """The answers of a model, by id.

    Args:
        predictions: the answer; "" is none.
        best: the best answer that is not "", whatever the score of "no answer"; "" where no span is possible.
        nbest: {text, probability, start_logit, end_logit} by falling score, at least one; the probabilities are a softmax
            of the scores, "no answer" (text "") among them where it was asked for.
        null_odds: score of "no answer" minus that of the best span; empty where "no answer" was not asked for.
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

    Candidates of a window are its n_best likeliest starts times its n_best likeliest ends, as in the published scripts,
    which let tokens of the question take places among them; here only tokens of the context do. A span of characters that
    two windows hold counts once, with its higher score. Of equal scores the one that begins, then ends, earlier is better.
    Without a possible span (no window, or no start before an end) the answer is "", with a span's logits taken as 0.

    Args:
        ids, contexts: of the examples, in the order that `windows.examples` counts.
        start_logits, end_logits (`np.ndarray`): [W, N], N at least the longest window; nothing beyond a window is read.
        n_best (`int`): starts and ends tried in each window, and spans in `Answers.nbest`.
        max_answer_length (`int`): in tokens.
        with_null (`bool`): whether a question may have no answer.
        null_threshold (`float`): the answer is "" where its null odds are above; +-inf: always or never another.
    Raises:
        ValueError: logits that are not finite.
    """
    answers = Answers({}, {}, {}, {})
    ends_of = np.searchsorted(windows.examples, np.arange(len(ids)), side="right").tolist()
    window = 0
    for key, context, end_of in zip(ids, contexts, ends_of, strict=True):
        spans: dict[tuple[int, int], tuple[float, float, float]] = {}
        nulls = []
        while window < end_of:
            tokens = slice(windows.bounds[window], windows.bounds[window + 1])
            length = tokens.stop - tokens.start
            logits = [np.asarray(part[window, :length], dtype=np.float64) for part in (start_logits, end_logits)]
            if not np.isfinite(logits).all():
                raise ValueError(
                    f"the logits of question {key!r} are not finite (window {window}): the model's weights or its precision "
                    "are broken"
                )
            found = window_spans(*logits, windows.first[tokens], windows.last[tokens], n_best, max_answer_length)
            for place, scores in found.items():
                spans[place] = max(scores, spans.get(place, scores))
            nulls.append(tuple(float(part[windows.null[window]]) for part in logits))
            window += 1
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
    """Return (score, start logit, end logit) of the spans of a window, by their characters [from, to)."""
    possible = np.flatnonzero(first < last)
    starts = possible[np.argsort(-start[possible], kind="stable")][:n_best, None]
    ends = possible[np.argsort(-end[possible], kind="stable")][None, :n_best]
    # Offsets of normalising tokenizers may run backwards within a word.
    is_span = (starts <= ends) & (ends - starts < max_answer_length) & (first[starts] < last[ends])
    spans: dict[tuple[int, int], tuple[float, float, float]] = {}
    for row, column in np.argwhere(is_span).tolist():
        i, j = starts[row, 0], ends[0, column]
        place = (int(first[i]), int(last[j]))
        scores = (float(start[i] + end[j]), float(start[i]), float(end[j]))
        spans[place] = max(scores, spans.get(place, scores))
    return spans

# SPDX-License-Identifier: Apache-2.0
"""From start and end logits of windows to answers: n best spans, the score of "no answer", and the text they stand for.

A span of tokens (i, j) of a window scores start[i] + end[j], "no answer" start[c] + end[c] with c the place of [CLS]. A
question has the spans of all its windows, and the smallest of their scores of "no answer": one window that is not sure is
enough. Answers are cut out of the context by character offsets.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Answers", "Windows", "answers_from_logits"]

# Windows that are scored together: n_best squared candidates each, a few dozen bytes a candidate.
TOGETHER = 512


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
    """The answers to questions, from the logits of their windows.

    Candidates of a window are its n_best likeliest starts times its n_best likeliest ends, as in the published scripts,
    which let tokens of the question take places among them; here only tokens of the context do. A span of characters that
    two windows hold counts once, with its higher score. Of equal scores the one that begins, then ends, earlier is better:
    nothing depends on batches and padding.

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
    spans: dict[int, list[tuple[float, float, int, int]]] = {}
    nulls: dict[int, tuple[float, float]] = {}
    for part in window_batches(windows.examples):
        start, end, first, last = padded_windows(ids, windows, part, start_logits, end_logits)
        spans |= best_spans(windows.examples[part], start, end, first, last, n_best, max_answer_length)
        if with_null:
            nulls |= null_logits(windows.examples[part], start, end, windows.null[part])

    answers = Answers({}, {}, {}, {})
    for number, (key, context) in enumerate(zip(ids, contexts, strict=True)):
        spans_found = spans.get(number, [])
        entries = [(start + end, context[a:b], start, end) for start, end, a, b in spans_found] or [(0.0, "", 0.0, 0.0)]
        answers.best[key] = answers.predictions[key] = entries[0][1]
        if with_null:
            start, end = nulls.get(number, (0.0, 0.0))
            answers.null_odds[key] = start + end - entries[0][0]
            if answers.null_odds[key] > null_threshold:
                answers.predictions[key] = ""
            entries = sorted([*(entries if spans_found else []), (start + end, "", start, end)], key=lambda entry: -entry[0])
        weights = [math.exp(score - entries[0][0]) for score, *_ in entries]
        answers.nbest[key] = [
            dict(text=text, probability=weight / sum(weights), start_logit=start, end_logit=end)
            for weight, (_, text, start, end) in zip(weights, entries, strict=True)
        ]
    return answers


def window_batches(examples: np.ndarray) -> Iterator[slice]:
    """Windows in parts of about TOGETHER, all windows of an example in one."""
    begins = 0
    while begins < len(examples):
        ends = min(begins + TOGETHER, len(examples))
        ends = int(np.searchsorted(examples, examples[ends - 1], side="right"))
        yield slice(begins, ends)
        begins = ends


def padded_windows(ids: Sequence[str], windows: Windows, part: slice, start_logits: np.ndarray, end_logits: np.ndarray):
    """start and end logits and character offsets of some windows, [W, N]; beyond a window the offsets are 0."""
    begins, lengths = windows.bounds[:-1][part], np.diff(windows.bounds)[part]
    places = np.arange(lengths.max())
    inside = places < lengths[:, None]
    tokens = np.where(inside, begins[:, None] + places, 0)
    start, end = (logits[part, : len(places)].astype(np.float64) for logits in (start_logits, end_logits))
    wrong = inside & ~(np.isfinite(start) & np.isfinite(end))
    if wrong.any():
        row, token = np.argwhere(wrong)[0]
        raise ValueError(
            f"the logits of question {ids[windows.examples[part][row]]!r} are not finite (token {token} of window "
            f"{part.start + row}: start {start[row, token]}, end {end[row, token]}): the model's weights or its precision "
            "are broken"
        )
    first, last = (np.where(inside, offsets[tokens], 0) for offsets in (windows.first, windows.last))
    return start, end, first, last


def null_logits(
    examples: np.ndarray, start: np.ndarray, end: np.ndarray, null: np.ndarray
) -> dict[int, tuple[float, float]]:
    """Logits of "no answer": of the window where their sum is smallest."""
    rows = np.arange(len(null))
    start, end = start[rows, null], end[rows, null]
    order = np.lexsort((start + end, examples))
    _, firsts = np.unique(examples[order], return_index=True)
    return {int(examples[row]): (float(start[row]), float(end[row])) for row in order[firsts]}


def best_spans(
    examples: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    n_best: int,
    max_answer_length: int,
) -> dict[int, list[tuple[float, float, int, int]]]:
    """(start logit, end logit, first character, end of the last) of the n best spans of each example, best first."""
    possible = first < last
    starts = np.argsort(np.where(possible, -start, np.inf), axis=1, kind="stable")[:, :n_best, None]  # [W, n, 1]
    ends = np.argsort(np.where(possible, -end, np.inf), axis=1, kind="stable")[:, None, :n_best]  # [W, 1, n]
    rows = np.arange(len(start))[:, None, None]
    is_span = possible[rows, starts] & possible[rows, ends] & (starts <= ends) & (ends - starts < max_answer_length)
    row, i, j = np.nonzero(is_span)
    starts, ends = starts[row, i, 0], ends[row, 0, j]
    start, end, first, last = start[row, starts], end[row, ends], first[row, starts], last[row, ends]
    # Offsets of normalising tokenizers may run backwards within a word.
    real = first < last
    start, end, first, last = start[real], end[real], first[real], last[real]
    example, score = examples[row[real]], start + end

    # Each span of characters once, then the best of each example.
    order = np.lexsort((-score, last, first, example))
    spans = np.stack([example, first, last])[:, order]
    order = order[np.diff(spans, prepend=-1).any(axis=0)]
    order = order[np.lexsort((last[order], first[order], -score[order], example[order]))]
    spans_found, counts = np.unique(example[order], return_counts=True)
    columns = [column[order].tolist() for column in (start, end, first, last)]
    best, begins = {}, 0
    for number, count in zip(spans_found.tolist(), counts.tolist(), strict=True):
        rows_taken = slice(begins, begins + min(count, n_best))
        best[number] = list(zip(*(column[rows_taken] for column in columns), strict=True))
        begins += count
    return best

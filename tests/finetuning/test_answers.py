# SPDX-License-Identifier: Apache-2.0
"""Answers from logits: spans, ties and scores by hand, all pairs of tokens as reference, and invalid logits."""

import itertools
import json
import math

import numpy as np
import pytest

from hf_deberta_ext.finetuning.tasks.answer_spans import Windows, answers_from_logits

CONTEXT = "Ada wrote the first program in 1843."
WORDS = [(0, 3), (4, 9), (10, 13), (14, 19), (20, 27), (28, 30), (31, 35), (35, 36)]
OUT = (0, 0)


def make_windows(*rows, null=0):
    """Return `Windows` from rows of (example, characters of each token)."""
    lengths = [len(tokens) for _, tokens in rows]
    flat = np.array([span for _, tokens in rows for span in tokens]).reshape(-1, 2)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    return Windows(np.array([e for e, _ in rows], int), np.full(len(rows), null), bounds, flat[:, 0], flat[:, 1])


def logits(width, **of):
    """Return a row of zeros except at the given tokens: logits(8, t3=2.0)."""
    row = np.zeros(width, dtype=np.float32)
    for name, value in of.items():
        row[int(name[1:])] = value
    return row


def answer(windows, start, end, **options):
    count = int(windows.examples.max()) + 1
    ids = [f"q{number}" for number in range(count)]
    return answers_from_logits(ids, [CONTEXT] * count, windows, np.stack(start), np.stack(end), **options)


# [CLS], a token of the question, [SEP], then the context.
ONE = make_windows((0, [OUT, OUT, OUT, *WORDS]))


def test_the_text_is_cut_from_the_context_by_characters_and_only_its_tokens_are_answers():
    answers = answer(ONE, [logits(11, t6=5)], [logits(11, t7=5)])
    assert answers.predictions == answers.best == {"q0": "first program"}
    # Other spans that contain the first words only have one of the two logits.
    expected = ["first program", "Ada wrote the first program", "wrote the first program"]
    assert [entry["text"] for entry in answers.nbest["q0"][:3]] == expected
    assert answers.null_odds == {}
    # If scores are equal, the span that starts and ends first is best.
    answers = answer(ONE, [logits(11)], [logits(11)], n_best=3)
    assert [entry["text"] for entry in answers.nbest["q0"]] == ["Ada", "Ada wrote", "Ada wrote the"]
    start, end = [logits(11, t0=9, t1=9, t2=9, t4=3)], [logits(11, t0=9, t1=9, t2=9, t4=3)]
    assert answer(ONE, start, end, n_best=1).predictions == {"q0": "wrote"}
    # A white-space token cannot start an answer.
    spaced = make_windows((0, [OUT, (0, 3), (4, 4), (4, 9)]))
    assert answer(spaced, [logits(4, t2=9, t3=1)], [logits(4, t2=9, t3=1)]).predictions == {"q0": "wrote"}


def test_probabilities_are_a_softmax_of_the_scores():
    found = answer(ONE, [logits(11, t3=1, t9=2)], [logits(11, t3=0.5, t9=0.25)], n_best=2, max_answer_length=1)
    # Ada: 1 + 0.5; 1843: 2 + 0.25.
    total = math.exp(1.5) + math.exp(2.25)
    assert found.nbest["q0"] == [
        dict(text="1843", probability=pytest.approx(math.exp(2.25) / total), start_logit=2.0, end_logit=0.25),
        dict(text="Ada", probability=pytest.approx(math.exp(1.5) / total), start_logit=1.0, end_logit=0.5),
    ]
    # Values that are written to JSON are finite.
    far = answer(ONE, [logits(11, t0=-3e38, t3=3e38)], [logits(11, t0=-3e38, t3=3e38)], with_null=True)
    json.dumps([far.nbest, far.null_odds], allow_nan=False)
    assert far.nbest["q0"][0]["probability"] == 1.0


def null_answer(threshold=0.0, with_null=True, **options):
    """Answer a question with two windows: "Ada" scores 3 + 1, [CLS] 4 + 2 in one window and 4 + 1.5 in the other."""
    two = make_windows((0, [OUT, *WORDS[:2]]), (0, [OUT, *WORDS[2:4]]))
    start, end = [logits(3, t0=4, t1=3), logits(3, t0=4)], [logits(3, t0=2, t1=1), logits(3, t0=1.5)]
    return answer(two, start, end, with_null=with_null, null_threshold=threshold, **options)


def test_the_score_of_no_answer_is_the_smallest_of_the_windows():
    answers = null_answer(n_best=1)
    assert answers.null_odds == {"q0": 1.5}
    scores = [(entry["text"], entry["start_logit"], entry["end_logit"]) for entry in answers.nbest["q0"]]
    assert scores == [("", 4.0, 1.5), ("Ada", 3.0, 1.0)]
    assert answers.nbest["q0"][0]["probability"] == pytest.approx(1 / (1 + math.exp(-1.5)))
    without = null_answer(with_null=False)
    assert without.predictions == {"q0": "Ada"} and "" not in [entry["text"] for entry in without.nbest["q0"]]


@pytest.mark.parametrize("threshold, text", [(0.0, ""), (1.4, ""), (1.5, "Ada"), (math.inf, "Ada"), (-math.inf, "")])
def test_the_threshold_is_what_the_odds_must_exceed(threshold, text):
    answers = null_answer(threshold)
    assert answers.predictions == {"q0": text} and answers.best == {"q0": "Ada"}


@pytest.mark.parametrize("with_null", [False, True])
def test_questions_without_a_possible_span_are_answered_with_nothing(with_null):
    """Bug google-research/bert#476: a crash if all n best are "no answer"."""
    # The second question has no window; the third has no context in it; the fourth has its best start after its best end.
    rows = make_windows((0, WORDS), (2, [OUT] * 3), (3, [OUT, *WORDS[:2]]))
    start, end = [logits(8), logits(8, t0=2), logits(8, t2=9)], [logits(8), logits(8, t0=1), logits(8, t1=9)]
    found = answer(rows, start, end, with_null=with_null, n_best=1, max_answer_length=1)
    assert list(found.predictions) == list(found.nbest) == ["q0", "q1", "q2", "q3"]
    for key in ("q1", "q2", "q3"):
        assert found.predictions[key] == found.best[key] == ""
    assert [len(entries) for entries in found.nbest.values()] == ([2, 1, 1, 1] if with_null else [1] * 4)
    assert found.nbest["q1"] == [dict(text="", probability=1.0, start_logit=0.0, end_logit=0.0)]
    assert list(found.null_odds.values()) == ([0.0, 0.0, 3.0, 0.0] if with_null else [])


def random_set(seed, examples=40):
    """Create windows of random lengths with question, white-space and context tokens, and logits padded with -100."""
    draw = np.random.default_rng(seed)
    rows = []
    for example in np.sort(draw.integers(0, examples, 2 * examples)):
        cuts = np.sort(draw.integers(0, len(CONTEXT), draw.integers(2, 15)))
        # Equal neighbours: a token without characters
        rows.append((example, [OUT] * draw.integers(1, 4) + list(itertools.pairwise(cuts))))
    width = max(len(tokens) for _, tokens in rows) + 3
    start, end = draw.integers(-6, 7, (2, len(rows), width)).astype(np.float32) / 2
    for row, (_, tokens) in enumerate(rows):
        start[row, len(tokens) :] = end[row, len(tokens) :] = -100
    return rows, start, end


def every_pair(rows, start, end, n_best, max_answer_length):
    """Return the n best spans (score, first character, end) by example, from all pairs of the n best starts and ends."""
    found = {}
    for row, (example, tokens) in enumerate(rows):
        real = [token for token, (a, b) in enumerate(tokens) if b > a]
        best = [sorted(real, key=lambda token: -row_logits[token])[:n_best] for row_logits in (start[row], end[row])]
        spans = found.setdefault(int(example), {})
        for i in best[0]:
            for j in best[1]:
                if 0 <= j - i < max_answer_length:
                    span, score = (tokens[i][0], tokens[j][1]), float(start[row, i]) + float(end[row, j])
                    spans[span] = max(score, spans.get(span, -math.inf))
    return {e: sorted((-score, *span) for span, score in spans.items())[:n_best] for e, spans in found.items()}


@pytest.mark.parametrize("n_best, max_answer_length", [(1, 3), (3, 2), (20, 30)], ids=["one", "few", "all"])
def test_all_pairs_of_the_best_starts_and_ends_give_the_same_answers(n_best, max_answer_length):
    rows, start, end = random_set(seed=1)
    ids = [str(number) for number in range(40)]
    found = answers_from_logits(
        ids, [CONTEXT] * 40, make_windows(*rows), start, end, n_best=n_best, max_answer_length=max_answer_length
    )
    expected = every_pair(rows, start, end, n_best, max_answer_length)
    compared = 0
    for number, key in enumerate(ids):
        ours = [(entry["text"], entry["start_logit"] + entry["end_logit"]) for entry in found.nbest[key]]
        assert ours == ([(CONTEXT[a:b], -score) for score, a, b in expected.get(number, [])] or [("", 0.0)])
        assert sum(entry["probability"] for entry in found.nbest[key]) == pytest.approx(1)
        compared += len(ours)
    assert compared >= 40


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_name_the_question(value):
    rows = make_windows((0, [OUT, *WORDS]), (1, [OUT, *WORDS]))
    with pytest.raises(ValueError, match=r"question 'q1' must be finite, got NaN or inf in window 1"):
        answer(rows, [logits(9), logits(9, t2=value)], [logits(9)] * 2)

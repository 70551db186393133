# SPDX-License-Identifier: Apache-2.0
"""Metrics of SQuAD 1.1 and 2.0 by hand, and the best threshold against all thresholds."""

import numpy as np
import pytest

from hf_deberta_ext.finetuning.tasks.question_answering_metrics import (
    exact_match,
    f1_of_tokens,
    normalise_answer,
    record,
    squad_v1,
    squad_v2,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Cat", "cat"),
        ("  a\tcat \n sat ", "cat sat"),
        ("well-known U.S.A.", "wellknown usa"),
        # Punctuation is removed before articles, and only ASCII punctuation.
        ("A. cat", "cat"),
        ("Beyoncé’s – ÉCOLE", "beyoncé’s – école"),
        ("theatre another an", "theatre another"),
        ("the a an The", ""),
        ("?!...", ""),
        ("a\u00a0cat it's the_end", "cat its theend"),
    ],
)
def test_normalise_answer(text, normal):
    assert normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "reference", "exact", "overlap"),
    [
        ("the denver broncos!", "Denver Broncos", 1, 1),
        ("Denver", "Denver Broncos", 0, 2 / 3),
        ("the Denver Broncos team", "Denver Broncos", 0, 4 / 5),
        ("Broncos Denver", "Denver Broncos", 0, 1),
        ("Carolina Panthers", "Denver Broncos", 0, 0),
        # Multisets: 2 hits of 3 and 6.
        ("to to to", "to be or not to be", 0, 4 / 9),
        ("São Paulo", "Sao Paulo", 0, 1 / 2),
        ("", "Denver", 0, 0),
        ("Denver", "", 0, 0),
        ("4.2", "42", 1, 1),
    ],
)
def test_one_answer_by_hand(prediction, reference, exact, overlap):
    assert exact_match(prediction, reference) == exact
    assert f1_of_tokens(prediction, reference) == pytest.approx(overlap)
    assert squad_v1({"q": prediction}, {"q": [reference]}) == dict(exact_match=100 * exact, f1=pytest.approx(100 * overlap))


def test_v1_of_two_answers_without_a_word_is_exact_without_overlap():
    """In 1.1, F1 is 0 without a shared word, also if both are empty; in 2.0, F1 of two empty answers is 1."""
    assert squad_v1({"a": "the"}, {"a": ["An"]}) == {"exact_match": 100.0, "f1": 0.0}
    assert squad_v2({"a": "the"}, {"a": ["An"]})["f1"] == 100.0
    assert f1_of_tokens("the", "an") == 1.0
    assert f1_of_tokens("the", "an", both_empty=0.0) == 0.0


def test_record_is_the_same_in_fractions():
    found = record({(0, 1): "Denver", (0, 2): "x", (0, 3): "x"}, {(0, 1): ["Denver"], (0, 2): ["x y"], (0, 3): ["y"]})
    assert found == {"exact_match": 1 / 3, "f1": pytest.approx((1 + 2 / 3) / 3)}


REFERENCES = {"right": ["x"], "half": ["x y"], "null": [], "void": []}
PREDICTIONS = {"right": "x", "half": "x", "null": "", "void": "x"}


def test_v2_reports_questions_with_and_without_an_answer_apart():
    # right: 1, 1. half: 0, 2/3. null: 1, 1. void: 0, 0.
    assert squad_v2(PREDICTIONS, REFERENCES) == {
        "exact": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3 + 1) / 4), "total": 4,
        "HasAns_exact": 50.0, "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2), "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prediction", "references", "score"),
    [
        # "the" would match "a", but only "x" is left.
        ("a", ["the", "x"], 0.0),
        ("x", ["the", "x"], 100.0),
        # If none is left, the reference is "".
        ("...", ["the", "!"], 100.0),
        ("x", ["the"], 0.0),
        ("The", [], 100.0),
    ],
)
def test_v2_drops_references_without_a_word(prediction, references, score):
    scores = squad_v2({"a": prediction}, {"a": references})
    assert scores["exact"] == scores["f1"] == score


@pytest.mark.parametrize(
    ("threshold", "exact"),
    [
        # Threshold 0.2 keeps "right"; 0.6 also keeps "void", which is wrong. "null" is correct in both cases.
        pytest.param(0.1, 50.0, id="none kept: null and void"),
        pytest.param(0.2, 75.0, id="equal to the probability is kept"),
        pytest.param(0.59, 75.0, id="between"),
        pytest.param(0.6, 50.0, id="void is answered"),
        pytest.param(1.0, 50.0, id="all kept"),
    ],
)
def test_v2_takes_what_is_above_the_threshold_for_no_answer(threshold, exact):
    probabilities = {"right": 0.2, "half": 0.5, "null": 0.9, "void": 0.6}
    assert squad_v2(PREDICTIONS, REFERENCES, probabilities, threshold)["exact"] == exact


def test_v2_names_a_threshold_below_all_where_nothing_should_be_kept():
    """Differences of scores can be negative, so that a threshold of 0 would keep them."""
    predictions, references, scores = {"a": "x", "b": "x"}, {"a": [], "b": []}, {"a": -3.0, "b": 2.0}
    found = squad_v2(predictions, references, scores)
    assert found["best_exact"] == 100.0
    assert found["best_exact_thresh"] < -3.0
    assert squad_v2(predictions, references, scores, found["best_exact_thresh"])["exact"] == 100.0
    # 0 if it is below all probabilities, as in the published script.
    assert squad_v2(predictions, references, {"a": 0.1, "b": 2.0})["best_exact_thresh"] == 0.0


@pytest.mark.parametrize("seed", range(12))
def test_v2_best_thresholds_equal_a_search_over_all(seed):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 60))
    words = ["", "x", "y", "x y", "x y z", "the"]
    predictions = {number: str(draw.choice(words)) for number in range(count)}
    references = {
        number: [] if draw.random() < 0.5 else draw.choice(words[1:], int(draw.integers(1, 3))).tolist()
        for number in range(count)
    }
    # Rounded to one decimal, so that many are equal.
    decimals = int(draw.integers(1, 6))
    probabilities = {number: round(float(draw.normal()), decimals) for number in range(count)}
    found = squad_v2(predictions, references, probabilities)
    # One threshold for each set of kept answers
    values = sorted(set(probabilities.values()))
    tried = {at: squad_v2(predictions, references, probabilities, at) for at in [values[0] - 1, *values]}
    for name in ("exact", "f1"):
        best = max(scores[name] for scores in tried.values())
        assert found[f"best_{name}"] == pytest.approx(best, abs=1e-9)
        at = squad_v2(predictions, references, probabilities, found[f"best_{name}_thresh"])
        assert at[name] == pytest.approx(best, abs=1e-9)
        lower = [threshold for threshold in tried if threshold < found[f"best_{name}_thresh"]]
        assert all(tried[threshold][name] < best - 1e-9 for threshold in lower if threshold >= min(probabilities.values()))

# SPDX-License-Identifier: Apache-2.0
"""Entities in tags against an independent implementation of the rules, and their scores by hand."""

import random

import pytest

from hf_deberta_ext.finetuning.tasks.entity_metrics import entities, entity_scores


def scores_of(precision, recall, f1, number):
    return {"precision": precision, "recall": recall, "f1": f1, "number": number}


@pytest.mark.parametrize(
    ("predicted", "true", "overall", "types"),
    [
        # seqeval's example: the MISC is one word too long, the PER is correct: P = R = F1 = 1/2; 8 of 10 tags.
        pytest.param(
            ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            (0.5, 0.5, 0.5, 0.8),
            {"MISC": scores_of(0, 0, 0, 1), "PER": scores_of(1, 1, 1, 1)},
            id="seqeval",
        ),
        # P = 1/2, R = 1/4, F1 = 2 / (2 + 4).
        pytest.param(
            ["B-A O O B-A"],
            ["B-A B-A B-A B-B"],
            (0.5, 0.25, pytest.approx(1 / 3), 0.25),
            {"A": scores_of(0.5, pytest.approx(1 / 3), pytest.approx(2 / 5), 3), "B": scores_of(0, 0, 0, 1)},
            id="entities are weighed, not types",
        ),
        pytest.param(["B-A", "O"], ["O", "B-A"], (0, 0, 0, 0), {"A": scores_of(0, 0, 0, 1)}, id="another sentence"),
        pytest.param(["B-NEW"], ["O"], (0, 0, 0, 0), {"NEW": scores_of(0, 0, 0, 0)}, id="only predicted"),
        pytest.param(["O O", ""], ["O O", ""], (0, 0, 0, 1), {}, id="no entities"),
    ],
)
def test_scores_by_hand(predicted, true, overall, types):
    scores = entity_scores(*([tags.split() for tags in sentences] for sentences in (predicted, true)))
    names = ("precision", "recall", "f1", "accuracy")
    assert scores == {f"overall_{name}": value for name, value in zip(names, overall, strict=True)} | types
    assert [*scores][4:] == sorted(types)


def by_boundaries(tags):
    """Find entities as conlleval does: decide at each boundary if an entity ends, and if one starts."""
    parts = [("O", "")] + [(tag[0], tag[2:]) for tag in tags] + [("O", "")]
    found, start = [], 0
    for place in range(1, len(parts)):
        (before, kind_before), (now, kind_now) = parts[place - 1], parts[place]
        changes = kind_before != kind_now
        if before != "O" and (before in "ES" or now in "BSO" or changes):
            found.append((kind_before, start, place - 2))
        if now != "O" and (now in "BS" or before in "ESO" or changes):
            start = place - 1
    return found


def test_entities_equal_the_border_rules_on_random_tags():
    draw = random.Random(0)
    choices = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in "XY")]
    seen = 0
    for _ in range(3000):
        tags = draw.choices(choices, k=draw.randrange(8))
        assert entities(tags) == by_boundaries(tags), tags
        seen += len(entities(tags))
    assert seen > 5000

# SPDX-License-Identifier: Apache-2.0
"""Entities of tags, and their scores: by hand, against a second reading of the rules, and mistakes."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from hf_deberta_ext.finetuning.tasks.entity_metrics import entities, entity_scores

# ------- by hand


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        pytest.param("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)], id="IOB2"),
        pytest.param("I-PER I-PER O I-LOC", [("PER", 0, 1), ("LOC", 3, 3)], id="IOB1: I begins after O"),
        pytest.param("I-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)], id="IOB1: B parts neighbours"),
        pytest.param("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)], id="I of another type begins"),
        pytest.param("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)], id="two of one word"),
        pytest.param("B-PER O I-PER", [("PER", 0, 0), ("PER", 2, 2)], id="O ends"),
        pytest.param("O B-A I-A", [("A", 1, 2)], id="up to the last word"),
        pytest.param("B-A I-A E-A S-A O S-B", [("A", 0, 2), ("A", 3, 3), ("B", 5, 5)], id="BIOES"),
        pytest.param("E-A E-A", [("A", 0, 0), ("A", 1, 1)], id="E begins where nothing is open"),
        pytest.param("B-A E-A I-A", [("A", 0, 1), ("A", 2, 2)], id="I begins after E"),
        pytest.param("S-A I-A E-A", [("A", 0, 0), ("A", 1, 2)], id="I begins after S"),
        pytest.param("B-A E-B", [("A", 0, 0), ("B", 1, 1)], id="E of another type"),
        pytest.param("B-creative-work I-creative-work", [("creative-work", 0, 1)], id="a type with a dash"),
        pytest.param("O O", [], id="none"),
        pytest.param("", [], id="no words"),
    ],
)
def test_entities_by_hand(tags, found):
    assert entities(tags.split()) == found


def test_scores_by_hand():
    """seqeval's example: the MISC is one word too long, the PER is right: P = R = F1 = 1/2; 8 of 10 tags."""
    true = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert entity_scores(predicted, true) == {
        "overall_precision": 0.5, "overall_recall": 0.5, "overall_f1": 0.5, "overall_accuracy": 0.8,
        "MISC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 1},
        "PER": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "number": 1},
    }  # fmt: skip


def test_scores_weigh_entities_not_types():
    # True: A A A B. Predicted: A, and A for B. P = 1/2, R = 1/4, F1 = 2 / (2 + 4).
    found = entity_scores([["B-A", "O", "O", "B-A"]], [["B-A", "B-A", "B-A", "B-B"]])
    assert (found["overall_precision"], found["overall_recall"]) == (0.5, 0.25)
    assert found["overall_f1"] == pytest.approx(1 / 3)
    assert found["A"] == {"precision": 0.5, "recall": pytest.approx(1 / 3), "f1": pytest.approx(2 / 5), "number": 3}
    assert found["B"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 1}


def test_the_same_place_in_another_sentence_is_no_hit():
    found = entity_scores([["B-A"], ["O"]], [["O"], ["B-A"]])
    assert (found["overall_f1"], found["overall_accuracy"]) == (0.0, 0.0)


def test_a_type_that_is_only_predicted_has_number_0():
    found = entity_scores([["B-NEW"]], [["O"]])
    assert found["NEW"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 0}
    assert found["overall_recall"] == 0.0


def test_without_entities_scores_are_0_and_accuracy_is_not():
    assert entity_scores([["O", "O"], []], [["O", "O"], []]) == {
        "overall_precision": 0.0, "overall_recall": 0.0, "overall_f1": 0.0, "overall_accuracy": 1.0,
    }  # fmt: skip


def test_types_are_sorted():
    tags = [["B-PER", "B-LOC", "B-ORG"]]
    assert list(entity_scores(tags, tags))[4:] == ["LOC", "ORG", "PER"]


# ------- against a second reading


def by_boundaries(tags):
    """conlleval's two questions, asked at every border: does an entity end here, does one begin?"""
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


@pytest.mark.parametrize("name", ["conll2003", "wnut17"])
def test_real_tags_score_themselves(name):
    if "DEBERTA_EXT_DATA" not in os.environ:
        pytest.skip("DEBERTA_EXT_DATA names no folder of data")
    with gzip.open(Path(os.environ["DEBERTA_EXT_DATA"]) / name / "validation.jsonl.gz", "rt", encoding="utf-8") as file:
        true = [json.loads(line)["ner_tags"] for line in file]
    found = entity_scores(true, true)
    begun = sum(tag.startswith("B-") for tags in true for tag in tags)
    assert found["overall_f1"] == found["overall_accuracy"] == 1.0
    assert sum(scores["number"] for kind, scores in found.items() if not kind.startswith("overall_")) == begun > 100


# ------- mistakes


@pytest.mark.parametrize("tag", ["PER", "B", "B-", "-PER", "U-PER", "b-PER", "", "O-PER", "BB-PER", None, 3])
def test_a_tag_of_another_form_is_refused(tag):
    with pytest.raises(ValueError, match=r"tags\[1\]: .* is no tag; it must be O, or one of B- I- E- S-"):
        entities(["O", tag])


def test_a_wrong_tag_names_its_sentence():
    with pytest.raises(ValueError, match=r"predicted tags of sentence 1: tags\[0\]: 'PER' is no tag"):
        entity_scores([["O"], ["PER"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="true tags of sentence 0"):
        entity_scores([["O"]], [["X"]])


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"sentence 1: .* got 1 tags for 2"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ValueError, match="got 2 predicted sentences for 1"):
        entity_scores([["O"], ["O"]], [["O"]])


@pytest.mark.parametrize("nothing", [[], [[]]])
def test_no_words_cannot_be_scored(nothing):
    with pytest.raises(ValueError, match="there are no words to score"):
        entity_scores(nothing, nothing)

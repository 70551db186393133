# SPDX-License-Identifier: Apache-2.0
"""Influence of tokens on a prediction: occlusion by its definition, completeness of integrated gradients, loading."""

import math

import pytest
import torch
from tiny_constants import random_weights
from tiny_models import TINY, save_tokenizer, tiny_model, word_tokenizer
from transformers import DebertaV2ForSequenceClassification

from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification, DebertaExtForTokenClassification
from hf_deberta_ext.analysis.influence import explain_prediction, load_classifier
from hf_deberta_ext.analysis.plots.html import influence_page

TEXT, SECOND = "w7 w8 w9 w10", "w11 w12"


def log_odds(logits):
    return logits.log_softmax(-1) - (1 - logits.softmax(-1)).log()


# Fields of the configuration and its evidence for each label.
KINDS = {
    "classes": ({}, log_odds),
    "two_classes": (dict(num_labels=2), log_odds),
    "multi_label": (dict(problem_type="multi_label_classification"), lambda logits: logits.sigmoid().logit()),
    "regression": (dict(num_labels=1), lambda logits: logits),
    "several_scores": (dict(problem_type="regression"), lambda logits: logits),
}


def classifier(**fields):
    return random_weights(DebertaExtForSequenceClassification(DebertaExtConfig(**TINY | fields)))


@pytest.mark.parametrize("texts", [(TEXT,), (TEXT, SECOND)], ids=["text", "pair"])
@pytest.mark.parametrize("kind", KINDS)
def test_occlusion_is_the_difference_of_the_evidence_with_one_token_masked(kind, texts):
    fields, transform = KINDS[kind]
    model, tokenizer = classifier(**fields), word_tokenizer()
    inputs = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)
    prediction = explain_prediction(model, tokenizer, *texts, gradients=False)

    def evidence(ids):
        with torch.no_grad():
            return transform(model(ids, token_type_ids=inputs["token_type_ids"]).logits.double())[0]

    whole = evidence(inputs["input_ids"])
    best = int(whole.argmax())
    name = "score" if kind == "regression" else model.config.id2label[best]
    assert prediction.label == name == max(prediction.scores, key=lambda score: score[1])[0]
    assert prediction.evidence == pytest.approx(float(whole[best]), abs=1e-4)
    assert prediction.is_regression == (kind in ("regression", "several_scores"))
    places = [place for place, i in enumerate(inputs["input_ids"][0]) if i > 2]
    for place, token in zip(places, prediction.tokens, strict=True):
        masked = inputs["input_ids"].clone()
        masked[0, place] = tokenizer.mask_token_id
        assert texts[token.number][token.start : token.end] == token.token
        assert token.occlusion == pytest.approx(float(whole[best] - evidence(masked)[best]), abs=1e-4)
        assert token.gradients is None
    assert any(abs(token.occlusion) > 1e-3 for token in prediction.tokens)


@pytest.mark.parametrize("name, other", [("LABEL_0", "LABEL_1"), ("LABEL_1", "LABEL_0")])
def test_a_saved_threshold_chooses_the_label_that_is_explained(name, other):
    """`deberta-ext predict` gave the label of the threshold, explain the one of the largest probability."""
    model, tokenizer = classifier(num_labels=2), word_tokenizer()
    for least, label in ((0.001, name), (0.999, other)):
        model.config.decision_thresholds = {name: least}
        prediction = explain_prediction(model, tokenizer, TEXT, gradients=False)
        probability = dict(prediction.scores)[label]
        assert prediction.label == label
        assert prediction.evidence == pytest.approx(math.log(probability / (1 - probability)), abs=1e-4)


def test_of_several_labels_the_likeliest_above_its_threshold_is_explained():
    model, tokenizer = classifier(problem_type="multi_label_classification"), word_tokenizer()
    scores = dict(explain_prediction(model, tokenizer, TEXT, gradients=False).scores)
    first, second = sorted(scores, key=scores.get, reverse=True)[:2]
    for thresholds, label in (
        ({first: 0.999, second: 0.001}, second),
        ({first: 0.001, second: 0.001}, first),
        (dict.fromkeys(scores, 0.999), first),
    ):
        model.config.decision_thresholds = thresholds
        assert explain_prediction(model, tokenizer, TEXT, gradients=False).label == label


@pytest.mark.parametrize("texts", [(TEXT,), (TEXT, SECOND)], ids=["text", "pair"])
@pytest.mark.parametrize("kind", KINDS)
def test_integrated_gradients_sum_to_the_difference_of_the_evidence_from_the_masked_text(kind, texts):
    model, tokenizer = classifier(**KINDS[kind][0]), word_tokenizer()
    errors = []
    for n_steps in (2, 50):
        prediction = explain_prediction(model, tokenizer, *texts, n_steps=n_steps)
        change = prediction.evidence - prediction.masked_evidence
        errors.append(abs(sum(token.gradients for token in prediction.tokens) - change))
    assert abs(change) > 1e-3 and errors[1] < 1e-3 * abs(change) + 1e-6 and errors[1] < errors[0]
    # A token that is [MASK] already has no influence.
    of_mask = explain_prediction(model, tokenizer, "w7 [MASK] w9").tokens[1]
    assert of_mask.gradients == pytest.approx(0, abs=1e-6) and of_mask.occlusion == pytest.approx(0, abs=1e-5)


def test_a_folder_of_transformers_and_ours_give_one_classifier_and_other_heads_none(stock_config, tmp_path):
    stock = random_weights(DebertaV2ForSequenceClassification(stock_config("v3", **TINY)))
    stock.save_pretrained(tmp_path / "stock")
    model = load_classifier(str(tmp_path / "stock"))
    model.save_pretrained(tmp_path / "ours")
    tiny_model(DebertaExtForTokenClassification).save_pretrained(tmp_path / "tagger")
    assert load_classifier(str(tmp_path / "tagger")) is None
    ids = word_tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = stock(ids).logits
        for folder in ("stock", "ours"):
            save_tokenizer(tmp_path / folder)
            got = load_classifier(str(tmp_path / folder))(ids).logits
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_page_has_every_value_and_texts_are_no_html():
    model = classifier(id2label={0: "<b>", 1: "<b>2", 2: "<b>3"})
    prediction = explain_prediction(model, word_tokenizer(), "<script>alert(1)</script> w7", SECOND)
    html = influence_page(prediction)
    assert "<script" not in html and "<b>" not in html
    for token in prediction.tokens:
        assert f": {token.gradients:+.3f}" in html and f": {token.occlusion:+.3f}" in html

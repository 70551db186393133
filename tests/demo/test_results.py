# SPDX-License-Identifier: Apache-2.0
"""Test the results on the page: numbers equal the model's, HTML is escaped, and every head is found."""

import re
import sys
from html import unescape

import pytest
import torch
from tiny_constants import random_weights
from tiny_models import TINY, save_adapter, save_tokenizer, tiny_model, word_tokenizer

import hf_deberta_ext
from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.analysis.attention_decomposition import attention_parts
from hf_deberta_ext.analysis.influence import explain_prediction
from hf_deberta_ext.analysis.sentence_scoring import token_replacement_probabilities
from hf_deberta_ext.commands import main
from hf_deberta_ext.demo.page import MEAN, attention_html, classification_html, fill_mask_html, replaced_html
from hf_deberta_ext.demo.results import DemoModel, fill_mask, load

TEXT = "w7 w8 [MASK] w9 w10 [MASK]"
PLAIN = "w7 w8 w9 w10"


@pytest.fixture
def demo():
    """Return a function (head, **fields) that builds a demo model with one head."""

    def build(head, **fields):
        name = dict(masked="MaskedLM", discriminator="ReplacedTokenDetection", classifier="SequenceClassification")[head]
        model = random_weights(getattr(hf_deberta_ext, f"DebertaExtFor{name}")(DebertaExtConfig(**TINY | fields)))
        return DemoModel("tiny", word_tokenizer(), model.deberta, **{head: model})

    return build


def tips(html):
    return [unescape(tip) for tip in re.findall(r'data-tip="([^"]*)"', html)]


@pytest.mark.parametrize("fields", [{}, dict(emd_layers=1), dict(conv_kernel_size=3)])
def test_masked_words_are_those_of_the_model_with_its_decoder_and_of_the_same_without(demo, fields):
    model = demo("masked", **fields)
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    answers = fill_mask(model, TEXT, count=3)
    assert [list(columns) for columns in answers] == [["with EMD", "without EMD"]] * 2
    for name in ("with EMD", "without EMD"):
        if name == "without EMD":
            model.masked.mask_decoder = None
        with torch.no_grad():
            probabilities = model.masked(ids).logits[ids == model.tokenizer.mask_token_id].softmax(-1)
        for columns, expected in zip(answers, probabilities, strict=True):
            best = expected.topk(3)
            assert [word for word, _ in columns[name]] == [model.tokenizer.decode([i]) for i in best.indices]
            torch.testing.assert_close(torch.tensor([p for _, p in columns[name]]), best.values, rtol=1e-4, atol=1e-6)
    assert [list(columns) for columns in fill_mask(model, TEXT)] == [["without EMD"]] * 2


def test_an_adapter_is_the_classifier_of_its_base_model(tmp_path):
    """Load the base model of an adapter, which failed with "no file named model.safetensors"."""
    tiny_model(hf_deberta_ext.DebertaExtForMaskedLM).save_pretrained(tmp_path / "base")
    labels = {0: "no", 1: "maybe", 2: "yes"}
    classifier = hf_deberta_ext.DebertaExtForSequenceClassification
    model = classifier.from_pretrained(tmp_path / "base", id2label=labels, num_labels=3)
    adapted = save_adapter(model, tmp_path / "adapter", modules_to_save=["classifier", "pooler"])
    shown = load(str(tmp_path / "adapter"))
    assert shown.masked is None and shown.classifier.config.id2label == labels
    inputs = shown.tokenizer(PLAIN, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(shown.classifier(**inputs).logits, adapted(**inputs).logits, rtol=1e-4, atol=1e-5)


def test_replaced_words_have_the_probabilities_of_the_discriminator(demo):
    model = demo("discriminator")
    expected = token_replacement_probabilities(model.discriminator, model.tokenizer, PLAIN)
    assert tips(replaced_html(model, f" {PLAIN} ")) == [f"{t.token}: replaced {t.probability:.1%}" for t in expected]


@pytest.mark.parametrize("texts", [(PLAIN,), (PLAIN, "w11 w12"), (PLAIN, " ")])
def test_a_classification_shows_the_occlusion_of_each_token_on_hover(demo, texts):
    model = demo("classifier")
    given = [text for text in texts if text.strip()]
    prediction = explain_prediction(model.classifier, model.tokenizer, *given, gradients=False)
    shown = [float(tip.split(": ")[1]) for tip in tips(classification_html(model, *texts))]
    assert shown == pytest.approx([token.occlusion for token in prediction.tokens], abs=6e-4)


@pytest.mark.parametrize("head", [0, 3, MEAN])
@pytest.mark.parametrize("terms", [["c2p", "p2c"], ["c2p"]])
def test_the_maps_show_the_parts_of_the_attention_on_hover(demo, head, terms):
    model = demo("discriminator", pos_att_type=terms)
    ids = torch.tensor([model.tokenizer(PLAIN)["input_ids"]])
    maps = attention_parts(model.encoder, ids, layer=1).of_head(None if head == MEAN else head)
    html = attention_html(model, PLAIN, 1, head)
    assert re.findall("<h4>(.*?)</h4>", html) == ["attention", "c2c", *terms]
    tokens = ["[CLS]", *PLAIN.split(), "[SEP]"]
    shown = tips(html)
    assert [tip.split(":")[0] for tip in shown] == [f"{query} → {key}" for query in tokens for key in tokens] * len(maps)
    values = [tip.split(": ")[1] for tip in shown]
    numbers = torch.tensor([float(value[:-1]) / 100 if value.endswith("%") else float(value) for value in values])
    expected = torch.stack([*maps.values()]).flatten()
    torch.testing.assert_close(numbers, expected, rtol=0, atol=6e-4)


def test_a_text_is_no_html(demo):
    text = '<script>alert(1)</script> w7 " w8'
    for html in (
        replaced_html(demo("discriminator"), text),
        classification_html(demo("classifier", id2label={0: "<b>", 1: "<b>", 2: "<b>"}), text, text),
        attention_html(demo("classifier"), text, 0, 0),
    ):
        assert "<script" not in html and "<b>&lt;" not in html
    assert "<script" not in fill_mask_html(demo("masked"), f"{text} [MASK]")


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("Model", set()),
        ("ForMaskedLM", {"masked"}),
        ("ForReplacedTokenDetection", {"discriminator"}),
        ("ForSequenceClassification", {"classifier"}),
        ("ForMultipleChoice", set()),
        ("ForPreTraining", {"masked", "discriminator"}),
    ],
)
def test_heads_are_those_in_the_checkpoint_and_of_the_others_it_is_said_why(name, there, tmp_path):
    fields = dict(special_token_ids=[0, 1, 2, 3, 4]) if name == "ForPreTraining" else {}
    tiny_model(getattr(hf_deberta_ext, f"DebertaExt{name}"), **fields).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    model = load(str(tmp_path))
    assert {head for head in ("masked", "discriminator", "classifier") if getattr(model, head) is not None} == there
    names = dict(masked="masked words", discriminator="replaced words", classifier="classification")
    assert {*model.absent} == {names[head] for head in names if head not in there}
    assert all(reason.startswith("the checkpoint has no ") for reason in model.absent.values())
    assert isinstance(model.encoder.config, DebertaExtConfig)


def test_without_gradio_the_command_says_what_installs_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "deberta-ext demo: error: the demo needs gradio: pip install 'hf_deberta_ext[demo]'\n"
    )

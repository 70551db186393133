# SPDX-License-Identifier: Apache-2.0
"""Scores of tokens and sentences: known logits by hand, invariants, a slow loop, other models, and errors."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, ElectraConfig, ElectraForPreTraining

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.analysis.sentence_scoring import pseudo_log_likelihood, token_replacement_probabilities
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe, train_unigram

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Nobody minds.",
    "the  quick\tdog jumps over the quick brown fox, and over the fox",
    "fox",
    "  lazy   ",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram([*TEXTS, "a quick test of few words", "Then This, Not. Now"] * 20, 80, show_progress=False)


@pytest.fixture(scope="module")
def byte_tokenizer():
    return train_byte_level_bpe(TEXTS * 20, 300, show_progress=False)


class Known(torch.nn.Module):
    """Model with known logits, (id - 20) / 8 + position / 4; tokens do not see each other."""

    config = SimpleNamespace(max_position_embeddings=64)

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(1, 1))

    def forward(self, input_ids, attention_mask):
        assert not self.training and not self.inner.training and not torch.is_grad_enabled()
        assert attention_mask.shape == input_ids.shape
        places = torch.arange(input_ids.shape[1])
        return SimpleNamespace(logits=(input_ids - 20) / 8 + places / 4)


@pytest.fixture
def discriminator(tiny_config, shake, tokenizer):
    return shake(DebertaExtForReplacedTokenDetection(tiny_config(vocab_size=len(tokenizer))))


@pytest.fixture
def masked_lm(tiny_config, shake, tokenizer):
    return shake(DebertaExtForMaskedLM(tiny_config(vocab_size=len(tokenizer))))


BERT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)


def test_probabilities_are_sigmoids_the_likelihood_that_of_original_tokens_and_offsets_what_is_seen(
    tokenizer, byte_tokenizer
):
    found = token_replacement_probabilities(Known(), tokenizer, TEXTS, batch_size=2)
    likelihoods = pseudo_log_likelihood(Known(), tokenizer, TEXTS)
    for text, scores, likelihood in zip(TEXTS, found, likelihoods, strict=True):
        ids = tokenizer(text)["input_ids"]
        logits = [(ids[place] - 20) / 8 + place / 4 for place in range(1, len(ids) - 1)]
        assert [score.token for score in scores] == tokenizer.tokenize(text)
        assert [score.probability for score in scores] == pytest.approx([1 / (1 + math.exp(-x)) for x in logits], rel=1e-5)
        assert likelihood.total == pytest.approx(sum(-math.log1p(math.exp(x)) for x in logits), rel=1e-5)
        assert likelihood.tokens == len(logits) and likelihood.mean == likelihood.total / likelihood.tokens
    for each in (tokenizer, byte_tokenizer):
        for text, scores in zip(TEXTS, token_replacement_probabilities(Known(), each, TEXTS), strict=True):
            assert "".join(text[score.start : score.end].strip() for score in scores) == "".join(text.split())
            ends = [(score.start, score.end) for score in scores]
            assert ends == sorted(ends)
    score = token_replacement_probabilities(Known(), tokenizer, "  the fox")[-1]
    assert score.token.endswith("fox") and (score.start, score.end) == (6, 9)


def numbers_of(found):
    """Return probabilities of tokens or totals of sentences in one list."""
    values = []
    for each in found:
        values += [score.probability for score in each] if isinstance(each, list) else [each.total]
    return values


@pytest.mark.parametrize(
    "score, kind",
    [
        (token_replacement_probabilities, "discriminator"),
        (pseudo_log_likelihood, "discriminator"),
        (pseudo_log_likelihood, "masked_lm"),
    ],
)
def test_scores_of_a_text_do_not_depend_on_the_batch(score, kind, tokenizer, request):
    model = request.getfixturevalue(kind)
    alone = [score(model, tokenizer, text) for text in TEXTS]
    for batch_size in (1, 3, 32):
        assert numbers_of(score(model, tokenizer, TEXTS, batch_size)) == pytest.approx(numbers_of(alone), rel=1e-4)
    assert numbers_of(score(model, tokenizer, TEXTS[::-1])) == pytest.approx(numbers_of(alone[::-1]), rel=1e-4)
    assert len({str(each) for each in alone}) == len(TEXTS)


@pytest.mark.parametrize("score", [token_replacement_probabilities, pseudo_log_likelihood])
def test_the_model_is_left_in_the_modes_and_with_the_gradients_it_had(score, discriminator, tokenizer, monkeypatch):
    discriminator.train()
    discriminator.deberta.encoder.eval()
    modes = [module.training for module in discriminator.modules()]
    assert {*modes} == {True, False}
    score(discriminator, tokenizer, TEXTS)
    assert [module.training for module in discriminator.modules()] == modes
    assert torch.is_grad_enabled() and all(parameter.grad is None for parameter in discriminator.parameters())
    # Also if the model fails.
    monkeypatch.setattr(type(discriminator), "forward", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        score(discriminator, tokenizer, "the fox")
    assert [module.training for module in discriminator.modules()] == modes


def slow_pseudo_log_likelihood(model, tokenizer, text):
    """Salazar et al. 2020, Eq. (1), token by token."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    total = 0.0
    for place in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(masked, torch.ones_like(masked)).logits
        total += logits[0, place].double().log_softmax(dim=-1)[ids[0, place]].item()
    return total


@pytest.mark.parametrize("kind", ["emd", "no_emd", "objectives", "bert"])
def test_likelihood_of_masked_language_models_equals_the_slow_loop(kind, tokenizer, tiny_config, shake):
    if kind == "bert":
        model = reference = shake(BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **BERT)))
    else:
        plain = dict(emd_layers=1, emd_input="hidden") if kind == "no_emd" else {}
        config = tiny_config(vocab_size=len(tokenizer), **plain)
        model = reference = shake(DebertaExtForMaskedLM(config))
        if kind == "objectives":
            model = MultiObjectiveMaskedLM(config, ["mlm", "sop"])
            model.load_state_dict(reference.state_dict(), strict=False)
            model.eval()
    found = pseudo_log_likelihood(model, tokenizer, TEXTS, batch_size=5)
    for text, score in zip(TEXTS, found, strict=True):
        assert score.total == pytest.approx(slow_pseudo_log_likelihood(reference, tokenizer, text), rel=1e-4)
        assert score.tokens == len(tokenizer.tokenize(text))
    assert pseudo_log_likelihood(model, tokenizer, TEXTS[0]).total == pytest.approx(found[0].total, rel=1e-4)


def test_discriminators_of_other_packages_are_scored(tokenizer, shake):
    model = shake(ElectraForPreTraining(ElectraConfig(vocab_size=len(tokenizer), embedding_size=32, **BERT)))
    (scores,) = token_replacement_probabilities(model, tokenizer, TEXTS[:1])
    with torch.no_grad():
        logits = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0, 1:-1]
    assert [score.probability for score in scores] == pytest.approx(logits.sigmoid().tolist(), rel=1e-4)


@pytest.mark.parametrize("kind", ["known_positions", "absolute", "emd", "tokenizer"])
def test_texts_that_are_too_long_are_named(kind, tokenizer, tiny_config, shake, monkeypatch):
    config = tiny_config(vocab_size=len(tokenizer), position_biased_input=kind == "absolute")
    model_class = DebertaExtForMaskedLM if kind == "emd" else DebertaExtForReplacedTokenDetection
    model = Known() if kind == "known_positions" else shake(model_class(config))
    limit = 50 if kind == "tokenizer" else 64
    monkeypatch.setattr(tokenizer, "model_max_length", limit if kind == "tokenizer" else 512)
    long = "the lazy fox " * 40
    length = len(tokenizer(long)["input_ids"])
    message = rf"text 1 must have at most {limit} tokens, got {length}; split or shorten this text"
    scores = [pseudo_log_likelihood] + [token_replacement_probabilities] * (kind != "emd")
    for score in scores:
        with pytest.raises(ValueError, match=message):
            score(model, tokenizer, ["the fox", long])
    if kind == "tokenizer":
        # The model's 64 is `max_position_embeddings`, which does not apply without absolute positions.
        monkeypatch.setattr(tokenizer, "model_max_length", int(1e30))
        assert len(token_replacement_probabilities(model, tokenizer, long)) > 64


@pytest.mark.parametrize("score", [token_replacement_probabilities, pseudo_log_likelihood])
def test_models_of_other_kinds_and_sizes_are_named(score, tokenizer, tiny_config):
    classifier = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **BERT))
    small = DebertaExtForReplacedTokenDetection(tiny_config(vocab_size=30))
    for model, message in (
        (classifier, "BertForSequenceClassification must return logits"),
        (small, r"the tokenizer has .* tokens .* but the model only has 30 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            score(model, tokenizer, TEXTS)

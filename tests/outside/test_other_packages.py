# SPDX-License-Identifier: Apache-2.0
"""Saved folders in other packages: transformers' pipelines and sentence-transformers.

Everything runs twice: in this process, with the package, and in a process that cannot import it.
"""

import os

import other_packages_worker as worker
import pytest
import torch
from every_head import CLASSES
from tiny_constants import random_weights
from tiny_models import TINY, word_tokenizer
from without_package import run_without_package

from hf_deberta_ext import DebertaExtConfig

SIZES = TINY | dict(type_vocab_size=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def labels(*names: str) -> dict[str, dict]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


ENTAILMENT = labels("contradiction", "entailment", "neutral")
ENTITIES = labels("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
MODELS = {
    "masked_lm": ("masked-lm", {}),
    "classifier": ("sequence-classification", ENTAILMENT),
    "scorer": ("sequence-classification", dict(num_labels=1)),
    "tagger": ("token-classification", ENTITIES | dict(num_labels=5)),
    "encoder": ("base", {}),
}


def ids(*texts: str) -> dict[str, torch.Tensor]:
    """Build the tokenizer's output by hand: [CLS] A [SEP], or a pair."""
    tokens, types = [1], [0]
    for number, text in enumerate(texts):
        words = [4 if word == "[MASK]" else int(word[1:]) for word in text.split()]
        tokens += [*words, 2]
        types += [number] * (len(words) + 1)
    return {"input_ids": torch.tensor([tokens]), "token_type_ids": torch.tensor([types])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("other_packages")


@pytest.fixture(scope="module")
def originals(folder):
    """Save the models of MODELS with their tokenizer."""
    saved_models = {}
    for seed, (name, (head, fields)) in enumerate(MODELS.items()):
        model = random_weights(CLASSES[head](DebertaExtConfig(**(SIZES | fields))), seed, std=0.25)
        saved_models[name] = model
        model.save_pretrained(folder / name)
        tokenizer = word_tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
        tokenizer.save_pretrained(folder / name)
    return saved_models


@pytest.fixture(scope="module")
def sentence_encoder(folder, originals):
    """Save a SentenceTransformer of two modules."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(folder / "encoder"))
    model = SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu")
    model.save_pretrained(str(folder / "sentence_encoder"))
    return model


@pytest.fixture(scope="module", params=["with the package", "without the package"])
def results(request, folder, originals, sentence_encoder):
    if request.param == "with the package":
        return worker.run(folder)
    job = dict(name="all", kind="function", file=worker.__file__, function="run", source=str(folder))
    answers = run_without_package([job], folder)["all"]
    assert "error" not in answers, answers
    return answers


@pytest.fixture
def outputs_of(originals):
    """Return outputs_of(name, *texts): a model's outputs for one text or pair."""

    @torch.no_grad()
    def compute(name, *texts):
        return originals[name](**ids(*texts))

    return compute


def test_fill_mask_gives_the_likeliest_words(results, outputs_of):
    found = results["pipelines"]["fill-mask"]
    expected = outputs_of("masked_lm", "w7 [MASK] w9 w12").logits[0, 2].softmax(-1).topk(4)
    assert [entry["token"] for entry in found] == expected.indices.tolist()
    assert [entry["score"] for entry in found] == pytest.approx(expected.values.tolist(), abs=1e-5)
    assert found[0]["sequence"].split()[0] == "w7"


def test_text_classification_scores_texts_and_pairs(results, outputs_of):
    answers = results["pipelines"]
    pair = answers["text-classification of a pair"]
    calls = [(("w7 w8", "w9 w12"), pair[0] if isinstance(pair[0], list) else pair)]
    for key in ("text-classification", "text-classification in a batch"):
        calls += [((text,), answer) for text, answer in zip(worker.WORDS, answers[key], strict=True)]
    for texts, answer in calls:
        probabilities = outputs_of("classifier", *texts).logits[0].softmax(-1)
        expected = dict(zip(ENTAILMENT["label2id"], probabilities.tolist(), strict=True))
        assert {entry["label"]: entry["score"] for entry in answer} == pytest.approx(expected, abs=1e-5)


def test_token_classification_labels_words(results, outputs_of):
    words = worker.WORDS[0].split()
    likely = outputs_of("tagger", worker.WORDS[0]).logits[0, 1:-1].softmax(-1)
    labels = [ENTITIES["id2label"][index] for index in likely.argmax(-1).tolist()]
    found = results["pipelines"]["token-classification"]
    tagged = [(word, label) for word, label in zip(words, labels, strict=True) if label != "O"]
    assert tagged and [(entry["word"], entry["entity"]) for entry in found] == tagged
    for entry in found:
        assert worker.WORDS[0][entry["start"] : entry["end"]] == entry["word"]
        assert entry["score"] == pytest.approx(likely[words.index(entry["word"])].max().item(), abs=1e-5)


def test_zero_shot_classification_reads_entailment(results, outputs_of):
    scores = [outputs_of("classifier", worker.WORDS[0], f"w25 {label}").logits[0, 1].item() for label in worker.LABELS]
    expected = dict(zip(worker.LABELS, torch.tensor(scores).softmax(0).tolist(), strict=True))
    found = results["pipelines"]["zero-shot-classification"]
    assert dict(zip(found["labels"], found["scores"], strict=True)) == pytest.approx(expected, abs=1e-5)


def test_feature_extraction_gives_the_last_states(results, outputs_of):
    for text, found in zip(worker.WORDS[1:], results["pipelines"]["feature-extraction"], strict=True):
        assert torch.allclose(torch.tensor(found), outputs_of("encoder", text).last_hidden_state, atol=1e-5)


def test_cross_encoder_scores_pairs_as_the_model_does(results, outputs_of):
    scores = results["sentence_transformers"]
    for index, pair in enumerate(worker.PAIRS):
        one, three = (outputs_of(name, *pair).logits[0] for name in ("scorer", "classifier"))
        # One label: a value between 0 and 1; several labels: logits.
        assert torch.allclose(scores["scorer"][index], one.sigmoid()[0], atol=1e-5)
        assert torch.allclose(scores["classifier"][index], three, atol=1e-5)
    assert scores["scorer"].std() > 1e-2 and scores["classifier"].std() > 1e-2


@pytest.mark.usefixtures("originals")
def test_cross_encoder_trains_a_step(folder, tmp_path):
    from sentence_transformers import CrossEncoder

    encoder = CrossEncoder(str(folder / "scorer"), trust_remote_code=True, device="cpu")
    before = encoder.predict(worker.PAIRS)
    logits = encoder(encoder.preprocess(worker.PAIRS))["scores"]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.flatten(), torch.tensor([1.0, 0.0, 1.0]))
    loss.backward()
    torch.optim.SGD(encoder.parameters(), lr=0.1).step()
    after = encoder.predict(worker.PAIRS)
    assert abs(after - before).max() > 1e-4
    encoder.save_pretrained(str(tmp_path / "again"))
    again = CrossEncoder(str(tmp_path / "again"), trust_remote_code=True, device="cpu")
    assert abs(again.predict(worker.PAIRS) - after).max() < 1e-6
    # The saved folder has our code and auto_map.
    CLASSES["sequence-classification"].from_pretrained(tmp_path / "again")
    assert {"modeling_deberta_ext.py", "config_sentence_transformers.json"} <= {*os.listdir(tmp_path / "again")}


@pytest.mark.parametrize("name", ["encoder", "sentence_encoder"])
def test_sentence_transformer_gives_the_mean_of_real_tokens(name, results, outputs_of):
    """From a plain folder, to which it adds mean pooling, and from a folder that it saved."""
    embeddings = results["sentence_transformers"]
    for index, text in enumerate(worker.WORDS):
        expected = outputs_of("encoder", text).last_hidden_state[0].mean(0)
        assert torch.allclose(embeddings[name][index], expected, atol=1e-5)
        assert torch.allclose(embeddings[f"{name}, one by one"][index], expected, atol=1e-5)
    assert embeddings[name].std(0).min() > 1e-3

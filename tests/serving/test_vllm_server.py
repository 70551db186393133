# SPDX-License-Identifier: Apache-2.0
"""vLLM with the plugin as a server: what clients get over HTTP is what transformers computes, one text at a time."""

import subprocess
import sys

import pytest
import torch
import transformers

from hf_deberta_ext import DebertaExtForSequenceClassification
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

pytest.importorskip("vllm", reason="needs an environment with vLLM: tests/serving/constraints.txt")
from vllm_server import FIELDS, ON_CPU, PAIRS, TOKENIZER, logits_one_by_one, post, scores_of, server

pytestmark = pytest.mark.serve

LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}
# As in microsoft/deberta-base, whose keys and values of content have one fused weight.
V1 = dict(
    hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128, relative_attention=True,
    pos_att_type="c2p|p2c", max_relative_positions=-1, position_biased_input=False, type_vocab_size=0, pooler_hidden_size=64,
    max_position_embeddings=512, layer_norm_eps=1e-7, initializer_range=0.06, pooler_hidden_act="gelu",
)  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of each kind with random weights, its tokenizer, and the folder of their folders."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    common = FIELDS | dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    types = dict(type_vocab_size=2, conv_kernel_size=3, conv_act="gelu", position_biased_input=True, num_labels=1)
    torch.manual_seed(0)
    made = {
        "rank": transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**common | types)),
        "nli": transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**common, id2label=LABELS)),
        "ner": transformers.DebertaV2ForTokenClassification(transformers.DebertaV2Config(**common, num_labels=5)),
        "embed": transformers.DebertaV2Model(transformers.DebertaV2Config(**common)),
    }
    for name, model in made.items():
        model.eval().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    DebertaExtForSequenceClassification.from_pretrained(folder / "nli").save_pretrained(folder / "nli")
    tokenizers = dict.fromkeys(made, tokenizer)
    tokenizers["v1"] = train_byte_level_bpe([" ".join(pair) for pair in PAIRS], 600, show_progress=False)
    sizes = dict(vocab_size=len(tokenizers["v1"]), pad_token_id=tokenizers["v1"].pad_token_id)
    made["v1"] = transformers.DebertaForSequenceClassification(
        transformers.DebertaConfig(**V1, **sizes, id2label=LABELS)
    ).eval()
    tokenizers["v1"].save_pretrained(folder / "v1")
    # A .bin file, as Microsoft published.
    made["v1"].config.architectures = ["DebertaForSequenceClassification"]
    made["v1"].config.save_pretrained(folder / "v1")
    torch.save(made["v1"].state_dict(), folder / "v1/pytorch_model.bin")
    return folder, made, tokenizers


def test_a_reranker(models):
    """A model with token types, a convolution and absolute positions, which /score and /rerank can carry."""
    folder, made, tokenizers = models
    expected = logits_one_by_one(made["rank"], tokenizers["rank"], PAIRS)[:, 0].sigmoid()

    with server(folder / "rank") as client:
        assert (scores_of(client.base_url, PAIRS) - expected).abs().max() < 1e-5
        query, documents = PAIRS[0][0], [second for _, second in PAIRS[:5]]
        ranked = post(client, "/rerank", query=query, documents=documents)["results"]
        pairs = [(query, document) for document in documents]
        order = logits_one_by_one(made["rank"], tokenizers["rank"], pairs)[:, 0].sort(descending=True)
        assert [row["index"] for row in ranked] == order.indices.tolist()
        long = "the cat", "dog " * 700
        refused = client.post("/score", json={"model": "m", "text_1": long[0], "text_2": long[1]})
        assert refused.status_code == 400 and "512" in refused.text
        kept = post(client, "/score", text_1=long[0], text_2=long[1], truncate_prompt_tokens=-1)["data"][0]["score"]
        truncated = logits_one_by_one(made["rank"], tokenizers["rank"], [long], truncation=True, max_length=512)
        assert kept == pytest.approx(truncated[0, 0].sigmoid().item(), abs=1e-5)
        assert client.post("/score", json={"model": "m"}).status_code in (400, 422)


@pytest.mark.parametrize("name", ["nli", "v1"])
def test_an_nli_model(models, name):
    """Texts by /classify, pairs by the plugin deberta_pairs."""
    folder, made, tokenizers = models
    model, tokenizer = made[name], tokenizers[name]
    texts, pairs = [second for _, second in PAIRS[:40]], [list(pair) for pair in PAIRS[:40]]
    expected = {
        "texts": logits_one_by_one(model, tokenizer, [(text,) for text in texts]).softmax(-1),
        "pairs": logits_one_by_one(model, tokenizer, pairs).softmax(-1),
    }
    with server(folder / name, "--io-processor-plugin", "deberta_pairs") as client:
        answers = {
            "texts": post(client, "/classify", input=texts)["data"],
            "pairs": post(client, "/pooling", data={"pairs": pairs})["data"],
        }
        for kind, rows in answers.items():
            assert (torch.tensor([row["probs"] for row in rows]) - expected[kind]).abs().max() < 1e-5
            assert [row["label"] for row in rows] == [LABELS[n] for n in expected[kind].argmax(-1).tolist()]
        for data, named in [
            ({"pairs": ["x", "y"]}, "expected"),
            ({"pairs": [["x", "dog " * 700]]}, "at most 512 tokens"),
            ({"pairs": [["x", "y"]], "truncate": "no"}, "must be true or false, got 'no'"),
        ]:
            refused = client.post("/pooling", json={"model": "m", "data": data})
            assert refused.status_code == 400 and named in refused.text
        long = ["x", "dog " * 700]
        (kept,) = post(client, "/pooling", data={"pairs": [long], "truncate": True})["data"]
        truncated = logits_one_by_one(model, tokenizer, [long], truncation=True, max_length=512).softmax(-1)
        assert kept["probs"] == pytest.approx(truncated[0].tolist(), abs=1e-5)


def test_a_token_classifier(models):
    folder, made, tokenizers = models
    texts = [second for _, second in PAIRS[:10]]
    with server(folder / "ner") as client:
        rows = post(client, "/pooling", input=texts, task="token_classify")["data"]
    for row, part in zip(rows, texts, strict=True):
        expected = logits_one_by_one(made["ner"], tokenizers["ner"], [(part,)])[0].softmax(-1)
        assert (torch.tensor(row["data"]) - expected).abs().max() < 1e-5


def test_an_encoder(models):
    folder, made, tokenizers = models
    texts = [second for _, second in PAIRS[:10]]
    with server(folder / "embed") as client:
        rows = post(client, "/v1/embeddings", input=texts)["data"]
    for row, part in zip(rows, texts, strict=True):
        with torch.no_grad():
            mean = made["embed"](**tokenizers["embed"](part, return_tensors="pt")).last_hidden_state[0].mean(0)
        assert (torch.tensor(row["embedding"]) - torch.nn.functional.normalize(mean, dim=0)).abs().max() < 1e-5


def test_options_that_are_not_supported_end_the_server_with_their_names(models):
    folder, _, _ = models
    code = "from vllm import LLM; LLM({!r}, runner='pooling', dtype='float32', enable_lora=True)".format(str(folder / "nli"))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ON_CPU)
    assert ended.returncode and "lora" in (ended.stdout + ended.stderr).lower()

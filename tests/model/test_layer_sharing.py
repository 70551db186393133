# SPDX-License-Identifier: Apache-2.0
"""ALBERT's cross-layer sharing and factorised embeddings."""

import pytest
import torch
from safetensors.torch import load_file

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtModel

SHARED = ["all", "ffn", "attention"]


@pytest.mark.parametrize("share", SHARED)
def test_shared_weights_are_counted_and_stored_once(share, tiny_config, tmp_path):
    model, plain = DebertaExtModel(tiny_config(share_layers=share)), DebertaExtModel(tiny_config())
    layer = model.encoder.layer[0]
    attention = sum(p.numel() for p in layer.attention.parameters())
    ffn = sum(p.numel() for p in layer.parameters()) - attention
    saved = 2 * {"all": attention + ffn, "ffn": ffn, "attention": attention}[share]
    assert model.num_parameters() == plain.num_parameters() - saved
    assert len(model.state_dict()) < len(plain.state_dict())
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()
    loaded, info = DebertaExtModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.num_parameters() == model.num_parameters()


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
@pytest.mark.parametrize("share", SHARED)
def test_shared_equals_an_unshared_model_with_equal_weights(share, kind, tiny_config, shake, batch):
    shared = shake(DebertaExtForMaskedLM(tiny_config(kind, share_layers=share)))
    plain = DebertaExtForMaskedLM(tiny_config(kind)).eval()
    weights = shared.state_dict()
    for key in plain.state_dict():
        if key not in weights:
            parts = key.split(".")
            parts[parts.index("layer") + 1] = "0"
            weights[key] = weights[".".join(parts)]
    plain.load_state_dict(weights)
    ids, mask = batch(2, 20, [20, 11])
    results = []
    for model in (shared, plain):
        logits = model(ids, attention_mask=mask).logits
        logits.square().mean().backward()
        results.append(logits)
    assert torch.equal(*results)
    name = "output.dense.weight" if share == "ffn" else "attention.self.value_proj.weight"
    grads = [plain.get_parameter(f"deberta.encoder.layer.{index}.{name}").grad for index in range(3)]
    assert torch.allclose(shared.get_parameter(f"deberta.encoder.layer.0.{name}").grad, sum(grads), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", ["none", "ffn"])
def test_a_shortened_list_of_layers_runs_each_of_them_once(share, tiny_config, shake, batch):
    """BERTScore cuts `encoder.layer` to the layers that it reads."""
    model = shake(DebertaExtModel(tiny_config(share_layers=share)))
    ids, _ = batch(1, 9, [9])
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True).hidden_states[2]
        model.encoder.layer = torch.nn.ModuleList(model.encoder.layer[:2])
        assert torch.allclose(model(ids).last_hidden_state, expected, atol=1e-6)


def test_factorised_embeddings_have_small_tables_and_a_tied_decoder_of_their_width(tiny_config, shake, batch):
    model = shake(DebertaExtForMaskedLM(tiny_config(embedding_size=8)))
    assert model.deberta.embeddings.word_embeddings.weight.shape == (64, 8)
    assert model.deberta.embeddings.embed_proj.weight.shape == (32, 8)
    assert model.lm_predictions.lm_head.decoder.weight is model.deberta.embeddings.word_embeddings.weight
    ids, mask = batch(2, 20, [20, 11])
    assert model(ids, attention_mask=mask).logits.shape == (2, 20, 64)

# SPDX-License-Identifier: Apache-2.0
"""Half precision and autocast: no dtype error, no overflow, errors of the size that the format allows."""

import pytest
import torch

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtModel

KINDS = ["v1", "v2", "v3"]


def inflate(model, factor):
    """Queries and keys so large that q·k before scaling exceeds what float16 can hold (65504)."""
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query_proj.weight.mul_(factor)
            layer.attention.self.key_proj.weight.mul_(factor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_parameters_run_forward_and_backward_without_overflow(kind, dtype, tiny_config, shake, batch):
    model = shake(DebertaExtModel(tiny_config(kind)))
    inflate(model, 150.0)
    ids, mask = batch(2, 30, [30, 17])
    embedded = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[0]
    attention = model.encoder.layer[0].attention.self
    q, k = attention.query_proj(embedded), attention.key_proj(embedded)
    q, k = attention.split_heads(q), attention.split_heads(k)
    assert (q @ k.transpose(-1, -2)).abs().max() > 65504
    half = model.to(dtype)
    out = half(ids, attention_mask=mask).last_hidden_state
    assert out.dtype == dtype and torch.isfinite(out).all()
    out.float().square().mean().backward()
    for name, parameter in half.named_parameters():
        if parameter.requires_grad:
            assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_autocast_trains_and_agrees_with_float32(kind, tiny_config, shake, batch):
    """transformers' v1 crashes here: its query bias is float32 and its scores are not."""
    model = shake(DebertaExtModel(tiny_config(kind)), std=0.08)
    ids, mask = batch(2, 30, [30, 17])
    expected = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    with torch.autocast("cpu", torch.bfloat16):
        out = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    assert torch.nn.functional.cosine_similarity(out.float(), expected, dim=-1).min() > 0.99
    out.float().square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_agrees_with_float64(kind, dtype, tiny_config, shake, batch):
    model = shake(DebertaExtModel(tiny_config(kind)), std=0.08)
    ids, mask = batch(2, 30, [30, 17])
    with torch.no_grad():
        half = model.to(dtype)(ids, attention_mask=mask).last_hidden_state[mask.bool()].double()
        exact = model.double()(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    # Each of three layers rounds its stream about six times to 8 (or 11) bits.
    bound = 18 * torch.finfo(dtype).eps
    assert ((half - exact).norm(dim=-1) / exact.norm(dim=-1)).max() < bound


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_embeds_of_another_dtype_are_taken(kind, tiny_config, batch):
    model = DebertaExtModel(tiny_config(kind)).to(torch.bfloat16)
    assert model(inputs_embeds=torch.randn(1, 5, 32)).last_hidden_state.dtype == torch.bfloat16


def test_loss_is_float32_in_half_precision(tiny_config, batch):
    ids, mask = batch(2, 12, [12, 9])
    model = DebertaExtForMaskedLM(tiny_config()).to(torch.bfloat16)
    assert model(ids, attention_mask=mask, labels=ids).loss.dtype == torch.float32

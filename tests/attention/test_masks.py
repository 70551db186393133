# SPDX-License-Identifier: Apache-2.0
"""Masks, padding, inputs and dtypes of the base model."""

import pytest
import torch
from rounding import equal_outputs

from hf_deberta_ext import DebertaExtModel


@pytest.fixture(params=["v1", "v2", "v3"])
def model(request, tiny_config, shake):
    return shake(DebertaExtModel(tiny_config(request.param)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.bfloat16])
def test_masks_of_any_dtype_and_of_two_to_four_dimensions_give_the_same(model, dtype, batch, relative_error):
    ids, mask = batch(2, 20, [20, 11])
    square = mask[:, None] * mask[:, :, None]
    heads = square[:, None].expand(2, 4, 20, 20)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        assert torch.equal(model(ids, attention_mask=mask.to(dtype)).last_hidden_state, expected)
        for full in (square, square[:, None], mask[:, None, None], heads):
            states = model(ids, attention_mask=full.to(dtype)).last_hidden_state
            assert relative_error("mask shapes", states, expected, mask.bool()) < 1e-5, full.shape


def test_fully_masked_rows_give_finite_outputs_and_gradients(model, batch):
    ids, mask = batch(3, 12, [12, 0, 5])
    out = model.train()(ids, attention_mask=mask).last_hidden_state
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


def test_inputs_embeds_equal_input_ids_and_outputs_carry_states_and_probabilities(model, batch):
    ids, mask = batch(2, 20, [20, 11])
    with torch.no_grad():
        embeds = model.get_input_embeddings()(ids)
        expected = model(ids, attention_mask=mask).last_hidden_state
        assert torch.equal(model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state, expected)
        out = model(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        as_tuple = model(ids, attention_mask=mask, output_hidden_states=True, return_dict=False)
    assert len(out.hidden_states) == 4 and len(out.attentions) == 3
    assert out.attentions[0].shape == (2, 4, 20, 20)
    assert torch.allclose(out.attentions[1].sum(-1), torch.ones(2, 4, 20))
    assert not out.attentions[2][1, :, :, 11:].any()
    real = mask.bool()
    assert torch.allclose(as_tuple[0][real], out.last_hidden_state[real], atol=1e-5) and len(as_tuple[1]) == 4


def test_absolute_input_positions_end_with_a_message_and_can_be_extended_and_saved(tiny_config, shake, batch, tmp_path):
    model = shake(DebertaExtModel(tiny_config("v3", position_biased_input=True)))
    ids, _ = batch(1, 65)
    with torch.no_grad():
        expected = model(ids[:, :64]).last_hidden_state
        with pytest.raises(ValueError, match=r"max_position_embeddings = 64.*got 65; .*extend_position_embeddings\(65\)"):
            model(ids)
        model.extend_position_embeddings(100)
        assert torch.equal(model(ids[:, :64]).last_hidden_state, expected)
        longer = model(ids).last_hidden_state
        assert longer.shape == (1, 65, 32)
        model.save_pretrained(tmp_path)
        assert equal_outputs(DebertaExtModel.from_pretrained(tmp_path)(ids).last_hidden_state, longer)
    assert model.config.max_position_embeddings == 100 and model.config.relative_distance == 64
    with pytest.raises(ValueError, match="length must be greater than 100"):
        model.extend_position_embeddings(100)
    with pytest.raises(ValueError, match="no absolute position table"):
        DebertaExtModel(tiny_config("v3", emd_layers=1, emd_input="hidden")).extend_position_embeddings(100)


IDS = torch.ones(2, 4).long()
WIDE = torch.zeros(2, 4, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(input_ids=None), "either input_ids or inputs_embeds"),
        (dict(inputs_embeds=WIDE), "either input_ids or inputs_embeds"),
        (dict(attention_mask=torch.ones(2, 5)), r"\[2, 4\], .* got \[2, 5\]"),
        (dict(attention_mask=torch.ones(2, 4, 5)), r"got \[2, 4, 5\]"),
        (dict(attention_mask=torch.ones(4)), r"got \[4\]"),
        (dict(attention_mask=torch.full((2, 1, 4, 4), -1e9)), "must be 1 where attention is allowed"),
        (dict(attention_mask=IDS * 2), "attention_mask must be 1 .*, got 2"),
        (dict(attention_mask=IDS / 2), "attention_mask must be 1 .*, got 0.5"),
        (dict(attention_mask=IDS * float("nan")), "attention_mask must be 1 .*, got nan"),
        (dict(document_ids=IDS, attention_mask=torch.ones(2, 5)), r"attention_mask must have shape .* got \[2, 5\]"),
        (dict(document_ids=IDS, attention_mask=-IDS), "attention_mask must be 1 .*, got -1"),
        (dict(document_ids=IDS.to(torch.complex64)), "document_ids must be integers, got torch.complex64"),
    ],
    ids=lambda x: x[:60] if isinstance(x, str) else "",
)
@pytest.mark.parametrize("unpadding", [True, False])
def test_wrong_masks_are_refused(unpadding, arguments, message, tiny_config):
    """Check that an additive mask, or document numbers as a mask, are not silently read as another mask."""
    model = DebertaExtModel(tiny_config("v3", position_biased_input=True, type_vocab_size=2))
    model.set_unpadding(unpadding)
    with pytest.raises(ValueError, match=message):
        model(**(dict(input_ids=IDS) | arguments))

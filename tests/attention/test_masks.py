# SPDX-License-Identifier: Apache-2.0
"""Masks, padding, inputs and dtypes of the base model."""

import pytest
import torch
from rounding import equal_outputs

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtModel

KINDS = ["v1", "v2", "v3"]


@pytest.fixture(params=KINDS)
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
        with pytest.raises(ValueError, match=r"65 tokens.*max_position_embeddings = 64; .*extend_position_embeddings\(65\)"):
            model(ids)
        model.extend_position_embeddings(100)
        assert torch.equal(model(ids[:, :64]).last_hidden_state, expected)
        longer = model(ids).last_hidden_state
        assert longer.shape == (1, 65, 32)
        model.save_pretrained(tmp_path)
        assert equal_outputs(DebertaExtModel.from_pretrained(tmp_path)(ids).last_hidden_state, longer)
    assert model.config.max_position_embeddings == 100 and model.config.relative_distance == 64
    with pytest.raises(ValueError, match="has 100 rows, so 100 would not extend it"):
        model.extend_position_embeddings(100)
    with pytest.raises(ValueError, match="no absolute position table"):
        DebertaExtModel(tiny_config("v3", emd_layers=1, emd_input="hidden")).extend_position_embeddings(100)


def test_relative_positions_alone_take_inputs_beyond_the_table(tiny_config, shake, batch):
    model = shake(DebertaExtModel(tiny_config("v3")))
    ids, _ = batch(1, 130)
    with torch.no_grad():
        assert torch.isfinite(model(ids).last_hidden_state).all()


# Wrong inputs, in every spelling that the fuzzer found.

IDS = torch.ones(2, 4).long()
WIDE = torch.zeros(2, 4, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(input_ids=None), "either input_ids or inputs_embeds"),
        (dict(input_ids=IDS, inputs_embeds=WIDE), "either input_ids or inputs_embeds"),
        (dict(attention_mask=torch.ones(2, 5)), r"\[2, 4\], .* got \[2, 5\]"),
        (dict(attention_mask=torch.ones(2, 4, 5)), r"got \[2, 4, 5\]"),
        (dict(attention_mask=torch.ones(4)), r"got \[4\]"),
        (dict(attention_mask=torch.full((2, 1, 4, 4), -1e9)), "negative values; give 1 where attention is allowed"),
        (dict(input_ids=-IDS), r"input_ids must be in \[0, 64\), got -1; vocab_size = 64"),
        (dict(input_ids=IDS * 64), r"input_ids must be in \[0, 64\), got 64; vocab_size = 64"),
        (dict(input_ids=IDS.int() * 70), r"input_ids must be in \[0, 64\), got 70"),
        (dict(input_ids=IDS.float()), "input_ids must be int64 or int32, got torch.float32"),
        (dict(input_ids=IDS.bool()), "input_ids must be int64 or int32, got torch.bool"),
        (dict(input_ids=IDS.short()), "input_ids must be int64 or int32, got torch.int16"),
        (dict(input_ids=IDS[0]), r"input_ids must have shape \[batch, length\], got \[4\]"),
        (dict(input_ids=IDS[None]), r"input_ids must have shape \[batch, length\], got \[1, 2, 4\]"),
        (dict(input_ids=IDS[:0]), r"input_ids of shape \[0, 4\] holds nothing"),
        (dict(input_ids=IDS[:, :0]), r"input_ids of shape \[2, 0\] holds nothing"),
        (dict(inputs_embeds=WIDE[..., :1]), r"inputs_embeds must have shape .*embedding_size = 32\], got \[2, 4, 1\]"),
        (dict(inputs_embeds=WIDE[0]), r"inputs_embeds must have shape .* got \[4, 32\]"),
        (dict(inputs_embeds=WIDE.long()), "inputs_embeds must be of a floating dtype, got torch.int64"),
        (dict(inputs_embeds=WIDE * 1j), "inputs_embeds must be of a floating dtype, got torch.complex64"),
        (dict(token_type_ids=IDS * 2), r"token_type_ids must be in \[0, 2\), got 2; type_vocab_size = 2"),
        (dict(token_type_ids=IDS[0]), r"token_type_ids must have shape \[1 or B, 4\], got \[4\]"),
        (dict(token_type_ids=IDS[:, :1]), r"token_type_ids must have shape \[1 or B, 4\], got \[2, 1\]"),
        (dict(position_ids=IDS * 64), r"position_ids must be in \[0, 64\), got 64; max_position_embeddings = 64"),
        (dict(position_ids=-IDS), r"position_ids must be in \[0, 64\), got -1"),
        (dict(position_ids=IDS[0]), r"position_ids must have shape \[1 or B, 4\], got \[4\]"),
        (dict(position_ids=IDS.float()), "position_ids must be int64 or int32, got torch.float32"),
        (dict(attention_mask=IDS * 2), "attention_mask has the value 2; give 1 where attention is allowed"),
        (dict(attention_mask=-IDS), "attention_mask has negative values; give 1"),
        (dict(attention_mask=IDS / 2), "attention_mask has the value 0.5"),
        (dict(attention_mask=IDS * float("nan")), "attention_mask has the value nan"),
        (dict(attention_mask=IDS * 1j), "attention_mask must be of int, float or bool, got torch.complex64"),
        (dict(attention_mask=torch.ones(2, 3, 4, 4)), r"\[2, 3, 4, 4\] must have 1 or 4 heads, got 3"),
        (dict(document_ids=IDS, attention_mask=torch.ones(2, 5)), r"attention_mask must have shape .* got \[2, 5\]"),
        (dict(document_ids=IDS, attention_mask=-IDS), "attention_mask has negative values"),
        # NotImplementedError: "lt_cpu" not implemented for 'UInt16'
        *(
            (dict(document_ids=IDS.to(dtype)), f"document_ids must be integers, got {dtype}")
            for dtype in (torch.uint16, torch.uint64, torch.complex64, torch.float8_e5m2)
        ),
    ],
    ids=lambda x: x[:60] if isinstance(x, str) else "",
)
@pytest.mark.parametrize("unpadding", [True, False])
def test_wrong_tensors_are_refused_by_name_and_value(unpadding, arguments, message, tiny_config):
    """IndexError, RuntimeError and ZeroDivisionError from somewhere inside, or no error: a mask of -1 was read as a mask of
    1, one of 3 heads was taken for 4, and embeddings of width 1 and token types of one row or column were repeated."""
    model = DebertaExtModel(tiny_config("v3", position_biased_input=True, type_vocab_size=2))
    model.set_unpadding(unpadding)
    if not {"input_ids", "inputs_embeds"} & {*arguments}:
        arguments = dict(input_ids=IDS) | arguments
    with pytest.raises(ValueError, match=message):
        model(**arguments)


TENSORS = ("input_ids", "token_type_ids", "position_ids", "attention_mask", "document_ids")
NO_SWITCHES = (0.5, "no", [], torch.ones(2), torch.tensor(True), [True], 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (name, value, f"torch.Tensor, got {type(value).__name__}")
            for name in TENSORS
            for value in ([[1] * 4] * 2, "text", 1)
        ),
        *((name, IDS.to_sparse(), r"a dense tensor, got torch.sparse_coo; .*to_dense\(\)") for name in TENSORS),
        ("output_attentions", "no", "True, False or None, got 'no'"),
        *(("output_hidden_states", value, "True, False or None, got") for value in NO_SWITCHES),
    ],
    ids=str,
)
@pytest.mark.parametrize("build", [DebertaExtModel, DebertaExtForMaskedLM])
def test_values_of_another_type_are_refused_by_name(build, name, value, message, tiny_config):
    """AttributeError, NotImplementedError and three pages, RuntimeError; any text and a tensor of one counted as True."""
    model = build(tiny_config("v3", position_biased_input=True, type_vocab_size=2))
    with pytest.raises(TypeError, match=f"{name} must be (a )?{message}"):
        model(**(dict(input_ids=IDS) | {name: value}))


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        *(("set_unpadding", value, "unpadding must be True, False or None, got") for value in NO_SWITCHES[:4]),
        *(
            ("set_attn_implementation", x, "attn_implementation must be a name or None, got")
            for x in (5, ["sdpa"], 2.5, True)
        ),
        *(("extend_position_embeddings", x, f"must be an integer, got {x!r}") for x in ("100", 100.5, None, True)),
    ],
    ids=str,
)
def test_values_of_another_type_are_refused_by_methods(method, value, message, tiny_config):
    """AttributeError and TypeError from somewhere inside; True counted as 1, everything but None and False meant always."""
    with pytest.raises(TypeError, match=message):
        getattr(DebertaExtForMaskedLM(tiny_config()), method)(value)


@pytest.mark.parametrize("types", [IDS[0], IDS[:, :1], IDS.float()], ids=["one row", "one column", "float"])
def test_token_types_that_nothing_reads_are_looked_at_as_well(types, tiny_config):
    """As positions are: a batch whose columns do not fit is wrong whatever the model reads of it. Any number is fine."""
    model = DebertaExtModel(tiny_config("v3", type_vocab_size=0)).eval()
    with pytest.raises(ValueError, match=r"token_type_ids must (have shape \[1 or B, 4\]|be int64 or int32)"):
        model(IDS, token_type_ids=types)
    for name in ("token_type_ids", "position_ids"):
        assert torch.equal(model(IDS, **{name: IDS * 900})[0], model(IDS)[0])


def test_a_larger_table_of_the_users_counts_and_unpadding_is_switched_off_by_0(tiny_config):
    model = DebertaExtModel(tiny_config("v3")).eval()
    model.set_unpadding(0)
    assert model(IDS, attention_mask=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])).last_hidden_state[1, 3].any()
    model.set_input_embeddings(torch.nn.Embedding(100, 32))
    assert model(IDS * 99).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match=r"in \[0, 100\), got 100"):
        model(IDS * 100)


def test_the_decoder_alone_reads_positions_where_the_input_does_not(tiny_config):
    model = DebertaExtForMaskedLM(tiny_config("v3"))
    with pytest.raises(ValueError, match=r"position_ids must be in \[0, 64\), got 64"):
        model(IDS, position_ids=IDS * 64)
    with pytest.raises(ValueError, match=r"position_ids must have shape \[1 or B, 4\], got \[2, 9\]"):
        model(IDS, position_ids=torch.zeros(2, 9).long(), attention_mask=torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]))

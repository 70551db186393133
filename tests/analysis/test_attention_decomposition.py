# SPDX-License-Identifier: Apache-2.0
"""Parts of the attention logits and the position profile: by hand, against the model, for every kind of model."""

import pytest
import torch

from hf_deberta_ext import DebertaExtConfig, DebertaExtModel
from hf_deberta_ext.analysis import attention_decomposition
from hf_deberta_ext.analysis.attention_decomposition import attention_parts, position_profile

IDS = torch.tensor([[1, 9, 7, 9, 30, 41, 9, 2]])


@pytest.fixture
def by_hand():
    """Build one head of size 2 with identity projections. Tokens 1 and 2 are normalised to (1, -1) and (-1, 1)."""
    config = DebertaExtConfig(
        vocab_size=3, hidden_size=2, num_hidden_layers=1, num_attention_heads=1, intermediate_size=2, norm_rel_ebd="none",
        max_position_embeddings=4, position_buckets=-1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = DebertaExtModel(config)
    attention = model.encoder.layer[0].attention.self
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[1:] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
        for module in (attention.query_proj, attention.key_proj):
            module.weight.copy_(torch.eye(2))
            module.bias.zero_()
        # Distances -4 ... 3 have rows 0 ... 7.
        model.encoder.rel_embeddings.weight.copy_(torch.stack([torch.arange(-4.0, 4.0), torch.zeros(8)], dim=1))
    return model


def test_parts_and_profile_by_hand(by_hand):
    parts = attention_parts(by_hand, torch.tensor([[1, 1, 2]]))
    scale = 6**-0.5  # s = 3 terms, d = 2
    torch.testing.assert_close(parts.c2c[0] / scale, torch.tensor([[2.0, 2, -2], [2, 2, -2], [-2, -2, 2]]))
    # Query i times i - j, and key j times i - j.
    torch.testing.assert_close(parts.c2p[0] / scale, torch.tensor([[0.0, -1, -2], [1, 0, -1], [-2, -1, 0]]))
    torch.testing.assert_close(parts.p2c[0] / scale, torch.tensor([[0.0, -1, 2], [1, 0, 1], [2, 1, 0]]))
    assert parts.p2p is None and parts.terms == ("c2p", "p2c") and parts.layer == 0
    expected = torch.tensor([[2.0, 0, -2], [4, 2, -2], [-2, -2, 2]]) * scale
    torch.testing.assert_close(parts.logits[0], expected)
    torch.testing.assert_close(parts.probabilities[0], expected.softmax(-1))
    # Two of three tokens are (1, -1), so their mean is (1/3, -1/3).
    profile = position_profile(by_hand, torch.tensor([[1, 1, 2]]), max_distance=2)
    assert profile.distances.tolist() == [-2, -1, 0, 1, 2] and profile.p2p is None
    expected = torch.tensor([[-2.0, -1, 0, 1, 2]]) / 3 * 6**-0.5
    for values, factor in ((profile.c2p, 1), (profile.p2c, 1), (profile.total, 2)):
        torch.testing.assert_close(values, factor * expected)
    # It extends beyond the text and is constant beyond the table; by default it ends where the table ends.
    values = position_profile(by_hand, torch.tensor([[1]]), max_distance=6).c2p[0] * 6**0.5
    torch.testing.assert_close(values, torch.tensor([-4.0, -4, -4, -3, -2, -1, 0, 1, 2, 3, 3, 3, 3]))
    assert position_profile(by_hand, torch.tensor([[1]])).distances.tolist() == [-3, -2, -1, 0, 1, 2, 3]


KINDS = {
    "v1": ("v1", {}),
    "v2 with its convolution": ("v2", {}),
    "v3": ("v3", {}),
    "c2p alone": ("v3", dict(pos_att_type="c2p")),
    "p2c alone": ("v1", dict(pos_att_type="p2c")),
    "p2p": ("v3", dict(pos_att_type="c2p|p2c|p2p")),
    "p2p with projections of its own": ("v1", dict(pos_att_type="p2p")),
    "no relative positions": ("v3", dict(relative_attention=False, position_biased_input=True)),
    "all layers shared": ("v3", dict(share_layers="all")),
    "attention shared": ("v3", dict(share_layers="attention")),
    "feed-forward shared": ("v3", dict(share_layers="ffn")),
}


@pytest.mark.parametrize("kind, fields", KINDS.values(), ids=KINDS)
def test_the_softmax_of_the_parts_is_the_models_attention(kind, fields, tiny_config, shake, relative_error):
    model = shake(DebertaExtModel(tiny_config(kind, **fields)))
    with torch.no_grad():
        attentions = model(IDS, output_attentions=True).attentions
    for layer, expected in enumerate(attentions):
        parts = attention_parts(model, IDS, layer=layer)
        assert relative_error("attention_parts", parts.probabilities, expected[0]) < 1e-5
        there = {name for name in ("c2p", "p2c", "p2p") if getattr(parts, name) is not None}
        assert there == {*parts.terms} == {*(model.config.pos_att_type if model.config.relative_attention else ())}
        assert parts.c2c.dtype == torch.float32 and parts.layer == layer
    assert len(attentions) == 3
    torch.testing.assert_close(attention_parts(model, IDS).probabilities, attention_parts(model, IDS, layer=2).probabilities)


@pytest.mark.parametrize("kind, terms", [("v1", "c2p|p2c"), ("v3", "c2p|p2c|p2p")])
def test_the_profile_is_the_mean_over_the_tokens(kind, terms, tiny_config, shake):
    """Mean of c2p over the queries and of p2c over the keys, each at the distance r from its own position."""
    model = shake(DebertaExtModel(tiny_config(kind, pos_att_type=terms)))
    N, reach = IDS.shape[1], 5
    profile = position_profile(model, IDS, layer=0, max_distance=reach)
    # In the middle of three copies, every token has a neighbour at each distance.
    parts = attention_parts(model, torch.cat([IDS, IDS, IDS], dim=1), layer=0)
    middle = torch.arange(N, 2 * N)
    for r in range(-reach, reach + 1):
        for name in parts.terms:
            queries, keys = (middle + r, middle) if name == "p2c" else (middle, middle - r)
            expected = getattr(parts, name)[:, queries, keys].mean(1)
            torch.testing.assert_close(getattr(profile, name)[:, r + reach], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(profile.total, sum(getattr(profile, name) for name in parts.terms))


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_at_an_end_is_left_out(side, tiny_config, shake):
    model = shake(DebertaExtModel(tiny_config("v2", position_biased_input=True, type_vocab_size=2)))
    types = (torch.arange(IDS.shape[1]) > 4).long()[None]
    expected = attention_parts(model, {"input_ids": IDS, "token_type_ids": types})
    gap = torch.zeros(1, 3, dtype=torch.long)

    def padded(values):
        return torch.cat([values, gap] if side == "right" else [gap, values], dim=1)

    inputs = {"input_ids": padded(IDS), "token_type_ids": padded(types), "attention_mask": padded(torch.ones_like(IDS))}
    parts = attention_parts(model, inputs)
    assert torch.equal(parts.logits, expected.logits)
    assert not torch.equal(parts.logits, attention_parts(model, IDS).logits)
    with torch.no_grad():
        whole = model(**inputs, output_attentions=True).attentions[-1][0]
    real = inputs["attention_mask"][0].bool()
    torch.testing.assert_close(whole[:, real][:, :, real], parts.probabilities, atol=1e-5, rtol=1e-4)


def test_a_model_of_remote_code_is_known_by_its_classes_names(tiny_config, shake, monkeypatch):
    """Remote code brings a second copy of the classes, for which isinstance is False."""
    model = shake(DebertaExtModel(tiny_config("v3")))
    expected = attention_parts(model, IDS)
    for name in ("DebertaExtModel", "DisentangledSelfAttention"):
        monkeypatch.setattr(attention_decomposition, name, type(name, (), {}))
    assert torch.equal(attention_parts(model, IDS).logits, expected.logits)


@pytest.mark.parametrize("function", [attention_parts, position_profile])
def test_the_model_is_left_as_it_was(function, tiny_config, shake):
    model = shake(DebertaExtModel(tiny_config("v3", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)))
    model.train()
    model.encoder.layer[1].eval()
    model.set_attn_implementation("sdpa")
    modes = [module.training for module in model.modules()]
    first, again = function(model, IDS), function(model, IDS)
    name = "logits" if function is attention_parts else "total"
    # Without dropout; otherwise they would differ.
    assert torch.equal(getattr(first, name), getattr(again, name)) and not getattr(first, name).requires_grad
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(IndexError):
        # An id that is not in the vocabulary.
        function(model, IDS + 1000)
    assert [module.training for module in model.modules()] == modes


ABSOLUTE = dict(relative_attention=False, position_biased_input=True)
SHORT = dict(position_biased_input=True, max_position_embeddings=6, position_buckets=4)
GAP = {"input_ids": IDS, "attention_mask": torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1]])}


@pytest.mark.parametrize(
    "function, fields, inputs, options, message",
    [
        (attention_parts, {}, IDS.repeat(2, 1), {}, r"must have shape \[1, N\], the tokens of one text, got \[2, 8\]"),
        (attention_parts, {}, GAP, {}, "padding only at the ends"),
        (attention_parts, {}, GAP | {"attention_mask": torch.ones(1, 7)}, {}, r"attention_mask must be \[1, 8\]"),
        (attention_parts, {}, IDS, dict(layer=3), "layer must be in 0 to 2, .*, got 3"),
        (position_profile, {}, IDS, dict(layer=-4), "layer must be in 0 to 2, .*, got -4"),
        (attention_parts, SHORT, IDS, {}, "the input must have at most max_position_embeddings"),
        (position_profile, ABSOLUTE, IDS, {}, "the model must have relative positions"),
    ],
)
def test_inputs_and_layers_that_do_not_fit_are_refused(function, fields, inputs, options, message, tiny_config):
    with pytest.raises(ValueError, match=message):
        function(DebertaExtModel(tiny_config("v3", **fields)), inputs, **options)

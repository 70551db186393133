# SPDX-License-Identifier: Apache-2.0
"""Outputs against transformers' DebertaModel and DebertaV2Model, float32, at valid positions, from a saved folder."""

import pytest
import torch
import transformers
from every_head import AUTO_CLASSES
from transformers import DebertaForMaskedLM, DebertaModel, DebertaV2ForMaskedLM, DebertaV2Model

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtModel

# The longest has all distances of those between.
LENGTHS = (1, 2, 7, 63, 700)
# A table that reaches beyond the longest of them.
TABLE = dict(max_position_embeddings=768)

OF_BOTH = {
    "released": {},
    "c2p": dict(pos_att_type="c2p"),
    "p2c": dict(pos_att_type="p2c"),
    "without terms": dict(pos_att_type=[]),
    "E != H": dict(embedding_size=16),
    "token types": dict(type_vocab_size=2),
    "biased input": dict(position_biased_input=True),
}
GRID = {f"{kind} {name}": (kind, fields) for kind in ("v1", "v3") for name, fields in OF_BOTH.items()} | {
    "v3 256 buckets": ("v3", dict(position_buckets=256)),
    "v3 no relative attention": ("v3", dict(relative_attention=False)),
    "v3 own projections": ("v3", dict(share_att_key=False)),
    "v3 own projections, c2p": ("v3", dict(share_att_key=False, pos_att_type="c2p")),
    "v3 own projections, p2c": ("v3", dict(share_att_key=False, pos_att_type="p2c")),
    "v3 without buckets": ("v3", dict(position_buckets=-1)),
    "v3 table not normalised": ("v3", dict(norm_rel_ebd="none")),
    "v2": ("v2", {}),
    "v2 without buckets": ("v2", dict(position_buckets=-1)),
    "v2 own projections": ("v2", dict(share_att_key=False)),
    "v2 grouped tanh conv": ("v2", dict(conv_groups=4, conv_act="tanh", conv_kernel_size=5)),
    "v2 conv and E != H": ("v2", dict(embedding_size=16, type_vocab_size=2)),
}


@pytest.mark.parametrize("name", GRID)
def test_model_equals_transformers(name, tmp_path, stock_config, shake, batch, relative_error):
    kind, overrides = GRID[name]
    config = stock_config(kind, **(TABLE | overrides))
    stock = shake((DebertaModel if kind == "v1" else DebertaV2Model)(config))
    stock.save_pretrained(tmp_path)
    model = DebertaExtModel.from_pretrained(tmp_path)
    assert not model.loading_report.initialised
    for N in LENGTHS:
        ids, mask = batch(2, N, [N, max(1, 2 * N // 3)])
        types = (torch.arange(N) > N // 2).long().expand(2, N) if config.type_vocab_size else None
        inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
        with torch.no_grad():
            ours, theirs = model(**inputs), stock(**inputs)
        for mine, reference in zip(ours.hidden_states, theirs.hidden_states, strict=True):
            assert relative_error("parity with transformers", mine, reference, mask.bool()) < 1e-5
        assert torch.equal(ours.last_hidden_state, ours.hidden_states[-1])


@pytest.mark.parametrize("kind", ["v1", "v3", "v2"])
def test_gradients_equal_those_of_transformers(kind, tmp_path, stock_config, shake, batch):
    config = stock_config(kind)
    stock = shake((DebertaModel if kind == "v1" else DebertaV2Model)(config)).double()
    stock.save_pretrained(tmp_path)
    model = DebertaExtModel.from_pretrained(tmp_path, dtype=torch.float64)
    ids, mask = batch(2, 40, [40, 23])
    weights = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(1)).double() * mask[..., None]
    for m in (stock, model):
        (m(ids, attention_mask=mask).last_hidden_state * weights).sum().backward()
    theirs = dict(stock.named_parameters())
    for name, parameter in model.named_parameters():
        if name not in theirs:
            continue
        reference = theirs[name].grad
        # Not closer: the stock scale is rounded to float32.
        assert (parameter.grad - reference).norm() <= 1e-6 * max(1, reference.norm()), name
        assert reference.abs().sum() > 0 or name.endswith(("key_proj.bias", "word_embeddings.weight")), name
    if kind == "v1":
        fused = stock.encoder.layer[1].attention.self.in_proj.weight.grad.view(4, 3, 8, 32)
        for index, projection in enumerate(("query_proj", "key_proj", "value_proj")):
            grad = getattr(model.encoder.layer[1].attention.self, projection).weight.grad.view(4, 8, 32)
            assert (grad - fused[:, index]).norm() <= 1e-6 * grad.norm()


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_dropout_is_in_the_places_of_transformers(kind, tmp_path, stock_config, shake, batch, relative_error, monkeypatch):
    """Replace dropout with rate p by a multiplication of every second number by 1 - p."""
    rates = dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3, pooler_dropout=0.4, cls_dropout=0.1)
    stock_class = getattr(transformers, f"Deberta{'V2' * (kind != 'v1')}ForSequenceClassification")
    stock = shake(stock_class(stock_config(kind, **rates)))
    stock.save_pretrained(tmp_path)
    model = AUTO_CLASSES["AutoModelForSequenceClassification"].from_pretrained(tmp_path, attn_implementation="eager")
    ids, _ = batch(2, 20)

    def scaled(x, p=0.5, training=True, inplace=False):
        return x * (1 - p * (torch.arange(x.shape[-1]) % 2)) if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", scaled)
    with torch.no_grad():
        before = model.deberta(ids).last_hidden_state
        for m in (model, stock):
            m.train()
        ours, theirs = (m.deberta(ids).last_hidden_state for m in (model, stock))
        logits = [m(ids).logits for m in (model, stock)]
    assert relative_error("dropout in the places of transformers", ours, theirs) < 1e-5
    assert torch.allclose(*logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours, before, atol=1e-2)


TASKS = ["SequenceClassification", "TokenClassification", "QuestionAnswering"]


@pytest.mark.parametrize(
    ("task", "kind"), [*((task, kind) for task in TASKS for kind in ("v1", "v2")), ("MultipleChoice", "v2")]
)
def test_head_equals_that_of_transformers(task, kind, tmp_path, stock_config, shake, batch, relative_error):
    theirs = getattr(transformers, f"Deberta{'V2' * (kind == 'v2')}For{task}")
    ours = AUTO_CLASSES[f"AutoModelFor{task}"]
    num_labels = 2 if "QuestionAnswering" in theirs.__name__ else 3
    stock = shake(theirs(stock_config(kind, num_labels=num_labels, pooler_dropout=0.0)))
    stock.save_pretrained(tmp_path)
    model = ours.from_pretrained(tmp_path)
    assert not model.loading_report.initialised and not model.loading_report.unused
    ids, mask = batch(4, 20, [20, 13, 7, 20])
    if "MultipleChoice" in theirs.__name__:
        ids, mask = ids.view(2, 2, 20), mask.view(2, 2, 20)
    with torch.no_grad():
        mine, reference = model(ids, attention_mask=mask), stock(ids, attention_mask=mask)
    assert mine.keys() == reference.keys()
    for key in mine:
        valid = mask.bool() if "Token" in theirs.__name__ else None
        a, b = mine[key], reference[key]
        if key in ("start_logits", "end_logits"):
            a, b, valid = a[mask.bool()][None], b[mask.bool()][None], None
        assert relative_error("heads against transformers", a, b, valid) < 1e-5


@pytest.mark.parametrize("kind", ["v1", "v3"])
@pytest.mark.parametrize("legacy", [True, False])
def test_masked_lm_of_transformers_keeps_its_outputs(kind, legacy, tmp_path, stock_config, shake, batch, relative_error):
    """EMD is disabled: transformers trains its heads on the plain last layer, without absolute positions."""
    stock = shake((DebertaForMaskedLM if kind == "v1" else DebertaV2ForMaskedLM)(stock_config(kind, legacy=legacy)))
    stock.save_pretrained(tmp_path)
    model = DebertaExtForMaskedLM.from_pretrained(tmp_path)
    assert not model.loading_report.initialised
    assert (model.config.emd_layers, model.config.emd_input) == (1, "hidden")
    assert not hasattr(model.deberta.embeddings, "position_embeddings")
    (note,) = model.loading_report.notes
    assert "no absolute position table" in note
    ids, mask = batch(2, 20, [20, 13])
    with torch.no_grad():
        ours, theirs = model(ids, attention_mask=mask).logits, stock(ids, attention_mask=mask).logits
    assert relative_error("masked LM against transformers", ours, theirs, mask.bool()) < 1e-5


def test_beyond_the_table_we_clamp_as_the_official_code_and_transformers_does_not(tmp_path, stock_config, shake, batch):
    """With N > max_relative_positions, transformers reads the untrained row 0, the official code row 1."""
    stock = shake(DebertaV2Model(stock_config("v3", max_relative_positions=24)))
    stock.save_pretrained(tmp_path)
    model = DebertaExtModel.from_pretrained(tmp_path)
    ids, mask = batch(1, 60)

    def difference():
        with torch.no_grad():
            ours = model(ids, attention_mask=mask).last_hidden_state
            return ((ours - stock(ids, attention_mask=mask).last_hidden_state).norm() / ours.norm()).item()

    assert difference() > 1e-3
    # Row 0 made equal to row 1, the two agree: nothing else differs.
    with torch.no_grad():
        for table in (stock.encoder.rel_embeddings.weight, model.encoder.rel_embeddings.weight):
            table[0] = table[1]
    assert difference() < 1e-5

# SPDX-License-Identifier: Apache-2.0
"""The Enhanced Mask Decoder and masked-language modelling."""

import itertools

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM
from watch import Watch

from hf_deberta_ext import DebertaExtForMaskedLM, EnhancedMaskDecoder
from hf_deberta_ext.model.modeling_deberta_ext import labelled_positions


def labels_for(ids, mask, share=0.3, seed=0):
    chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < share) & mask.bool()
    return ids.where(chosen, -100)


def official_emd(model, ids, mask):
    """Decode as the official code does: run the last layer twice with keys and values from its input, on all tokens."""
    deberta = model.deberta
    h = deberta(ids, attention_mask=mask, output_hidden_states=True).hidden_states[-2]
    layer, table, N = deberta.encoder.layer[-1], deberta.encoder.get_rel_embedding(), ids.shape[1]
    attention, delta = layer.attention.self, deberta.encoder.relative_position(N)
    q = deberta.embeddings.position_embeddings.weight[:N] + h
    H, d = attention.config.num_attention_heads, attention.head_size

    def heads(x):
        return x.view(*x.shape[:-1], H, d).movedim(-2, -3)

    share = attention.share_att_key
    K_r = heads((attention.key_proj if share else attention.pos_key_proj)(table))
    Q_r = heads((attention.query_proj if share else attention.pos_query_proj)(table))
    K_c, V_c = heads(attention.key_proj(h)), heads(attention.value_proj(h))
    index = delta[torch.arange(N)[:, None] - torch.arange(N) + N - 1]
    for _ in range(2):
        Q_c = heads(attention.query_proj(q))
        c2p = torch.einsum("bhid,hijd->bhij", Q_c, K_r[:, index])
        p2c = torch.einsum("bhjd,hijd->bhij", K_c, Q_r[:, index])
        A = (Q_c @ K_c.transpose(-1, -2) + c2p + p2c) / (3 * d) ** 0.5
        A = A.masked_fill(~mask.bool()[:, None, None], -1e9)
        context = (A.softmax(-1) @ V_c).movedim(1, 2).flatten(2)
        attended = layer.attention.output(context, q)
        q = layer.output(layer.intermediate(attended), attended)
    head = model.lm_predictions.lm_head
    x = head.LayerNorm(functional.gelu(head.dense(q)))
    return x @ deberta.embeddings.word_embeddings.weight.T + head.bias


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_emd_equals_the_official_algorithm(kind, tiny_config, shake, batch, relative_error):
    model = shake(DebertaExtForMaskedLM(tiny_config(kind)))
    ids, mask = batch(2, 30, [30, 17])
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
        expected = official_emd(model, ids, mask)
        assert relative_error("EMD against the official algorithm", logits, expected, mask.bool()) < 1e-5
        plain = model.lm_predictions(model.deberta(ids, attention_mask=mask).last_hidden_state)
    assert (plain - logits).norm() > 0.05 * logits.norm()


@pytest.mark.parametrize(
    ("kind", "overrides", "checkpointing"),
    [
        ("v1", {}, None), ("v3", {}, None), ("v3", dict(share_layers="all"), None),
        ("v3", dict(share_layers="attention"), None), ("v3", {}, True), ("v3", {}, False),
    ],
    ids=["v1", "v3", "shared layers", "shared attention", "reentrant checkpointing", "checkpointing"],
)  # fmt: skip
def test_passes_share_keys_and_values_and_give_the_loss_and_gradients_of_passes_one_by_one(
    kind, overrides, checkpointing, tiny_config, shake, batch
):
    """Include dropout, which must be drawn as in separate passes."""
    config = tiny_config(kind, emd_layers=3, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **overrides)
    model = shake(DebertaExtForMaskedLM(config)).train()
    if checkpointing is not None:
        model.gradient_checkpointing_enable(dict(use_reentrant=checkpointing))
    ids, mask = batch(2, 30, [30, 17])
    labels = ids.masked_fill((torch.arange(30) % 4 > 0) | (mask == 0), -100)
    calls, results = [], []
    model.deberta.encoder.layer[-1 if not overrides else 0].attention.self.value_proj.register_forward_hook(
        lambda *_: calls.append(torch.is_grad_enabled())
    )

    def one_by_one(H, positions, layer, query_positions):
        return EnhancedMaskDecoder(1, "position+hidden")(
            H, positions, lambda q, at, _: layer(layer(layer(q, at, 1), at, 1), at, 1), query_positions
        )

    for decode in (model.mask_decoder.forward, one_by_one):
        model.mask_decoder.forward = decode
        model.zero_grad()
        calls.clear()
        torch.manual_seed(0)
        loss = model(ids, attention_mask=mask, labels=labels, masked_only=True).loss
        forward_calls = len(calls)
        loss.backward()
        results.append((loss, {name: weight.grad for name, weight in model.named_parameters()}, forward_calls))
    (loss, grads, shared), (expected, expected_grads, alone) = results
    assert alone - shared == 2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, grad in expected_grads.items():
        # The gradient of v1's key bias is only rounding, because softmax is invariant to it.
        assert (grads[name] - grad).norm() < 2e-5 * grad.norm() + 1e-7, name
        assert grad.norm() > 1e-6 or name.endswith("key_proj.bias")


def test_labelled_positions_by_hand():
    labels = torch.tensor([[-100, 7, -100, 8, 9], [-100, -100, 3, -100, -100]])
    positions, real = labelled_positions(labels)
    assert positions.tolist()[0] == [1, 3, 4] and positions.tolist()[1][0] == 2
    assert real.tolist() == [[True, True, True], [True, False, False]]
    assert labelled_positions(torch.full((2, 4), -100))[1].tolist() == [[False], [False]]


CONFIGS = {
    **{f"{kind}, {n} x {i}": (kind, dict(emd_layers=n, emd_input=i)) for kind, n, i in itertools.product(
        ("v1", "v2", "v3"), (1, 2, 3), ("position+hidden", "position", "hidden"))},
    "biased input": ("v3", dict(position_biased_input=True)),
    "E != H": ("v2", dict(embedding_size=16)),
    "one layer": ("v3", dict(num_hidden_layers=1)),
    "shared layers": ("v3", dict(share_layers="all")),
    "p2p": ("v1", dict(pos_att_type="p2p|c2p")),
}  # fmt: skip


@pytest.mark.parametrize("mask_shape", ["BN", "BNN"])
@pytest.mark.parametrize("name", CONFIGS)
def test_masked_only_equals_the_full_computation_with_every_gradient(name, mask_shape, tiny_config, shake, batch):
    kind, overrides = CONFIGS[name]
    model = shake(DebertaExtForMaskedLM(tiny_config(kind, **overrides))).double()
    ids, mask = batch(3, 20, [20, 13, 4])
    labels = labels_for(ids, mask)
    given = mask if mask_shape == "BN" else mask[:, None] * mask[:, :, None]
    results = {}
    for masked_only in (False, True):
        model.zero_grad()
        out = model(ids, attention_mask=given, labels=labels, masked_only=masked_only)
        out.loss.backward()
        results[masked_only] = out, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    (full, full_grads), (sparse, sparse_grads) = results[False], results[True]
    assert sparse.logits.shape == ((labels != -100).sum(), 64)
    assert torch.allclose(sparse.logits, full.logits[labels != -100], rtol=1e-6, atol=1e-9)
    assert abs(sparse.loss.item() - full.loss.item()) < 1e-6
    assert full_grads.keys() == sparse_grads.keys()
    for key, grad in full_grads.items():
        assert (grad - sparse_grads[key]).norm() <= 1e-6 * max(grad.norm(), 1e-3), key


def test_last_layer_is_skipped_unless_its_output_is_asked_for(tiny_config, batch):
    model = DebertaExtForMaskedLM(tiny_config()).eval()
    ids, _ = batch(1, 9)
    calls = []
    model.deberta.encoder.layer[-1].register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        alone = model(ids).logits
        assert len(calls) == 1
        out = model(ids, output_hidden_states=True)
        assert len(calls) == 3
        with_attentions = model(ids, output_attentions=True)
    assert torch.equal(out.logits, alone) and torch.allclose(with_attentions.logits, alone, atol=1e-6)
    assert len(out.hidden_states) == 4 and len(with_attentions.attentions) == 3 and with_attentions.hidden_states is None


def test_masked_only_holds_no_tensor_of_the_full_vocabulary_size(tiny_config, batch):
    model = DebertaExtForMaskedLM(tiny_config(vocab_size=5000, masked_only=True))
    ids, mask = batch(4, 50, vocab=5000)
    labels = labels_for(ids, mask, share=0.1)
    with Watch() as watch:
        model(ids, attention_mask=mask, labels=labels).loss.backward()
    # The largest are the table and its gradient (5000 x 32), not 4 x 50 x 5000.
    assert max(elements for *_, elements in watch.seen) == 5000 * 32 < 4 * 50 * 5000


def test_evaluation_gives_all_logits_whatever_the_configuration_says(tiny_config, batch, tmp_path):
    """Check that metrics of other packages get the [B, N, V] logits that they expect."""
    DebertaExtForMaskedLM(tiny_config(masked_only=True)).save_pretrained(tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path)
    ids, mask = batch(4, 9)
    inputs = dict(input_ids=ids, attention_mask=mask, labels=labels_for(ids, mask))
    at_labels = (inputs["labels"] != -100).sum(), 64
    assert model.eval()(**inputs).logits.shape == (4, 9, 64)
    assert model(**inputs, masked_only=True).logits.shape == model.train()(**inputs).logits.shape == at_labels


def test_batch_without_targets_gives_zero_loss_and_zero_gradients(tiny_config, batch):
    ids, mask = batch(2, 9)
    for masked_only in (False, True):
        model = DebertaExtForMaskedLM(tiny_config())
        loss = model(ids, attention_mask=mask, labels=torch.full_like(ids, -100), masked_only=masked_only).loss
        loss.backward()
        assert loss.item() == 0
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_inputs_that_do_not_fit_are_refused_with_the_way_out(tiny_config, batch):
    """Check that masked_only without labels is only an error if the call sets it, not if the configuration does."""
    model = DebertaExtForMaskedLM(tiny_config(masked_only=True)).eval()
    ids, _ = batch(1, 70)
    assert model(ids[:, :9]).logits.shape == (1, 9, 64)
    for call, message in (
        (lambda: model(ids), r"at most max_position_embeddings = 64 tokens, got 70; .*extend_position_embeddings\(70\)"),
        (lambda: model(ids[:, :9], position_ids=torch.tensor([[0]])), r"position_ids .* \[1 or batch, 9\], got \[1, 1\]"),
        (lambda: model(ids[:, :9], masked_only=True), "masked_only=True requires labels"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    model.extend_position_embeddings(70)
    assert model(ids).logits.shape == (1, 70, 64)


def test_decoder_is_tied_before_and_after_save_load_and_resize(tiny_config, tmp_path, shake):
    shake(DebertaExtForMaskedLM(tiny_config())).save_pretrained(tmp_path)
    model = DebertaExtForMaskedLM.from_pretrained(tmp_path)
    for size in (None, 71):
        if size:
            model.resize_token_embeddings(size)
        head = model.lm_predictions.lm_head
        assert head.decoder.weight is model.get_input_embeddings().weight and head.decoder.bias is None
    assert head.bias.shape == (71,) == (model.config.vocab_size,) and not head.bias[64:].any()

# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: streams, padded batches as streams, and several documents in a row."""

import functools
import itertools

import pytest
import torch
from attention_inputs import gradients_of
from backends import NAMES, NATIVE
from every_head import CLASSES
from transformers import DataCollatorWithFlattening

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForTokenClassification, DebertaExtModel, PackedSequences

KINDS = ["v1", "v2", "v3"]
BACKENDS = [*NAMES, NATIVE]
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()


@pytest.fixture
def tiny_config(tiny_config):
    """Return a `tiny_config` with heads that are wide enough for every backend."""
    return functools.partial(tiny_config, num_attention_heads=2)


def random_ids(*shape, seed=0):
    return torch.randint(5, 64, shape, generator=torch.Generator().manual_seed(seed))


def test_from_mask_and_from_document_ids_by_hand():
    packed = PackedSequences.from_mask(MASK)
    assert packed.token_index.tolist() == [0, 1, 2, 4, 8, 9, 10, 11]
    assert packed.lengths == [3, 1, 4] and packed.shape == (3, 4)
    assert packed.cu_seqlens.tolist() == [0, 3, 4, 8] and packed.cu_seqlens.dtype == torch.int32
    assert packed.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert packed.first_token.tolist() == [0, 0, 0, 3, 4, 4, 4, 4]
    x = torch.arange(12).view(3, 4)
    assert packed.unpad(x).tolist() == [[0, 1, 2, 4, 8, 9, 10, 11]]
    assert packed.pad(packed.unpad(x)).tolist() == [[0, 1, 2, 0], [4, 0, 0, 0], [8, 9, 10, 11]]
    for margin, expected in ((1, [1, 2, 3, 5, 7, 8, 9, 10]), (2, [2, 3, 4, 7, 10, 11, 12, 13])):
        places, length = packed.windows(margin)
        assert places.tolist() == expected and length == 8 + 4 * margin
    left = PackedSequences.from_mask(MASK.flip(1))
    assert left.token_index.tolist() == [1, 2, 3, 7, 8, 9, 10, 11]
    assert left.lengths == [3, 1, 4] and torch.equal(left.positions, packed.positions)
    # Gaps and rows without a token stay padded.
    for mask in ([[1, 0, 1], [1, 1, 1]], [[0, 0, 0], [1, 1, 1]], [[0, 1, 0, 1]]):
        assert PackedSequences.from_mask(torch.tensor(mask).bool()) is None
    # Ids can have any size and order, and can be used again in another row, even in the next one.
    for dtype in (torch.uint8, torch.int32, torch.int64):
        packed = PackedSequences.from_document_ids(torch.tensor([[7, 7, 2, 2, 2], [2, 0, 9, 9, 0]], dtype=dtype))
        assert packed.token_index.tolist() == [0, 1, 2, 3, 4, 5, 7, 8] and packed.positions.dtype == torch.int64
        assert packed.lengths == [2, 3, 1, 2] and packed.cu_seqlens.tolist() == [0, 2, 5, 6, 8]
        assert packed.positions.tolist() == [0, 1, 0, 1, 2, 0, 0, 1]
        assert packed.first_token.tolist() == [0, 0, 2, 2, 2, 5, 6, 6]
    assert PackedSequences.from_document_ids(MASK).lengths == [3, 1, 4]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1.0, 2.0]], "must be integers, got torch.float32"),
        ([[1, -1]], r"must be 0 \(padding\) or positive, got -1"),
        ([[0, 0]], "must have a positive id"),
        ([[1, 2, 1]], "one run of equal document_ids"),
        ([[1, 0, 1]], "one run of equal document_ids"),
        ([[1, 1, 2], [3, 4, 3]], "one run of equal document_ids"),
    ],
    ids=["floats", "negative", "only-padding", "in-two-pieces", "with-a-hole", "second-row"],
)
def test_wrong_document_ids_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        PackedSequences.from_document_ids(torch.tensor(ids))


def assert_same_gradients(name, ours, reference, relative_error, tolerance=1e-5):
    total = max(x.norm() for x in reference.values())
    assert ours.keys() == reference.keys()
    for parameter, wanted in reference.items():
        if wanted.norm() < 1e-5 * total:
            assert (ours[parameter] - wanted).norm() < 1e-5 * total, parameter
            continue
        # In float32 cancellation costs digits in biases.
        error = relative_error(name, ours[parameter].flatten()[None], wanted.flatten()[None])
        assert error < tolerance * max(1.0, float(0.1 * total / wanted.norm())), parameter


def packed_calls(monkeypatch):
    """Count in a list how often a batch is packed."""
    calls = []
    from_mask = PackedSequences.from_mask.__func__

    def counted(cls, token_mask):
        calls.append(from_mask(cls, token_mask))
        return calls[-1]

    monkeypatch.setattr(PackedSequences, "from_mask", classmethod(counted))
    return calls


def on_and_off(model, call):
    results = []
    for unpadding in (True, False):
        model.set_unpadding(unpadding)
        results.append(call())
    return results


B, N = 4, 40
LENGTHS = [40, 21, 19, 1]


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_unpadded_states_and_gradients_equal_padded_ones(kind, side, backend, tiny_config, shake, batch, relative_error):
    model = shake(DebertaExtModel(tiny_config(kind, type_vocab_size=2))).train()
    model.set_attn_implementation(backend)
    ids, mask = batch(B, N, LENGTHS, side=side)
    real = mask.bool()
    inputs = dict(attention_mask=mask, token_type_ids=random_ids(B, N) % 2, output_hidden_states=True)
    weight = torch.randn(B, N, 32, generator=torch.Generator().manual_seed(1))[real]

    def call():
        out = model(ids, **inputs)
        loss = (out.last_hidden_state[real] * weight).sum() + out.hidden_states[1][real].square().mean()
        return out, gradients_of(model, loss)

    (ours, gradients), (reference, expected) = on_and_off(model, call)
    assert not ours.last_hidden_state[~real].any()
    assert len(ours.hidden_states) == len(reference.hidden_states) == 4
    for states, wanted in zip(ours.hidden_states, reference.hidden_states, strict=True):
        assert relative_error("unpadded", states, wanted, real) < 1e-5
    assert relative_error("unpadded", ours.last_hidden_state, reference.last_hidden_state, real) < 1e-5
    assert_same_gradients("unpadded, gradients", gradients, expected, relative_error)


HEADS = {
    "masked-lm": (DebertaExtForMaskedLM, dict(masked_only=False)),
    "masked-lm-masked-only": (DebertaExtForMaskedLM, dict(masked_only=True)),
    "rtd": (CLASSES["replaced-token-detection"], dict()),
    "sequence": (CLASSES["sequence-classification"], dict()),
    "token": (DebertaExtForTokenClassification, dict()),
    "question": (CLASSES["question-answering"], dict()),
    "choice": (CLASSES["multiple-choice"], dict()),
}


def head_inputs(head, mask):
    """Return the labels of a head, and a mask of its logits to compare."""
    ids = random_ids(B, N, seed=2)
    if head.startswith("masked-lm"):
        return dict(labels=ids.masked_fill((ids % 3 != 0) | ~mask, -100)), mask
    if head == "rtd":
        return dict(labels=ids % 2), mask
    if head == "sequence":
        return dict(labels=torch.tensor([2, 0, 1, 1])), slice(None)
    if head == "token":
        return dict(labels=(ids % 3).masked_fill(~mask, -100)), mask
    if head == "question":
        first = mask.int().argmax(1)
        return dict(start_positions=first, end_positions=first + mask.sum(1) - 1), mask
    return dict(labels=torch.tensor([1, 0])), slice(None)


# Kinds take turns: the test above has all of them on both sides.
@pytest.mark.parametrize(
    ("head", "side", "kind"),
    [(head, side, KINDS[(n + m) % 3]) for n, head in enumerate(HEADS) for m, side in enumerate(("right", "left"))],
)
def test_unpadded_heads_equal_padded_ones(head, side, kind, tiny_config, shake, batch, relative_error, monkeypatch):
    build, options = HEADS[head]
    model = shake(build(tiny_config(kind, num_labels=3))).train()
    ids, mask = batch(B, N, LENGTHS, side=side)
    targets, real = head_inputs(head, mask.bool())
    inputs = dict(input_ids=ids, attention_mask=mask)
    if head == "choice":
        inputs = {name: x.unflatten(0, (2, 2)) for name, x in inputs.items()}
    calls = packed_calls(monkeypatch)

    def call():
        out = model(**inputs, **targets, **options)
        return out, gradients_of(model, out.loss)

    (ours, gradients), (reference, expected) = on_and_off(model, call)
    assert head == "question" or len(calls) == 1
    assert abs(ours.loss.item() / reference.loss.item() - 1) < 1e-5
    names = ("start_logits", "end_logits") if head == "question" else ("logits",)
    for name in names:
        logits, wanted = getattr(ours, name), getattr(reference, name)
        assert logits.shape == wanted.shape
        if head != "masked-lm-masked-only":
            logits, wanted = logits[real], wanted[real]
        error = relative_error("unpadded heads", logits.flatten()[None], wanted.flatten()[None])
        assert error < 1e-5
    assert_same_gradients("unpadded heads, gradients", gradients, expected, relative_error)


@pytest.mark.parametrize("kind", ["v1", "v3"])
def test_unpadding_takes_positions_and_embeddings(kind, tiny_config, shake, batch, relative_error):
    """Test position_ids of one row or of all, in the input or only in the decoder, and inputs_embeds."""
    ids, mask = batch(B, N, LENGTHS)
    real = mask.bool()
    for biased in (False, True):
        overrides = dict(position_biased_input=True, emd_layers=1, emd_input="hidden") if biased else dict()
        model = shake(DebertaExtForMaskedLM(tiny_config(kind, **overrides)))
        embeds = model.get_input_embeddings()(ids).detach()
        for position_ids in (None, torch.arange(N).flip(0)[None], random_ids(B, N)):
            for inputs in (dict(input_ids=ids), dict(inputs_embeds=embeds)):
                with torch.no_grad():
                    ours, reference = on_and_off(
                        model,
                        lambda: model(**inputs, attention_mask=mask, position_ids=position_ids).logits,  # noqa: B023
                    )
                assert relative_error("unpadded positions", ours, reference, real) < 1e-5


@pytest.mark.parametrize("build", [DebertaExtForMaskedLM, DebertaExtForTokenClassification])
def test_labels_on_padding_count_as_they_do_in_a_padded_batch(build, tiny_config, shake, batch, relative_error):
    """Check that such a batch stays padded in every part of the model, because the labels need logits at padding."""
    model = shake(build(tiny_config(num_labels=3)))
    ids, mask = batch(B, N, LENGTHS)
    labels = random_ids(B, N) % 3
    ours, reference = on_and_off(model, lambda: model(ids, attention_mask=mask, labels=labels))
    assert abs(ours.loss.item() / reference.loss.item() - 1) < 1e-6
    assert relative_error("labels on padding", ours.logits, reference.logits) < 1e-5


def test_unpadding_is_automatic_from_a_tenth_of_padding(tiny_config, batch, monkeypatch):
    model = DebertaExtModel(tiny_config()).eval()
    calls = packed_calls(monkeypatch)
    short, full = batch(2, 20, [20, 3])[1], batch(2, 20)[1]
    cases = [(None, batch(2, 20, [20, length])[1], length < 17) for length in (20, 17, 16, 3)]
    cases += [(False, short, False), (True, short, True), (True, None, False), (True, full, True)]
    cases += [(True, short[:, None] * short[:, :, None], False), (None, short, True)]
    for unpadding, mask, packs in cases:
        model.set_unpadding(unpadding)
        calls.clear()
        with torch.no_grad():
            model(batch(2, 20)[0], attention_mask=mask)
        assert bool(calls) == packs, (unpadding, mask)


@pytest.mark.parametrize("place", ["embeddings.word_embeddings", "encoder.layer.1"])
def test_forward_hooks_see_and_replace_outputs_of_a_padded_batch(place, tiny_config, shake, batch):
    """Regression test: captum's LayerIntegratedGradients passed [B, N, E] to a stream [1, T, E]."""
    model = shake(DebertaExtModel(tiny_config()))
    ids, mask = batch(2, 20, [20, 3])
    with torch.no_grad():
        expected, seen = model(ids, attention_mask=mask).last_hidden_state, []
        states = model.get_submodule(place).register_forward_hook(lambda module, args, output: seen.append(output))
        model(ids, attention_mask=mask)
        states.remove()
        model.get_submodule(place).register_forward_hook(lambda module, args, output: seen[0])
        replaced = model(ids, attention_mask=mask).last_hidden_state
    first = seen[0] if torch.is_tensor(seen[0]) else seen[0][0]
    assert first.shape == (2, 20, 32) and torch.allclose(replaced[mask.bool()], expected[mask.bool()], atol=1e-5)


def test_unpadded_batch_may_be_longer_than_the_position_table(tiny_config, shake, batch):
    model = shake(DebertaExtModel(tiny_config("v3", position_biased_input=True, emd_layers=1, emd_input="hidden")))
    model.set_unpadding(True)
    ids, mask = batch(2, 90, [50, 60])
    with torch.no_grad():
        long = model(ids, attention_mask=mask).last_hidden_state
        assert torch.allclose(long[:, :60], model(ids[:, :60], attention_mask=mask[:, :60]).last_hidden_state, atol=1e-5)
        ids, mask = batch(2, 90, [50, 65])
        with pytest.raises(ValueError, match="got 65;"):
            model(ids, attention_mask=mask)


DOCUMENTS = [[3, 14, 9], [26], [1, 1, 20]]  # lengths; rows of 30, padding behind


def packed_batch(seed=0):
    """Return input_ids and document_ids [3, 30], and the place of each document: (row, slice)."""
    document_ids, where = torch.zeros(3, 30, dtype=torch.long), []
    for row, lengths in enumerate(DOCUMENTS):
        start = 0
        for number, length in enumerate(lengths, 1):
            where.append((row, slice(start, start + length)))
            document_ids[row, start : start + length] = number
            start += length
    return random_ids(3, 30, seed=seed) * (document_ids != 0), document_ids, where


PACKED_HEADS = [("masked-lm-masked-only", backend) for backend in [*NAMES, "auto"]]
PACKED_HEADS += [(head, "auto") for head in ("masked-lm", "rtd", "token")]


@pytest.mark.parametrize(("head", "backend"), PACKED_HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_heads_equal_documents_alone(kind, head, backend, tiny_config, shake, relative_error):
    """Decoder positions restart in each document, and RTD adds the [CLS] state of the document."""
    build, options = HEADS[head]
    model = shake(build(tiny_config(kind, num_labels=3))).train()
    model.set_attn_implementation(backend)
    ids, document_ids, where = packed_batch()
    labels = {"rtd": random_ids(3, 30) % 2, "token": ids % 3}.get(head, ids.masked_fill(ids % 3 != 0, -100))
    labels = labels.masked_fill(document_ids == 0, -100)
    out = model(ids, document_ids=document_ids, labels=labels, **options)
    gradients = gradients_of(model, out.loss)

    count = (labels != -100).sum()
    parts = [(ids[row, part][None], labels[row, part][None]) for row, part in where]
    singles = [model(own, labels=given, num_items_in_batch=count) for own, given in parts]
    loss = sum(single.loss for single in singles)
    assert torch.allclose(out.loss, loss, rtol=1e-5)
    assert_same_gradients("packed heads, gradients", gradients, gradients_of(model, loss), relative_error)
    if head == "masked-lm-masked-only":
        singles = torch.cat([x.logits[0][labels[row, part] != -100] for x, (row, part) in zip(singles, where, strict=True)])
        assert relative_error("packed heads", out.logits, singles) < 1e-5
    else:
        logits = torch.cat([out.logits[row, part].flatten() for row, part in where])
        expected = torch.cat([single.logits.flatten() for single in singles])
        assert relative_error("packed heads", logits[None], expected[None]) < 1e-5


def flattened(lengths, **options):
    """Return the batch that transformers' DataCollatorWithFlattening makes of documents, and the documents."""
    documents = [random_ids(length, seed=seed) for seed, length in enumerate(lengths)]
    collate = DataCollatorWithFlattening(return_tensors="pt", **options)
    batch = collate([{"input_ids": document} for document in documents])
    batch.pop("labels")
    return batch, documents


FLATTENED = {
    "positions": {},
    "boundaries": dict(return_flash_attn_kwargs=True),
    "boundaries alone": dict(return_flash_attn_kwargs=True, return_position_ids=False),
    "all": dict(return_flash_attn_kwargs=True, return_seq_idx=True),
}
FLATTENED_MODELS = [DebertaExtModel, *(HEADS[name][0] for name in ("masked-lm", "rtd", "token")), "joint"]


@pytest.mark.parametrize(
    ("form", "build", "kind"),
    [(f, model, KINDS[(n + m) % 3]) for n, f in enumerate(FLATTENED) for m, model in enumerate(FLATTENED_MODELS)],
)
def test_packed_batches_of_other_packages_equal_documents_alone(build, kind, form, tiny_config, shake, joint):
    model = joint(num_attention_heads=2) if build == "joint" else shake(build(tiny_config(kind)))
    batch, documents = flattened([5, 1, 9, 30], **FLATTENED[form])
    name = "discriminator_logits" if build == "joint" else "last_hidden_state" if build is DebertaExtModel else "logits"
    with torch.no_grad():
        together = model(**batch)[name][0].split([len(document) for document in documents])
        for document, output in zip(documents, together, strict=True):
            assert torch.allclose(output, model(document[None])[name][0], atol=1e-5)
        # Not packed batches: one document, and a batch with a mask.
        one, mask = torch.arange(30)[None], torch.ones(1, 45, dtype=torch.long)
        zeros = dict(input_ids=documents[3][None], position_ids=torch.zeros_like(one))
        assert torch.allclose(model(**zeros)[name], model(**zeros, attention_mask=mask[:, :30])[name], atol=1e-5)
        assert torch.equal(model(documents[3][None], position_ids=one)[name], model(documents[3][None])[name])
        positions = batch.get("position_ids", flattened([5, 1, 9, 30])[0]["position_ids"])
        masked = model(batch["input_ids"], attention_mask=mask, position_ids=positions)[name][0]
        assert not torch.allclose(masked[15:], together[3], atol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        dict(cu_seq_lens_q=torch.tensor([0, 5, 9])),
        dict(cu_seq_lens_q=torch.tensor([1, 5, 15])),
        dict(cu_seq_lens_q=torch.tensor([0, 9, 5, 15])),
        dict(input_ids=random_ids(2, 15)),
        dict(cu_seq_lens_k=torch.tensor([0, 6, 15])),
    ],
    ids=["too short", "no zero", "falling", "two rows", "other keys"],
)
def test_boundaries_that_do_not_fit_are_refused(changes, tiny_config):
    batch, _ = flattened([5, 10], return_flash_attn_kwargs=True, return_position_ids=False)
    with pytest.raises(ValueError, match=r"cu_seq_lens_q must increase from 0 to T for inputs of shape \[1, T\]"):
        DebertaExtModel(tiny_config())(**(batch | changes))


@pytest.mark.parametrize("name", ["masked-lm", "rtd", "token", "rtd, padded batch"])
def test_labels_between_documents_do_not_count(name, tiny_config, shake):
    """All heads ignore labels at document id 0, which is padding; RTD ignores padding of a padded batch too."""
    model = shake(HEADS[name.split(",")[0]][0](tiny_config(num_labels=3)))
    model.set_unpadding(True)
    ids, document_ids, _ = packed_batch()
    labels, padding = random_ids(3, 30) % 2, document_ids == 0
    inputs = dict(attention_mask=(~padding).long()) if "batch" in name else dict(document_ids=document_ids)
    with torch.no_grad():
        losses = [model(ids, **inputs, labels=x).loss for x in (labels, labels.masked_fill(padding, -100))]
    assert torch.allclose(*losses, rtol=1e-6)


LONG_DOCUMENTS = torch.tensor([1] * 150 + [2] * 140 + [3] * 20)[None]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("build", "kind", "document_ids"),
    [
        *((build, kind, packed_batch()[1])
          for build in (DebertaExtModel, DebertaExtForMaskedLM, CLASSES["replaced-token-detection"])
          for kind in ("v1", "v2")),
        pytest.param(DebertaExtModel, "v3", LONG_DOCUMENTS, id="beyond-one-tile"),
    ],
)  # fmt: skip
def test_a_neighbour_changes_no_bit_of_a_document(build, kind, document_ids, backend, tiny_config, shake):
    """Also test more than one tile, where two documents of nearly equal length share a group."""
    model = shake(build(tiny_config(kind)))
    model.set_attn_implementation(backend)
    ids, others = (random_ids(*document_ids.shape, seed=seed) for seed in (0, 1))
    with torch.no_grad():
        expected = model(ids, document_ids=document_ids)[0]
        for row, number in itertools.product(range(len(document_ids)), (1, 2, 3)):
            kept = (document_ids == number) & (torch.arange(len(document_ids)) == row)[:, None]
            out = model(ids.where(kept, others), document_ids=document_ids)[0]
            assert torch.equal(out[kept], expected[kept]) and not torch.equal(out, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(document_ids=torch.ones(2, 5).long()), r"document_ids must have shape \[2, 6\], got \[2, 5\]"),
        (dict(document_ids=torch.tensor([[1, 1, 2, 2, 1, 1]] * 2)), "one run"),
        (dict(output_attentions=True), "support neither output_attentions"),
        (dict(attention_mask=torch.ones(2, 6, 6)), r"need an attention_mask \[B, N\]"),
    ],
    ids=["shape", "in-two-pieces", "probabilities", "mask-of-blocks"],
)
def test_what_documents_cannot_have_is_refused(arguments, message, tiny_config):
    for build in (DebertaExtModel, DebertaExtForMaskedLM):
        with pytest.raises(ValueError, match=message):
            build(tiny_config())(torch.full((2, 6), 7), **(dict(document_ids=torch.ones(2, 6).long()) | arguments))

# SPDX-License-Identifier: Apache-2.0
"""Random valid configurations and inputs: backends agree, models reload, padding changes nothing, nothing overflows."""

import tempfile

import pytest
import torch
from every_head import CLASSES, NAMES
from hypothesis import strategies as st
from rounding import equal_outputs
from strategies import HEADS, batches, build, cases, configurations, joint_fields, labels_for, make_batch

pytestmark = pytest.mark.fuzz

# For models in float64, whose losses are computed in float32.
TOLERANCE = 1e-5
ONE_TOKEN = ("base", "masked-lm", "replaced-token-detection", "token-classification")


def arguments_of(head, fields, batch, dtype=torch.float64):
    """Return inputs and labels of a head, and the real tokens [B, N]."""
    arguments, real = make_batch(fields, batch, dtype)
    if head != "multiple-choice":
        return arguments | labels_for(head, fields, batch, real), real
    B = len(real)
    for name, x in arguments.items():
        x = x.expand(B, *x.shape[1:])
        arguments[name] = torch.stack([x, x.flip(0)], 1)
    return arguments | labels_for(head, fields, batch, real), torch.stack([real, real.flip(0)], 1)


def outputs_of(model, arguments):
    """Return the tensors of a forward pass by name, without redundant ones."""
    outputs = model(**arguments)
    return {name: outputs[name] for name in outputs if torch.is_tensor(outputs[name])}


def at_tokens(outputs, real):
    """Return the outputs at real tokens."""
    per_token = {name: x for name, x in outputs.items() if x.shape[: real.dim()] == real.shape and x.dim() >= real.dim()}
    return outputs | {name: x[real] for name, x in per_token.items()}


def objective(outputs):
    """Return a number that depends on every output."""
    generator = torch.Generator().manual_seed(5)
    total = 0
    for _, x in sorted(outputs.items()):
        if x.is_floating_point():
            x = x.masked_fill(x == torch.finfo(x.dtype).min, 0)
            total = total + (x.double() * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
    return total


def gradients_of(model, value):
    model.zero_grad()
    if value.requires_grad:
        value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def error(got, reference, floor=1e-12):
    """Return |got - reference| / |reference| over whole tensors."""
    got, reference = got.detach().double(), reference.detach().double()
    assert got.shape == reference.shape, (got.shape, reference.shape)
    assert torch.isfinite(got).all() and torch.isfinite(reference).all()
    if not got.numel():
        return 0.0
    return ((got - reference).norm() / reference.norm().clamp(min=floor)).item()


def worst(got, reference, floor=1e-12):
    assert got.keys() == reference.keys()
    return max((error(got[name], reference[name], floor) for name in got), default=0.0)


def gradient_error(got, reference):
    largest = max((x.double().norm().item() for x in reference.values()), default=0.0)
    return worst(got, reference, floor=max(1e-12, 1e-2 * largest))


@cases("backends")
def test_every_backend_agrees_with_eager_in_outputs_and_gradients(data):
    head = data.draw(st.sampled_from(HEADS), "head")
    fields = data.draw(configurations(smooth=True), "fields")
    batch = data.draw(batches(fields), "batch")
    single = data.draw(st.booleans(), "float32")
    unpadding = data.draw(st.sampled_from([False, False, True]), "unpadding")
    model = build(head, fields)
    arguments, real = arguments_of(head, fields, batch)

    def results(model, arguments):
        for name in NAMES:
            model.set_attn_implementation(name)
            model.set_unpadding(unpadding and name != "eager")
            outputs = at_tokens(outputs_of(model, arguments), real)
            yield name, outputs, gradients_of(model, objective(outputs))
            assert {backend for backend, _ in model.attention_backends().values()} == {name}

    (_, reference, reference_gradients), *others = results(model, arguments)
    for name, outputs, gradients in others:
        assert worst(outputs, reference, 1e-8) < TOLERANCE, name
        assert gradient_error(gradients, reference_gradients) < TOLERANCE, name
    if not single:
        return
    # In float32 the error depends on the model's conditioning; eager's own error measures it.
    wide = {name for name, x in arguments.items() if x.dtype == torch.float64 and name != "attention_mask"}
    arguments |= {name: arguments[name].float() for name in wide}
    bounds = None
    for name, outputs, gradients in results(model.float(), arguments):
        errors = worst(outputs, reference, 1e-3), gradient_error(gradients, reference_gradients)
        bounds = bounds or [10 * x + 1e-4 for x in errors]
        assert errors[0] < bounds[0] and errors[1] < bounds[1], (name, errors, bounds)


@cases("joint")
def test_a_joint_model_is_the_same_on_every_backend_and_after_a_file(data):
    fields = data.draw(joint_fields(smooth=True), "fields")
    batch = data.draw(batches(fields, ("none", "right", "left", "documents")), "batch") | dict(embeds=False)
    model = build("pretraining", fields)
    arguments, real = arguments_of("pretraining", fields, batch)

    def step(model):
        outputs = model(**arguments, random_generator=torch.Generator().manual_seed(3))
        outputs = {name: outputs[name] for name in outputs if torch.is_tensor(outputs[name])}
        logits = outputs["discriminator_logits"]
        return outputs | {"discriminator_logits": logits[real]}

    results = {}
    for name in NAMES:
        model.set_attn_implementation(name)
        outputs = step(model)
        results[name] = outputs, gradients_of(model, outputs["loss"])
    for name in NAMES[1:]:
        assert worst(results[name][0], results["eager"][0], 1e-8) < TOLERANCE, name
        assert gradient_error(results[name][1], results["eager"][1]) < TOLERANCE, name
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = CLASSES["pretraining"].from_pretrained(folder, dtype="auto", attn_implementation=NAMES[-1])
    same_model(model, loaded)
    again = step(loaded)
    assert all(equal_outputs(again[name], outputs[name]) for name in outputs)


def same_model(model, loaded):
    """Check that every parameter and buffer, tied ones included, and the configuration are equal."""
    for kind in ("named_parameters", "named_buffers"):
        before_saving, after_loading = (dict(getattr(m, kind)(remove_duplicate=False)) for m in (model, loaded))
        assert before_saving.keys() == after_loading.keys()
        for name, x in before_saving.items():
            assert x.dtype == after_loading[name].dtype and torch.equal(x, after_loading[name]), name
            assert x.requires_grad == after_loading[name].requires_grad, name
    before, after = model.config.to_dict(), loaded.config.to_dict()
    for config in (before, after):
        # The path that it was loaded from.
        config.pop("_name_or_path", None)
    assert before == after


@cases("round trip")
def test_save_and_load_keep_every_bit(data):
    head = data.draw(st.sampled_from(HEADS), "head")
    fields = data.draw(configurations(training=True), "fields")
    batch = data.draw(batches(fields), "batch")
    dtype = getattr(torch, data.draw(st.sampled_from(["float32", "float64", "bfloat16", "float16"]), "dtype"))
    model = build(head, fields, dtype=dtype)
    arguments, _ = arguments_of(head, fields, batch, dtype)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        shards = dict(max_shard_size=data.draw(st.sampled_from([2000, "5GB"]), "shard"))
        model.save_pretrained(folder, **shards)
        loaded, info = CLASSES[head].from_pretrained(folder, dtype="auto", output_loading_info=True)
        assert not any(info.values()), info
        same_model(model, loaded)
        before_saving, after_loading = outputs_of(model, arguments), outputs_of(loaded, arguments)
        assert before_saving.keys() == after_loading.keys()
        for name in before_saving:
            assert equal_outputs(before_saving[name], after_loading[name]), name


@cases("alone")
def test_a_sample_alone_equals_itself_in_a_batch(data):
    """The result does not depend on the other rows or on the amount of padding that they cause."""
    head = data.draw(st.sampled_from([*ONE_TOKEN, "sequence-classification"]), "head")
    fields = data.draw(configurations(smooth=True), "fields")
    batch = data.draw(batches(fields, ("right", "left", "none", "square")), "batch")
    model = build(head, fields)
    model.set_attn_implementation(data.draw(st.sampled_from([*NAMES, None]), "backend"))
    model.set_unpadding(data.draw(st.sampled_from([None, True, False]), "unpadding"))
    arguments, real = make_batch(fields, batch)
    with torch.no_grad():
        together = outputs_of(model, arguments)
        for row in range(batch["B"]):
            row_slice = slice(row, row + 1)
            sample = {name: x if len(x) == 1 else x[row_slice] for name, x in arguments.items()}
            if batch["mask"] in ("right", "left"):
                del sample["attention_mask"]
                sample = {name: x[:, real[row]] for name, x in sample.items()}
            if "position_ids" in sample and "attention_mask" not in sample:
                # Without a mask, random positions of a single row may be read as several packed documents.
                sample["attention_mask"] = torch.ones(1, sample["position_ids"].shape[1])
            for name, x in outputs_of(model, sample).items():
                expected = together[name][row_slice]
                if head != "sequence-classification" or x.dim() != 2 or name != "logits":
                    expected = expected[:, real[row]]
                assert error(expected, x, 1e-6) < TOLERANCE, (row, name)


@cases("streams")
def test_packed_documents_equal_each_alone_and_unpadded_equals_padded(data):
    head = data.draw(st.sampled_from(ONE_TOKEN), "head")
    fields = data.draw(configurations(smooth=True), "fields")
    batch = data.draw(batches(fields, ("documents",)), "batch")
    model = build(head, fields)
    model.set_attn_implementation(data.draw(st.sampled_from(NAMES), "backend"))
    arguments, _ = arguments_of(head, fields, batch)
    given_labels = arguments.pop("labels", None)
    ids = arguments.pop("document_ids")
    with torch.no_grad():
        together = outputs_of(model, arguments | dict(document_ids=ids))
        for row in range(batch["B"]):
            for number in ids[row][ids[row] > 0].unique():
                places = ids[row] == number
                alone = {n: (x if len(x) == 1 else x[row : row + 1])[:, places] for n, x in arguments.items()}
                # Without it, random positions of a single row may be read as several packed documents.
                alone["document_ids"] = torch.ones(1, int(places.sum()), dtype=torch.long)
                for name, x in outputs_of(model, alone).items():
                    assert error(together[name][row, places], x[0], 1e-6) < TOLERANCE, (row, int(number), name)
        if given_labels is not None:
            # The loss of the packed row equals the loss with a block mask and given positions.
            starts = torch.stack([place_in_document(row) for row in ids])
            arguments.setdefault("position_ids", starts)
            arguments["position_ids"] = arguments["position_ids"].expand(ids.shape)
            if fields.get("conv_kernel_size") or head == "replaced-token-detection":
                return
            model.set_unpadding(False)
            block = (ids[:, None] == ids[:, :, None]) & (ids > 0)[:, None]
            whole = outputs_of(model, arguments | dict(attention_mask=block, labels=given_labels))
            packed = outputs_of(model, arguments | dict(document_ids=ids, labels=given_labels))
            assert error(packed["loss"], whole["loss"], 1e-6) < TOLERANCE


def place_in_document(row):
    """Return [N] positions, counted from the first token of each document, for document ids [N]."""
    places = torch.arange(len(row))
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    return places - places.where(first, 0).cummax(0).values


@cases("extreme")
def test_extreme_weights_give_finite_outputs_and_gradients(data):
    """The products of queries and keys exceed the range of float16; with dropout, every dtype and backend."""
    head = data.draw(st.sampled_from(HEADS), "head")
    fields = data.draw(configurations(smooth=True, training=True), "fields")
    batch = data.draw(batches(fields), "batch")
    dtype = getattr(torch, data.draw(st.sampled_from(["float16", "bfloat16", "float32", "float64"]), "dtype"))
    name = data.draw(st.sampled_from([*NAMES, None]), "backend")
    factor = data.draw(st.sampled_from([1000.0, 100.0, 1e-4]), "factor")
    if dtype == torch.float16:
        # Backward through several layers of such weights exceeds the range of float16, and LayerNorm divides values that
        # dropout has made equal by the square root of epsilon, for every attention.
        factor = min(factor, 100.0)
        fields |= dict(layer_norm_eps=1e-2, hidden_dropout_prob=0, num_hidden_layers=1, conv_kernel_size=0)
        fields |= dict(emd_layers=1) if "emd_layers" in fields else {}
    model = build(head, fields, dtype=torch.float32)
    with torch.no_grad():
        for module, parameter in model.named_parameters():
            scaled = ("query_proj.weight", "key_proj.weight", *(["word_embeddings.weight"] if factor > 1 else []))
            if module.endswith(scaled):
                parameter.mul_(factor)
    model = model.to(dtype).train()
    model.set_attn_implementation(name)
    arguments, real = arguments_of(head, fields, batch, dtype)
    torch.manual_seed(batch["seed"])
    outputs = at_tokens(outputs_of(model, arguments), real)
    value = outputs["loss"] if "loss" in outputs else objective(outputs) / max(1, real.sum())
    gradients = gradients_of(model, value)
    for source, x in [*outputs.items(), *gradients.items()]:
        assert torch.isfinite(x).all(), source

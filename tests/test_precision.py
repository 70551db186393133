# SPDX-License-Identifier: Apache-2.0
"""Every head on every backend in every precision: no dtype error, no overflow, errors of the size that the format allows;
and the same result from the same seed."""

import copy
from contextlib import nullcontext

import pytest
import torch

from hf_deberta_ext import (
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForPreTraining,
    DebertaExtForQuestionAnswering,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
)

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


# ------- every head on every backend

NAMES = ["eager", "sdpa", "blocked"]
HEADS = {
    "base": (DebertaExtModel, {}),
    "masked-lm": (DebertaExtForMaskedLM, {}),
    "masked-lm, one by one": (DebertaExtForMaskedLM, dict(masked_only=True)),
    "rtd": (DebertaExtForReplacedTokenDetection, {}),
    "sequence": (DebertaExtForSequenceClassification, {}),
    "token": (DebertaExtForTokenClassification, {}),
    "question": (DebertaExtForQuestionAnswering, {}),
    "choice": (DebertaExtForMultipleChoice, {}),
    "joint": (DebertaExtForPreTraining, dict(generator={}, special_token_ids=[0])),
}
# How a model runs: in a dtype of its own, or in float32 under autocast.
MODES = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "autocast bfloat16": (torch.float32, torch.bfloat16),
    "autocast float16": (torch.float32, torch.float16),
}
LENGTH = 14
# Kinds take turns over heads and backends, so that each meets every mode.
EVERY = [
    (head, name, mode, KINDS[(place + NAMES.index(name) + list(MODES).index(mode)) % 3])
    for place, head in enumerate(HEADS)
    for name in NAMES
    for mode in MODES
]
SMALL = dict(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, position_buckets=8
)


def small_config(tiny_config, kind, **overrides):
    fields = {name: value for name, value in SMALL.items() if not (kind == "v1" and name == "position_buckets")}
    return tiny_config(kind, **(fields | overrides))


def call_of(head, mask=True):
    """Inputs and labels of a head, with padding."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, 40, (2, LENGTH), generator=generator)
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])
    arguments = dict(input_ids=ids * real) | (dict(attention_mask=real.long()) if mask else {})
    selected = real & (torch.rand(2, LENGTH, generator=generator) < 0.6)
    ones = torch.ones(2, dtype=torch.long)
    if head == "question":
        return arguments | dict(start_positions=ones, end_positions=ones * 4)
    if head == "choice":
        arguments = {name: torch.stack([x, x.flip(0)], 1) for name, x in arguments.items()}
    labels = {"masked-lm": ids, "joint": ids, "rtd": ids % 2, "token": ids % 2}.get(head.split(",")[0])
    if labels is not None:
        return arguments | dict(labels=labels.masked_fill(~selected, -100))
    return arguments if head == "base" else arguments | dict(labels=ones)


def loss_of(model, arguments):
    outputs = model(**arguments)
    loss = outputs.get("loss")
    return outputs, outputs.last_hidden_state.float().square().mean() if loss is None else loss


def step(model, arguments, low=None):
    """Outputs, and the gradient of each parameter, in float64."""
    model.zero_grad()
    with torch.autocast("cpu", low) if low is not None else nullcontext():
        outputs, loss = loss_of(model, arguments)
    loss.backward()
    tensors = {name: x for name, x in outputs.items() if torch.is_tensor(x)}
    return tensors, {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def extreme(model, factor):
    """Queries, keys and embeddings whose products pass what float16 holds."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".query_proj." in name or ".key_proj." in name or "_embeddings.weight" in name:
                parameter.mul_(factor)
    return model


@pytest.mark.parametrize(("head", "name", "mode", "kind"), EVERY, ids=lambda x: str(x))
def test_extreme_activations_stay_finite_forward_and_backward(head, name, mode, kind, tiny_config, shake):
    model_class, fields = HEADS[head]
    dtype, low = MODES[mode]
    model = extreme(shake(model_class(small_config(tiny_config, kind, **fields)), std=0.3), 200.0).to(dtype)
    model.set_attn_implementation(name)
    outputs, gradients = step(model, call_of(head), low)
    assert {backend for backend, _ in model.attention_backends().values()} <= {name}
    assert gradients
    for place, x in [*outputs.items(), *gradients.items()]:
        assert torch.isfinite(x).all(), place


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "float32"])
@pytest.mark.parametrize("head", [head for head in HEADS if head != "joint"])
def test_gradients_in_low_precision_are_as_close_to_float64_as_those_of_eager(head, mode, tiny_config, shake):
    """No backend is further off than twice the error of eager in the same precision, plus the format's own step. (Not the
    joint model, whose samples jump.)"""
    model_class, fields = HEADS[head]
    dtype, low = MODES[mode]
    kind = KINDS[list(HEADS).index(head) % 3]
    arguments = call_of(head)
    model = shake(model_class(small_config(tiny_config, kind, **fields)), std=0.15).to(dtype)
    exact = copy.deepcopy(model).double()
    exact.set_attn_implementation("eager")
    _, expected = step(exact, arguments)
    size = sum(x.square().sum() for x in expected.values()).sqrt()
    errors = {}
    for name in NAMES:
        model.set_attn_implementation(name)
        _, gradients = step(model, arguments, low)
        assert gradients.keys() == expected.keys()
        errors[name] = (sum((gradients[n] - x).square().sum() for n, x in expected.items()).sqrt() / size).item()
    step_size = torch.finfo(low or dtype).eps
    assert 0 < errors["eager"] < 32 * step_size
    for name in NAMES[1:]:
        assert errors[name] < 2 * errors["eager"] + step_size, errors


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_neighbour_changes_a_sample_by_no_more_than_rounding(name, mode, tiny_config, shake):
    """Alone, in a batch and beside padding: the same up to a few steps of the format."""
    dtype, low = MODES[mode]
    for kind in KINDS:
        model = shake(DebertaExtModel(small_config(tiny_config, kind)), std=0.15).to(dtype)
        model.set_attn_implementation(name)
        arguments = call_of("base")
        with torch.no_grad(), torch.autocast("cpu", low) if low is not None else nullcontext():
            for unpadding in (False, True):
                model.set_unpadding(unpadding)
                together = model(**arguments).last_hidden_state
                for row in range(2):
                    real = arguments["attention_mask"][row].bool()
                    alone = model(input_ids=arguments["input_ids"][row : row + 1, real]).last_hidden_state[0]
                    error = (together[row, real] - alone).double().norm() / alone.double().norm()
                    assert error < 8 * torch.finfo(low or dtype).eps, (kind, row)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_result_with_dropout_and_under_deterministic_algorithms(name, head, tiny_config, shake):
    model_class, fields = HEADS[head]
    kind = KINDS[list(HEADS).index(head) % 3]
    dropout = dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model = shake(model_class(small_config(tiny_config, kind, **fields, **dropout)))
    model.set_attn_implementation(name)
    model.train()
    arguments = call_of(head)

    def run(seed):
        torch.manual_seed(seed)
        return step(model, arguments)

    before, state = torch.are_deterministic_algorithms_enabled(), torch.get_rng_state()
    try:
        torch.use_deterministic_algorithms(True)
        first, again, other = run(1), run(1), run(2)
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_rng_state(state)
    for ours, theirs in zip(first, again, strict=True):
        assert ours.keys() == theirs.keys()
        for place, x in ours.items():
            assert torch.equal(x, theirs[place]), place
    assert any(not torch.equal(x, other[1][place]) for place, x in first[1].items())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_flex_at_inference_stays_finite_and_is_as_close_as_eager(dtype, tiny_config, shake):
    """Slow, because each dtype is compiled."""
    model = shake(DebertaExtModel(small_config(tiny_config, "v3", hidden_size=32)), std=0.15)
    arguments = call_of("base")
    real = arguments["attention_mask"].bool()
    with torch.no_grad():
        exact = copy.deepcopy(model).to(dtype).double()(**arguments).last_hidden_state[real]
        errors = {}
        for name in ("eager", "flex"):
            half = copy.deepcopy(model).to(dtype)
            half.set_attn_implementation(name)
            half.set_unpadding(False)
            errors[name] = ((half(**arguments).last_hidden_state[real].double() - exact).norm() / exact.norm()).item()
        assert errors["flex"] < 2 * errors["eager"] + torch.finfo(dtype).eps
        inflate(half, 150.0)
        assert torch.isfinite(half(**arguments).last_hidden_state).all()

# SPDX-License-Identifier: Apache-2.0
"""Every head on every backend in every precision: no dtype errors, no overflow, errors within the rounding of the format."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from backends import AUTO
from every_head import HEADS, KINDS, MODES, NAMES, call_of, small, step
from transformers import DebertaV2Model

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtModel
from hf_deberta_ext.kernels.attention_triton import triton_unavailable


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_embeds_of_another_dtype_are_taken_and_the_loss_is_float32(kind, tiny_config, batch):
    model = DebertaExtForMaskedLM(tiny_config(kind)).to(torch.bfloat16)
    output = model(inputs_embeds=torch.randn(1, 5, 32), labels=torch.ones(1, 5).long())
    assert output.logits.dtype == torch.bfloat16 and output.loss.dtype == torch.float32


# True if Triton's interpreter was enabled before Triton was imported.
INTERPRETS = triton_unavailable(torch.device("cpu"), torch.float32, 16) is None
BACKENDS = [*NAMES, *["triton"] * INTERPRETS, *["native"] * (AUTO == "native")]
# Kinds take turns over heads and backends, so that each meets every mode; modes take turns over heads with all but eager: of
# their gradients the next test looks at every one.
EVERY = [
    (head, name, mode, KINDS[(place + BACKENDS.index(name) + number) % 3])
    for place, head in enumerate(HEADS)
    for name in BACKENDS
    for number, mode in enumerate(MODES)
    if (name == "eager" or place % len(MODES) == number) and not (name == "native" and "float16" in mode.split())
]


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETS, reason="the kernels run in this process")
@pytest.mark.parametrize("part", ["1/3", "2/3", "3/3"])
def test_triton_passes_in_a_process_whose_triton_interprets(part):
    pytest.importorskip("triton")
    chosen = ["-k", "triton or (those_of_eager and sequence)", "--share", part]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__, *chosen]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("head", "name", "mode", "kind"), EVERY, ids=lambda x: str(x))
def test_extreme_activations_stay_finite_forward_and_backward(head, name, mode, kind, tiny_config, shake):
    dtype, low = MODES[mode]
    model = shake(small(head, kind, tiny_config, hidden_size=32), std=0.3)
    # Queries and keys, of content and positions, fit in float16, but their products overflow.
    for parameter_name, parameter in model.named_parameters():
        if "query_proj." in parameter_name or "key_proj." in parameter_name:
            parameter.data.mul_(200.0)
    arguments = call_of(head)
    assert largest_product(model, arguments) > 65504
    model = model.to(dtype)
    model.set_attn_implementation(name)
    outputs, gradients = step(head, model, arguments, low)
    assert {backend for backend, _ in model.attention_backends().values()} == {name}
    assert gradients
    for place, x in [*outputs.items(), *gradients.items()]:
        assert torch.isfinite(x).all(), place


def largest_product(model, arguments):
    """Return the largest |q · k| of the first layer before scaling, in float32."""
    sizes = []

    def look(attention, given, _):
        q, k = (attention.split_heads(proj(given[0])) for proj in (attention.query_proj, attention.key_proj))
        sizes.append((q @ k.transpose(-1, -2)).abs().max().item())

    base = getattr(model, "discriminator", model).base_model
    handle = base.encoder.layer[0].attention.self.register_forward_hook(look)
    with torch.no_grad():
        model(**arguments)
    handle.remove()
    return sizes[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("head", HEADS)
def test_gradients_are_as_close_to_float64_as_those_of_eager(head, mode, tiny_config, shake, monkeypatch):
    """The error is at most twice the error of eager in the same precision, plus one step of the format."""
    # Samples of the generator would change with a rounded logit.
    joint = "hf_deberta_ext.model.replaced_tokens_deberta_ext"
    monkeypatch.setattr(f"{joint}.sample_replacements", lambda logits, *_: torch.arange(len(logits)) % 40)
    dtype, low = MODES[mode]
    arguments = call_of(head)
    model = shake(small(head, KINDS[list(HEADS).index(head) % 3], tiny_config, hidden_size=32), std=0.15).to(dtype)
    exact = copy.deepcopy(model).double()
    exact.set_attn_implementation("eager")
    _, expected = step(head, exact, arguments)
    errors = {}
    for name in BACKENDS:
        if name == "native" and "float16" in mode.split():
            continue
        model.set_attn_implementation(name)
        _, gradients = step(head, model, arguments, low)
        errors[name] = distance(gradients, expected)
    step_size = torch.finfo(low or dtype).eps
    assert 0 < errors["eager"] < 32 * step_size
    for name in errors:
        assert errors[name] < 2 * errors["eager"] + step_size, errors


def distance(gradients, expected):
    """Return |gradients - expected| / |expected|, with all parameters as one vector."""
    assert gradients.keys() == expected.keys()
    size = sum(x.square().sum() for x in expected.values()).sqrt()
    return (sum((gradients[n] - x).square().sum() for n, x in expected.items()).sqrt() / size).item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_gradients_are_as_close_to_float64_as_those_of_transformers(kind, mode, tiny_config, stock_config, shake):
    """At most 1.5 times transformers' error, plus one step of the format. (Its v1 fails under autocast.)"""
    dtype, low = MODES[mode]
    stock = shake(DebertaV2Model(stock_config(kind)), std=0.15)
    ours = DebertaExtModel(tiny_config(kind))
    loaded = ours.load_state_dict(stock.state_dict(), strict=False)
    assert loaded == (["embeddings.position_embeddings.weight"], [])
    ours, stock = ours.eval().to(dtype), stock.to(dtype)
    # Without padding, because transformers also computes states at padding.
    arguments = dict(input_ids=call_of("base")["input_ids"][:1])
    _, expected = step("base", copy.deepcopy(stock).double(), arguments)
    errors = [distance(step("base", model, arguments, low)[1], expected) for model in (ours, stock)]
    assert 0 < errors[0] < 1.5 * errors[1] + torch.finfo(low or dtype).eps, errors

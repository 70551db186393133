# SPDX-License-Identifier: Apache-2.0
"""flex_attention against the equation as written, called alone and inside of a compiled function."""

import shutil

import pytest
import torch
from attention_inputs import call, make_inputs
from torch._dynamo.testing import CompileCounterWithBackend

from hf_deberta_ext.model.attention_flex import attention_score_mod, flex_unavailable

needs_compiler = pytest.mark.skipif(
    (shutil.which("g++") is None and shutil.which("clang++") is None) or torch.__version__ < (2, 13),
    reason="flex_attention on cpu needs a C++ compiler and torch 2.13",
)
BOTH, ALL = ("c2p", "p2c"), ("c2p", "p2c", "p2p")
TERMS = [BOTH, ("c2p",), ("p2c",), ("p2p",), ALL, ()]
all_terms = pytest.mark.parametrize("terms", TERMS, ids=lambda x: "+".join(x) or "no-terms")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """torch compiles one function only a few times: each test starts from none."""
    torch._dynamo.reset()


def inputs(N, terms=BOTH, table="buckets", mask="none", **options):
    """Inputs without gradients, which flex_attention has not on CPU."""
    leaves, options = make_inputs(N, terms, table, mask, d=16, seed=N, **options)
    return [x.detach() for x in leaves], options


def assert_flex_equals_eager(relative_error, *arguments, **options):
    leaves, options = inputs(*arguments, **options)
    reference, out = (call(name, leaves, options) for name in ("eager", "flex"))
    assert out.dtype == reference.dtype and out.shape == reference.shape
    assert not out[reference.sum(-1) == 0].any()
    assert relative_error("flex", out, reference) < 1e-5


@pytest.mark.criterion("A1.1")
@needs_compiler
@pytest.mark.parametrize("mask", ["dead-row", pytest.param("none", marks=pytest.mark.slow)])
def test_flex_equals_eager_at_every_length(mask, relative_error):
    for N in (33, 65, 129, 300, 1):
        assert_flex_equals_eager(relative_error, N, mask=mask)


@needs_compiler
@pytest.mark.slow
@all_terms
def test_flex_equals_eager_everywhere(terms, relative_error):
    """Also p2p alone at N = 2 and 31: torch put its own name for a size "ks1" into "ks15" as well, a C++ error.

    Masks and tables take turns: compiling takes 20 seconds."""
    place = TERMS.index(terms)
    mask, table = ("none", "right", "dead-row")[place % 3], ("buckets", "plain")[place % 2]
    for N in (1, 2, 31, 33, 64, 128, 257, 511, 700):
        assert_flex_equals_eager(relative_error, N, terms, table, mask)


@needs_compiler
@pytest.mark.slow
def test_flex_compiles_once_for_many_lengths(relative_error):
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda leaves, options: call("flex", leaves, options), fullgraph=True, backend=counter)
    for N in (48, 65, 33, 130):
        leaves, options = inputs(N, ALL, mask="right")
        del options["reach"]
        assert relative_error("flex in a graph", compiled(leaves, options), call("eager", leaves, options)) < 1e-5
    assert counter.frame_count == 2, "one with the first length, one for all others"


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_flex_is_as_exact_as_eager_in_half_precision(dtype, relative_error):
    leaves, options = inputs(65, dtype=dtype)
    exact = call("eager", [x.double() for x in leaves], options)
    eager, out = (call(name, leaves, options) for name in ("eager", "flex"))
    assert out.dtype == dtype
    assert relative_error("flex, half", out, exact) <= 2 * relative_error("eager, half", eager, exact)


# The CUDA formulation, run by torch's unfused reference of flex_attention, which has the same derivative rules.


def score_mod(leaves, options):
    return attention_score_mod(*leaves, *(options[name] for name in ("delta", "terms", "scale", "mask")))


def test_flex_score_mod_serves_longer_tables(relative_error):
    leaves, options = inputs(40, ALL, length=50)
    reference = call("eager", leaves, options, delta=options["delta"][10:-10])
    assert relative_error("flex, longer table", score_mod(leaves, options), reference) < 1e-5


@all_terms
def test_flex_score_mod_of_cuda_equals_eager_with_gradients(terms, relative_error, monkeypatch):
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *tensors: None)
    leaves, options = make_inputs(33, terms, mask="dead-row", d=16)
    reference, out = call("eager", leaves, options), score_mod(leaves, options)
    assert relative_error("flex, score_mod", out, reference) < 1e-5
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    expected, gradients = (torch.autograd.grad((x * weight).sum(), leaves, allow_unused=True) for x in (reference, out))
    for gradient, reference in zip(gradients, expected, strict=True):
        assert (gradient is None) == (reference is None)
        if reference is not None:
            assert reference.any() and (gradient - reference).norm() < 1e-5 * reference.norm()


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (dict(dropout_p=0.1), "dropout"),
        (dict(needs_grad=True), "no backward on cpu"),
        (dict(dtype=torch.float64), "float64"),
        (dict(device=torch.device("mps")), "mps"),
        (dict(device=torch.device("cuda"), head_size=8), "head size"),
        (dict(device=torch.device("cuda"), dtype=torch.bfloat16, needs_grad=True), None),
    ],
)
def test_flex_unavailable_gives_the_reason(arguments, reason):
    answer = flex_unavailable(**(dict(device=torch.device("cpu"), head_size=64, dtype=torch.float32) | arguments))
    assert answer is None if reason is None else reason in answer


def test_flex_refuses_what_it_cannot_serve():
    leaves, options = inputs(8)
    with pytest.raises(ValueError, match=r"no dropout.*another attention backend"):
        call("flex", leaves, options, dropout_p=0.1)
    with pytest.raises(ValueError, match="no backward on cpu"):
        call("flex", [x.requires_grad_() for x in leaves], options)

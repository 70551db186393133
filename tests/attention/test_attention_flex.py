# SPDX-License-Identifier: Apache-2.0
"""flex_attention against the equation as written, called alone and inside of a compiled function."""

import math
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from hf_deberta_ext.model.attention_eager import disentangled_attention_eager
from hf_deberta_ext.model.attention_flex import attention_score_mod, disentangled_attention_flex, flex_unavailable
from hf_deberta_ext.model.relative_position import RelativePosition

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(
    (shutil.which("g++") is None and shutil.which("clang++") is None) or torch.__version__ < (2, 13),
    reason="flex_attention on cpu needs a C++ compiler and torch 2.13",
)
H, D, BUCKETS, REACH = 4, 16, 16, 32
TERMS = [("c2p", "p2c"), ("c2p",), ("p2c",), ("p2p",), ("c2p", "p2c", "p2p"), ()]
names = {"ids": lambda x: "+".join(x) or "no-terms"}


@pytest.fixture(autouse=True)
def fresh_compiler():
    """torch compiles one function only a few times: each test starts from none."""
    torch._dynamo.reset()


def inputs(N, terms=("c2p", "p2c"), B=2, dtype=torch.float32, table="buckets", length=None, seed=0):
    """Tensors of a call: content [B, H, N, D] as transposed views, a table of R rows, delta of `length` >= N."""
    generator = torch.Generator().manual_seed(seed)
    position = RelativePosition(buckets=BUCKETS if table == "buckets" else -1, max_distance=REACH)
    R = 2 * (BUCKETS if table == "buckets" else REACH)
    Q_c, K_c, V_c = (
        torch.randn(B, N, H * D, generator=generator).to(dtype).unflatten(-1, (H, D)).transpose(1, 2) for _ in range(3)
    )
    K_r, Q_r = (torch.randn(H, R, D, generator=generator).to(dtype) for _ in range(2))
    options = dict(K_r=K_r, Q_r=Q_r, delta=position(length or N), terms=terms, scale=1 / math.sqrt(D * (1 + len(terms))))
    return (Q_c, K_c, V_c), options


def make_mask(kind, N, B=2):
    """Boolean masks by name; True = may attend."""
    keep = torch.arange(N) < torch.tensor([N, (N + 1) // 2])[:B, None]
    if kind == "none":
        return None
    if kind == "padded-keys":
        return keep[:, None, None, :]
    if kind == "empty-rows":
        return keep[:, None, None, :] & keep[:, None, :, None]
    document = torch.arange(N) // max(1, N // 3)
    return (document[:, None] == document)[None, None]


@pytest.mark.criterion("A1.1")
@needs_compiler
@pytest.mark.parametrize("mask", ["none", "empty-rows"])
def test_flex_equals_eager_at_every_length(mask, relative_error):
    for N in (33, 65, 129, 300, 1):
        content, options = inputs(N, seed=N)
        reference = disentangled_attention_eager(*content, **options, mask=make_mask(mask, N))[0]
        ours = disentangled_attention_flex(*content, **options, mask=make_mask(mask, N))
        assert ours.dtype == reference.dtype and ours.shape == reference.shape
        assert (ours[reference.sum(-1) == 0] == 0).all()
        assert relative_error("flex", ours, reference) < 1e-5


@needs_compiler
@pytest.mark.slow
def test_flex_compiles_once_for_many_lengths(relative_error):
    counter = CompileCounterWithBackend("inductor")

    def model(content, options, mask):
        return disentangled_attention_flex(*content, **options, mask=mask)

    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for N in (48, 65, 33, 130):
        content, options = inputs(N, terms=("c2p", "p2c", "p2p"), seed=N)
        mask = make_mask("padded-keys", N)
        reference = disentangled_attention_eager(*content, **options, mask=mask)[0]
        assert relative_error("flex in a graph", compiled(content, options, mask), reference) < 1e-5
    assert counter.frame_count == 2, "one with the first length, one for all others"


def test_flex_score_mod_serves_query_positions_and_longer_tables(relative_error):
    content, options = inputs(40, terms=("c2p", "p2c", "p2p"), length=50)
    content = (content[0][:, :, :7], *content[1:])
    positions = torch.tensor([[3, 39, 0, 11, 12, 5, 30], [8, 9, 10, 1, 0, 39, 2]])
    K_r, Q_r, delta, terms, scale = (options[name] for name in ("K_r", "Q_r", "delta", "terms", "scale"))
    ours = attention_score_mod(*content, K_r, Q_r, delta, terms, scale, None, positions)
    options["delta"] = delta[10:-10]
    reference = disentangled_attention_eager(*content, **options, query_positions=positions)[0]
    assert relative_error("flex, query positions", ours, reference) < 1e-5


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_flex_is_as_exact_as_eager_in_half_precision(dtype, relative_error):
    content, options = inputs(65, dtype=dtype)
    eager = disentangled_attention_eager(*content, **options)[0]
    ours = disentangled_attention_flex(*content, **options)
    wide = options | {name: options[name].double() for name in ("K_r", "Q_r")}
    exact = disentangled_attention_eager(*(x.double() for x in content), **wide)[0]
    assert ours.dtype == dtype
    assert relative_error("flex, half", ours, exact) <= 2 * relative_error("eager, half", eager, exact)


@pytest.mark.parametrize("terms", TERMS, **names)
def test_flex_score_mod_of_cuda_equals_eager_with_gradients(terms, relative_error, monkeypatch):
    """The CUDA formulation, run by torch's unfused reference of flex_attention, which has the same derivative rules."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *tensors: None)
    N = 33
    content, options = inputs(N, terms=terms)
    mask = make_mask("empty-rows", N)
    leaves = [x.detach().clone().requires_grad_() for x in (*content, options["K_r"], options["Q_r"])]
    options |= dict(K_r=leaves[3], Q_r=leaves[4])
    reference = disentangled_attention_eager(*leaves[:3], **options, mask=mask)[0]
    ours = attention_score_mod(*leaves, options["delta"], terms, options["scale"], mask, None)
    assert relative_error("flex, score_mod", ours, reference) < 1e-5
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad((reference * weight).sum(), leaves, allow_unused=True)
    gradients = torch.autograd.grad((ours * weight).sum(), leaves, allow_unused=True)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert (gradient is None) == (reference is None)
        if reference is not None:
            assert reference.abs().sum() > 0
            assert (gradient - reference).norm() < 1e-5 * reference.norm()


@needs_compiler
@pytest.mark.slow
def test_names_of_sizes_do_not_meet_in_the_generated_code(relative_error):
    """torch puts its own name for "ks1" also into "ks15", and which names there are depends on the terms: a C++ error."""
    for N in (2, 31):
        content, options = inputs(N, terms=("p2p",), seed=N)
        reference = disentangled_attention_eager(*content, **options)[0]
        assert relative_error("flex", disentangled_attention_flex(*content, **options), reference) < 1e-5


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("table", ["buckets", "distances"])
@pytest.mark.parametrize("mask", ["none", "padded-keys", "empty-rows", "documents"])
@pytest.mark.parametrize("terms", TERMS, **names)
def test_flex_equals_eager_everywhere(terms, mask, table, relative_error):
    for N in (1, 2, 31, 33, 64, 128, 257, 511, 700):
        content, options = inputs(N, terms=terms, table=table, seed=N)
        reference = disentangled_attention_eager(*content, **options, mask=make_mask(mask, N))[0]
        ours = disentangled_attention_flex(*content, **options, mask=make_mask(mask, N))
        assert relative_error("flex", ours, reference) < 1e-5


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (dict(dropout_p=0.1), "dropout"),
        (dict(needs_grad=True), "no backward on cpu"),
        (dict(query_stream=True), "query stream"),
        (dict(dtype=torch.float64), "float64"),
        (dict(device=torch.device("mps")), "mps"),
        (dict(device=torch.device("cuda"), head_dim=8), "head size"),
    ],
    ids=["dropout", "gradient-on-cpu", "query-stream-on-cpu", "float64", "other-device", "small-head-on-cuda"],
)
def test_flex_unavailable_gives_the_reason(arguments, reason):
    assert reason in flex_unavailable(**(dict(device=CPU, head_dim=64, dtype=torch.float32) | arguments))


def test_flex_unavailable_is_silent_on_cuda_with_gradients():
    assert flex_unavailable(torch.device("cuda"), 64, torch.bfloat16, needs_grad=True) is None


def test_flex_refuses_what_it_cannot_serve():
    content, options = inputs(8)
    with pytest.raises(ValueError, match=r"no dropout.*another attention backend"):
        disentangled_attention_flex(*content, **options, dropout_p=0.1)
    options["K_r"].requires_grad_()
    with pytest.raises(ValueError, match="no backward on cpu"):
        disentangled_attention_flex(*content, **options)

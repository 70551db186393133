# SPDX-License-Identifier: Apache-2.0
"""Compare the Triton kernels with the equation: on a GPU if there is one, otherwise small shapes in Triton's interpreter."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from attention_inputs import by_hand, call, make_mask

pytest.importorskip("triton", reason="triton is not installed")

from hf_deberta_ext import AttentionInputs, DebertaExtConfig, DisentangledSelfAttention, disentangled_attention_eager
from hf_deberta_ext.kernels import attention_triton
from hf_deberta_ext.kernels.attention_triton import disentangled_attention_triton, dropout_mask, triton_unavailable
from hf_deberta_ext.kernels.triton_launches import Launch
from hf_deberta_ext.model.attention_deberta_ext import RelativePosition

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
UNSERVED = triton_unavailable(torch.device("cuda"), torch.float32, 64)
# Triton decides if it interprets when it is first imported, before this file.
HERE = UNSERVED is None and (GPU or attention_triton.INTERPRETED)
pytestmark = pytest.mark.skipif(UNSERVED is not None, reason=f"the kernels cannot run here: {UNSERVED}")

SUBSETS = [subset for n in range(4) for subset in itertools.combinations(("c2p", "p2c", "p2p"), n)]
BOTH = ("c2p", "p2c")
NAMES = ("Q_c", "K_c", "V_c", "K_r", "Q_r")


@pytest.mark.skipif(HERE, reason="the kernels run in this process")
@pytest.mark.slow
@pytest.mark.parametrize("part", ["1/3", "2/3", "3/3"])
def test_all_cases_pass_in_a_process_whose_triton_interprets(part):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--run-slow", "--share"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([*command, part, __file__], env=environment, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def small_blocks(request, monkeypatch):
    """Set blocks of 16, so that short inputs have near tiles and far tiles on both sides."""
    if not HERE and request.function is not test_all_cases_pass_in_a_process_whose_triton_interprets:
        pytest.skip("run by test_all_cases_pass_in_a_process_whose_triton_interprets")
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(attention_triton, "find_launches", lambda *args: [Launch(16, 4, 1, 1)])


def random_inputs(N, *, B=1, H=1, d=16, buckets=-1, max_distance=8, dtype=torch.float32, terms=BOTH, seed=0):
    """Return [Q_c, K_c, V_c, K_r, Q_r] with requires_grad, and keyword arguments for both backends."""
    generator = torch.Generator().manual_seed(seed)
    R = 2 * (max_distance if buckets < 0 else buckets)
    content = [torch.randn(B, N, H, d, generator=generator).to(DEVICE, dtype).transpose(1, 2) for _ in range(3)]
    tables = [torch.randn(H, R, d, generator=generator).to(DEVICE, dtype) for _ in range(2)]
    delta = RelativePosition(buckets=buckets, max_distance=max_distance)(N).to(DEVICE)
    tensors = [x.requires_grad_() for x in content + tables]
    return tensors, dict(delta=delta, terms=terms, scale=1 / math.sqrt(d * (1 + len(terms))))


def reads(terms):
    """Return the NAMES of tensors on which the logits and the output depend."""
    return [True] * 3 + [bool({"c2p", "p2p"} & {*terms}), bool({"p2c", "p2p"} & {*terms})]


def run(function, tensors, **kwargs):
    """Return out and the gradients of the tensors that `terms` reads, for a fixed gradient of out."""
    Q_c, K_c, V_c, K_r, Q_r = tensors
    out = function(AttentionInputs(Q_c, K_c, V_c, K_r=K_r, Q_r=Q_r, **kwargs))
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.device, out.dtype)
    wanted = [x for x, read in zip(tensors, reads(kwargs["terms"]), strict=True) if read]
    return out, torch.autograd.grad(out, wanted, grad)


def eager(inputs):
    return disentangled_attention_eager(inputs)[0]


def compare(relative_error, tensors, *, max_distance, tolerance=1e-5, replay=eager, **kwargs):
    """Compare the output and every gradient with eager, by the worst row of each."""
    out, grads = run(disentangled_attention_triton, tensors, max_distance=max_distance, **kwargs)
    expected, references = run(replay, tensors, **kwargs)
    assert relative_error("triton: out", out, expected) < tolerance
    names = [name for name, read in zip(NAMES, reads(kwargs["terms"]), strict=True) if read]
    for name, grad, reference in zip(names, grads, references, strict=True):
        assert grad.dtype == reference.dtype and reference.any()
        # Errors of rows that nearly cancel are relative to the size of the other rows.
        floor = 0.1 * reference.norm() / math.sqrt(reference[..., 0].numel())
        ours, theirs = (torch.cat([x, floor.expand_as(x[..., :1])], -1) for x in (grad, reference))
        assert relative_error(f"triton: gradient of {name}", ours, theirs) < tolerance, name
    return out, grads


def test_two_queries_and_two_keys_by_hand():
    leaves, options, expected = by_hand(DEVICE)
    assert torch.allclose(call("triton", leaves, options)[0, 0, :, 0].cpu(), expected)


slow = pytest.mark.slow
CASES = {
    **{"+".join(terms) or "no terms": (8, dict(N=41, terms=terms)) for terms in SUBSETS},
    **{f"{N} tokens": (8, dict(N=N)) for N in (2, 16, 31, 33, 65)},
    **{f"head size {d}": (8, dict(N=35, d=d)) for d in (24, 64, 128)},
    "buckets": (14, dict(N=33, B=2, H=2, buckets=4, max_distance=14)),
    "buckets, max_distance unknown": (None, dict(N=33, B=2, H=2, buckets=4, max_distance=14)),
}
LONG_CASES = ("65 tokens", "head size 128", "buckets, max_distance unknown")


@pytest.mark.parametrize("case", [pytest.param(case, marks=slow if case in LONG_CASES else ()) for case in CASES])
def test_any_terms_lengths_head_sizes_and_tables_equal_eager(case, relative_error):
    max_distance, options = CASES[case]
    tensors, kwargs = random_inputs(**options)
    compare(relative_error, tensors, max_distance=max_distance, **kwargs)


MASKS = {
    "right padding": make_mask("right", 35),
    "left padding": make_mask("left", 35),
    "document blocks and an empty row": make_mask("dead-row", 35),
    "a mask for each head": torch.rand(2, 2, 35, 35, generator=torch.Generator().manual_seed(5)) > 0.5,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_any_mask_equals_eager(mask, relative_error):
    tensors, kwargs = random_inputs(35, B=mask.shape[0], H=mask.shape[1])
    out, grads = compare(relative_error, tensors, max_distance=8, mask=mask.to(DEVICE), **kwargs)
    rows = mask.expand(-1, out.shape[1], 35, 35).any(-1).to(DEVICE)
    assert not out[~rows].any() and not grads[0][~rows].any()


def test_tiles_of_padding_are_not_read():
    """Put NaN, which would spread, in keys that a [B, 1, 1, N] mask hides and in queries without gradient."""
    (Q_c, K_c, V_c, K_r, Q_r), kwargs = random_inputs(70, B=2)
    mask = (torch.arange(70) < torch.tensor([[70], [20]]))[:, None, None].to(DEVICE)
    expected = eager(AttentionInputs(Q_c, K_c, V_c, K_r=K_r, Q_r=Q_r, mask=mask, **kwargs))
    grad = torch.randn(2, 1, 70, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    grad[1, :, 32:] = 0
    references = torch.autograd.grad(expected, (Q_c, K_c, V_c, K_r, Q_r), grad)
    with torch.no_grad():
        V_c[1, :, 32:] = math.nan
        delta, bits = kwargs["delta"][61:78], mask.view(torch.uint8).expand(2, 1, 70, 70)
        inputs = (Q_c, K_c, V_c, K_r, Q_r, None, delta, bits, None, None)
        out, lse = attention_triton.attend_op(*inputs, 8, kwargs["scale"], 0.0)
        assert torch.allclose(out, expected, atol=1e-5)
        out[1, :, 32:] = math.nan
        grads = attention_triton.attend_backward_op(grad, out, lse, *inputs, 8, kwargs["scale"], 0.0, [True, True, False])
    for x, y in zip(grads, references, strict=False):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-5) and x.any()


def packed_inputs(**options):
    lengths = [3, 33, 1, 20]
    tensors, kwargs = random_inputs(sum(lengths), **options)
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
    document = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    return tensors, kwargs, cu_seqlens, (document[:, None] == document).to(DEVICE)[None, None]


@pytest.mark.slow
def test_packed_documents_equal_runs_of_each(relative_error):
    tensors, kwargs, cu_seqlens, mask = packed_inputs(H=2)

    def masked(inputs):
        return eager(inputs._replace(mask=mask))

    out, _ = compare(relative_error, tensors, max_distance=8, cu_seqlens=cu_seqlens, replay=masked, **kwargs)
    Q_c, K_c, V_c, K_r, Q_r = tensors
    for lo, hi in itertools.pairwise(cu_seqlens.tolist()):
        alone = [x[:, :, lo:hi] for x in (Q_c, K_c, V_c)]
        delta = RelativePosition(buckets=-1, max_distance=8)(hi - lo).to(DEVICE)
        one = call("eager", [*alone, K_r, Q_r], kwargs, delta=delta)
        assert relative_error("triton: packed", out[:, :, lo:hi], one) < 1e-5


@pytest.mark.parametrize("max_distance", [None, 8, 40], ids=["unknown", "within documents", "beyond documents"])
def test_an_offset_table_for_the_longest_document_serves_the_stream(max_distance, relative_error):
    """Regression test: a table for the longest document was read as one for the stream: positions were wrong."""
    terms = ("c2p", "p2c", "p2p")
    tensors, kwargs, cu_seqlens, mask = packed_inputs(max_distance=max_distance or 64, terms=terms)
    longest = RelativePosition(buckets=-1, max_distance=max_distance or 64)(33).to(DEVICE)
    whole = kwargs.pop("delta")

    def masked(inputs):
        return eager(inputs._replace(delta=whole, mask=mask))

    compare(
        relative_error, tensors, max_distance=max_distance, delta=longest, cu_seqlens=cu_seqlens, replay=masked, **kwargs
    )


def test_dropout_by_replay_of_its_mask_equals_eager(relative_error, monkeypatch):
    tensors, kwargs = random_inputs(33, H=2)
    seed = torch.tensor([1234567890123], device=DEVICE)
    monkeypatch.setattr(attention_triton, "draw_seed", lambda device: seed)
    keep = dropout_mask(seed, 1, 2, 33, 0.3)

    def dropped(inputs):
        _, probs = disentangled_attention_eager(inputs._replace(dropout_p=0.0))
        return (probs * keep / 0.7) @ inputs.V_c

    compare(relative_error, tensors, max_distance=8, dropout_p=0.3, replay=dropped, **kwargs)


@pytest.mark.slow
def test_dropout_has_its_rate_in_each_head_row_and_column():
    seed = attention_triton.draw_seed(torch.device(DEVICE))
    keep = dropout_mask(torch.tensor([7], device=DEVICE), 2, 2, 192, 0.1).double().cpu()
    assert seed.shape == (1,) and abs(keep.mean() - 0.9) < 4 * 0.3 / math.sqrt(keep.numel())
    for axes in [(0, 2, 3), (1, 2, 3), (0, 1, 2), (0, 1, 3)]:
        mean = keep.mean(axes)
        assert (mean - 0.9).abs().max() < 5 * 0.3 / math.sqrt(keep.numel() / mean.numel())
    assert not torch.equal(keep[0, 0], keep[0, 1]) and not torch.equal(keep[0, 0], keep[1, 0])
    assert not torch.equal(keep, dropout_mask(torch.tensor([8], device=DEVICE), 2, 2, 192, 0.1).double().cpu())


@pytest.mark.slow
def test_dropout_follows_the_default_generator_and_all_sums_have_a_fixed_order():
    tensors, kwargs = random_inputs(33, B=2, terms=("c2p", "p2c", "p2p"))
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(run(disentangled_attention_triton, tensors, max_distance=8, dropout_p=0.2, **kwargs))
    (first, first_grads), (again, again_grads), (other, _) = results
    assert torch.equal(first, again) and all(map(torch.equal, first_grads, again_grads)) and not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_is_as_exact_as_eager(dtype, relative_error):
    tensors, kwargs = random_inputs(35, dtype=dtype)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    truth = run(eager, wide, **kwargs)
    expected = run(eager, tensors, **kwargs)
    ours = run(disentangled_attention_triton, tensors, max_distance=8, **kwargs)
    for name, x, y, z in zip(("out", *NAMES), *([r[0], *r[1]] for r in (ours, expected, truth)), strict=True):
        assert x.dtype == dtype and z.any()
        whole, reference = (relative_error(f"triton: {dtype}, {who}", value[None].flatten(1), z[None].flatten(1))
                            for who, value in (("kernels against float64", x), ("eager against float64", y)))  # fmt: skip
        assert whole < 2 * reference, name


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_module_trains_as_one_that_is_not(backend):
    """Regression test: compiled training crashed, because the fake backward had other strides than the operator."""
    torch.manual_seed(0)
    config = DebertaExtConfig(hidden_size=32, num_attention_heads=2, position_buckets=4, max_relative_positions=8)
    config._attn_implementation = "triton"
    module = DisentangledSelfAttention(config).to(DEVICE).train(True)
    module.dropout.p = module.pos_dropout.p = 0.0
    delta = RelativePosition(buckets=4, max_distance=8)(19).to(DEVICE)
    states, P = torch.randn(2, 19, 32, device=DEVICE), torch.randn(8, 32, device=DEVICE)
    results = []
    for function in (module, torch.compile(module, fullgraph=True, backend=backend)):
        module.zero_grad()
        out = function(states, None, P, delta=delta, max_distance=8)[0]
        out.pow(2).sum().backward()
        results.append([out, *(x.grad.clone() for x in module.parameters())])
    assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("terms", [BOTH, ("c2p", "p2c", "p2p"), ()], ids=lambda terms: "+".join(terms) or "none")
def test_operators_agree_with_their_fake_and_autograd_registrations(terms):
    (Q_c, K_c, V_c, K_r, Q_r), kwargs = random_inputs(17, H=2)
    # Transposed, as in modules.
    K_r, Q_r = (x.transpose(0, 1).contiguous().transpose(0, 1).detach().requires_grad_() for x in (K_r, Q_r))
    bias = torch.randn(2, 17, device=DEVICE, requires_grad=True) if "p2p" in terms else None
    tables = (K_r, Q_r, bias, kwargs["delta"][8:25]) if terms else (None, None, None, None)
    inputs, numbers = (Q_c, K_c, V_c, *tables, None, None, None), (8 if terms else 0, kwargs["scale"], 0.0)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(attention_triton.attend_op, (*inputs, *numbers), test_utils=tests)
    with torch.no_grad():
        out, lse = attention_triton.attend_op(*inputs, *numbers)
        for wanted in ([x is not None for x in tables[:3]], [False] * 3):
            args = (torch.ones_like(out), out, lse, *inputs, *numbers, wanted)
            torch.library.opcheck(attention_triton.attend_backward_op, args, test_utils=("test_schema", "test_faketensor"))


def test_what_is_not_served_is_said():
    (Q_c, K_c, V_c, K_r, Q_r), kwargs = random_inputs(17)
    two = [x.expand(2, -1, -1, -1) for x in (Q_c, K_c, V_c)]
    for content, options, message in (
        ((Q_c, K_c, V_c), dict(query_positions=torch.arange(17)[None]), "17 keys with query_positions = tensor"),
        ((Q_c[:, :, :5], K_c, V_c), {}, "5 queries and 17 keys"),
        (two, dict(cu_seqlens=torch.tensor([0, 17])), "batch of 2"),
        ((Q_c.double(), K_c.double(), V_c.double()), {}, "not float64"),
    ):
        with pytest.raises(ValueError, match=message):
            call("triton", [*content, K_r, Q_r], kwargs, **options)
    assert "from 16 to 128, not 8" in triton_unavailable(torch.device(DEVICE), torch.float32, 8)
    assert "not 256" in triton_unavailable(torch.device(DEVICE), torch.bfloat16, 256)
    if GPU:
        assert "on CUDA, not on cpu" in triton_unavailable(torch.device("cpu"), torch.float32, 64)

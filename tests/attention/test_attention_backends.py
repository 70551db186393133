# SPDX-License-Identifier: Apache-2.0
"""Compare every CPU backend with the equation: outputs, gradients, dropout, memory, whole models."""

import itertools
import math

import pytest
import torch
from attention_inputs import BACKENDS, B, H, by_hand, call, gradients_of, make_inputs, whole
from backends import AUTO, NATIVE
from backends import NAMES as ALL_NAMES
from watch import Watch

from hf_deberta_ext import AttentionInputs, DebertaExtForMaskedLM, DebertaExtModel, disentangled_attention_eager

NAMES = ("Q_c", "K_c", "V_c", "K_r", "Q_r")
LENGTHS = (1, 2, 31, 33, 64, 65, 127, 129, 256, 257, 513, 700)
# Additional backends on a GPU.
MORE_LENGTHS = (32, 63, 128, 255, 511, 512, 1025, 1100, 2100)
MASKS = ("none", "right", "left", "documents", "dead-row")
TERMS = (("c2p",), ("p2c",), ("c2p", "p2c"), ("p2p",), ())
TABLES = ("plain", "buckets")
# Every pair of values of two factors occurs.
COVERING = [
    (N, MASKS[row], TERMS[(row + place) % 5], TABLES[(row + place) % 2])
    for place, N in enumerate(LENGTHS)
    for row in range(5)
]
backends = pytest.mark.parametrize("backend", BACKENDS)


def run(backend, leaves, options, dtype=None):
    """Return the output and the gradients of the five leaves. The loss weights depend only on shapes."""
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in leaves]
    out = call(backend, leaves, options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return out.detach(), torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)


def assert_same(backend, leaves, options, relative_error, tolerance=1e-5):
    out, gradients = run(backend, leaves, options)
    reference, expected = run("eager", leaves, options, torch.float64)
    assert out.dtype == leaves[0].dtype and out.shape == reference.shape
    assert relative_error(backend, out, reference) < tolerance
    if options["mask"] is not None:
        dead = ~options["mask"].any(-1).expand(B, H, out.shape[2])
        assert not out[dead].any() and not gradients[0][dead].any()
    for place, (name, gradient, wanted) in enumerate(zip(NAMES, gradients, expected, strict=True)):
        assert (gradient is None) == (wanted is None), name
        if wanted is None:
            continue
        assert gradient.dtype == leaves[0].dtype
        rows = wanted.norm(dim=-1)
        if rows.max() < 1e-12:
            # Every query has one key.
            assert out.shape[2] <= 2 and gradient.abs().max() < 1e-6, name
            continue

        def error_of(label, x, wanted=wanted, rows=rows):
            return max(relative_error(label, whole(x), whole(wanted)), relative_error(label, x, wanted, rows >= rows.mean()))

        error = error_of(f"{backend}, gradients", gradient)
        if error >= tolerance:
            # If gradients of keys cancel, eager is hardly better: 3.9 times was the worst of 7,660 gradients.
            eager = run("eager", leaves, options)[1][place]
            assert error < 5 * error_of("eager, gradients", eager), name


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_two_queries_and_two_keys_by_hand(backend):
    leaves, options, expected = by_hand()
    assert torch.allclose(call(backend, leaves, options)[0, 0, :, 0], expected)


@backends
@pytest.mark.parametrize(
    ("N", "mask", "terms", "table"), COVERING, ids=lambda x: ("+".join(x) or "no-terms") if isinstance(x, tuple) else None
)
def test_outputs_and_gradients_equal_eager(N, mask, terms, table, backend, relative_error):
    d = ((16, 21, 40) if backend == "native" else (8, 12, 16))[N % 3]
    leaves, options = make_inputs(N, terms, table, mask, d=d, seed=N)
    assert_same(backend, leaves, options, relative_error)


@backends
@pytest.mark.parametrize(
    ("N", "device"),
    [
        *(pytest.param(N, "cpu", marks=pytest.mark.slow) for N in (511, 1100)),
        *(pytest.param(N, "cuda", marks=pytest.mark.gpu) for N in (*LENGTHS, *MORE_LENGTHS)),
    ],
)
def test_outputs_and_gradients_equal_eager_everywhere(N, device, backend, relative_error):
    cases = [*itertools.product(MASKS, TERMS, TABLES)]
    # A long input takes seconds.
    for mask, terms, table in cases[N % 3 :: 7 if N > 2000 else 3 if N > 1000 else 1]:
        leaves, options = make_inputs(N, terms, table, mask, d=16, seed=N, device=device)
        assert_same(backend, leaves, options, relative_error)


@backends
@pytest.mark.parametrize(
    ("first", "last"), [(3, 30), (124, 200), (252, 264), (508, 524), (572, 580), (612, 617), (1020, 1031)]
)
def test_outputs_equal_eager_at_every_remainder_of_the_tiles(first, last, backend, relative_error):
    """Regression test: tables of "blocked" ended before the last tile of keys if N slightly exceeded a multiple of it."""
    for N in range(first, last):
        leaves, options = make_inputs(N, ("c2p", "p2c", "p2p"), "clamped", d=16 if backend == "native" else 4, seed=N)
        with torch.no_grad():
            leaves = [x[:1, :1] if x.dim() == 4 else x[:1] for x in leaves]
            expected = call("eager", leaves, options)
            for max_distance in (40, None):
                ours = call(backend, leaves, options | dict(max_distance=max_distance))
                assert relative_error(backend, ours, expected) < 1e-5, (N, max_distance)


@backends
@pytest.mark.parametrize("terms", [("c2p", "p2c", "p2p"), ("c2p", "p2p"), ("p2c", "p2p")], ids="+".join)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("N", [7, 33, 128, 300])
def test_p2p_beside_other_terms_and_a_longer_delta_equal_eager(terms, table, N, backend, relative_error):
    """Test delta with L > N too, as for a batch padded to a common table, or for documents of a stream."""
    leaves, options = make_inputs(N, terms, table, mask="right", length=N + 90)
    assert_same(backend, leaves, options, relative_error)
    exact = make_inputs(N, terms, table, mask="right")[1]
    assert torch.allclose(call(backend, leaves, options), call(backend, leaves, exact), atol=1e-6)


@backends
@pytest.mark.parametrize("N", [20, 140])
@pytest.mark.parametrize("shape", ["B11N", "11NN", "1HNN", "BHNN", "B1N1", "NN"])
def test_masks_broadcast(shape, N, backend, relative_error):
    sizes = dict(B11N=(B, 1, 1, N), NN=(N, N)) | {"11NN": (1, 1, N, N), "1HNN": (1, H, N, N)}
    sizes |= dict(BHNN=(B, H, N, N), B1N1=(B, 1, N, 1))
    leaves, options = make_inputs(N, ("c2p", "p2c"))
    options["mask"] = torch.rand(sizes[shape], generator=torch.Generator().manual_seed(2)) > 0.3
    assert_same(backend, leaves, options, relative_error)


@backends
@pytest.mark.parametrize("name", NAMES)
def test_one_argument_alone_may_need_a_gradient(name, backend):
    leaves, options = make_inputs(40, ("c2p", "p2c"))
    wanted = run(backend, leaves, options)[1][NAMES.index(name)]
    alone = [x.detach().requires_grad_(other == name) for x, other in zip(leaves, NAMES, strict=True)]
    out = call(backend, alone, options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((out * weight).sum(), alone[NAMES.index(name)])
    assert gradient.any() and torch.allclose(gradient, wanted, atol=1e-6)


@backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("N", "mask"), [(33, "dead-row"), (129, "right"), (513, "documents")])
def test_half_precision_is_as_exact_as_eager(N, mask, dtype, backend, relative_error):
    leaves, options = make_inputs(N, ("c2p", "p2c"), mask=mask, dtype=dtype)
    if backend == "native" and dtype == torch.float16:
        with pytest.raises(ValueError, match="requires the dtype float32 or bfloat16"):
            call(backend, leaves, options)
        return
    exact, exact_gradients = run("eager", leaves, options, torch.float64)
    eager, eager_gradients = run("eager", leaves, options)
    out, gradients = run(backend, leaves, options)
    assert out.dtype == dtype
    error = relative_error(f"{backend}, half", out, exact)
    assert error <= 2 * relative_error("eager, half", eager, exact)
    for ours, theirs, wanted in zip(gradients, eager_gradients, exact_gradients, strict=True):
        assert ours.dtype == dtype
        error = relative_error(f"{backend}, half", whole(ours), whole(wanted))
        assert error <= 2 * relative_error("eager, half", whole(theirs), whole(wanted))


@backends
def test_logits_stay_in_float32_under_autocast(backend):
    leaves, options = make_inputs(140, ("c2p", "p2c"))
    out = call(backend, leaves, options)
    with torch.autocast("cpu", torch.bfloat16):
        again = call(backend, leaves, options)
    assert torch.equal(out, again)
    gradients, others = (torch.autograd.grad(x.square().sum(), leaves) for x in (out, again))
    assert all(map(torch.equal, gradients, others))


# Dropout. N = 64 is one tile of "blocked", N = 160 is not.


def probabilities(backend, leaves, options, *, seed=0, **more):
    """Return the probabilities after dropout, [B, H, N, N]: outputs for columns of the identity as V_c."""
    N, d = leaves[2].shape[2:]
    parts = []
    for columns in torch.eye(N).split(d, dim=1):
        V_c = torch.zeros(B, H, N, d, dtype=leaves[2].dtype)
        V_c[..., : columns.shape[1]] = columns
        torch.manual_seed(seed)
        parts.append(call(backend, [*leaves[:2], V_c, *leaves[3:]], options, **more)[..., : columns.shape[1]])
    return torch.cat(parts, -1).detach()


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("N", [64, 160])
def test_dropout_has_its_exact_rate_everywhere_and_follows_the_seed(N, backend):
    leaves, options = make_inputs(N, ("c2p", "p2c"))
    # No probability underflows to 0.
    options["scale"] = 0.01
    clean, out = (probabilities(backend, leaves, options, dropout_p=p) for p in (0.0, 0.25))
    dropped, second = out == 0, probabilities(backend, leaves, options, dropout_p=0.25, seed=1) == 0
    assert torch.equal(probabilities(backend, leaves, options, dropout_p=0.25), out)
    torch.manual_seed(0)
    first, next_call = (call(backend, leaves, options, dropout_p=0.25) for _ in range(2))
    assert not torch.equal(first, next_call)
    sigma = math.sqrt(0.25 * 0.75 / out.numel())
    assert abs(dropped.double().mean().item() - 0.25) < 5 * sigma
    for axis in range(4):
        rates = dropped.double().mean([other for other in range(4) if other != axis])
        assert (rates - 0.25).abs().max() < 5.5 * sigma * math.sqrt(len(rates))
    assert torch.allclose(out[~dropped], clean[~dropped] / 0.75, rtol=1e-4)
    # Different seeds, heads and sequences have different masks.
    masks = torch.cat([dropped.flatten(0, 1), second.flatten(0, 1)]).flatten(1).double()
    same = (masks[:, None] == masks).double().mean(-1)[~torch.eye(len(masks)).bool()]
    assert (same - 0.25**2 - 0.75**2).abs().max() < 0.1


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_dropout_of_everything_gives_zeros_and_no_gradient(backend):
    leaves, options = make_inputs(30, ("c2p", "p2c"), mask="right")
    out = call(backend, leaves, options, dropout_p=1.0)
    assert not out.any() and not any(gradient.any() for gradient in torch.autograd.grad(out.sum(), leaves))


@backends
@pytest.mark.parametrize(("N", "mask"), [(9, "dead-row"), (64, "none"), (139, "right"), (160, "documents")])
def test_dropout_gradients_are_those_of_the_equation_with_the_dropout_of_the_forward(N, mask, backend, relative_error):
    leaves, options = make_inputs(N, ("c2p", "p2c", "p2p"), mask=mask)
    options["scale"] = 0.05
    kept = (probabilities(backend, leaves, options, dropout_p=0.3, seed=5) != 0).double() / 0.7
    torch.manual_seed(5)
    out = call(backend, leaves, options, dropout_p=0.3)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    # Other code draws random numbers between the passes.
    torch.rand(7)
    gradients = torch.autograd.grad((out * weight).sum(), leaves)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    inputs = AttentionInputs(*exact[:3], K_r=exact[3], Q_r=exact[4], **options)
    probs = disentangled_attention_eager(inputs)[1]
    expected = probs * kept @ exact[2]
    assert relative_error(f"{backend}, dropout", whole(out), whole(expected)) < 1e-5
    for ours, wanted in zip(gradients, torch.autograd.grad((expected * weight).sum(), exact), strict=True):
        assert wanted.any() and relative_error(f"{backend}, dropout", whole(ours), whole(wanted)) < 1e-5


@pytest.mark.parametrize("backend", ["blocked", NATIVE])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1], ids=["no-dropout", "dropout"])
def test_no_tensor_of_all_scores_is_made_or_kept(dropout_p, backend):
    N = 1100
    leaves, options = make_inputs(N, ("c2p", "p2c", "p2p"), mask="right")
    kept = []

    def keep(x):
        kept.append(x)
        return x

    with Watch() as watch:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out = call(backend, leaves, options, dropout_p=dropout_p)
        out.sum().backward()
    assert kept and max(x.numel() for x in kept) <= B * H * (N + 64) * 16
    assert max(elements for *_, elements in watch.seen) < N * N < B * H * N * N


# Whole models, without unpadding, so that a backend gets the mask.

MODELS = {
    "v1": ("v1", dict()),
    "v1-shared": ("v1", dict(share_att_key=True)),
    "v2": ("v2", dict()),
    "v3": ("v3", dict()),
    "v3-separate": ("v3", dict(share_att_key=False)),
    "v3-p2p": ("v3", dict(pos_att_type="c2p|p2c|p2p")),
}
# All but eager, and the automatic choice.
SERVING = [*(name for name in ALL_NAMES if name != "eager"), *["native"] * (AUTO == "native"), None]
# Heads wide enough for "native".
SIZES = dict(max_position_embeddings=160, max_relative_positions=64, num_attention_heads=2)


def compare_models(build, loss_of, relative_error):
    """Compare the output and the gradients of every parameter with the same model in float64 with "eager"."""
    results = {}
    for name in ("exact", "eager", *SERVING):
        model = build().train()
        model.set_unpadding(False)
        model.set_attn_implementation("eager" if name == "exact" else "auto" if name is None else name)
        model = model.double() if name == "exact" else model
        out, loss = loss_of(model)
        results[name] = out.detach(), gradients_of(model, loss), model.attention_backends()
    (exact, exact_gradients, _), (eager, eager_gradients, _) = results["exact"], results["eager"]
    total = max(x.norm() for x in exact_gradients.values())
    for backend in SERVING:
        out, gradients, _ = results[backend]
        label = f"model, {backend or 'automatic'}"
        assert relative_error(label, out, exact) < max(1e-5, 2 * relative_error("model, eager", eager, exact))
        for name, wanted in exact_gradients.items():
            if wanted.norm() < 1e-9 * total:
                # Softmax is invariant to a number that is equal for all keys.
                assert gradients[name].norm() < 1e-5 * total and name.endswith("key_proj.bias"), (label, name)
                continue
            limit = max(1e-5, 2 * relative_error("model, eager", whole(eager_gradients[name]), whole(wanted)))
            # Below float32's rounding of the largest gradient: gradients of key biases are remainders of cancelling sums.
            limit = max(limit, float(1e-7 * total / wanted.norm()))
            assert relative_error(f"{label}, gradients", whole(gradients[name]), whole(wanted)) < limit, (label, name)
    return {backend: {name for name, _ in results[backend][2].values()} for backend in SERVING}


@pytest.mark.parametrize("kind", MODELS)
def test_model_outputs_and_gradients_equal_eager(kind, tiny_config, shake, batch, relative_error):
    family, overrides = MODELS[kind]
    ids, mask = batch(3, 150, [150, 70, 1])
    weight = torch.randn(3, 150, 32, generator=torch.Generator().manual_seed(4))

    def loss_of(model):
        states = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
        return states, (states * weight[mask.bool()]).sum()

    def build():
        return shake(DebertaExtModel(tiny_config(family, **SIZES, **overrides)))

    assert compare_models(build, loss_of, relative_error) == {backend: {backend or AUTO} for backend in SERVING}


@pytest.mark.parametrize("decoded", ["all", "half", "few"])
@pytest.mark.parametrize(("kind", "flat"), [("v1", True), ("v2", True), ("v3", True), ("v3", False)])
def test_masked_lm_equals_eager_with_every_query_stream(kind, flat, decoded, tiny_config, shake, batch, relative_error):
    """Test the Enhanced Mask Decoder on all or only on labelled positions; `flat` is the shape of the mask."""
    ids, mask = batch(2, 140, [140, 90])
    share = dict(all=0.5, half=0.5, few=0.1)[decoded]
    chosen = (torch.rand(2, 140, generator=torch.Generator().manual_seed(1)) < share) & mask.bool()
    labels = ids.masked_fill(~chosen, -100)
    if not flat:
        document = torch.arange(140) // 47
        mask = mask[:, None] * mask[:, :, None] * (document[:, None] == document)

    def loss_of(model):
        out = model(ids, attention_mask=mask, labels=labels, masked_only=decoded != "all")
        return out.logits if decoded != "all" else out.logits[chosen], out.loss

    def build():
        return shake(DebertaExtForMaskedLM(tiny_config(kind, **SIZES)))

    automatic = {"blocked", "eager"} if (AUTO, decoded) == ("blocked", "few") else {AUTO}
    expected = {backend: {backend} if backend else automatic for backend in SERVING}
    assert compare_models(build, loss_of, relative_error) == expected

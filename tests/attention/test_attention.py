# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import pytest
import torch
from attention_inputs import B, H, call, make_inputs

from hf_deberta_ext import AttentionInputs, DisentangledSelfAttention, disentangled_attention_eager

SUBSETS = [subset for n in range(4) for subset in itertools.combinations(("c2p", "p2c", "p2p"), n)]


@torch.no_grad()
def by_the_equation(leaves, delta, terms, scale, mask, max_distance):
    """Compute Eq. (4) one element at a time; `delta` already has the maximum distance."""
    Q_c, K_c, V_c, K_r, Q_r = leaves
    N = Q_c.shape[2]
    out = torch.zeros_like(V_c)
    for b, h, i in itertools.product(range(B), range(H), range(N)):
        A = []
        for j in range(N):
            row, back = delta[i - j + N - 1], delta[j - i + N - 1]
            a = Q_c[b, h, i] @ K_c[b, h, j]
            a = a + (Q_c[b, h, i] @ K_r[h, row] if "c2p" in terms else 0)
            a = a + (K_c[b, h, j] @ Q_r[h, row] if "p2c" in terms else 0)
            a = a + (Q_r[h, row] @ K_r[h, back] if "p2p" in terms else 0)
            A.append(a * scale)
        A = torch.stack(A)
        if mask is not None:
            A = A.masked_fill(~mask[b, 0, i], -math.inf)
            if not mask[b, 0, i].any():
                continue
        out[b, h, i] = A.softmax(0) @ V_c[b, h]
    return out


@pytest.mark.parametrize("terms", SUBSETS, ids=lambda terms: "+".join(terms) or "none")
def test_every_subset_of_terms_equals_the_equation_and_chosen_queries_their_rows(terms):
    """Check that p2c uses delta(i, j) and not the paper's delta(j, i), as released weights require."""
    leaves, options = make_inputs(9, terms, "plain", d=4, dtype=torch.float64)
    Q_c, K_c, V_c, K_r, Q_r = leaves
    out, probs = disentangled_attention_eager(AttentionInputs(Q_c, K_c, V_c, K_r=K_r, Q_r=Q_r, **options))
    assert torch.allclose(out, by_the_equation(leaves, **options))
    assert torch.allclose(probs.sum(-1), torch.ones(B, H, 9, dtype=torch.float64))
    turned = options | dict(delta=options["delta"].flip(0))
    assert torch.allclose(out, by_the_equation(leaves, **turned), atol=1e-2) == (terms == ())
    positions = torch.tensor([[0, 3, 8], [7, 2, 2]])
    index = positions[:, None, :, None].expand(B, H, 3, 4)
    some = call("eager", [Q_c.gather(2, index), *leaves[1:]], options, query_positions=positions)
    assert torch.allclose(some, out.gather(2, index))


def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients():
    leaves, options = make_inputs(9, ("c2p", "p2c"), "plain", d=4, dtype=torch.float64)
    options["mask"] = torch.rand(B, 1, 9, 9, generator=torch.Generator().manual_seed(3)) > 0.4
    options["mask"][0, 0, 5] = False
    out = call("eager", leaves, options)
    assert torch.equal(out[0, :, 5], torch.zeros(H, 4, dtype=torch.float64))
    assert torch.allclose(out, by_the_equation(leaves, **options))
    out.sum().backward()
    gradient = leaves[0].grad
    assert torch.isfinite(gradient).all() and not gradient[0, :, 5].any() and gradient[0, :, 4].any()


@pytest.mark.parametrize("share_att_key", [True, False])
@pytest.mark.parametrize("terms", SUBSETS, ids=lambda terms: "+".join(terms) or "none")
def test_module_has_the_projections_that_its_terms_need(terms, share_att_key, tiny_config):
    config = tiny_config("v3", pos_att_type=list(terms), share_att_key=share_att_key)
    names = {name for name, _ in DisentangledSelfAttention(config).named_children() if name.startswith("pos_")}
    expected = {"pos_dropout"}
    if not share_att_key:
        expected |= {"pos_key_proj"} if {"c2p", "p2p"} & {*terms} else set()
        expected |= {"pos_query_proj"} if {"p2c", "p2p"} & {*terms} else set()
    assert names == expected

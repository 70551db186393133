# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import pytest
import torch

from hf_deberta_ext import AttentionInputs, DisentangledSelfAttention, disentangled_attention_eager
from hf_deberta_ext.model.attention_deberta_ext import RelativePosition

SUBSETS = [subset for n in range(4) for subset in itertools.combinations(("c2p", "p2c", "p2p"), n)]


def random_inputs(B=2, H=3, N=9, d=4, span=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Q_c, K_c, V_c = (torch.randn(B, H, N, d, generator=generator, dtype=torch.float64) for _ in range(3))
    K_r, Q_r = (torch.randn(H, 2 * span, d, generator=generator, dtype=torch.float64) for _ in range(2))
    delta = RelativePosition(buckets=-1, max_distance=span)(N)
    return Q_c, K_c, V_c, dict(K_r=K_r, Q_r=Q_r, delta=delta)


def eager(Q_c, K_c, V_c, **options):
    return disentangled_attention_eager(AttentionInputs(Q_c, K_c, V_c, **options))


def by_the_equation(Q_c, K_c, V_c, K_r, Q_r, delta, terms, scale, mask=None):
    """Compute Eq. (4) one element at a time."""
    B, H, N, _ = Q_c.shape
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
            A = A.masked_fill(~mask[b, i], -math.inf)
            if not mask[b, i].any():
                continue
        out[b, h, i] = A.softmax(0) @ V_c[b, h]
    return out


@pytest.mark.parametrize("terms", SUBSETS, ids=lambda terms: "+".join(terms) or "none")
def test_every_subset_of_terms_equals_the_equation_and_chosen_queries_their_rows(terms):
    """Check that p2c uses delta(i, j) and not the paper's delta(j, i), as released weights require."""
    Q_c, K_c, V_c, position = random_inputs()
    scale = 1 / math.sqrt(4 * (1 + len(terms)))
    out, probs = eager(Q_c, K_c, V_c, **position, terms=terms, scale=scale)
    assert torch.allclose(out, by_the_equation(Q_c, K_c, V_c, **position, terms=terms, scale=scale))
    assert torch.allclose(probs.sum(-1), torch.ones(2, 3, 9, dtype=torch.float64))
    turned = position | dict(delta=position["delta"].flip(0))
    wrong = by_the_equation(Q_c, K_c, V_c, **turned, terms=terms, scale=scale)
    assert torch.allclose(out, wrong, atol=1e-2) == (terms == ())
    positions = torch.tensor([[0, 3, 8], [7, 2, 2]])
    full, _ = eager(Q_c, K_c, V_c, **position, terms=terms, scale=0.3)
    index = positions[:, None, :, None].expand(2, 3, 3, 4)
    some, _ = eager(Q_c.gather(2, index), K_c, V_c, **position, terms=terms, scale=0.3, query_positions=positions)
    assert torch.allclose(some, full.gather(2, index))


def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients():
    Q_c, K_c, V_c, position = random_inputs()
    mask = torch.rand(2, 9, 9, generator=torch.Generator().manual_seed(3)) > 0.4
    mask[0, 5] = False
    Q_c.requires_grad_()
    terms = ("c2p", "p2c")
    out, _ = eager(Q_c, K_c, V_c, **position, terms=terms, scale=0.3, mask=mask[:, None])
    assert torch.equal(out[0, :, 5], torch.zeros(3, 4, dtype=torch.float64))
    assert torch.allclose(out, by_the_equation(Q_c, K_c, V_c, **position, terms=terms, scale=0.3, mask=mask))
    out.sum().backward()
    assert torch.isfinite(Q_c.grad).all() and not Q_c.grad[0, :, 5].any() and Q_c.grad[0, :, 4].any()


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

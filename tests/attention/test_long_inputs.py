# SPDX-License-Identifier: Apache-2.0
"""Inputs of thousands of tokens against the equation, a few queries at a time, because all scores do not fit in memory."""

import pytest
import torch
from attention_inputs import call, make_inputs, whole
from backends import NATIVE

N = 4001
# At both ends, and around the border of a tile in the middle.
CHOSEN = torch.tensor([*range(12), *range(2042, 2054), *range(N - 12, N)])


@pytest.mark.parametrize("backend", ["blocked", NATIVE, pytest.param("sdpa", marks=pytest.mark.slow)])
def test_backends_equal_the_equation_at_chosen_queries_of_4000_tokens(backend, relative_error):
    """Compare the outputs at these queries, and their gradients for every key, value and row of the table."""
    leaves, options = make_inputs(N, ("c2p", "p2c"), mask="right", d=16)
    # One head: the second axis of the content, the first of the tables.
    leaves = [x.detach()[:, :1] if x.dim() == 4 else x.detach()[:1] for x in leaves]
    leaves = [x.requires_grad_() for x in leaves]
    weight = torch.randn(2, 1, len(CHOSEN), 16, generator=torch.Generator().manual_seed(1))
    out = call(backend, leaves, options)[:, :, CHOSEN]
    gradients = torch.autograd.grad((out * weight).sum(), leaves)

    Q_c, K_c, V_c, K_r, Q_r = exact = [x.detach().double().requires_grad_() for x in leaves]
    reference = []
    for queries, part in zip(CHOSEN.split(9), weight.double().split(9, 2), strict=True):
        given = {name: options[name] for name in ("delta", "terms", "scale", "mask")}
        positions = queries.expand(2, -1)
        rows = call("eager", [Q_c[:, :, queries], K_c, V_c, K_r, Q_r], given, query_positions=positions)
        (rows * part).sum().backward()
        reference.append(rows.detach())
    assert relative_error(f"{backend}, {N} tokens", out, torch.cat(reference, 2)) < 1e-5
    for gradient, wanted in zip(gradients, exact, strict=True):
        assert relative_error(f"{backend}, {N} tokens, gradients", whole(gradient), whole(wanted.grad)) < 1e-5

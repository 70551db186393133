# SPDX-License-Identifier: Apache-2.0
"""Twenty training steps from the same start on each backend end with the same parameters, up to rounding."""

import copy

import pytest
import torch
from backends import AUTO

from hf_deberta_ext import DebertaExtForMaskedLM

STEPS = 20
# Heads wide enough for "native".
SIZES = dict(max_position_embeddings=160, max_relative_positions=64, num_attention_heads=2)


def train(start, batch, name, unpadding):
    """Return the losses of the steps, the parameters, and the states of the last batch."""
    model = copy.deepcopy(start).train()
    model.set_attn_implementation(name)
    model.set_unpadding(unpadding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        ids, mask = batch(2, 70, [70, 41], seed=step % 3)
        labels = ids.masked_fill((ids % 5 > 0) | (mask == 0), -100)
        optimizer.zero_grad()
        loss = model(ids, attention_mask=mask, labels=labels, masked_only=True).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert name in {served for served, _ in model.attention_backends().values()}
    with torch.no_grad():
        states = model.eval().deberta(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    return torch.tensor(losses), torch.cat([p.detach().flatten() for p in model.parameters()]), states


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_backends_drift_no_further_than_rounding_in_twenty_steps(kind, tiny_config, batch):
    torch.manual_seed(0)
    start = DebertaExtForMaskedLM(tiny_config(kind, **SIZES))
    begun = torch.cat([p.detach().flatten() for p in start.parameters()])
    losses, parameters, states = train(start, batch, "eager", False)
    moved = (parameters - begun).norm()
    assert losses[-1] < losses[0] - 0.5 and moved > 1
    others = [("sdpa", False), ("blocked", False), ("blocked", True), ("eager", True)]
    others += [("native", False), ("native", True)] * (AUTO == "native")
    for name, unpadding in others:
        other_losses, ends, rows = train(start, batch, name, unpadding)
        assert ((other_losses - losses).abs() / losses).max() < 1e-5, (name, unpadding)
        assert (ends - parameters).norm() < 1e-5 * moved, (name, unpadding)
        assert torch.cosine_similarity(rows, states, dim=-1).min() > 1 - 1e-6, (name, unpadding)

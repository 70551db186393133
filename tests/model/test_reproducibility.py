# SPDX-License-Identifier: Apache-2.0
"""Reproducible results of a step with the same seed."""

import pytest
import torch
from every_head import HEADS, KINDS, MODES, NAMES, call_of, small, step


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_result_with_dropout_and_under_deterministic_algorithms(name, head, tiny_config, shake):
    """Compare outputs and gradients bitwise, in a precision that alternates between tests."""
    place = list(HEADS).index(head)
    dtype, low = MODES[list(MODES)[(place + NAMES.index(name)) % len(MODES)]]
    dropout = dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model = shake(small(head, KINDS[place % 3], tiny_config, **dropout)).to(dtype)
    model.set_attn_implementation(name)
    model.train()
    arguments = call_of(head)

    def run(seed):
        torch.manual_seed(seed)
        return step(head, model, arguments, low)

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

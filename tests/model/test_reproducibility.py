# SPDX-License-Identifier: Apache-2.0
"""Reproducible results: for a sample with any neighbours, and for a step with the same seed."""

import pytest
import torch
from every_head import HEADS, KINDS, MODES, NAMES, autocast, call_of, small, step

from hf_deberta_ext import heads

# Heads with outputs per sample, [B, ...], or per token, [B, N, ...].
OF_SAMPLES = {name: head.outputs[0] for name, head in heads.HEADS.items() if head.labels in ("row", "choice", "entities")}
OF_TOKENS = {name: head.outputs[0] for name, head in heads.HEADS.items() if name not in (*OF_SAMPLES, "pretraining")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("head", [*OF_SAMPLES, *OF_TOKENS])
def test_a_neighbour_changes_a_sample_by_no_more_than_rounding(head, mode, tiny_config, shake):
    """Compare a sample in a batch of one with the same sample next to a longer or shorter one, up to eight steps of the
    format, on every backend, as a padded batch and as a stream."""
    dtype, low = MODES[mode]
    arguments = call_of(head)
    ids, mask = arguments["input_ids"], arguments["attention_mask"].bool()
    place = [*OF_SAMPLES, *OF_TOKENS].index(head) + list(MODES).index(mode)
    model = shake(small(head, KINDS[place % 3], tiny_config), std=0.15).to(dtype)

    def run(ids, mask=None, rows=slice(None)):
        inputs = {name: x[rows] for name, x in arguments.items() if name == "entity_indices"}
        return model(ids, attention_mask=mask, **inputs)[(OF_SAMPLES | OF_TOKENS)[head]].double()

    with torch.no_grad(), autocast(low):
        for name in NAMES:
            model.set_attn_implementation(name)
            for unpadding in (False, True):
                model.set_unpadding(unpadding)
                together = run(ids, mask)
                for row in range(2):
                    if head == "multiple-choice":
                        # Choices have different lengths, and each is padded to the longer one.
                        alone, there = run(ids[row : row + 1], mask[row : row + 1])[0], together[row]
                    else:
                        alone = run(ids[row : row + 1, mask[row]], rows=slice(row, row + 1))[0]
                        there = together[row]
                        there = there if head in OF_SAMPLES else there[mask[row]]
                    assert (there - alone).norm() < 8 * torch.finfo(low or dtype).eps * alone.norm(), (name, row)


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

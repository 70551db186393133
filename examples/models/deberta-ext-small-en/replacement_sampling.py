# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Sampling of the replacements in replaced token detection, from the generator's distribution."""

import torch

__all__ = ["sample_replacements"]

# Logits, of as many rows as they belong to: copies of all of a batch would take several times their memory.
CHUNK = 2**24


def sample_replacements(
    logits: torch.Tensor,
    excluded: list[int],
    temperature: float = 1.0,
    random_generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw ids [n] for logits [n, V] from softmax(logits / temperature) in float32, without a gradient.

    On CPU by the inverse of the distribution function, summed in float64: one random number a row, where
    `torch.multinomial` draws one for every token of the vocabulary, which costs a CPU more than the rest.

    Args:
        excluded (`list[int]`): ids that are never drawn; the rest of the distribution keeps its proportions.
        random_generator (`torch.Generator`, *optional*): None = torch's own, which Trainer saves and restores.
    """
    samples = []
    for chunk in logits.detach().split(max(1, CHUNK // logits.shape[1])):
        scores = chunk.float() / temperature
        scores[:, excluded] = -torch.inf
        p = scores.softmax(-1)
        n, V = p.shape
        if p.device.type != "cpu":
            ids = torch.multinomial(p, 1, generator=random_generator) if n else p.new_zeros(0, 1, dtype=torch.long)
        else:
            # Less than 1 also after rounding: the end of the table is never passed, except by NaN.
            quantiles = torch.rand(n, 1, dtype=torch.float64, generator=random_generator) * (1 - 2**-52)
            sums = p.cumsum(-1, dtype=torch.float64)
            ids = torch.searchsorted(sums, quantiles * sums[:, -1:], right=True).clamp(max=V - 1)
        samples.append(ids.squeeze(1))
    return torch.cat(samples)

# SPDX-License-Identifier: Apache-2.0
"""Class weights in the loss and class-balanced sampling of training rows, for imbalanced classes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import WeightedRandomSampler

from ..data.files import parse_json
from ..training.distributed import spread_seed

__all__ = ["BalancedSampler", "WeightedLoss", "class_weights"]

HELP = 'class weights of the training loss: balanced (rarer classes weigh more), or JSON: {"refund": 3} (other classes: 1)'


def class_weights(flag: str, counts: Mapping[str, int], names: Sequence[str], rows: int | None = None) -> list[float]:
    """Return the weight of each class, in the order of `names`.

    Args:
        flag (`str`): JSON with the weights of some labels (all others get 1); or "balanced": N / (C * n_c), as in
            scikit-learn's `compute_class_weight`, with N rows (or words) in total and C classes that occur.
        counts (`dict[str, int]`): n_c, number of rows (or words) of each class; the weight of an empty class is 1.
        rows (`int`, *optional*): N, only for multi-label data, for which "balanced" weights are (N - n_c) / n_c.
    """
    present = {name: count for name, count in counts.items() if count}
    if flag == "balanced" and rows is not None:
        weights = {name: (rows - count) / count for name, count in present.items() if count < rows}
    elif flag == "balanced":
        weights = {name: sum(present.values()) / (len(present) * count) for name, count in present.items()}
    else:
        weights = parse_json(flag, "--class_weights")
    if not isinstance(weights, dict) or not {*weights} <= {*names}:
        raise ValueError(f"--class_weights must be 'balanced' or JSON with keys from {', '.join(names[:20])}, got {flag!r}")
    for name, weight in weights.items():
        if not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
            raise ValueError(f"--class_weights must be positive, got {weight!r} for {name!r}")
    return [float(weights.get(name, 1)) for name in names]


class WeightedLoss:
    """Cross-entropy averaged with the weight w_y of each label: sum(w_y * loss) / sum(w_y); labels of -100 are ignored.

    For multi-label data, the loss is the mean binary cross-entropy with `weights` as torch's `pos_weight`.

    Args:
        weights (`list[float]`): weight of each class, in the model's order.
        multi_label (`bool`): whether labels are [B, C] of 0.0 and 1.0 instead of class ids, [B] or [B, N].
    """

    def __init__(self, weights: Sequence[float], *, multi_label: bool = False):
        self.weights, self.multi_label = torch.tensor(weights), multi_label

    def __call__(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss, a float32 scalar, for the logits [B, C] or [B, N, C] of `outputs`."""
        logits, weights = outputs["logits"].float(), self.weights.to(labels.device)
        if self.multi_label:
            return functional.binary_cross_entropy_with_logits(logits, labels.float(), pos_weight=weights)
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), weight=weights)

    def denominator(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the denominator of the mean, a scalar: the sum of w_y; for multi-label data, B * C."""
        if self.multi_label:
            return torch.tensor(float(labels.numel()), device=labels.device)
        return self.weights.to(labels.device)[labels[labels != -100]].sum()


class BalancedSampler(WeightedRandomSampler):
    """Sampler of len(labels) rows with replacement, which draws all C classes equally often; seed and epoch set the order.

    Each of the n_c rows of a class c is drawn with probability 1 / (C * n_c).
    """

    def __init__(self, labels: Sequence[int], seed: int):
        counts = Counter(labels)
        super().__init__([1 / counts[label] for label in labels], len(labels), generator=torch.Generator())
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int):
        """Set the epoch; called by accelerate's data loaders."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(spread_seed(self.seed, self.epoch))
        return super().__iter__()

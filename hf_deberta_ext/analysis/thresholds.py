# SPDX-License-Identifier: Apache-2.0
"""Apply the decision thresholds that `--save_thresholds` writes to a configuration (`decision_thresholds`)."""

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["decide"]


def decide(
    probabilities: np.ndarray, names: Sequence[str], thresholds: Mapping[str, float], *, multi_label: bool
) -> np.ndarray:
    """Predict the labels whose probabilities reach their thresholds.

    Args:
        probabilities (`np.ndarray`): [n, C], one column for each label in `names`.
        thresholds (`dict[str, float]`): minimum probability by label. If `multi_label`, missing thresholds are 0.5.
            Otherwise there are two classes, and only the first entry is used: if the probability of this label is below the
            threshold, the other label is predicted.
        multi_label (`bool`): whether a text can have several labels.

    Returns:
        [n, C] of 0 and 1 if `multi_label`, else [n] class ids, int64.
    """
    if multi_label:
        least = [thresholds.get(name, 0.5) for name in names]
        return (probabilities >= least).astype(np.int64)
    name, least = next(iter(thresholds.items()))
    label = list(names).index(name)
    return np.where(probabilities[:, label] >= least, label, 1 - label)

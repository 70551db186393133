# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Relative positions delta(i, j), rows of the relative table (DeBERTa, Eq. 3), and the log buckets of v2 and v3."""

import bisect
import functools
import math

import torch
from torch import nn

__all__ = ["RelativePosition", "log_bucket"]


def log_bucket(r: int, *, buckets: int, max_distance: int) -> int:
    """Return the official log bucket of the relative position r = i - j, in exact integers.

    With m = buckets / 2 and M = max_distance, r clamped to [-(M - 1), M - 1]:
    r where |r| <= m, else sign(r) · (ceil(ln(|r| / m) / ln((M - 1) / m) · (m - 1)) + m).

    Returns:
        `int` in [-(buckets - 1), buckets - 1]. transformers leaves out the clamp, so that beyond M it reads row 0, which
        no training ever touched.
    """
    r = max(-(max_distance - 1), min(r, max_distance - 1))
    middle = buckets // 2
    if abs(r) <= middle:
        return r
    far = math.ceil(math.log(abs(r) / middle) / math.log((max_distance - 1) / middle) * (middle - 1)) + middle
    return int(math.copysign(far, r))


class RelativePosition(nn.Module):
    """The offset table delta of any length: delta(i, j) = delta[i - j + N - 1], O(N) memory.

    Args:
        buckets (`int`): b; -1 = no buckets, the table has a row for each distance.
        max_distance (`int`): M.
    """

    def __init__(self, *, buckets: int, max_distance: int):
        super().__init__()
        self.buckets, self.max_distance = buckets, max_distance
        self.register_buffer("rows", self.compute_rows(), persistent=False)

    def compute_rows(self) -> torch.Tensor:
        """Return rows of the relative table, [2M], for r = -M ... M - 1; int64 whatever the default dtype and device."""
        M, b = self.max_distance, self.buckets
        r = torch.arange(-M, M, dtype=torch.int64)
        if b < 0:
            return r + M
        # Buckets rise with the distance: bisection finds the first distance of each one beyond b / 2, in exact integers.
        bucket = functools.partial(log_bucket, buckets=b, max_distance=M)
        firsts = [bisect.bisect_left(range(M), value, key=bucket) for value in range(b // 2 + 1, b)]
        distance = r.abs().clamp(max=M - 1)
        far = torch.bucketize(distance, torch.tensor(firsts, dtype=torch.int64), right=True)
        return r.sign() * (distance.clamp(max=b // 2) + far) + b

    def row(self, r: int) -> int:
        """Return the row of the relative table for r = i - j, without a tensor."""
        M, b = self.max_distance, self.buckets
        if b > 0:
            return log_bucket(r, buckets=b, max_distance=M) + b
        return max(-M, min(r, M - 1)) + M

    def forward(self, length: int) -> torch.Tensor:
        """Return delta, [2N - 1] int64 for N = `length`; values in [0, rows of the table)."""
        r = torch.arange(1 - length, length, device=self.rows.device)
        return self.rows[r.clamp(-self.max_distance, self.max_distance - 1) + self.max_distance]

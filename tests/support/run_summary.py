# SPDX-License-Identifier: Apache-2.0
"""Measurements that are printed at the end of a test run."""

from collections import defaultdict

# Name of a comparison: [number of comparisons, worst relative error].
WORST = defaultdict(lambda: [0, 0.0])

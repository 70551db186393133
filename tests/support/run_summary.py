# SPDX-License-Identifier: Apache-2.0
"""Measurements that the last lines of a run print."""

from collections import defaultdict

# Name of a comparison: [how often, worst relative error].
WORST = defaultdict(lambda: [0, 0.0])

# SPDX-License-Identifier: Apache-2.0
"""Shares of the selected tests, for runs that take turns."""

import zlib
from collections import Counter


def share(items: list, part: int, parts: int) -> list:
    """Those of `items` in share `part`, from 1 on, of `parts`.

    The tests of a file take turns, so that a new test moves none of another file. `slow(always=True)` is in every share;
    `slow(together=True)`, of tests that need one costly fixture, puts those of a file in one share.
    """
    turns, kept = Counter(), []
    for item in items:
        options = {name for mark in item.iter_markers("slow") for name, value in mark.kwargs.items() if value}
        turn = zlib.crc32(item.path.name.encode())
        if "together" not in options:
            turn += turns[item.path]
            turns[item.path] += 1
        if "always" in options or turn % parts == part % parts:
            kept.append(item)
    return kept

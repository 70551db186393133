# SPDX-License-Identifier: Apache-2.0
"""Shares of the selected tests, for runs that each take a part."""

import zlib
from collections import Counter


def share(items: list, part: int, parts: int) -> list:
    """Return the items of share `part` of `parts`, counted from 1.

    The tests of a file are distributed in turn, so a new test only moves tests of the same file. `slow(always=True)` puts a
    test in every share; `slow(together=True)`, for tests that need one costly fixture, keeps these tests of a file in one
    share.
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

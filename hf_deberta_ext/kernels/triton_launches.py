# SPDX-License-Identifier: Apache-2.0
"""Launch parameters of the Triton kernels: the table `LAUNCHES`, and `find_launches`, which reads it.

A key of the table is a kernel ("forward", "dq", "dkv", "bands"), "half" (float16 and bfloat16) or "float32", and a head
size (16, 32, 64, 128; others are rounded up). A value is a list of (capability, longest, Launch). An entry applies if the
GPU has at least this compute capability (80, 90) and the input has at most this length (None: any). The first entry that
applies is used; higher capabilities therefore come first and, for the same capability, shorter lengths. If the tiles of this
entry need more shared memory than the GPU has, `FALLBACKS` are tried.

The entries for head size 64 on 9.0 are the fastest of seven candidates on an H200. The others were chosen by the resources
of the compiled kernels (registers, spills, shared memory). Changes of `LAUNCHES` take effect from the next call.
"""

from typing import NamedTuple

import torch

__all__ = ["LAUNCHES", "Launch", "find_launches"]


class Launch(NamedTuple):
    """Launch parameters of a kernel: tile size, number of warps, and number of pipeline stages for each of its two loops,
    over far tiles and over near tiles (the kernel "bands" only has near tiles)."""

    BLOCK: int
    num_warps: int
    far_stages: int
    near_stages: int


FALLBACKS = [Launch(32, 4, 1, 1), Launch(16, 4, 1, 1)]

LAUNCHES: dict[tuple[str, str, int], list[tuple[int, int | None, Launch]]] = {
    ("forward", "half", 16): [(80, None, Launch(64, 4, 2, 1))],
    ("forward", "half", 32): [(80, None, Launch(64, 4, 2, 1))],
    ("forward", "half", 64): [(80, None, Launch(64, 4, 2, 1))],
    ("forward", "half", 128): [(90, None, Launch(64, 4, 2, 1)), (80, None, Launch(64, 8, 2, 1))],
    ("dq", "half", 16): [(80, None, Launch(64, 4, 2, 1))],
    ("dq", "half", 32): [(80, None, Launch(64, 4, 2, 1))],
    ("dq", "half", 64): [(80, None, Launch(64, 4, 2, 1))],
    ("dq", "half", 128): [(80, None, Launch(32, 4, 2, 1))],
    ("dkv", "half", 16): [(80, None, Launch(64, 4, 2, 1))],
    ("dkv", "half", 32): [(80, None, Launch(64, 4, 2, 1))],
    ("dkv", "half", 64): [(80, None, Launch(64, 4, 2, 1))],
    ("dkv", "half", 128): [(80, None, Launch(32, 4, 2, 1))],
    ("bands", "half", 16): [(80, None, Launch(64, 4, 1, 1))],
    ("bands", "half", 32): [(80, None, Launch(32, 4, 1, 1))],
    ("bands", "half", 64): [(90, None, Launch(64, 4, 2, 1)), (80, None, Launch(32, 4, 1, 1))],
    ("bands", "half", 128): [(90, None, Launch(16, 4, 1, 1)), (80, None, Launch(32, 8, 1, 1))],
}


def find_launches(kernel: str, dtype: torch.dtype, head_size: int, N: int, capability: tuple[int, int]) -> list[Launch]:
    """Return the launch parameters for a kernel call, in the order in which to try them.

    Args:
        kernel (`str`): "forward", "dq", "dkv" or "bands".
        dtype (`torch.dtype`): dtype of Q_c.
        head_size (`int`): d, padded to a power of two.
        N (`int`): length of the input.
        capability (`tuple[int, int]`): compute capability of the GPU.
    """
    precision, fallbacks = "half", FALLBACKS
    if dtype == torch.float32:
        precision = "float32"
        if head_size > 64:
            fallbacks = FALLBACKS[1:]
    number = 10 * capability[0] + capability[1]
    for least, longest, launch in LAUNCHES.get((kernel, precision, head_size), ()):
        if number >= least and (longest is None or longest >= N):
            return [launch, *fallbacks]
    return fallbacks

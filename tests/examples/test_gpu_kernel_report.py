# SPDX-License-Identifier: Apache-2.0
"""The report on the compiled Triton kernels: places in shared memory, counts of tiles, and a compilation without a GPU."""

import importlib.util
import os

import pytest
import torch
from scripts import module_of

report = module_of("gpu_kernel_report")


def test_passes_count_the_different_words_of_a_bank():
    assert report.wavefronts([*range(32)]) == 1 and report.wavefronts([7] * 32) == 1
    assert report.wavefronts([0, 32, 64, 1, 33]) == 3


@pytest.mark.parametrize("bits", [16, 32])
def test_a_warp_s_part_of_a_product_lies_in_different_banks(bits):
    """8 rows of 4 pairs of columns take 8 passes where rows lie one after the other; as `pick` has them one (16 bits: 4)."""
    assert {report.flatten(row, col, 64, bits) for row in range(16) for col in range(64)} == {*range(1024)}
    lanes = [(lane // 4, lane % 4 * 2) for lane in range(32)]
    assert report.wavefronts([(row * 64 + col) * bits // 32 for row, col in lanes]) == 8
    assert report.wavefronts([report.flatten(row, col, 64, bits) * bits // 32 for row, col in lanes]) == (
        1 if bits == 32 else 4
    )


def test_tiles_with_gathers_are_those_near_the_diagonal():
    rows = [report.tile_row(N, 2, []) for N in (512, 8192)]
    assert rows[0]["far_tiles"] == 0 and rows[0]["near_tiles"] == 64
    offsets = torch.arange(128)[:, None] * 64 - torch.arange(128) * 64
    far = (offsets - 63 >= 512) | (offsets + 63 <= -512)
    assert rows[1]["far_tiles"] == far.sum() and rows[1]["near_tiles"] == 128**2 - far.sum()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET", "0") != "0", reason="interpreted kernels are not compiled")
def test_the_forward_kernel_compiles_without_bank_conflicts_and_computes_nothing_twice():
    kernels = {row["kernel"]: row for row in report.kernel_rows(90, torch.bfloat16, 64)}
    forward = kernels["fwd_kernel"]
    # 64 x 64 and 64 x 128 numbers twice: written and read with 32 lanes each.
    assert forward["shear_wavefronts"] == 768
    # Three kinds of tiles, 32 exponentials a lane each, and two of the running maximum.
    assert forward["MUFU.EX2"] == 3 * 34 and forward["HGMMA"] > 0
    assert kernels["bwd_kernel_dq"]["MUFU.EX2"] == kernels["bwd_kernel_dkv"]["MUFU.EX2"] == 96
    for name in ("fwd_kernel", "bwd_kernel_dq", "bwd_kernel_dkv"):
        assert 2 * kernels[name]["HGMMA_groups"] < kernels[name]["HGMMA"], f"{name}: products wait for each other"
        assert kernels[name]["stack_bytes"] == 0, f"{name} spills"

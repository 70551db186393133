# SPDX-License-Identifier: Apache-2.0
"""The report on the compiled Triton kernels: a compilation without a GPU."""

import importlib.util
import os

import pytest
import torch
from scripts import module_of

report = module_of("gpu_kernel_report")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET", "0") != "0", reason="interpreted kernels are not compiled")
def test_the_kernels_compute_no_product_alone_and_nothing_twice_and_do_not_spill():
    kernels = {row["kernel"]: row for row in report.kernel_rows(90, torch.bfloat16, 64)}
    # Three kinds of tiles with 32 exponentials a lane each, and two exponentials of the running maximum.
    assert kernels["fwd_kernel"]["MUFU.EX2"] == 3 * 34
    assert kernels["bwd_kernel_dq"]["MUFU.EX2"] == kernels["bwd_kernel_dkv"]["MUFU.EX2"] == 96
    for name in ("fwd_kernel", "bwd_kernel_dq", "bwd_kernel_dkv"):
        assert 2 * kernels[name]["HGMMA_groups"] < kernels[name]["HGMMA"], f"{name}: products wait for each other"
        assert kernels[name]["stack_bytes"] == 0, f"{name} spills"

# SPDX-License-Identifier: Apache-2.0
"""Kernels of disentangled attention for CPUs and GPUs, which `model/attention_deberta_ext.py` adds to its backends.

If the package is installed, remote code also uses these kernels. Saved remote code may come from another version of this
package, so the names in this file and the fields of `AttentionInputs` must not change.
"""

import torch

from .. import native  # noqa: F401
from ..model.attention_deberta_ext import AttentionInputs, Backend
from .attention_native import disentangled_attention_native, native_unavailable
from .position_cache import PositionCache

__all__ = ["KERNELS", "PositionCache"]


def disentangled_attention_triton(inputs: AttentionInputs) -> torch.Tensor:
    """Compute attention with the Triton kernels, which are imported at the first call."""
    from .attention_triton import disentangled_attention_triton

    return disentangled_attention_triton(inputs)


def triton_unavailable(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return the reason why Triton does not support this device, dtype or head size; None if it does."""
    from .attention_triton import triton_unavailable

    return triton_unavailable(device, dtype, head_size)


KERNELS = {
    "triton": Backend(
        disentangled_attention_triton,
        "flash-style kernels for CUDA (triton 3.4 or newer, included in torch 2.8), head sizes 16 to 128, dropout, "
        "documents in one stream",
        triton_unavailable,
        best_on=("cuda",),
        # Exact float32 products do not run on the tensor cores. They spill registers, even as three products of TF32.
        not_best_for=(torch.float32,),
        takes_cu_seqlens=True,
    ),
    "native": Backend(
        disentangled_attention_native,
        "a fused C++ kernel for CPUs with AVX2, AVX-512 or NEON, which `pip install` builds if it finds a compiler; float32 "
        "and bfloat16, head sizes 16 to 128, dropout, documents in one stream",
        native_unavailable,
        best_on=("cpu",),
        takes_query_positions=True,
        takes_cu_seqlens=True,
    ),
}

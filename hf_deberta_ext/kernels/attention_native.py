# SPDX-License-Identifier: Apache-2.0
"""Disentangled attention with the native CPU kernel, which `native/` registers as a torch operator."""

import torch

from ..model.attention_deberta_ext import AttentionInputs, is_traced

__all__ = ["disentangled_attention_native", "native_unavailable"]

DTYPES = (torch.float32, torch.bfloat16)


@torch.compiler.assume_constant_result
def registered() -> bool:
    return hasattr(torch.ops.hf_deberta_ext, "disentangled_attention")


def native_unavailable(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return the reason why the kernel does not support this device, dtype or head size; None if it does."""
    if not 16 <= head_size <= 128:
        return f"it supports head sizes from 16 to 128, not {head_size}"
    if dtype not in DTYPES:
        return f"it supports float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if device.type != "cpu":
        return f"it runs on cpu, not on {device.type}"
    if torch.compiler.is_compiling():
        # Without is_exporting, torch.export cannot be distinguished from torch.compile.
        if not hasattr(torch.compiler, "is_exporting"):
            return f"under torch.compile it requires torch 2.7 or newer, got {torch.__version__}"
        if torch.compiler.is_exporting():
            return "an exported program could not run without the package"
    elif is_traced():
        return "it supports neither tracing nor the transforms of torch.func"
    if not registered():
        return (
            "its operator is not registered: import hf_deberta_ext, which must be installed with a C++ compiler, on a CPU "
            "with AVX2 or NEON (`deberta-ext info` shows what is missing)"
        )
    return None


def disentangled_attention_native(inputs: AttentionInputs) -> torch.Tensor:
    """Compute disentangled attention, DeBERTa Eq. (4), in one pass over blocks of keys; see `AttentionInputs`.

    Forward and backward take O(N) memory. `native_unavailable` checks dtype, device and head size.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c; logits and softmax are computed in float32.
    """
    Q_c, K_c, V_c, scale, K_r, Q_r, delta, terms, mask, query_positions, dropout_p, max_distance, cu_seqlens = inputs
    bias = seed = None
    if "p2p" in terms:
        # Not Q_r[:, delta]: in its backward pass, threads would add up gradients in no fixed order.
        rows, mirrored = Q_r.float().index_select(1, delta), K_r.float().index_select(1, delta.flip(0))
        bias = (rows * mirrored).sum(-1) * scale  # [H, 2L - 1]
    if "c2p" not in terms:
        K_r = None
    if "p2c" not in terms:
        Q_r = None
    tensors, dtype = [Q_c, K_c, V_c, K_r, Q_r], Q_c.dtype
    if any(x is not None and x.dtype != dtype for x in tensors):
        # Under autocast, biases and tables may have a wider dtype than projections.
        dtype = torch.float32
        tensors = [x if x is None else x.to(dtype) for x in tensors]
    if not terms:
        delta, max_distance = None, 0
    elif max_distance is None or max_distance > delta.shape[0] // 2:
        max_distance = delta.shape[0] // 2 + 1
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    if dropout_p > 0:
        # A tensor, so that compiled code (torch.compile) draws a new seed in each call.
        seed = torch.randint(2**62, (1,))
    operator = torch.ops.hf_deberta_ext.disentangled_attention.default
    out, _ = operator(*tensors, bias, delta, mask, cu_seqlens, query_positions, seed, max_distance, scale, dropout_p)
    return out.to(Q_c.dtype)

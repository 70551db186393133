# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention by the native CPU kernel of the package hf_deberta_ext, which registers it as a torch operator."""

import torch

from .input_validation import is_traced

__all__ = ["disentangled_attention_native", "native_unavailable"]

DTYPES = (torch.float32, torch.bfloat16)


@torch.compiler.assume_constant_result
def registered() -> bool:
    return hasattr(torch.ops.hf_deberta_ext, "disentangled_attention")


def native_unavailable(device: torch.device, head_size: int, dtype: torch.dtype, **call) -> str | None:
    """Return the reason why the kernel cannot serve tensors like these here and now, or None where it can."""
    if not 16 <= head_size <= 128:
        return f"it serves head sizes from 16 to 128, not {head_size}"
    if dtype not in DTYPES:
        return f"it serves float32 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if device.type != "cpu":
        return f"it runs on cpu, not on {device.type}"
    if torch.compiler.is_compiling():
        # Without it, torch.export cannot be told from torch.compile.
        if not hasattr(torch.compiler, "is_exporting"):
            return f"under torch.compile it needs torch 2.7 or newer, here it is {torch.__version__}"
        if torch.compiler.is_exporting():
            return "an exported program would need the package where it runs"
    elif is_traced():
        return "it has no rule for tracing and the transforms of torch.func"
    if not registered():
        return (
            "its operator is not registered: import hf_deberta_ext, installed with a C++ compiler on a CPU with AVX2 or "
            "NEON (`deberta-ext info` says what is missing)"
        )
    return None


def disentangled_attention_native(
    Q_c: torch.Tensor,
    K_c: torch.Tensor,
    V_c: torch.Tensor,
    *,
    K_r: torch.Tensor | None = None,
    Q_r: torch.Tensor | None = None,
    delta: torch.Tensor | None = None,
    terms: tuple[str, ...] = (),
    scale: float,
    mask: torch.Tensor | None = None,
    query_positions: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    reach: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Disentangled attention, DeBERTa Eq. (4), in one pass over blocks of keys; forward and backward in O(N) memory.

    Arguments as in `disentangled_attention_eager`, with head sizes from 16 to 128, and

    Args:
        cu_seqlens (`torch.IntTensor`, *optional*): [D + 1] from 0 to N; B = 1: document n holds the tokens
            cu_seqlens[n] ... cu_seqlens[n + 1] - 1 of one stream, and documents do not attend to each other.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c; logits and softmax are computed in float32.

    Raises:
        ValueError: for a device, dtype or head size that the kernel does not serve, and where it is not registered.
    """
    reason = native_unavailable(Q_c.device, Q_c.shape[-1], Q_c.dtype)
    if reason is not None:
        raise ValueError(f"attention 'native' cannot serve this call: {reason}")
    bias = None
    if "p2p" in terms:
        # Not Q_r[:, delta], whose gradient threads add up in any order.
        rows, mirrored = Q_r.float().index_select(1, delta), K_r.float().index_select(1, delta.flip(0))
        bias = (rows * mirrored).sum(-1) * scale  # [H, 2L - 1]
    K_r = K_r if "c2p" in terms else None
    Q_r = Q_r if "p2c" in terms else None
    tensors = Q_c, K_c, V_c, K_r, Q_r
    # Under autocast, biases and tables may be wider than projections.
    dtype = Q_c.dtype if all(x is None or x.dtype == Q_c.dtype for x in tensors) else torch.float32
    tensors = [x if x is None else x.to(dtype) for x in tensors]
    if not terms:
        delta, reach = None, 0
    elif reach is None or reach > delta.shape[0] // 2:
        reach = delta.shape[0] // 2 + 1
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    # A tensor, so that torch.compile draws a new one in each call.
    seed = torch.randint(2**62, (1,)) if dropout_p > 0 else None
    operator = torch.ops.hf_deberta_ext.disentangled_attention.default
    out, _ = operator(*tensors, bias, delta, mask, cu_seqlens, query_positions, seed, reach, scale, dropout_p)
    return out.to(Q_c.dtype)

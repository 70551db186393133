# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention on torch's flex_attention, for models under torch.compile."""

from functools import cache

import torch
from torch.nn.attention.flex_attention import flex_attention

__all__ = ["disentangled_attention_flex", "flex_unavailable"]

# Not for CUDA: there the formulation is torch's own.
TOO_OLD_FOR_CPU = torch.__version__ < (2, 13)
# Sets of terms, dtypes, sizes of one and kinds of masks are compiled each by itself.
VARIANTS = 128


def flex_unavailable(
    device: torch.device,
    head_size: int,
    dtype: torch.dtype,
    needs_grad: bool = False,
    dropout_p: float = 0.0,
) -> str | None:
    """Return the reason why flex_attention cannot serve a call, or None where it can.

    Args:
        device (`torch.device`): where the tensors are.
        head_size (`int`): d.
        dtype (`torch.dtype`): of Q_c, K_c and V_c.
        needs_grad (`bool`): a backward pass will follow.
        dropout_p (`float`): dropout of the probabilities.
    """
    if dropout_p > 0:
        return "flex_attention has no dropout"
    if device.type not in ("cpu", "cuda"):
        return f"flex_attention serves cpu and cuda, not {device.type}"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"flex_attention serves float32, bfloat16 and float16, not {dtype}"
    if device.type == "cpu" and needs_grad:
        return "flex_attention has no backward on cpu"
    if device.type == "cpu" and TOO_OLD_FOR_CPU:
        return f"flex_attention on cpu needs torch 2.13 or newer, here it is {torch.__version__}"
    # torch.compile cannot trace this check, and compiling has its own error for it.
    if device.type == "cpu" and not torch.compiler.is_compiling() and not torch.cpu._is_avx2_supported():
        return "flex_attention needs AVX2 on cpu"
    if device.type == "cuda" and head_size < 16:
        return f"flex_attention needs a head size of at least 16 on cuda, not {head_size}"
    return None


def disentangled_attention_flex(
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
    dropout_p: float = 0.0,
    reach: int | None = None,
) -> torch.Tensor:
    """Disentangled attention, DeBERTa (He et al. 2021) Eq. (4), in a kernel that torch.compile generates.

    A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_r[delta(i, j)] + K_c[j]·Q_r[delta(i, j)],  out = softmax(scale · A) V_c.
    On CUDA the score_mod reads the two position terms from tables [B, H, N, R], and gradients flow through the tables. On
    CPU flex_attention has a slow product of queries and keys and a slow look-up: there A is one [B, H, Q, N] tensor, built
    in a single fused pass, and flex_attention does softmax and the product with V_c; no backward.

    Called inside torch.compile it becomes a part of that graph; called elsewhere it compiles itself once, for all lengths.

    Arguments as in `disentangled_attention_eager`, without query_positions; dropout_p must be 0, and reach is not used,
    because a look-up costs the same for every distance.

    Returns:
        out [B, H, Q, d] in the dtype of Q_c; logits and softmax in float32.

    Raises:
        `ValueError`: where `flex_unavailable` gives a reason.
    """
    inputs = [x for x in (Q_c, K_c, V_c, K_r, Q_r) if x is not None]
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    reason = flex_unavailable(Q_c.device, Q_c.shape[-1], Q_c.dtype, needs_grad, dropout_p)
    if reason is not None:
        raise ValueError(f"{reason}; choose another attention backend, such as eager, for this call")
    function = attention_dense_scores if Q_c.device.type == "cpu" else attention_score_mod
    if not torch.compiler.is_compiling():
        function = compiled(function)
    with torch.autocast(Q_c.device.type, enabled=False):
        return function(Q_c, K_c, V_c, K_r, Q_r, delta, terms, scale, mask)


@cache
def compiled(function):
    """The function under torch.compile, made at the first call outside of a compiled model."""
    optimized = torch.compile(function, fullgraph=True, dynamic=True)
    # The name of torch 2.7 and newer, and the one before.
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"

    def call(*arguments):
        # By default torch fails at the ninth variant of a function, and it is the same one for every model of the process.
        with torch._dynamo.config.patch({limit: VARIANTS}):
            return optimized(*arguments)

    return call


def attention_score_mod(Q_c, K_c, V_c, K_r, Q_r, delta, terms, scale, mask):
    """softmax(scale · Q_c K_cᵀ + score_mod) V_c; the score_mod looks the position terms up and applies the mask."""
    B, H, Q, _ = Q_c.shape
    N = K_c.shape[-2]
    c2p = p2c = p2p = i = None
    if terms:
        # Captured as tensors: some versions of flex_attention cannot capture a dynamic size.
        i = torch.arange(Q, device=Q_c.device).expand(B, Q) + delta.shape[0] // 2
    if "c2p" in terms:
        c2p = (Q_c.float() * scale) @ K_r.float().transpose(-1, -2)  # [B, H, Q, R]
    if "p2c" in terms:
        p2c = K_c.float() @ (Q_r.float() * scale).transpose(-1, -2)  # [B, H, N, R]
    if "p2p" in terms:
        p2p = (Q_r.float()[:, delta] * K_r.float()[:, delta.flip(0)]).sum(-1) * scale  # [H, 2L - 1]
    if mask is not None:
        mask = torch.atleast_1d(mask)[(None,) * (4 - mask.dim())].expand(B, H, Q, N)

    def score_mod(score, b, h, q, k):
        if terms:
            offset = i[b, q] - k
        if c2p is not None:
            score = score + c2p[b, h, q, delta[offset]]
        if p2c is not None:
            score = score + p2c[b, h, k, delta[offset]]
        if p2p is not None:
            score = score + p2p[h, offset]
        if mask is not None:
            score = torch.where(mask[b, h, q, k], score, -float("inf"))
        return score

    return flex_attention(Q_c, K_c, V_c.to(Q_c.dtype), score_mod=score_mod, scale=scale)


def attention_dense_scores(Q_c, K_c, V_c, K_r, Q_r, delta, terms, scale, mask):
    """softmax(A) V_c, with A [B, H, Q, N] computed before, read by the score_mod."""
    B, H, Q, _ = Q_c.shape
    N = K_c.shape[-2]
    dtype, device = Q_c.dtype, Q_c.device
    # Indices are in range by construction: the checked gather takes twice the time.
    look_up = torch.ops.aten._unsafe_index.Tensor
    Q_c, K_c = Q_c.float() * scale, K_c.float()
    A = Q_c @ K_c.transpose(-1, -2)  # [B, H, Q, N]
    b = torch.arange(B, device=device)[:, None, None, None]
    h = torch.arange(H, device=device)[:, None, None]
    q = torch.arange(Q, device=device)[:, None]
    k = torch.arange(N, device=device)
    if terms:
        L = (delta.shape[0] + 1) // 2
        # Row i of this view begins one element before row i - 1: delta(i, j) without an index tensor.
        row = delta[L - N : L + N - 1].flip(0).as_strided((N, N), (1, 1)).flip(0)
    if "c2p" in terms:
        c2p = Q_c @ K_r.float().transpose(-1, -2)  # [B, H, Q, R]
        A = A + look_up(c2p, [b, h, q, row])
    if "p2c" in terms:
        p2c = K_c @ (Q_r.float() * scale).transpose(-1, -2)  # [B, H, N, R]
        A = A + look_up(p2c, [b, h, k, row])
    if "p2p" in terms:
        p2p = (Q_r.float()[:, delta] * K_r.float()[:, delta.flip(0)]).sum(-1) * scale  # [H, 2L - 1]
        A = A + p2p[h, q - k + L - 1]
    if mask is not None:
        A = A.masked_fill(~mask, -float("inf"))
    # flex_attention on CPU takes no pointwise result of the same graph: a strided view makes it a buffer.
    A = A.contiguous().as_strided((B * H * Q * N,), (1,))
    # Nor sizes that the score_mod needs for itself: it replaces their names in the generated code, "ks1" also in "ks15".
    sizes = torch.stack([torch.full((), size, device=device) for size in (H, Q, N)]).as_strided((3,), (1,))

    def score_mod(score, b, h, q, k):
        place = ((b * sizes[0] + h) * sizes[1] + q) * sizes[2] + k
        # By this name, since it asks for no size of A, as others do for indices that count from the end.
        return torch.ops.aten._unsafe_masked_index(A, place >= 0, [place], 0.0)

    # Vectors of size 0 leave the whole score to the score_mod.
    empty = (torch.zeros(B, H, size, 0, dtype=dtype, device=device) for size in (Q, N))
    return flex_attention(*empty, V_c.to(dtype), score_mod=score_mod, scale=1.0)

# SPDX-License-Identifier: Apache-2.0
"""The native CPU kernel of disentangled attention as torch operators, where `pip install` has built its library.

`torch.ops.hf_deberta_ext.disentangled_attention` is all that `model/attention_native.py` calls, also in remote code, which
then runs in a process that has imported this package. A changed signature needs another name.
"""

import ctypes
import struct
from pathlib import Path

import torch

__all__ = ["INSTRUCTION_SETS", "kernel_status", "load"]

LIBRARY = Path(__file__).with_name("libdisentangled_attention.so")
VERSION = 1
# Numbers of disentangled_attention.cpp; 0 is the best of this CPU.
INSTRUCTION_SETS = {
    1: "generic",
    2: "AVX2",
    3: "AVX-512",
    4: "NEON",
    5: "AVX-512 and its bfloat16 products",
    6: "AVX-512 and AMX",
}
NO_MEMORY = 3
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
# struct Arguments: each field has eight bytes, which scale and dropout share.
ARGUMENTS = struct.Struct("=42q2fQ21q")

# That of the next calls; tests choose another one.
instruction_set = 0


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """Open a library of the kernel, after torch, whose threads it shares.

    Raises:
        OSError: there is none, it cannot be opened here, or it is of another version.
    """
    if not path.exists():
        raise OSError("it was not built: `pip install` of hf_deberta_ext builds it where it finds a C++ compiler")
    library = ctypes.CDLL(str(path))
    for function in ("version", "supports", "forward", "backward"):
        getattr(library, f"disentangled_{function}").restype = ctypes.c_int64
    library.disentangled_supports.argtypes = [ctypes.c_int64]
    size_alone = ARGUMENTS.pack(ARGUMENTS.size, *[0] * 41, 0.0, 0.0, *[0] * 22)
    if library.disentangled_version() != VERSION or library.disentangled_forward(size_alone) == 1:
        raise OSError(f"{path} is of another version: install hf_deberta_ext again")
    return library


def kernel_status() -> str:
    """One line: the instruction set that the kernel uses on this CPU, or the reason why it does not run."""
    return status


def empty_heads(x: torch.Tensor) -> torch.Tensor:
    """[B, H, M, d], laid out as [B, M, H, d], so that the heads join without a copy."""
    B, H, M, d = x.shape
    return x.new_empty(B, M, H, d).transpose(1, 2)


def rows(x: torch.Tensor | None) -> torch.Tensor | None:
    """With the last axis in one piece, as the kernel reads it."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def run(
    function, q, k, v, out, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, reach, scale, dropout, lse,
    grad=None, gradients=(None,) * 6,
):  # fmt: skip
    """Call a function of the library.

    Raises:
        ValueError: tensors that do not fit each other: the library would read beyond their ends.
    """
    B, H, M, d = q.shape
    N = k.shape[2]
    R = next((x.shape[1] for x in (K_r, Q_r) if x is not None), 0)
    length = 0 if delta is None else len(delta)
    floating, whole = q.dtype, torch.int64
    expected = [
        (k, floating, (B, H, N, d)), (v, floating, (B, H, N, d)), (K_r, floating, (H, R, d)), (Q_r, floating, (H, R, d)),
        (bias, torch.float32, (H, length)), (delta, whole, (length,)), (positions, whole, (B, M)), (seed, whole, (1,)),
        (mask, torch.bool, None), (cu_seqlens, torch.int32, None), (grad, floating, (B, H, M, d)),
    ]  # fmt: skip
    for x, dtype, shape in expected:
        if x is not None and (x.dtype != dtype or (shape is not None and x.shape != shape)):
            raise ValueError(f"native attention expected {dtype} {shape or ''}, got {x.dtype} {[*x.shape]}")
    queries_are_keys = positions is None or cu_seqlens is not None
    if floating not in DTYPES or (queries_are_keys and M != N) or (R > 0) > (length % 2):
        raise ValueError(
            f"native attention serves float32 and bfloat16, {M} queries of {N} keys with positions alone, and K_r and Q_r "
            f"with delta; got {floating}, positions {positions}, delta {delta}"
        )
    q, k, v, K_r, Q_r, grad = map(rows, (q, k, v, K_r, Q_r, grad))
    bias, delta, positions, cu_seqlens = (x if x is None else x.contiguous() for x in (bias, delta, positions, cu_seqlens))
    if mask is not None:
        mask = mask.expand(B, H, M, N)
    if cu_seqlens is not None:
        B = len(cu_seqlens) - 1

    def pointer(x):
        return 0 if x is None else x.data_ptr()

    def strides(x, axes):
        return (0,) * axes if x is None else x.stride()[:axes]

    dq, dk, dv, dK_r, dQ_r, dbias = gradients
    result = function(
        ARGUMENTS.pack(
            ARGUMENTS.size, DTYPES[floating], instruction_set, *map(pointer, (q, k, v, out)),
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            pointer(K_r), pointer(Q_r), *strides(K_r, 2), *strides(Q_r, 2),
            pointer(bias), pointer(delta), length // 2, reach, R,
            pointer(mask), *strides(mask, 4), pointer(cu_seqlens), pointer(positions),
            B, H, M, N, d, scale, dropout, 0 if seed is None else seed.item(), torch.get_num_threads(), pointer(lse),
            pointer(grad), *strides(grad, 3), *map(pointer, (dq, dk, dv)),
            *strides(dq, 3), *strides(dk, 3), *strides(dv, 3), *map(pointer, (dK_r, dQ_r, dbias)),
        )
    )  # fmt: skip
    if result:
        if result == NO_MEMORY:
            raise MemoryError(f"native attention: not enough memory for {M} queries of {N} keys")
        raise ValueError(
            f"native attention cannot serve {M} queries of {N} keys, head size {d}: head sizes are 16 to 128, or there is "
            "an index out of range in delta, positions or cu_seqlens"
        )


def forward(q, k, v, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, reach, scale, dropout):
    out, lse = empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    run(
        library.disentangled_forward, q, k, v, out, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, reach, scale,
        dropout, lse,
    )  # fmt: skip
    return out, lse


def backward(
    grad, q, k, v, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, out, lse, reach, scale, dropout, tables
):  # fmt: skip
    """Gradients of q, k, v, K_r, Q_r and bias; of the last three an empty tensor where `tables` says that none is wanted."""
    sums = [
        x.new_zeros(x.shape, dtype=torch.float32) if wanted else None
        for x, wanted in zip((K_r, Q_r, bias), tables, strict=True)
    ]
    content = empty_heads(q), empty_heads(k), empty_heads(v)
    run(
        library.disentangled_backward, q, k, v, out, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, reach, scale,
        dropout, lse, grad, (*content, *sums),
    )  # fmt: skip
    tables = (q.new_empty(0) if x is None else x.to(y.dtype) for x, y in zip(sums, (K_r, Q_r, bias), strict=True))
    return *content, *tables


def fake_forward(q, *_):
    return empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def fake_backward(grad, q, k, v, K_r, Q_r, bias, *others):
    *_, tables = others
    sums = [x.new_empty(x.shape) if wanted else q.new_empty(0) for x, wanted in zip((K_r, Q_r, bias), tables, strict=True)]
    return empty_heads(q), empty_heads(k), empty_heads(v), *sums


def save(ctx, inputs, output):
    *tensors, reach, scale, dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.numbers = reach, scale, dropout
    ctx.mark_non_differentiable(output[1])


def differentiate(ctx, grad, _):
    tables = [ctx.needs_input_grad[place] for place in (3, 4, 5)]
    operator = torch.ops.hf_deberta_ext.disentangled_attention_backward.default
    dq, dk, dv, *sums = operator(grad, *ctx.saved_tensors, *ctx.numbers, tables)
    sums = [x if wanted else None for x, wanted in zip(sums, tables, strict=True)]
    return dq, dk, dv, *sums, *[None] * 8


def refuse(ctx, *grads):
    raise ValueError("native attention has no second derivatives; attn_implementation = 'eager' has")


def register():
    library = torch.library.Library("hf_deberta_ext", "DEF")
    tensors = (
        "Tensor q, Tensor k, Tensor v, Tensor? K_r, Tensor? Q_r, Tensor? bias, Tensor? delta, Tensor? mask, "
        "Tensor? cu_seqlens, Tensor? positions, Tensor? seed"
    )
    numbers = "int reach, float scale, float dropout"
    name, back = "disentangled_attention", "disentangled_attention_backward"
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(f"{name}({tensors}, {numbers}) -> (Tensor, Tensor)", tags=tags)
    library.define(
        f"{back}(Tensor grad, {tensors}, Tensor out, Tensor lse, {numbers}, bool[] tables) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        tags=tags,
    )
    for operator, function, fake in ((name, forward, fake_forward), (back, backward, fake_backward)):
        library.impl(operator, function, "CPU")
        # Not register_fake, which searches all modules for the caller's source: 50 ms.
        library.impl(operator, fake, "Meta")
    torch.library.register_autograd(f"hf_deberta_ext::{name}", differentiate, setup_context=save, lib=library)
    torch.library.register_autograd(f"hf_deberta_ext::{back}", refuse, lib=library)
    return library


try:
    library = load()
    best = library.disentangled_supports(0)
    # Slower than "blocked".
    if best < 2:
        raise OSError("this CPU has neither AVX2 nor NEON")
    _operators = register()
    status = f"native CPU kernel with {INSTRUCTION_SETS[best]}"
except OSError as error:
    status = f"no native CPU kernel: {error}"

# SPDX-License-Identifier: Apache-2.0
"""The native CPU kernel of disentangled attention as torch operators, where `pip install` has built its library.

`torch.ops.hf_deberta_ext.disentangled_attention` is all that `model/attention_native.py` calls, also in remote code, which
then runs in a process that has imported this package. A changed signature needs another name.
"""

import ctypes
from ctypes import c_float, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import NamedTuple

import torch

from ..model.attention_inputs import empty_heads

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
WRONG_SIZE = 1
NO_MEMORY = 3
DTYPES = {torch.float32: 0, torch.bfloat16: 1}

# The instruction set of the next calls; tests choose another one.
instruction_set = 0


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Arguments(ctypes.Structure):
    """`struct Arguments` of disentangled_attention.cpp, which documents the fields; `load` compares the sizes."""

    _fields_ = (
        *fields(c_int64, "size dtype isa"),
        *fields(c_void_p, "q k v out"),
        *fields(3 * c_int64, "q_strides k_strides v_strides out_strides"),
        *fields(c_void_p, "K_r Q_r"),
        *fields(2 * c_int64, "K_r_strides Q_r_strides"),
        *fields(c_void_p, "bias delta"),
        *fields(c_int64, "middle reach R"),
        *fields(c_void_p, "mask"),
        *fields(4 * c_int64, "mask_strides"),
        *fields(c_void_p, "starts positions"),
        *fields(c_int64, "B H M N d"),
        *fields(c_float, "scale dropout"),
        *fields(c_uint64, "seed"),
        *fields(c_int64, "threads"),
        *fields(c_void_p, "lse d_out"),
        *fields(3 * c_int64, "d_out_strides"),
        *fields(c_void_p, "d_q d_k d_v"),
        *fields(3 * c_int64, "d_q_strides d_k_strides d_v_strides"),
        *fields(c_void_p, "d_K_r d_Q_r d_bias"),
    )

    def point(self, name: str, x: torch.Tensor | None, axes: int = 0):
        """Set the pointer of a tensor, and the strides of its first axes where the struct has them; null for None."""
        if x is not None:
            setattr(self, name, x.data_ptr())
            if axes:
                setattr(self, f"{name}_strides", x.stride()[:axes])


class Inputs(NamedTuple):
    """Inputs of the operator: `AttentionInputs`, the p2p scores by offset, [H, 2L - 1] float32, and the seed of dropout."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    K_r: torch.Tensor | None
    Q_r: torch.Tensor | None
    bias: torch.Tensor | None
    delta: torch.Tensor | None
    mask: torch.Tensor | None
    cu_seqlens: torch.Tensor | None
    positions: torch.Tensor | None
    seed: torch.Tensor | None
    reach: int
    scale: float
    dropout: float


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """Open a library of the kernel, after torch, whose threads it shares.

    Raises:
        OSError: there is none, it cannot be opened here, or it is of another version.
    """
    if not path.exists():
        raise OSError("it was not built: `pip install` of hf_deberta_ext builds it where it finds a C++ compiler")
    library = ctypes.CDLL(str(path))
    for function in ("version", "supports", "forward", "backward"):
        getattr(library, f"disentangled_{function}").restype = c_int64
    library.disentangled_supports.argtypes = [c_int64]
    only_size = Arguments(size=ctypes.sizeof(Arguments))
    if library.disentangled_version() != VERSION or library.disentangled_forward(ctypes.byref(only_size)) == WRONG_SIZE:
        raise OSError(f"{path} is of another version: install hf_deberta_ext again")
    return library


def kernel_status() -> str:
    """One line: the instruction set that the kernel uses on this CPU, or the reason why it does not run."""
    return status


def rows(x: torch.Tensor | None) -> torch.Tensor | None:
    """Return the tensor with its last axis in one piece, as the kernel reads it."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def contiguous(x: torch.Tensor | None) -> torch.Tensor | None:
    return x if x is None else x.contiguous()


def checked(inputs: Inputs) -> Inputs:
    """Return the inputs as the kernel reads them.

    Raises:
        ValueError: tensors that do not fit each other: the library would read beyond their ends.
    """
    q, k, v, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, *numbers = inputs
    (B, H, M, d), N, R, length = q.shape, k.shape[2], 0, 0
    if delta is not None:
        length = len(delta)
    for table in (Q_r, K_r):
        if table is not None:
            R = table.shape[1]
    expected = [
        (k, q.dtype, (B, H, N, d)), (v, q.dtype, (B, H, N, d)), (K_r, q.dtype, (H, R, d)), (Q_r, q.dtype, (H, R, d)),
        (bias, torch.float32, (H, length)), (delta, torch.int64, (length,)), (positions, torch.int64, (B, M)),
        (seed, torch.int64, (1,)), (mask, torch.bool, None), (cu_seqlens, torch.int32, None),
    ]  # fmt: skip
    for x, dtype, shape in expected:
        if x is not None and (x.dtype != dtype or (shape is not None and x.shape != shape)):
            raise ValueError(f"native attention expected {dtype} {shape or ''}, got {x.dtype} {[*x.shape]}")
    queries_are_keys = positions is None or cu_seqlens is not None
    if q.dtype not in DTYPES or (queries_are_keys and M != N) or (R > 0) > (length % 2):
        raise ValueError(
            "native attention serves float32 and bfloat16, as many queries as keys unless they have positions, and tables "
            f"with delta; got {q.dtype}, {M} queries, {N} keys, {R} rows and {length} offsets"
        )
    if mask is not None:
        mask = mask.expand(B, H, M, N)
    tables = contiguous(bias), contiguous(delta), mask, contiguous(cu_seqlens), contiguous(positions)
    return Inputs(rows(q), rows(k), rows(v), rows(K_r), rows(Q_r), *tables, seed, *numbers)


def arguments_of(inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> Arguments:
    """Return the arguments of a forward pass, which point into the checked inputs."""
    q, k, v, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, reach, scale, dropout = inputs
    arguments = Arguments(ctypes.sizeof(Arguments), DTYPES[q.dtype], instruction_set)
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        arguments.point(name, x, 3)
    arguments.point("K_r", K_r, 2)
    arguments.point("Q_r", Q_r, 2)
    arguments.point("bias", bias)
    arguments.point("mask", mask, 4)
    arguments.point("starts", cu_seqlens)
    arguments.point("positions", positions)
    arguments.point("lse", lse)
    arguments.B, arguments.H, arguments.M, arguments.d = q.shape
    arguments.N = k.shape[2]
    if cu_seqlens is not None:
        arguments.B = len(cu_seqlens) - 1
    if delta is not None:
        arguments.point("delta", delta)
        arguments.middle = len(delta) // 2
    for table in (Q_r, K_r):
        if table is not None:
            arguments.R = table.shape[1]
    if seed is not None:
        arguments.seed = seed.item()
    arguments.reach, arguments.scale, arguments.dropout = reach, scale, dropout
    arguments.threads = torch.get_num_threads()
    return arguments


def run(function, arguments: Arguments):
    """Call a function of the library.

    Raises:
        ValueError: sizes that the kernel does not serve, or an index out of range.
        MemoryError: no memory for its scratch.
    """
    result = function(ctypes.byref(arguments))
    if result:
        sizes = f"{arguments.M} queries of {arguments.N} keys"
        if result == NO_MEMORY:
            raise MemoryError(f"native attention: not enough memory for {sizes}")
        raise ValueError(
            f"native attention cannot serve {sizes}, head size {arguments.d}: head sizes are 16 to 128, or an index is "
            "out of range in delta, positions or cu_seqlens"
        )


def forward(*operands):
    """Return out [B, H, M, d] and lse [B, H, M], the base-2 logarithm of the sums of exponentials."""
    inputs = checked(Inputs(*operands))
    out, lse = fake_forward(*operands)
    run(library.disentangled_forward, arguments_of(inputs, out, lse))
    return out, lse


def backward(grad, out, lse, *operands):
    """Return the gradients of q, k, v, K_r, Q_r and bias; empty tensors for those of the last three that are not wanted."""
    *operands, wanted = operands
    inputs, grad = checked(Inputs(*operands)), rows(grad)
    if grad.shape != out.shape or grad.dtype != out.dtype:
        raise ValueError(f"native attention expected {out.dtype} {[*out.shape]}, got {grad.dtype} {[*grad.shape]}")
    arguments = arguments_of(inputs, out, lse)
    arguments.point("d_out", grad, 3)
    gradients = [empty_heads(inputs.q), empty_heads(inputs.k), empty_heads(inputs.v)]
    for name, x in zip(("d_q", "d_k", "d_v"), gradients, strict=True):
        arguments.point(name, x, 3)
    for name, is_wanted in zip(("K_r", "Q_r", "bias"), wanted, strict=True):
        sums = inputs.q.new_empty(0)
        if is_wanted:
            sums = torch.zeros(getattr(inputs, name).shape)
            arguments.point(f"d_{name}", sums)
        gradients.append(sums)
    run(library.disentangled_backward, arguments)
    *content, dK_r, dQ_r, dbias = gradients
    return *content, dK_r.to(grad.dtype), dQ_r.to(grad.dtype), dbias


def fake_forward(q, *_):
    return empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def fake_backward(grad, out, lse, q, k, v, K_r, Q_r, bias, *others):
    gradients = [empty_heads(q), empty_heads(k), empty_heads(v)]
    for x, is_wanted in zip((K_r, Q_r, bias), others[-1], strict=True):
        gradients.append(x.new_empty(x.shape) if is_wanted else q.new_empty(0))
    return tuple(gradients)


def save(ctx, inputs, output):
    *tensors, reach, scale, dropout = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.numbers = reach, scale, dropout
    ctx.mark_non_differentiable(output[1])


def differentiate(ctx, grad, _):
    wanted = ctx.needs_input_grad[3:6]
    operator = torch.ops.hf_deberta_ext.disentangled_attention_backward.default
    dq, dk, dv, *tables = operator(grad, *ctx.saved_tensors, *ctx.numbers, wanted)
    for place, is_wanted in enumerate(wanted):
        if not is_wanted:
            tables[place] = None
    return dq, dk, dv, *tables, *[None] * 8


def refuse(ctx, *grads):
    raise ValueError("native attention has no second derivatives; attn_implementation = 'eager' has")


def register():
    library = torch.library.Library("hf_deberta_ext", "DEF")
    operands = (
        "Tensor q, Tensor k, Tensor v, Tensor? K_r, Tensor? Q_r, Tensor? bias, Tensor? delta, Tensor? mask, "
        "Tensor? cu_seqlens, Tensor? positions, Tensor? seed, int reach, float scale, float dropout"
    )
    name, back = "disentangled_attention", "disentangled_attention_backward"
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(f"{name}({operands}) -> (Tensor, Tensor)", tags=tags)
    gradients = ", ".join(["Tensor"] * 6)
    library.define(f"{back}(Tensor grad, Tensor out, Tensor lse, {operands}, bool[] wanted) -> ({gradients})", tags=tags)
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

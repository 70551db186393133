# SPDX-License-Identifier: Apache-2.0
"""Register the native CPU kernel of disentangled attention as torch operators, if `pip install` built its library.

`kernels/attention_native.py` only calls `torch.ops.hf_deberta_ext.disentangled_attention`.
"""

import ctypes
from ctypes import c_float, c_int64, c_uint64, c_void_p
from pathlib import Path

import torch

from ..kernels.operators import differentiate_by, empty_heads, fake_backward, fake_forward, save_operands

__all__ = ["INSTRUCTION_SETS", "kernel_status", "load"]

LIBRARY = Path(__file__).with_name("libdisentangled_attention.so")
VERSION = 1
# Values of Isa in disentangled_attention.cpp; 0 is the best instruction set of this CPU.
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

# Instruction set of the next calls. Tests change it.
instruction_set = 0


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Arguments(ctypes.Structure):
    """`struct Arguments` of disentangled_attention.cpp; see there for the fields. `load` checks that the sizes are equal."""

    _fields_ = (
        *fields(c_int64, "size dtype isa"),
        *fields(c_void_p, "q k v out"),
        *fields(3 * c_int64, "q_strides k_strides v_strides out_strides"),
        *fields(c_void_p, "K_r Q_r"),
        *fields(2 * c_int64, "K_r_strides Q_r_strides"),
        *fields(c_void_p, "bias delta"),
        *fields(c_int64, "middle max_distance R"),
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

    def __init__(self, **values):
        super().__init__(size=ctypes.sizeof(Arguments), **values)
        # Keeps the tensors alive as long as the pointers to them.
        self.tensors = []

    def point(self, name: str, x: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, ...], axes: int = 0):
        """Set the field `name` to the address of x, and NAME_strides to the strides of its first `axes` axes.

        If `axes` is 0, x is made contiguous. If x is None, the address stays null.

        Raises:
            ValueError: x has another dtype or shape, so that the library would read beyond the end of x.
        """
        if x is None:
            return
        if x.dtype != dtype or x.shape != shape:
            raise ValueError(f"native attention: {name} must be {dtype} with shape {[*shape]}, got {x.dtype} {[*x.shape]}")
        if axes == 0 or (axes < x.dim() and x.stride(-1) != 1):
            x = x.contiguous()
        self.tensors.append(x)
        setattr(self, name, x.data_ptr())
        if axes > 0:
            setattr(self, f"{name}_strides", x.stride()[:axes])

    def run(self, function):
        """Call a C function of the library with a pointer to this structure.

        Raises:
            ValueError: the head size is not supported, or an index is out of range.
            MemoryError: not enough memory for scratch buffers.
        """
        result = function(ctypes.byref(self))
        if result == NO_MEMORY:
            raise MemoryError(f"native attention: not enough memory for {self.M} queries and {self.N} keys")
        if result:
            raise ValueError(
                f"native attention failed for {self.M} queries and {self.N} keys: head size {self.d} is not in [16, 128], "
                "or an index is out of range in delta, positions or cu_seqlens"
            )


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """Load the kernel's library. Import torch before this call, because the library uses torch's threads.

    Raises:
        OSError: the library is missing, cannot be loaded, or was built for another version of hf_deberta_ext.
    """
    if not path.exists():
        raise OSError("the kernel's library was not built: install a C++ compiler, then install hf_deberta_ext again")
    library = ctypes.CDLL(str(path))
    for function in ("version", "supports", "forward", "backward"):
        getattr(library, f"disentangled_{function}").restype = c_int64
    library.disentangled_supports.argtypes = [c_int64]
    if library.disentangled_version() != VERSION or library.disentangled_forward(ctypes.byref(Arguments())) == WRONG_SIZE:
        raise OSError(f"{path} was built for another version of hf_deberta_ext: install hf_deberta_ext again")
    return library


def kernel_status() -> str:
    """Return one line with the instruction set that the kernel uses on this CPU, or the reason why it does not run."""
    return status


def arguments_of(
    out, lse, q, k, v, K_r, Q_r, bias, delta, mask, cu_seqlens, positions, seed, max_distance, scale, dropout
) -> Arguments:
    """Convert the arguments of the torch operator to the library's `Arguments`.

    See `AttentionInputs` for arguments of the same name. `bias` [H, 2L - 1] is the term p2p, one value per offset i - j.

    Raises:
        ValueError: shapes or dtypes do not match.
    """
    (B, H, M, d), N, R, length = q.shape, k.shape[2], 0, 0
    for table in (Q_r, K_r):
        if table is not None:
            R = table.shape[1]
    if delta is not None:
        length = len(delta)
    queries_are_keys = positions is None or cu_seqlens is not None
    if q.dtype not in DTYPES or (queries_are_keys and M != N) or (R > 0) > (length % 2):
        raise ValueError(
            "native attention requires the dtype float32 or bfloat16. The numbers of queries and keys must be equal, unless "
            "positions are passed without cu_seqlens. The tables K_r and Q_r require delta with an odd number of offsets. "
            f"Got {q.dtype}, {M} queries, {N} keys, tables of {R} rows and a delta of {length} offsets"
        )
    result = Arguments(dtype=DTYPES[q.dtype], isa=instruction_set, B=B, H=H, M=M, N=N, d=d, R=R, middle=length // 2)
    result.max_distance, result.scale, result.dropout, result.threads = max_distance, scale, dropout, torch.get_num_threads()
    result.point("q", q, q.dtype, (B, H, M, d), 3)
    result.point("k", k, q.dtype, (B, H, N, d), 3)
    result.point("v", v, q.dtype, (B, H, N, d), 3)
    result.point("out", out, q.dtype, (B, H, M, d), 3)
    result.point("lse", lse, torch.float32, (B, H, M))
    result.point("K_r", K_r, q.dtype, (H, R, d), 2)
    result.point("Q_r", Q_r, q.dtype, (H, R, d), 2)
    result.point("bias", bias, torch.float32, (H, length))
    result.point("delta", delta, torch.int64, (length,))
    result.point("positions", positions, torch.int64, (B, M))
    if mask is not None:
        result.point("mask", mask.expand(B, H, M, N), torch.bool, (B, H, M, N), 4)
    if cu_seqlens is not None:
        result.B = len(cu_seqlens) - 1
        result.point("starts", cu_seqlens, torch.int32, cu_seqlens.shape)
    if seed is not None:
        result.seed = seed.item()
    return result


def forward(*operands):
    """Compute out [B, H, M, d] and lse [B, H, M], the base-2 logarithm of the sums of exponentials."""
    out, lse = fake_forward(*operands)
    arguments_of(out, lse, *operands).run(library.disentangled_forward)
    return out, lse


def backward(grad, out, lse, *operands):
    """Compute the gradients of q, k, v, K_r, Q_r and bias.

    The last operand, `wanted`, has three bools for K_r, Q_r and bias; if one is False, this gradient is an empty tensor.
    """
    *operands, wanted = operands
    arguments = arguments_of(out, lse, *operands)
    arguments.point("d_out", grad, out.dtype, out.shape, 3)
    gradients = []
    for name, x in zip(("q", "k", "v"), operands, strict=False):
        gradients.append(empty_heads(x))
        arguments.point(f"d_{name}", gradients[-1], x.dtype, x.shape, 3)
    for name, x, is_wanted in zip(("K_r", "Q_r", "bias"), operands[3:6], wanted, strict=True):
        if is_wanted:
            gradients.append(torch.zeros(x.shape))
            arguments.point(f"d_{name}", gradients[-1], torch.float32, x.shape)
        else:
            gradients.append(grad.new_empty(0))
    arguments.run(library.disentangled_backward)
    *content, dK_r, dQ_r, dbias = gradients
    return *content, dK_r.to(grad.dtype), dQ_r.to(grad.dtype), dbias


def refuse(ctx, *grads):
    raise ValueError("native attention has no second derivatives; use attn_implementation = 'eager'")


def register():
    library = torch.library.Library("hf_deberta_ext", "DEF")
    operands = (
        "Tensor q, Tensor k, Tensor v, Tensor? K_r, Tensor? Q_r, Tensor? bias, Tensor? delta, Tensor? mask, "
        "Tensor? cu_seqlens, Tensor? positions, Tensor? seed, int max_distance, float scale, float dropout"
    )
    name, back = "disentangled_attention", "disentangled_attention_backward"
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(f"{name}({operands}) -> (Tensor, Tensor)", tags=tags)
    gradients = ", ".join(["Tensor"] * 6)
    library.define(f"{back}(Tensor grad, Tensor out, Tensor lse, {operands}, bool[] wanted) -> ({gradients})", tags=tags)
    for operator, function, fake in ((name, forward, fake_forward), (back, backward, fake_backward)):
        library.impl(operator, function, "CPU")
        # Not register_fake, which takes 50 ms to search all modules for the caller's source.
        library.impl(operator, fake, "Meta")
    differentiate = differentiate_by(torch.ops.hf_deberta_ext.disentangled_attention_backward.default)
    torch.library.register_autograd(f"hf_deberta_ext::{name}", differentiate, setup_context=save_operands, lib=library)
    torch.library.register_autograd(f"hf_deberta_ext::{back}", refuse, lib=library)
    return library


try:
    library = load()
    best = library.disentangled_supports(0)
    # The generic code is slower than "blocked".
    if best < 2:
        raise OSError("this CPU has neither AVX2 nor NEON")
    _operators = register()
    status = f"native CPU kernel with {INSTRUCTION_SETS[best]}"
except OSError as error:
    status = f"no native CPU kernel: {error}"

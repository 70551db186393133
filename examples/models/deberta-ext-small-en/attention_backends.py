# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The table of attention backends, and the choice of one for a call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .attention_blocked import blocked_unavailable, disentangled_attention_blocked
from .attention_eager import disentangled_attention_eager
from .attention_inputs import AttentionInputs
from .attention_native import disentangled_attention_native, native_unavailable
from .attention_sdpa import disentangled_attention_sdpa
from .input_validation import is_traced

__all__ = ["BACKENDS", "Backend", "backend_unavailable", "check_backend", "choose_backend"]

# With fewer queries than this share of the keys, computing all queries costs more than the gathers of "eager"; backends that
# take query positions compute no others.
FEW_QUERIES = 0.3


def disentangled_attention_triton(inputs: AttentionInputs) -> torch.Tensor:
    """Import Triton at the first call."""
    from .attention_triton import disentangled_attention_triton

    return disentangled_attention_triton(inputs)


def triton_unavailable(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    from .attention_triton import triton_unavailable

    return triton_unavailable(device, dtype, head_size)


class Backend(NamedTuple):
    """One implementation of disentangled attention.

    Attributes:
        function (`Callable`): takes `AttentionInputs` and returns out [B, H, Q, d], or (out, probabilities).
        description (`str`): one line for the guide.
        unavailable (`Callable`, *optional*): takes device, dtype and head size and returns the reason why the backend cannot
            serve such tensors, or None; without it the backend serves every call.
        best_on (`tuple[str, ...]`): devices on which it is chosen automatically, if it can serve the call.
        not_best_for (`tuple[torch.dtype, ...]`): dtypes for which it is never chosen automatically.
        returns_probs (`bool`): the function returns the probabilities as well.
        takes_query_positions (`bool`): the function computes only queries at chosen positions; otherwise all positions are
            computed, and the other ones are dropped.
        takes_cu_seqlens (`bool`): the function serves a stream of documents; otherwise documents are padded.
    """

    function: Callable[[AttentionInputs], Any]
    description: str
    unavailable: Callable[[torch.device, torch.dtype, int], str | None] | None = None
    best_on: tuple[str, ...] = ()
    not_best_for: tuple[torch.dtype, ...] = ()
    returns_probs: bool = False
    takes_query_positions: bool = False
    takes_cu_seqlens: bool = False

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return out [B, H, Q, d] and the probabilities, or None from a backend that does not return them."""
        result = self.function(inputs)
        return result if self.returns_probs else (result, None)


# Where several are the best on a device, the last one is chosen.
BACKENDS = {
    "eager": Backend(
        disentangled_attention_eager,
        "the equation with gathers, the reference for all others; the only one that returns probabilities",
        returns_probs=True,
        takes_query_positions=True,
    ),
    "sdpa": Backend(
        disentangled_attention_sdpa,
        "the position bias made once, then torch's SDPA",
        takes_query_positions=True,
    ),
    "blocked": Backend(
        disentangled_attention_blocked,
        "pure PyTorch: position scores as strided views of matrix products, one number a row where distances are beyond the "
        "table; blocks of queries, forward and backward keep no [B, H, N, N] tensor; dropout",
        blocked_unavailable,
        best_on=("cpu", "cuda"),
    ),
    "triton": Backend(
        disentangled_attention_triton,
        "flash-style kernels for CUDA (triton 3.4 or newer, which torch 2.8 brings), head sizes 16 to 128, dropout, "
        "documents in one stream",
        triton_unavailable,
        best_on=("cuda",),
        # Its exact float32 products run outside of the tensor cores and spill registers, also as three products of TF32.
        not_best_for=(torch.float32,),
        takes_cu_seqlens=True,
    ),
    "native": Backend(
        disentangled_attention_native,
        "a fused C++ kernel for CPUs with AVX2, AVX-512 or NEON, which `pip install` builds where a compiler is; float32 "
        "and bfloat16, head sizes 16 to 128, dropout, documents in one stream",
        native_unavailable,
        best_on=("cpu",),
        takes_query_positions=True,
        takes_cu_seqlens=True,
    ),
}


def backend_unavailable(
    name: str, device: torch.device, dtype: torch.dtype, head_size: int, needs_probs: bool = False
) -> str | None:
    """Return the reason why a backend cannot serve a call, or None if it can."""
    backend = BACKENDS[name]
    if needs_probs and not backend.returns_probs:
        return "it does not return attention probabilities"
    if backend.unavailable is None:
        return None
    return backend.unavailable(device, dtype, head_size)


def check_backend(name: str):
    """
    Raises:
        ValueError: there is no backend of this name.
    """
    if name not in BACKENDS:
        raise ValueError(
            f"attn_implementation = {name!r} is not one of {', '.join(map(repr, BACKENDS))}; without it the best one is "
            "chosen for each call"
        )


def choose_backend(
    requested: str | None,
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    *,
    needs_probs: bool = False,
    query_share: float = 1.0,
    served: str = "this",
) -> tuple[str, str]:
    """Return the name of the backend for a call, and the reason for the choice.

    Args:
        requested (`str`, *optional*): a name in `BACKENDS`; None or "auto": the best for this call, which never fails.
        needs_probs (`bool`): whether the call returns the attention probabilities.
        query_share (`float`): queries / keys where queries stand at chosen positions.
        served (`str`): name of the call for the error message.

    Raises:
        ValueError: the requested backend does not exist or cannot serve the call.
    """
    if requested not in (None, "auto"):
        check_backend(requested)
        reason = backend_unavailable(requested, device, dtype, head_size, needs_probs)
        if reason is None:
            return requested, "asked for"
        able = [name for name in BACKENDS if backend_unavailable(name, device, dtype, head_size, needs_probs) is None]
        raise ValueError(
            f"attn_implementation = {requested!r} cannot serve {served}: {reason}; {', '.join(map(repr, able))} can, and "
            "without attn_implementation the best one is chosen for each call"
        )
    if needs_probs:
        return "eager", "attention probabilities were asked for"
    compiling = torch.compiler.is_compiling()
    # Not in torch 2.6.
    if compiling and getattr(torch.compiler, "is_exporting", bool)():
        return "eager", "exported: these operations go into any format"
    if not compiling and is_traced():
        return "eager", "traced or transformed"
    if device.type == "meta":
        return "eager", "nothing is computed"
    few = query_share < FEW_QUERIES
    for name, backend in reversed(BACKENDS.items()):
        serves = device.type in backend.best_on and dtype not in backend.not_best_for
        serves = serves and (backend.takes_query_positions or not few)
        if serves and backend_unavailable(name, device, dtype, head_size) is None:
            return name, f"best on {device.type}"
    if few:
        return "eager", "few queries"
    if compiling:
        return "sdpa", "best under torch.compile on this device"
    return "sdpa", f"nothing was measured on {device.type}"

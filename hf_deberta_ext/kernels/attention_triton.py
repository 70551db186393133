# SPDX-License-Identifier: Apache-2.0
"""Disentangled attention in Triton kernels, without [N, N] tensors, and without table look-ups in far tiles.

A tile has BLOCK_M queries and BLOCK_N keys, and o = i - j is an offset. There are two kinds of tiles; far tiles lie on both
sides of the near tiles.

* Far tiles (all o >= max_distance, or all o <= -max_distance): delta is constant, so with the table's end rows K_e, Q_e
      A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_e + K_c[j]·Q_e,
  plain attention plus one number for each query and one for each key (`disentangled_prepare_kernel`).
* Near tiles have BLOCK_M + BLOCK_N - 1 consecutive offsets (the window). With K_x[w], Q_x[w] = rows of the table for these
  offsets, c2p is the product Q_c K_x^T with each row shifted by one relative to the previous row. This shear is a gather
  within the tile without bank conflicts; the gradients use its inverse.

All sums have a fixed order, so that runs are bitwise reproducible. Offsets are clamped to [-span, span], the range of the
table.
"""

import functools
import math
from collections.abc import Callable

import torch

from ..model.attention_deberta_ext import AttentionInputs, without_autocast
from .operators import differentiate_by, empty_heads, fake_backward, fake_forward, save_operands
from .triton_backward import (
    disentangled_bwd_kernel_bands,
    disentangled_bwd_kernel_dkv,
    disentangled_bwd_kernel_dq,
    disentangled_bwd_kernel_far,
    disentangled_bwd_kernel_fold,
)
from .triton_forward import disentangled_fwd_kernel, disentangled_prepare_kernel
from .triton_launches import find_launches
from .triton_tiles import INTERPRETED, PADDING, dropout_mask_kernel

try:
    import triton
    from triton.runtime.errors import OutOfResources
except ImportError:
    triton = None

    class OutOfResources(Exception):  # noqa: N818
        pass


__all__ = ["disentangled_attention_triton", "dropout_mask", "triton_unavailable"]

# Disables ptxas optimizations that take more registers: with them, the kernels dq and dkv precompute and spill addresses.
FEW_REGISTERS = {} if INTERPRETED or torch.version.hip else {"ptx_options": "--register-usage-level=0"}

# Launch parameters that needed more shared memory than the GPU has: they are not tried again.
TOO_LARGE: set = set()


def launch(kernel: str, call: "Call", start: Callable):
    """Call `start` with the first launch parameters in `LAUNCHES` whose tiles fit into the shared memory of the GPU."""
    launches = find_launches(kernel, call.q.dtype, call.block_d, call.N, capability(call.q.device))
    for parameters in launches:
        key = (kernel, *call.key, parameters)
        if key in TOO_LARGE:
            continue
        try:
            return start(parameters)
        except OutOfResources:
            if parameters is launches[-1]:
                raise
            TOO_LARGE.add(key)


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    # Triton's interpreter uses the entries of `LAUNCHES` for Hopper (9.0).
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


class Call:
    """Operands of a forward or backward pass, and the shared arguments of its kernels.

    Args:
        q, k, v (`torch.Tensor`): [B, H, N, d], with last stride 1.
        K_r, Q_r (`torch.Tensor`, *optional*): tables [H, R, d]; None: no c2p, no p2c.
        bias (`torch.Tensor`, *optional*): [H, 2·span + 1] float32, the p2p term of each offset.
        rows (`torch.LongTensor`, *optional*): [2·span + 1], the row of the tables for each offset.
        mask (`torch.Tensor`, *optional*): uint8, expanded to [B, H, N, N].
        documents (`torch.IntTensor`, *optional*): [2, N] from `document_ranges`.
        seed (`torch.LongTensor`, *optional*): [1], seed of dropout.
        max_distance (`int`): distance from which rows are constant; 0: no far tiles.
    """

    def __init__(self, q, k, v, K_r, Q_r, bias, rows, mask, documents, seed, max_distance, scale, dropout_p):
        self.q, self.k, self.v, self.K_r, self.Q_r, self.rows = q, k, v, K_r, Q_r, rows
        self.B, self.H, self.N, self.D = q.shape
        self.max_distance, self.scale, self.dropout_p = max_distance, scale, dropout_p
        self.span = 0 if rows is None else rows.shape[0] // 2
        self.far = 0 < max_distance < self.N
        self.block_d = max(16, triton.next_power_of_2(self.D))
        self.terms = dict(C2P=K_r is not None, P2C=Q_r is not None, P2P=bias is not None)
        kind = 0
        self.mask_strides = (0, 0, 0, 0)
        if mask is not None:
            self.mask_strides = mask.stride()
            kind = 1 if mask.stride(2) == 0 else 2
        self.feature_flags = dict(MASK=kind, PACKED=documents is not None, DROPOUT=dropout_p > 0, WIDEN=INTERPRETED)
        self.shape = dict(D=self.D, BLOCK_D=self.block_d)
        self.key = (q.device, q.dtype, self.D, self.far, *self.terms.values(), *self.feature_flags.values())
        self.strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
        self.sizes = (self.H, self.N, self.B, self.span)
        # Softmax in base 2.
        self.scale2 = scale * math.log2(math.e)
        # The kernels never read a missing tensor, so any tensor can be passed in its place.
        self.bias, *self.side = (q if x is None else x for x in (bias, mask, documents, seed))

    def prepare(self, *, bounds=False):
        """Launch `disentangled_prepare_kernel`, whose results the other kernels read."""
        q, k, tables = self.q, self.k, []
        self.kx = self.qx = self.ends = self.bounds = q
        self.R = 0
        if self.rows is None:
            return
        length = 2 * self.span + 1 + 2 * PADDING
        for x in (self.K_r, self.Q_r):
            if x is None:
                tables.append((q, q, (0, 0)))
                continue
            if x.stride(-1) != 1:
                x = x.contiguous()
            self.R = x.shape[1]
            tables.append((x, q.new_empty(self.H, length, self.D), x.stride()[:2]))
        (K_r, self.kx, key_strides), (Q_r, self.qx, query_strides) = tables
        blocks = triton.cdiv(length, 64) * self.H
        if self.far:
            self.ends = q.new_empty(4, self.B, self.H, self.N, dtype=torch.float32)
            blocks += triton.cdiv(self.N, 64) * self.B * self.H
        if bounds:
            self.bounds = self.rows.new_empty(self.R + 1, dtype=torch.int32)
        disentangled_prepare_kernel[(blocks,)](
            q, k, K_r, Q_r, self.bias, self.rows, self.kx, self.qx, self.ends, self.bounds, *self.strides[:6],
            *key_strides, *query_strides, *self.sizes, self.R, self.scale2, **self.terms, FAR=self.far, BOUNDS=bounds,
            **self.shape, BLOCK=64,
        )  # fmt: skip

    def launch_blocks(self, name: str, kernel: Callable, *own, outputs=(), scales=(), **options):
        """Launch a kernel with one program per head and block of queries or keys.

        Args:
            name (`str`): name of the kernel in `LAUNCHES`.
            own (`torch.Tensor`): tensors that only this kernel reads or writes, passed after the shared ones.
            outputs: tensors [B, H, N, d] in `own`; their strides are passed after the shared strides.
        """
        strides = [stride for x in outputs for stride in x.stride()[:3]]

        def start(config):
            kernel[(triton.cdiv(self.N, config.BLOCK) * self.B * self.H,)](
                self.q, self.k, self.v, self.kx, self.qx, self.bias, self.ends, *self.side, *own, *self.strides, *strides,
                *self.mask_strides, *self.sizes, self.max_distance, self.scale2, *scales, self.dropout_p, **self.terms,
                FAR=self.far, **self.feature_flags, **self.shape, BLOCK_M=config.BLOCK, BLOCK_N=config.BLOCK,
                FAR_STAGES=config.far_stages, NEAR_STAGES=config.near_stages, num_warps=config.num_warps, **options,
            )  # fmt: skip

        launch(name, self, start)


def on_its_device(operator: Callable) -> Callable:
    """Wrap an operator so that it runs on its first tensor's device: Triton launches kernels on the current device."""

    @functools.wraps(operator)
    def run(*args):
        with torch.cuda.device_of(args[0]):
            return operator(*args)

    return run


@on_its_device
def attend(*operands):
    """Compute out [B, H, N, d] and the base-2 log-sum-exp [B, H, N] (forward operator); for the arguments, see `Call`."""
    call = Call(*operands)
    call.prepare()
    out, lse = fake_forward(*operands)
    call.launch_blocks("forward", disentangled_fwd_kernel, out, lse, outputs=(out,))
    return out, lse


@on_its_device
def attend_backward(grad, out, lse, *operands):
    """Compute the gradients of q, k, v, K_r, Q_r and bias (backward operator).

    The last operand, `wanted`, has three bools for K_r, Q_r and bias; if one is False, this gradient is an empty tensor.
    """
    *operands, wanted = operands
    call = Call(*operands)
    q, k, v = call.q, call.k, call.v
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    call.prepare(bounds=any(wanted))
    dq, dk, dv = empty_heads(q), empty_heads(q), empty_heads(q)
    rowsum, active = torch.empty_like(lse), lse.new_empty(lse.shape, dtype=torch.int8)
    # sums[0]: row sums of dS over o >= max_distance; sums[1]: over o <= -max_distance; sums[2], sums[3]: the column sums.
    sums = lse
    if call.far:
        sums = q.new_empty(4, call.B, call.H, call.N, dtype=torch.float32)
    # The first kernel writes rowsum and active, the others read them.
    options = dict(scales=(call.scale,), **FEW_REGISTERS)
    own = out, lse, grad, rowsum, active, sums, dq
    call.launch_blocks("dq", disentangled_bwd_kernel_dq, *own, outputs=(out, grad, dq), **options)
    own = lse, grad, rowsum, active, sums, dk, dv
    call.launch_blocks("dkv", disentangled_bwd_kernel_dkv, *own, outputs=(grad, dk), **options)
    # An operator may not return one tensor twice.
    tables = [q.new_empty(0) for _ in wanted]
    if not any(wanted):
        return dq, dk, dv, *tables

    # Largest |o| in the windows. All other pairs are far pairs (some are in near tiles) or pairs of different documents.
    inner = call.max_distance - 1 if call.far else call.span

    def start_bands(config):
        # Bands of tiles that have an offset in [-inner, inner].
        block = config.BLOCK
        blocks = triton.cdiv(call.N, block)
        farthest = min(blocks, triton.cdiv(inner + block, block)) - 1
        bands = 2 * farthest + 1
        splits = max(1, min(1024 // (bands * call.H), triton.cdiv(call.B * blocks, 4)))
        count = call.terms["C2P"] + call.terms["P2C"]
        windows = q.new_empty(count, call.H, splits, bands, 2 * block, call.D, dtype=torch.float32)
        bias_windows = lse
        if call.terms["P2P"]:
            bias_windows = q.new_empty(call.H, splits, bands, 2 * block, dtype=torch.float32)
        disentangled_bwd_kernel_bands[(bands, splits, call.H)](
            q, k, v, call.kx, call.qx, call.bias, *call.side, lse, grad, rowsum, active, windows, bias_windows,
            *call.strides, *grad.stride()[:3], *call.mask_strides, *call.sizes, call.scale2, call.dropout_p, bands, splits,
            **call.terms, **call.feature_flags, **call.shape, BLOCK=block, STAGES=config.near_stages,
            num_warps=config.num_warps,
        )  # fmt: skip
        return windows, bias_windows, block

    windows, bias_windows, block = launch("bands", call, start_bands)
    if wanted[0] or wanted[1]:
        for place, grad_of_table in enumerate(fold(call, windows, sums, block=block, inner=inner)):
            if wanted[place]:
                tables[place] = grad_of_table
    if wanted[2]:
        tables[2] = fold_bias(call, bias_windows, sums, block=block, inner=inner)
    return dq, dk, dv, *tables


def fold(call, windows, sums, *, block, inner):
    """Return the gradients of K_r and Q_r, each [H, R, d], or empty for a table that is None. A gradient has two parts: near
    offsets, from `windows`, and far offsets, from `sums` (row and column sums of dS)."""
    terms, H, splits, bands = windows.shape[:4]
    far_splits = max(1, min(16, call.B * triton.cdiv(call.N, 64)))
    far = windows
    if call.far:
        far = windows.new_empty(terms, 2, H, far_splits, call.D)
        disentangled_bwd_kernel_far[(H, far_splits, 2 * terms)](
            call.q, call.k, sums, far, *call.q.stride()[:3], *call.k.stride()[:3], H, call.N, call.B, far_splits,
            C2P=call.terms["C2P"], **call.shape, BLOCK=64,
        )  # fmt: skip
    grads = [call.q.new_empty(0 if x is None else x.shape) for x in (call.K_r, call.Q_r)]
    pointers = grads
    if terms == 1:
        pointers = [max(grads, key=len)] * 2
    disentangled_bwd_kernel_fold[(call.R, H, terms)](
        windows, far, call.bounds, *pointers, H, call.R, call.span, inner, bands,
        splits, far_splits, call.scale, FAR=call.far, **call.shape, BLOCK=block, SPLITS=triton.next_power_of_2(splits),
        FAR_SPLITS=16, WIDEN=INTERPRETED, num_warps=1,
    )  # fmt: skip
    return grads


def fold_bias(call, windows, sums, *, block, inner):
    """Return the gradient of `bias` (the p2p term), [H, 2·span + 1]."""
    H, _, bands, _ = windows.shape
    windows = windows.sum(1)
    folded = windows.new_zeros(H, bands + 1, block)
    folded[:, :-1] += windows[..., :block]
    folded[:, 1:] += windows[..., block:]
    middle = bands // 2 * block + block - 1
    grad = windows.new_zeros(H, 2 * call.span + 1)
    inside = slice(call.span - inner, call.span + inner + 1)
    grad[:, inside] = folded.flatten(1)[:, middle - inner : middle + inner + 1]
    if call.far:
        grad[:, -1], grad[:, 0] = sums[0].sum((0, 2)), sums[1].sum((0, 2))
    return grad * call.scale


OPERANDS = (
    "Tensor q, Tensor k, Tensor v, Tensor? K_r, Tensor? Q_r, Tensor? bias, Tensor? rows, Tensor? mask, Tensor? documents, "
    "Tensor? seed, int max_distance, float scale, float dropout_p"
)
BACKWARD = f"(Tensor grad, Tensor out, Tensor lse, {OPERANDS}, bool[] wanted) -> ({', '.join(['Tensor'] * 6)})"
attend_op = torch.library.custom_op(
    "hf_deberta_ext::attend", attend, mutates_args=(), schema=f"({OPERANDS}) -> (Tensor, Tensor)"
)
attend_backward_op = torch.library.custom_op(
    "hf_deberta_ext::attend_backward", attend_backward, mutates_args=(), schema=BACKWARD
)
attend_op.register_fake(fake_forward)
attend_backward_op.register_fake(fake_backward)
attend_op.register_autograd(differentiate_by(attend_backward_op), setup_context=save_operands)


def triton_unavailable(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return the reason why the kernels do not support this device, dtype or head size; None if they do."""
    if triton is None:
        return "the package triton is not installed"
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 4):
        # 3.2 has no gather; 3.3 compiles the flat gather of a tile to thousands of warp shuffles.
        return f"triton 3.4 or later is needed, found {triton.__version__}"
    if torch.device(device).type != "cuda" and not INTERPRETED:
        return f"it runs on CUDA, not on {torch.device(device).type}"
    if not 16 <= head_size <= 128:
        return f"it supports head sizes from 16 to 128, not {head_size}"
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it supports float16, bfloat16 and float32, not {str(dtype).removeprefix('torch.')}"
    return None


def dropout_mask(seed: torch.Tensor, B: int, H: int, N: int, p: float) -> torch.Tensor:
    """Return the dropout mask of the kernels for a seed, bool [B, H, N, N], True = kept; for tests.

    Args:
        seed (`torch.LongTensor`): [1], from `draw_seed`.
        p (`float`): dropout rate.
    """
    keep = torch.empty(B, H, N, N, dtype=torch.uint8, device=seed.device)
    dropout_mask_kernel[(triton.cdiv(N, 32) ** 2, B * H)](seed, keep, N, p, BLOCK=32)
    return keep.bool()


def draw_seed(device: torch.device) -> torch.Tensor:
    """Draw a seed, int64 [1], from the default generator of `device`, without a host sync."""
    return torch.randint(0, 2**62, (1,), device=device)


def disentangled_attention_triton(inputs: AttentionInputs) -> torch.Tensor:
    """Compute disentangled attention, DeBERTa Eq. (4), in Triton kernels; see `AttentionInputs`.

    Forward and backward take O(N) memory; tensors may have any strides. The backward pass recomputes dropout from the seed.

    Returns:
        out [B, H, N, d] in the dtype of Q_c; logits and softmax are computed in float32.

    Raises:
        ValueError: the kernels do not support the device, head size or dtype; `query_positions` are given; or `cu_seqlens`
            are given and the batch has more than one row.
    """
    Q_c, K_c, V_c, scale, K_r, Q_r, delta, terms, mask, query_positions, dropout_p, max_distance, cu_seqlens = inputs
    reason = triton_unavailable(Q_c.device, Q_c.dtype, Q_c.shape[-1])
    if reason is not None:
        raise ValueError(f"attention 'triton' does not support this call: {reason}")
    if query_positions is not None or Q_c.shape != K_c.shape:
        raise ValueError(
            "attention 'triton' expects one query per key and no query_positions, got "
            f"{Q_c.shape[2]} queries and {K_c.shape[2]} keys with query_positions = {query_positions}"
        )
    B, H, N, _ = Q_c.shape
    if cu_seqlens is not None and B != 1:
        raise ValueError(f"cu_seqlens needs one stream of documents, [1, H, N, d], got a batch of {B}")
    if dropout_p == 1:
        # Drop everything: 1 / (1 - p) is infinite.
        V_c, dropout_p = V_c * 0, 0.0
    with without_autocast(Q_c.device):
        q, k, v = (x.to(Q_c.dtype) for x in (Q_c, K_c, V_c))
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        rows = bias = None
        if terms:
            # For packed documents, delta only covers the offsets within the longest document.
            middle = delta.shape[0] // 2
            span = min(N - 1 if max_distance is None else max_distance, N - 1, middle)
            rows = delta[middle - span : middle + span + 1]
            if "p2p" in terms:
                bias = (Q_r.float()[:, rows] * K_r.float()[:, rows.flip(0)]).sum(-1)  # [H, 2·span + 1]
        K_r = K_r.to(q.dtype) if "c2p" in terms else None
        Q_r = Q_r.to(q.dtype) if "p2c" in terms else None
        if mask is not None:
            mask = mask.view(torch.uint8).expand(B, H, N, N)
        documents = None if cu_seqlens is None else document_ranges(cu_seqlens, N)
        seed = draw_seed(q.device) if dropout_p > 0 else None
        # 0: no far tiles.
        far = max_distance if terms and max_distance is not None and max_distance <= span else 0
        return attend_op(q, k, v, K_r, Q_r, bias, rows, mask, documents, seed, far, scale, dropout_p)[0]


def document_ranges(cu_seqlens: torch.Tensor, N: int) -> torch.Tensor:
    """Return the start and end of each token's document, int32 [2, N]."""
    tokens = torch.arange(N, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    document = torch.searchsorted(cu_seqlens[1:], tokens, right=True, out_int32=True)
    return cu_seqlens.unfold(0, 2, 1).T.index_select(1, document).int()

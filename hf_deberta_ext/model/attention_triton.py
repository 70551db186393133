# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention as Triton kernels: no [N, N] tensor, position scores inside the tile, no look-up in far tiles.

A tile holds BLOCK_M queries and BLOCK_N keys, o = i - j is an offset, and there are three kinds of tiles.

* Far tiles (all o >= reach, or all o <= -reach): delta is constant, so with the end rows K_e, Q_e of the relative table
      A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_e + K_c[j]·Q_e,
  plain attention plus one number for each query and one for each key (`_disentangled_ends_kernel`).
* Near tiles touch BLOCK_M + BLOCK_N - 1 consecutive offsets. With K_x[w], Q_x[w] = rows of the table for these offsets (the
  window), c2p is the product Q_c K_x^T, each row of which is shifted by one against the row above; the shear is a gather
  along one axis inside the tile, and its inverse serves the gradients.

All sums have a fixed order: two runs give the same bits. Offsets are clamped to [-span, span], where the table ends.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

try:
    import triton
    import triton.language as tl
    from triton.runtime.errors import OutOfResources
except ImportError:
    triton = None

    class tl:  # noqa: N801
        """Lets the kernels below be read where there is no triton."""

        constexpr = int

    class OutOfResources(Exception):  # noqa: N818
        pass


__all__ = ["disentangled_attention_triton", "dropout_mask", "launch_config", "triton_unavailable"]

# Lengths and counts: no value of these may cause a compilation of its own.
RUN_TIME = ["H", "N", "R", "batch", "span", "reach", "inner", "bands", "splits", "far_splits"]
RUN_TIME += ["stride_mb", "stride_mh", "stride_mq"]


def _kernel(function):
    if triton is None:
        return function
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(function, do_not_specialize=[name for name in RUN_TIME if name in parameters])


def _inner(function):
    return function if triton is None else triton.jit(function)


@_inner
def _dot(a, b, WIDEN: tl.constexpr):
    # The interpreter multiplies the bit patterns of bfloat16; float32 holds the same values.
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


# Whether kernels are interpreted (on CPU, for tests) is Triton's to decide: for its own functions when it is first imported,
# for these when they are defined.
INTERPRETED = triton is not None and not any(isinstance(part, triton.runtime.JITFunction) for part in (tl.sum, _dot))


@_inner
def _narrow(x, dtype: tl.constexpr, WIDEN: tl.constexpr):
    if WIDEN and dtype == tl.bfloat16:
        # The interpreter cuts off the bits that a GPU rounds to nearest even.
        bits = x.to(tl.int32, bitcast=True)
        x = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return x.to(dtype)


@_inner
def _pick(x, rows, cols, start):
    """x[rows, cols], rows and cols broadcast to [P, Q]; through shared memory. start >= 0 belongs to the loop around.

    The gather is flat, since one along an axis of a matrix becomes warp shuffles, several for each element.
    """
    # start >> 31 is zero, which the compiler cannot know: it would keep all indices in registers across the loop.
    index = rows * x.shape[1] + cols + (start >> 31)
    flat = tl.gather(tl.reshape(x, (x.shape[0] * x.shape[1],)), tl.reshape(index, (index.shape[0] * index.shape[1],)), 0)
    return tl.reshape(flat, (index.shape[0], index.shape[1]))


@_inner
def _pick_inside(x, rows, cols, start, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The same with zero outside of [0, ROWS) x [0, COLS)."""
    rows, cols = rows + (start >> 31), cols + (start >> 31)
    inside = (rows >= 0) & (rows < ROWS) & (cols >= 0) & (cols < COLS)
    picked = _pick(x, tl.minimum(tl.maximum(rows, 0), ROWS - 1), tl.minimum(tl.maximum(cols, 0), COLS - 1), start)
    return tl.where(inside, picked, 0.0).to(x.dtype)


@_inner
def _load_rows(ptr, rows, stride, N, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """x[rows], [BLOCK, BLOCK_D]; zero outside of [0, N) x [0, D)."""
    offs_d = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < N) & (offs_d[None, :] < D)
    return tl.load(ptr + rows[:, None].to(tl.int64) * stride + offs_d[None, :], mask=inside, other=0.0)


@_inner
def _store_rows(ptr, x, rows, stride, N, D: tl.constexpr, BLOCK_D: tl.constexpr, WIDEN: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < N) & (offs_d[None, :] < D)
    tl.store(
        ptr + rows[:, None].to(tl.int64) * stride + offs_d[None, :], _narrow(x, ptr.dtype.element_ty, WIDEN), mask=inside
    )


@_inner
def _window_rows(start, span, W: tl.constexpr):
    """Rows of the expanded table for the W offsets from `start` on, clamped to its ends."""
    return tl.minimum(tl.maximum(start + tl.arange(0, W), -span), span) + span


@_inner
def _load_window(ptr, rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """[W, BLOCK_D] rows of the expanded table."""
    offs_d = tl.arange(0, BLOCK_D)
    return tl.load(ptr + rows[:, None] * D + offs_d[None, :], mask=offs_d[None, :] < D, other=0.0)


@_inner
def _keep(seed_ptr, bh, rows, first_col, p, BLOCK_N: tl.constexpr):
    """True where dropout keeps a probability, [BLOCK_M, BLOCK_N]; a function of (seed, b·H + h, row, column) alone."""
    seed = tl.load(seed_ptr)
    # One Philox call makes four numbers: those of four neighbouring columns.
    groups = first_col // 4 + tl.arange(0, BLOCK_N // 4)
    c0 = (rows * 0)[:, None] + groups[None, :]
    c1 = rows[:, None] + (groups * 0)[None, :]
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, c0 * 0 + bh, c0 * 0, 7)
    bits = tl.join(tl.join(r0, r2), tl.join(r1, r3))  # [BLOCK_M, BLOCK_N / 4, 2, 2], columns in order
    return tl.reshape(tl.uint_to_uniform_float(bits), (rows.shape[0], BLOCK_N)) >= p


@_inner
def _middle(start, lo, hi, reach, BLOCK: tl.constexpr, STEP: tl.constexpr, FAR: tl.constexpr):
    """Of the tiles of STEP in [lo, hi) beside the block [start, start + BLOCK): where the near ones begin and end."""
    first, last = lo, hi
    if FAR:
        first = tl.minimum(tl.maximum(tl.maximum(start - reach + 1, 0) // STEP * STEP, lo), hi)
        last = tl.minimum(tl.maximum((start + BLOCK - 1 + reach + STEP - 1) // STEP * STEP, first), hi)
    return first, last


@_inner
def _range(document_ptr, start, N, BLOCK: tl.constexpr, STEP: tl.constexpr, PACKED: tl.constexpr):
    """[lo, hi): what the block [start, start + BLOCK) may see; lo is a multiple of STEP."""
    lo, hi = 0, N
    if PACKED:
        lo = tl.load(document_ptr + start) // STEP * STEP
        hi = tl.load(document_ptr + N + tl.minimum(start + BLOCK, N) - 1)
    return lo, hi


@_inner
def _key_logits(ends_ptr, mask_ptr, cols, N, stride_mn, FAR: tl.constexpr, MASK: tl.constexpr):
    """Logits of each key for its whole column: p2c in far tiles, and -inf where no query may attend to it."""
    if FAR:
        key = tl.load(ends_ptr + cols, mask=cols < N, other=float("-inf"))
    else:
        key = tl.where(cols < N, 0.0, float("-inf"))
    if MASK == 1:
        allowed = tl.load(mask_ptr + cols.to(tl.int64) * stride_mn, mask=cols < N, other=0)
        key = tl.where(allowed != 0, key, float("-inf"))
    return key


@_inner
def _mask_tile(
    s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn,
    MASK: tl.constexpr, PACKED: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """-inf for the pairs of a tile that may not attend; TURNED: the tile is [keys, queries]."""
    if PACKED:
        first = tl.load(document_ptr + rows, mask=rows < N, other=0)
        stop = tl.load(document_ptr + N + rows, mask=rows < N, other=0)
        if TURNED:
            same = (cols[:, None] >= first[None, :]) & (cols[:, None] < stop[None, :])
        else:
            same = (cols[None, :] >= first[:, None]) & (cols[None, :] < stop[:, None])
        s = tl.where(same, s, float("-inf"))
    if MASK == 2:
        row, col = rows.to(tl.int64) * stride_mq, cols.to(tl.int64) * stride_mn
        if TURNED:
            inside = (rows[None, :] < N) & (cols[:, None] < N)
            allowed = tl.load(mask_ptr + row[None, :] + col[:, None], mask=inside, other=0)
        else:
            inside = (rows[:, None] < N) & (cols[None, :] < N)
            allowed = tl.load(mask_ptr + row[:, None] + col[None, :], mask=inside, other=0)
        s = tl.where(allowed != 0, s, float("-inf"))
    return s


@_inner
def _near_scores(
    q, k, kx, qx, bias_ptr, m0, n0, span,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A of a near tile, [BLOCK_M, BLOCK_N], from query m0 and key n0 on; kx, qx: windows from m0 - n0 - BLOCK_N + 1 on."""
    a, b = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    s = _dot(q, tl.trans(k), WIDEN)
    if C2P:
        s += _pick(_dot(q, tl.trans(kx), WIDEN), a, a - b + (BLOCK_N - 1), n0)
    if P2C:
        s += _pick(_dot(qx, tl.trans(k), WIDEN), a - b + (BLOCK_N - 1), b, n0)
    if P2P:
        s += tl.load(bias_ptr + tl.minimum(tl.maximum(m0 - n0 + a - b, -span), span) + span)
    return s


@_inner
def _near_scores_turned(
    q, k, kx, qx, bias_ptr, m0, n0, span,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A of a near tile as [BLOCK_N, BLOCK_M]."""
    a, b = tl.arange(0, BLOCK_M)[None, :], tl.arange(0, BLOCK_N)[:, None]
    s = _dot(k, tl.trans(q), WIDEN)
    if C2P:
        s += _pick(_dot(kx, tl.trans(q), WIDEN), a - b + (BLOCK_N - 1), a, m0)
    if P2C:
        s += _pick(_dot(k, tl.trans(qx), WIDEN), b, a - b + (BLOCK_N - 1), m0)
    if P2P:
        s += tl.load(bias_ptr + tl.minimum(tl.maximum(m0 - n0 + a - b, -span), span) + span)
    return s


@_kernel
def _disentangled_ends_kernel(
    q_ptr, k_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, H, N, batch, span, scale2,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ends[4, B, H, N], float32: the position logits of far tiles in base 2; c2p (with p2p) for o >= reach and for
    o <= -reach, p2c likewise."""
    blocks = tl.cdiv(N, BLOCK)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    rows = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    offs_d = tl.arange(0, BLOCK_D)
    ends_ptr += bh.to(tl.int64) * N + rows
    plane = batch.to(tl.int64) * H * N
    table = h * (2 * span + 1) * D
    high, low = 2 * span * D + offs_d, offs_d
    c2p_high = tl.zeros([BLOCK], tl.float32)
    c2p_low, p2c_high, p2c_low = c2p_high, c2p_high, c2p_high
    if C2P:
        q = _load_rows(q_ptr + b * stride_qb + h * stride_qh, rows, stride_qn, N, D, BLOCK_D).to(tl.float32)
        c2p_high += tl.sum(q * tl.load(kx_ptr + table + high, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
        c2p_low += tl.sum(q * tl.load(kx_ptr + table + low, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
    if P2C:
        k = _load_rows(k_ptr + b * stride_kb + h * stride_kh, rows, stride_kn, N, D, BLOCK_D).to(tl.float32)
        p2c_high += tl.sum(k * tl.load(qx_ptr + table + high, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
        p2c_low += tl.sum(k * tl.load(qx_ptr + table + low, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
    if P2P:
        c2p_high += tl.load(bias_ptr + h * (2 * span + 1) + 2 * span)
        c2p_low += tl.load(bias_ptr + h * (2 * span + 1))
    tl.store(ends_ptr, c2p_high * scale2, mask=rows < N)
    tl.store(ends_ptr + plane, c2p_low * scale2, mask=rows < N)
    tl.store(ends_ptr + 2 * plane, p2c_high * scale2, mask=rows < N)
    tl.store(ends_ptr + 3 * plane, p2c_low * scale2, mask=rows < N)


@_kernel
def _disentangled_fwd_kernel(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr, mask_ptr, document_ptr, seed_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, reach, scale2, dropout_p,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FAR_STAGES: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """out = softmax(scale·A) V_c and LSE (base 2) of BLOCK_M queries; online softmax over the keys."""
    blocks = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    m0 = tl.program_id(0) % blocks * BLOCK_M
    rows = m0 + tl.arange(0, BLOCK_M)
    plane = batch.to(tl.int64) * H * N
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    kx_ptr += h * (2 * span + 1) * D
    qx_ptr += h * (2 * span + 1) * D
    bias_ptr += h * (2 * span + 1)
    ends_ptr += bh.to(tl.int64) * N
    mask_ptr += b * stride_mb + h * stride_mh
    q = _load_rows(q_ptr + b * stride_qb + h * stride_qh, rows, stride_qn, N, D, BLOCK_D)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    lo, hi = _range(document_ptr, m0, N, BLOCK_M, BLOCK_N, PACKED)
    first, last = _middle(m0, lo, hi, reach, BLOCK_M, BLOCK_N, FAR)
    # part 0: keys far to the left (o >= reach), 1: near keys, 2: keys far to the right.
    for part in tl.static_range(3):
        if FAR or part == 1:
            start, stop = first, last
            if part == 0:
                start, stop = lo, first
            if part == 2:
                start, stop = last, hi
            # What c2p adds to all logits of a row is added to the row's maximum instead.
            row = tl.zeros([BLOCK_M], tl.float32)
            if part != 1:
                row = tl.load(ends_ptr + part // 2 * plane + rows, mask=rows < N, other=0.0)
            for n0 in tl.range(start, stop, BLOCK_N, num_stages=NEAR_STAGES if part == 1 else FAR_STAGES):
                cols = n0 + tl.arange(0, BLOCK_N)
                k = _load_rows(k_ptr, cols, stride_kn, N, D, BLOCK_D)
                key = _key_logits(ends_ptr + (2 + part // 2) * plane, mask_ptr, cols, N, stride_mn, part != 1, MASK)
                if part == 1:
                    window = _window_rows(m0 - n0 - (BLOCK_N - 1), span, BLOCK_M + BLOCK_N)
                    kx, qx = q, q
                    if C2P:
                        kx = _load_window(kx_ptr, window, D, BLOCK_D)
                    if P2C:
                        qx = _load_window(qx_ptr, window, D, BLOCK_D)
                    s = _near_scores(q, k, kx, qx, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, BLOCK_M, BLOCK_N)
                else:
                    s = _dot(q, tl.trans(k), WIDEN)
                s = s * scale2 + key[None, :]
                s = _mask_tile(s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, False)

                # A row that has seen no key yet keeps top = -inf; zero in its place makes exp2(-inf - 0) = 0.
                new_top = tl.maximum(top, tl.max(s, 1) + row)
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.math.exp2(s - (safe - row)[:, None])
                alpha = tl.math.exp2(top - safe)
                total = total * alpha + tl.sum(p, 1)
                top = new_top
                if DROPOUT:
                    p = tl.where(_keep(seed_ptr, bh, rows, n0, dropout_p, BLOCK_N), p, 0.0)
                v = _load_rows(v_ptr, cols, stride_vn, N, D, BLOCK_D)
                acc = acc * alpha[:, None] + _dot(_narrow(p, v.dtype, WIDEN), v, WIDEN)

    empty = total == 0.0
    lse = tl.where(empty, 0.0, top + tl.math.log2(tl.where(empty, 1.0, total)))
    if DROPOUT:
        total *= 1.0 - dropout_p
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    _store_rows(out_ptr + b * stride_ob + h * stride_oh, acc, rows, stride_on, N, D, BLOCK_D, WIDEN)
    tl.store(lse_ptr + bh.to(tl.int64) * N + rows, lse, mask=rows < N)


@_kernel
def _disentangled_bwd_kernel_dq(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr, mask_ptr, document_ptr, seed_ptr, out_ptr, lse_ptr,
    do_ptr, rowsum_ptr, sums_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, stride_db, stride_dh, stride_dn, stride_gb, stride_gh, stride_gn,
    stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, reach, scale2, scale, dropout_p,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FAR_STAGES: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Gradient of Q_c for BLOCK_M queries; rowsum(dO · out); row sums of dS over o >= reach and over o <= -reach."""
    blocks = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    m0 = tl.program_id(0) % blocks * BLOCK_M
    rows = m0 + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    plane = batch.to(tl.int64) * H * N
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    kx_ptr += h * (2 * span + 1) * D
    qx_ptr += h * (2 * span + 1) * D
    bias_ptr += h * (2 * span + 1)
    ends_ptr += bh.to(tl.int64) * N
    mask_ptr += b * stride_mb + h * stride_mh
    q = _load_rows(q_ptr + b * stride_qb + h * stride_qh, rows, stride_qn, N, D, BLOCK_D)
    do = _load_rows(do_ptr + b * stride_db + h * stride_dh, rows, stride_dn, N, D, BLOCK_D)
    out = _load_rows(out_ptr + b * stride_ob + h * stride_oh, rows, stride_on, N, D, BLOCK_D)
    rowsum = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(rowsum_ptr + bh.to(tl.int64) * N + rows, rowsum, mask=rows < N)
    lse = tl.load(lse_ptr + bh.to(tl.int64) * N + rows, mask=rows < N, other=float("inf"))

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Sums over pairs with o >= reach and o <= -reach in near tiles; those of far tiles are added to them.
    high = tl.zeros([BLOCK_M], tl.float32)
    low = tl.zeros([BLOCK_M], tl.float32)
    lo, hi = _range(document_ptr, m0, N, BLOCK_M, BLOCK_N, PACKED)
    first, last = _middle(m0, lo, hi, reach, BLOCK_M, BLOCK_N, FAR)
    for part in tl.static_range(3):
        if FAR or part == 1:
            start, stop = first, last
            if part == 0:
                start, stop = lo, first
            if part == 2:
                start, stop = last, hi
            row = lse
            far = tl.zeros([BLOCK_M], tl.float32)
            if part != 1:
                row = lse - tl.load(ends_ptr + part // 2 * plane + rows, mask=rows < N, other=0.0)
            for n0 in tl.range(start, stop, BLOCK_N, num_stages=NEAR_STAGES if part == 1 else FAR_STAGES):
                cols = n0 + tl.arange(0, BLOCK_N)
                k = _load_rows(k_ptr, cols, stride_kn, N, D, BLOCK_D)
                v = _load_rows(v_ptr, cols, stride_vn, N, D, BLOCK_D)
                key = _key_logits(ends_ptr + (2 + part // 2) * plane, mask_ptr, cols, N, stride_mn, part != 1, MASK)
                if part == 1:
                    window = _window_rows(m0 - n0 - (BLOCK_N - 1), span, BLOCK_M + BLOCK_N)
                    kx, qx = q, q
                    if C2P:
                        kx = _load_window(kx_ptr, window, D, BLOCK_D)
                    if P2C:
                        qx = _load_window(qx_ptr, window, D, BLOCK_D)
                    s = _near_scores(q, k, kx, qx, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, BLOCK_M, BLOCK_N)
                else:
                    s = _dot(q, tl.trans(k), WIDEN)
                s = s * scale2 + key[None, :]
                s = _mask_tile(s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, False)
                p = tl.math.exp2(s - row[:, None])
                dp = _dot(do, tl.trans(v), WIDEN)
                if DROPOUT:
                    keep = _keep(seed_ptr, bh, rows, n0, dropout_p, BLOCK_N)
                    dp = tl.where(keep, dp / (1.0 - dropout_p), 0.0)
                ds = p * (dp - rowsum[:, None])
                dq += _dot(_narrow(ds, k.dtype, WIDEN), k, WIDEN)
                if part != 1:
                    far += tl.sum(ds, 1)
                else:
                    if C2P:
                        # dQ_c[i] += sum over the window of dS[i, i - o] K_x[o]: the shear undone.
                        a, w = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_M + BLOCK_N)[None, :]
                        unsheared = _pick_inside(_narrow(ds, k.dtype, WIDEN), a, a + (BLOCK_N - 1) - w, n0, BLOCK_M, BLOCK_N)
                        dq += _dot(unsheared, kx, WIDEN)
                    if FAR and (C2P or P2P):
                        if m0 + BLOCK_M - 1 - n0 >= reach:
                            high += tl.sum(tl.where(rows[:, None] - cols[None, :] >= reach, ds, 0.0), 1)
                        if m0 - n0 - (BLOCK_N - 1) <= -reach:
                            low += tl.sum(tl.where(rows[:, None] - cols[None, :] <= -reach, ds, 0.0), 1)
            if part != 1:
                if C2P:
                    end = tl.load(kx_ptr + (2 - part) * span * D + offs_d, mask=offs_d < D, other=0.0)
                    dq += far[:, None] * end.to(tl.float32)[None, :]
                if part == 0:
                    high += far
                else:
                    low += far

    _store_rows(dq_ptr + b * stride_gb + h * stride_gh, dq * scale, rows, stride_gn, N, D, BLOCK_D, WIDEN)
    if FAR and (C2P or P2P):
        sums_ptr += bh.to(tl.int64) * N + rows
        tl.store(sums_ptr, high, mask=rows < N)
        tl.store(sums_ptr + plane, low, mask=rows < N)


@_kernel
def _disentangled_bwd_kernel_dkv(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr, mask_ptr, document_ptr, seed_ptr, lse_ptr,
    do_ptr, rowsum_ptr, sums_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_db, stride_dh, stride_dn, stride_gb, stride_gh, stride_gn,
    stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, reach, scale2, scale, dropout_p,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FAR_STAGES: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of K_c and V_c for BLOCK_N keys; column sums of dS over o >= reach and over o <= -reach."""
    blocks = tl.cdiv(N, BLOCK_N)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    n0 = tl.program_id(0) % blocks * BLOCK_N
    cols = n0 + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    plane = batch.to(tl.int64) * H * N
    q_ptr += b * stride_qb + h * stride_qh
    do_ptr += b * stride_db + h * stride_dh
    kx_ptr += h * (2 * span + 1) * D
    qx_ptr += h * (2 * span + 1) * D
    bias_ptr += h * (2 * span + 1)
    ends_ptr += bh.to(tl.int64) * N
    lse_ptr += bh.to(tl.int64) * N
    rowsum_ptr += bh.to(tl.int64) * N
    mask_ptr += b * stride_mb + h * stride_mh
    k = _load_rows(k_ptr + b * stride_kb + h * stride_kh, cols, stride_kn, N, D, BLOCK_D)
    v = _load_rows(v_ptr + b * stride_vb + h * stride_vh, cols, stride_vn, N, D, BLOCK_D)

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    high = tl.zeros([BLOCK_N], tl.float32)
    low = tl.zeros([BLOCK_N], tl.float32)
    lo, hi = _range(document_ptr, n0, N, BLOCK_N, BLOCK_M, PACKED)
    first, last = _middle(n0, lo, hi, reach, BLOCK_N, BLOCK_M, FAR)
    # Tiles are [keys, queries]. part 0: queries far to the left of the keys (o <= -reach), 1: near, 2: o >= reach.
    for part in tl.static_range(3):
        if FAR or part == 1:
            start, stop = first, last
            if part == 0:
                start, stop = lo, first
            if part == 2:
                start, stop = last, hi
            far = tl.zeros([BLOCK_N], tl.float32)
            key = _key_logits(ends_ptr + (3 - part // 2) * plane, mask_ptr, cols, N, stride_mn, part != 1, MASK)
            for m0 in tl.range(start, stop, BLOCK_M, num_stages=NEAR_STAGES if part == 1 else FAR_STAGES):
                rows = m0 + tl.arange(0, BLOCK_M)
                q = _load_rows(q_ptr, rows, stride_qn, N, D, BLOCK_D)
                do = _load_rows(do_ptr, rows, stride_dn, N, D, BLOCK_D)
                # Beyond the last query p = exp2(s - inf) = 0.
                row = tl.load(lse_ptr + rows, mask=rows < N, other=float("inf"))
                rowsum = tl.load(rowsum_ptr + rows, mask=rows < N, other=0.0)
                if part == 1:
                    window = _window_rows(m0 - n0 - (BLOCK_N - 1), span, BLOCK_M + BLOCK_N)
                    kx, qx = k, k
                    if C2P:
                        kx = _load_window(kx_ptr, window, D, BLOCK_D)
                    if P2C:
                        qx = _load_window(qx_ptr, window, D, BLOCK_D)
                    s = _near_scores_turned(q, k, kx, qx, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, BLOCK_M, BLOCK_N)
                else:
                    s = _dot(k, tl.trans(q), WIDEN)
                    row -= tl.load(ends_ptr + (1 - part // 2) * plane + rows, mask=rows < N, other=0.0)
                s = s * scale2 + key[:, None]
                s = _mask_tile(s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, True)
                p = tl.math.exp2(s - row[None, :])
                dp = _dot(v, tl.trans(do), WIDEN)
                dropped = p
                if DROPOUT:
                    keep = tl.trans(_keep(seed_ptr, bh, rows, n0, dropout_p, BLOCK_N))
                    dropped = tl.where(keep, p / (1.0 - dropout_p), 0.0)
                    dp = tl.where(keep, dp / (1.0 - dropout_p), 0.0)
                dv += _dot(_narrow(dropped, do.dtype, WIDEN), do, WIDEN)
                ds = p * (dp - rowsum[None, :])
                dk += _dot(_narrow(ds, q.dtype, WIDEN), q, WIDEN)
                if part != 1:
                    far += tl.sum(ds, 1)
                else:
                    if P2C:
                        # dK_c[j] += sum over the window of dS[j + o, j] Q_x[o].
                        c, w = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, BLOCK_M + BLOCK_N)[None, :]
                        unsheared = _pick_inside(_narrow(ds, q.dtype, WIDEN), c, w + c - (BLOCK_N - 1), m0, BLOCK_N, BLOCK_M)
                        dk += _dot(unsheared, qx, WIDEN)
                    if FAR and P2C:
                        if m0 + BLOCK_M - 1 - n0 >= reach:
                            high += tl.sum(tl.where(rows[None, :] - cols[:, None] >= reach, ds, 0.0), 1)
                        if m0 - n0 - (BLOCK_N - 1) <= -reach:
                            low += tl.sum(tl.where(rows[None, :] - cols[:, None] <= -reach, ds, 0.0), 1)
            if part != 1:
                if P2C:
                    end = tl.load(qx_ptr + part * span * D + offs_d, mask=offs_d < D, other=0.0)
                    dk += far[:, None] * end.to(tl.float32)[None, :]
                if part == 0:
                    low += far
                else:
                    high += far

    _store_rows(dk_ptr + b * stride_gb + h * stride_gh, dk * scale, cols, stride_gn, N, D, BLOCK_D, WIDEN)
    _store_rows(dv_ptr + b * stride_gb + h * stride_gh, dv, cols, stride_gn, N, D, BLOCK_D, WIDEN)
    if FAR and P2C:
        sums_ptr += bh.to(tl.int64) * N + cols
        tl.store(sums_ptr + 2 * plane, high, mask=cols < N)
        tl.store(sums_ptr + 3 * plane, low, mask=cols < N)


@_kernel
def _disentangled_bwd_kernel_bands(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, mask_ptr, document_ptr, seed_ptr, lse_ptr, do_ptr, rowsum_ptr,
    windows_ptr, bias_windows_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_db, stride_dh, stride_dn, stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, scale2, dropout_p,
    bands, splits,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of K_x and Q_x along one diagonal band of [BLOCK, BLOCK] tiles, whose window is the same in all of them.

    windows [terms, H, splits, bands, 2·BLOCK, D], float32: every `splits`-th tile of the band, over the whole batch.
    """
    band, split, h = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    diagonal = band - bands // 2
    blocks = tl.cdiv(N, BLOCK)
    count = blocks - tl.maximum(diagonal, -diagonal)
    offs_d = tl.arange(0, BLOCK_D)
    w = tl.arange(0, 2 * BLOCK)
    kx_ptr += h * (2 * span + 1) * D
    qx_ptr += h * (2 * span + 1) * D
    bias_ptr += h * (2 * span + 1)
    dkx = tl.zeros([2 * BLOCK, BLOCK_D], tl.float32)
    dqx = tl.zeros([2 * BLOCK, BLOCK_D], tl.float32)
    dbias = tl.zeros([2 * BLOCK], tl.float32)
    window = _window_rows(diagonal * BLOCK - (BLOCK - 1), span, 2 * BLOCK)
    kx, qx = dkx, dqx
    if C2P:
        kx = _load_window(kx_ptr, window, D, BLOCK_D)
    if P2C:
        qx = _load_window(qx_ptr, window, D, BLOCK_D)
    i = tl.arange(0, BLOCK)
    for item in tl.range(split, batch * count, splits, num_stages=STAGES):
        bh = (item // count) * H + h.to(tl.int32)
        b = (item // count).to(tl.int64)
        m0 = (item % count + tl.maximum(diagonal, 0)) * BLOCK
        n0 = m0 - diagonal * BLOCK
        lo, hi = _range(document_ptr, m0, N, BLOCK, 1, PACKED)
        if (n0 < hi) & (n0 + BLOCK > lo):
            rows, cols = m0 + tl.arange(0, BLOCK), n0 + tl.arange(0, BLOCK)
            q = _load_rows(q_ptr + b * stride_qb + h * stride_qh, rows, stride_qn, N, D, BLOCK_D)
            k = _load_rows(k_ptr + b * stride_kb + h * stride_kh, cols, stride_kn, N, D, BLOCK_D)
            v = _load_rows(v_ptr + b * stride_vb + h * stride_vh, cols, stride_vn, N, D, BLOCK_D)
            do = _load_rows(do_ptr + b * stride_db + h * stride_dh, rows, stride_dn, N, D, BLOCK_D)
            lse = tl.load(lse_ptr + bh.to(tl.int64) * N + rows, mask=rows < N, other=float("inf"))
            rowsum = tl.load(rowsum_ptr + bh.to(tl.int64) * N + rows, mask=rows < N, other=0.0)
            mask = mask_ptr + b * stride_mb + h * stride_mh
            s = _near_scores(q, k, kx, qx, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, BLOCK, BLOCK)
            s = s * scale2 + _key_logits(lse_ptr, mask, cols, N, stride_mn, False, MASK)[None, :]
            s = _mask_tile(s, mask, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, False)
            p = tl.math.exp2(s - lse[:, None])
            dp = _dot(do, tl.trans(v), WIDEN)
            if DROPOUT:
                keep = _keep(seed_ptr, bh, rows, n0, dropout_p, BLOCK)
                dp = tl.where(keep, dp / (1.0 - dropout_p), 0.0)
            ds = p * (dp - rowsum[:, None])
            # The shear undone: dS[i, i - o] for each offset o of the window, and dS[j + o, j].
            col, query = i[None, :] + (BLOCK - 1) - w[:, None], w[:, None] + i[None, :] - (BLOCK - 1)
            if C2P:
                dkx += _dot(_pick_inside(_narrow(ds, q.dtype, WIDEN), i[None, :], col, n0, BLOCK, BLOCK), q, WIDEN)
            if P2C:
                dqx += _dot(_pick_inside(_narrow(ds, q.dtype, WIDEN), query, i[None, :], n0, BLOCK, BLOCK), k, WIDEN)
            if P2P:
                dbias += tl.sum(_pick_inside(ds, query, i[None, :], n0, BLOCK, BLOCK), 1)

    slot = (h * splits + split) * bands + band
    inside = (w[:, None] >= 0) & (offs_d[None, :] < D)
    windows_ptr += slot * (2 * BLOCK * D) + w[:, None] * D + offs_d[None, :]
    if C2P:
        tl.store(windows_ptr, dkx, mask=inside)
        windows_ptr += (H * splits * bands).to(tl.int64) * (2 * BLOCK * D)
    if P2C:
        tl.store(windows_ptr, dqx, mask=inside)
    if P2P:
        tl.store(bias_windows_ptr + slot * (2 * BLOCK) + w, dbias)


@_kernel
def _disentangled_bwd_kernel_far(
    q_ptr, k_ptr, sums_ptr, far_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, H, N, batch, far_splits,
    C2P: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the end rows: far[terms, 2, H, far_splits, D] = sum over b, n of (row or column sum of dS) · (q or k)."""
    h, split, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    # side counts the planes of `sums` from the first term on: c2p high, c2p low, p2c high, p2c low.
    source = side
    if not C2P:
        source = side + 2
    plane = batch.to(tl.int64) * H * N
    offs_d = tl.arange(0, BLOCK_D)
    blocks = tl.cdiv(N, BLOCK)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for item in tl.range(split, batch * blocks, far_splits):
        b = (item // blocks).to(tl.int64)
        rows = item % blocks * BLOCK + tl.arange(0, BLOCK)
        weight = tl.load(sums_ptr + source * plane + (b * H + h) * N + rows, mask=rows < N, other=0.0)
        if source < 2:
            x = _load_rows(q_ptr + b * stride_qb + h * stride_qh, rows, stride_qn, N, D, BLOCK_D)
        else:
            x = _load_rows(k_ptr + b * stride_kb + h * stride_kh, rows, stride_kn, N, D, BLOCK_D)
        acc += tl.sum(x.to(tl.float32) * weight[:, None], 0)
    tl.store(far_ptr + ((side * H + h) * far_splits + split) * D + offs_d, acc, mask=offs_d < D)


@_kernel
def _disentangled_bwd_kernel_fold(
    windows_ptr, far_ptr, bounds_ptr, grad_ptr, H, R, span, inner, bands, splits, far_splits, scale,
    FAR: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    FAR_SPLITS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """grad[terms, H, R, D]: each row of the relative table gathers the offsets that read it, windows and far sums."""
    r, h, term = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    offs_d, offs_s = tl.arange(0, BLOCK_D), tl.arange(0, SPLITS)
    inside = (offs_s[:, None] < splits) & (offs_d[None, :] < D)
    windows_ptr += ((term * H + h) * splits + offs_s[:, None]) * bands * (2 * BLOCK * D) + offs_d[None, :]
    start, stop = tl.load(bounds_ptr + r).to(tl.int32), tl.load(bounds_ptr + r + 1).to(tl.int32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for x in tl.range(tl.maximum(start, span - inner), tl.minimum(stop, span + inner + 1)):
        # Two bands hold an offset: one in the lower half of its window, the band before it in the upper half.
        position = x - span + BLOCK - 1 + bands // 2 * BLOCK
        band, lane = position // BLOCK, position % BLOCK
        lower = tl.load(windows_ptr + (band * 2 * BLOCK + lane) * D, mask=inside & (band < bands), other=0.0)
        upper = tl.load(windows_ptr + (band * 2 * BLOCK - BLOCK + lane) * D, mask=inside & (band > 0), other=0.0)
        acc += tl.sum(lower + upper, 0)
    if FAR:
        offs_f = tl.arange(0, FAR_SPLITS)
        inside_far = (offs_f[:, None] < far_splits) & (offs_d[None, :] < D)
        far_ptr += ((term * 2 * H + h) * far_splits + offs_f[:, None]) * D + offs_d[None, :]
        acc += tl.sum(tl.load(far_ptr, mask=inside_far & (start <= 2 * span) & (2 * span < stop), other=0.0), 0)
        acc += tl.sum(tl.load(far_ptr + H * far_splits * D, mask=inside_far & (start == 0) & (stop > 0), other=0.0), 0)
    grad_ptr += ((term * H + h) * R + r) * D + offs_d
    tl.store(grad_ptr, _narrow(acc * scale, grad_ptr.dtype.element_ty, WIDEN), mask=offs_d < D)


@_kernel
def _dropout_mask_kernel(seed_ptr, keep_ptr, N, p, BLOCK: tl.constexpr):
    blocks = tl.cdiv(N, BLOCK)
    m0, n0, bh = tl.program_id(0) // blocks * BLOCK, tl.program_id(0) % blocks * BLOCK, tl.program_id(1)
    rows, cols = m0 + tl.arange(0, BLOCK), n0 + tl.arange(0, BLOCK)
    keep = _keep(seed_ptr, bh, rows, n0, p, BLOCK)
    place = keep_ptr + bh.to(tl.int64) * N * N + rows[:, None].to(tl.int64) * N + cols[None, :]
    tl.store(place, keep.to(tl.uint8), mask=(rows[:, None] < N) & (cols[None, :] < N))


class Launch(NamedTuple):
    """BLOCK queries by BLOCK keys, warps, and stages of the loops over far and over near tiles."""

    BLOCK: int
    num_warps: int
    far_stages: int
    near_stages: int


def launch_config(head_dim: int, dtype: torch.dtype, *, backward: bool) -> list[Launch]:
    """Launch parameters, the largest blocks first; the next one is for a GPU whose shared memory does not hold these.

    Chosen by the shared memory (at most 96 KB) and the register spills of the compiled kernels, not by timing.

    Args:
        head_dim (`int`): d, padded to a power of two.
        dtype (`torch.dtype`): of Q_c.
        backward (`bool`): the backward holds more tiles at once.
    """
    small = [Launch(32, 4, 1, 1), Launch(16, 4, 1, 1)]
    if dtype == torch.float32:
        # Exact float32 products run outside of the tensor cores; their operands live in registers.
        return small if head_dim <= 64 else small[1:]
    if head_dim <= 64:
        return [Launch(64, 8 if backward else 4, 2, 1), *small]
    return [Launch(32, 4, 2, 1), *small] if backward else [Launch(64, 8, 2, 1), *small]


# Which of the launch parameters fitted, for each kind of launch and GPU: a failure is not repeated at each call.
FITTING: dict = {}


def launch(key: tuple, configs: list[Launch], start: Callable):
    """start(config) with the first of `configs` that this GPU can hold."""
    first = FITTING.get(key, 0)
    for index in range(first, len(configs)):
        try:
            result = start(configs[index])
        except OutOfResources:
            if index + 1 == len(configs):
                raise
        else:
            FITTING[key] = index
            return result


class Call:
    """Arguments that all kernels of one forward or backward share: pointers, strides, lengths and switches."""

    def __init__(self, q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, reach, scale, dropout_p):
        self.q, self.k, self.v, self.mask, self.documents, self.seed = q, k, v, mask, documents, seed
        self.B, self.H, self.N, self.D = q.shape
        self.reach, self.scale, self.dropout_p = reach, scale, dropout_p
        self.span = 0 if rows is None else rows.shape[0] // 2
        # An absent tensor is never read; any pointer will do.
        self.kx = q if K_r is None else K_r.index_select(1, rows).contiguous()  # [H, 2·span + 1, d]
        self.qx = q if Q_r is None else Q_r.index_select(1, rows).contiguous()
        self.bias = q if bias is None else bias
        self.far = 0 < reach < self.N
        self.block_d = max(16, triton.next_power_of_2(self.D))
        self.terms = dict(C2P=K_r is not None, P2C=Q_r is not None, P2P=bias is not None)
        kind = 0 if mask is None else 1 if mask.stride(2) == 0 else 2
        self.switches = dict(MASK=kind, PACKED=documents is not None, DROPOUT=dropout_p > 0, WIDEN=INTERPRETED)
        self.shape = dict(D=self.D, BLOCK_D=self.block_d)
        self.key = (q.device, q.dtype, self.D, self.far, *self.terms.values(), *self.switches.values())
        self.sizes = (self.H, self.N, self.B, self.span)
        # softmax in base 2
        self.scale2 = scale * math.log2(math.e)

    def side_pointers(self):
        """mask, documents, seed."""
        return tuple(self.q if x is None else x for x in (self.mask, self.documents, self.seed))

    def mask_strides(self):
        return (0, 0, 0, 0) if self.mask is None else self.mask.stride()

    def ends(self):
        if not self.far:
            return self.q
        ends = self.q.new_empty(4, self.B, self.H, self.N, dtype=torch.float32)
        _disentangled_ends_kernel[(triton.cdiv(self.N, 64) * self.B * self.H,)](
            self.q, self.k, self.kx, self.qx, self.bias, ends, *self.q.stride()[:3], *self.k.stride()[:3], *self.sizes,
            self.scale2, **self.terms, **self.shape, BLOCK=64,
        )  # fmt: skip
        return ends


def on_its_device(operator: Callable) -> Callable:
    """Triton launches on the current CUDA device: makes that the one of the first tensor."""

    @functools.wraps(operator)
    def run(*args):
        with torch.cuda.device_of(args[0]):
            return operator(*args)

    return run


def empty_heads(x: torch.Tensor) -> torch.Tensor:
    """[B, H, N, d], laid out as [B, N, H, d], so that the heads join without a copy."""
    B, H, N, d = x.shape
    return x.new_empty(B, N, H, d).transpose(1, 2)


@on_its_device
def attend(q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, reach, scale, dropout_p):
    """The forward operator: out [B, H, N, d] and LSE [B, H, N] in base 2."""
    call = Call(q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, reach, scale, dropout_p)
    out, lse = empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    ends = call.ends()

    def start(config):
        _disentangled_fwd_kernel[(triton.cdiv(call.N, config.BLOCK) * call.B * call.H,)](
            q, k, v, call.kx, call.qx, call.bias, ends, *call.side_pointers(), out, lse,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *call.mask_strides(),
            *call.sizes, reach, call.scale2, dropout_p, **call.terms, FAR=call.far, **call.switches, **call.shape,
            BLOCK_M=config.BLOCK, BLOCK_N=config.BLOCK, FAR_STAGES=config.far_stages, NEAR_STAGES=config.near_stages,
            num_warps=config.num_warps,
        )  # fmt: skip

    launch(("forward", *call.key), launch_config(call.block_d, q.dtype, backward=False), start)
    return out, lse


@on_its_device
def attend_backward(
    grad, q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, out, lse, reach, scale, dropout_p, positions
):  # fmt: skip
    """The backward operator: gradients of q, k, v, K_r, Q_r and bias; an empty tensor for what is absent.

    positions (`bool`): whether the gradients of K_r, Q_r and bias are wanted.
    """
    call = Call(q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, reach, scale, dropout_p)
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    dq, dk, dv, ends = empty_heads(q), empty_heads(q), empty_heads(q), call.ends()
    rowsum = torch.empty_like(lse)
    # Row sums of dS over o >= reach and o <= -reach, then column sums.
    sums = q.new_empty(4, call.B, call.H, call.N, dtype=torch.float32) if call.far else lse
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    configs = launch_config(call.block_d, q.dtype, backward=True)

    def start_dq(config):
        _disentangled_bwd_kernel_dq[(triton.cdiv(call.N, config.BLOCK) * call.B * call.H,)](
            q, k, v, call.kx, call.qx, call.bias, ends, *call.side_pointers(), out, lse, grad, rowsum, sums, dq,
            *strides, *out.stride()[:3], *grad.stride()[:3], *dq.stride()[:3], *call.mask_strides(),
            *call.sizes, reach, call.scale2, scale, dropout_p, **call.terms, FAR=call.far, **call.switches, **call.shape,
            BLOCK_M=config.BLOCK, BLOCK_N=config.BLOCK, FAR_STAGES=config.far_stages, NEAR_STAGES=config.near_stages,
            num_warps=config.num_warps,
        )  # fmt: skip

    def start_dkv(config):
        _disentangled_bwd_kernel_dkv[(triton.cdiv(call.N, config.BLOCK) * call.B * call.H,)](
            q, k, v, call.kx, call.qx, call.bias, ends, *call.side_pointers(), lse, grad, rowsum, sums, dk, dv,
            *strides, *grad.stride()[:3], *dk.stride()[:3], *call.mask_strides(),
            *call.sizes, reach, call.scale2, scale, dropout_p, **call.terms, FAR=call.far, **call.switches, **call.shape,
            BLOCK_M=config.BLOCK, BLOCK_N=config.BLOCK, FAR_STAGES=config.far_stages, NEAR_STAGES=config.near_stages,
            num_warps=config.num_warps,
        )  # fmt: skip

    # rowsum is written by the first of the two and read by the second.
    launch(("dq", *call.key), configs, start_dq)
    launch(("dkv", *call.key), configs, start_dkv)
    absent = q.new_empty(0)
    if not positions:
        return dq, dk, dv, absent, absent.clone(), absent.clone()

    # Offsets that the windows count; the others are far pairs, also those inside near tiles, or of two documents.
    inner = reach - 1 if call.far else call.span

    def start_bands(config):
        # Bands of tiles with an offset in [-inner, inner].
        block = config.BLOCK
        blocks = triton.cdiv(call.N, block)
        farthest = min(blocks, triton.cdiv(inner + block, block)) - 1
        bands = 2 * farthest + 1
        splits = max(1, min(1024 // (bands * call.H), triton.cdiv(call.B * blocks, 4)))
        count = call.terms["C2P"] + call.terms["P2C"]
        windows = q.new_empty(count, call.H, splits, bands, 2 * block, call.D, dtype=torch.float32)
        bias_windows = q.new_empty(call.H, splits, bands, 2 * block, dtype=torch.float32) if bias is not None else lse
        _disentangled_bwd_kernel_bands[(bands, splits, call.H)](
            q, k, v, call.kx, call.qx, call.bias, *call.side_pointers(), lse, grad, rowsum, windows, bias_windows,
            *strides, *grad.stride()[:3], *call.mask_strides(), *call.sizes, call.scale2, dropout_p, bands, splits,
            **call.terms, **call.switches, **call.shape, BLOCK=block, STAGES=config.near_stages, num_warps=config.num_warps,
        )  # fmt: skip
        return windows, bias_windows, block

    windows, bias_windows, block = launch(("bands", *call.key), configs, start_bands)
    dK_r, dQ_r = fold(call, windows, sums, K_r, Q_r, rows, block=block, inner=inner)
    dbias = absent.clone()
    if bias is not None:
        dbias = fold_bias(call, bias_windows, sums, block=block, inner=inner)
    return dq, dk, dv, absent if dK_r is None else dK_r, absent.clone() if dQ_r is None else dQ_r, dbias


def fold(call, windows, sums, K_r, Q_r, rows, *, block, inner):
    """Gradients of K_r and Q_r, [H, R, d] each or None, from the windows of the bands and the sums over far pairs."""
    if K_r is None and Q_r is None:
        return None, None
    (terms, H, splits, bands), R = windows.shape[:4], (Q_r if K_r is None else K_r).shape[1]
    far_splits = max(1, min(16, call.B * triton.cdiv(call.N, 64)))
    far = windows
    if call.far:
        far = windows.new_empty(terms, 2, H, far_splits, call.D)
        _disentangled_bwd_kernel_far[(H, far_splits, 2 * terms)](
            call.q, call.k, sums, far, *call.q.stride()[:3], *call.k.stride()[:3], H, call.N, call.B, far_splits,
            C2P=call.terms["C2P"], **call.shape, BLOCK=64,
        )  # fmt: skip
    # The offsets that read row r are rows[bounds[r]] ... rows[bounds[r + 1] - 1], since delta does not decrease.
    bounds = torch.searchsorted(rows, torch.arange(R + 1, device=rows.device))
    grads = call.q.new_empty(terms, H, R, call.D)
    _disentangled_bwd_kernel_fold[(R, H, terms)](
        windows, far, bounds, grads, H, R, call.span, inner, bands, splits, far_splits, call.scale, FAR=call.far,
        **call.shape, BLOCK=block, SPLITS=triton.next_power_of_2(splits), FAR_SPLITS=16, WIDEN=INTERPRETED, num_warps=1,
    )  # fmt: skip
    if K_r is not None and Q_r is not None:
        # An operator may not return two views of one tensor.
        return grads[0].clone(), grads[1].clone()
    return (grads[0], None) if Q_r is None else (None, grads[0])


def fold_bias(call, windows, sums, *, block, inner):
    """Gradient of the p2p scores [H, 2·span + 1]."""
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


# The file may be loaded twice in one process (this package, and a copy from the Hub): each has operators of its own.
NAMESPACE = re.sub(r"\W", "_", __name__)
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? K_r, Tensor? Q_r, Tensor? rows, Tensor? bias, Tensor? mask, Tensor? documents, "
    "Tensor? seed"
)
attend_op = torch.library.custom_op(
    f"{NAMESPACE}::attend", attend, mutates_args=(),
    schema=f"({ARGUMENTS}, int reach, float scale, float dropout_p) -> (Tensor, Tensor)",
)  # fmt: skip
attend_backward_op = torch.library.custom_op(
    f"{NAMESPACE}::attend_backward", attend_backward, mutates_args=(),
    schema=f"(Tensor grad, {ARGUMENTS}, Tensor out, Tensor lse, int reach, float scale, float dropout_p, bool positions) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@attend_op.register_fake
def _(q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, reach, scale, dropout_p):
    return empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@attend_backward_op.register_fake
def _(grad, q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, out, lse, reach, scale, dropout_p, positions):
    # Contiguous, as the operator gives them, whatever the strides of the tables are.
    tables = [q.new_empty(0) if x is None or not positions else x.new_empty(x.shape) for x in (K_r, Q_r, bias)]
    return empty_heads(q), empty_heads(q), empty_heads(q), *tables


def _save(ctx, inputs, output):
    *tensors, reach, scale, dropout_p = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.numbers = reach, scale, dropout_p
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, grad, _):
    needed = [ctx.needs_input_grad[i] for i in (3, 4, 6)]
    grads = attend_backward_op(grad, *ctx.saved_tensors, *ctx.numbers, any(needed))
    dq, dk, dv = grads[:3]
    dK_r, dQ_r, dbias = (x if used else None for x, used in zip(grads[3:], needed, strict=True))
    return dq, dk, dv, dK_r, dQ_r, None, dbias, *[None] * 6


attend_op.register_autograd(_differentiate, setup_context=_save)


def triton_unavailable(device: torch.device, head_size: int, dtype: torch.dtype, **call) -> str | None:
    """Return the reason why the kernels cannot serve tensors like these, or None where they can."""
    if triton is None:
        return "the package triton is not installed"
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 4):
        # 3.2 has no gather; 3.3 makes the flat gather of a tile thousands of warp shuffles.
        return f"triton 3.4 or later is needed, found {triton.__version__}"
    if torch.device(device).type != "cuda" and not INTERPRETED:
        return f"it runs on CUDA, not on {torch.device(device).type}"
    if not 16 <= head_size <= 128:
        return f"it serves head sizes from 16 to 128, not {head_size}"
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it serves float16, bfloat16 and float32, not {str(dtype).removeprefix('torch.')}"
    return None


def dropout_mask(seed: torch.Tensor, B: int, H: int, N: int, p: float) -> torch.Tensor:
    """True for the probabilities that the kernels keep with this seed, bool [B, H, N, N]; for tests.

    Args:
        seed (`torch.LongTensor`): [1].
        p (`float`): dropout rate.
    """
    keep = torch.empty(B, H, N, N, dtype=torch.uint8, device=seed.device)
    _dropout_mask_kernel[(triton.cdiv(N, 32) ** 2, B * H)](seed, keep, N, p, BLOCK=32)
    return keep.bool()


def draw_seed(device: torch.device) -> torch.Tensor:
    """int64 [1] on `device` from the default generator: no host sync, and `torch.manual_seed` repeats it."""
    return torch.randint(0, 2**62, (1,), device=device)


def disentangled_attention_triton(
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
    """Disentangled attention, DeBERTa (He et al. 2021) Eq. (4), in Triton kernels; forward and backward in O(N) memory.

    A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_r[delta(i, j)] + K_c[j]·Q_r[delta(i, j)],  out = softmax(scale · A) V_c;
    p2p adds Q_r[delta(i, j)]·K_r[delta(j, i)].

    Args:
        Q_c, K_c, V_c (`torch.Tensor`): content projections, [B, H, N, d], 16 <= d <= 128, any strides.
        K_r, Q_r (`torch.Tensor`, *optional*): projections of the relative table P, [H, R, d]; needed by c2p and p2c.
        delta (`torch.LongTensor`, *optional*): [2L - 1] offset table, L >= N or, with `cu_seqlens`, at least the tokens of
            the longest document; delta(i, j) = delta[i - j + L - 1], in [0, R), non-decreasing.
        terms (`tuple[str, ...]`): which of c2p, p2c, p2p to add.
        scale (`float`): 1 / sqrt(s·d), s = 1 + number of position terms.
        mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, N, N]; True = may attend. A row with no True gives
            zeros.
        query_positions (`torch.LongTensor`, *optional*): not served.
        dropout_p (`float`): dropout of the probabilities, regenerated in the backward from one seed.
        reach (`int`, *optional*): delta(i, j) is constant for i - j >= reach and for i - j <= -reach; None: nowhere.
        cu_seqlens (`torch.IntTensor`, *optional*): [D + 1] from 0 to N; B = 1: document n holds the tokens
            cu_seqlens[n] ... cu_seqlens[n + 1] - 1 of one stream, and documents do not attend to each other.

    Returns:
        out [B, H, N, d] in the dtype of Q_c; logits and softmax are computed in float32.

    Raises:
        ValueError: for a device, head size or dtype that the kernels do not serve, for query_positions, and for packed
            documents in a batch of more than one row.
    """
    reason = triton_unavailable(Q_c.device, Q_c.shape[-1], Q_c.dtype)
    if reason is not None:
        raise ValueError(f"attention 'triton' cannot serve this call: {reason}")
    if query_positions is not None or Q_c.shape != K_c.shape:
        raise ValueError(
            "attention 'triton' serves queries that stand at the positions of their keys, got "
            f"{Q_c.shape[2]} queries and {K_c.shape[2]} keys"
            f"{'' if query_positions is None else ' with query_positions'}; the blocked backend serves it"
        )
    B, H, N, _ = Q_c.shape
    if cu_seqlens is not None and B != 1:
        raise ValueError(f"cu_seqlens describe one stream of documents, [1, H, N, d], got a batch of {B}")
    if dropout_p == 1:
        # All probabilities are dropped: the others cannot be scaled by 1 / 0.
        V_c, dropout_p = V_c * 0, 0.0
    device_type = Q_c.device.type
    with torch.autocast(device_type, enabled=False):
        q, k, v = (x.to(Q_c.dtype) for x in (Q_c, K_c, V_c))
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        rows = bias = None
        if terms:
            # Of packed documents, the table is as long as the longest.
            middle = delta.shape[0] // 2
            span = min(N - 1 if reach is None else reach, N - 1, middle)
            rows = delta[middle - span : middle + span + 1]
            if "p2p" in terms:
                bias = (Q_r.float()[:, rows] * K_r.float()[:, rows.flip(0)]).sum(-1)  # [H, 2·span + 1]
        K_r = K_r.to(q.dtype) if "c2p" in terms else None
        Q_r = Q_r.to(q.dtype) if "p2c" in terms else None
        if mask is not None:
            mask = mask.view(torch.uint8).expand(B, H, N, N)
        documents = None if cu_seqlens is None else document_ranges(cu_seqlens, N)
        seed = draw_seed(q.device) if dropout_p > 0 else None
        # 0: no far tiles
        far = reach if terms and reach is not None and reach <= span else 0
        return attend_op(q, k, v, K_r, Q_r, rows, bias, mask, documents, seed, far, scale, dropout_p)[0]


def document_ranges(cu_seqlens: torch.Tensor, N: int) -> torch.Tensor:
    """int32 [2, N]: where the document of each token begins and ends."""
    cu_seqlens = cu_seqlens.long()
    index = torch.searchsorted(cu_seqlens, torch.arange(N, device=cu_seqlens.device), right=True)
    return torch.stack([cu_seqlens[index - 1], cu_seqlens[index]]).int()

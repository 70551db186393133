# SPDX-License-Identifier: Apache-2.0
"""Backward kernels: gradients of queries, of keys and values, and of the relative tables."""

from .triton_tiles import (
    PAD,
    any_flag,
    dot,
    dropout_keep,
    flagged_range,
    hide,
    kernel,
    key_logits,
    load_rows,
    load_window,
    mask_tile,
    narrow,
    near_range,
    near_scores,
    near_scores_turned,
    pick,
    store_rows,
    tl,
    visible_range,
)


@kernel
def disentangled_bwd_kernel_dq(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr, mask_ptr, document_ptr, seed_ptr, out_ptr, lse_ptr,
    do_ptr, rowsum_ptr, active_ptr, sums_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, stride_db, stride_dh, stride_dn, stride_gb, stride_gh, stride_gn,
    stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, max_distance, scale2, scale, dropout_p,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FAR_STAGES: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute, for BLOCK_M queries i, the gradient of Q_c, rowsum(dO · out), and two sums of dS[i, j]: one over all keys j
    with i - j >= max_distance, and one over all keys j with i - j <= -max_distance."""
    blocks = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    m0 = tl.program_id(0) % blocks * BLOCK_M
    rows = m0 + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    plane = batch.to(tl.int64) * H * N
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    kx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    qx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    bias_ptr += h * (2 * span + 1)
    ends_ptr += bh.to(tl.int64) * N
    mask_ptr += b * stride_mb + h * stride_mh
    q = load_rows(q_ptr + b * stride_qb + h * stride_qh, m0, stride_qn, N, BLOCK_M, D, BLOCK_D)
    do = load_rows(do_ptr + b * stride_db + h * stride_dh, m0, stride_dn, N, BLOCK_M, D, BLOCK_D)
    out = load_rows(out_ptr + b * stride_ob + h * stride_oh, m0, stride_on, N, BLOCK_M, D, BLOCK_D)
    rowsum = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(rowsum_ptr + bh.to(tl.int64) * N + rows, rowsum, mask=rows < N)
    lse = tl.load(lse_ptr + bh.to(tl.int64) * N + rows, mask=rows < N, other=float("inf"))

    kept = 1.0 / (1.0 - dropout_p)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Sums over pairs with o >= max_distance and o <= -max_distance in near tiles; sums of far tiles are added later.
    high = tl.zeros([BLOCK_M], tl.float32)
    low = tl.zeros([BLOCK_M], tl.float32)
    lo, hi = visible_range(document_ptr, m0, N, BLOCK_M, BLOCK_N, PACKED)
    if MASK == 1:
        lo, hi = flagged_range(mask_ptr, stride_mn, lo, hi, BLOCK_N)
    # Skip queries without a gradient: padding, or positions that no loss reads.
    active = tl.max((do != 0).to(tl.int32), 1)
    tl.store(active_ptr + bh.to(tl.int64) * N + rows, active.to(tl.int8), mask=rows < N)
    hi = tl.where(tl.max(active) != 0, hi, lo)
    first, last = near_range(m0, lo, hi, max_distance, BLOCK_M, BLOCK_N, FAR)
    for part in tl.static_range(0 if FAR else 1, 3 if FAR else 2):
        start, stop = first, last
        if part == 0:
            start, stop = lo, first
        if part == 2:
            start, stop = last, hi
        if start < stop:
            row = lse
            far = tl.zeros([BLOCK_M], tl.float32)
            if part != 1:
                row = lse - tl.load(ends_ptr + part // 2 * plane + rows, mask=rows < N, other=0.0)
            for n0 in tl.range(start, stop, BLOCK_N, num_stages=NEAR_STAGES if part == 1 else FAR_STAGES):
                n0 = hide(n0)
                cols = n0 + tl.arange(0, BLOCK_N)
                k = load_rows(k_ptr, n0, stride_kn, N, BLOCK_N, D, BLOCK_D)
                key = key_logits(ends_ptr + (2 + part // 2) * plane, mask_ptr, cols, N, stride_mn, part != 1, MASK)
                if part == 1:
                    s = near_scores(q, k, kx_ptr, qx_ptr, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, D, BLOCK_D, BLOCK_M)
                else:
                    s = dot(q, tl.trans(k), WIDEN)
                s = s * scale2 + key[None, :]
                s = mask_tile(s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, False)
                p = tl.math.exp2(s - row[:, None])
                if DROPOUT:
                    # The sign of p marks dropped probabilities, because a separate mask would take registers.
                    p = tl.where(dropout_keep(seed_ptr, bh, m0, n0, dropout_p, BLOCK_M, BLOCK_N), p, -p)
                v = load_rows(v_ptr, n0, stride_vn, N, BLOCK_N, D, BLOCK_D)
                dp = dot(do, tl.trans(v), WIDEN)
                if DROPOUT:
                    dp = tl.where(p > 0.0, dp * kept, 0.0)
                    p = tl.abs(p)
                ds = p * (dp - rowsum[:, None])
                if part != 1:
                    far += tl.sum(ds, 1)
                elif FAR and (C2P or P2P):
                    if m0 + BLOCK_M - 1 - n0 >= max_distance:
                        high += tl.sum(tl.where(rows[:, None] - cols[None, :] >= max_distance, ds, 0.0), 1)
                    if m0 - n0 - (BLOCK_N - 1) <= -max_distance:
                        low += tl.sum(tl.where(rows[:, None] - cols[None, :] <= -max_distance, ds, 0.0), 1)
                narrowed = narrow(ds, k.dtype, WIDEN)
                dq += dot(narrowed, k, WIDEN)
                if C2P and part == 1:
                    # Undo the shear: dQ_c[i] += sum over the window of dS[i, i - o] K_x[o].
                    unsheared = pick(narrowed, "p", "p - q", BLOCK_M, 2 * BLOCK_N, BLOCK_N, n0 + 2)
                    kx = load_window(kx_ptr, m0 - n0 - (BLOCK_N - 1), span, 2 * BLOCK_N, D, BLOCK_D)
                    dq += dot(unsheared, kx, WIDEN)
            if part != 1:
                if C2P:
                    end = tl.load(kx_ptr + (PAD + (2 - part) * span) * D + offs_d, mask=offs_d < D, other=0.0)
                    dq += far[:, None] * end.to(tl.float32)[None, :]
                if part == 0:
                    high += far
                else:
                    low += far

    store_rows(dq_ptr + b * stride_gb + h * stride_gh, dq * scale, rows, stride_gn, N, D, BLOCK_D, WIDEN)
    if FAR and (C2P or P2P):
        sums_ptr += bh.to(tl.int64) * N + rows
        tl.store(sums_ptr, high, mask=rows < N)
        tl.store(sums_ptr + plane, low, mask=rows < N)


@kernel
def disentangled_bwd_kernel_dkv(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr, mask_ptr, document_ptr, seed_ptr, lse_ptr,
    do_ptr, rowsum_ptr, active_ptr, sums_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_db, stride_dh, stride_dn, stride_gb, stride_gh, stride_gn,
    stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, max_distance, scale2, scale, dropout_p,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FAR_STAGES: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute, for BLOCK_N keys j, the gradients of K_c and V_c, and two sums of dS[i, j]: one over all queries i with
    i - j >= max_distance, and one over all queries i with i - j <= -max_distance."""
    blocks = tl.cdiv(N, BLOCK_N)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    n0 = tl.program_id(0) % blocks * BLOCK_N
    cols = n0 + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    plane = batch.to(tl.int64) * H * N
    q_ptr += b * stride_qb + h * stride_qh
    do_ptr += b * stride_db + h * stride_dh
    kx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    qx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    bias_ptr += h * (2 * span + 1)
    ends_ptr += bh.to(tl.int64) * N
    lse_ptr += bh.to(tl.int64) * N
    rowsum_ptr += bh.to(tl.int64) * N
    mask_ptr += b * stride_mb + h * stride_mh
    k = load_rows(k_ptr + b * stride_kb + h * stride_kh, n0, stride_kn, N, BLOCK_N, D, BLOCK_D)
    v = load_rows(v_ptr + b * stride_vb + h * stride_vh, n0, stride_vn, N, BLOCK_N, D, BLOCK_D)

    kept = 1.0 / (1.0 - dropout_p)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    high = tl.zeros([BLOCK_N], tl.float32)
    low = tl.zeros([BLOCK_N], tl.float32)
    lo, hi = visible_range(document_ptr, n0, N, BLOCK_N, BLOCK_M, PACKED)
    lo, hi = flagged_range(active_ptr + bh.to(tl.int64) * N, 1, lo, hi, BLOCK_M)
    if MASK == 1:
        hi = tl.where(any_flag(mask_ptr, n0, stride_mn, N, BLOCK_N), hi, lo)
    first, last = near_range(n0, lo, hi, max_distance, BLOCK_N, BLOCK_M, FAR)
    # Tiles are [keys, queries]. part 0: queries far left (o <= -max_distance), 1: near, 2: far right (o >= max_distance).
    for part in tl.static_range(0 if FAR else 1, 3 if FAR else 2):
        start, stop = first, last
        if part == 0:
            start, stop = lo, first
        if part == 2:
            start, stop = last, hi
        if start < stop:
            far = tl.zeros([BLOCK_N], tl.float32)
            key = key_logits(ends_ptr + (3 - part // 2) * plane, mask_ptr, cols, N, stride_mn, part != 1, MASK)
            for m0 in tl.range(start, stop, BLOCK_M, num_stages=NEAR_STAGES if part == 1 else FAR_STAGES):
                m0 = hide(m0)
                rows = m0 + tl.arange(0, BLOCK_M)
                q = load_rows(q_ptr, m0, stride_qn, N, BLOCK_M, D, BLOCK_D)
                if part == 1:
                    s = near_scores_turned(
                        q, k, kx_ptr, qx_ptr, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, D, BLOCK_D, BLOCK_M
                    )
                else:
                    s = dot(k, tl.trans(q), WIDEN)
                s = s * scale2 + key[:, None]
                s = mask_tile(s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, True)
                # Beyond the last query, p = exp2(s - inf) = 0.
                row = tl.load(lse_ptr + rows, mask=rows < N, other=float("inf"))
                if part != 1:
                    row -= tl.load(ends_ptr + (1 - part // 2) * plane + rows, mask=rows < N, other=0.0)
                p = tl.math.exp2(s - row[None, :])
                dropped = p
                if DROPOUT:
                    keep = tl.trans(dropout_keep(seed_ptr, bh, m0, n0, dropout_p, BLOCK_M, BLOCK_N))
                    p = tl.where(keep, p, -p)
                    dropped = tl.maximum(p, 0.0)
                do = load_rows(do_ptr, m0, stride_dn, N, BLOCK_M, D, BLOCK_D)
                dv += dot(narrow(dropped, do.dtype, WIDEN), do, WIDEN)
                dp = dot(v, tl.trans(do), WIDEN)
                if DROPOUT:
                    dp = tl.where(p > 0.0, dp * kept, 0.0)
                    p = tl.abs(p)
                rowsum = tl.load(rowsum_ptr + rows, mask=rows < N, other=0.0)
                ds = p * (dp - rowsum[None, :])
                if part != 1:
                    far += tl.sum(ds, 1)
                elif FAR and P2C:
                    if m0 + BLOCK_M - 1 - n0 >= max_distance:
                        high += tl.sum(tl.where(rows[None, :] - cols[:, None] >= max_distance, ds, 0.0), 1)
                    if m0 - n0 - (BLOCK_N - 1) <= -max_distance:
                        low += tl.sum(tl.where(rows[None, :] - cols[:, None] <= -max_distance, ds, 0.0), 1)
                narrowed = narrow(ds, q.dtype, WIDEN)
                dk += dot(narrowed, q, WIDEN)
                if P2C and part == 1:
                    # dK_c[j] += sum over the window of dS[j + o, j] Q_x[o].
                    unsheared = pick(narrowed, "p", "p + q", BLOCK_N, 2 * BLOCK_M, BLOCK_N, m0 + 2)
                    qx = load_window(qx_ptr, m0 - n0 - (BLOCK_N - 1), span, 2 * BLOCK_M, D, BLOCK_D)
                    dk += dot(unsheared, qx, WIDEN)
            if part != 1:
                if P2C:
                    end = tl.load(qx_ptr + (PAD + part * span) * D + offs_d, mask=offs_d < D, other=0.0)
                    dk += far[:, None] * end.to(tl.float32)[None, :]
                if part == 0:
                    low += far
                else:
                    high += far

    store_rows(dk_ptr + b * stride_gb + h * stride_gh, dk * scale, cols, stride_gn, N, D, BLOCK_D, WIDEN)
    store_rows(dv_ptr + b * stride_gb + h * stride_gh, dv * kept, cols, stride_gn, N, D, BLOCK_D, WIDEN)
    if FAR and P2C:
        sums_ptr += bh.to(tl.int64) * N + cols
        tl.store(sums_ptr + 2 * plane, high, mask=cols < N)
        tl.store(sums_ptr + 3 * plane, low, mask=cols < N)


@kernel
def disentangled_bwd_kernel_bands(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, mask_ptr, document_ptr, seed_ptr, lse_ptr, do_ptr, rowsum_ptr, active_ptr,
    windows_ptr, bias_windows_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_db, stride_dh, stride_dn, stride_mb, stride_mh, stride_mq, stride_mn, H, N, batch, span, scale2, dropout_p,
    bands, splits,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of K_x and Q_x along one diagonal band of [BLOCK, BLOCK] tiles, which share a window.

    The tiles of the band, in all sequences of the batch, are shared between `splits` programs for each head; a program sums
    every `splits`-th tile. The result is windows [terms, H, splits, bands, 2·BLOCK, D], float32.
    """
    band, split, h = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    diagonal = band - bands // 2
    blocks = tl.cdiv(N, BLOCK)
    count = blocks - tl.maximum(diagonal, -diagonal)
    offs_d = tl.arange(0, BLOCK_D)
    w = tl.arange(0, 2 * BLOCK)
    kx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    qx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    bias_ptr += h * (2 * span + 1)
    kept = 1.0 / (1.0 - dropout_p)
    dkx = tl.zeros([2 * BLOCK, BLOCK_D], tl.float32)
    dqx = tl.zeros([2 * BLOCK, BLOCK_D], tl.float32)
    dbias = tl.zeros([2 * BLOCK], tl.float32)
    for item in tl.range(split, batch * count, splits, num_stages=STAGES):
        bh = (item // count) * H + h.to(tl.int32)
        b = (item // count).to(tl.int64)
        m0 = (item % count + tl.maximum(diagonal, 0)) * BLOCK
        m0, n0 = hide(m0), hide(m0 - diagonal * BLOCK)
        lo, hi = visible_range(document_ptr, m0, N, BLOCK, 1, PACKED)
        visible = (n0 < hi) & (n0 + BLOCK > lo) & any_flag(active_ptr + bh.to(tl.int64) * N, m0, 1, N, BLOCK)
        mask = mask_ptr + b * stride_mb + h * stride_mh
        if MASK == 1:
            visible &= any_flag(mask, n0, stride_mn, N, BLOCK)
        if visible:
            rows, cols = m0 + tl.arange(0, BLOCK), n0 + tl.arange(0, BLOCK)
            q = load_rows(q_ptr + b * stride_qb + h * stride_qh, m0, stride_qn, N, BLOCK, D, BLOCK_D)
            k = load_rows(k_ptr + b * stride_kb + h * stride_kh, n0, stride_kn, N, BLOCK, D, BLOCK_D)
            s = near_scores(q, k, kx_ptr, qx_ptr, bias_ptr, m0, n0, span, C2P, P2C, P2P, WIDEN, D, BLOCK_D, BLOCK)
            s = s * scale2 + key_logits(lse_ptr, mask, cols, N, stride_mn, False, MASK)[None, :]
            s = mask_tile(s, mask, document_ptr, rows, cols, N, stride_mq, stride_mn, MASK, PACKED, False)
            lse = tl.load(lse_ptr + bh.to(tl.int64) * N + rows, mask=rows < N, other=float("inf"))
            p = tl.math.exp2(s - lse[:, None])
            if DROPOUT:
                p = tl.where(dropout_keep(seed_ptr, bh, m0, n0, dropout_p, BLOCK, BLOCK), p, -p)
            v = load_rows(v_ptr + b * stride_vb + h * stride_vh, n0, stride_vn, N, BLOCK, D, BLOCK_D)
            do = load_rows(do_ptr + b * stride_db + h * stride_dh, m0, stride_dn, N, BLOCK, D, BLOCK_D)
            dp = dot(do, tl.trans(v), WIDEN)
            if DROPOUT:
                dp = tl.where(p > 0.0, dp * kept, 0.0)
                p = tl.abs(p)
            rowsum = tl.load(rowsum_ptr + bh.to(tl.int64) * N + rows, mask=rows < N, other=0.0)
            ds = p * (dp - rowsum[:, None])
            # Undo the shear: dS[i, i - o] for each offset o of the window, and dS[j + o, j].
            narrowed = narrow(ds, q.dtype, WIDEN)
            if C2P:
                dkx += dot(pick(narrowed, "q", "q - p", 2 * BLOCK, BLOCK, BLOCK, n0 + 2), q, WIDEN)
            if P2C:
                dqx += dot(pick(narrowed, "p + q", "q", 2 * BLOCK, BLOCK, BLOCK, n0 + 3), k, WIDEN)
            if P2P:
                dbias += tl.sum(pick(ds, "p + q", "q", 2 * BLOCK, BLOCK, BLOCK, n0 + 4), 1)

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


@kernel
def disentangled_bwd_kernel_far(
    q_ptr, k_ptr, sums_ptr, far_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, H, N, batch, far_splits,
    C2P: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the tables' end rows: the contribution of all pairs with |i - j| >= max_distance.

    Each is the sum over batch and tokens of (row sum of dS) · q for c2p, or (column sum of dS) · k for p2c. The output `far`
    is [terms, 2, H, far_splits, D], with a partial sum for each of `far_splits` programs.
    """
    h, split, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    # side is the index in `sums`, from the first term: c2p high, c2p low, p2c high, p2c low.
    source = side
    if not C2P:
        source = side + 2
    plane = batch.to(tl.int64) * H * N
    offs_d = tl.arange(0, BLOCK_D)
    blocks = tl.cdiv(N, BLOCK)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for item in tl.range(split, batch * blocks, far_splits):
        b = (item // blocks).to(tl.int64)
        start = item % blocks * BLOCK
        rows = start + tl.arange(0, BLOCK)
        weight = tl.load(sums_ptr + source * plane + (b * H + h) * N + rows, mask=rows < N, other=0.0)
        if source < 2:
            x = load_rows(q_ptr + b * stride_qb + h * stride_qh, start, stride_qn, N, BLOCK, D, BLOCK_D)
        else:
            x = load_rows(k_ptr + b * stride_kb + h * stride_kh, start, stride_kn, N, BLOCK, D, BLOCK_D)
        acc += tl.sum(x.to(tl.float32) * weight[:, None], 0)
    tl.store(far_ptr + ((side * H + h) * far_splits + split) * D + offs_d, acc, mask=offs_d < D)


@kernel
def disentangled_bwd_kernel_fold(
    windows_ptr, far_ptr, bounds_ptr, first_grad_ptr, second_grad_ptr, H, R, span, inner, bands, splits, far_splits, scale,
    FAR: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    FAR_SPLITS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Compute the gradients [H, R, D] of the tables: for each row, the sum over all offsets that read this row."""
    r, h, term = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    offs_d, offs_s = tl.arange(0, BLOCK_D), tl.arange(0, SPLITS)
    inside = offs_d[None, :] < D
    windows_ptr += ((term * H + h) * splits + offs_s[:, None]) * bands * (2 * BLOCK * D) + offs_d[None, :]
    start, stop = tl.load(bounds_ptr + r).to(tl.int32), tl.load(bounds_ptr + r + 1).to(tl.int32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for x in tl.range(tl.maximum(start, span - inner), tl.minimum(stop, span + inner + 1)):
        # Two bands contain each offset: one band in the lower half of its window, the previous band in the upper half.
        position = x - span + BLOCK - 1 + bands // 2 * BLOCK
        band, lane = position // BLOCK, position % BLOCK
        # Not `inside & (band < bands)`: Triton 3.9's interpreter does not support a mask combined with a scalar.
        is_lower = (offs_s[:, None] < tl.where(band < bands, splits, 0)) & inside
        is_upper = (offs_s[:, None] < tl.where(band > 0, splits, 0)) & inside
        lower = tl.load(windows_ptr + (band * 2 * BLOCK + lane) * D, mask=is_lower, other=0.0)
        upper = tl.load(windows_ptr + (band * 2 * BLOCK - BLOCK + lane) * D, mask=is_upper, other=0.0)
        acc += tl.sum(lower + upper, 0)
    if FAR:
        offs_f = tl.arange(0, FAR_SPLITS)
        far_ptr += ((term * 2 * H + h) * far_splits + offs_f[:, None]) * D + offs_d[None, :]
        is_last = (offs_f[:, None] < tl.where((start <= 2 * span) & (2 * span < stop), far_splits, 0)) & inside
        is_first = (offs_f[:, None] < tl.where((start == 0) & (stop > 0), far_splits, 0)) & inside
        acc += tl.sum(tl.load(far_ptr, mask=is_last, other=0.0), 0)
        acc += tl.sum(tl.load(far_ptr + H * far_splits * D, mask=is_first, other=0.0), 0)
    grad_ptr = first_grad_ptr
    if term == 1:
        grad_ptr = second_grad_ptr
    grad_ptr += (h * R + r) * D + offs_d
    tl.store(grad_ptr, narrow(acc * scale, grad_ptr.dtype.element_ty, WIDEN), mask=offs_d < D)

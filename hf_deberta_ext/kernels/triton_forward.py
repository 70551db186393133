# SPDX-License-Identifier: Apache-2.0
"""Forward kernels: position logits of tiles beyond the largest distance, then softmax and its product with the values."""

from .triton_tiles import (
    PAD,
    dot,
    dropout_keep,
    flagged_range,
    hide,
    kernel,
    key_logits,
    load_rows,
    mask_tile,
    narrow,
    near_range,
    near_scores,
    store_rows,
    tl,
    visible_range,
)


@kernel
def disentangled_prepare_kernel(
    q_ptr, k_ptr, K_r_ptr, Q_r_ptr, bias_ptr, rows_ptr, kx_ptr, qx_ptr, ends_ptr, bounds_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_krh, stride_krn, stride_qrh, stride_qrn,
    H, N, batch, span, R, scale2,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, BOUNDS: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute, in one launch, the tensors kx, qx, ends and bounds that the other kernels read.

    - kx, qx [H, PAD + 2·span + 1 + PAD, D]: the tables K_r and Q_r, expanded to one row for each offset o.
    - ends [4, B, H, N], float32, if FAR: position logits of far tiles, in base 2. ends[0] and ends[1] are c2p plus p2p of
      each query, for o >= max_distance and for o <= -max_distance. ends[2] and ends[3] are p2c of each key, for the same o.
    - bounds [R + 1], if BOUNDS: the entries bounds[r] ... bounds[r + 1] - 1 of `rows`, the table row of each offset, are r.
      They are adjacent, because delta does not decrease.
    """
    length = 2 * span + 1 + 2 * PAD
    table_blocks = tl.cdiv(length, BLOCK)
    block = tl.program_id(0)
    offs_d = tl.arange(0, BLOCK_D)
    if block < table_blocks * H:
        h = (block // table_blocks).to(tl.int64)
        x = block % table_blocks * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(rows_ptr + tl.minimum(tl.maximum(x - PAD, 0), 2 * span))
        inside = (x[:, None] < length) & (offs_d[None, :] < D)
        target = h * length * D + x[:, None] * D + offs_d[None, :]
        if C2P:
            source = K_r_ptr + h * stride_krh + row[:, None] * stride_krn + offs_d[None, :]
            tl.store(kx_ptr + target, tl.load(source, mask=inside, other=0.0), mask=inside)
        if P2C:
            source = Q_r_ptr + h * stride_qrh + row[:, None] * stride_qrn + offs_d[None, :]
            tl.store(qx_ptr + target, tl.load(source, mask=inside, other=0.0), mask=inside)
        if BOUNDS:
            r = block * BLOCK + tl.arange(0, BLOCK)
            if block * BLOCK <= R:
                # Find the first x with rows[x] >= r.
                first, last = r * 0, r * 0 + 2 * span + 1
                for _ in range(32):
                    middle = (first + last) // 2
                    less = (first < last) & (tl.load(rows_ptr + tl.minimum(middle, 2 * span)) < r)
                    last = tl.where(less | (first >= last), last, middle)
                    first = tl.where(less, middle + 1, first)
                tl.store(bounds_ptr + r, first, mask=r <= R)
    elif FAR:
        block -= table_blocks * H
        bh = block // tl.cdiv(N, BLOCK)
        b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
        start = block % tl.cdiv(N, BLOCK) * BLOCK
        rows = start + tl.arange(0, BLOCK)
        place = ends_ptr + bh.to(tl.int64) * N + rows
        plane = batch.to(tl.int64) * H * N
        high, low = tl.load(rows_ptr + 2 * span), tl.load(rows_ptr)
        c2p_high = tl.zeros([BLOCK], tl.float32)
        c2p_low, p2c_high, p2c_low = c2p_high, c2p_high, c2p_high
        if C2P:
            q = load_rows(q_ptr + b * stride_qb + h * stride_qh, start, stride_qn, N, BLOCK, D, BLOCK_D).to(tl.float32)
            table = K_r_ptr + h * stride_krh + offs_d
            c2p_high += tl.sum(q * tl.load(table + high * stride_krn, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
            c2p_low += tl.sum(q * tl.load(table + low * stride_krn, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
        if P2C:
            k = load_rows(k_ptr + b * stride_kb + h * stride_kh, start, stride_kn, N, BLOCK, D, BLOCK_D).to(tl.float32)
            table = Q_r_ptr + h * stride_qrh + offs_d
            p2c_high += tl.sum(k * tl.load(table + high * stride_qrn, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
            p2c_low += tl.sum(k * tl.load(table + low * stride_qrn, mask=offs_d < D, other=0.0).to(tl.float32)[None, :], 1)
        if P2P:
            c2p_high += tl.load(bias_ptr + h * (2 * span + 1) + 2 * span)
            c2p_low += tl.load(bias_ptr + h * (2 * span + 1))
        tl.store(place, c2p_high * scale2, mask=rows < N)
        tl.store(place + plane, c2p_low * scale2, mask=rows < N)
        tl.store(place + 2 * plane, p2c_high * scale2, mask=rows < N)
        tl.store(place + 3 * plane, p2c_low * scale2, mask=rows < N)


@kernel
def disentangled_fwd_kernel(
    q_ptr, k_ptr, v_ptr, kx_ptr, qx_ptr, bias_ptr, ends_ptr, mask_ptr, document_ptr, seed_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_on, stride_mb, stride_mh, stride_mq, stride_mn,
    H, N, batch, span, max_distance, scale2, dropout_p,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, FAR: tl.constexpr, MASK: tl.constexpr, PACKED: tl.constexpr,
    DROPOUT: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FAR_STAGES: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute out = softmax(scale·A) V_c and LSE (base 2) of BLOCK_M queries, with an online softmax over the keys."""
    blocks = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // blocks
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    m0 = tl.program_id(0) % blocks * BLOCK_M
    rows = m0 + tl.arange(0, BLOCK_M)
    plane = batch.to(tl.int64) * H * N
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    kx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    qx_ptr += h * (2 * span + 1 + 2 * PAD) * D
    bias_ptr += h * (2 * span + 1)
    ends_ptr += bh.to(tl.int64) * N
    mask_ptr += b * stride_mb + h * stride_mh
    q = load_rows(q_ptr + b * stride_qb + h * stride_qh, m0, stride_qn, N, BLOCK_M, D, BLOCK_D)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    lo, hi = visible_range(document_ptr, m0, N, BLOCK_M, BLOCK_N, PACKED)
    if MASK == 1:
        lo, hi = flagged_range(mask_ptr, stride_mn, lo, hi, BLOCK_N)
    first, last = near_range(m0, lo, hi, max_distance, BLOCK_M, BLOCK_N, FAR)
    # part 0: keys far to the left (o >= max_distance), 1: near keys, 2: keys far to the right.
    for part in tl.static_range(0 if FAR else 1, 3 if FAR else 2):
        start, stop = first, last
        if part == 0:
            start, stop = lo, first
        if part == 2:
            start, stop = last, hi
        # This check also helps the compiler, which makes all products wait for each other in a loop that may be empty.
        if start < stop:
            # In far tiles, c2p adds the same number to all logits of a row, so it is added to the row's maximum instead.
            row = tl.zeros([BLOCK_M], tl.float32)
            if part != 1:
                row = tl.load(ends_ptr + part // 2 * plane + rows, mask=rows < N, other=0.0)
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

                # A row without keys so far has top = -inf; replacing it by zero makes exp2(-inf - 0) = 0.
                new_top = tl.maximum(top, tl.max(s, 1) + row)
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.math.exp2(s - (safe - row)[:, None])
                alpha = tl.math.exp2(top - safe)
                total = total * alpha + tl.sum(p, 1)
                top = new_top
                if DROPOUT:
                    p = tl.where(dropout_keep(seed_ptr, bh, m0, n0, dropout_p, BLOCK_M, BLOCK_N), p, 0.0)
                v = load_rows(v_ptr, n0, stride_vn, N, BLOCK_N, D, BLOCK_D)
                acc = acc * alpha[:, None] + dot(narrow(p, v.dtype, WIDEN), v, WIDEN)

    empty = total == 0.0
    lse = tl.where(empty, 0.0, top + tl.math.log2(tl.where(empty, 1.0, total)))
    if DROPOUT:
        total *= 1.0 - dropout_p
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    store_rows(out_ptr + b * stride_ob + h * stride_oh, acc, rows, stride_on, N, D, BLOCK_D, WIDEN)
    tl.store(lse_ptr + bh.to(tl.int64) * N + rows, lse, mask=rows < N)

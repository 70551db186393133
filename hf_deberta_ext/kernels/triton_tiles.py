# SPDX-License-Identifier: Apache-2.0
"""Parts of the Triton kernels: loads, masks, dropout, and the position scores of a tile of queries and keys."""

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

    class tl:  # noqa: N801
        """Stand-in, so that the kernels can be imported without triton."""

        constexpr = int


# Arguments that are lengths, counts or strides. Their values must not trigger another compilation.
RUN_TIME = ["H", "N", "R", "batch", "span", "max_distance", "inner", "bands", "splits", "far_splits"]
RUN_TIME += ["stride_mb", "stride_mh", "stride_mq"]

# A table with one row for each offset begins with this number of copies of the row for -span, and ends with as many copies
# of the row for span: two blocks of up to 128.
PADDING = 256
PAD = tl.constexpr(PADDING)


def kernel(function):
    if triton is None:
        return function
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(function, do_not_specialize=[name for name in RUN_TIME if name in parameters])


def device_function(function):
    return function if triton is None else triton.jit(function)


@device_function
def dot(a, b, WIDEN: tl.constexpr):
    # The interpreter would multiply the bit patterns of bfloat16; float32 represents the same values.
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


# Triton decides if kernels are interpreted (on CPU, for tests): for its own functions when it is first imported, for these
# kernels when they are defined.
INTERPRETED = triton is not None and not any(isinstance(part, triton.runtime.JITFunction) for part in (tl.sum, dot))


@device_function
def narrow(x, dtype: tl.constexpr, WIDEN: tl.constexpr):
    if WIDEN and dtype == tl.bfloat16:
        # The interpreter truncates, whereas a GPU rounds to nearest even.
        bits = x.to(tl.int32, bitcast=True)
        x = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return x.to(dtype)


@device_function
def unknown_zero(start):
    """Return zero, computed from `start` in a way that the compiler does not recognise as a constant; needs `start` < 2^30.

    Expressions that include this zero are computed in every iteration of a loop. Without it, the compiler would hoist
    indices, masks and addresses out of the loop and keep hundreds of them in registers.
    """
    return (start + (1 << 30)) >> 31


@device_function
def hide(start):
    """Return `start` as an expression that the compiler cannot replace by a constant."""
    return start ^ unknown_zero(start)


@device_function
def flatten(x, BITS: tl.constexpr):
    """Flatten [P/8, 8, Q/8, 4, 2] so that the 32 lanes of a warp access different banks of shared memory.

    In matrix products, the lanes hold 8 rows by 4 pairs of columns. If BITS is 32, these elements become 32 adjacent words.
    If BITS is 16, the lanes store such elements, but read diagonals across 32 columns. A word has two columns of a row, so
    two rows of 32 columns become 32 adjacent words. A diagonal changes the row at each column, and so reads each bank once.
    """
    if BITS == 16:
        P: tl.constexpr = x.shape[0] * 8
        Q: tl.constexpr = x.shape[2] * 8
        W: tl.constexpr = Q if Q < 32 else 32
        x = tl.permute(tl.reshape(x, (P // 2, 2, Q // W, W)), (0, 2, 1, 3))
    else:
        x = tl.permute(x, (0, 2, 4, 1, 3))
    return tl.reshape(x, (x.numel,))


@device_function
def coordinate(AXIS: tl.constexpr, p, p_one, q, q_one, BLOCK: tl.constexpr):
    """Return the index for AXIS as (a, b), with index = 8 * a + b. The index is p for "p", q for "q", p - q + BLOCK - 1 for
    "p - q", q - p + BLOCK - 1 for "q - p", and p + q - (BLOCK - 1) for "p + q"."""
    if AXIS == "p":
        eights, ones = p, p_one
    elif AXIS == "q":
        eights, ones = q, q_one
    else:
        if AXIS == "p - q":
            eights, ones = p - q + (BLOCK // 8 - 1), p_one - q_one + 7
        elif AXIS == "q - p":
            eights, ones = q - p + (BLOCK // 8 - 1), q_one - p_one + 7
        else:
            eights, ones = p + q - BLOCK // 8, p_one + q_one + 1
        eights, ones = eights + (ones >> 3), ones & 7
    return eights, ones


@device_function
def pick(
    x, ROW: tl.constexpr, COL: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, BLOCK: tl.constexpr, start,
    WHOLE: tl.constexpr = False,
):  # fmt: skip
    """Return y [P, Q], y[p, q] = x[row, col], zero outside of x. `coordinate` computes row from ROW, and col from COL.

    The gather uses shared memory without bank conflicts. Indices are computed as 8 * a + b, so that the compiler sees which
    parts are equal in all registers of a lane. The gather is flat, because a gather along an axis becomes several warp
    shuffles per element. `start` >= 0 is the counter of the enclosing loop; it makes the compiler compute the
    indices again in each iteration, so that they need no registers. WHOLE: no index is outside of x.
    """
    BITS: tl.constexpr = x.dtype.primitive_bitwidth
    zero = unknown_zero(start)
    p = tl.reshape(tl.arange(0, P // 8) ^ zero, (P // 8, 1, 1, 1, 1))
    p_one = tl.reshape(tl.arange(0, 8) ^ zero, (1, 8, 1, 1, 1))
    q = tl.reshape(tl.arange(0, Q // 8), (1, 1, Q // 8, 1, 1))
    q_one = tl.reshape(tl.arange(0, 4), (1, 1, 1, 4, 1)) * 2 + tl.reshape(tl.arange(0, 2), (1, 1, 1, 1, 2))
    row, row_one = coordinate(ROW, p, p_one, q, q_one, BLOCK)
    col, col_one = coordinate(COL, p, p_one, q, q_one, BLOCK)
    ROWS: tl.constexpr = x.shape[0] // 8
    COLS: tl.constexpr = x.shape[1] // 8
    if not WHOLE:
        inside = (row >= 0) & (row < ROWS) & (col >= 0) & (col < COLS) & (p_one >= 0) & (q_one >= 0)
        row, col = row & (ROWS - 1), col & (COLS - 1)
    if BITS == 16:
        EIGHTS: tl.constexpr = COLS if COLS < 4 else 4
        index = ((row * 4 + (row_one >> 1)) * (COLS // EIGHTS) + col // EIGHTS) * 2 + (row_one & 1)
        index = index * (8 * EIGHTS) + col % EIGHTS * 8 + col_one
    else:
        index = (row * COLS + col) * 64 + (col_one & 1) * 32 + row_one * 4 + (col_one >> 1)
    picked = tl.gather(flatten(tl.reshape(x, (ROWS, 8, COLS, 4, 2)), BITS), flatten(index, BITS), 0)
    if not WHOLE:
        picked = tl.where(flatten(inside, BITS), picked, 0.0).to(x.dtype)
    if BITS == 16:
        W: tl.constexpr = Q if Q < 32 else 32
        picked = tl.permute(tl.reshape(picked, (P // 2, Q // W, 2, W)), (0, 2, 1, 3))
    else:
        picked = tl.permute(tl.reshape(picked, (P // 8, Q // 8, 2, 8, 4)), (0, 3, 1, 4, 2))
    return tl.reshape(picked, (P, Q))


@device_function
def load_rows(ptr, start, stride, N, BLOCK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load x[start : start + BLOCK], [BLOCK, BLOCK_D]; zero outside of [0, N) x [0, D)."""
    # start >> 31 is a zero that the compiler does not recognise.
    offs, offs_d = tl.arange(0, BLOCK) + (start >> 31), tl.arange(0, BLOCK_D)
    inside = (offs[:, None] < N - start) & (offs_d[None, :] < D)
    ptr += tl.cast(start, tl.int64) * stride
    return tl.load(ptr + offs[:, None] * stride + offs_d[None, :], mask=inside, other=0.0)


@device_function
def store_rows(ptr, x, rows, stride, N, D: tl.constexpr, BLOCK_D: tl.constexpr, WIDEN: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < N) & (offs_d[None, :] < D)
    tl.store(
        ptr + rows[:, None].to(tl.int64) * stride + offs_d[None, :], narrow(x, ptr.dtype.element_ty, WIDEN), mask=inside
    )


@device_function
def load_window(ptr, first, span, W: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load W rows, [W, BLOCK_D], of a table with one row for each offset, starting with the row for the offset `first`."""
    offs_d = tl.arange(0, BLOCK_D)
    # The padding covers the offsets of near tiles; clamping keeps all other reads inside of the table.
    first = tl.minimum(tl.maximum(first + span + PAD, 0), 2 * span + 1 + 2 * PAD - W)
    # Rows have two parts. The second is constant for each register, so that all registers of a lane use one pointer.
    row = tl.arange(0, W)[:, None]
    ptr += first * D + (row & 15) * D + offs_d[None, :]
    return tl.load(ptr + (row & -16) * D, mask=offs_d[None, :] < D, other=0.0)


@device_function
def dropout_keep(seed_ptr, bh, m0, n0, p, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return a dropout mask, True = kept, [BLOCK_M, BLOCK_N]; it depends only on (seed, b·H + h, row, column).

    One Philox call draws four numbers: for the rows r and r + 8 and the columns c and c + 8, which are held by one thread.
    """
    row = m0 // 2 + tl.arange(0, BLOCK_M // 2)[:, None]
    col = n0 // 2 + tl.arange(0, BLOCK_N // 2)[None, :]
    zero = (row + col) * 0
    # Without `unknown_zero`, the Philox keys of all rounds would be computed once and kept in registers.
    seed = tl.load(seed_ptr) ^ unknown_zero(m0 + n0)
    w, x, y, z = tl.philox(seed, zero + col, zero + row, zero + bh, zero, 7)
    bits = tl.reshape(tl.join(tl.join(w, x), tl.join(y, z)), (BLOCK_M // 16, 8, BLOCK_N // 16, 8, 2, 2))
    bits = tl.reshape(tl.permute(bits, (0, 4, 1, 2, 5, 3)), (BLOCK_M, BLOCK_N))
    return bits >= tl.cast(p * 4294967296.0, tl.uint32)


@device_function
def near_range(start, lo, hi, max_distance, BLOCK: tl.constexpr, STEP: tl.constexpr, FAR: tl.constexpr):
    """Return the part of [lo, hi) whose tiles of width STEP are near tiles for the block [start, start + BLOCK)."""
    first, last = lo, hi
    if FAR:
        first = tl.minimum(tl.maximum(tl.maximum(start - max_distance + 1, 0) // STEP * STEP, lo), hi)
        last = tl.minimum(tl.maximum((start + BLOCK - 1 + max_distance + STEP - 1) // STEP * STEP, first), hi)
    return first, last


@device_function
def visible_range(document_ptr, start, N, BLOCK: tl.constexpr, STEP: tl.constexpr, PACKED: tl.constexpr):
    """Return the token range [lo, hi) to which tokens [start, start + BLOCK) may attend; lo is a multiple of STEP."""
    lo, hi = 0, N
    if PACKED:
        lo = tl.load(document_ptr + start) // STEP * STEP
        hi = tl.load(document_ptr + N + tl.minimum(start + BLOCK, N) - 1)
    return lo, hi


@device_function
def flagged_range(flags_ptr, stride, lo, hi, STEP: tl.constexpr):
    """Return the smallest range [first, last) in [lo, hi) that contains all set flags; first is a multiple of STEP."""
    first, last = hi, lo
    for start in tl.range(lo, hi, 1024):
        x = start + tl.arange(0, 1024)
        flags = tl.load(flags_ptr + x.to(tl.int64) * stride, mask=x < hi, other=0)
        first = tl.minimum(first, tl.min(tl.where(flags != 0, x, hi)))
        last = tl.maximum(last, tl.max(tl.where(flags != 0, x + 1, lo)))
    return first // STEP * STEP, last


@device_function
def any_flag(flags_ptr, start, stride, N, BLOCK: tl.constexpr):
    """Return True if any flag in [start, start + BLOCK) is set."""
    x = start + tl.arange(0, BLOCK)
    return tl.max(tl.load(flags_ptr + x.to(tl.int64) * stride, mask=x < N, other=0).to(tl.int32)) != 0


@device_function
def key_logits(ends_ptr, mask_ptr, cols, N, stride_mn, FAR: tl.constexpr, MASK: tl.constexpr):
    """Return the number to add to all logits of each key: p2c in far tiles, and -inf if no query may attend to the key."""
    if FAR:
        key = tl.load(ends_ptr + cols, mask=cols < N, other=float("-inf"))
    else:
        key = tl.where(cols < N, 0.0, float("-inf"))
    if MASK == 1:
        allowed = tl.load(mask_ptr + cols.to(tl.int64) * stride_mn, mask=cols < N, other=0)
        key = tl.where(allowed != 0, key, float("-inf"))
    return key


@device_function
def mask_tile(
    s, mask_ptr, document_ptr, rows, cols, N, stride_mq, stride_mn,
    MASK: tl.constexpr, PACKED: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """Set the logits of masked pairs in a tile to -inf. If TURNED, the tile is [keys, queries], else [queries, keys]."""
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


@device_function
def near_scores(
    q, k, kx_ptr, qx_ptr, bias_ptr, m0, n0, span,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the logits A of the near tile [BLOCK queries, BLOCK keys] that begins at query m0 and key n0."""
    a, b = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    window = m0 - n0 - (BLOCK - 1)
    s = dot(q, tl.trans(k), WIDEN)
    if C2P:
        kx = load_window(kx_ptr, window, span, 2 * BLOCK, D, BLOCK_D)
        s += pick(dot(q, tl.trans(kx), WIDEN), "p", "p - q", BLOCK, BLOCK, BLOCK, n0, WHOLE=True)
    if P2C:
        qx = load_window(qx_ptr, window, span, 2 * BLOCK, D, BLOCK_D)
        if BLOCK_D > 64:
            # As left factor, the window would be two wgmma tiles, and their shared-memory descriptors would spill.
            s += pick(dot(k, tl.trans(qx), WIDEN), "q", "p - q", BLOCK, BLOCK, BLOCK, n0 + 1, WHOLE=True)
        else:
            s += pick(dot(qx, tl.trans(k), WIDEN), "p - q", "q", BLOCK, BLOCK, BLOCK, n0 + 1, WHOLE=True)
    if P2P:
        s += tl.load(bias_ptr + tl.minimum(tl.maximum(m0 - n0 + a - b, -span), span) + span)
    return s


@device_function
def near_scores_turned(
    q, k, kx_ptr, qx_ptr, bias_ptr, m0, n0, span,
    C2P: tl.constexpr, P2C: tl.constexpr, P2P: tl.constexpr, WIDEN: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the same logits as `near_scores`, transposed to [keys, queries]."""
    a, b = tl.arange(0, BLOCK)[None, :], tl.arange(0, BLOCK)[:, None]
    window = m0 - n0 - (BLOCK - 1)
    s = dot(k, tl.trans(q), WIDEN)
    if C2P:
        kx = load_window(kx_ptr, window, span, 2 * BLOCK, D, BLOCK_D)
        s += pick(dot(kx, tl.trans(q), WIDEN), "q - p", "q", BLOCK, BLOCK, BLOCK, m0, WHOLE=True)
    if P2C:
        qx = load_window(qx_ptr, window, span, 2 * BLOCK, D, BLOCK_D)
        s += pick(dot(k, tl.trans(qx), WIDEN), "p", "q - p", BLOCK, BLOCK, BLOCK, m0 + 1, WHOLE=True)
    if P2P:
        s += tl.load(bias_ptr + tl.minimum(tl.maximum(m0 - n0 + a - b, -span), span) + span)
    return s


@kernel
def dropout_mask_kernel(seed_ptr, keep_ptr, N, p, BLOCK: tl.constexpr):
    blocks = tl.cdiv(N, BLOCK)
    m0, n0, bh = tl.program_id(0) // blocks * BLOCK, tl.program_id(0) % blocks * BLOCK, tl.program_id(1)
    rows, cols = m0 + tl.arange(0, BLOCK), n0 + tl.arange(0, BLOCK)
    keep = dropout_keep(seed_ptr, bh, m0, n0, p, BLOCK, BLOCK)
    place = keep_ptr + bh.to(tl.int64) * N * N + rows[:, None].to(tl.int64) * N + cols[None, :]
    tl.store(place, keep.to(tl.uint8), mask=(rows[:, None] < N) & (cols[None, :] < N))

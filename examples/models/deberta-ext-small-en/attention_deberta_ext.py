# SPDX-License-Identifier: Apache-2.0
"""Disentangled attention (DeBERTa, He et al. 2021, section 3.1), in the order of the paper.

Contents: relative positions (Eq. 3); attention (Eq. 4) in the backends `eager`, `sdpa` and `blocked`, with equal outputs;
the table of backends; packed documents; the module `DisentangledSelfAttention`.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from .configuration_deberta_ext import installed_module


def is_traced() -> bool:
    """Return True while torch.compile, torch.export, TorchScript's tracer or a transform of torch.func (vmap, jvp, grad)
    runs. Code must not read tensor values then: it would fail, or the values would become constants."""
    # torch has no public function that detects torch.func transforms.
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()


def check_integers(name: str, x: torch.Tensor):
    """Raise a ValueError if the tensor does not have an integer dtype."""
    if x.is_floating_point() or x.is_complex():
        raise ValueError(f"{name} must be integers, got {x.dtype}")


def has_known_values(x: torch.Tensor) -> bool:
    """Return True if the values of x can be read without a device sync: x is a plain CPU tensor and nothing is traced."""
    return type(x) in (torch.Tensor, nn.Parameter) and x.device.type == "cpu" and not is_traced()


def log_bucket(r: int, *, buckets: int, max_distance: int) -> int:
    """Return the official log bucket of the relative position r = i - j, in [-(buckets - 1), buckets - 1].

    With m = buckets / 2 and M = max_distance, r is clamped to [-(M - 1), M - 1]. The bucket is r if |r| <= m, else
    sign(r) · (ceil(ln(|r| / m) / ln((M - 1) / m) · (m - 1)) + m).
    transformers does not clamp: for r <= -M it reads row 0, which was never trained.
    """
    r = max(-(max_distance - 1), min(r, max_distance - 1))
    middle = buckets // 2
    if abs(r) <= middle:
        return r
    far = math.ceil(math.log(abs(r) / middle) / math.log((max_distance - 1) / middle) * (middle - 1)) + middle
    return int(math.copysign(far, r))


class RelativePosition(nn.Module):
    """Map from offsets i - j to rows of the relative table, for any length, in O(N) memory. Distances are clamped at
    M = `max_distance` and grouped into b = `buckets` log buckets (-1: no buckets, one row for each offset)."""

    def __init__(self, *, buckets: int, max_distance: int):
        super().__init__()
        self.buckets, self.max_distance = buckets, max_distance
        self.register_buffer("rows", self.compute_rows(), persistent=False)

    def compute_rows(self) -> torch.Tensor:
        """Return the row indices of the relative table for r = -M ... M - 1, [2M] int64."""
        M, b = self.max_distance, self.buckets
        if b < 0:
            return torch.arange(2 * M, dtype=torch.int64)
        # Buckets are symmetric in r, so only r >= 0 is computed.
        far = torch.tensor([log_bucket(r, buckets=b, max_distance=M) for r in range(M)], dtype=torch.int64)
        return torch.cat([-far[-1:], -far[1:].flip(0), far]) + b

    def row(self, r: int) -> int:
        """Return the row index of the relative table for r = i - j, an `int`."""
        M, b = self.max_distance, self.buckets
        if b > 0:
            return log_bucket(r, buckets=b, max_distance=M) + b
        return max(-M, min(r, M - 1)) + M

    def forward(self, length: int) -> torch.Tensor:
        """Return delta, [2N - 1] int64 for N = `length`: delta[i - j + N - 1] is the table row, in [0, R), for i and j."""
        r = torch.arange(1 - length, length, device=self.rows.device)
        return self.rows[r.clamp(-self.max_distance, self.max_distance - 1) + self.max_distance]


class AttentionInputs(NamedTuple):
    """Inputs of disentangled attention, DeBERTa (He et al. 2021) Eq. (4).

    A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_r[delta(i, j)] + K_c[j]·Q_r[delta(i, j)],  out = softmax(scale · A) V_c.
    The paper writes delta(j, i) in the third term; all released code and weights use delta(i, j). The term p2p, which no
    released model uses, is Q_r[delta(i, j)]·K_r[delta(j, i)], a bias for each head that depends only on i - j.

    Attributes:
        Q_c (`torch.Tensor`): content queries, [B, H, Q, d].
        K_c, V_c (`torch.Tensor`): content keys and values, [B, H, N, d].
        scale (`float`): 1 / sqrt(s·d), s = 1 + number of position terms; applied before the products, so that half
            precision does not overflow.
        K_r, Q_r (`torch.Tensor`, *optional*): projections of the relative table P, [H, R, d]. c2p needs K_r, p2c needs Q_r,
            p2p needs both.
        delta (`torch.LongTensor`, *optional*): [2L - 1] offset table, delta(i, j) = delta[i - j + L - 1], in [0, R),
            non-decreasing. L is at least N or, with `cu_seqlens`, the number of tokens of the longest document.
        terms (`tuple[str, ...]`): the position terms to add: c2p, p2c, p2p.
        mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, Q, N]; True = may attend. A row with no True gives
            zeros, as in the official code (transformers' models give the mean of V_c).
        query_positions (`torch.LongTensor`, *optional*): [B, Q] position i of each query; None: query q is at q, Q = N.
        dropout_p (`float`): dropout rate of the attention probabilities.
        max_distance (`int`, *optional*): M, if delta is constant for i - j >= M and for i - j <= -M; None: unknown.
        cu_seqlens (`torch.IntTensor`, *optional*): [D + 1], cumulative document lengths from 0 to N, for B = 1: document n
            holds the tokens cu_seqlens[n] ... cu_seqlens[n + 1] - 1, and documents do not attend to each other. Only for
            backends with `takes_cu_seqlens`.
    """

    Q_c: torch.Tensor
    K_c: torch.Tensor
    V_c: torch.Tensor
    scale: float
    K_r: torch.Tensor | None = None
    Q_r: torch.Tensor | None = None
    delta: torch.Tensor | None = None
    terms: tuple[str, ...] = ()
    mask: torch.Tensor | None = None
    query_positions: torch.Tensor | None = None
    dropout_p: float = 0.0
    max_distance: int | None = None
    cu_seqlens: torch.Tensor | None = None

    def position_scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return the sum of the position terms, [B, H, Q, N], for q = Q_c · scale and k = K_c, in the dtype of q and k."""
        wide, shape = q.dtype, (*q.shape[:3], k.shape[2])
        keys = torch.arange(k.shape[2], device=q.device)
        queries = keys
        if self.query_positions is not None:
            queries = self.query_positions[:, None]
        offset = queries.unsqueeze(-1) - keys + self.delta.shape[0] // 2  # [N, N] or [B, 1, Q, N]
        row = self.delta[offset].expand(shape)
        scores = q.new_zeros(())
        if "c2p" in self.terms:
            scores = scores + (q @ self.K_r.to(wide).mT).gather(-1, row)
        if "p2c" in self.terms:
            scores = scores + (k @ (self.Q_r.to(wide) * self.scale).mT).gather(-1, row.mT).mT
        if "p2p" in self.terms:
            p2p = (self.Q_r.to(wide)[:, self.delta] * self.K_r.to(wide)[:, self.delta.flip(0)]).sum(-1) * self.scale
            scores = scores + p2p.expand(shape[0], -1, -1).gather(-1, offset.expand(shape).flatten(2)).view(shape)
        return scores


def without_autocast(device: torch.device):
    """Return a context that disables autocast for `device` (the "meta" device has no autocast)."""
    if device.type == "meta":
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def disentangled_attention_eager(inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute disentangled attention exactly as Eq. (4) is written; the reference for all other backends.

    Returns out [B, H, Q, d] in the dtype of Q_c and the probabilities [B, H, Q, N] after dropout. Logits and softmax are
    computed in float32 (in float64 if Q_c is float64), also under autocast.
    """
    dtype, mask = inputs.Q_c.dtype, inputs.mask
    wide = torch.promote_types(dtype, torch.float32)
    with without_autocast(inputs.Q_c.device):
        q, k = inputs.Q_c.to(wide) * inputs.scale, inputs.K_c.to(wide)
        A = q @ k.mT  # [B, H, Q, N]
        if inputs.terms:
            A = A + inputs.position_scores(q, k)
        if mask is not None:
            A = A.masked_fill(~mask, torch.finfo(wide).min)
        probs = A.softmax(-1)
        if mask is not None:
            probs = probs.masked_fill(~mask, 0.0)
        if inputs.dropout_p > 0:
            probs = torch.nn.functional.dropout(probs, inputs.dropout_p)
        probs = probs.to(dtype)
        return probs @ inputs.V_c.to(dtype), probs


def disentangled_attention_sdpa(inputs: AttentionInputs) -> torch.Tensor:
    """Compute disentangled attention with torch's SDPA; return out [B, H, Q, d] in the dtype of Q_c.

    The float32 bias [B, H, Q, N] is gathered once. torch.compile fuses the gathers into one pass without index tensors,
    which makes this the fastest backend on CPU under torch.compile.
    """
    dtype, mask, bias = inputs.Q_c.dtype, inputs.mask, None
    wide = torch.promote_types(dtype, torch.float32)
    with without_autocast(inputs.Q_c.device):
        q, k, v = inputs.Q_c.to(wide) * inputs.scale, inputs.K_c.to(wide), inputs.V_c.to(wide)
        if inputs.terms:
            bias = inputs.position_scores(q, k)
        elif mask is not None:
            bias = q.new_zeros(())
        if mask is not None:
            bias = bias.where(mask, torch.finfo(wide).min)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=inputs.dropout_p, scale=1.0)
        if mask is not None:
            # Without this, a fully masked row would be the mean of all values.
            out = out * mask.any(-1, keepdim=True)
        return out.to(dtype)


# Sizes of the blocked backend, tuned on CPUs. A sequence of up to SHORT tokens is one tile; heads and sequences are grouped
# into chunks of up to CHUNK scores. Longer sequences run head by head, with C2P_ROWS queries per product with the table K_x.
SHORT, CHUNK, C2P_ROWS = 128, 2**19, 64
# Number of float32 values in a cache line.
LINE = 16


def blocked_unavailable(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return a reason if the call is traced (`is_traced`), else None: any device, dtype and head size is supported."""
    return "it cannot run under torch.compile, torch.export, tracing or transforms of torch.func" if is_traced() else None


def disentangled_attention_blocked(inputs: AttentionInputs) -> torch.Tensor:
    """Compute disentangled attention, DeBERTa Eq. (4), without gathers and without a [B, H, N, N] tensor, on any device.

    The algorithm relies on two facts: delta(i, j) depends only on i - j, and it is constant beyond `max_distance`.

    * Relative shift. One matrix product for a block of queries, C[i, t] = Q_c[i]·(row of K_r for the offset t), contains
      c2p: it is the strided view C[i, i - j]. p2c is the same with queries and keys exchanged. Keys are counted from the
      end, j' = N - 1 - j, so that i - j = i + j' - (N - 1) rises with i and with j', and every view has positive strides.
    * Saturation. Where all |i - j| of a block exceed `max_distance`, c2p is one number per query and p2c one per key.

    A block of queries sees all keys, so its softmax needs no rescaling. The backward pass recomputes the probabilities.

    Args:
        inputs (`AttentionInputs`): inputs without `query_positions`, which this backend does not support.

    Returns:
        out [B, H, N, d] in the dtype of Q_c; computed in float32 (in float64 if Q_c is float64), also under autocast.
    """
    Q_c, K_c, V_c, scale, K_r, Q_r, delta, terms, mask, _, dropout_p, max_distance, _ = inputs
    wide = torch.promote_types(Q_c.dtype, torch.float32)
    if dropout_p > 1 - 2**-16:
        # Drop everything: 1 / (1 - p) is infinite for p = 1, and the threshold in `dropout_mask` would not fit 16 bits.
        V_c, dropout_p = V_c * 0, 0.0
    N = K_c.shape[2]
    if max_distance is None or max_distance > N:
        max_distance = N
    with without_autocast(Q_c.device):
        K_x = Q_x = bias_x = None
        if terms:
            # The expanded tables are [H, 2W + 1, d], for i - j = -W ... W. W exceeds max_distance by a block and a tile.
            W = min(max_distance + _rows(N), N) + _tile(N) + 2 * LINE
            middle = delta.shape[0] // 2
            rows = delta[torch.arange(-W, W + 1, device=delta.device).clamp(-middle, middle) + middle]
        if "c2p" in terms:
            K_x = K_r.to(wide).index_select(1, rows)
        if "p2c" in terms:
            Q_x = (Q_r.to(wide) * scale).index_select(1, rows)
        if "p2p" in terms:
            bias_x = (Q_r.to(wide)[:, rows] * K_r.to(wide)[:, rows.flip(0)]).sum(-1) * scale
        # [H, B, ...], contiguous, with reversed and padded keys, so that every chunk below is a view.
        width = _round_up(N, _tile(N))
        if N % 256 == 0:
            # Rows of scores at a power-of-two distance would compete for the same cache lines.
            width += LINE
        padding = (0, 0, 0, width - N)
        q = (Q_c.transpose(0, 1).to(wide) * scale).contiguous()
        k, v = (functional.pad(x.transpose(0, 1).to(wide).flip(2), padding).contiguous() for x in (K_c, V_c))
        if mask is not None:
            mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
        out = _BlockedAttention.apply(q, k, v, K_x, Q_x, bias_x, mask, max_distance, dropout_p)
        return out.transpose(0, 1).to(Q_c.dtype)


class _BlockedAttention(torch.autograd.Function):
    """Autograd function of `disentangled_attention_blocked`: out = softmax(q k^T + positions) v, [H, B, N, d]. q is
    [H, B, N, d]; k and v are reversed, [H, B, N + padding, d]. q, Q_x and bias_x are already scaled."""

    @staticmethod
    def forward(ctx, q, k, v, K_x, Q_x, bias_x, mask, max_distance, dropout_p):
        seed = int(torch.randint(2**62, ())) if dropout_p > 0 else 0
        ctx.save_for_backward(q, k, v, K_x, Q_x, bias_x, mask)
        ctx.options = max_distance, dropout_p, seed
        out = torch.empty_like(q)
        for chunk in _chunks(q, k, v, K_x, Q_x, bias_x, mask, *ctx.options):
            chunk.forward(out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        tensors, d_out = ctx.saved_tensors, d_out.contiguous()
        grads = [None if x is None else torch.zeros_like(x) for x in tensors[:-1]]
        with torch.autocast(d_out.device.type, enabled=False):
            for chunk in _chunks(*tensors, *ctx.options):
                chunk.backward(d_out, *grads)
        return *grads, None, None, None


def _blocks(length: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, length, size):
        yield first, min(first + size, length)


def _chunks(q, k, v, K_x, Q_x, bias_x, mask, max_distance, dropout_p, seed) -> "Iterator[_Chunk]":
    """Yield groups of heads and sequences so small that the scores of one block of queries stay in the cache."""
    H, B, N, _ = q.shape
    blocked = dead = None
    if mask is not None:
        blocked = (~mask).expand(B, -1, -1, N).flip(-1).transpose(0, 1)  # [1 or H, B, 1 or N, N]
        dead = blocked.all(-1)
        if dead.device.type == "cpu" and not dead.any():
            dead = None
    generator = torch.Generator(q.device) if dropout_p > 0 else None
    heads = batch = 1
    if N <= SHORT:
        # At most 2 MiB of scores. Only a chunk of all sequences may have several heads, because chunks must be contiguous.
        batch = max(1, min(B, CHUNK // N**2))
        heads = max(1, min(H, CHUNK // (N**2 * B)))
    scratch = _Scratch(q)
    for b0, b1 in _blocks(B, batch):
        for h0, h1 in _blocks(H, heads):
            if generator is not None:
                generator.manual_seed(seed + b0 * H + h0)
            place = slice(h0, h1), slice(b0, b1)
            yield _Chunk(place, q, k, v, K_x, Q_x, bias_x, blocked, dead, max_distance, dropout_p, generator, scratch)


class _Scratch:
    """Named buffers that are reused: on a CPU, allocating memory costs more than the arithmetic."""

    def __init__(self, like: torch.Tensor):
        self.like, self.buffers = like, {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = self.like.new_empty(size, dtype=dtype)
        return self.buffers[name][:size].view(shape)


def _rows(N: int) -> int:
    """Return the number of queries in a block. A smaller block, for long inputs, has fewer keys within `max_distance`."""
    return 512 if N <= 1024 else 256


def _tile(N: int) -> int:
    """Return the number of keys in a tile. One product multiplies all keys of a tile with the table Q_x."""
    if N <= SHORT:
        return _round_up(N, LINE)
    return 64 if N <= 1024 else 32


def _shear(x: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the view y[:, r, c] = x[:, r, r + c] of contiguous x [G, rows, width], width >= rows - 1 + columns."""
    G, rows, width = x.shape
    return x.as_strided((G, rows, columns), (rows * width, width + 1, 1), x.storage_offset())


def _round_up(x: int, multiple: int) -> int:
    return math.ceil(x / multiple) * multiple


class _Chunk:
    """Group of G = heads · batch attention matrices, computed together. Unless G = 1, each sequence is one tile."""

    def __init__(self, place, q, k, v, K_x, Q_x, bias_x, blocked, dead, max_distance, dropout_p, generator, scratch):
        self.place, self.generator, self.scratch = place, generator, scratch
        self.max_distance, self.dropout_p = max_distance, dropout_p
        self.q, self.k, self.v = (self.part(x).flatten(0, 1) for x in (q, k, v))  # [G, ..., d]
        self.N, self.width = self.q.shape[1], self.k.shape[1]
        self.keys = _tile(self.N)
        self.heads, self.batch = self.part(q).shape[:2]
        self.K_x, self.Q_x, self.bias_x = map(self.of_heads, (K_x, Q_x, bias_x))
        self.blocked, self.dead = (x if x is None else self.part(x) for x in (blocked, dead))
        # For long sequences, transposing by a product with the identity matrix is faster than a strided addition.
        self.identity = torch.eye(self.keys, dtype=q.dtype, device=q.device) if self.N > SHORT else None

    def of_heads(self, table: torch.Tensor | None) -> torch.Tensor | None:
        """Return the view of a table [H, ...] for the heads of this chunk."""
        return None if table is None else table[self.place[0]]

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """Return the view [heads, batch, ...] of x [1 or H, B, ...]."""
        heads, batch = self.place
        return x[:, batch] if x.shape[0] == 1 else x[heads, batch]

    def near(self, i0: int, i1: int) -> tuple[int, int]:
        """Return the range [a, z) of keys, in whole tiles, outside of which delta is constant for queries [i0, i1)."""
        a = max(0, self.N - i1 - self.max_distance + 1) // self.keys * self.keys
        return a, _round_up(min(self.N, self.N - 1 - i0 + self.max_distance), self.keys)

    def saturated(self, a: int, z: int) -> Iterator[tuple[slice, slice]]:
        """Yield the range of keys before [a, z) and the range after it, with the table row that delta selects for each."""
        if a > 0:
            yield slice(0, a), slice(0, 1)
        if z < self.N:
            yield slice(z, self.N), slice(-1, None)

    def tiles(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        """Reshape [G, n, d] -> [heads · tiles, batch · rows, d] for the products with the tables."""
        return x.reshape(self.heads * (x.shape[1] // rows), self.batch * rows, -1)

    def windows(self, table: torch.Tensor, first: int, tiles: int, rows: int, columns: int) -> torch.Tensor:
        """Return a view [heads · tiles, width, ...] of a table [heads, 2W + 1, ...]: the rows that each tile reads. The
        first tile begins with the row for i + j' = `first`, where j' = N - 1 - j."""
        start = table.shape[1] // 2 - (self.N - 1) + first
        width = _round_up(rows + columns - 1, LINE)
        windows = table[:, start : start + (tiles - 1) * rows + width].unfold(1, width, rows)
        if table.dim() > 2:
            windows = windows.movedim(-1, 2)
        return windows.flatten(0, 1)

    def c2p_rows(self, n: int) -> int:
        return n if self.N <= SHORT or n % C2P_ROWS != 0 else C2P_ROWS

    def c2p(self, i0: int, i1: int, a: int, z: int) -> torch.Tensor:
        """Return q_i · K_x[t] + bias_x[t] for all offsets t, [G · tiles, rows, width]; `_shear` then selects t = i + j'."""
        rows = self.c2p_rows(i1 - i0)
        tiles = (i1 - i0) // rows
        window = i0 + a, tiles, rows, z - a
        if self.K_x is None:
            bias = self.windows(self.bias_x, *window)[:, None]
            C = bias.expand(-1, self.batch * rows, -1).contiguous()
        else:
            K_x = self.windows(self.K_x, *window)
            q = self.tiles(self.q[:, i0:i1], rows)
            C = torch.bmm(q, K_x.mT, out=self.scratch("C", *q.shape[:2], K_x.shape[1]))
            if self.bias_x is not None:
                C.add_(self.windows(self.bias_x, *window)[:, None])
        return C.view(-1, rows, C.shape[-1])

    def c2p_saturated(self, i0: int, i1: int, end: slice) -> torch.Tensor:
        """Return the `c2p` score of each query for keys beyond `max_distance`, [G, n, 1], from the table row `end`."""
        q = self.tiles(self.q[:, i0:i1], i1 - i0)
        c2p = q.new_zeros(*q.shape[:2], 1) if self.K_x is None else q @ self.K_x[:, end].mT
        if self.bias_x is not None:
            c2p = c2p + self.bias_x[:, None, end]
        return c2p.view(-1, i1 - i0, 1)

    def probabilities(self, i0: int, i1: int) -> torch.Tensor:
        """Return the softmax of the scores of queries [i0, i1), [G, n, width], in a scratch buffer."""
        n, N = i1 - i0, self.N
        a, z = self.near(i0, i1)
        G, d = len(self.q), self.q.shape[-1]
        A = torch.bmm(self.q[:, i0:i1], self.k.mT, out=self.scratch("A", G, n, self.width))
        if self.K_x is not None or self.bias_x is not None:
            rows = self.c2p_rows(n)
            A.view(-1, rows, self.width)[..., a:z].add_(_shear(self.c2p(i0, i1, a, z), z - a))
            for keys, end in self.saturated(a, z):
                A[..., keys].add_(self.c2p_saturated(i0, i1, end))
        if self.Q_x is not None:
            tiles = (z - a) // self.keys
            Q_x = self.windows(self.Q_x, i0 + a, tiles, self.keys, n)
            k = self.tiles(self.k[:, a:z], self.keys)
            P = torch.bmm(k, Q_x.mT, out=self.scratch("P", *k.shape[:2], Q_x.shape[1]))
            p2c = _shear(P.view(G * tiles, self.keys, -1), n).mT  # [G · tiles, n, keys]
            if self.identity is not None:
                p2c = torch.bmm(p2c, self.identity.expand(tiles, -1, -1), out=self.scratch("p2c", *p2c.shape))
            A[..., a:z].unflatten(-1, (tiles, -1)).add_(p2c.view(G, tiles, n, -1).transpose(1, 2))
            for keys, end in self.saturated(a, z):
                k = self.k[:, keys].reshape(self.heads, -1, d)
                A[..., keys].add_((k @ self.Q_x[:, end].mT).view(G, 1, -1))
        scores = A.view(self.heads, self.batch, n, -1)
        if self.blocked is not None:
            blocked = self.of_queries(self.blocked, i0, i1)
            scores[..., :N].masked_fill_(blocked, torch.finfo(A.dtype).min)
        scores[..., N:] = -torch.inf
        torch.softmax(A, -1, out=A)
        if self.dead is not None:
            scores.masked_fill_(self.of_queries(self.dead, i0, i1)[..., None], 0.0)
        return A

    def of_queries(self, mask: torch.Tensor, i0: int, i1: int) -> torch.Tensor:
        """Return the view of a mask [heads, batch, 1 or N, ...] for queries [i0, i1)."""
        return mask if mask.shape[2] == 1 else mask[:, :, i0:i1]

    def dropout_mask(self, P: torch.Tensor) -> torch.Tensor | None:
        """Return 0 (dropped) or 1 for each probability P of the next block; None if the dropout rate is 0.

        Drawing 16 bits per probability (as int64) is faster than bernoulli_. The threshold is p · 2^16, randomly
        rounded up or down so that each probability is dropped with probability exactly p.
        """
        if self.dropout_p == 0:
            return None
        words = self.scratch("bits", math.ceil(P.numel() / 4), dtype=torch.int64)
        bits = words.random_(-(2**63), None, generator=self.generator).view(torch.int16)[: P.numel()]
        threshold = self.dropout_p * 2**16 - 2**15
        # float32, because not every device has float64.
        draw = torch.rand((), dtype=torch.float32, generator=self.generator, device=P.device)
        threshold = (draw < threshold % 1).to(torch.int16) + math.floor(threshold)
        return torch.ge(bits, threshold, out=self.scratch("mask", P.numel())).view(P.shape)

    def forward(self, out: torch.Tensor):
        """Write this chunk's part of out [H, B, N, d]."""
        out = self.part(out).flatten(0, 1)
        for i0, i1 in _blocks(self.N, _rows(self.N)):
            P = self.probabilities(i0, i1)
            mask = self.dropout_mask(P)
            if mask is not None:
                P.mul_(mask)
            o = torch.bmm(P, self.v, out=out[:, i0:i1])
            if mask is not None:
                o.mul_(1 / (1 - self.dropout_p))

    def backward(self, d_out, d_q, d_k, d_v, d_K_x, d_Q_x, d_bias_x):
        """Add this chunk's gradients to the full gradient tensors, which have the shapes of their inputs."""
        d_out, dq, dk, dv = (self.part(x).flatten(0, 1) for x in (d_out, d_q, d_k, d_v))
        d_K_x, d_Q_x, d_bias_x = map(self.of_heads, (d_K_x, d_Q_x, d_bias_x))
        for i0, i1 in _blocks(self.N, _rows(self.N)):
            P, d_o = self.probabilities(i0, i1), d_out[:, i0:i1]
            mask = self.dropout_mask(P)
            if mask is None:
                dv.baddbmm_(P.mT, d_o)
                dA = torch.bmm(d_o, self.v.mT, out=self.scratch("dA", *P.shape))
            else:
                d_o = d_o * (1 / (1 - self.dropout_p))
                dA = torch.bmm(d_o, self.v.mT, out=self.scratch("dA", *P.shape)).mul_(mask)
                dv.baddbmm_(mask.mul_(P).mT, d_o)
            # No public operation is fused and works in place.
            torch.ops.aten._softmax_backward_data(dA, P, -1, P.dtype, grad_input=dA)
            torch.bmm(dA, self.k, out=dq[:, i0:i1])
            dk.baddbmm_(dA.mT, self.q[:, i0:i1])
            if self.K_x is not None or self.bias_x is not None:
                self.c2p_backward(dA, i0, i1, dq, d_K_x, d_bias_x)
            if self.Q_x is not None:
                self.p2c_backward(dA, i0, i1, dk, d_Q_x)

    def unshear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Apply the transpose of `_shear`: x [G, rows, columns] -> [G, rows, width], zero outside of x."""
        G, rows, columns = x.shape
        D = self.scratch(name, G, rows, _round_up(rows + columns - 1, LINE)).zero_()
        _shear(D, columns).copy_(x)
        return D

    def add_windows(self, total: torch.Tensor, grads: torch.Tensor, first: int, rows: int):
        """Add gradients of `windows`, [heads · tiles, width, ...], to the table's gradient, `total` [heads, 2W + 1, ...]."""
        start = total.shape[1] // 2 - (self.N - 1) + first
        for tile, grad in enumerate(grads.unflatten(0, (self.heads, -1)).unbind(1)):
            total[:, start + tile * rows :][:, : grad.shape[1]].add_(grad)

    def c2p_backward(self, dA, i0, i1, dq, d_K_x, d_bias_x):
        n = i1 - i0
        a, z = self.near(i0, i1)
        rows = self.c2p_rows(n)
        tiles = n // rows
        dC = self.unshear(dA.view(-1, rows, self.width)[..., a:z], "C").view(self.heads * tiles, self.batch * rows, -1)
        if d_K_x is not None:
            K_x = self.windows(self.K_x, i0 + a, tiles, rows, z - a)
            dq[:, i0:i1].add_((dC @ K_x).view(-1, n, dq.shape[-1]))
            self.add_windows(d_K_x, dC.mT @ self.tiles(self.q[:, i0:i1], rows), i0 + a, rows)
        if d_bias_x is not None:
            self.add_windows(d_bias_x, dC.sum(1), i0 + a, rows)
        for keys, end in self.saturated(a, z):
            dC = dA[..., keys].sum(-1).view(self.heads, -1, 1)
            if d_K_x is not None:
                dq[:, i0:i1].add_((dC @ self.K_x[:, end]).view(-1, n, dq.shape[-1]))
                d_K_x[:, end].add_(dC.mT @ self.tiles(self.q[:, i0:i1], n))
            if d_bias_x is not None:
                d_bias_x[:, end].add_(dC.sum(1))

    def p2c_backward(self, dA, i0, i1, dk, d_Q_x):
        n, (G, _, d) = i1 - i0, dk.shape
        a, z = self.near(i0, i1)
        tiles = (z - a) // self.keys
        x = dA[..., a:z].unflatten(-1, (tiles, -1)).permute(0, 2, 3, 1).flatten(0, 1)  # [G · tiles, keys, n]
        if self.identity is not None:
            x = torch.bmm(self.identity.expand(tiles, -1, -1), x, out=self.scratch("p2c", *x.shape))
        dP = self.unshear(x, "P").view(self.heads * tiles, self.batch * self.keys, -1)
        Q_x = self.windows(self.Q_x, i0 + a, tiles, self.keys, n)
        dk[:, a:z].add_((dP @ Q_x).view(G, z - a, d))
        self.add_windows(d_Q_x, dP.mT @ self.tiles(self.k[:, a:z], self.keys), i0 + a, self.keys)
        for keys, end in self.saturated(a, z):
            dP = dA[..., keys].sum(1).view(self.heads, -1, 1)
            dk[:, keys].add_((dP @ self.Q_x[:, end]).view(G, -1, d))
            d_Q_x[:, end].add_(dP.mT @ self.k[:, keys].reshape(self.heads, -1, d))


# Backends without `takes_query_positions` compute all N queries. Below this ratio of queries to keys, "eager" is faster,
# because its gathers only cover the given queries.
FEW_QUERIES = 0.3


class Backend(NamedTuple):
    """One implementation of disentangled attention.

    Attributes:
        function (`Callable`): takes `AttentionInputs` and returns out [B, H, Q, d], or (out, probabilities).
        description (`str`): one line for the guide.
        unavailable (`Callable`, *optional*): takes device, dtype and head size; returns the reason why the backend does
            not support such tensors, or None. By default, the backend supports every call.
        best_on (`tuple[str, ...]`): device types on which the backend is chosen automatically.
        not_best_for (`tuple[torch.dtype, ...]`): dtypes for which it is not chosen automatically.
        returns_probs (`bool`): the function also returns the probabilities.
        takes_query_positions (`bool`): supports `query_positions`; otherwise all N queries are computed, and some discarded.
        takes_cu_seqlens (`bool`): supports `cu_seqlens`; otherwise documents are padded.
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
        """Return out [B, H, Q, d] and the probabilities, None if the backend does not return them."""
        result = self.function(inputs)
        return result if self.returns_probs else (result, None)


# If several backends are the best on a device, the last one is chosen.
BACKENDS = {
    "eager": Backend(
        disentangled_attention_eager,
        "the equation with gathers; the reference for all other backends, and the only one that returns probabilities",
        returns_probs=True,
        takes_query_positions=True,
    ),
    "sdpa": Backend(
        disentangled_attention_sdpa,
        "computes the position bias once, then calls torch's SDPA",
        best_on=("cuda",),
        takes_query_positions=True,
    ),
    "blocked": Backend(
        disentangled_attention_blocked,
        "pure PyTorch: blocks of queries, with position scores as strided views of matrix products, and one number per row "
        "for distances beyond the table; forward and backward store no [B, H, N, N] tensor; supports dropout",
        blocked_unavailable,
        best_on=("cpu",),
    ),
}
# If the package is installed, remote code also uses its kernels, and its cache of relative positions for inference on CPU.
# Otherwise, the same equations run in pure PyTorch.
kernels = installed_module("kernels")
PositionCache: type[nn.Module] = nn.Module
if kernels is not None:
    BACKENDS |= kernels.KERNELS
    PositionCache = kernels.PositionCache


def backend_unavailable(
    name: str, device: torch.device, dtype: torch.dtype, head_size: int, needs_probs: bool = False
) -> str | None:
    """Return the reason why a backend does not support a call; None if it does."""
    backend = BACKENDS[name]
    if needs_probs and not backend.returns_probs:
        return "it does not return attention probabilities"
    return None if backend.unavailable is None else backend.unavailable(device, dtype, head_size)


def check_backend(name: str):
    """Raise a ValueError for a name that is not in `BACKENDS`."""
    if name not in BACKENDS:
        names = ", ".join(map(repr, BACKENDS))
        raise ValueError(
            f"attn_implementation must be one of {names}, got {name!r}; omit it to choose the best backend for each call"
        )


def choose_backend(
    requested: str | None,
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    *,
    needs_probs: bool = False,
    query_share: float = 1.0,
    served: str = "this call",
) -> tuple[str, str]:
    """Return the name of the backend for a call, and the reason for the choice.

    Args:
        requested: None or "auto" chooses the best backend and never fails; a name in `BACKENDS` forces that backend.
        query_share: number of queries divided by number of keys; below 1 if `query_positions` selects the queries.
        served: words for the call or model in the error message "... does not support {served}".
    """
    if requested not in (None, "auto"):
        check_backend(requested)
        reason = backend_unavailable(requested, device, dtype, head_size, needs_probs)
        if reason is None:
            return requested, "requested"
        able = [name for name in BACKENDS if backend_unavailable(name, device, dtype, head_size, needs_probs) is None]
        raise ValueError(
            f"attn_implementation = {requested!r} does not support {served}: {reason}; use {', '.join(map(repr, able))}, or "
            "omit attn_implementation to choose the best backend for each call"
        )
    if needs_probs:
        return "eager", "attention probabilities were requested"
    compiling = torch.compiler.is_compiling()
    # torch 2.6 has no is_exporting.
    if compiling and getattr(torch.compiler, "is_exporting", lambda: False)():
        return "eager", "its operations exist in every export format"
    if not compiling and is_traced():
        return "eager", "under tracing or a transform of torch.func"
    if device.type == "meta":
        return "eager", "nothing is computed on meta"
    few = query_share < FEW_QUERIES
    for name, backend in reversed(BACKENDS.items()):
        serves = device.type in backend.best_on and dtype not in backend.not_best_for
        serves = serves and (backend.takes_query_positions or not few)
        if serves and backend_unavailable(name, device, dtype, head_size) is None:
            return name, f"best on {device.type}"
    if few:
        return "eager", "few queries"
    return "sdpa", "best under torch.compile on this device" if compiling else f"nothing was measured on {device.type}"


def attention_masks(
    attention_mask: torch.Tensor | None, shape: tuple[int, int], heads: int | None = None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the attention mask, broadcastable to [B, H, N, N], and the mask of real tokens [B, N]; both bool.
    On CPU, the attention mask is None if it would be True everywhere.

    `attention_mask` is int, float or bool: [B, N] (1 = token), or [B, N, N] or [B, 1 or H, N or 1, N] (1 = query i may
    attend to key j; a token is real if any query may attend to it). `heads` is H; None: any number.

    Raises:
        ValueError: the shape is wrong or, on CPU, a value is not 0 or 1 (an additive mask, or document numbers).
    """
    if attention_mask is None:
        return None, None
    B, N = shape
    sizes = list(attention_mask.shape)
    is_heads = len(sizes) == 4 and sizes[0] == B and sizes[1] in (1, heads or sizes[1]) and sizes[2:] in ([N, N], [1, N])
    if not (is_heads or sizes in ([B, N], [B, N, N])):
        raise ValueError(
            f"attention_mask must have shape [{B}, {N}], [{B}, {N}, {N}] or [{B}, 1 or heads, {N}, {N}] for input of shape "
            f"[{B}, {N}], got {sizes}"
        )
    mask = attention_mask != 0
    everything = has_known_values(mask) and bool(mask.all())
    if has_known_values(mask):
        wrong = mask & (attention_mask != 1)
        if bool(wrong.any()):
            raise ValueError(
                f"attention_mask must be 1 where attention is allowed and 0 elsewhere, got "
                f"{attention_mask[wrong][0].item()}; to separate several documents in a row, pass document_ids"
            )
    if mask.dim() == 2:
        return None if everything else mask[:, None, None], mask
    if mask.dim() == 3:
        mask = mask[:, None]
    return None if everything else mask, mask.any(-2).any(1)


class PackedSequences:
    """Packed (varlen) sequences: the documents of a batch of `shape` [B, N] as one stream of T tokens.

    Args:
        token_index (`torch.LongTensor`): [T] index of each token in the flattened batch.
        lengths (`list[int]`): number of tokens of each document, in the order of the stream.
    """

    def __init__(self, token_index: torch.Tensor, lengths: list[int], shape: tuple[int, int]):
        self.token_index, self.lengths, self.shape = token_index, lengths, shape
        counts = torch.tensor(lengths).to(token_index.device, non_blocking=True)
        ends = counts.cumsum(0)
        self.cu_seqlens = torch.cat([ends.new_zeros(1), ends]).int()
        # For each token, [T]: its document, the stream index of the document's first token, its position in the document.
        self.documents = torch.repeat_interleave(counts, output_size=len(token_index))
        self.first_token = (ends - counts)[self.documents]
        self.positions = torch.arange(len(token_index), device=token_index.device) - self.first_token

    @classmethod
    def from_lengths(cls, lengths: list[int], device: torch.device) -> "PackedSequences":
        """Pack documents of these `lengths` that fill one row without padding; this needs no device sync."""
        return cls(torch.arange(sum(lengths), device=device), lengths, (1, sum(lengths)))

    @classmethod
    def from_mask(cls, token_mask: torch.Tensor) -> "PackedSequences | None":
        """Pack each row of a mask [B, N] of real tokens as a document. Return None if a row has no token, or a gap between
        tokens: packing would close the gap, and so change the relative positions of the tokens on both sides."""
        lengths = token_mask.sum(1)
        starts = (token_mask[:, 1:] & ~token_mask[:, :-1]).sum(1) + token_mask[:, 0]
        if not bool((starts == 1).all()):
            return None
        return cls(token_mask.flatten().nonzero().squeeze(1), lengths.tolist(), tuple(token_mask.shape))

    @classmethod
    def from_document_ids(cls, document_ids: torch.Tensor) -> "PackedSequences":
        """Pack `document_ids` [B, N]: a run of equal positive ids in a row is a document; 0 is padding."""
        check_integers("document_ids", document_ids)
        if bool((document_ids < 0).any()):
            raise ValueError(f"document_ids must be 0 (padding) or positive, got {int(document_ids.min())}")
        token_index = (document_ids != 0).flatten().nonzero().squeeze(1)
        if not len(token_index):
            raise ValueError("document_ids must have a positive id, got only 0 (padding)")
        # Make equal ids of different rows distinct.
        rows = torch.arange(len(document_ids), device=document_ids.device)[:, None] * (int(document_ids.max()) + 1)
        runs, lengths = torch.unique_consecutive((document_ids + rows).flatten()[token_index], return_counts=True)
        starts = (document_ids[:, 1:] != document_ids[:, :-1]) & (document_ids[:, 1:] != 0)
        pieces = int(starts.sum() + (document_ids[:, 0] != 0).sum())
        if len(runs.unique()) != len(runs) or pieces != len(runs):
            raise ValueError("a document must be one run of equal document_ids; give each document of a row its own id")
        return cls(token_index, lengths.tolist(), tuple(document_ids.shape))

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """Select the tokens of x [1 or B, N, ...] as a stream [1, T, ...]."""
        x = x.expand(self.shape[0], *x.shape[1:])
        return x.flatten(0, 1).index_select(0, self.token_index)[None]

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """Scatter a stream [1, T, ...] to a batch [B, N, ...] with zeros at padding."""
        B, N = self.shape
        return x.new_zeros(B * N, *x.shape[2:]).index_copy(0, self.token_index, x[0]).view(B, N, *x.shape[2:])

    @functools.cached_property
    def rows(self) -> "tuple[PackedSequences, torch.Tensor | None]":
        """Packing of a batch [D, longest], one document per row, and its mask [D, 1, 1, longest] (None: equal lengths)."""
        shape = len(self.lengths), max(self.lengths)
        rows = PackedSequences(self.documents * shape[1] + self.positions, self.lengths, shape)
        mask = rows.pad(torch.ones_like(self.positions, dtype=torch.bool)[None])[:, None, None]
        return rows, None if min(self.lengths) == shape[1] else mask

    def attend(self, backend: Backend, inputs: AttentionInputs) -> torch.Tensor:
        """Compute attention within each document of a packed stream, [1, H, T, d]; `inputs` has no mask."""
        if backend.takes_cu_seqlens:
            return backend.attend(inputs._replace(cu_seqlens=self.cu_seqlens))[0]
        rows, mask = self.rows
        Q_c, K_c, V_c = (rows.pad(x.transpose(1, 2)).transpose(1, 2) for x in inputs[:3])
        out, _ = backend.attend(inputs._replace(Q_c=Q_c, K_c=K_c, V_c=V_c, mask=mask))
        return rows.unpad(out.transpose(1, 2)).transpose(1, 2)

    def windows(self, margin: int) -> tuple[torch.Tensor, int]:
        """Return each token's index, [T], in a stream with `margin` zeros around each document, and this stream's length."""
        places = torch.arange(len(self.token_index), device=self.token_index.device) + (self.documents + 1) * margin
        return places, len(self.token_index) + (len(self.lengths) + 1) * margin


class DisentangledSelfAttention(PositionCache):
    """Multi-head disentangled self-attention (DeBERTa section 3.1), without the output projection. `last_backend` is a
    tuple: the name of the backend that the last call used, and the reason for this choice.

    Args:
        config: any object with `hidden_size`, `num_attention_heads`, `attention_probs_dropout_prob`, `hidden_dropout_prob`,
            `relative_attention`, `pos_att_type` (list) and `share_att_key`. Its optional `_attn_implementation` names the
            backend and is read at each call; None or missing: the best backend is chosen.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.terms = tuple(config.pos_att_type) if config.relative_attention else ()
        # transformers' models count the named terms even if relative_attention is False.
        self.scale = 1 / math.sqrt(self.head_size * (1 + len(config.pos_att_type)))
        size = config.hidden_size
        self.query_proj = nn.Linear(size, size)
        self.key_proj = nn.Linear(size, size)
        self.value_proj = nn.Linear(size, size)
        self.share_att_key = config.share_att_key
        if not self.share_att_key:
            if "c2p" in self.terms or "p2p" in self.terms:
                self.pos_key_proj = nn.Linear(size, size)
            if "p2c" in self.terms or "p2p" in self.terms:
                self.pos_query_proj = nn.Linear(size, size)
        self.pos_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.last_backend: tuple[str, str] | None = None

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape [..., N, H·d] -> [..., H, N, d]. H is the local number of heads under tensor parallelism."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(-2, -3)

    def keys_and_values(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project hidden states [B, N, hidden] to K_c and V_c, [B, H, N, d] each."""
        return self.split_heads(self.key_proj(hidden_states)), self.split_heads(self.value_proj(hidden_states))

    def project_content(self, hidden_states, query_states, keys_values) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project to Q_c, K_c and V_c, [B, H, Q or N, d]; see `forward` for the arguments."""
        Q_c = self.split_heads(self.query_proj(hidden_states if query_states is None else query_states))
        return Q_c, *(self.keys_and_values(hidden_states) if keys_values is None else keys_values)

    def position_projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the modules that compute K_r and Q_r, each None if no term needs it."""
        key = query = None
        if "c2p" in self.terms or "p2p" in self.terms:
            key = self.key_proj if self.share_att_key else self.pos_key_proj
        if "p2c" in self.terms or "p2p" in self.terms:
            query = self.query_proj if self.share_att_key else self.pos_query_proj
        return key, query

    def project_positions(self, rel_embeddings: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return K_r and Q_r, projections [H, R, d] of the relative table [R, H·d]; each is None if no term needs it.

        At inference on CPU, the package's `PositionCache` caches them.
        """
        key, query = self.position_projections()

        def project(P):
            return tuple(None if module is None else self.split_heads(module(P)) for module in (key, query))

        if key is None and query is None:
            return None, None
        varies = is_traced() or torch.is_grad_enabled() or self.pos_dropout.training
        if varies or rel_embeddings.device.type != "cpu" or not hasattr(self, "kept_projections"):
            return project(self.pos_dropout(rel_embeddings))
        return self.kept_projections(rel_embeddings, [x for x in (key, query) if x is not None], project)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rel_embeddings: torch.Tensor | None = None,
        query_states: torch.Tensor | None = None,
        delta: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
        *,
        max_distance: int | None = None,
        packed: PackedSequences | None = None,
        output_attentions: bool = False,
        keys_values: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention. `AttentionInputs` documents mask, delta, query_positions (required if Q != N) and max_distance.

        Args:
            hidden_states (`torch.Tensor`): input of keys and values, [B, N, hidden].
            rel_embeddings (`torch.Tensor`, *optional*): the relative table P, [R, hidden].
            query_states (`torch.Tensor`, *optional*): separate queries (Enhanced Mask Decoder), [B, Q, hidden]; None = same
                as hidden_states. Queries at the same position must be equal, because some backends scatter them.
            packed (`PackedSequences`, *optional*): the documents in hidden_states [1, T, hidden]; then pass no mask.
            keys_values (`tuple`, *optional*): precomputed `keys_and_values(hidden_states)`.

        Returns:
            context [B, Q, hidden] and probabilities [B, H, Q, N] or None.

        Raises:
            ValueError: `config._attn_implementation` names a backend that does not support this call.
        """
        Q_c, K_c, V_c = self.project_content(hidden_states, query_states, keys_values)
        K_r, Q_r = self.project_positions(rel_embeddings)
        inputs = AttentionInputs(Q_c, K_c, V_c, self.scale, K_r, Q_r, delta, self.terms, attention_mask, query_positions)
        inputs = inputs._replace(dropout_p=self.dropout_p, max_distance=max_distance)
        return self.attend(inputs, getattr(self.config, "_attn_implementation", None), packed, output_attentions)

    @property
    def dropout_p(self) -> float:
        """Dropout rate of the probabilities; 0 unless the `dropout` module is in training mode."""
        return self.dropout.p if self.dropout.training else 0.0

    def attend(
        self,
        inputs: AttentionInputs,
        requested: str | None,
        packed: PackedSequences | None = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the context [B, Q, hidden], and the probabilities or None, from the `requested` backend (None: the best).
        If `packed` is given, `inputs` has the tokens of the packed stream, and no mask."""
        Q_c, positions = inputs.Q_c, inputs.query_positions
        query_share = 1.0 if positions is None or packed is not None else Q_c.shape[2] / inputs.K_c.shape[2]
        name, reason = choose_backend(
            requested, Q_c.device, Q_c.dtype, Q_c.shape[-1], needs_probs=output_attentions, query_share=query_share
        )
        if not torch.compiler.is_compiling():
            # Module.__setattr__ would check at each call that this is not a parameter.
            vars(self)["last_backend"] = name, reason
        backend = BACKENDS[name]
        drop_others = positions is not None and (packed is not None or not backend.takes_query_positions)
        if drop_others:
            inputs = among_all_positions(inputs)
        context, probs = backend.attend(inputs) if packed is None else (packed.attend(backend, inputs), None)
        context = context.transpose(1, 2)
        if drop_others:
            context = context.gather(1, positions[:, :, None, None].expand(-1, -1, *context.shape[2:]))
        return context.flatten(2), probs if output_attentions else None


def among_all_positions(inputs: AttentionInputs) -> AttentionInputs:
    """Return inputs with a query at every position. Added queries are zeros; their rows of the mask are True."""
    Q_c, mask, positions = inputs.Q_c, inputs.mask, inputs.query_positions
    B, H, _, d = Q_c.shape
    N = inputs.K_c.shape[2]
    index = positions[:, None, :, None]
    full = Q_c.new_zeros(B, H, N, d).scatter(2, index.expand(-1, H, -1, d), Q_c)
    if mask is not None and mask.shape[-2] > 1:
        rows = mask.new_ones(B, mask.shape[1], N, N)
        mask = rows.scatter(2, index.expand(-1, mask.shape[1], -1, N), mask.expand(B, -1, -1, -1))
    return inputs._replace(Q_c=full, mask=mask, query_positions=None)


class ResidualOutput(nn.Module):
    """Output of the attention and of the feed-forward network: LayerNorm(dropout(dense(x)) + residual)."""

    def __init__(self, config, in_features: int):
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class DebertaExtAttention(nn.Module):
    """Disentangled self-attention and its output projection, to which the query states are added as residual."""

    # Not in modeling_deberta_ext.py, where a class *Attention*(nn.Module) disables transformers' `set_attn_implementation`.

    def __init__(self, config):
        super().__init__()
        self.self = DisentangledSelfAttention(config)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden_states, attention_mask, rel_embeddings, query_states, **options):
        context, probs = self.self(hidden_states, attention_mask, rel_embeddings, query_states, **options)
        residual = hidden_states if query_states is None else query_states
        return self.output(context, residual), probs

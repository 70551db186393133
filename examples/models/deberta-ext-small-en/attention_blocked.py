# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention in plain PyTorch without gathers and without a [B, H, N, N] tensor, for any device.

Two facts make it fast (delta(i, j) depends on i - j alone and is constant beyond `reach`):

* Relative shift. With the tables expanded along i - j, c2p of a block of queries is one matrix product, C[i, t], of which
  c2p[i, j] is a strided view. p2c is the same with the roles of queries and keys exchanged. Inside, keys are counted from
  the end, j' = N - 1 - j, so that i - j = i + j' - (N - 1) rises with both and every such view has positive strides.
* Saturation. Where all i - j of a block are beyond `reach`, c2p is one number for each query and p2c one for each key.

A block of queries sees all keys at once, so its softmax is an ordinary one, and the backward pass computes the probabilities
of a block again instead of keeping them. Sizes were chosen by measurement on a CPU: long sequences go one head at a time,
with a batch of tiles in each product; of short ones, many heads and sequences go together, with one tile each.
"""

import math
from collections.abc import Iterator

import torch
from torch.nn import functional

from .attention_inputs import AttentionInputs, without_autocast

__all__ = ["blocked_unavailable", "disentangled_attention_blocked"]

# Up to this length, a sequence is one tile.
SHORT = 128
# Queries in a product with K_x.
C2P_ROWS = 64
# Scores in a chunk of short sequences.
CHUNK = 2**19
# A cache line of float32.
LINE = 16


def blocked_unavailable(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return the reason why the backend cannot serve a call now, or None: it takes every device, dtype and head size."""
    if torch.compiler.is_compiling():
        return "torch.compile cannot trace it"
    return None


def disentangled_attention_blocked(inputs: AttentionInputs) -> torch.Tensor:
    """Compute disentangled attention, DeBERTa Eq. (4), in blocks of queries; see `AttentionInputs`.

    Queries are at the positions of their keys: `query_positions` is not served.

    Returns:
        out [B, H, N, d] in the dtype of Q_c; computed in float32 (float64 stays), also under autocast.
    """
    Q_c, K_c, V_c, scale, K_r, Q_r, delta, terms, mask, _, dropout_p, reach, _ = inputs
    wide = torch.promote_types(Q_c.dtype, torch.float32)
    if dropout_p == 1:
        # All probabilities are dropped: the others cannot be scaled by 1 / 0.
        V_c, dropout_p = V_c * 0, 0.0
    N = K_c.shape[2]
    if reach is None or reach > N:
        reach = N
    with without_autocast(Q_c.device):
        K_x = Q_x = bias_x = None
        if terms:
            # The expanded tables, [H, 2W + 1, d] for i - j = -W ... W; blocks of queries and keys reach beyond `reach`.
            W = min(reach + _rows(N), N) + _tile(N) + 2 * LINE
            middle = delta.shape[0] // 2
            rows = delta[torch.arange(-W, W + 1, device=delta.device).clamp(-middle, middle) + middle]
        if "c2p" in terms:
            K_x = K_r.to(wide).index_select(1, rows)
        if "p2c" in terms:
            Q_x = (Q_r.to(wide) * scale).index_select(1, rows)
        if "p2p" in terms:
            bias_x = (Q_r.to(wide)[:, rows] * K_r.to(wide)[:, rows.flip(0)]).sum(-1) * scale
        # [H, B, ...] in one piece, keys from the end and padded, so that every chunk below is a view.
        width = _round_up(N, _tile(N))
        if N % 256 == 0:
            # Rows of scores that lie a power of two apart would share few lines of the cache.
            width += LINE
        padding = (0, 0, 0, width - N)
        q = (Q_c.transpose(0, 1).to(wide) * scale).contiguous()
        k, v = (functional.pad(x.transpose(0, 1).to(wide).flip(2), padding).contiguous() for x in (K_c, V_c))
        if mask is not None:
            mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
        out = _BlockedAttention.apply(q, k, v, K_x, Q_x, bias_x, mask, reach, dropout_p)
        return out.transpose(0, 1).to(Q_c.dtype)


class _BlockedAttention(torch.autograd.Function):
    """out = softmax(q k^T + positions) v, [H, B, N, d]; q [H, B, N, d], k and v [H, B, N + padding, d] from the last key to
    the first, all in one dtype; q, Q_x and bias_x are scaled already."""

    @staticmethod
    def forward(ctx, q, k, v, K_x, Q_x, bias_x, mask, reach, dropout_p):
        seed = 0
        if dropout_p > 0:
            seed = int(torch.randint(2**62, ()))
        ctx.save_for_backward(q, k, v, K_x, Q_x, bias_x, mask)
        ctx.options = reach, dropout_p, seed
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


def _chunks(q, k, v, K_x, Q_x, bias_x, mask, reach, dropout_p, seed) -> "Iterator[_Chunk]":
    """Heads and sequences that are computed together, few enough for the scores of a block to stay in cache."""
    H, B, N, _ = q.shape
    blocked = dead = None
    if mask is not None:
        blocked = (~mask).expand(B, -1, -1, N).flip(-1).transpose(0, 1)  # [1 or H, B, 1 or N, N]
        dead = blocked.all(-1)
        if dead.device.type == "cpu" and not dead.any():
            dead = None
    generator = None
    if dropout_p > 0:
        generator = torch.Generator(q.device)
    heads = batch = 1
    if N <= SHORT:
        # 2 MiB of scores; several heads only with all sequences, or they would not lie in one piece.
        batch = max(1, min(B, CHUNK // N**2))
        heads = max(1, min(H, CHUNK // (N**2 * B)))
    scratch = _Scratch(q)
    for b0, b1 in _blocks(B, batch):
        for h0, h1 in _blocks(H, heads):
            if generator is not None:
                generator.manual_seed(seed + b0 * H + h0)
            place = slice(h0, h1), slice(b0, b1)
            yield _Chunk(place, q, k, v, K_x, Q_x, bias_x, blocked, dead, reach, dropout_p, generator, scratch)


class _Scratch:
    """Reused buffers by name: on a CPU, fresh memory costs more than the arithmetic."""

    def __init__(self, like: torch.Tensor):
        self.like, self.buffers = like, {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = self.like.new_empty(size, dtype=dtype)
        return self.buffers[name][:size].view(shape)


def _rows(N: int) -> int:
    """Queries in a block: fewer of them have fewer near keys, which counts where most keys are far."""
    return 512 if N <= 1024 else 256


def _tile(N: int) -> int:
    """Keys in a product with Q_x."""
    if N <= SHORT:
        return _round_up(N, LINE)
    return 64 if N <= 1024 else 32


def _shear(x: torch.Tensor, columns: int) -> torch.Tensor:
    """View y[:, r, c] = x[:, r, r + c] of contiguous x [G, rows, width], width >= rows - 1 + columns."""
    G, rows, width = x.shape
    return x.as_strided((G, rows, columns), (rows * width, width + 1, 1), x.storage_offset())


def _round_up(x: int, multiple: int) -> int:
    return math.ceil(x / multiple) * multiple


class _Chunk:
    """Some heads of some sequences, G = heads · batch; either G = 1 or the sequences are short, one tile each."""

    def __init__(self, place, q, k, v, K_x, Q_x, bias_x, blocked, dead, reach, dropout_p, generator, scratch):
        self.place, self.reach, self.dropout_p, self.generator, self.scratch = place, reach, dropout_p, generator, scratch
        self.q, self.k, self.v = (self.part(x).flatten(0, 1) for x in (q, k, v))  # [G, ..., d]
        self.N, self.width = self.q.shape[1], self.k.shape[1]
        self.keys = _tile(self.N)
        self.heads, self.batch = self.part(q).shape[:2]
        self.K_x, self.Q_x, self.bias_x = map(self.of_heads, (K_x, Q_x, bias_x))
        self.blocked = self.dead = None
        if blocked is not None:
            self.blocked = self.part(blocked)
        if dead is not None:
            self.dead = self.part(dead)
        # Long sequences: a product with the identity transposes faster than a strided addition.
        self.identity = None
        if self.N > SHORT:
            self.identity = torch.eye(self.keys, dtype=q.dtype, device=q.device)

    def of_heads(self, table: torch.Tensor | None) -> torch.Tensor | None:
        """View of a table [H, ...] for the heads of this chunk."""
        return None if table is None else table[self.place[0]]

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """View [heads, batch, ...] of x [1 or H, B, ...]."""
        heads, batch = self.place
        if x.shape[0] == 1:
            return x[:, batch]
        return x[heads, batch]

    def near(self, i0: int, i1: int) -> tuple[int, int]:
        """Whole tiles of keys [a, z) outside of which delta is the same for all queries of [i0, i1)."""
        a = max(0, self.N - i1 - self.reach + 1) // self.keys * self.keys
        return a, _round_up(min(self.N, self.N - 1 - i0 + self.reach), self.keys)

    def saturated(self, a: int, z: int) -> Iterator[tuple[slice, slice]]:
        """Keys before and behind the near ones, each with the end of the tables that serves them."""
        if a > 0:
            yield slice(0, a), slice(0, 1)
        if z < self.N:
            yield slice(z, self.N), slice(-1, None)

    def tiles(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        """[G, n, d] -> [heads · tiles, batch · rows, d], as the products with the tables take it."""
        return x.reshape(self.heads * (x.shape[1] // rows), self.batch * rows, -1)

    def windows(self, table: torch.Tensor, first: int, tiles: int, rows: int, columns: int) -> torch.Tensor:
        """Of a table [heads, 2W + 1, ...], for each tile the rows for i + j' = first ..., as a view
        [heads · tiles, width, ...]."""
        start = table.shape[1] // 2 - (self.N - 1) + first
        width = _round_up(rows + columns - 1, LINE)
        windows = table[:, start : start + (tiles - 1) * rows + width].unfold(1, width, rows)
        if table.dim() > 2:
            windows = windows.movedim(-1, 2)
        return windows.flatten(0, 1)

    def c2p_rows(self, n: int) -> int:
        if self.N <= SHORT or n % C2P_ROWS != 0:
            return n
        return C2P_ROWS

    def c2p(self, i0: int, i1: int, a: int, z: int) -> torch.Tensor:
        """q_i · K_x[i + j'] + bias_x[i + j'] before the shear, [G · tiles, rows, width]."""
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
        """The same at one end of the tables, [G, n, 1]."""
        q = self.tiles(self.q[:, i0:i1], i1 - i0)
        c2p = q.new_zeros(*q.shape[:2], 1) if self.K_x is None else q @ self.K_x[:, end].mT
        if self.bias_x is not None:
            c2p = c2p + self.bias_x[:, None, end]
        return c2p.view(-1, i1 - i0, 1)

    def probabilities(self, i0: int, i1: int) -> torch.Tensor:
        """softmax of the scores of queries [i0, i1), [G, n, width], in a scratch buffer."""
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
        """View of a mask [heads, batch, 1 or N, ...] for queries [i0, i1)."""
        if mask.shape[2] == 1:
            return mask
        return mask[:, :, i0:i1]

    def dropout_mask(self, P: torch.Tensor) -> torch.Tensor | None:
        """0 (dropped) or 1 for each probability P of the next block; None without dropout.

        16 random bits each, four at a time, are less work than bernoulli_. The threshold is one of the two whole numbers
        beside p · 2^16, drawn so that each probability is dropped with probability p exactly.
        """
        if self.dropout_p == 0:
            return None
        words = self.scratch("bits", math.ceil(P.numel() / 4), dtype=torch.int64)
        bits = words.random_(-(2**63), None, generator=self.generator).view(torch.int16)[: P.numel()]
        threshold = self.dropout_p * 2**16 - 2**15
        # In float32: not every device has more.
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
        """Add this chunk's gradients to those of the whole, each of the shape of its argument."""
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
            # In place and fused, which no public operation is.
            torch.ops.aten._softmax_backward_data(dA, P, -1, P.dtype, grad_input=dA)
            torch.bmm(dA, self.k, out=dq[:, i0:i1])
            dk.baddbmm_(dA.mT, self.q[:, i0:i1])
            if self.K_x is not None or self.bias_x is not None:
                self.c2p_backward(dA, i0, i1, dq, d_K_x, d_bias_x)
            if self.Q_x is not None:
                self.p2c_backward(dA, i0, i1, dk, d_Q_x)

    def unshear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The transpose of `_shear`: x [G, rows, columns] -> [G, rows, width], zero outside of x."""
        G, rows, columns = x.shape
        D = self.scratch(name, G, rows, _round_up(rows + columns - 1, LINE)).zero_()
        _shear(D, columns).copy_(x)
        return D

    def add_windows(self, total: torch.Tensor, grads: torch.Tensor, first: int, rows: int):
        """Add the gradients of `windows`, [heads · tiles, width, ...], to those of the table, total [heads, 2W + 1, ...]."""
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

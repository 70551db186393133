# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Disentangled attention in plain PyTorch without gathers and without a [B, H, N, N] tensor, for any device.

Two facts make it fast (delta(i, j) depends on i - j alone and is constant beyond `reach`):

* Relative shift. With the table expanded along i - j, c2p of a block of queries is one matrix product, C[i, t], and
  c2p[i, j] = C[i, j - i + const]: a strided view in which each row starts one element earlier than the row above. p2c is the same
  with the roles of queries and keys exchanged.
* Saturation. Where all i - j of a block are beyond `reach`, c2p is one number for each query and p2c one for each key.

Queries go in blocks that see all keys at once, so the softmax is an ordinary one, and the backward pass computes the
probabilities of a block again instead of keeping them.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.nn import functional

__all__ = ["disentangled_attention_blocked"]

# Queries in a block, and queries in one product with the expanded table (more waste products on offsets that few queries have).
ROWS, C2P_ROWS = 256, 128
# Lines of the products are whole cache lines of float32.
ALIGN = 16


def disentangled_attention_blocked(
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
    dropout_p: float = 0.0,
    reach: int | None = None,
) -> torch.Tensor:
    """Disentangled attention, DeBERTa Eq. (4), in blocks of queries; arguments as in `disentangled_attention_eager`.

    Args:
        reach (`int`, *optional*): delta is constant for i - j >= reach and for i - j <= -reach; None: nothing is known.

    Returns:
        out [B, H, N, d] in the dtype of Q_c; computed in float32 (float64 stays), also under autocast.
    """
    wide = torch.promote_types(Q_c.dtype, torch.float32)
    N = K_c.shape[2]
    device_type = Q_c.device.type
    with nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False):
        reach = N if reach is None else min(reach, N)
        # Rows of the expanded tables for i - j = -W ... W: a block needs some beyond `reach`.
        W = min(reach + ROWS, N) + ALIGN
        K_x = Q_x = bias_x = None
        if terms:
            middle = (len(delta) - 1) // 2
            offsets = torch.arange(-W, W + 1, device=delta.device).clamp(-middle, middle)
            rows = delta[offsets + middle]
        if "c2p" in terms:
            K_x = K_r.to(wide).index_select(1, rows.flip(0))  # [H, 2W + 1, d], i - j = W ... -W
        if "p2c" in terms:
            Q_x = Q_r.to(wide).index_select(1, rows) * scale  # [H, 2W + 1, d], i - j = -W ... W
        if "p2p" in terms:
            bias_x = (Q_r.to(wide)[:, rows.flip(0)] * K_r.to(wide)[:, rows]).sum(-1) * scale  # [H, 2W + 1], W ... -W
        out = _BlockedAttention.apply(
            Q_c.to(wide) * scale, K_c.to(wide), V_c.to(wide), K_x, Q_x, bias_x, mask, reach, dropout_p
        )
        return out.to(Q_c.dtype)


class _BlockedAttention(torch.autograd.Function):
    """out = softmax(q k^T + positions) v for tensors in one dtype; q and Q_x are scaled already."""

    @staticmethod
    def forward(ctx, q, k, v, K_x, Q_x, bias_x, mask, reach, dropout_p):
        seed = int(torch.randint(2**62, ())) if dropout_p > 0 else 0
        ctx.save_for_backward(q, k, v, K_x, Q_x, bias_x, mask)
        ctx.reach, ctx.dropout_p, ctx.seed = reach, dropout_p, seed
        out = torch.empty_like(q)
        for chunk in _chunks(q, k, v, K_x, Q_x, bias_x, mask, reach, dropout_p, seed):
            for i0, i1 in _blocks(0, q.shape[2], chunk.rows):
                P = chunk.probabilities(i0, i1)
                keep = chunk.keep(P)
                if keep is not None:
                    P.mul_(keep)
                chunk.part(out)[:, :, i0:i1] = torch.bmm(P, chunk.v).view(chunk.heads, chunk.batch, i1 - i0, -1)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        q, k, v, K_x, Q_x, bias_x, mask = ctx.saved_tensors
        grads = [None if x is None else torch.zeros_like(x) for x in (q, k, v, K_x, Q_x, bias_x)]
        with torch.autocast(q.device.type, enabled=False):
            for chunk in _chunks(q, k, v, K_x, Q_x, bias_x, mask, ctx.reach, ctx.dropout_p, ctx.seed):
                chunk.backward(d_out, *grads)
        return *grads, None, None, None


def _blocks(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(start, end, size):
        yield first, min(first + size, end)


def _chunks(q, k, v, K_x, Q_x, bias_x, mask, reach, dropout_p, seed) -> "Iterator[_Chunk]":
    """Some heads of some sequences at a time, so that the scores of a block stay in cache."""
    B, H, N, _ = q.shape
    scratch = _Scratch(q)
    rows = min(N, ROWS)
    blocked = dead = None
    if mask is not None:
        blocked = (~mask).expand(B, -1, -1, N)
        dead = blocked.all(-1)  # [B, 1 or H, 1 or N]
        if dead.device.type == "cpu" and not dead.any():
            dead = None
    # 2^19 scores: 2 MiB in float32.
    batch = max(1, min(B, 2**17 // (rows * N)))
    heads = max(1, min(H, 2**19 // (rows * N * batch)))
    generator = torch.Generator(q.device) if dropout_p > 0 else None
    for b0, b1 in _blocks(0, B, batch):
        for h0, h1 in _blocks(0, H, heads):
            if generator is not None:
                generator.manual_seed(seed + b0 * H + h0)
            yield _Chunk(
                (slice(b0, b1), slice(h0, h1)), q, k, v, K_x, Q_x, bias_x, blocked, dead, reach, rows, scratch,
                dropout_p, generator,
            )  # fmt: skip


class _Scratch:
    """Buffers by name that are used again: on a CPU, fresh memory costs more than the arithmetic."""

    def __init__(self, like: torch.Tensor):
        self.like, self.buffers = like, {}

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = self.like.new_empty(size)
        return self.buffers[name][:size].view(shape)


def _shear(x: torch.Tensor, columns: int) -> torch.Tensor:
    """View y[:, r, c] = x[:, r, rows - 1 - r + c] of contiguous x [G, rows, width], width >= rows - 1 + columns."""
    G, rows, width = x.shape
    return x.as_strided((G, rows, columns), (rows * width, width - 1, 1), x.storage_offset() + rows - 1)


def _width(rows: int, columns: int) -> int:
    """Offsets i - j in a block of rows x columns, rounded up to whole cache lines."""
    return math.ceil((rows + columns - 1) / ALIGN) * ALIGN


class _Chunk:
    """Heads and sequences that are computed together; G = heads · sequences, one matrix product each."""

    def __init__(
        self, where, q, k, v, K_x, Q_x, bias_x, blocked, dead, reach, rows, scratch, dropout_p, generator
    ):  # fmt: skip
        self.where, self.reach, self.rows, self.scratch = where, reach, rows, scratch
        self.dropout_p, self.generator = dropout_p, generator
        self.N, d = k.shape[2:]
        q, k, v = (self.part(x) for x in (q, k, v))  # [heads, batch, N, d]
        self.heads, self.batch = q.shape[:2]
        self.G = self.heads * self.batch
        # Rows of the scores that lie a power of two apart would meet in the same few lines of the cache.
        pad = ALIGN if self.N % 256 == 0 else 0
        self.q = q.reshape(self.G, self.N, d)
        self.k, self.v = (functional.pad(x.reshape(self.G, self.N, d), (0, 0, 0, pad)) for x in (k, v))
        self.K_x, self.Q_x, self.bias_x = (None if x is None else x[where[1]] for x in (K_x, Q_x, bias_x))
        self.blocked, self.dead = (None if x is None else self.part(x) for x in (blocked, dead))
        self.tile = 128 if self.N <= 128 else 64

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """View [heads, batch, ...] of x [B, 1 or H, ...]."""
        batch, heads = self.where
        return (x[batch] if x.shape[1] == 1 else x[batch, heads]).transpose(0, 1)

    def near(self, i0: int, i1: int) -> tuple[int, int]:
        """Keys [a, z) for which delta is not the same for all queries of [i0, i1)."""
        return max(0, i0 - self.reach + 1), min(self.N, i1 - 1 + self.reach)

    def window(self, table: torch.Tensor, first_offset: int, rows: int, columns: int) -> slice:
        """The part of an expanded table, from `first_offset` on, that a product of rows x columns needs."""
        first = table.shape[1] // 2 + first_offset
        return slice(first, first + _width(rows, columns))

    def c2p_parts(self, i0: int, i1: int) -> Iterator[tuple[slice, slice, int, int]]:
        """For every product: its queries in the chunk and in the block, and the keys [a, z) near to them."""
        for first, last in _blocks(i0, i1, C2P_ROWS):
            yield slice(first, last), slice(first - i0, last - i0), *self.near(first, last)

    def probabilities(self, i0: int, i1: int) -> torch.Tensor:
        """softmax of the scores of queries [i0, i1), [G, n, N + pad], in a scratch buffer."""
        q, k, n = self.q[:, i0:i1], self.k, i1 - i0
        A = torch.bmm(q, k.mT, out=self.scratch("A", self.G, n, k.shape[1]))
        table = self.bias_x if self.K_x is None else self.K_x
        if table is not None:
            for part, rows, a, z in self.c2p_parts(i0, i1):
                m = part.stop - part.start
                window = self.window(table, a - (part.stop - 1), m, z - a)
                A[:, rows, a:z].add_(_shear(self.c2p(part, window), z - a))
                for keys, end in ((slice(0, a), 0), (slice(z, self.N), -1)):
                    if keys.stop > keys.start:
                        A[:, rows, keys].add_(self.c2p_saturated(part, end))
        if self.Q_x is not None:
            a, z = self.near(i0, i1)
            for j0, j1 in _blocks(a, z, self.tile):
                window = self.window(self.Q_x, i0 - (j1 - 1), n, j1 - j0)
                P = self.scratch("P", self.heads, self.batch * (j1 - j0), window.stop - window.start)
                torch.bmm(self.by_head(k[:, j0:j1]), self.Q_x[:, window].mT, out=P)
                A[:, :, j0:j1].add_(_shear(P.view(self.G, j1 - j0, -1), n).mT)
            for keys, end in ((slice(0, a), -1), (slice(z, self.N), 0)):
                if keys.stop > keys.start:
                    A[:, :, keys].add_((self.by_head(k[:, keys]) @ self.Q_x[:, end, :, None]).view(self.G, 1, -1))
        scores = A.view(self.heads, self.batch, n, -1)
        if self.blocked is not None:
            blocked = self.blocked if self.blocked.shape[2] == 1 else self.blocked[:, :, i0:i1]
            scores[..., : self.N].masked_fill_(blocked, torch.finfo(A.dtype).min)
        scores[..., self.N :] = -torch.inf
        torch.softmax(A, -1, out=A)
        if self.dead is not None:
            dead = self.dead if self.dead.shape[2] == 1 else self.dead[:, :, i0:i1]
            scores.masked_fill_(dead[..., None], 0.0)
        return A

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """[G, n, ...] -> [heads, batch · n, ...]: the table is the same for all sequences."""
        return x.reshape(self.heads, -1, *x.shape[2:])

    def c2p(self, part: slice, window: slice) -> torch.Tensor:
        """q_i · K_x[t] + bias_x[t], [G, rows, width]."""
        rows, width = part.stop - part.start, window.stop - window.start
        C = self.scratch("C", self.heads, self.batch * rows, width)
        if self.K_x is None:
            C.copy_(self.bias_x[:, None, window].expand_as(C))
        else:
            torch.bmm(self.by_head(self.q[:, part]), self.K_x[:, window].mT, out=C)
            if self.bias_x is not None:
                C.add_(self.bias_x[:, None, window])
        return C.view(self.G, rows, width)

    def c2p_saturated(self, part: slice, end: int) -> torch.Tensor:
        """The same at one end of the table, [G, rows, 1]."""
        q = self.by_head(self.q[:, part])
        c2p = q.new_zeros(*q.shape[:2], 1) if self.K_x is None else q @ self.K_x[:, end, :, None]
        if self.bias_x is not None:
            c2p = c2p + self.bias_x[:, end, None, None]
        return c2p.view(self.G, -1, 1)

    def keep(self, P: torch.Tensor) -> torch.Tensor | None:
        """The next block's dropout factors, 0 or 1 / (1 - p), of the shape of P; None without dropout."""
        if self.dropout_p == 0:
            return None
        keep = self.scratch("keep", *P.shape).bernoulli_(1 - self.dropout_p, generator=self.generator)
        return keep.mul_(1 / (1 - self.dropout_p))

    def backward(self, d_out, d_q, d_k, d_v, d_K_x, d_Q_x, d_bias_x):
        """Adds this chunk's gradients to the given tensors, each of the shape of its argument."""
        d_out = self.part(d_out).reshape(self.G, self.N, -1)
        dq, dk, dv = torch.empty_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        heads = self.where[1]
        d_K_x, d_Q_x, d_bias_x = (None if x is None else x[heads] for x in (d_K_x, d_Q_x, d_bias_x))
        for i0, i1 in _blocks(0, self.N, self.rows):
            P, d_o = self.probabilities(i0, i1), d_out[:, i0:i1]
            dA = torch.bmm(d_o, self.v.mT, out=self.scratch("dA", *P.shape))
            keep = self.keep(P)
            if keep is None:
                dv.baddbmm_(P.mT, d_o)
            else:
                dA.mul_(keep)
                dv.baddbmm_(keep.mul_(P).mT, d_o)
            torch.ops.aten._softmax_backward_data(dA, P, -1, P.dtype, grad_input=dA)
            torch.bmm(dA, self.k, out=self.scratch("dq", self.G, i1 - i0, dq.shape[2]))
            dq[:, i0:i1] = self.scratch("dq", self.G, i1 - i0, dq.shape[2])
            dk.baddbmm_(dA.mT, self.q[:, i0:i1])
            self.c2p_backward(dA, i0, i1, dq, d_K_x, d_bias_x)
            if d_Q_x is not None:
                self.p2c_backward(dA, i0, i1, dk, d_Q_x)
        for total, grad in ((d_q, dq), (d_k, dk), (d_v, dv)):
            self.part(total).copy_(grad[:, : self.N].view(self.heads, self.batch, self.N, -1))

    def unshear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The transpose of `_shear`: x [G, rows, columns] -> [heads, batch · rows, width], zero outside of x."""
        G, rows, columns = x.shape
        D = self.scratch(name, G, rows, _width(rows, columns)).zero_()
        _shear(D, columns).copy_(x)
        return D.view(self.heads, self.batch * rows, -1)

    def c2p_backward(self, dA, i0, i1, dq, d_K_x, d_bias_x):
        table = self.bias_x if self.K_x is None else self.K_x
        if table is None:
            return
        for part, rows, a, z in self.c2p_parts(i0, i1):
            m = part.stop - part.start
            # The near keys, then what is left and right of them, where one row of the table serves all keys.
            pieces = [(self.unshear(dA[:, rows, a:z], "C"), self.window(table, a - (part.stop - 1), m, z - a))]
            for keys, end in ((slice(0, a), slice(0, 1)), (slice(z, self.N), slice(-1, None))):
                if keys.stop > keys.start:
                    pieces.append((self.by_head(dA[:, rows, keys].sum(-1, keepdim=True)), end))
            q = self.by_head(self.q[:, part])
            for dC, window in pieces:
                if d_K_x is not None:
                    dq[:, part].add_((dC @ self.K_x[:, window]).view(self.G, m, -1))
                    d_K_x[:, window].add_(dC.mT @ q)
                if d_bias_x is not None:
                    d_bias_x[:, window].add_(dC.sum(1))

    def p2c_backward(self, dA, i0, i1, dk, d_Q_x):
        n = i1 - i0
        a, z = self.near(i0, i1)
        for j0, j1 in _blocks(a, z, self.tile):
            dP = self.unshear(dA[:, :, j0:j1].mT, "P")
            window = self.window(self.Q_x, i0 - (j1 - 1), n, j1 - j0)
            dk[:, j0:j1].add_((dP @ self.Q_x[:, window]).view(self.G, j1 - j0, -1))
            d_Q_x[:, window].add_(dP.mT @ self.by_head(self.k[:, j0:j1]))
        for keys, end in ((slice(0, a), slice(-1, None)), (slice(z, self.N), slice(0, 1))):
            if keys.stop > keys.start:
                dP = self.by_head(dA[:, :, keys].sum(1))[..., None]  # [heads, batch · keys, 1]
                dk[:, keys].add_((dP @ self.Q_x[:, end]).view(self.G, keys.stop - keys.start, -1))
                d_Q_x[:, end].add_(dP.mT @ self.by_head(self.k[:, keys]))

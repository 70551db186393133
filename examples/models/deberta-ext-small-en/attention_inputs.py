# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`AttentionInputs`: the one argument of every attention backend, and what several backends share.

The kernels are operators of torch: forward(q, k, v, K_r, Q_r, bias, ...) -> (out, lse), and backward(grad, out, lse, all
operands of forward, wanted) -> gradients of the first six. `wanted`, three bools, tells for which of K_r, Q_r and bias.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch

__all__ = [
    "AttentionInputs", "differentiate_by", "empty_heads", "fake_backward", "fake_forward", "save_operands",
    "without_autocast",
]  # fmt: skip


class AttentionInputs(NamedTuple):
    """Inputs of disentangled attention, DeBERTa (He et al. 2021) Eq. (4).

    A[i, j] = Q_c[i]·K_c[j] + Q_c[i]·K_r[delta(i, j)] + K_c[j]·Q_r[delta(i, j)],  out = softmax(scale · A) V_c.
    The paper writes delta(j, i) in the third term; all released code and weights use delta(i, j). The term p2p, in no
    released model, is Q_r[delta(i, j)]·K_r[delta(j, i)], a bias for each head that depends only on i - j.

    Attributes:
        Q_c (`torch.Tensor`): content queries, [B, H, Q, d].
        K_c, V_c (`torch.Tensor`): content keys and values, [B, H, N, d].
        scale (`float`): 1 / sqrt(s·d), s = 1 + number of position terms; applied before the products, so that half
            precision does not overflow.
        K_r, Q_r (`torch.Tensor`, *optional*): projections of the relative table P, [H, R, d]; K_r is needed by c2p, Q_r by
            p2c, both by p2p.
        delta (`torch.LongTensor`, *optional*): [2L - 1] offset table, L >= N or, with `cu_seqlens`, at least the tokens of
            the longest document; delta(i, j) = delta[i - j + L - 1], in [0, R), non-decreasing.
        terms (`tuple[str, ...]`): the position terms to add: c2p, p2c, p2p.
        mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, Q, N]; True = may attend. A row with no True gives
            zeros (as the official code; transformers' own models give the mean of V_c).
        query_positions (`torch.LongTensor`, *optional*): [B, Q] position i of each query; None: query q is at q, Q = N.
        dropout_p (`float`): dropout of the probabilities.
        reach (`int`, *optional*): delta is constant for i - j >= reach and for i - j <= -reach; None: not known.
        cu_seqlens (`torch.IntTensor`, *optional*): [D + 1] from 0 to N; B = 1: document n holds the tokens
            cu_seqlens[n] ... cu_seqlens[n + 1] - 1 of one stream, and documents do not attend to each other. Only for
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
    reach: int | None = None
    cu_seqlens: torch.Tensor | None = None

    def position_scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return the sum of the position terms, [B, H, Q, N], by gathers.

        Args:
            q, k (`torch.Tensor`): Q_c · scale and K_c in the dtype of the result.
        """
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
    """Return a context in which autocast is off for `device`; "meta" has none."""
    if device.type == "meta":
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def empty_heads(x: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor [B, H, N, d] like `x`, laid out as [B, N, H, d], so that the heads join without a copy."""
    B, H, N, d = x.shape
    return x.new_empty(B, N, H, d).transpose(1, 2)


def fake_forward(q, *_):
    return empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def fake_backward(grad, out, lse, q, k, v, K_r, Q_r, bias, *others):
    gradients = [empty_heads(q), empty_heads(k), empty_heads(v)]
    for x, is_wanted in zip((K_r, Q_r, bias), others[-1], strict=True):
        # Contiguous, as the operators give them, whatever the strides of the tables are.
        gradients.append(x.new_empty(x.shape) if is_wanted else q.new_empty(0))
    return tuple(gradients)


def save_operands(ctx, inputs, output):
    """Save the tensors for the backward pass; the last three operands are numbers."""
    ctx.save_for_backward(*output, *inputs[:-3])
    ctx.numbers = inputs[-3:]
    ctx.mark_non_differentiable(output[1])


def differentiate_by(backward: Callable) -> Callable:
    """Return the derivative of a forward operator, computed by its backward operator."""

    def differentiate(ctx, grad, _):
        wanted = list(ctx.needs_input_grad[3:6])
        gradients = list(backward(grad, *ctx.saved_tensors, *ctx.numbers, wanted))
        for place, is_wanted in enumerate(wanted, 3):
            if not is_wanted:
                gradients[place] = None
        return *gradients, *[None] * (len(ctx.needs_input_grad) - 6)

    return differentiate

# SPDX-License-Identifier: Apache-2.0
"""Code that the kernels share as operators of torch.

forward(q, k, v, K_r, Q_r, bias, ...) -> (out, lse), and backward(grad, out, lse, all operands of forward, wanted) ->
gradients of the first six. `wanted`, three bools, tells for which of K_r, Q_r and bias.
"""

from collections.abc import Callable

import torch

__all__ = ["differentiate_by", "empty_heads", "fake_backward", "fake_forward", "save_operands"]


def empty_heads(x: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor [B, H, N, d] like `x`, laid out as [B, N, H, d], so that the heads join without a copy."""
    B, H, N, d = x.shape
    return x.new_empty(B, N, H, d).transpose(1, 2)


def fake_forward(q, *_):
    """Return empty tensors of the shapes of the forward operator's results."""
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

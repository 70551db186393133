# SPDX-License-Identifier: Apache-2.0
"""Code that the torch operators of the Triton and native kernels share.

forward(q, k, v, K_r, Q_r, bias, ...) returns (out, lse). backward(grad, out, lse, all operands of forward, wanted) returns
the gradients of the first six operands; `wanted` are three bools that select the gradients of K_r, Q_r and bias.
"""

from collections.abc import Callable

import torch

__all__ = ["differentiate_by", "empty_heads", "fake_backward", "fake_forward", "save_operands"]


def empty_heads(x: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor like `x` [B, H, N, d], stored as [B, N, H, d], so that heads can be joined without a copy."""
    B, H, N, d = x.shape
    return x.new_empty(B, N, H, d).transpose(1, 2)


def fake_forward(q, *_):
    """Return empty tensors with the shapes of the forward operator's results."""
    return empty_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def fake_backward(grad, out, lse, q, k, v, K_r, Q_r, bias, *others):
    gradients = [empty_heads(q), empty_heads(k), empty_heads(v)]
    for x, is_wanted in zip((K_r, Q_r, bias), others[-1], strict=True):
        # The operators return contiguous gradients for any strides of the tables.
        gradients.append(x.new_empty(x.shape) if is_wanted else q.new_empty(0))
    return tuple(gradients)


def save_operands(ctx, inputs, output):
    """Save the operator's tensors, and its last three operands, which are numbers, for the backward pass."""
    ctx.save_for_backward(*output, *inputs[:-3])
    ctx.numbers = inputs[-3:]
    ctx.mark_non_differentiable(output[1])


def differentiate_by(backward: Callable) -> Callable:
    """Return a function for `register_autograd` that computes gradients with the operator `backward`."""

    def differentiate(ctx, grad, _):
        wanted = list(ctx.needs_input_grad[3:6])
        gradients = list(backward(grad, *ctx.saved_tensors, *ctx.numbers, wanted))
        for place, is_wanted in enumerate(wanted, 3):
            if not is_wanted:
                gradients[place] = None
        return *gradients, *[None] * (len(ctx.needs_input_grad) - 6)

    return differentiate

# SPDX-License-Identifier: Apache-2.0
"""The optimizer and learning rate schedule of the published DeBERTa: Adam without bias correction, and linear decay."""

from collections.abc import Callable
from functools import partial

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainingArguments

__all__ = ["OWN_OPTIMIZER", "PublishedAdam", "optimizer_name", "published_rate", "published_schedule"]

# Trainer flags that cannot be combined with the published optimizer.
OWN_OPTIMIZER = {"lr_scheduler_kwargs", "lr_scheduler_type", "optim", "optim_args"}


class PublishedAdam(Optimizer):
    """Adam with decoupled weight decay and without bias correction, like XAdam of microsoft/DeBERTa.

    m = β1 m + (1 - β1) g,  v = β2 v + (1 - β2) g²,  p = p - η (m / (√v + ε) + λ p).

    AdamW divides m by 1 - β1^t and v by 1 - β2^t. Without this correction, early steps are larger by a factor of
    (1 - β1^t) / √(1 - β2^t), which is 3.2 at the first step and at most 6.6.

    Args:
        params: parameters, or groups of them.
        lr, betas, eps, weight_decay: η, (β1, β2), ε and λ.
    """

    def __init__(self, params, lr: float, betas=(0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            lr = float(group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p].update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                m = self.state[p]["exp_avg"].lerp_(p.grad, 1 - beta1)
                v = self.state[p]["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                if group["weight_decay"]:
                    p.mul_(1 - lr * group["weight_decay"])
                p.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-lr)
        return loss


def published_rate(step: int, *, steps: int, warmup: float) -> float:
    """Return the learning rate factor at a step, counted from 0, like `warmup_linear` of microsoft/DeBERTa.

    With x = step / steps and the warm-up share w: x / w for x < w, else 1 - x. (Trainer's linear schedule has
    (1 - x) / (1 - w) instead.) A `warmup` of 1 or more is a number of steps.
    """
    if warmup < 1:
        warmup *= steps
    if step < warmup:
        return step / warmup
    return max(0.0, 1 - step / steps)


def published_schedule(optimizer: Optimizer, steps: int, warmup: float) -> LambdaLR:
    """Return a scheduler that applies `published_rate` to all parameter groups of an optimizer."""
    return LambdaLR(optimizer, partial(published_rate, steps=steps, warmup=warmup))


def optimizer_name(args: TrainingArguments) -> str:
    """Return the names of the optimizer and the schedule, for reports."""
    if getattr(args, "published_optimizer", False):
        return "as published: Adam without bias correction, linear decay as 1 - step / steps"
    return f"{getattr(args.optim, 'value', args.optim)}, {args.lr_scheduler_type.value} schedule"

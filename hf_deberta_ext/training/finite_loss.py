# SPDX-License-Identifier: Apache-2.0
"""Stop on NaN or infinite losses, which `Trainer` hides in its log, and report losses that diverge."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import Trainer

__all__ = ["check_loss", "divergence"]


def check_loss(loss: torch.Tensor, trainer: Trainer):
    """After the last micro-batch of a step, raise a ValueError in all processes if the step's loss is NaN or infinite."""
    loss = loss + trainer.unchecked_loss
    trainer.unchecked_loss = 0.0
    if not trainer.accelerator.sync_gradients:
        trainer.unchecked_loss = loss
        return
    finite = torch.isfinite(loss).all()
    if trainer.args.world_size > 1:
        # Gradients are already averaged over processes: a process that continued would step, and save non-finite weights.
        finite = trainer.accelerator.gather(finite.float().view(1)).min() > 0
    if finite:
        return
    value = loss.float().mean().item()
    if math.isfinite(value):
        value = "not finite in another process"
    raise ValueError(
        f"the loss of step {trainer.state.global_step + 1} is {value}; training was stopped. Likely causes: the learning "
        f"rate {trainer.args.learning_rate:g} is too high, --warmup_steps is too small, or --fp16 overflows (use --bf16)"
    )


def divergence(history: Sequence[Mapping[str, Any]], uniform_loss: float | None) -> str | None:
    """Return a message if the training diverged, else None.

    It diverged if the training loss (median of the last three logged) is above 5 times the loss of a uniform guess, or if
    both the training loss and the last held-out loss are above 1.25 times this loss. If only the held-out loss is high, the
    model overfits instead.

    Args:
        history (`list[dict]`): `trainer.state.log_history`.
        uniform_loss (`float`, *optional*): loss of a uniform guess; None: the first logged loss, at least 1.
    """
    losses = [entry["loss"] for entry in history if "loss" in entry]
    losses = losses or [entry["train_loss"] for entry in history if "train_loss" in entry]
    if not losses:
        return None
    level, loss = uniform_loss or max(losses[0], 1.0), statistics.median(losses[-3:])
    held_out = [0.0, *(entry["eval_loss"] for entry in history if "eval_loss" in entry)][-1]
    if loss <= 5 * level and min(loss, held_out) <= 1.25 * level:
        return None
    return (
        f"The training diverged: its loss is {loss:.4g}, above the loss of a guess or of the first steps ({level:.4g}); "
        "lower the learning rate, or use more warm-up steps."
    )

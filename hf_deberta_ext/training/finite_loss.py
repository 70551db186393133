# SPDX-License-Identifier: Apache-2.0
"""Losses that are not finite end a training, which Trainer would hide in its log; finite ones that diverged are told."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import Trainer

__all__ = ["check_loss", "divergence"]


def check_loss(loss: torch.Tensor, trainer: Trainer):
    """Refuse a step with a loss that is not finite, after its last micro-batch, in all processes together."""
    loss = loss + trainer.unchecked_loss
    trainer.unchecked_loss = 0.0
    if not trainer.accelerator.sync_gradients:
        trainer.unchecked_loss = loss
        return
    finite = torch.isfinite(loss).all()
    if trainer.args.world_size > 1:
        # Gradients are the mean over all by now: a process that went on would step, and save weights that are not finite.
        finite = trainer.accelerator.gather(finite.float().view(1)).min() > 0
    if finite:
        return
    value = loss.float().mean().item()
    if math.isfinite(value):
        value = "not finite in another process"
    raise ValueError(
        f"the loss of step {trainer.state.global_step + 1} is {value}: the training stops. Likely causes: the learning rate "
        f"of {trainer.args.learning_rate:g} is too high, --warmup_steps are too few, or --fp16 overflows (use --bf16)"
    )


def divergence(history: Sequence[Mapping[str, Any]], uniform_loss: float | None) -> str | None:
    """Return a sentence if a training has diverged: its loss (median of the last three logged) is five times that of a
    uniform guess, or a quarter above it with the last held-out loss. A held-out loss alone says that it learned by heart.

    Args:
        history (`list[dict]`): `trainer.state.log_history`.
        uniform_loss (`float`, *optional*): None: the first logged loss is in its place, and at least 1.
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
        f"The training diverged: its loss is {loss:.4g}, above that of a guess or of the beginning, {level:.4g}; lower the "
        "learning rate, or warm up longer."
    )

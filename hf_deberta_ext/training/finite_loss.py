# SPDX-License-Identifier: Apache-2.0
"""Losses that are not finite end a training: Trainer would hide them in its log, and go on with non-finite weights.

Finite ones of a training that diverged are told.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

__all__ = ["check_loss", "divergence"]


def check_loss(loss: torch.Tensor, trainer: Trainer):
    """Check the losses of a step behind its last micro-batch; before that, remember this one.

    All processes stop there together: one that stopped in the middle of a step would leave the others waiting for it, and
    the diagnosis of sharded weights waiting for them.

    Raises:
        ValueError: a loss is not finite, here or in another process; says of which step, and the likely causes.
    """
    loss, trainer.unchecked_loss = loss + trainer.unchecked_loss, 0.0
    if not trainer.accelerator.sync_gradients:
        trainer.unchecked_loss = loss
        return
    finite = torch.isfinite(loss).all()
    if trainer.args.world_size > 1:
        # Gradients are the mean over all by now: a process that went on would step, and save weights that are not finite.
        finite = trainer.accelerator.gather(finite.float().view(1)).min() > 0
    if not finite:
        step, rate = trainer.state.global_step + 1, trainer._get_learning_rate()
        raise ValueError(diagnosis(loss, step, rate, trainer.model, trainer.args))


def diagnosis(loss: torch.Tensor, step: int, learning_rate: float, model: nn.Module, args: TrainingArguments) -> str:
    """Message with step, loss and likely causes."""
    parameters = next(model.parameters()).dtype
    half = "fp16" if args.fp16 else "bf16" if args.bf16 else None
    arithmetic = f"{parameters} parameters" + (f" with --{half}" if half else "")
    layers = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    causes = []
    if args.fp16 or parameters == torch.float16:
        causes.append("float16 overflows (mDeBERTa's activations do: use --bf16, or neither)")
    if any(not torch.isfinite(parameter).all() for parameter in model.parameters()):
        causes.append("the weights themselves are not finite" + (" in the checkpoint" if step == 1 else " any more"))
    size = f" for {layers} layers" if layers else ""
    value = loss.float().mean().item()
    shown = "not finite in another process" if math.isfinite(value) else value
    causes.append(f"the learning rate of {args.learning_rate:g} is too high{size}, or --warmup_steps too few")
    if args.max_grad_norm == 0:
        causes.append("gradients are not clipped (--max_grad_norm 0)")
    return (
        f"the loss of step {step} is {shown} (learning rate {learning_rate:.3g}, {arithmetic}): the "
        f"training stops. Likely causes: {'; '.join(causes)}"
    )


def divergence(history: Sequence[Mapping[str, Any]], uniform_loss: float | None) -> str | None:
    """A sentence if a training has diverged: its loss (median of the last three logged) is five times that of a uniform
    guess, or a quarter above it with the last held-out loss. A held-out loss alone says that it learned by heart.

    Args:
        history (`list[dict]`): `trainer.state.log_history`.
        uniform_loss (`float`, *optional*): None: the first logged loss is in its place, and at least 1.
    """
    # From both ends: a long log is not read anew at each of its entries.
    name = "loss" if any("loss" in entry for entry in history) else "train_loss"
    first = next((entry[name] for entry in history if name in entry), None)
    if first is None:
        return None
    last = itertools.islice((entry[name] for entry in reversed(history) if name in entry), 3)
    level, loss = uniform_loss or max(first, 1.0), statistics.median(last)
    if not loss > 1.25 * level:
        return None
    held_out = next((entry["eval_loss"] for entry in reversed(history) if "eval_loss" in entry), None)
    if not (loss > 5 * level or (held_out is not None and held_out > 1.25 * level)):
        return None
    shown = "" if held_out is None else f", held out {held_out:.4g}"
    reference = f"that of a uniform guess {level:.4g}" if uniform_loss else f"the first one was {first:.4g}"
    return f"The training diverged: its loss is {loss:.4g}{shown}, {reference}; lower the learning rate, or warm up longer."

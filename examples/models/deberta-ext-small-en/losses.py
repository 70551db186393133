# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Losses of the heads: means over the labels that count, exact under gradient accumulation."""

import torch
from torch.nn import functional

from .input_validation import check_labels, require_tensor, values_at_hand

__all__ = ["cross_entropy", "mean_loss", "sequence_loss"]


def mean_loss(losses: torch.Tensor, count: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None = None):
    """Sum of `losses` over `num_items_in_batch` (Trainer's count over all accumulation steps and processes) or `count`.

    With nothing to learn from the result is 0 and still has a gradient, so that distributed training does not hang.

    Raises:
        ValueError: `num_items_in_batch` is no number of 0 or more.
    """
    _check_count(num_items_in_batch)
    items = count if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / torch.as_tensor(items, device=losses.device).clamp(min=1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Cross-entropy in float32 of logits [..., C] and int labels [...] of as many elements; -100 = ignored.

    Raises:
        ValueError: labels that are no integers, or, on CPU, outside of [0, C).
    """
    check_labels("labels", labels, "class", classes=logits.shape[-1])
    labels = labels.reshape(-1).to(logits.device, torch.long)
    losses = functional.cross_entropy(logits.flatten(0, -2).float(), labels, ignore_index=-100, reduction="none")
    return mean_loss(losses, (labels != -100).sum(), num_items_in_batch)


def sequence_loss(logits: torch.Tensor, labels: torch.Tensor, config, num_items_in_batch=None) -> torch.Tensor:
    """The loss of sequence classification for `config.problem_type`, which is set from labels and num_labels if None.

    Args:
        logits (`torch.Tensor`): [B, C].
        labels (`torch.Tensor`): regression: [B] (or [B, 1]) for C = 1, else [B, C]; single label: ints [B] or [B, 1], -100
            ignored; multi-label: 0/1 [B, C], -100 ignored.

    Raises:
        ValueError: labels whose shape does not fit, floats for a single label, or, on CPU, a class or number out of range.
    """
    require_tensor("labels", labels)
    B, C = logits.shape
    labels = labels.to(logits.device)
    problem = config.problem_type
    if problem is None:
        single = list(labels.shape) in ([B], [B, 1])
        problem = "regression" if C == 1 else "single_label_classification" if single else "multi_label_classification"
    shapes = ([B], [B, 1]) if problem == "single_label_classification" else ([B, C], *(([B],) if C == 1 else ()))
    if list(labels.shape) not in shapes:
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit logits of shape {list(logits.shape)} for problem_type "
            f"{problem!r}; check num_labels = {C} and config.problem_type"
        )
    if problem == "single_label_classification" and labels.is_floating_point():
        raise ValueError(
            f"single-label classification takes integer labels, got {labels.dtype}; for regression set num_labels = 1"
        )
    kinds = {"single_label_classification": "class", "multi_label_classification": "fraction", "regression": "number"}
    check_labels("labels", labels, kinds[problem], classes=C)
    _check_count(num_items_in_batch)
    # Only labels that fit decide for all that follow.
    config.problem_type = problem
    if problem == "single_label_classification":
        return cross_entropy(logits, labels, num_items_in_batch)
    logits, labels = logits.float(), labels.reshape(logits.shape).float()
    if problem == "regression":
        return mean_loss(functional.mse_loss(logits, labels, reduction="none"), labels.numel(), num_items_in_batch)
    counted = labels != -100
    losses = functional.binary_cross_entropy_with_logits(logits, labels, weight=counted.float(), reduction="none")
    return mean_loss(losses, counted.sum(), num_items_in_batch)


def _check_count(count):
    if count is None:
        return
    if isinstance(count, torch.Tensor):
        is_count = count.numel() == 1 and not (values_at_hand(count) and not bool(count >= 0))
    else:
        is_count = not isinstance(count, bool | str | list | tuple | dict) and count >= 0
    if not is_count:
        raise ValueError(f"num_items_in_batch must be a count, a number or a tensor of one, got {count!r}")

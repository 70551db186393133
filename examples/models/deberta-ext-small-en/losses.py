# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Losses of the heads: means over the labels that count, exact under gradient accumulation."""

import torch
from torch.nn import functional

from .input_validation import check_whole, values_at_hand

__all__ = ["check_fractions", "cross_entropy", "mean_loss", "sequence_loss"]


def mean_loss(losses: torch.Tensor, count: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None = None):
    """Return the sum of `losses` over `num_items_in_batch` (Trainer's count over all accumulation steps and processes) or
    `count`.

    With nothing to learn from the result is 0 and still has a gradient, so that distributed training does not hang.
    """
    items = count if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / torch.as_tensor(items, device=losses.device).clamp(min=1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Return the cross-entropy in float32 of logits [..., C] and int labels [...] of as many elements; -100 = ignored."""
    labels = labels.reshape(-1).to(logits.device, torch.long)
    losses = functional.cross_entropy(logits.flatten(0, -2).float(), labels, ignore_index=-100, reduction="none")
    return mean_loss(losses, (labels != -100).sum(), num_items_in_batch)


def sequence_loss(logits: torch.Tensor, labels: torch.Tensor, config, num_items_in_batch=None) -> torch.Tensor:
    """Return the loss of sequence classification for `config.problem_type`, which is set from labels and num_labels if None.

    Args:
        logits (`torch.Tensor`): [B, C].
        labels (`torch.Tensor`): regression: [B] (or [B, 1]) for C = 1, else [B, C]; single label: ints [B] or [B, 1], -100
            ignored; multi-label: 0/1 [B, C], -100 ignored.

    Raises:
        ValueError: labels whose shape or dtype does not fit `config.problem_type` and `config.num_labels`.
    """
    B, C = logits.shape
    labels = labels.to(logits.device)
    shape = list(labels.shape)
    one_each = shape in ([B], [B, 1])
    problem = config.problem_type
    if problem is None:
        if C == 1:
            problem = "regression"
        elif one_each:
            problem = "single_label_classification"
        else:
            problem = "multi_label_classification"
    is_single = problem == "single_label_classification"
    fits = shape == [B, C]
    if is_single or C == 1:
        fits = one_each
    if not fits:
        raise ValueError(
            f"labels of shape {shape} do not fit {B} rows, num_labels = {C} and problem_type = {problem!r}: one label a row "
            "is [B] or [B, 1], several are [B, num_labels]"
        )
    if is_single:
        check_whole(f"labels for problem_type = {problem!r}", labels)
    elif problem == "multi_label_classification":
        check_fractions(labels)
    # Only labels that fit decide for all that follow.
    config.problem_type = problem
    if is_single:
        return cross_entropy(logits, labels, num_items_in_batch)
    logits, labels = logits.float(), labels.reshape(logits.shape).float()
    if problem == "regression":
        return mean_loss(functional.mse_loss(logits, labels, reduction="none"), labels.numel(), num_items_in_batch)
    counted = labels != -100
    losses = functional.binary_cross_entropy_with_logits(logits, labels, weight=counted.float(), reduction="none")
    return mean_loss(losses, counted.sum(), num_items_in_batch)


def check_fractions(labels: torch.Tensor):
    """Refuse labels of a binary cross-entropy that are not in [0, 1] or -100: the loss would have no lower end.

    Raises:
        ValueError: such a value, on CPU.
    """
    if values_at_hand(labels):
        wrong = ~(((labels >= 0) & (labels <= 1)) | (labels == -100))
        if bool(wrong.any()):
            raise ValueError(f"labels must be in [0, 1], or -100 (not counted), got {labels[wrong][0].item()}")

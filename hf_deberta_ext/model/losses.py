# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Losses of the heads: means over the labels that count, exact under gradient accumulation."""

import torch
from torch.nn import functional

__all__ = ["cross_entropy", "mean_loss", "sequence_loss"]


def mean_loss(losses: torch.Tensor, count: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None = None):
    """Sum of `losses` over `num_items_in_batch` (Trainer's count over all accumulation steps and processes) or `count`.

    With nothing to learn from the result is 0 and still has a gradient, so that distributed training does not hang.
    """
    items = count if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / torch.as_tensor(items, device=losses.device).clamp(min=1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Cross-entropy in float32 of logits [..., C] and int labels [...] of as many elements; -100 = ignored."""
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
        ValueError: labels whose shape does not fit, or floats for a single label.
    """
    C = logits.shape[-1]
    labels = labels.to(logits.device)
    if config.problem_type is None:
        single = labels.numel() == logits.shape[0]
        config.problem_type = (
            "regression" if C == 1 else "single_label_classification" if single else "multi_label_classification"
        )
    wanted = logits.shape[0] if config.problem_type == "single_label_classification" else logits.numel()
    if labels.numel() != wanted:
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit logits of shape {list(logits.shape)} for problem_type "
            f"{config.problem_type!r}; check num_labels = {C} and config.problem_type"
        )
    if config.problem_type == "single_label_classification":
        if labels.is_floating_point():
            raise ValueError(
                f"single-label classification takes integer labels, got {labels.dtype}; for regression set num_labels = 1"
            )
        return cross_entropy(logits, labels, num_items_in_batch)
    logits, labels = logits.float(), labels.reshape(logits.shape).float()
    if config.problem_type == "regression":
        return mean_loss(functional.mse_loss(logits, labels, reduction="none"), labels.numel(), num_items_in_batch)
    counted = labels != -100
    losses = functional.binary_cross_entropy_with_logits(logits, labels, weight=counted.float(), reduction="none")
    return mean_loss(losses, counted.sum(), num_items_in_batch)

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Losses of the heads: means over the labels that count, exact under gradient accumulation."""

import torch
from torch.nn import functional

from .configuration_deberta_ext import PROBLEMS
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
        ValueError: labels whose shape does not fit, floats for a single label, or, on CPU, a class or number out of range;
            it says which of `config.problem_type`, `config.num_labels` and the labels to change.
    """
    require_tensor("labels", labels)
    B, C = logits.shape
    labels = labels.to(logits.device)
    problem = config.problem_type
    if problem is None:
        single = list(labels.shape) in ([B], [B, 1])
        problem = "regression" if C == 1 else "single_label_classification" if single else "multi_label_classification"
    if not _fits(labels, problem, B, C):
        raise ValueError(_misfit(labels, config.problem_type, B, C))
    kinds = {"single_label_classification": "class", "multi_label_classification": "fraction", "regression": "number"}
    try:
        check_labels("labels", labels, kinds[problem], classes=C)
    except ValueError as error:
        raise ValueError(f"{error}, with problem_type = {problem!r} and num_labels = {C}") from None
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


def _fits(labels: torch.Tensor, problem: str, B: int, C: int) -> bool:
    """Tell if labels have the shape and the kind of numbers of a problem, for B rows and C labels."""
    if problem == "single_label_classification":
        return list(labels.shape) in ([B], [B, 1]) and not labels.is_floating_point()
    return list(labels.shape) in ([B, C], *([[B]] if C == 1 else []))


def _misfit(labels: torch.Tensor, problem: str | None, B: int, C: int) -> str:
    """The error for labels that do not fit: what was expected, what came, what to change."""
    shape = list(labels.shape)
    classes, numbers = f"integers [{B}] or [{B}, 1]", f"numbers [{B}, {C}]" + (f" or [{B}]" if C == 1 else "")
    if problem is None:
        expected = f"{classes} (one label for each row) or {numbers} (several)" if C > 1 else numbers
        cause = f"num_labels = {C}"
    else:
        expected = classes if problem == "single_label_classification" else numbers
        cause = f"config.problem_type = {problem!r} and num_labels = {C}"
    fitting = [name for name in PROBLEMS if _fits(labels, name, B, C)]
    if fitting:
        fix = f"set config.problem_type = {' or '.join(map(repr, fitting))}"
    elif shape in ([B], [B, 1]):
        unset = " and set config.problem_type = None"
        fix = "for classes give labels.long()" + (unset if problem not in (None, "single_label_classification") else "")
        fix += "; for regression set num_labels = 1" + (unset if problem not in (None, "regression") else "")
    elif len(shape) == 2 and shape[0] == B and shape[1] > 0:
        fix = f"set num_labels = {shape[1]}" + (
            " and config.problem_type = None" if problem == "single_label_classification" else ""
        )
    else:
        fix = f"give them in that shape, for the {B} rows of the batch"
    return f"labels must be {expected} for {cause}, got {labels.dtype} {shape}; {fix}"


def _check_count(count):
    if count is None:
        return
    if isinstance(count, torch.Tensor):
        is_count = count.numel() == 1 and not (values_at_hand(count) and not bool(count >= 0))
    else:
        is_count = not isinstance(count, bool | str | list | tuple | dict) and count >= 0
    if not is_count:
        raise ValueError(f"num_items_in_batch must be a count, a number or a tensor of one, got {count!r}")

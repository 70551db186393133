# SPDX-License-Identifier: Apache-2.0
"""Measure the distance between the outputs of two forward passes over the same batch, for any task head.

The clean pass is the normal forward pass; the perturbed pass adds δ to the embeddings (see `perturbation.py`). An item is a
row of the batch or, in token classification, a token.
"""

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["LOSSES", "divergence", "real_tokens"]

LOSSES = ("symmetric_kl", "symmetric_cross_entropy", "kl", "mse")


def divergence(outputs: Any, perturbed: Any, inputs: Mapping[str, Any], config: Any, loss: str = "symmetric_kl"):
    """Compute the distance between the outputs of a clean pass and of a perturbed pass.

    Args:
        outputs, perturbed (`ModelOutput`): `start_logits` and `end_logits` [B, N], token `logits` [B, N, C], or `logits`
            [B, C]. In [B, N, C], only tokens with a label other than -100 count or, without labels, tokens with 1 in the
            attention mask. In [B, C], choices with label -100 (`labels` [B, C]) are ignored.
        inputs (`dict`): the batch, for its mask and labels.
        config (`PretrainedConfig`): model configuration; `problem_type` and `num_labels` give the meaning of logits [B, C].
        loss (`str`, default `"symmetric_kl"`): one of `LOSSES`, see `SiftOptions`.
    Returns:
        (distances [items] in float32, counts [items] bool, False for items to ignore, mean absolute change of the logits).
    """
    mask = real_tokens(inputs)
    if "start_logits" in outputs:
        values, changes = [], []
        for name in ("start_logits", "end_logits"):
            values.append(categorical_distance(outputs[name], perturbed[name], loss, mask))
            changes.append(mean_change(outputs[name], perturbed[name], mask))
        return sum(values) / 2, torch.ones_like(values[0], dtype=torch.bool), sum(changes) / 2
    p, q, labels = outputs["logits"], perturbed["logits"], inputs.get("labels")
    if p.dim() == 3:
        counts = torch.ones(p.shape[:2], dtype=torch.bool, device=p.device) if mask is None else mask
        if labels is not None and labels.shape == p.shape[:2]:
            counts = labels != -100
        return categorical_distance(p, q, loss).flatten(), counts.flatten(), mean_change(p, q, counts[..., None])
    p, q = p.reshape(len(p), -1), q.reshape(len(q), -1)
    problem = present = None
    if not is_choice(inputs):
        problem = problem_type(config, labels)
    elif labels is not None and labels.shape == p.shape:
        # Rows with fewer choices than others have labels [B, C], with -100 for a missing choice.
        present = labels != -100
    if problem == "regression":
        loss = "mse"
    if problem == "multi_label_classification" and loss != "mse":
        # Each label is a binary choice: two classes with logits 0 and x.
        zeros = torch.zeros_like(p)
        values = categorical_distance(torch.stack([zeros, p], -1), torch.stack([zeros, q], -1), loss).mean(-1)
    else:
        values = categorical_distance(p, q, loss, present)
    return values, torch.ones_like(values, dtype=torch.bool), mean_change(p, q, present)


def is_choice(inputs: Mapping[str, Any]) -> bool:
    """Return True for a batch of multiple choice: input_ids [B, C, N] or inputs_embeds [B, C, N, E]."""
    if inputs.get("input_ids") is not None:
        return inputs["input_ids"].dim() == 3
    return inputs.get("inputs_embeds") is not None and inputs["inputs_embeds"].dim() == 4


def problem_type(config: Any, labels: torch.Tensor | None) -> str:
    """Determine the problem type of logits [B, C] by the rules of transformers' heads."""
    if getattr(config, "problem_type", None) is not None:
        return config.problem_type
    if config.num_labels == 1:
        return "regression"
    if labels is not None and labels.is_floating_point():
        return "multi_label_classification"
    return "single_label_classification"


def real_tokens(inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the mask of real tokens (not padding), [rows, N] bool; None if the inputs have no mask."""
    if inputs.get("document_ids") is not None:
        return inputs["document_ids"] != 0
    if inputs.get("attention_mask") is None:
        return None
    mask = inputs["attention_mask"] != 0
    if is_choice(inputs):
        return mask.flatten(0, 1)
    if mask.dim() > 2:
        # A mask of token pairs: a token is real if any token may attend to it.
        mask = mask.flatten(1, -2).any(1)
    return mask


def upcast(logits: torch.Tensor) -> torch.Tensor:
    """Convert half-precision logits to float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def categorical_distance(p_logits, q_logits, loss: str, mask=None) -> torch.Tensor:
    """Compute the distance [...] between the softmax distributions of two logits [..., C], over classes with mask True."""
    p_logits, q_logits = upcast(p_logits), upcast(q_logits)
    count = p_logits.shape[-1]
    if mask is not None:
        lowest = torch.finfo(p_logits.dtype).min
        p_logits, q_logits = p_logits.masked_fill(~mask, lowest), q_logits.masked_fill(~mask, lowest)
        count = mask.sum(-1).clamp(min=1)
    if loss == "mse":
        return (q_logits - p_logits).square().sum(-1) / count
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    if loss == "kl":
        log_p = log_p.detach()
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    if loss == "symmetric_kl":
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    return -(log_p.exp().detach() * log_q + log_q.exp().detach() * log_p).sum(-1)


def mean_change(p_logits, q_logits, counted=None) -> torch.Tensor:
    """Compute the mean of |q - p| without gradient, only where `counted` is True (None: everywhere)."""
    change = (upcast(q_logits.detach()) - upcast(p_logits.detach())).abs()
    if counted is None:
        return change.mean()
    counted = counted.expand_as(change)
    return change.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)

# SPDX-License-Identifier: Apache-2.0
"""Distance of the outputs of two passes of a model over one batch, for every head."""

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["LOSSES", "divergence", "real_tokens"]

LOSSES = ("symmetric_kl", "symmetric_cross_entropy", "kl", "mse")


def divergence(outputs: Any, perturbed: Any, inputs: Mapping[str, Any], config: Any, loss: str = "symmetric_kl"):
    """Distance of the outputs of a perturbed pass from those of the clean one.

    Args:
        outputs, perturbed (`ModelOutput`): with `start_logits` and `end_logits` [B, N]; `logits` [B, N, C] of tokens, of
            which those count whose `labels` are not -100 (without labels: those of the attention mask); or `logits` [B, C],
            of choices without those whose `labels` [B, C] are -100.
        inputs (`dict`): the batch, for the mask and the labels.
        config (`PretrainedConfig`): its `problem_type` and `num_labels` tell the kind of logits [B, C].
        loss (`str`): one of `LOSSES`, see `SiftOptions`.
    Returns:
        (D [items] float32, counts [items] bool: True for those that count, change: mean absolute change of the logits).
    Raises:
        ValueError: outputs without logits.
    """
    mask = real_tokens(inputs)
    if "start_logits" in outputs:
        pairs = [(outputs[name], perturbed[name]) for name in ("start_logits", "end_logits")]
        values = [categorical_distance(p, q, loss, mask) for p, q in pairs]
        counts = torch.ones(len(values[0]), dtype=torch.bool, device=values[0].device)
        counted = torch.ones_like(pairs[0][0], dtype=torch.bool) if mask is None else mask
        return sum(values) / 2, counts, sum(mean_change(p, q, counted) for p, q in pairs) / 2
    if "logits" not in outputs:
        raise ValueError(
            f"outputs are compared by logits, or start_logits and end_logits; the model returns {', '.join(outputs.keys())}"
        )
    p, q, labels = outputs["logits"], perturbed["logits"], inputs.get("labels")
    if p.dim() == 3:
        if labels is not None and labels.shape == p.shape[:2]:
            counts = labels != -100
        else:
            counts = torch.ones(p.shape[:2], dtype=torch.bool, device=p.device) if mask is None else mask
        return categorical_distance(p, q, loss).flatten(), counts.flatten(), mean_change(p, q, counts[..., None])
    p, q = p.reshape(len(p), -1), q.reshape(len(q), -1)
    problem, present = None if is_choice(inputs) else problem_type(config, labels), None
    # Rows of fewer choices than others carry labels [B, C], -100 for an absent choice.
    if problem is None and labels is not None and labels.shape == p.shape:
        present = labels != -100
    if problem == "multi_label_classification" and loss != "mse":
        # Each label is yes or no, two classes: their logits are 0 and x.
        two_classes = [torch.stack([torch.zeros_like(x), x], -1) for x in (p, q)]
        values = categorical_distance(*two_classes, loss).mean(-1)
    else:
        values = categorical_distance(p, q, "mse" if problem == "regression" else loss, present)
    counts = torch.ones(len(values), dtype=torch.bool, device=values.device)
    return values, counts, mean_change(p, q, counts[:, None] if present is None else present)


def is_choice(inputs: Mapping[str, Any]) -> bool:
    ids = inputs.get("input_ids")
    embeddings = inputs.get("inputs_embeds")
    return (ids is not None and ids.dim() == 3) or (embeddings is not None and embeddings.dim() == 4)


def problem_type(config: Any, labels: torch.Tensor | None) -> str:
    """Kind of logits [B, C], as transformers' heads decide it."""
    if getattr(config, "problem_type", None) is not None:
        return config.problem_type
    if config.num_labels == 1:
        return "regression"
    is_float = labels is not None and labels.is_floating_point()
    return "multi_label_classification" if is_float else "single_label_classification"


def real_tokens(inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """[rows, N] bool, True = a real token; None where all are."""
    ids = inputs.get("document_ids")
    if ids is not None:
        return ids != 0
    mask = inputs.get("attention_mask")
    if mask is None:
        return None
    mask = mask != 0
    if is_choice(inputs):
        return mask.flatten(0, 1)
    # A mask of pairs: a token is real if some token may look at it.
    return mask if mask.dim() == 2 else mask.flatten(1, -2).any(1)


def at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    """In float32, or in float64 where they are that."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def categorical_distance(p_logits, q_logits, loss: str, mask=None) -> torch.Tensor:
    """[..., C], [..., C] -> [...], between the distributions p and q, softmax over C or its `mask`."""
    p_logits, q_logits = at_least_float32(p_logits), at_least_float32(q_logits)
    if mask is not None:
        p_logits, q_logits = (x.masked_fill(~mask, torch.finfo(x.dtype).min) for x in (p_logits, q_logits))
    if loss == "mse":
        squares = (q_logits - p_logits).square()
        return squares.mean(-1) if mask is None else squares.masked_fill(~mask, 0).sum(-1) / mask.sum(-1).clamp(min=1)
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    if loss == "kl":
        log_p = log_p.detach()
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    if loss == "symmetric_kl":
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    return -(log_p.exp().detach() * log_q + log_q.exp().detach() * log_p).sum(-1)


def mean_change(p_logits, q_logits, counted) -> torch.Tensor:
    """Mean of |q - p| where `counted`, without gradient."""
    counted = counted.expand_as(p_logits)
    change = (at_least_float32(q_logits.detach()) - at_least_float32(p_logits.detach())).abs()
    return change.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)

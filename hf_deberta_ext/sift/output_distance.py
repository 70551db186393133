# SPDX-License-Identifier: Apache-2.0
"""How much the outputs of a model differ between two passes over one batch, for every head."""

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["LOSSES", "divergence", "real_tokens"]

LOSSES = ("symmetric_kl", "symmetric_cross_entropy", "kl", "mse")


def divergence(outputs: Any, perturbed: Any, inputs: Mapping[str, Any], config: Any, loss: str = "symmetric_kl"):
    """How much the outputs of a perturbed pass differ from those of the clean one.

    Args:
        outputs, perturbed (`ModelOutput`): with `start_logits` and `end_logits` [B, N]; `logits` [B, N, C] of tokens, of
            which those count whose `labels` are not -100 (without labels: those of the attention mask); or `logits` [B, C],
            of choices without those whose `labels` [B, C] are -100.
        inputs (`dict`): what the model was given, for the mask and the labels.
        config (`PretrainedConfig`): its `problem_type` and `num_labels` say what logits [B, C] are.
        loss (`str`): one of `LOSSES`, as `SiftOptions` tells.
    Returns:
        (D [items] float32, count [items] bool: which of them count, change: mean absolute change of the logits).
    Raises:
        ValueError: outputs without logits.
    """
    mask = real_tokens(inputs)
    if "start_logits" in outputs:
        pairs = [(outputs[name], perturbed[name]) for name in ("start_logits", "end_logits")]
        values = [_categorical(clean, other, loss, mask) for clean, other in pairs]
        counts = torch.ones(len(values[0]), dtype=torch.bool, device=values[0].device)
        counted = torch.ones_like(pairs[0][0], dtype=torch.bool) if mask is None else mask
        return sum(values) / 2, counts, sum(_change(clean, other, counted) for clean, other in pairs) / 2
    if "logits" not in outputs:
        raise ValueError(
            f"outputs are compared by logits, or start_logits and end_logits; the model returns {', '.join(outputs.keys())}"
        )
    clean, other = outputs["logits"], perturbed["logits"]
    if clean.dim() == 3:
        labels = inputs.get("labels")
        if labels is not None and labels.shape == clean.shape[:2]:
            counts = labels != -100
        else:
            counts = torch.ones(clean.shape[:2], dtype=torch.bool, device=clean.device) if mask is None else mask
        return _categorical(clean, other, loss).flatten(), counts.flatten(), _change(clean, other, counts[..., None])
    kind = "categorical" if _is_choice(inputs) else _problem(config, inputs)
    clean, other = clean.reshape(len(clean), -1), other.reshape(len(other), -1)
    # Rows of fewer choices than others carry labels [B, C], -100 for a choice that is not there.
    labels, present = inputs.get("labels"), None
    if kind == "categorical" and labels is not None and labels.shape == clean.shape:
        present = labels != -100
    if kind == "regression":
        values = (_exact(other) - _exact(clean)).square().mean(-1)
    elif kind == "multi_label_classification":
        values = _bernoulli(clean, other, loss)
    else:
        values = _categorical(clean, other, loss, present)
    counts = torch.ones(len(values), dtype=torch.bool, device=values.device)
    return values, counts, _change(clean, other, counts[:, None] if present is None else present)


def _is_choice(inputs: Mapping[str, Any]) -> bool:
    ids = inputs.get("input_ids")
    embeddings = inputs.get("inputs_embeds")
    return (ids is not None and ids.dim() == 3) or (embeddings is not None and embeddings.dim() == 4)


def _problem(config: Any, inputs: Mapping[str, Any]) -> str:
    """What logits [B, C] are, as transformers' heads decide."""
    labels = inputs.get("labels")
    problem = getattr(config, "problem_type", None)
    if problem is not None:
        return problem
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
    if _is_choice(inputs):
        return mask.flatten(0, 1)
    # A mask of pairs: a token is real if some token may look at it.
    return mask if mask.dim() == 2 else mask.flatten(1, -2).any(1)


def _exact(logits: torch.Tensor) -> torch.Tensor:
    """In float32, or in float64 where they are that."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _categorical(clean, other, loss: str, mask=None) -> torch.Tensor:
    """[..., C], [..., C] -> [...], of the distributions softmax(clean) = p and softmax(other) = q over C, or its `mask`."""
    clean, other = _exact(clean), _exact(other)
    if mask is not None:
        clean, other = (logits.masked_fill(~mask, torch.finfo(clean.dtype).min) for logits in (clean, other))
    if loss == "mse":
        squares = (other - clean).square()
        return squares.mean(-1) if mask is None else squares.masked_fill(~mask, 0).sum(-1) / mask.sum(-1).clamp(min=1)
    log_p, log_q = clean.log_softmax(-1), other.log_softmax(-1)
    if loss == "kl":
        log_p = log_p.detach()
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    if loss == "symmetric_kl":
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    return -(log_p.exp().detach() * log_q + log_q.exp().detach() * log_p).sum(-1)


def _bernoulli(clean, other, loss: str) -> torch.Tensor:
    """[B, C], [B, C] -> [B], the mean over C labels, each yes or no."""
    clean, other = _exact(clean), _exact(other)
    if loss == "mse":
        return (other - clean).square().mean(-1)
    # Two classes: their logits are 0 and x.
    two = [torch.stack([torch.zeros_like(logits), logits], -1) for logits in (clean, other)]
    return _categorical(*two, loss).mean(-1)


def _change(clean, other, counted) -> torch.Tensor:
    """Mean of |other - clean| where `counted`, without gradient."""
    counted = counted.expand_as(clean)
    difference = (_exact(other.detach()) - _exact(clean.detach())).abs().masked_fill(~counted, 0)
    return difference.sum() / counted.sum().clamp(min=1)

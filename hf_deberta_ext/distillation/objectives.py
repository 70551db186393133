# SPDX-License-Identifier: Apache-2.0
"""Objectives of distillation: for each one, the compared outputs of student and teacher (`signals`), and the loss.

The same function computes the signals of both models, so the loss of a model against itself is 0. Signals are [B, N, W] for
the N tokens of the student, or [B, 1, W] for whole texts. NaN in the teacher's signal marks tokens that are not compared.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

__all__ = ["OBJECTIVES", "Objective", "attention_recorded", "cosine_loss", "relation_loss", "signals", "soft_label_loss"]

# Names of the projections of queries, keys and values in transformers' models
PROJECTIONS = ["query_proj", "key_proj", "value_proj"], ["query", "key", "value"], ["q_lin", "k_lin", "v_lin"]
PROJECTIONS += (["q_proj", "k_proj", "v_proj"],)


def soft_label_loss(student: torch.Tensor, teacher: torch.Tensor, kind: str = "classes", T: float = 1.0) -> torch.Tensor:
    """Compute the soft-label loss T² KL(softmax(z_t / T) || softmax(z_s / T)), mean over distributions (Hinton et al. 2015).

    Args:
        student, teacher (`torch.Tensor`): logits z_s and z_t, [B, N, W]. A teacher logit of -inf is a probability of 0.
        kind (`str`): "classes": a distribution over W classes for each token or row; "labels": W independent labels, with
            the sigmoid; "positions": W distributions over the N tokens (start and end of an answer); "scores": the mean of
            (z_t - z_s)², without a temperature.
        T (`float`): temperature.
    """
    compared = ~teacher.isnan().any(-1)
    if kind == "scores":
        return (student - teacher)[compared].square().mean()
    if kind == "positions":
        student, teacher = (x.masked_fill(~compared[..., None], -math.inf).transpose(1, 2) for x in (student, teacher))
        has_start_and_end = (teacher > -math.inf).any(-1)
        student, teacher = student[has_start_and_end], teacher[has_start_and_end]
        student = student.masked_fill(teacher == -math.inf, -math.inf)
    else:
        student, teacher = student[compared], teacher[compared]
    if kind == "labels":
        # The sigmoid is a softmax over (z, 0).
        student, teacher = (torch.stack([x, torch.zeros_like(x)], -1) for x in (student, teacher))
    student, teacher = (student / T).log_softmax(-1), (teacher / T).log_softmax(-1)
    impossible = teacher == -math.inf
    terms = teacher.exp() * (teacher - student).masked_fill(impossible, 0.0)
    return T**2 * terms.sum(-1).mean()


def cosine_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Compute the mean of 1 - cos(student, teacher) over tokens or texts; narrower teacher vectors are padded with zeros."""
    compared = ~teacher.isnan().any(-1)
    teacher = functional.pad(teacher, (0, student.shape[-1] - teacher.shape[-1]))
    return (1 - functional.cosine_similarity(student[compared], teacher[compared], dim=-1)).mean()


def relation_loss(student: torch.Tensor, teacher: torch.Tensor, heads: int | None = None) -> torch.Tensor:
    """Compute the loss of self-attention relations, KL(R_t || R_s), mean over Q, K, V, heads and tokens (MiniLM v2).

    R = softmax(A Aᵀ / sqrt(d)), where A is Q, K or V of one layer, divided into `heads` relation heads of size d. By
    default, `heads` is the largest number up to 48 (as in Wang et al. 2021) that divides both widths W. `student` and
    `teacher` are [B, N, 3 W], the concatenation of Q, K and V.
    """
    if heads is None:
        common = math.gcd(student.shape[-1] // 3, teacher.shape[-1] // 3)
        heads = max(number for number in range(1, 49) if common % number == 0)
    compared = ~teacher.isnan().any(-1)

    def log_relations(x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(-1, (3 * heads, -1)).transpose(1, 2).masked_fill(~compared[:, None, :, None], 0.0)
        scores = x @ x.transpose(-1, -2) / math.sqrt(x.shape[-1])
        # Not -inf, whose difference would be NaN
        return scores.masked_fill(~compared[:, None, None], torch.finfo(scores.dtype).min).log_softmax(-1)

    student, teacher = log_relations(student), log_relations(teacher)
    terms = (teacher.exp() * (teacher - student)).sum(-1)
    return terms.mean(1)[compared].mean()


class Objective(NamedTuple):
    """Title of an objective, and its loss function loss(student_signal, teacher_signal, **options)."""

    title: str
    loss: Callable[..., torch.Tensor]


OBJECTIVES = {
    "soft_labels": Objective("soft labels (Hinton et al. 2015)", soft_label_loss),
    "embeddings": Objective("sentence embeddings (cosine of mean pooled states)", cosine_loss),
    "hidden": Objective("hidden states (cosine of projected states)", cosine_loss),
    "relations": Objective("self-attention relations (MiniLM v2, Wang et al. 2021)", relation_loss),
}


@contextmanager
def attention_recorded(model: nn.Module, layer: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Context manager that records the queries, keys and values of a layer in a forward pass.

    It yields a dict. The forward pass fills the dict with three tensors [B, N, W] if "relations" is in `names`."""
    modules = [(name.rpartition(".")[2], module) for name, module in model.named_modules()]
    present = {name for name, _ in modules}
    projections = next((triple for triple in PROJECTIONS if {*triple} <= present), None)
    if "relations" not in names:
        projections = []
    elif projections is None:
        raise ValueError(
            f"{type(model).__name__} has no separate projections of queries, keys and values: use --hidden_weight instead "
            "of --relations_weight"
        )

    recorded: dict[str, Any] = dict.fromkeys(projections)

    def record(name: str, module: nn.Module, inputs: Any, output: torch.Tensor):
        # The first call projects the content; DeBERTa then projects positions.
        if recorded[name] is None:
            recorded[name] = output

    hooks = []
    for name in projections:
        chosen = [module for own, module in modules if own == name][layer]
        hooks.append(chosen.register_forward_hook(partial(record, name)))
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def signals(
    names: Sequence[str],
    outputs: Mapping[str, Any],
    mask: torch.Tensor,
    attention: Mapping[str, torch.Tensor],
    layer: int = -1,
) -> dict[str, torch.Tensor]:
    """Return what each objective compares, by name, from a model's outputs (with hidden_states).

    Args:
        mask (`torch.Tensor`): [B, N], 1 = real token, for mean pooling.
        attention (`dict`): what `attention_recorded` recorded, for the objective "relations".
        layer (`int`): index of the hidden states for the objective "hidden"; -1: the last layer.
    """
    found = {}
    for name in names:
        if name == "embeddings":
            weights = mask[..., None].float()
            found[name] = (outputs["hidden_states"][-1] * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
        elif name == "hidden":
            found[name] = outputs["hidden_states"][layer]
        elif name == "relations":
            found[name] = torch.cat([*attention.values()], -1)
        elif "start_logits" in outputs:
            found[name] = torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)
        else:
            logits = outputs["logits"]
            found[name] = logits if logits.dim() == 3 else logits[:, None]
    return found

# SPDX-License-Identifier: Apache-2.0
"""Attention inputs for many lengths, masks, terms and tables, and one call for all backends."""

import io
import math

import torch
from backends import NAMES, NATIVE

from hf_deberta_ext import ATTENTION_BACKENDS, AttentionInputs
from hf_deberta_ext.model.attention_deberta_ext import RelativePosition

# Backends that are compared with eager.
BACKENDS = [*(name for name in NAMES if name != "eager"), NATIVE]
B, H = 2, 2


def make_mask(kind, N):
    """Return a mask [B, 1, 1 or N, N]; True = may attend."""
    places = torch.arange(N)
    lengths = torch.tensor([N, (N + 1) // 2])[:, None]
    if kind == "none":
        return None
    if kind == "right":
        return (places < lengths)[:, None, None]
    if kind == "left":
        return (places >= N - lengths)[:, None, None]
    document = places // max(1, N // 3)
    mask = (document[:, None] == document).expand(B, 1, N, N).clone()
    if kind == "dead-row":
        mask[0, 0, N // 2] = False
    return mask


def make_inputs(N, terms, table="buckets", mask="none", *, d=16, length=None, dtype=torch.float32, seed=0, device="cpu"):
    """Return the leaves Q_c, K_c, V_c, K_r, Q_r (Q_c, K_c, V_c as transposed views) and the other arguments of a backend."""
    generator = torch.Generator().manual_seed(seed)
    buckets, distance, R = -1, N + 3, 2 * (N + 3)
    if table == "buckets":
        buckets, distance, R = 16, 40, 32
    elif table == "clamped":
        distance, R = 40, 80
    position = RelativePosition(buckets=buckets, max_distance=distance)
    content = [torch.randn(B, N, H * d, generator=generator).unflatten(-1, (H, d)).transpose(1, 2) for _ in range(3)]
    tables = [torch.randn(H, R, d, generator=generator) for _ in range(2)]
    leaves = [x.to(device, dtype).requires_grad_() for x in (*content, *tables)]
    mask = make_mask(mask, N)
    if mask is not None:
        mask = mask.to(device)
    options = dict(delta=position(length or N).to(device), terms=terms, scale=1 / math.sqrt(d * (1 + len(terms))))
    return leaves, options | dict(mask=mask, max_distance=distance)


def by_hand(device="cpu"):
    """Return a case with two queries and two keys: leaves with numbers in the first of 16 channels, options, outputs [2]."""

    def tensor(*rows):
        return torch.tensor(rows, device=device)[:, None] * torch.eye(1, 16, device=device)

    # delta(0, 0) = 1, delta(0, 1) = 0, delta(1, 0) = 1: content, c2p from K_r, p2c from Q_r.
    leaves = [tensor(*rows)[None, None] for rows in ((1.0, 1.0), (2.0, 3.0), (10.0, 20.0))]
    leaves += [tensor(0.5, -1.0)[None], tensor(0.25, 1.0)[None]]
    first = torch.tensor([(2 - 1.0 + 2 * 1.0) * 0.5, (3 + 0.5 + 3 * 0.25) * 0.5]).softmax(0)
    second = torch.tensor([(2 - 1.0 + 2 * 1.0) * 0.5, (3 - 1.0 + 3 * 1.0) * 0.5]).softmax(0)
    options = dict(delta=torch.tensor([0, 1, 1], device=device), terms=("c2p", "p2c"), scale=0.5, max_distance=1)
    return leaves, options, torch.stack([first, second]) @ torch.tensor([10.0, 20.0])


def call(backend, leaves, options, **more):
    """Return a backend's output for the leaves Q_c, K_c, V_c, K_r, Q_r and other fields of `AttentionInputs`."""
    Q_c, K_c, V_c, K_r, Q_r = leaves
    inputs = AttentionInputs(Q_c, K_c, V_c, K_r=K_r, Q_r=Q_r, **options | more)
    return ATTENTION_BACKENDS[backend].attend(inputs)[0]


def whole(x):
    return x.flatten()[None]


def gradients_of(model, loss):
    """Return the gradient of every parameter that has one, by name."""
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)

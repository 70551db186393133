# SPDX-License-Identifier: Apache-2.0
"""Every head, and a SiFT step, as a tiny model with a batch and labels: for properties that all of them must have."""

from contextlib import nullcontext

import torch
from backends import NAMES as NAMES

from hf_deberta_ext import heads
from hf_deberta_ext.sift import Sift, SiftOptions

KINDS = ["v1", "v2", "v3"]
CLASSES = {name: heads.model_class(name) for name in heads.HEADS}
# Auto class of transformers -> class of this package.
AUTO_CLASSES = {head.auto_class: CLASSES[name] for name, head in heads.HEADS.items() if head.auto_class}
# Class and configuration fields.
HEADS = {name: (model_class, {}) for name, model_class in CLASSES.items()} | {
    "masked-lm, masked_only": (CLASSES["masked-lm"], dict(masked_only=True)),
    "pretraining": (CLASSES["pretraining"], dict(generator={}, special_token_ids=[0])),
    "sift, virtual": (CLASSES["sequence-classification"], {}),
    "sift, adversarial": (CLASSES["sequence-classification"], {}),
}
# Precision of a run: the dtype of the model, or float32 under autocast.
MODES = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "autocast bfloat16": (torch.float32, torch.bfloat16),
    "autocast float16": (torch.float32, torch.float16),
}
LENGTH = 14
SMALL = dict(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, position_buckets=8
)


def small(head: str, kind: str, tiny_config, **overrides):
    """Return the model of a head, smaller than the model of `tiny_config`."""
    model_class, fields = HEADS[head]
    sizes = {name: value for name, value in SMALL.items() if not (kind == "v1" and name == "position_buckets")}
    return model_class(tiny_config(kind, **(sizes | fields | overrides)))


def call_of(head: str) -> dict[str, torch.Tensor]:
    """Return inputs and labels of two rows of 14 tokens, including five of padding."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, 40, (2, LENGTH), generator=generator)
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])
    arguments = dict(input_ids=ids * real, attention_mask=real.long())
    selected = real & (torch.rand(2, LENGTH, generator=generator) < 0.6)
    if head == "multiple-choice":
        arguments = {name: torch.stack([x, x.flip(0)], 1) for name, x in arguments.items()}
    labels = labels_of(head, ids)
    if head == "entity-scoring":
        # The second row has one entity of one token.
        arguments["entity_indices"] = torch.tensor([[[1, 2, 3], [5, 0, 0], [7, 8, 0]], [[4, 0, 0], [0, 0, 0], [0, 0, 0]]])
    elif "labels" in labels and labels["labels"].dim() == 2:
        labels = {"labels": labels["labels"].masked_fill(~selected, -100)}
    return arguments | labels


def labels_of(head: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return labels for ids [B, N] (multiple choice: [B, choices, N]), by the name of the head or its Auto class."""
    kinds = {name: entry.labels for name, entry in heads.HEADS.items()} | {"sift": "row"}
    kinds |= {entry.auto_class: entry.labels for entry in heads.HEADS.values()}
    kind = kinds[head.split(",")[0]]
    ones = torch.ones(len(ids), dtype=torch.long)
    if kind == "span":
        return dict(start_positions=ones, end_positions=ones * 4)
    labels = {None: None, "words": ids, "tokens": ids % 2, "row": ones, "choice": ones, "entities": ids[:, :3] % 2}[kind]
    return {} if labels is None else dict(labels=labels)


def autocast(low: torch.dtype | None):
    return nullcontext() if low is None else torch.autocast("cpu", low)


def step(head: str, model, arguments: dict, low: torch.dtype | None = None):
    """Run a training step; return its outputs by name and the gradient of each parameter, in float64."""
    model.zero_grad()
    with autocast(low):
        if head.startswith("sift"):
            outputs, loss = _step_of_sift(model, arguments, head.split(", ")[1])
        else:
            outputs = model(**arguments)
            loss = outputs.get("loss")
            loss = outputs.last_hidden_state.float().square().mean() if loss is None else loss
    loss.backward()
    tensors = {name: x for name, x in outputs.items() if torch.is_tensor(x)} | {"loss": loss}
    return tensors, {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


class _NoiseOfFloat32(Sift):
    """Draw the first perturbation in float32 for every compute dtype, so that a seed always gives the same perturbation."""

    def first_delta(self, inputs, generator):
        shape, device, dtype = self._seen
        self._seen = shape, device, torch.float32
        delta, real, rows = super().first_delta(inputs, generator)
        return delta.to(dtype), real, rows


def _step_of_sift(model, arguments, form):
    # Larger than in training, so that their effect exceeds the rounding of bfloat16.
    options = SiftOptions(form=form, init_size=1.0, learning_rate=1.0, radius=2.0)
    with _NoiseOfFloat32(model, options) as sift:
        with sift.clean_pass():
            outputs = model(**arguments)
        perturbed = sift(outputs, arguments, generator=torch.Generator().manual_seed(3))
    return dict(outputs, delta=perturbed.delta, change=perturbed.change), outputs.loss + perturbed.loss

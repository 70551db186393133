# SPDX-License-Identifier: Apache-2.0
"""Training: gradient checkpointing, gradient accumulation under Trainer."""

import copy
import inspect

import pytest
import torch
from accumulation import exact_accumulation
from every_head import CLASSES, labels_of
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from hf_deberta_ext import DebertaExtForMaskedLM

# Single-label heads, for which Trainer's label smoothing replaces the model's loss.
SMOOTHED = ("sequence-classification", "token-classification", "multiple-choice", "masked-lm")
counts_smoothed_labels = pytest.mark.skipif(
    "num_items_in_batch" not in inspect.signature(LabelSmoother.__call__).parameters,
    reason="this version of transformers uses the mean of a micro-batch as the mean of the step",
)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(
    ("kind", "share"), [("v1", "none"), ("v2", "none"), ("v3", "none"), *(("v3", s) for s in ("all", "ffn", "attention"))]
)
def test_gradient_checkpointing_gives_the_same_gradients_with_dropout(kind, share, use_reentrant, tiny_config, batch):
    """transformers' v2 fails with reentrant checkpointing: its relative table is backpropagated twice."""
    config = tiny_config(kind, share_layers=share, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = DebertaExtForMaskedLM(config).train()
    ids, mask = batch(2, 20, [20, 11])
    labels = ids.where(ids % 3 == 0, -100)
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            # Newer versions of transformers deprecate this name.
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        model.zero_grad()
        torch.manual_seed(0)
        model(ids, attention_mask=mask, labels=labels, masked_only=True).loss.backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert sum(grad.norm() > 1e-6 for grad in grads[0].values()) > 10
    for name, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][name], rtol=1e-5, atol=1e-8), name


def examples(name):
    """Return eight samples with different numbers of targets."""
    generator, order = torch.Generator().manual_seed(0), torch.arange(8)[:, None]
    ids = torch.randint(5, 64, (8, 16), generator=generator)
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids)) | labels_of(name, ids)
    if name == "multiple-choice":
        batch = dict(input_ids=torch.stack([ids, ids.flip(1)], 1), labels=batch["labels"])
    elif name == "entity-scoring":
        batch["labels"] = batch["labels"].where(torch.arange(3) <= order % 3, -100)
        batch["entity_indices"] = torch.tensor([[1, 2], [4, 0], [6, 7]]) * (batch["labels"] >= 0)[..., None]
    elif name != "question-answering" and batch["labels"].dim() == 2:
        few = torch.rand(8, 16, generator=generator) < 0.1 * (order + 1)
        batch["labels"] = batch["labels"].where(few, -100)
    return [{key: x[row] for key, x in batch.items()} for row in range(8)]


@exact_accumulation
@pytest.mark.parametrize(
    ("name", "smoothing"),
    [
        *((name, 0.0) for name in CLASSES if name not in ("base", "pretraining")),
        *(pytest.param(name, 0.2, marks=counts_smoothed_labels) for name in SMOOTHED),
    ],
)
def test_gradient_accumulation_does_not_change_loss_or_gradient(name, smoothing, tiny_config, tmp_path):
    """In transformers' DeBERTa, loss and gradient grow with the accumulation steps."""
    model = CLASSES[name](tiny_config(num_labels=3, masked_only=name == "masked-lm"))
    results = []
    for steps in (1, 8):
        args = TrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, report_to="none", logging_steps=1, disable_tqdm=True, save_strategy="no",
            learning_rate=0.0, max_grad_norm=1e9, max_steps=1, per_device_train_batch_size=8 // steps,
            gradient_accumulation_steps=steps, label_smoothing_factor=smoothing,
        )  # fmt: skip
        trainer = Trainer(copy.deepcopy(model), args, train_dataset=examples(name))
        trainer.train()
        logs = trainer.state.log_history
        results.append((logs[0]["loss"], float(logs[0]["grad_norm"])))
    assert results[0][0] > 0.1 and results[0][1] > 0.001
    assert results[1] == pytest.approx(results[0], rel=1e-4)

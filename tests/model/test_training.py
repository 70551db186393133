# SPDX-License-Identifier: Apache-2.0
"""Training: gradient checkpointing, gradient accumulation under Trainer, resume."""

import copy

import pytest
import torch
import transformers
from every_head import CLASSES
from packaging.version import Version
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_deberta_ext import (
    DebertaExtForEntityScoring,
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForQuestionAnswering,
    DebertaExtForSequenceClassification,
)


@pytest.mark.criterion("A8.1")
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(
    ("kind", "share"), [("v1", "none"), ("v2", "none"), ("v3", "none"), *(("v3", s) for s in ("all", "ffn", "attention"))]
)
def test_gradient_checkpointing_gives_the_same_gradients_with_dropout(kind, share, use_reentrant, tiny_config, batch):
    """transformers' v2 fails when reentrant: its relative table travels as a keyword and is backpropagated twice."""
    config = tiny_config(kind, share_layers=share, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = DebertaExtForMaskedLM(config).train()
    ids, mask = batch(2, 20, [20, 11])
    labels = ids.where(ids % 3 == 0, -100)
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            # Newer transformers deprecates the older name.
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


def examples(head, N=16, count=8, seed=0):
    """Eight samples with unequal numbers of targets."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for index in range(count):
        ids = torch.randint(5, 64, (N,), generator=generator)
        few = torch.rand(N, generator=generator) < 0.1 * (index + 1)
        row = dict(input_ids=ids, attention_mask=torch.ones(N).long())
        if head is DebertaExtForQuestionAnswering:
            row |= dict(start_positions=torch.tensor(index), end_positions=torch.tensor(index + 3))
        elif head is DebertaExtForSequenceClassification:
            row |= dict(labels=torch.tensor(index % 3))
        elif head is DebertaExtForMultipleChoice:
            row = dict(input_ids=torch.stack([ids, ids.flip(0)]), labels=torch.tensor(index % 2))
        elif head is DebertaExtForMaskedLM:
            row |= dict(labels=ids.where(few, -100))
        elif head is DebertaExtForEntityScoring:
            entities = torch.tensor([[1, 2], [4, 0], [6, 7]])
            labels = (ids[:3] % 2).where(torch.arange(3) <= index % 3, -100)
            row |= dict(entity_indices=entities * (labels >= 0)[:, None], labels=labels)
        else:
            row |= dict(labels=(ids % 2).where(few, -100))
        rows.append(row)
    return rows


class Record(TrainerCallback):
    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(logs)


def train(model, rows, folder, **arguments):
    record = Record()
    common = dict(
        output_dir=str(folder), use_cpu=True, report_to="none", logging_steps=1, disable_tqdm=True, save_strategy="no",
        learning_rate=0.0, max_grad_norm=1e9,
    )  # fmt: skip
    Trainer(model, TrainingArguments(**(common | arguments)), train_dataset=rows, callbacks=[record]).train()
    return record.logs


@pytest.mark.criterion("A4.1")
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"),
    reason="Trainer of transformers 5.4 and 5.5 divides by the accumulation steps twice, for every model",
)
@pytest.mark.parametrize("head", [CLASSES[name] for name in CLASSES if name not in ("base", "pretraining")])
def test_gradient_accumulation_does_not_change_loss_or_gradient(head, tiny_config, tmp_path):
    """Stock DeBERTa's loss and gradient grow with the accumulation steps (8 samples one by one: eight times)."""
    model = head(tiny_config(num_labels=3, masked_only=head is DebertaExtForMaskedLM))
    results = []
    for steps in (1, 2, 4, 8):
        logs = train(
            copy.deepcopy(model), examples(head), tmp_path, max_steps=1, per_device_train_batch_size=8 // steps,
            gradient_accumulation_steps=steps,
        )  # fmt: skip
        results.append((logs[0]["loss"], float(logs[0]["grad_norm"])))
    assert results[0][0] > 0.1 and results[0][1] > 0.001
    for loss, norm in results[1:]:
        assert abs(loss - results[0][0]) < 1e-4 * results[0][0]
        assert abs(norm - results[0][1]) < 1e-4 * results[0][1]


def test_resume_is_exact_with_dropout(tiny_config, tmp_path):
    config = tiny_config("v1", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, masked_only=True)
    torch.manual_seed(0)
    start = DebertaExtForMaskedLM(config)
    rows = examples(DebertaExtForMaskedLM, count=24)
    arguments = dict(
        output_dir=str(tmp_path / "run"), use_cpu=True, report_to="none", disable_tqdm=True, per_device_train_batch_size=4,
        learning_rate=1e-3, num_train_epochs=2, save_strategy="steps", save_steps=4,
    )  # fmt: skip
    whole = Trainer(copy.deepcopy(start), TrainingArguments(**arguments), train_dataset=rows)
    whole.train()
    resumed = Trainer(copy.deepcopy(start), TrainingArguments(**arguments), train_dataset=rows)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    moved = 0
    for (name, a), b, c in zip(whole.model.named_parameters(), resumed.model.parameters(), start.parameters(), strict=True):
        assert torch.equal(a, b), name
        moved += not torch.equal(a, c)
    assert moved > 20

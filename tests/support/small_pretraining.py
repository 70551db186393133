# SPDX-License-Identifier: Apache-2.0
"""A small, deterministic PretrainingTrainer that saves checkpoints, for tests of resumed runs."""

import torch
from transformers import default_data_collator

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM
from hf_deberta_ext.pretraining.trainer import PretrainingArguments, PretrainingTrainer

SIZES = dict(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, position_buckets=8, hidden_dropout_prob=0.2,
)  # fmt: skip


def rows(count=12, N=10):
    """Return generated examples with masked tokens."""
    generator = torch.Generator().manual_seed(0)
    examples = []
    for _ in range(count):
        ids = torch.randint(5, 64, (N,), generator=generator)
        labels = torch.where(torch.arange(N) % 3 == 1, ids, -100)
        examples.append(dict(input_ids=ids, attention_mask=torch.ones(N).long(), labels=labels))
    return examples


def build(folder, **arguments):
    """Return a trainer with a new model; every call gives the same weights."""
    common = dict(
        output_dir=str(folder), report_to="none", logging_steps=1, disable_tqdm=True, save_steps=2, max_steps=8,
        learning_rate=1e-3, per_device_train_batch_size=2,
    )  # fmt: skip
    torch.manual_seed(0)
    args = PretrainingArguments(**(common | arguments))
    model = MultiObjectiveMaskedLM(DebertaExtConfig(**SIZES), args.objectives)
    held_out = rows(2) if args.do_eval else None
    return PretrainingTrainer(model, args, train_dataset=rows(), eval_dataset=held_out, data_collator=default_data_collator)


def train(folder, resume=None, anyway=(), **arguments):
    trainer = build(folder, **arguments)
    trainer.train(resume and str(resume), allow_changed_args=anyway)
    trainer.save_model()
    trainer.save_state()
    return trainer

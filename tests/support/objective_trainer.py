# SPDX-License-Identifier: Apache-2.0
"""PretrainingTrainer with three objectives on examples with very different numbers of targets."""

import torch
from transformers import default_data_collator

from hf_deberta_ext.pretraining.trainer import PretrainingArguments, PretrainingTrainer

WEIGHTS = dict(mlm=1.0, sop=0.5, sbo=2.0)


def rows(count=8, N=20, seed=0):
    """Return examples with very different numbers of targets; every third has no sentence label."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for index in range(count):
        ids = torch.randint(5, 64, (N,), generator=generator)
        labels = torch.full((N,), -100)
        for start in range(1, 2 * (index + 1), 3):
            labels[start : start + 2] = ids[start : start + 2]
        # The last example has no token after its span, so that the objectives have different counts.
        labels[-1] = ids[-1] if index == count - 1 else -100
        sentence = -100 if index % 3 == 2 else index % 2
        examples.append(
            dict(input_ids=ids, attention_mask=torch.ones(N).long(), labels=labels, sentence_labels=torch.tensor(sentence))
        )
    return examples


def build(model, folder, train=None, evaluate=None, **arguments):
    common = dict(
        output_dir=str(folder), report_to="none", logging_steps=1, disable_tqdm=True, save_strategy="no", learning_rate=0.0,
        max_grad_norm=1e9, sop_weight=WEIGHTS["sop"], sbo_weight=WEIGHTS["sbo"],
    )  # fmt: skip
    args = PretrainingArguments(**(common | arguments))
    return PretrainingTrainer(model, args, train_dataset=train, eval_dataset=evaluate, data_collator=default_data_collator)

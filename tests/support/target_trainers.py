# SPDX-License-Identifier: Apache-2.0
"""PretrainingTrainer and ReplacedTokenTrainer on examples with very different numbers of targets and of padded tokens."""

import torch
from transformers import default_data_collator

from hf_deberta_ext import DebertaExtForPreTraining
from hf_deberta_ext.pretraining.replaced_token_trainer import ReplacedTokenArguments, ReplacedTokenTrainer
from hf_deberta_ext.pretraining.trainer import PretrainingArguments, PretrainingTrainer

LAMBDA = 5.0
WEIGHTS = dict(mlm=1.0, sop=0.5, sbo=2.0)
# So low a temperature that the most likely token is always sampled.
GREEDY = 1e-6
# Adam divides a gradient by its magnitude, so rounding of a gradient near zero could decide its sign.
EPSILON = 1e-3


def joint_rows(count=8, N=20, seed=0):
    """Return examples with very different numbers of masked and of padded tokens."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for index in range(count):
        ids = torch.randint(5, 63, (N,), generator=generator)
        ids[0], ids[-1] = 1, 2
        mask = (torch.arange(N) < N - index).long()
        labels = torch.full((N,), -100)
        labels[1 : 3 + index] = ids[1 : 3 + index]
        inputs = torch.where(labels != -100, 63, ids) * mask
        examples.append(dict(input_ids=inputs, attention_mask=mask, labels=labels))
    return examples


def objective_rows(count=8, N=20, seed=0):
    """Return examples with very different numbers of targets; every third has no sentence label."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for index in range(count):
        ids = torch.randint(5, 64, (N,), generator=generator)
        labels = torch.full_like(ids, -100)
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
    """Return the trainer of a joint model, or of a masked language model with the objectives of WEIGHTS."""
    common = dict(
        output_dir=str(folder), report_to="none", logging_steps=1, disable_tqdm=True, save_strategy="no", learning_rate=0.0,
        max_grad_norm=1e9, lr_scheduler_type="constant", adam_epsilon=EPSILON,
    )  # fmt: skip
    kinds = PretrainingArguments, PretrainingTrainer
    if isinstance(model, DebertaExtForPreTraining):
        kinds = ReplacedTokenArguments, ReplacedTokenTrainer
    else:
        common |= dict(sop_weight=WEIGHTS["sop"], sbo_weight=WEIGHTS["sbo"])
    args = kinds[0](**(common | arguments))
    return kinds[1](model, args, train_dataset=train, eval_dataset=evaluate, data_collator=default_data_collator)

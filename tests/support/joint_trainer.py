# SPDX-License-Identifier: Apache-2.0
"""ReplacedTokenTrainer on examples with very different numbers of masked and of padded tokens."""

import torch
from transformers import default_data_collator

from hf_deberta_ext.pretraining.replaced_token_trainer import ReplacedTokenArguments, ReplacedTokenTrainer

LAMBDA = 5.0
# So low a temperature that the most likely token is always sampled.
GREEDY = 1e-6
# Adam divides a gradient by its magnitude, so rounding of a gradient near zero could decide its sign.
EPSILON = 1e-3


def rows(count=8, N=20, seed=0):
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


def build(model, folder, train=None, evaluate=None, **arguments):
    common = dict(
        output_dir=str(folder), report_to="none", logging_steps=1, disable_tqdm=True, save_strategy="no", learning_rate=0.0,
        max_grad_norm=1e9, lr_scheduler_type="constant", adam_epsilon=EPSILON,
    )  # fmt: skip
    args = ReplacedTokenArguments(**(common | arguments))
    return ReplacedTokenTrainer(model, args, train_dataset=train, eval_dataset=evaluate, data_collator=default_data_collator)

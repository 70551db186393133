# SPDX-License-Identifier: Apache-2.0
"""One process of a run with SiFT: FORM FOLDER ACCUMULATION; the main process leaves losses and weights in the folder."""

import json
import os
import sys
from pathlib import Path

import torch
from transformers import set_seed

from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification
from hf_deberta_ext.sift import SiftArguments, SiftTrainer
from hf_deberta_ext.training.distributed import leave_together


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(5, 64, (16, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return dict(input_ids=self.ids[index], attention_mask=torch.ones(8, dtype=torch.long), labels=self.ids[index, 0] % 3)


def main(form: str, folder: str, accumulation: str):
    set_seed(0)
    config = DebertaExtConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, num_labels=3,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, position_buckets=16,
    )  # fmt: skip
    distributed_flags = dict(ddp_backend="gloo", ddp_find_unused_parameters=False) if "WORLD_SIZE" in os.environ else {}
    args = SiftArguments(
        folder, sift_weight=1.0, sift_form=form, sift_steps=2, max_steps=3, per_device_train_batch_size=4,
        gradient_accumulation_steps=int(accumulation), learning_rate=1e-3, logging_steps=1, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True, **distributed_flags,
    )  # fmt: skip
    trainer = SiftTrainer(DebertaExtForSequenceClassification(config), args, train_dataset=Rows())
    trainer.train()
    if args.process_index == 0:
        names = ("loss", "grad_norm", "sift_loss", "sift_size", "sift_change")
        logs = [{name: entry[name] for name in names} for entry in trainer.state.log_history if "loss" in entry]
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(trainer.model.state_dict(), Path(folder, "weights.pt"))
        Path(folder, "losses.json").write_text(json.dumps(logs))
    leave_together()


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Runs of the fine-tuning scripts on generated files: a tiny model and the flags."""

import json

import torch
from scripts import command_line
from tiny_constants import TINY

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe


def save_model(folder, texts, vocab_size=400, **fields):
    """Save a masked language model with random weights and a tokenizer trained on the texts; return the folder."""
    tokenizer = train_byte_level_bpe(texts, vocab_size=vocab_size, show_progress=False)
    torch.manual_seed(0)
    config = TINY | dict(vocab_size=len(tokenizer), num_hidden_layers=2, position_buckets=16) | fields
    DebertaExtForMaskedLM(DebertaExtConfig(**config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(script, model, folder, *flags, **values):
    """Run a script for two steps and return its metrics."""
    values = dict(
        model_name_or_path=model, output_dir=folder, per_device_train_batch_size=4, max_steps=2, learning_rate=5e-3,
        report_to="none", disable_tqdm="true", save_strategy="no",
    ) | values  # fmt: skip
    return script.main([*command_line(values), *flags])


def read_json(file):
    return json.loads(file.read_text(encoding="utf-8"))

# SPDX-License-Identifier: Apache-2.0
"""Files of rows, a tokenizer and sizes of a tiny model, for tests of fine-tuning tasks."""

import gzip
import json
import os
from types import SimpleNamespace

import pytest
from transformers import BertConfig

from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

DATA = os.environ.get("DEBERTA_EXT_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="needs the real data sets: set DEBERTA_EXT_DATA to their folder")
TINY_BERT = dict(
    vocab_size=300, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=512,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_level_bpe(["it rains so good a long one of these"] * 5, vocab_size=290, show_progress=False)


def encoded(data, tokenizer, label2id=None):
    """Encode texts for a tiny BERT, whose checkpoint has the labels of `label2id`."""
    data.use_config(SimpleNamespace(label2id=label2id))
    return data.encode(tokenizer, BertConfig(**TINY_BERT, **data.config_fields()))


def write_lines(file, *rows) -> str:
    """Write one JSON object per line; also to .gz."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return str(file)

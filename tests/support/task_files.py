# SPDX-License-Identifier: Apache-2.0
"""Files of rows, and configurations of tiny models of several families, for tests of fine-tuning tasks."""

import gzip
import json
import os

import pytest
from transformers import AlbertConfig, BertConfig, ElectraConfig, RobertaConfig

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


def write_lines(file, *rows) -> str:
    """Write one JSON object per line; also to .gz."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return str(file)


def small_config(family, vocab_size, tiny_config, stock_config, **names):
    """Return a configuration of a family of models, without dropout.

    Args:
        tiny_config, stock_config: the fixtures with these names.
        names: labels for id2label and label2id.
    """
    sizes = dict(
        vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=70, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    sizes |= names
    return {
        "ours": lambda: tiny_config(vocab_size=vocab_size, **names),
        "stock_v2": lambda: stock_config(vocab_size=vocab_size, type_vocab_size=2, **names),
        "bert": lambda: BertConfig(**sizes),
        "roberta": lambda: RobertaConfig(**sizes, type_vocab_size=2, pad_token_id=0),
        "electra": lambda: ElectraConfig(**sizes, embedding_size=32),
        "albert": lambda: AlbertConfig(**sizes, embedding_size=32, classifier_dropout_prob=0.0),
    }[family]()

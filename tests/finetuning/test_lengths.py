# SPDX-License-Identifier: Apache-2.0
"""Maximum input lengths: the number of absolute positions of a model, no limit for other models."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import AutoModel, BertConfig, DebertaConfig

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.finetuning.input_lengths import longest_input, position_limit

TINY = dict(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, embedding_size=8,
    max_position_embeddings=16,
)  # fmt: skip
ABSOLUTE = [
    transformers.AlbertConfig(**TINY),
    BertConfig(**TINY),
    DebertaConfig(**TINY, relative_attention=True),
    transformers.DistilBertConfig(vocab_size=20, dim=8, n_layers=1, n_heads=2, hidden_dim=8, max_position_embeddings=16),
    transformers.ElectraConfig(**TINY),
    transformers.LiltConfig(**TINY | dict(hidden_size=24), channel_shrink_ratio=2, max_2d_position_embeddings=20),
    transformers.LukeConfig(**TINY, entity_vocab_size=5, entity_emb_size=8),
    transformers.MarkupLMConfig(**TINY),
    transformers.MPNetConfig(**TINY),
    transformers.RobertaConfig(**TINY),
    transformers.XLMRobertaConfig(**TINY),
]
RELATIVE = [
    transformers.DebertaV2Config(**TINY, relative_attention=True, position_biased_input=False),
    DebertaConfig(**TINY, relative_attention=True, position_biased_input=False),
    DebertaExtConfig(**{name: value for name, value in TINY.items() if name != "embedding_size"}, position_buckets=8),
]


@pytest.mark.parametrize("config", ABSOLUTE, ids=lambda config: config.model_type)
def test_the_limit_is_the_longest_input_that_runs(config):
    limit = position_limit(config)
    model = AutoModel.from_config(config).eval()
    model(torch.full((1, limit), 5))
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        model(torch.full((1, limit + 1), 5))


@pytest.mark.parametrize("config", RELATIVE, ids=lambda config: config.model_type)
def test_relative_positions_have_no_limit_whatever_the_tokenizer_says(config, caplog):
    assert position_limit(config) is None
    assert longest_input(SimpleNamespace(model_max_length=16), config, 64, default=128) == 64
    assert caplog.messages == ["--max_seq_length 64 exceeds the model's pre-training length of 16 tokens"]
    AutoModel.from_config(config).eval()(torch.full((1, 64), 5))


@pytest.mark.parametrize(
    ("limit", "wanted", "expected", "warned"),
    [(512, 8, 8, False), (512, 99, 16, True), (12, 99, 12, True), (512, None, 16, False), (512, 16, 16, False)],
)
def test_a_longer_length_is_lowered_and_only_one_that_was_asked_for_with_a_warning(limit, wanted, expected, warned, caplog):
    tokenizer = SimpleNamespace(model_max_length=limit)
    assert longest_input(tokenizer, BertConfig(**TINY), wanted, default=128) == expected
    said = f"--max_seq_length {wanted} exceeds the model's limit; using {expected} tokens"
    assert caplog.messages == [said] * warned

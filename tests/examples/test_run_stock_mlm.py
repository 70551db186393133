# SPDX-License-Identifier: Apache-2.0
"""BERT and ModernBERT pre-trained on the rows and masks of run_mlm.py."""

import pytest
import torch
from scripts import module_of
from transformers import AutoModelForMaskedLM, BertForMaskedLM, ModernBertForMaskedLM

from hf_deberta_ext import DebertaExtConfig

run_stock_mlm = module_of("run_stock_mlm")
STOCK = [("bert", BertForMaskedLM), ("modernbert", ModernBertForMaskedLM)]


@pytest.mark.parametrize("architecture, stock_class", STOCK)
def test_loss_is_that_of_the_stock_class(architecture, stock_class, tmp_path):
    torch.manual_seed(0)
    config = DebertaExtConfig.from_preset(
        "v3-xsmall", vocab_size=50, num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, position_buckets=8, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = run_stock_mlm.stock_model(architecture, config).eval()
    input_ids = torch.randint(5, 50, (3, 16))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, 12:] = 0
    labels = input_ids.masked_fill(torch.rand(3, 16).gt(0.4) | attention_mask.eq(0), -100)
    model.save_pretrained(tmp_path)
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert type(stock) is stock_class and stock.config.architectures == [stock_class.__name__]
    inputs = dict(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
    torch.testing.assert_close(model(**inputs).loss, stock(**inputs).loss)


@pytest.mark.parametrize("architecture, stock_class", STOCK)
def test_run(architecture, stock_class, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(f"The word number {i} follows the word {i - 1}." for i in range(40)))
    flags = (
        f"--train_data {tmp_path}/text.txt --documents line --validation_documents 8 --max_length 32 --masking token "
        "--train_tokenizer byte-level-bpe --vocab_size 300 --preset v3-xsmall --max_steps 2 --save_strategy no "
        "--config_overrides num_hidden_layers=2,hidden_size=32,num_attention_heads=2,intermediate_size=64,"
        f"max_position_embeddings=32,position_buckets=8 --architecture {architecture} --output_dir {tmp_path}/run"
    )
    metrics = run_stock_mlm.main(flags.split())
    assert metrics["eval_mlm_targets"] > 0 and type(AutoModelForMaskedLM.from_pretrained(tmp_path / "run")) is stock_class

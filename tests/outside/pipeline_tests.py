# SPDX-License-Identifier: Apache-2.0
"""Our classes under transformers' PipelineTesterMixin, offline; run_transformers_mixins.py puts this file where it lies.

The mixin loads small published checkpoints from the Hub, or from a folder that TRANSFORMERS_TINY_MODEL_PATH names: here
they are made when this file is imported. What it asks of each answer is in pipeline_checks.py.
"""

import json
import os
import unittest
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import hf_deberta_ext
from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.model.heads import HEADS
from hf_deberta_ext.tokenization import PreTrainedTokenizerFast

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *"a the cat dog saw ran here and . , This example is".split()]
TASKS = {"feature-extraction", "fill-mask", "text-classification", "token-classification"}
CLASSES = {h.pipeline_tag: getattr(hf_deberta_ext, h.model_class) for h in HEADS.values() if h.pipeline_tag in TASKS}
CLASSES["zero-shot"] = CLASSES["text-classification"]


def make_checkpoints(folder: Path):
    """A small model of every class, with a tokenizer, and the list of them that the mixin reads."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    special = dict(pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special)
    labels = ["contradiction", "neutral", "entailment"]
    # Weights large enough that two words have different probabilities.
    config = DebertaExtConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, position_buckets=16, initializer_range=0.3, id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )  # fmt: skip
    summary = {}
    for model_class in set(CLASSES.values()):
        torch.manual_seed(0)
        place = folder / config.model_type / model_class.__name__
        model_class(config).eval().save_pretrained(place)
        tokenizer.save_pretrained(place)
        names = {"tokenizer_classes": ["PreTrainedTokenizerFast"], "processor_classes": [], "model_classes": []}
        summary[model_class.__name__] = names
    (folder / "reports").mkdir(exist_ok=True)
    (folder / "reports" / "tiny_model_summary.json").write_text(json.dumps(summary), encoding="utf-8")


make_checkpoints(Path(os.environ["TRANSFORMERS_TINY_MODEL_PATH"]))

from ...test_pipeline_mixin import PipelineTesterMixin  # noqa: E402


class DebertaExtPipelineTest(PipelineTesterMixin, unittest.TestCase):
    pipeline_model_mapping = CLASSES

    def skipTest(self, reason):
        # The mixin skips a model that it cannot load.
        if "is not in `self.pipeline_model_mapping`" not in reason:
            self.fail(reason)
        super().skipTest(reason)

    def is_pipeline_test_to_skip(self, *args, **kwargs):
        return False

    def is_pipeline_test_to_skip_more(self, *args, **kwargs):
        return False

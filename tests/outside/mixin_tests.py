# SPDX-License-Identifier: Apache-2.0
"""Our classes under transformers' own model mixins; run_transformers_mixins.py copies this file into transformers' tests.

`ModelTesterMixin` runs for each class in four shapes, `TrainingTesterMixin` for the masked language model, `ConfigTester`
for the configuration. The other mixins have nothing to test here:

* `GenerationTesterMixin`, `MemoryCleanupMixin`: for models that generate. The first is not in the source distribution.
* `TensorParallelTesterMixin`, `ExpertParallelTesterMixin`, `FSDPTesterMixin`: skip a model without the matching plan
  (`base_model_tp_plan`, ...), and take causal language models.
* `ExportTesterMixin`: not in the source distribution.
* `TokenizerTesterMixin` and its two backends: load a published tokenizer from the Hub, and a text that is not in the
  source distribution.
* `PipelineTesterMixin`: its expected answers are not in the source distribution; test_other_packages.py has some.
* `BackboneTesterMixin`, and the mixins of images, audio, video and processors: for other kinds of models.
"""

import random
import unittest
from typing import NamedTuple

import torch
from transformers.models.auto import modeling_auto

import hf_deberta_ext
from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM, DebertaExtForPreTraining, DebertaExtModel
from hf_deberta_ext.heads import HEADS

# These tables tell the mixins which labels and inputs a class takes: a discriminator takes a token classifier's labels,
# generator and discriminator a masked language model's labels.
TABLES = {
    None: "MODEL_MAPPING_NAMES",
    "words": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "tokens": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "row": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "span": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
}
# The mixins do not know entities.
TESTED = [head for head in HEADS.values() if head.labels != "entities"]
for head in TESTED:
    # A table has one class for each model type, so the second class gets its own type.
    first = head.model_class not in ("DebertaExtForPreTraining", "DebertaExtForReplacedTokenDetection")
    model_type = "deberta-ext" if first else f"deberta-ext-{head.model_class}"
    getattr(modeling_auto, TABLES[head.labels])[model_type] = head.model_class

# Without these flags, the mixin skips its comparisons of "eager" and "sdpa"; our models choose backends themselves.
# Only for the encoder and for classes that decode with the last layers: heads add no attention.
DebertaExtModel._supports_sdpa = DebertaExtForMaskedLM._supports_sdpa = True

from ... import test_modeling_common  # noqa: E402
from ...test_configuration_common import ConfigTester  # noqa: E402
from ...test_modeling_common import ModelTesterMixin, ids_tensor  # noqa: E402
from ...test_training_mixin import TrainingTesterMixin  # noqa: E402

SMALL = dict(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
    max_position_embeddings=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, initializer_range=0.02,
)  # fmt: skip
# Masks of three rows of seven tokens: padded on either side, and one with gaps, which is never unpadded.
MASKS = {
    "right": ["1111100", "1111111", "1110000"],
    "left": ["0011111", "1111111", "0000111"],
    "gaps": ["1011101", "1111111", "1101100"],
}


class Shape(NamedTuple):
    fields: dict
    mask: str
    embedding_sharing: str


SHAPES = {
    "V3": Shape(dict(position_buckets=16), "right", "gdes"),
    "V2": Shape(dict(position_buckets=16, conv_kernel_size=3), "left", "es"),
    "V1": Shape(dict(position_buckets=-1, norm_rel_ebd="none", share_att_key=False), "gaps", "nes"),
    "Absolute": Shape(
        dict(position_biased_input=True, type_vocab_size=2, position_buckets=16, embedding_size=16), "right", "all"
    ),
}


class DebertaExtModelTester:
    """Provide the small configuration and inputs that the mixins need."""

    causal_lm_class = DebertaExtForMaskedLM

    def __init__(self, shape: Shape, model_class: type):
        self.shape, self.model_class = shape, model_class
        self.batch_size, self.seq_length, self.num_choices = 3, 7, 4
        self.is_training, self.num_labels = True, 3
        self.hidden_size, self.num_hidden_layers, self.num_attention_heads = 32, 2, 4
        self.vocab_size = 99

    def get_config(self):
        fields = dict(self.shape.fields)
        if self.model_class is DebertaExtForPreTraining:
            # With only one token to sample, two calls sample the same.
            special = [*range(self.vocab_size - 1)]
            fields |= dict(generator={}, embedding_sharing=self.shape.embedding_sharing, special_token_ids=special)
        return DebertaExtConfig(**SMALL, **fields)

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], 99)
        mask = torch.tensor([[int(digit) for digit in row] for row in MASKS[self.shape.mask]])
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


class _Common:
    # Otherwise models from before 2023 are left out, judged by the year in a copyright line.
    test_can_init_all_missing_weights_before_2023 = True

    @property
    def training_overfit_steps(self) -> int:
        # A factorised table overfits the batch more slowly.
        return 600 if "embedding_size" in self.shape.fields else 300

    def setUp(self):
        for generator in (random, test_modeling_common.global_rng):
            generator.seed(0)
        torch.manual_seed(0)
        self.model_tester = DebertaExtModelTester(self.shape, self.all_model_classes[0])


# One test case for each class, so that after a failure the test continues with the next class.
for _name, _shape in SHAPES.items():
    for _head in TESTED:
        _class = getattr(hf_deberta_ext, _head.model_class)
        _mixins = (ModelTesterMixin, TrainingTesterMixin) if _class is DebertaExtForMaskedLM else (ModelTesterMixin,)
        _case = f"{_class.__name__}_{_name}"
        _attributes = {"shape": _shape, "all_model_classes": (_class,)}
        globals()[_case] = type(_case, (_Common, *_mixins, unittest.TestCase), _attributes)


class DebertaExtConfigTest(unittest.TestCase):
    def test_config(self):
        for name, shape in SHAPES.items():
            with self.subTest(name):
                tester = ConfigTester(self, config_class=DebertaExtConfig, **(SMALL | shape.fields))
                tester.run_common_tests()

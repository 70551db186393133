# SPDX-License-Identifier: Apache-2.0
"""Our classes under transformers' own mixins; run_transformers_mixins.py puts this file where they lie."""

import unittest

from transformers.models.auto import modeling_auto

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForQuestionAnswering,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
)

# The mixins know which labels and inputs a class takes by these tables.
for table, name in {
    "MODEL_MAPPING_NAMES": "DebertaExtModel",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "DebertaExtForMaskedLM",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": "DebertaExtForPreTraining",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "DebertaExtForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "DebertaExtForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "DebertaExtForQuestionAnswering",
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": "DebertaExtForMultipleChoice",
}.items():
    getattr(modeling_auto, table)["deberta-ext"] = name
# Labels of a discriminator are those of a token classifier.
modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES["deberta-ext-discriminator"] = (
    "DebertaExtForReplacedTokenDetection"
)

from ...test_configuration_common import ConfigTester  # noqa: E402
from ...test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask  # noqa: E402
from ...test_training_mixin import TrainingTesterMixin  # noqa: E402

SMALL = dict(
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=37,
    max_position_embeddings=64,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    initializer_range=0.02,
)
SHAPES = {
    "v3": dict(position_buckets=16),
    "v2": dict(position_buckets=16, conv_kernel_size=3),
    "v1": dict(position_buckets=-1, norm_rel_ebd="none", share_att_key=False),
    "absolute": dict(position_biased_input=True, type_vocab_size=2, position_buckets=16, embedding_size=16),
}


class DebertaExtModelTester:
    """What the mixins ask for: a small configuration and inputs."""

    causal_lm_class = DebertaExtForMaskedLM
    fields = SHAPES["v3"]

    def __init__(self, parent):
        self.parent, self.batch_size, self.seq_length, self.num_choices = parent, 3, 7, 4
        self.is_training, self.num_labels = True, 3
        self.hidden_size, self.num_hidden_layers, self.num_attention_heads = 32, 2, 4
        self.vocab_size = 99

    def get_config(self):
        return DebertaExtConfig(**SMALL, **self.fields)

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], 99)
        return self.get_config(), {"input_ids": ids, "attention_mask": random_attention_mask(ids.shape)}


class _Common:
    all_model_classes = (
        DebertaExtModel,
        DebertaExtForMaskedLM,
        DebertaExtForReplacedTokenDetection,
        DebertaExtForSequenceClassification,
        DebertaExtForTokenClassification,
        DebertaExtForQuestionAnswering,
        DebertaExtForMultipleChoice,
    )

    # The factorised table of the last shape learns the batch more slowly.
    training_overfit_steps = 600

    def setUp(self):
        fields = SHAPES[self.shape]
        self.model_tester = type("Tester", (DebertaExtModelTester,), {"fields": fields})(self)
        self.config_tester = ConfigTester(self, config_class=DebertaExtConfig, hidden_size=32, num_attention_heads=4)

    def test_config(self):
        self.config_tester.run_common_tests()

    def is_pipeline_test_to_skip(self, *args, **kwargs):
        return False


for _shape in SHAPES:
    globals()[f"DebertaExt{_shape.title()}Test"] = type(
        f"DebertaExt{_shape.title()}Test",
        (_Common, ModelTesterMixin, TrainingTesterMixin, unittest.TestCase),
        {"shape": _shape},
    )

# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, v2, v3 and mDeBERTa for transformers. Importing the package registers its classes with the Auto classes."""

import transformers

from ._version import __version__
from .checkpoints.layouts import LoadingReport
from .heads import HEADS, model_class
from .int8 import Int8Quantizer  # noqa: F401  (registers the method with transformers)
from .model.attention_deberta_ext import BACKENDS as ATTENTION_BACKENDS
from .model.attention_deberta_ext import (
    AttentionInputs,
    DisentangledSelfAttention,
    PackedSequences,
    RelativePosition,
    disentangled_attention_blocked,
    disentangled_attention_eager,
    disentangled_attention_sdpa,
)
from .model.configuration_deberta_ext import DebertaExtConfig
from .model.modeling_deberta_ext import (
    DebertaExtForEntityScoring,
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForQuestionAnswering,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
    DebertaExtPreTrainedModel,
    EnhancedMaskDecoder,
)
from .model.replaced_tokens_deberta_ext import (
    DebertaExtForPreTraining,
    DebertaExtForReplacedTokenDetection,
    ReplacedTokenDetectionHead,
)
from .pretraining.span_boundary import SpanBoundaryHead
from .replaced_attention import ReplacedAttention, replace_attention, restore_attention

__all__ = [
    "ATTENTION_BACKENDS", "AttentionInputs", "DebertaExtConfig", "DebertaExtForEntityScoring", "DebertaExtForMaskedLM",
    "DebertaExtForMultipleChoice", "DebertaExtForPreTraining", "DebertaExtForQuestionAnswering",
    "DebertaExtForReplacedTokenDetection", "DebertaExtForSequenceClassification", "DebertaExtForTokenClassification",
    "DebertaExtModel", "DebertaExtPreTrainedModel", "DisentangledSelfAttention", "EnhancedMaskDecoder", "LoadingReport",
    "PackedSequences", "RelativePosition", "ReplacedAttention", "ReplacedTokenDetectionHead", "SpanBoundaryHead",
    "__version__", "disentangled_attention_blocked", "disentangled_attention_eager", "disentangled_attention_sdpa",
    "replace_attention", "restore_attention",
]  # fmt: skip

transformers.AutoConfig.register(DebertaExtConfig.model_type, DebertaExtConfig, exist_ok=True)
for _name, _head in HEADS.items():
    if _head.auto_class is not None:
        getattr(transformers, _head.auto_class).register(DebertaExtConfig, model_class(_name), exist_ok=True)

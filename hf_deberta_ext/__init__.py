# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, v2, v3 and mDeBERTa for transformers. Importing this package registers its classes with the Auto classes."""

import transformers

from . import native  # noqa: F401
from ._version import __version__
from .model import modeling_deberta_ext
from .model.attention import DisentangledSelfAttention
from .model.attention_backends import BACKENDS as ATTENTION_BACKENDS
from .model.attention_blocked import disentangled_attention_blocked
from .model.attention_eager import disentangled_attention_eager
from .model.attention_inputs import AttentionInputs
from .model.attention_sdpa import disentangled_attention_sdpa
from .model.checkpoint_layouts import LoadingReport
from .model.configuration_deberta_ext import DebertaExtConfig
from .model.enhanced_mask_decoder import EnhancedMaskDecoder
from .model.heads import HEADS
from .model.modeling_deberta_ext import (
    DebertaExtForEntityScoring,
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForPreTraining,
    DebertaExtForQuestionAnswering,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
    DebertaExtPreTrainedModel,
)
from .model.relative_position import RelativePosition
from .model.replaced_token_detection import ReplacedTokenDetectionHead
from .model.unpadding import PackedSequences
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
for _head in HEADS.values():
    if _head.auto_class is not None:
        _model_class = getattr(modeling_deberta_ext, _head.model_class)
        getattr(transformers, _head.auto_class).register(DebertaExtConfig, _model_class, exist_ok=True)

# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, v2, v3 and mDeBERTa for transformers. Importing this package registers its classes with the Auto classes."""

import sys
from importlib.abc import MetaPathFinder

import transformers

from . import native  # noqa: F401
from ._version import __version__
from .model import modeling_deberta_ext
from .model.attention import DisentangledSelfAttention
from .model.attention_backends import BACKENDS as ATTENTION_BACKENDS
from .model.attention_blocked import disentangled_attention_blocked
from .model.attention_eager import disentangled_attention_eager
from .model.attention_sdpa import disentangled_attention_sdpa
from .model.checkpoint_layouts import LoadingReport
from .model.configuration_deberta_ext import DebertaExtConfig
from .model.enhanced_mask_decoder import EnhancedMaskDecoder
from .model.heads import HEADS
from .model.modeling_deberta_ext import (
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
from .replace_attention import ReplacedAttention, replace_attention, restore_attention

__all__ = [
    "ATTENTION_BACKENDS",
    "DebertaExtConfig",
    "DebertaExtForMaskedLM",
    "DebertaExtForMultipleChoice",
    "DebertaExtForPreTraining",
    "DebertaExtForQuestionAnswering",
    "DebertaExtForReplacedTokenDetection",
    "DebertaExtForSequenceClassification",
    "DebertaExtForTokenClassification",
    "DebertaExtModel",
    "DebertaExtPreTrainedModel",
    "DisentangledSelfAttention",
    "EnhancedMaskDecoder",
    "LoadingReport",
    "PackedSequences",
    "RelativePosition",
    "ReplacedAttention",
    "ReplacedTokenDetectionHead",
    "SpanBoundaryHead",
    "__version__",
    "disentangled_attention_blocked",
    "disentangled_attention_eager",
    "disentangled_attention_sdpa",
    "replace_attention",
    "restore_attention",
]

# Modules of release 0.1 that have another name now.
_MOVED = {
    "attention_parts": "analysis.attention_decomposition",
    "checkpoints": "conversion.deberta_v2",
    "divergence": "sift.output_distance",
    "hub": "publishing",
    "plots": "analysis.plots",
    "runs": "training",
    "scoring": "analysis.sentence_scoring",
    "tasks": "finetuning",
}


class _MovedModules(MetaPathFinder):
    """Finder that answers the import of a moved module with its new name."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, module = fullname.partition(".")
        if package == __name__ and module in _MOVED:
            raise ModuleNotFoundError(f"{fullname} is now {__name__}.{_MOVED[module]}", name=fullname)
        return None


sys.meta_path.append(_MovedModules())

transformers.AutoConfig.register(DebertaExtConfig.model_type, DebertaExtConfig, exist_ok=True)
for head in HEADS.values():
    if head.auto_class is not None:
        model_class = getattr(modeling_deberta_ext, head.model_class)
        getattr(transformers, head.auto_class).register(DebertaExtConfig, model_class, exist_ok=True)
del head, model_class

# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, v2, v3 and mDeBERTa for transformers. Importing this package registers its classes with the Auto classes."""

import importlib
from typing import Any

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
from .model.modeling_deberta_ext import *  # noqa: F403
from .model.relative_position import RelativePosition
from .model.replaced_token_detection import ReplacedTokenDetectionHead
from .model.unpadding import PackedSequences

# Names outside of model/, imported on first use; a Space of the demo has neither file.
_LAZY = {
    "ReplacedAttention": "replaced_attention",
    "SpanBoundaryHead": "pretraining.span_boundary",
    "replace_attention": "replaced_attention",
    "restore_attention": "replaced_attention",
}

__all__ = [
    "ATTENTION_BACKENDS", "DebertaExtConfig", "DisentangledSelfAttention", "EnhancedMaskDecoder", "LoadingReport",
    "PackedSequences", "RelativePosition", "ReplacedTokenDetectionHead", "__version__", "disentangled_attention_blocked",
    "disentangled_attention_eager", "disentangled_attention_sdpa",
]  # fmt: skip
__all__ += [*_LAZY, *modeling_deberta_ext.__all__]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


transformers.AutoConfig.register(DebertaExtConfig.model_type, DebertaExtConfig, exist_ok=True)
for _head in HEADS.values():
    if _head.auto_class is not None:
        _model_class = getattr(modeling_deberta_ext, _head.model_class)
        getattr(transformers, _head.auto_class).register(DebertaExtConfig, _model_class, exist_ok=True)

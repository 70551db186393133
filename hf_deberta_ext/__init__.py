# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, v2, v3 and mDeBERTa for transformers. Importing this package registers its classes with the Auto classes.

Names are imported when asked for: transformers' model code, and torch.compile with it, takes as long as all the rest.
"""

import functools
import importlib
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import transformers

from . import native  # noqa: F401
from ._version import __version__ as __version__
from .model.configuration_deberta_ext import DebertaExtConfig
from .model.heads import HEADS

_MODULES = {
    "model.attention": ("DisentangledSelfAttention",),
    "model.attention_backends": ("BACKENDS",),
    "model.attention_blocked": ("disentangled_attention_blocked",),
    "model.attention_eager": ("disentangled_attention_eager",),
    "model.attention_sdpa": ("disentangled_attention_sdpa",),
    "model.checkpoint_layouts": ("LoadingReport",),
    "model.enhanced_mask_decoder": ("EnhancedMaskDecoder",),
    "model.modeling_deberta_ext": ("DebertaExtPreTrainedModel", *(head.model_class for head in HEADS.values())),
    "model.relative_position": ("RelativePosition",),
    "model.replaced_token_detection": ("ReplacedTokenDetectionHead",),
    "model.unpadding": ("PackedSequences",),
    "pretraining.span_boundary": ("SpanBoundaryHead",),
    "replaced_attention": ("ReplacedAttention", "replace_attention", "restore_attention"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_ALIASES = {"ATTENTION_BACKENDS": "BACKENDS"}

__all__: list[str] = sorted({"DebertaExtConfig", "__version__", *_ALIASES, *_HOMES} - {*_ALIASES.values()})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    name_there = _ALIASES.get(name, name)
    value = globals()[name] = getattr(importlib.import_module(f".{_HOMES[name_there]}", __name__), name_there)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Modules of release 0.1 that have another name now.
_MOVED = {
    "attention_parts": "analysis.attention_decomposition",
    "checkpoints": "conversion.deberta_v2",
    "divergence": "sift.output_distance",
    "hub": "publishing",
    "plots": "analysis.plots",
    "replace_attention": "replaced_attention",
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


@functools.cache
def _register_models():
    from .model import modeling_deberta_ext

    for head in HEADS.values():
        if head.auto_class is not None:
            model_class = getattr(modeling_deberta_ext, head.model_class)
            getattr(transformers, head.auto_class).register(DebertaExtConfig, model_class, exist_ok=True)


def _new_config(cls, *args, **kwargs):
    """Register the models before the first configuration is made, also unpickled: without one no Auto class needs them."""
    _register_models()
    return super(DebertaExtConfig, cls).__new__(cls)


DebertaExtConfig.__new__ = staticmethod(_new_config)
transformers.AutoConfig.register(DebertaExtConfig.model_type, DebertaExtConfig, exist_ok=True)

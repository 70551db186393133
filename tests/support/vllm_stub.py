# SPDX-License-Identifier: Apache-2.0
"""The parts of vLLM that serving/vllm_models.py imports, without an engine: `stub.lengths` are the requests of a step."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

from torch import nn


class Builder:
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return SimpleNamespace()


class Backend:
    @staticmethod
    def get_builder_cls():
        return Builder


class EncoderOnlyAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()

    def get_attn_backend(self):
        return Backend


def subclass_attention_backend(name_prefix, attention_backend_cls, builder_cls):
    return type(name_prefix, (attention_backend_cls,), {"get_builder_cls": staticmethod(lambda: builder_cls)})


def install(monkeypatch) -> SimpleNamespace:
    """Replace vLLM by the stub, and return it with `models`, the module serving.vllm_models."""
    stub = SimpleNamespace(metadata=None)
    pooler = SimpleNamespace(for_embedding=lambda config: None)
    names = {
        "config": dict(VllmConfig=object),
        "forward_context": dict(get_forward_context=lambda: SimpleNamespace(attn_metadata=stub.metadata)),
        "logger": dict(init_logger=lambda name: SimpleNamespace(info=lambda *args: None)),
        "model_executor.layers.attention": dict(EncoderOnlyAttention=EncoderOnlyAttention),
        "model_executor.layers.pooler": dict(DispatchPooler=type("DispatchPooler", (dict,), vars(pooler))),
        "model_executor.layers.pooler.seqwise": dict(
            CLSPool=lambda: lambda states, firsts: states[firsts],
            pooler_for_classify=lambda config, pooling, classifier: lambda *inputs: classifier(pooling(*inputs)),
        ),
        "model_executor.layers.pooler.tokwise": dict(pooler_for_token_classify=lambda config: None),
        "model_executor.models.interfaces": dict(SupportsCrossEncoding=object),
        "model_executor.models.interfaces_base": dict(
            attn_type=lambda kind: lambda cls: cls, default_pooling_type=lambda **options: lambda cls: cls
        ),
        "v1.attention.backend": dict(AttentionBackend=Backend, subclass_attention_backend=subclass_attention_backend),
    }
    for name, members in {"": {}, **names}.items():
        module = ModuleType(f"vllm.{name}".rstrip("."))
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "hf_deberta_ext.serving.vllm_models", raising=False)
    stub.models = importlib.import_module("hf_deberta_ext.serving.vllm_models")
    return stub

# SPDX-License-Identifier: Apache-2.0
"""Models for vLLM, with this package's encoder. A step of vLLM runs the encoder once on the tokens of all its requests. They
are packed like documents: a token only attends to tokens of the same request."""

import functools
from collections.abc import Iterable

import torch
from torch import nn
from transformers.activations import ACT2FN
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import EncoderOnlyAttention
from vllm.model_executor.layers.pooler import DispatchPooler
from vllm.model_executor.layers.pooler.seqwise import CLSPool, pooler_for_classify
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models.interfaces import SupportsCrossEncoding
from vllm.model_executor.models.interfaces_base import attn_type, default_pooling_type
from vllm.v1.attention.backend import AttentionBackend, subclass_attention_backend

from ..checkpoints.layouts import convert_official
from ..model.attention_deberta_ext import PackedSequences
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import ContextPooler, DebertaExtModel

__all__ = ["DebertaEmbedder", "DebertaSequenceClassifier", "DebertaTokenClassifier"]

logger = init_logger(__name__)

BOUNDARIES = "document_boundaries"


class DocumentBoundaries(EncoderOnlyAttention):
    """Attention layer that is never called. With this layer, vLLM's runner builds attention metadata in each step, and
    `lengths_backend` adds the number of tokens of each request to the metadata."""

    def __init__(self):
        # A head size that all of vLLM's backends support.
        super().__init__(num_heads=1, head_size=64, scale=1.0, num_kv_heads=1, prefix=BOUNDARIES)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return lengths_backend(super().get_attn_backend())


@functools.cache
def lengths_backend(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """Return a subclass of `backend` that adds the list `document_lengths` to its metadata, without a device sync."""

    class LengthsBuilder(backend.get_builder_cls()):
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
            metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
            metadata.document_lengths = common_attn_metadata.query_start_loc_cpu.diff().tolist()
            return metadata

    return subclass_attention_backend("Lengths", backend, LengthsBuilder)


def document_lengths(tokens: int, longest: int) -> list[int]:
    """Return the lengths of the documents in a step of `tokens` tokens.

    Tokens without a request, as in vLLM's profiling runs, count as documents of at most `longest` tokens.
    """
    metadata = get_forward_context().attn_metadata
    lengths = [length for length in metadata[BOUNDARIES].document_lengths if length] if metadata else []
    rest = tokens - sum(lengths)
    while rest > 0:
        lengths.append(min(rest, longest))
        rest -= lengths[-1]
    return lengths


def check_supported(vllm_config: VllmConfig):
    """Raise a ValueError that names the options of `vllm_config` that these models do not support."""
    parallel = vllm_config.parallel_config
    graphs = vllm_config.compilation_config.cudagraph_mode
    unsupported = {
        "--tensor-parallel-size: use --data-parallel-size, or more servers": parallel.tensor_parallel_size > 1,
        "--pipeline-parallel-size: use --data-parallel-size, or more servers": parallel.pipeline_parallel_size > 1,
        "--quantization, or quantization_config in config.json": vllm_config.quant_config is not None,
        "--enable-lora: merge the adapter and save the model": vllm_config.lora_config is not None,
        "CUDA graphs: add --enforce-eager": graphs is not None and graphs.name != "NONE",
    }
    given = [option for option, is_given in unsupported.items() if is_given]
    if given:
        raise ValueError(f"DeBERTa models of hf_deberta_ext do not support {'; '.join(given)}")


class ServedEncoder(nn.Module):
    """Encoder without a head; subclasses add `pooler`, vLLM's name for the part that computes the answer to a request."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        check_supported(vllm_config)
        model_config = vllm_config.model_config
        self.source, self.longest = model_config.model, model_config.max_model_len
        self.head_dtype = model_config.head_dtype
        self.stored_type = model_config.hf_config.model_type
        self.config = DebertaExtConfig.from_dict(model_config.hf_config.to_dict())
        if self.config.position_biased_input and self.longest > self.config.max_position_embeddings:
            raise ValueError(
                f"--max-model-len must be at most max_position_embeddings = {self.config.max_position_embeddings} for a "
                f"model with absolute positions, got {self.longest}"
            )
        self.deberta = DebertaExtModel(self.config)
        self.boundaries = DocumentBoundaries()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.deberta.embeddings.word_embeddings(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return states [T, hidden] of the T tokens of a step; vLLM only passes `token_type_ids` [T] for pairs."""
        T = len(positions)
        packed = PackedSequences.from_lengths(document_lengths(T, self.longest), positions.device)
        inputs = {"inputs_embeds": inputs_embeds} if inputs_embeds is not None else {"input_ids": input_ids}
        if token_type_ids is not None and self.config.type_vocab_size:
            inputs["token_type_ids"] = token_type_ids.long()
        rows = {name: tensor[None] for name, tensor in inputs.items()}
        return self.deberta(**rows, packed=packed).last_hidden_state[0]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint of any layout that `from_pretrained` reads; raise a ValueError if a parameter is missing."""
        tensors = dict(weights)
        unused = {}
        if self.stored_type != DebertaExtConfig.model_type:
            tensors, report = convert_official(tensors, self.config)
            unused = dict(report.unused)
        parameters = dict(self.named_parameters())
        missing = set(parameters)
        for key, tensor in tensors.items():
            # `self.pooler` is vLLM's pooler. The names in an encoder's checkpoint have no prefix.
            name = key.replace("pooler.", "context_pooler.", 1) if key.startswith("pooler.") else key
            name = name if name in parameters else f"deberta.{name}"
            if name in parameters:
                parameters[name].data.copy_(tensor)
                missing.discard(name)
            else:
                unused[key] = "no such parameter in this model"
        # No class of transformers saves this table, and only the Enhanced Mask Decoder reads it.
        if not self.config.position_biased_input:
            missing.discard("deberta.embeddings.position_embeddings.weight")
        if missing:
            raise ValueError(
                f"{self.source} lacks parameters: {', '.join(sorted(missing))}; load a checkpoint saved with this head"
            )
        logger.info("%s: %d parameters loaded; unused: %s", self.source, len(parameters), unused or "none")
        return set(parameters)


@attn_type("encoder_only")
@default_pooling_type(seq_pooling_type="CLS")
class DebertaSequenceClassifier(ServedEncoder, SupportsCrossEncoding):
    """Classifier of a text or a pair, for /classify, /score and /rerank."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.context_pooler = ContextPooler(self.config).to(self.head_dtype)
        self.classifier = nn.Linear(self.config.hidden_size, self.config.num_labels, dtype=self.head_dtype)
        cls_states = CLSPool()

        def pooled(states, metadata):
            return self.context_pooler(cls_states(states, metadata).to(self.head_dtype))

        config = vllm_config.model_config.pooler_config
        self.pooler = DispatchPooler({"classify": pooler_for_classify(config, pooling=pooled, classifier=self.classifier)})


@attn_type("encoder_only")
@default_pooling_type(tok_pooling_type="ALL")
class DebertaTokenClassifier(ServedEncoder):
    """Classifier of tokens, for /pooling with the task "token_classify"."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        hidden, dtype = self.config.hidden_size, self.head_dtype
        self.proj = nn.Linear(hidden, hidden, dtype=dtype) if self.config.classifier_act else None
        self.classifier = nn.Linear(hidden, self.config.num_labels, dtype=dtype)
        self.pooler = DispatchPooler({"token_classify": pooler_for_token_classify(vllm_config.model_config.pooler_config)})

    def forward(self, *args, **kwargs) -> torch.Tensor:
        """Return logits [T, num_labels]."""
        states = super().forward(*args, **kwargs).to(self.head_dtype)
        if self.proj is not None:
            states = ACT2FN[self.config.classifier_act](self.proj(states))
        return self.classifier(states)


@attn_type("encoder_only")
@default_pooling_type(seq_pooling_type="MEAN")
class DebertaEmbedder(ServedEncoder):
    """Encoder for /v1/embeddings, with the pooling of a sentence-transformers folder; by default, mean pooling."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = DispatchPooler.for_embedding(vllm_config.model_config.pooler_config)

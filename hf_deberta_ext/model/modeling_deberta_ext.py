# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""All models by name, for transformers' Auto classes, and the heads of downstream tasks.

Every model is a name of this file because an `auto_map` names one file, with which transformers copies what that imports.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

# transformers <= 5.9 copies only the direct imports of this file from a local folder: so every file is named here.
from .adapters import AdapterMixin  # noqa: F401
from .attention import DisentangledSelfAttention  # noqa: F401
from .attention_backends import choose_backend  # noqa: F401
from .attention_blocked import disentangled_attention_blocked  # noqa: F401
from .attention_eager import disentangled_attention_eager  # noqa: F401
from .attention_inputs import AttentionInputs  # noqa: F401
from .attention_native import disentangled_attention_native  # noqa: F401
from .attention_sdpa import disentangled_attention_sdpa  # noqa: F401
from .base_model import DebertaExtModel
from .checkpoint_files import read_json  # noqa: F401
from .checkpoint_layouts import LoadingReport  # noqa: F401
from .checkpoint_loading import LoadingMixin  # noqa: F401
from .configuration_deberta_ext import DebertaExtConfig
from .convolution import ConvLayer  # noqa: F401
from .embedding_sharing import GradientDisentangledEmbedding  # noqa: F401
from .embeddings import DebertaExtEmbeddings  # noqa: F401
from .encoder import ContextPooler
from .enhanced_mask_decoder import EnhancedMaskDecoder  # noqa: F401
from .generator_and_discriminator import DebertaExtForPreTraining  # noqa: F401
from .heads import HEADS
from .input_validation import check_labels, model_forward
from .joint_checkpoints import JointCheckpointsMixin  # noqa: F401
from .layer_sharing import run_layer  # noqa: F401
from .losses import check_fractions, cross_entropy, mean_loss, sequence_loss
from .masked_language_model import DebertaExtForMaskedLM  # noqa: F401
from .official_configurations import from_official  # noqa: F401
from .position_cache import PositionCache  # noqa: F401
from .presets import PRESETS  # noqa: F401
from .pretrained_model import DebertaExtPreTrainedModel, cls_states
from .relative_position import RelativePosition  # noqa: F401
from .remote_code import copy_code  # noqa: F401
from .replaced_token_detection import DebertaExtForReplacedTokenDetection  # noqa: F401
from .replacement_sampling import sample_replacements  # noqa: F401
from .unpadding import PackedSequences  # noqa: F401

if TYPE_CHECKING:
    # Imported at the first call, because they import Triton.
    from .attention_triton import disentangled_attention_triton  # noqa: F401
    from .triton_backward import disentangled_bwd_kernel_dq  # noqa: F401
    from .triton_forward import disentangled_fwd_kernel  # noqa: F401
    from .triton_launches import find_launches  # noqa: F401
    from .triton_tiles import dot  # noqa: F401

__all__: list[str] = sorted(["DebertaExtPreTrainedModel", *(head.model_class for head in HEADS.values())])

# The logit of an entity without tokens, and the score of a token that is none (microsoft/DeBERTa).
EXCLUDED = -10_000.0


class DebertaExtForSequenceClassification(DebertaExtPreTrainedModel):
    """A classifier or regressor of a text or a pair, on the pooled [CLS] state."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaExtModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if config.cls_dropout is None else config.cls_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> SequenceClassifierOutput:
        """Classify rows. `labels`: [B] or [B, 1] ints (single label), [B] or [B, 1] floats (`num_labels` 1: regression),
        [B, C] (regression or multi-label, by `config.problem_type`). Returns the mean loss and logits [B, C], whatever the
        labels."""
        outputs, packed = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states
        )  # fmt: skip
        cls = cls_states(outputs.last_hidden_state, attention_mask, packed)
        logits = self.classifier(self.dropout(self.pooler(cls)))
        loss = None if labels is None else sequence_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class DebertaExtForTokenClassification(DebertaExtPreTrainedModel):
    """A label for each token: a classifier, behind a dense layer where `config.classifier_act` names its activation."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaExtModel(config)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size) if config.classifier_act else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> TokenClassifierOutput:
        """Classify tokens. `labels` [B, N] (or [B * N]) ints, -100 = not counted. Returns the mean cross-entropy and logits
        [B, N, C]."""
        outputs, packed = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states,
            document_ids, labels,
        )  # fmt: skip
        states = outputs.last_hidden_state
        if self.proj is not None:
            states = ACT2FN[self.config.classifier_act](self.proj(states))
        logits = self.classifier(self.dropout(states))
        logits = logits if packed is None else packed.pad(logits)
        if labels is not None and document_ids is not None:
            labels = labels.reshape(document_ids.shape).masked_fill(document_ids == 0, -100)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class DebertaExtForEntityScoring(DebertaExtPreTrainedModel):
    """A score for each entity of a text, from its tokens: the head of microsoft/DeBERTa for ReCoRD.

    The tokens of an entity are averaged with the softmax of their scaled products with the [CLS] state.
    """

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        entity_indices: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> TokenClassifierOutput:
        """Score entities. `entity_indices` [B, E, T] ints: the tokens of each entity, 0 = none; `labels` [B, E]: 1 for a
        right entity, 0 for a wrong one, -100 for one without tokens, which is not counted. Returns the mean binary
        cross-entropy and logits [B, E], -10,000 for an entity without tokens."""
        if entity_indices is None:
            raise ValueError("entity_indices [B, E, T] are needed: the indices of the tokens of each entity, filled with 0")
        outputs, _ = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states,
            may_pack=False,
        )  # fmt: skip
        states = outputs.last_hidden_state
        places, is_token = entity_indices.long().clamp(min=0), entity_indices > 0
        scores = (states @ states[:, 0, :, None]).squeeze(-1) / states.shape[-1] ** 0.5
        scores = scores.gather(1, places.flatten(1)).view(places.shape).masked_fill(~is_token, EXCLUDED)
        weights = states.new_zeros(*places.shape[:2], states.shape[1])
        weights = weights.scatter_add(2, places, scores.softmax(-1).to(states.dtype))
        logits = self.classifier(self.dropout(ACT2FN["gelu"](self.proj(weights @ states)))).squeeze(-1).float()
        is_entity = is_token.any(-1)
        loss = None
        if labels is not None:
            check_labels("labels", labels, list(is_entity.shape))
            check_fractions(labels)
            losses = nn.functional.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
            counted = is_entity & (labels >= 0)
            loss = mean_loss(losses.masked_fill(~counted, 0.0), counted.sum(), num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits.masked_fill(~is_entity, EXCLUDED), hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )  # fmt: skip


class DebertaExtForQuestionAnswering(DebertaExtPreTrainedModel):
    """The span of the text that answers a question: a start and an end logit for each token, whatever `num_labels`."""

    # Trainer counts `labels`, which questions do not have.
    accepts_loss_kwargs = False

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Find answers. `start_positions` and `end_positions` [B] or [B, 1]: token indices; outside of [0, N) = not counted.
        Returns the mean of both cross-entropies, start and end logits [B, N]; an unpadded batch has the lowest logits at
        padding."""
        if (start_positions is None) != (end_positions is None):
            raise ValueError("start_positions and end_positions come together, or there is no loss; got one of them")
        # Padding takes part in the softmax of the loss.
        may_pack = start_positions is None
        outputs, packed = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states,
            may_pack=may_pack,
        )  # fmt: skip
        logits = self.qa_outputs(outputs.last_hidden_state)
        if packed is not None:
            logits = packed.pad(logits).masked_fill(attention_mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None:
            losses, B = [], len(start_logits)
            for name, logits, target in (
                ("start_positions", start_logits, start_positions), ("end_positions", end_logits, end_positions),
            ):  # fmt: skip
                check_labels(name, target, [B], [B, 1])
                target = target.reshape(-1).to(logits.device)
                inside = (target >= 0) & (target < logits.shape[1])
                losses.append(cross_entropy(logits, target.where(inside, -100)))
            loss = sum(losses) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class DebertaExtForMultipleChoice(DebertaExtPreTrainedModel):
    """One score for each choice, softmax over the choices."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if config.cls_dropout is None else config.cls_dropout)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> MultipleChoiceModelOutput:
        """Choose among texts. All inputs are [B, C, N] (`inputs_embeds` [B, C, N, E]), `labels` [B] the index of the right
        choice. Returns the mean cross-entropy and logits [B, C]."""
        batch = inputs_embeds if input_ids is None else input_ids
        if batch is None or batch.dim() < 3:
            shape = None if batch is None else list(batch.shape)
            raise ValueError(f"multiple choice takes input_ids [batch, choices, length], got {shape}")

        def flat(x):
            if x is None:
                return None
            if x.shape[:2] != batch.shape[:2]:
                raise ValueError(f"expected inputs of shape {list(batch.shape[:2])} x ..., got {list(x.shape)}")
            return x.flatten(0, 1)

        attention_mask = flat(attention_mask)
        outputs, packed = self.encode(
            flat(input_ids), attention_mask, flat(token_type_ids), flat(position_ids), flat(inputs_embeds),
            output_attentions, output_hidden_states,
        )  # fmt: skip
        cls = cls_states(outputs.last_hidden_state, attention_mask, packed)
        logits = self.classifier(self.dropout(self.pooler(cls))).view(batch.shape[:2])
        loss = None
        if labels is not None:
            check_labels("labels", labels, [len(batch)], [len(batch), 1])
            loss = cross_entropy(logits, labels, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Replaced token detection (DeBERTa-v3; ELECTRA's objective): the head, and the discriminator with it."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import TokenClassifierOutput

from .base_model import DebertaExtModel
from .configuration_deberta_ext import DebertaExtConfig
from .input_validation import model_forward
from .losses import check_fractions, mean_loss
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks, cls_states

__all__ = ["DebertaExtForReplacedTokenDetection", "ReplacedTokenDetectionHead"]


class ReplacedTokenDetectionHead(nn.Module):
    """`mask_predictions.*` of the official checkpoints: w·act(dense(LayerNorm(h + h_cls))) for each token.

    The [CLS] state is added to every token, which is in the released code but not in the paper.
    """

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor, cls_states: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits [B, N] of [B, N, hidden]; positive = the token was replaced. `cls_states` [B, 1 or N, hidden]: the
        [CLS] state for each token; None = the first token's."""
        states = self.LayerNorm((hidden_states[:, :1] if cls_states is None else cls_states) + hidden_states)
        return self.classifier(self.activation(self.dense(states))).squeeze(-1)


class DebertaExtForReplacedTokenDetection(DebertaExtPreTrainedModel):
    """The discriminator of DeBERTa-v3 with the official head: was this token replaced?"""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.mask_predictions = ReplacedTokenDetectionHead(config)
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
        """Tell replaced tokens. `labels` [B, N]: 1 = replaced, 0 = original, -100 = not counted; padding is not counted
        either (label it -100 where Trainer counts the items). Returns the mean binary cross-entropy and logits [B, N]."""
        outputs, packed = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states,
            document_ids,
        )  # fmt: skip
        states = outputs.last_hidden_state
        cls = None
        if packed is not None:
            cls = states.index_select(1, packed.first_token)
        elif attention_mask is not None:
            cls = cls_states(states, attention_mask, None)[:, None]
        logits = self.mask_predictions(states, cls)
        if packed is not None:
            logits = packed.pad(logits)
        loss = None
        if labels is not None:
            B, N = logits.shape
            if list(labels.shape) not in ([B, N], [B * N]):
                raise ValueError(f"labels must have shape [{B}, {N}] or [{B * N}], got {list(labels.shape)}")
            check_fractions(labels)
            labels = labels.reshape(B, N)
            counted = labels != -100
            _, token_mask = attention_masks(attention_mask, labels.shape)
            if document_ids is not None:
                counted = counted & (document_ids != 0)
            if token_mask is not None:
                counted = counted & token_mask
            losses = nn.functional.binary_cross_entropy_with_logits(
                logits.float(), labels.float(), weight=counted.float(), reduction="none"
            )
            loss = mean_loss(losses, counted.sum(), num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

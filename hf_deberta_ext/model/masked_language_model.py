# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtForMaskedLM`: the encoder, the Enhanced Mask Decoder and the masked-language-model head."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from .base_model import DebertaExtModel
from .configuration_deberta_ext import DebertaExtConfig
from .enhanced_mask_decoder import EnhancedMaskDecoder, MaskedLMHead, labelled_positions
from .input_validation import model_forward
from .layer_sharing import run_layer
from .losses import cross_entropy
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks, batch_shape
from .unpadding import PackedSequences

__all__ = ["DebertaExtForMaskedLM", "MaskedLMPrediction"]


@dataclass
class MaskedLMPrediction:
    """Logits of a masked language model before they become a loss.

    Args:
        logits (`torch.Tensor`): [n, V] under `masked_only`, [1, T, V] of the stream if packed, else [B, N, V].
        targets (`torch.LongTensor`, *optional*): their labels, in the same order.
        encoder (`BaseModelOutput`): the outputs of the encoder.
        packed (`PackedSequences`, *optional*): how the batch became one stream.
    """

    logits: torch.Tensor
    targets: torch.Tensor | None
    encoder: BaseModelOutput
    packed: PackedSequences | None


class DebertaExtForMaskedLM(DebertaExtPreTrainedModel):
    """Masked-language modelling as published: Enhanced Mask Decoder and `lm_predictions` head, decoder tied."""

    _tied_weights_keys = {  # noqa: RUF012
        "lm_predictions.lm_head.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    }
    # Heads of other objectives of the same pre-training.
    _keys_to_ignore_on_load_unexpected = [r"^span_boundary\.", r"^sentence_relationship\."]  # noqa: RUF012
    _decodes_absolute_positions = True

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.mask_decoder = EnhancedMaskDecoder(config.emd_layers, config.emd_input) if config.has_mask_decoder else None
        self.lm_predictions = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_predictions.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        # Not out_features: transformers 5.4 leaves that as it was where the tied table has grown.
        head, size = self.lm_predictions.lm_head, len(new_embeddings.weight)
        head.decoder, new_embeddings.out_features = new_embeddings, size
        if size != len(head.bias):
            bias = head.bias.new_zeros(size)
            bias[: len(head.bias)] = head.bias.detach()[:size]
            head.bias = nn.Parameter(bias, requires_grad=head.bias.requires_grad)

    def decode(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
        packed: PackedSequences | None = None,
    ) -> torch.Tensor:
        """Run the Enhanced Mask Decoder on the input of the last layer, [B, N, hidden] -> [B, Q, hidden].

        Arguments as in `forward`; `query_positions` [B, Q] chooses what is decoded, None = every position. With `packed`,
        hidden_states, position_ids and query_positions belong to the stream, and there is no mask.
        """
        encoder, embeddings = self.deberta.encoder, self.deberta.embeddings
        B, N = hidden_states.shape[:2]
        mask, token_mask = attention_masks(attention_mask, (B, N))
        if mask is not None and mask.shape[-2] > 1 and query_positions is not None:
            index = query_positions[:, None, :, None].expand(-1, mask.shape[1], -1, N)
            mask = mask.gather(2, index)
        positions = None
        if self.config.emd_input != "hidden":
            rows = embeddings.absolute_positions(N, position_ids, token_mask, packed, device=hidden_states.device)
            positions = embeddings.project(rows)
        longest = N if packed is None else max(packed.lengths)
        rel_embeddings, options = encoder.positions(longest, hidden_states.device)
        options.update(packed=packed)
        last = encoder.num_layers - 1

        def layer(queries, query_positions, passes):
            tensors = (hidden_states, mask, rel_embeddings, queries)
            return run_layer(encoder.layer, last, *tensors, query_positions=query_positions, passes=passes, **options)[0]

        return self.mask_decoder(hidden_states, positions, layer, query_positions)

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
        masked_only: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Predict masked words.

        Args:
            labels (`torch.LongTensor`, *optional*): [B, N] or [B * N]; -100 = not a target.
            masked_only (`bool`, *optional*): compute queries, logits and loss at labelled positions only; None: the
                configuration's in training mode, False in evaluation mode.

        Returns:
            `MaskedLMOutput`: the mean cross-entropy; logits [B, N, V], or [number of labels that are not -100, V] in the
            order of `labels[labels != -100]` under `masked_only` with labels.

        Raises:
            ValueError: `masked_only=True` without labels, or more tokens than the absolute position table has rows; as in
                `DebertaExtModel`.
        """
        config = self.config
        if masked_only and labels is None:
            raise ValueError("masked_only=True needs labels: they say which positions are masked")
        if masked_only is None:
            # Metrics read dense logits.
            masked_only = config.masked_only and self.training and labels is not None
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        if output_attentions is None:
            output_attentions = config.output_attentions
        predicted = self.predict(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, labels=labels, document_ids=document_ids,
            masked_only=masked_only, output_attentions=output_attentions,
            output_hidden_states=output_hidden_states or output_attentions,
        )  # fmt: skip
        logits = predicted.logits
        loss = None if labels is None else cross_entropy(logits, predicted.targets, num_items_in_batch)
        if predicted.packed is not None and not masked_only:
            logits = predicted.packed.pad(logits)
        hidden_states = predicted.encoder.hidden_states if output_hidden_states else None
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=hidden_states, attentions=predicted.encoder.attentions)

    def predict(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        *,
        labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        masked_only: bool = False,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> MaskedLMPrediction:
        """Run encoder, decoder and head, without a loss; arguments as in `forward`.

        Args:
            output_hidden_states (`bool`): False: the encoder's own pass of the last layer is left out if EMD runs, since it
                would only be an output.
        """
        skip_last_layer = self.mask_decoder is not None and not output_hidden_states
        outputs, packed = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states,
            document_ids, labels, skip_last_layer=skip_last_layer,
        )  # fmt: skip
        states = outputs.last_hidden_state
        if self.mask_decoder is not None and not skip_last_layer:
            states = outputs.hidden_states[-2]
            if packed is not None:
                states = packed.unpad(states)
        targets = labels
        if labels is not None:
            targets = labels.reshape(batch_shape(input_ids, inputs_embeds))
        if packed is not None:
            attention_mask = None
            if targets is not None:
                targets = packed.unpad(targets)
            if position_ids is not None:
                position_ids = packed.unpad(position_ids)
        if self.mask_decoder is None:
            if masked_only:
                states = states[targets != -100]
        elif masked_only:
            query_positions, is_labelled = labelled_positions(targets)
            states = self.decode(states, attention_mask, position_ids, query_positions, packed)[is_labelled]
        else:
            states = self.decode(states, attention_mask, position_ids, packed=packed)
        if masked_only:
            targets = targets[targets != -100]
        return MaskedLMPrediction(self.lm_predictions(states), targets, outputs, packed)

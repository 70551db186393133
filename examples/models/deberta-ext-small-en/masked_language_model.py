# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtForMaskedLM`: the encoder, the Enhanced Mask Decoder and the masked-language-model head."""

import torch
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput

from .base_model import DebertaExtModel
from .configuration_deberta_ext import DebertaExtConfig
from .enhanced_mask_decoder import EnhancedMaskDecoder, MaskedLMHead, labelled_positions
from .input_validation import check_switches, model_forward
from .layer_sharing import run_layer
from .losses import cross_entropy
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks
from .unpadding import PackedSequences

__all__ = ["DebertaExtForMaskedLM"]


class DebertaExtForMaskedLM(DebertaExtPreTrainedModel):
    """Masked-language modelling as published: Enhanced Mask Decoder and `lm_predictions` head, decoder tied."""

    _tied_weights_keys = {  # noqa: RUF012
        "lm_predictions.lm_head.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    }
    # Heads of objectives that were trained beside this one.
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
        """The Enhanced Mask Decoder on the input of the last layer, [B, N, hidden] -> [B, Q, hidden].

        Arguments as in `forward`; `query_positions` [B, Q] chooses what is decoded, None = every position. With `packed`,
        hidden_states, position_ids and query_positions are those of the stream, and there is no mask.
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
        """
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
        check_switches(
            masked_only=masked_only, output_attentions=output_attentions, output_hidden_states=output_hidden_states
        )
        config = self.config
        if masked_only and labels is None:
            raise ValueError("masked_only=True needs labels: they say which positions are masked")
        if masked_only is None:
            # Metrics read dense logits.
            masked_only = config.masked_only and self.training and labels is not None
        wants_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        wants_attentions = config.output_attentions if output_attentions is None else output_attentions
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, targets, outputs, packed = self.predict(
            *inputs, wants_attentions, wants_states or wants_attentions, document_ids, labels, sparse=masked_only
        )
        loss = None if labels is None else cross_entropy(logits, targets, num_items_in_batch)
        if packed is not None and not masked_only:
            logits = packed.pad(logits)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states if wants_states else None,
            attentions=outputs.attentions,
        )

    def predict(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        output_attentions: bool,
        output_hidden_states: bool,
        document_ids: torch.Tensor | None,
        labels: torch.Tensor | None,
        sparse: bool,
    ):
        """Encoder, decoder and head, without a loss; arguments as in `forward`.

        Args:
            output_hidden_states (`bool`): otherwise the encoder's own pass of the last layer is left out if EMD runs, since
                it would be nothing but an output.
            sparse (`bool`): decode labelled positions alone.

        Returns:
            logits, [n, V] if sparse, [1, T, V] of the stream if packed, else [B, N, V]; their labels, or None; the encoder's
            outputs; and `PackedSequences` or None.
        """
        skip_last_layer = self.mask_decoder is not None and not output_hidden_states
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, packed = self.encode(
            *inputs, output_attentions, output_hidden_states, document_ids, labels, skip_last_layer=skip_last_layer
        )
        states = outputs.last_hidden_state
        if labels is not None:
            labels = labels.reshape((input_ids if inputs_embeds is None else inputs_embeds).shape[:2])
        targets = labels
        if packed is not None:
            targets = labels if labels is None else packed.unpad(labels)
            position_ids = position_ids if position_ids is None else packed.unpad(position_ids)
            attention_mask = None
        if self.mask_decoder is not None:
            if not skip_last_layer:
                states = outputs.hidden_states[-2]
                states = states if packed is None else packed.unpad(states)
            query_positions = is_labelled = None
            if sparse:
                query_positions, is_labelled = labelled_positions(targets)
            states = self.decode(states, attention_mask, position_ids, query_positions, packed)
            states = states[is_labelled] if sparse else states
        elif sparse:
            states = states[targets != -100]
        return self.lm_predictions(states), targets[targets != -100] if sparse else targets, outputs, packed

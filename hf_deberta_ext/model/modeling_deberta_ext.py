# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtModel`, the encoder without a head, and the heads: what transformers' Auto classes load.

They are in one file because transformers, saving a model that it loaded from the Hub, copies the file of its class and
what that imports.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple

# transformers <= 5.9 copies only the direct imports of this file from a local folder: so every file is named here.
from .attention import DisentangledSelfAttention  # noqa: F401
from .attention_eager import disentangled_attention_eager  # noqa: F401
from .checkpoint_layouts import LoadingReport  # noqa: F401
from .configuration_deberta_ext import DebertaExtConfig
from .encoder import ContextPooler, DebertaExtEmbeddings, DebertaExtEncoder
from .enhanced_mask_decoder import EnhancedMaskDecoder, MaskedLMHead, labelled_positions
from .losses import cross_entropy, mean_loss, sequence_loss
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks, cls_states
from .relative_position import RelativePosition  # noqa: F401
from .replaced_token_detection import ReplacedTokenDetectionHead
from .unpadding import PackedSequences

if TYPE_CHECKING:
    # Loaded where they are needed, and named here for the same reason.
    from .attention_blocked import disentangled_attention_blocked  # noqa: F401
    from .attention_flex import disentangled_attention_flex  # noqa: F401
    from .attention_sdpa import disentangled_attention_sdpa  # noqa: F401
    from .attention_triton import disentangled_attention_triton  # noqa: F401

__all__ = [
    "DebertaExtForMaskedLM",
    "DebertaExtForMultipleChoice",
    "DebertaExtForQuestionAnswering",
    "DebertaExtForReplacedTokenDetection",
    "DebertaExtForSequenceClassification",
    "DebertaExtForTokenClassification",
    "DebertaExtModel",
    "DebertaExtPreTrainedModel",
]


class DebertaExtModel(DebertaExtPreTrainedModel):
    """The encoder, without a head."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.embeddings = DebertaExtEmbeddings(config)
        self.encoder = DebertaExtEncoder(config)
        self.unpadding: bool | None = None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        document_ids: torch.Tensor | None = None,
        skip_last_layer: bool = False,
        packed: PackedSequences | bool | None = None,
    ) -> BaseModelOutput:
        """
        Args:
            input_ids (`torch.LongTensor`, *optional*): [B, N]; or `inputs_embeds` [B, N, E].
            attention_mask (`torch.Tensor`, *optional*): [B, N], [B, N, N] or [B, 1, N, N], int, float or bool; 1 = real
                token, or query i (rows) may attend to key j (columns).
            token_type_ids (`torch.LongTensor`, *optional*): [B, N]; ignored with `type_vocab_size` 0.
            position_ids (`torch.LongTensor`, *optional*): [1 or B, N] rows of the absolute table, where the input or EMD
                reads it; None counts from the first real token. Relative positions count from one token to the next.
            document_ids (`torch.LongTensor`, *optional*): [B, N], several documents in a row: tokens of one document carry
                one number > 0, padding 0. Documents do not see each other, and positions start anew in each.
            skip_last_layer (`bool`): leave out the last layer, which EMD runs itself.
            packed (`PackedSequences`, *optional*): how the batch becomes one stream; then last_hidden_state is that stream,
                [1, T, hidden], for heads. False: the batch stays as it is. None: as `set_unpadding` and `document_ids` say,
                and padded again.

        Returns:
            `BaseModelOutput`: last_hidden_state [B, N, hidden]; hidden_states, num_hidden_layers + 1 of them;
            attentions [B, H, N, N].

        Raises:
            ValueError: both or neither of the inputs, a mask of another shape, more tokens than absolute positions, or
                `attn_implementation` names a backend that cannot serve this call.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, not both and not neither")
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        B, N = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        keep_stream = packed is not None
        if packed is None:
            packed = self.pack((B, N), attention_mask, document_ids, output_attentions)
        packed = packed or None
        if packed is None:
            mask, token_mask = attention_masks(attention_mask, (B, N))
        else:
            mask = token_mask = None
            inputs = (input_ids, token_type_ids, position_ids, inputs_embeds)
            input_ids, token_type_ids, position_ids, inputs_embeds = (x if x is None else packed.unpad(x) for x in inputs)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds, token_mask, packed)
        outputs = self.encoder(
            embedded,
            mask,
            token_mask,
            output_hidden_states=config.output_hidden_states if output_hidden_states is None else output_hidden_states,
            output_attentions=output_attentions,
            skip_last_layer=skip_last_layer,
            packed=packed,
        )
        if packed is not None:
            if outputs.hidden_states is not None:
                outputs.hidden_states = tuple(packed.pad(states) for states in outputs.hidden_states)
            if not keep_stream:
                outputs.last_hidden_state = packed.pad(outputs.last_hidden_state)
        return outputs


class DebertaExtForMaskedLM(DebertaExtPreTrainedModel):
    """Masked-language modelling as published: Enhanced Mask Decoder and `lm_predictions` head, decoder tied."""

    _tied_weights_keys = {  # noqa: RUF012
        "lm_predictions.lm_head.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "lm_predictions.lm_head.decoder.bias": "lm_predictions.lm_head.bias",
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
        self.lm_predictions.lm_head.decoder = new_embeddings
        self.lm_predictions.lm_head.bias = new_embeddings.bias

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
            positions = embeddings.project(embeddings.absolute_positions(N, position_ids, token_mask, packed))
        rel_embeddings, options = encoder.positions(N if packed is None else max(packed.lengths))
        options.update(packed=packed)
        last = encoder.num_layers - 1

        def layer(queries, query_positions):
            where = dict(query_positions=query_positions)
            return encoder.run_layer(last, hidden_states, mask, rel_embeddings, queries, **where, **options)[0]

        return self.mask_decoder(hidden_states, positions, layer, query_positions)

    @can_return_tuple
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
            labels (`torch.LongTensor`, *optional*): [B, N]; -100 = not a target.
            masked_only (`bool`, *optional*): queries, logits and loss at labelled positions alone; None = the config's.

        Returns:
            `MaskedLMOutput`: the mean cross-entropy; logits [B, N, V], or [number of labels that are not -100, V] in the
            order of `labels[labels != -100]` under `masked_only` with labels. Trainer cannot gather such logits from several
            processes: evaluate with `prediction_loss_only=True`, or with `masked_only=False` if metrics need logits.

        Raises:
            ValueError: `masked_only=True` without labels, or more tokens than the absolute position table has rows.
        """
        config = self.config
        if masked_only and labels is None:
            raise ValueError("masked_only=True needs labels: they say which positions are masked")
        sparse = labels is not None and (config.masked_only if masked_only is None else masked_only)
        wants_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        wants_attentions = config.output_attentions if output_attentions is None else output_attentions
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, targets, outputs, packed = self.predict(
            *inputs, wants_attentions, wants_states or wants_attentions, document_ids, labels, sparse=sparse
        )
        loss = None if labels is None else cross_entropy(logits, targets, num_items_in_batch)
        if packed is not None and not sparse:
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
        targets = labels
        if packed is not None:
            targets = labels if labels is None else packed.unpad(labels.reshape(packed.shape))
            position_ids = position_ids if position_ids is None else packed.unpad(position_ids)
            attention_mask = None
        if self.mask_decoder is not None:
            if not skip_last_layer:
                states = outputs.hidden_states[-2]
                states = states if packed is None else packed.unpad(states)
            query_positions = wanted = None
            if sparse:
                query_positions, wanted = labelled_positions(targets)
            states = self.decode(states, attention_mask, position_ids, query_positions, packed)
            states = states[wanted] if sparse else states
        elif sparse:
            states = states[targets != -100]
        return self.lm_predictions(states), targets[targets != -100] if sparse else targets, outputs, packed


class DebertaExtForReplacedTokenDetection(DebertaExtPreTrainedModel):
    """The discriminator of DeBERTa-v3 with the official head: was this token replaced?"""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.mask_predictions = ReplacedTokenDetectionHead(config)
        self.post_init()

    @can_return_tuple
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
        """`labels` [B, N]: 1 = replaced, 0 = original, -100 = not counted; padding is not counted either (label it -100
        where Trainer counts the items). Returns the mean binary cross-entropy and logits [B, N]."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, packed = self.encode(*inputs, output_attentions, output_hidden_states, document_ids)
        states, cls = outputs.last_hidden_state, None
        if packed is not None:
            cls = states.index_select(1, packed.first_token)
        elif attention_mask is not None:
            cls = cls_states(states, attention_mask, None)[:, None]
        logits = self.mask_predictions(states, cls)
        logits = logits if packed is None else packed.pad(logits)
        loss = None
        if labels is not None:
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

    @can_return_tuple
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
        """`labels`: [B] or [B, 1] ints (single label), [B] or [B, 1] floats (`num_labels` 1: regression), [B, C] (regression
        or multi-label, by `config.problem_type`). Returns the mean loss and logits [B, C], whatever the labels."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, packed = self.encode(*inputs, output_attentions, output_hidden_states)
        cls = cls_states(outputs.last_hidden_state, attention_mask, packed)
        logits = self.classifier(self.dropout(self.pooler(cls)))
        loss = None if labels is None else sequence_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class DebertaExtForTokenClassification(DebertaExtPreTrainedModel):
    """A label for each token."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaExtModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
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
        """`labels` [B, N] ints, -100 = not counted. Returns the mean cross-entropy and logits [B, N, C]."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, packed = self.encode(*inputs, output_attentions, output_hidden_states, document_ids, labels)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        logits = logits if packed is None else packed.pad(logits)
        if labels is not None and document_ids is not None:
            labels = labels.masked_fill(document_ids == 0, -100)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class DebertaExtForQuestionAnswering(DebertaExtPreTrainedModel):
    """The span of the text that answers a question: a start and an end logit for each token, whatever `num_labels`."""

    # Trainer counts `labels`, which questions do not have.
    accepts_loss_kwargs = False

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
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
        """`start_positions` and `end_positions` [B] or [B, 1]: token indices; outside of [0, N) = not counted. Returns the
        mean of both cross-entropies, start and end logits [B, N]; an unpadded batch has the lowest logits at padding."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        # Padding takes part in the softmax of the loss.
        may_pack = start_positions is None
        outputs, packed = self.encode(*inputs, output_attentions, output_hidden_states, may_pack=may_pack)
        logits = self.qa_outputs(outputs.last_hidden_state)
        if packed is not None:
            logits = packed.pad(logits).masked_fill(attention_mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = []
            for logits, target in ((start_logits, start_positions), (end_logits, end_positions)):
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

    @can_return_tuple
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
        """All inputs [B, C, N] (`inputs_embeds` [B, C, N, E]), `labels` [B] the index of the right choice. Returns the mean
        cross-entropy and logits [B, C]."""
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None or given.dim() < 3:
            shape = None if given is None else list(given.shape)
            raise ValueError(f"multiple choice takes input_ids [batch, choices, length], got {shape}")
        choices = given.shape[1]

        def flat(x):
            return None if x is None else x.flatten(0, 1)

        attention_mask = flat(attention_mask)
        inputs = (flat(input_ids), attention_mask, flat(token_type_ids), flat(position_ids), flat(inputs_embeds))
        outputs, packed = self.encode(*inputs, output_attentions, output_hidden_states)
        cls = cls_states(outputs.last_hidden_state, attention_mask, packed)
        logits = self.classifier(self.dropout(self.pooler(cls))).view(-1, choices)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

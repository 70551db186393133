# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtModel`, the encoder without a head."""

import torch
from transformers.modeling_outputs import BaseModelOutput

from .configuration_deberta_ext import DebertaExtConfig
from .embeddings import DebertaExtEmbeddings
from .encoder import DebertaExtEncoder
from .input_validation import model_forward
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks, batch_shape
from .unpadding import PackedSequences

__all__ = ["DebertaExtModel"]


class DebertaExtModel(DebertaExtPreTrainedModel):
    """The encoder, without a head."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.embeddings = DebertaExtEmbeddings(config)
        self.encoder = DebertaExtEncoder(config)
        self.unpadding: bool | None = None
        self.post_init()

    @model_forward
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
        packed: PackedSequences | None = None,
        may_pack: bool = True,
    ) -> BaseModelOutput:
        """Encode a batch.

        Args:
            input_ids (`torch.LongTensor`, *optional*): [B, N]; or `inputs_embeds` [B, N, E].
            attention_mask (`torch.Tensor`, *optional*): [B, N], [B, N, N] or [B, 1, N, N], int, float or bool; 1 = real
                token, or query i (rows) may attend to key j (columns).
            token_type_ids (`torch.LongTensor`, *optional*): [B, N]; ignored with `type_vocab_size` 0.
            position_ids (`torch.LongTensor`, *optional*): [1 or B, N] rows of the absolute table, where the input or EMD
                reads it; None counts from the first real token. Relative positions count from one token to the next.
                In a single row without a mask, positions that restart at 0 begin another document.
            document_ids (`torch.LongTensor`, *optional*): [B, N], several documents in a row: tokens of one document carry
                one number > 0, padding 0. Documents do not see each other, and positions start again in each.
            skip_last_layer (`bool`): leave out the last layer, which EMD runs itself.
            packed (`PackedSequences`, *optional*): how the batch becomes one stream, which last_hidden_state then is,
                [1, T, hidden]: for heads.
            may_pack (`bool`): False: without `packed`, the batch stays padded. True: it is packed as `set_unpadding` and
                `document_ids` say, and padded again.

        Returns:
            `BaseModelOutput`: last_hidden_state [B, N, hidden]; hidden_states, num_hidden_layers + 1 of them;
            attentions [B, H, N, N]. States at padding mean nothing: zeros in an unpadded batch, else, with a mask [B, N],
            states of queries that attend to the real tokens (in the official code, to nothing).

        Raises:
            ValueError: both or neither of the inputs, a tensor of another shape, a mask with other values than 0 and 1 (on
                CPU), more tokens than absolute positions, or `attn_implementation` names a backend that cannot serve this
                call.
        """
        B, N = batch_shape(input_ids, inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids)
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        config = self.config
        if output_attentions is None:
            output_attentions = config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        returns_stream = packed is not None
        if packed is None and may_pack:
            packed = self.pack((B, N), attention_mask, document_ids, output_attentions)
        if packed is None:
            mask, token_mask = attention_masks(attention_mask, (B, N), config.num_attention_heads)
        else:
            mask = token_mask = None
            inputs = (input_ids, token_type_ids, position_ids, inputs_embeds)
            input_ids, token_type_ids, position_ids, inputs_embeds = (x if x is None else packed.unpad(x) for x in inputs)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds, token_mask, packed)
        outputs = self.encoder(
            embedded,
            mask,
            token_mask,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            skip_last_layer=skip_last_layer,
            packed=packed,
        )
        if packed is not None:
            if outputs.hidden_states is not None:
                outputs.hidden_states = tuple(packed.pad(states) for states in outputs.hidden_states)
            if not returns_stream:
                outputs.last_hidden_state = packed.pad(outputs.last_hidden_state)
        return outputs

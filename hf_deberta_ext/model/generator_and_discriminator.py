# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtForPreTraining`: generator and discriminator of replaced token detection (DeBERTaV3, ELECTRA) in one model."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.utils import ModelOutput

from .configuration_deberta_ext import DebertaExtConfig
from .embedding_sharing import GradientDisentangledEmbedding, share_embeddings
from .heads import PARTS
from .input_validation import check_labels, model_forward
from .joint_checkpoints import JointCheckpointsMixin
from .masked_language_model import DebertaExtForMaskedLM
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks
from .replaced_token_detection import DebertaExtForReplacedTokenDetection
from .replacement_sampling import sample_replacements

__all__ = ["DebertaExtForPreTraining", "DebertaExtForPreTrainingOutput"]


@dataclass
class DebertaExtForPreTrainingOutput(ModelOutput):
    """
    Args:
        loss (`torch.Tensor`, *optional*): generator_loss + rtd_lambda * discriminator_loss.
        generator_loss (`torch.Tensor`, *optional*): mean cross-entropy at the selected positions.
        discriminator_loss (`torch.Tensor`, *optional*): mean binary cross-entropy over the tokens that count.
        generator_logits (`torch.Tensor`, *optional*): [n, V] at the selected positions, in the order of
            `labels[labels != -100]`.
        discriminator_logits (`torch.Tensor`, *optional*): [B, N]; positive = this token was replaced.
        corrupted_ids (`torch.LongTensor`, *optional*): [B, N], what the discriminator reads.
        discriminator_labels (`torch.LongTensor`, *optional*): [B, N]; 1 = replaced, 0 = original, -100 = not counted.
        hidden_states, attentions (*optional*): of the discriminator, as in `DebertaExtModel`.
    """

    loss: torch.Tensor | None = None
    generator_loss: torch.Tensor | None = None
    discriminator_loss: torch.Tensor | None = None
    generator_logits: torch.Tensor | None = None
    discriminator_logits: torch.Tensor | None = None
    corrupted_ids: torch.Tensor | None = None
    discriminator_labels: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class DebertaExtForPreTraining(JointCheckpointsMixin, DebertaExtPreTrainedModel):
    """A generator fills masked positions with samples, a discriminator tells which tokens were replaced.

    `generator` is a `DebertaExtForMaskedLM`, with the Enhanced Mask Decoder; `discriminator` is a
    `DebertaExtForReplacedTokenDetection`, without it: the decoder fills in masks, and a discriminator sees none (so
    it is in the released code). `config` describes the discriminator, and says how the generator differs and how the two
    share their embeddings (`embedding_sharing`). The discriminator has no table of absolute positions unless its input
    reads one: an exported one has the generator's.

    The loss is L = L_MLM + rtd_lambda * L_RTD (ELECTRA equation 4, DeBERTaV3 section 3.1).
    """

    base_model_prefix = ""
    # Trainer would count only the selected positions.
    accepts_loss_kwargs = False

    def __init__(self, config: DebertaExtConfig):
        if config.generator is None:
            # A generator that only differs in its depth; the field marks a joint checkpoint.
            config.generator = {}
        super().__init__(config)
        self.generator = DebertaExtForMaskedLM(config.generator_config())
        self.discriminator = DebertaExtForReplacedTokenDetection(config.discriminator_config())
        generator, discriminator = self.generator.deberta, self.discriminator.deberta
        if not config.position_biased_input and hasattr(discriminator.embeddings, "position_embeddings"):
            del discriminator.embeddings.position_embeddings
        tied = share_embeddings(config.embedding_sharing, generator, discriminator)
        self._tied_weights_keys = {f"discriminator.deberta.{name}": f"generator.deberta.{name}" for name in tied}
        self.post_init()

    def _freeze_unread_positions(self):
        for part in PARTS:
            getattr(self, part)._freeze_unread_positions()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the generator's table."""
        return self.generator.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding):
        self.generator.set_input_embeddings(value)
        table = self.discriminator.get_input_embeddings()
        if isinstance(table, GradientDisentangledEmbedding):
            table.borrow(value)
        self.tie_weights()

    def get_output_embeddings(self) -> nn.Linear:
        return self.generator.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.generator.set_output_embeddings(new_embeddings)

    def resize_token_embeddings(self, *args, **kwargs):
        raise ValueError(
            "a joint model cannot be resized: export generator and discriminator, resize both, and join them again with "
            "DebertaExtForPreTraining.from_checkpoints(discriminator, generator)"
        )

    def extend_position_embeddings(self, length: int):
        raise ValueError(
            f"a joint model cannot be extended to {length} positions: export generator and discriminator, extend both, and "
            "join them again with DebertaExtForPreTraining.from_checkpoints(discriminator, generator)"
        )

    def set_unpadding(self, unpadding: bool | None):
        for part in PARTS:
            getattr(self, part).set_unpadding(unpadding)

    def set_attn_implementation(self, attn_implementation, *args, **kwargs):
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        for part in PARTS:
            getattr(self, part).set_attn_implementation(attn_implementation, *args, **kwargs)

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        part: str | None = None,
        random_generator: torch.Generator | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> DebertaExtForPreTrainingOutput:
        """Run a step of replaced token detection.

        Args:
            input_ids (`torch.LongTensor`): [B, N], masked at the selected positions. Other inputs as in `DebertaExtModel`.
            labels (`torch.LongTensor`, *optional*): [B, N], the original token at selected positions, -100 elsewhere. Only
                these positions change. None: nothing is masked or replaced, the discriminator judges `input_ids` as is.
            part (`str`, *optional*): None = both in one step. "generator": only the generator, and what it makes of the
                batch, `corrupted_ids` and `discriminator_labels`. "discriminator": only the discriminator, on these two as
                `input_ids` and `labels`. For steps in turn, where the generator's weights change between the two.
            random_generator (`torch.Generator`, *optional*): draws the replacements; None = torch's own generator.
            output_attentions, output_hidden_states (`bool`, *optional*): of the discriminator.

        Raises:
            ValueError: labels, but no `config.special_token_ids`; an unknown `part`, or "generator" without labels.
        """
        inputs = dict(
            attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids,
            document_ids=document_ids, return_dict=True,
        )  # fmt: skip
        optional = dict(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        if part not in (None, *PARTS):
            raise ValueError(f"part = {part!r} must be None, 'generator' or 'discriminator'")
        if part == "discriminator" or labels is None:
            if part == "generator":
                raise ValueError("part = 'generator' needs labels: the tokens at the selected positions")
            return self._judge(input_ids, labels, inputs | optional)
        check_labels("labels", labels, list(input_ids.shape))
        filled = self.generator(input_ids, labels=labels, masked_only=True, **inputs)
        corrupted, replaced = self.corrupt(
            input_ids, labels, filled.logits, attention_mask, document_ids, random_generator=random_generator
        )
        generated = dict(generator_loss=filled.loss, generator_logits=filled.logits)
        if part == "generator":
            return DebertaExtForPreTrainingOutput(
                loss=filled.loss, corrupted_ids=corrupted, discriminator_labels=replaced, **generated
            )
        return self._judge(corrupted, replaced, inputs | optional, **generated)

    def _judge(self, corrupted_ids, discriminator_labels, inputs: dict, **generated) -> DebertaExtForPreTrainingOutput:
        """Run the discriminator; `generated` are the outputs of the generator, if it has run."""
        judged = self.discriminator(corrupted_ids, labels=discriminator_labels, **inputs)
        loss = generated.get("generator_loss")
        if judged.loss is not None:
            weighted = self.config.rtd_lambda * judged.loss
            if loss is None:
                loss = weighted
            else:
                loss = loss + weighted
        # In one go: torch.compile of 2.6 loses what is assigned to the fields of an output that is there already.
        return DebertaExtForPreTrainingOutput(
            loss=loss,
            discriminator_loss=judged.loss,
            discriminator_logits=judged.logits,
            corrupted_ids=corrupted_ids,
            discriminator_labels=discriminator_labels,
            hidden_states=judged.hidden_states,
            attentions=judged.attentions,
            **generated,
        )

    @torch.no_grad()
    def corrupt(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        logits: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        random_generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put samples of the generator in the selected positions.

        Args:
            logits (`torch.Tensor`): [n, V] at the positions where `labels` [B, N] are not -100.

        Returns:
            corrupted ids [B, N], and the discriminator's labels [B, N]: 1 where the sample is not the original, 0 elsewhere,
            -100 at padding and, without `config.rtd_special_tokens`, at special tokens.
        """
        special = self.config.special_token_ids
        if special is None:
            raise ValueError(
                "special_token_ids is None, but special tokens must never be drawn as replacements: set "
                "config.special_token_ids = tokenizer.all_special_ids (and the ids that the tokenizer has no token for)"
            )
        selected = labels != -100
        samples = sample_replacements(logits, special, self.config.rtd_temperature, random_generator)
        corrupted = input_ids.masked_scatter(selected, samples.to(input_ids.dtype))
        replaced = (selected & (corrupted != labels)).long()
        counted = self.counted_tokens(input_ids, labels, attention_mask, document_ids)
        return corrupted, replaced.masked_fill(~counted, -100)

    def counted_tokens(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [B, N] bool, the tokens in the discriminator's loss, which do not depend on what is drawn; arguments as in
        `forward`."""
        selected = labels != -100
        _, counted = attention_masks(attention_mask, input_ids.shape)
        if counted is None:
            counted = torch.ones_like(selected)
        if document_ids is not None:
            counted = counted & (document_ids != 0)
        if not self.config.rtd_special_tokens:
            original = torch.where(selected, labels, input_ids)
            special = torch.tensor(self.config.special_token_ids, device=original.device)
            counted = counted & ~torch.isin(original, special)
        return counted

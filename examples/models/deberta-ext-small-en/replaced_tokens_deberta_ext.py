# SPDX-License-Identifier: Apache-2.0
"""Replaced token detection (DeBERTaV3, He et al. 2021; ELECTRA, Clark et al. 2020): discriminator, sampling from the
generator, embedding sharing (ES, NES and GDES, DeBERTaV3 section 3.3), and the joint model of generator and discriminator.
"""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.utils import ModelOutput

from .attention_deberta_ext import attention_masks
from .configuration_deberta_ext import DebertaExtConfig, package_mixin
from .modeling_deberta_ext import (
    DebertaExtForMaskedLM,
    DebertaExtModel,
    DebertaExtPreTrainedModel,
    binary_loss,
    check_fractions,
    check_labels,
    cls_states,
    model_forward,
)

# The two models in a joint model; also the names of their subfolders.
PARTS = ("generator", "discriminator")
TABLES = ("word_embeddings", "position_embeddings")
# Number of logits that are sampled at once, which limits the size of their float32 copies.
CHUNK = 2**24


class ReplacedTokenDetectionHead(nn.Module):
    """Discriminator head, `mask_predictions.*` in official checkpoints: w·act(dense(LayerNorm(h + h_cls))) per token.

    As in the released code, but not in the paper, the [CLS] state is added to every token.
    """

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor, cls_states: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits [B, N] for states [B, N, hidden]; positive = replaced. `cls_states` [B, 1 or N, hidden] are the
        [CLS] states for the tokens; None = the state of the first token."""
        states = self.LayerNorm((hidden_states[:, :1] if cls_states is None else cls_states) + hidden_states)
        return self.classifier(self.activation(self.dense(states))).squeeze(-1)


class DeltaEmbedding(nn.Embedding):
    """Embedding table that is initialised to zero. `_init_weights`, which is only called for modules with parameters,
    recognises it by `begins_at_zero`."""

    begins_at_zero = True

    def reset_parameters(self):
        nn.init.zeros_(self.weight)


class GradientDisentangledEmbedding(nn.Module):
    """Embedding table of the discriminator under GDES: sg(E_G) + E_delta (sg = stop gradient). E_G is the generator's table
    `source` [V, E]. E_delta is initialised to zero and receives the whole gradient.

    The forward pass looks up both rows and never computes the summed table. There are no hooks, so that copies, checkpoints,
    compilers and distributed wrappers treat it as a normal embedding. `source` is not registered as a parameter here.
    """

    def __init__(self, source: nn.Embedding):
        super().__init__()
        self.delta = DeltaEmbedding(source.num_embeddings, source.embedding_dim, padding_idx=source.padding_idx)
        self.borrow(source)

    def borrow(self, source: nn.Embedding):
        """Keep `source`, the generator's table, in a tuple, so that nn.Module does not register it a second time."""
        self._source = (source,)

    @property
    def source(self) -> nn.Embedding:
        return self._source[0]

    @property
    def num_embeddings(self) -> int:
        return self.delta.num_embeddings

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [...] -> [..., E]."""
        return self.source(ids).detach() + self.delta(ids)

    @torch.no_grad()
    def table(self) -> torch.Tensor:
        """Return E_G + E_delta, [V, E], summed in float32, for the exported discriminator."""
        weight = self.source.weight
        return (weight.float() + self.delta.weight.float()).to(weight.dtype)


class DebertaExtForReplacedTokenDetection(DebertaExtPreTrainedModel):
    """Discriminator of DeBERTa-v3 with the official head, which predicts for each token if it was replaced."""

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
        num_items_in_batch: torch.Tensor | int | None = None,
        **options: bool | None,
    ) -> TokenClassifierOutput:
        """Detect replaced tokens. Returns the mean binary cross-entropy and logits [B, N]. `labels` [B, N] or [B * N] in
        [0, 1]: 1 = replaced, -100 = ignored. Padding is ignored too; label it -100 if Trainer counts the items."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, packed = self.encode(*inputs, document_ids=document_ids, **options)
        states = outputs.last_hidden_state
        if packed is None:
            logits = self.mask_predictions(states, cls_states(states, attention_mask, None)[:, None])
        else:
            logits = packed.pad(self.mask_predictions(states, states.index_select(1, packed.first_token)))
        loss = None
        if labels is not None:
            B, N = logits.shape
            if list(labels.shape) not in ([B, N], [B * N]):
                raise ValueError(f"labels must have shape [{B}, {N}] or [{B * N}], got {list(labels.shape)}")
            check_fractions(labels)
            labels = labels.reshape(B, N)
            counted = (labels != -100) & real_tokens(labels, attention_mask, document_ids)
            loss = binary_loss(logits, labels, counted, num_items_in_batch)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


def real_tokens(
    labels: torch.Tensor, attention_mask: torch.Tensor | None, document_ids: torch.Tensor | None
) -> torch.Tensor:
    """Return the mask of real tokens, bool in the shape of `labels` [B, N]; False = padding."""
    _, real = attention_masks(attention_mask, labels.shape)
    if real is None:
        real = torch.ones_like(labels, dtype=torch.bool)
    return real if document_ids is None else real & (document_ids != 0)


def share_embeddings(method: str, generator: nn.Module, discriminator: nn.Module) -> list[str]:
    """Make the encoder `discriminator` share the embedding tables E of the encoder `generator`, by one of four methods:

    - "es", embedding sharing (ELECTRA): E_D = E_G, one table that both losses train.
    - "nes", no embedding sharing: two tables.
    - "gdes", gradient-disentangled: E_D = sg(E_G) + E_delta, with `GradientDisentangledEmbedding`.
    - "all": the encoders, of equal size, share all weights (ELECTRA section 3.2).

    Returns the names of the shared parameters, for transformers to tie.
    """
    tables = [name for name in TABLES if hasattr(discriminator.embeddings, name)]
    if method == "es":
        return [f"embeddings.{name}.weight" for name in tables]
    if method == "all":
        return [name for name, _ in discriminator.named_parameters()]
    if method == "gdes":
        for name in tables:
            source = getattr(generator.embeddings, name)
            setattr(discriminator.embeddings, name, GradientDisentangledEmbedding(source))
    return []


def sample_replacements(
    logits: torch.Tensor, excluded: list[int], temperature: float = 1.0, random_generator: torch.Generator | None = None
) -> torch.Tensor:
    """Sample ids [n] for logits [n, V] from softmax(logits / temperature) in float32, without a gradient.

    CPU tensors use inverse transform sampling, summed in float64, with one random number per row. `torch.multinomial` draws
    one random number per token of the vocabulary, which would take most of the time.

    Args:
        excluded (`list[int]`): ids that are never drawn; the other probabilities keep their ratios.
        random_generator (`torch.Generator`, *optional*): None = torch's default generator, which Trainer saves and restores.
    """
    samples = []
    for chunk in logits.detach().split(max(1, CHUNK // logits.shape[1])):
        scores = chunk.float() / temperature
        scores[:, excluded] = -torch.inf
        p = scores.softmax(-1)
        n, V = p.shape
        if p.device.type != "cpu":
            ids = torch.multinomial(p, 1, generator=random_generator) if n else p.new_zeros(0, 1, dtype=torch.long)
        else:
            # Quantiles stay below 1 after rounding, so that only NaN needs the clamp below.
            quantiles = torch.rand(n, 1, dtype=torch.float64, generator=random_generator) * (1 - 2**-52)
            sums = p.cumsum(-1, dtype=torch.float64)
            ids = torch.searchsorted(sums, quantiles * sums[:, -1:], right=True).clamp(max=V - 1)
        samples.append(ids.squeeze(1))
    return torch.cat(samples)


@dataclass
class DebertaExtForPreTrainingOutput(ModelOutput):
    """Outputs of `DebertaExtForPreTraining`.

    Args:
        loss (`torch.Tensor`, *optional*): generator_loss + rtd_lambda * discriminator_loss.
        generator_loss (`torch.Tensor`, *optional*): mean cross-entropy at the selected positions.
        discriminator_loss (`torch.Tensor`, *optional*): mean binary cross-entropy over the tokens that are not ignored.
        generator_logits (`torch.Tensor`, *optional*): [n, V], in the order of `labels[labels != -100]`.
        discriminator_logits (`torch.Tensor`, *optional*): [B, N]; positive = replaced.
        corrupted_ids (`torch.LongTensor`, *optional*): [B, N], the input of the discriminator.
        discriminator_labels (`torch.LongTensor`, *optional*): [B, N]; 1 = replaced, 0 = original, -100 = ignored.
        hidden_states, attentions (*optional*): outputs of the discriminator's encoder, as in `DebertaExtModel`.
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


class DebertaExtForPreTraining(package_mixin("checkpoints.joint", "JointCheckpointsMixin"), DebertaExtPreTrainedModel):
    """Joint model for replaced token detection: the generator replaces masked tokens by samples, and the discriminator
    predicts which tokens were replaced. L = L_MLM + rtd_lambda * L_RTD (ELECTRA equation 4, DeBERTaV3 section 3.1).

    `generator` is a `DebertaExtForMaskedLM`. `discriminator` is a `DebertaExtForReplacedTokenDetection`, without
    an Enhanced Mask Decoder, since it sees no masks. It has an absolute position table only if `position_biased_input` is
    True; an exported discriminator gets the generator's table. `config` describes the discriminator; `config.generator` has
    the fields in which the generator differs, and `config.embedding_sharing` is the kind of sharing.
    """

    base_model_prefix = ""
    # Trainer would only count the selected positions.
    accepts_loss_kwargs = False

    def __init__(self, config: DebertaExtConfig):
        if config.generator is None:
            # {} is a generator that only differs in depth, and marks a joint checkpoint.
            config = copy.deepcopy(config)
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
        for part in (self.generator, self.discriminator):
            part._freeze_unread_positions()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the word embeddings of the generator."""
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

    def set_unpadding(self, unpadding: bool | None):
        for part in (self.generator, self.discriminator):
            part.set_unpadding(unpadding)

    def set_attn_implementation(self, attn_implementation, *args, **kwargs):
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        for part in (self.generator, self.discriminator):
            part.set_attn_implementation(attn_implementation, *args, **kwargs)

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
        **options: bool | None,
    ) -> DebertaExtForPreTrainingOutput:
        """Run a step of replaced token detection.

        Args:
            input_ids (`torch.LongTensor`): [B, N], masked at the selected positions. `DebertaExtModel` documents the other
                inputs.
            labels (`torch.LongTensor`, *optional*): [B, N], the original token at selected positions, -100 elsewhere. Only
                selected positions are replaced. None: the discriminator reads the unchanged `input_ids`.
            part (`str`, *optional*): None runs both models. "generator" only runs the generator, and returns
                `corrupted_ids` and `discriminator_labels`. "discriminator" only runs the discriminator, with these as
                `input_ids` and `labels`. Separate calls allow a generator update before the discriminator runs.
            random_generator (`torch.Generator`, *optional*): samples the replacements; None = torch's default generator.
            options: output_attentions and output_hidden_states of the discriminator.
        """
        inputs = dict(attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids)
        inputs.update(document_ids=document_ids, return_dict=True)
        if part not in (None, *PARTS):
            raise ValueError(f"part must be None, 'generator' or 'discriminator', got {part!r}")
        if part == "discriminator" or labels is None:
            if part == "generator":
                raise ValueError("part = 'generator' requires labels: the original tokens at the selected positions")
            return self._discriminate(input_ids, labels, inputs | options)
        check_labels("labels", labels, list(input_ids.shape))
        filled = self.generator(input_ids, labels=labels, masked_only=True, **inputs)
        corrupted, replaced = self.corrupt(input_ids, labels, filled.logits, attention_mask, document_ids, random_generator)
        generated = dict(generator_loss=filled.loss, generator_logits=filled.logits)
        if part == "generator":
            generated.update(corrupted_ids=corrupted, discriminator_labels=replaced)
            return DebertaExtForPreTrainingOutput(loss=filled.loss, **generated)
        return self._discriminate(corrupted, replaced, inputs | options, **generated)

    def _discriminate(
        self, corrupted_ids, discriminator_labels, inputs: dict, **generated
    ) -> DebertaExtForPreTrainingOutput:
        """Run the discriminator. `generated` are outputs of the generator to include in the result, if it ran."""
        found = self.discriminator(corrupted_ids, labels=discriminator_labels, **inputs)
        losses = [generated["generator_loss"]] if "generator_loss" in generated else []
        if found.loss is not None:
            losses.append(self.config.rtd_lambda * found.loss)
        # Created once with all fields: torch.compile of torch 2.6 loses later assignments to fields of an output.
        return DebertaExtForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            discriminator_loss=found.loss,
            discriminator_logits=found.logits,
            corrupted_ids=corrupted_ids,
            discriminator_labels=discriminator_labels,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
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
        """Replace the tokens where `labels` [B, N] are not -100 by samples from logits [n, V].

        Returns corrupted ids [B, N], and the discriminator's labels [B, N]: 1 where the sample differs from the original, 0
        elsewhere, -100 at padding and, if `config.rtd_special_tokens` is False, at special tokens.
        """
        special = self.config.special_token_ids
        if special is None:
            raise ValueError(
                "config.special_token_ids must list the special tokens, which are never drawn as replacements, got None. "
                "Include tokenizer.all_special_ids and all ids below vocab_size that have no token in the tokenizer"
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
        """Return the mask of tokens in the discriminator's loss, [B, N] bool, which does not depend on the samples."""
        counted = real_tokens(labels, attention_mask, document_ids)
        if not self.config.rtd_special_tokens:
            original = torch.where(labels != -100, labels, input_ids)
            special = torch.tensor(self.config.special_token_ids, device=original.device)
            counted = counted & ~torch.isin(original, special)
        return counted

# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v1, v2, v3 and mDeBERTa, in the order of the paper (He et al. 2021): embeddings and encoder (section 3.1), the
Enhanced Mask Decoder (EMD, 3.2), and models with heads. Replaced token detection is in replaced_tokens_deberta_ext.py.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple

from .attention_deberta_ext import (
    DebertaExtAttention,
    PackedSequences,
    PositionCache,
    RelativePosition,
    ResidualOutput,
    attention_masks,
    backend_unavailable,
    check_backend,
    check_integers,
    choose_backend,
    has_known_values,
    is_traced,
)
from .configuration_deberta_ext import DebertaExtConfig, package_mixin

# Arguments that trainers and code for decoders pass to every model. A `forward` without this parameter ignores it.
IGNORED = ("cache_position", "num_items_in_batch", "output_router_logits", "past_key_values", "use_cache")
OPTIONS = ("output_attentions", "output_hidden_states")
# Logit of an entity without tokens, and attention score of padding in `entity_indices` (as in microsoft/DeBERTa).
EXCLUDED = -10_000.0


def model_forward(forward: Callable) -> Callable:
    """Wrap a model's forward so that it also accepts `return_dict` and the `OPTIONS`, and ignores the `IGNORED` arguments.
    In the package, it also accepts other packages' packed batches, and rejects adapters that cannot be saved."""
    parameters = inspect.signature(forward).parameters
    ignored = [name for name in IGNORED if name not in parameters]
    known = {*parameters, *OPTIONS}

    @can_return_tuple
    @functools.wraps(forward)
    def wrapped(self, *args, **kwargs):
        if hasattr(self, "prepare_call"):
            kwargs = self.prepare_call(parameters, kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in ignored}
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise TypeError(f"{type(self).__name__}.forward() got unexpected arguments: {', '.join(unknown)}")
        return forward(self, *args, **kwargs)

    return wrapped


def check_labels(name: str, labels: torch.Tensor, *shapes: list[int]):
    """Raise a ValueError unless labels are integers in one of the `shapes` (floats would be truncated)."""
    if list(labels.shape) not in shapes:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, shapes))}, got {list(labels.shape)}")
    check_integers(name, labels)


def batch_shape(
    input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, **others: torch.Tensor | None
) -> torch.Size:
    """Return B and N of a batch of ids or embeddings; check that all `others` have the shape [1 or B, N]."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"expected either input_ids or inputs_embeds, got {'neither' if input_ids is None else 'both'}")
    batch = inputs_embeds if input_ids is None else input_ids
    B, N = batch.shape[:2]
    for name, x in others.items():
        if x is not None and list(x.shape[:2]) not in ([1, N], [B, N]):
            raise ValueError(f"{name} must have shape [1 or batch, {N}], got {list(x.shape)}")
    return batch.shape[:2]


def cls_states(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, packed: PackedSequences | None
) -> torch.Tensor:
    """Return the state [B, hidden] of each row's or document's first real token (of column 0 if the mask is not [B, N])."""
    if packed is not None:
        return hidden_states[0].index_select(0, packed.cu_seqlens[:-1].long())
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden_states[:, 0]
    first = (attention_mask != 0).int().argmax(1)
    # len(first) would make the batch size a constant in an exported graph.
    return hidden_states[torch.arange(first.shape[0], device=first.device), first]


def mean_loss(losses: torch.Tensor, count: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None = None):
    """Return the sum of `losses` divided by `num_items_in_batch` (Trainer's count over all accumulation steps and processes)
    or else by `count`. Without targets, the result is 0 and has a gradient, so that distributed training does not hang."""
    items = count if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / torch.as_tensor(items, device=losses.device).clamp(min=1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Return the mean float32 cross-entropy of logits [..., C] and int labels, one per row of C logits; -100 = ignored."""
    labels = labels.reshape(-1).to(logits.device, torch.long)
    losses = functional.cross_entropy(logits.flatten(0, -2).float(), labels, ignore_index=-100, reduction="none")
    return mean_loss(losses, (labels != -100).sum(), num_items_in_batch)


def sequence_loss(logits: torch.Tensor, labels: torch.Tensor, config, num_items_in_batch=None) -> torch.Tensor:
    """Return the sequence classification loss for `config.problem_type`, which is set from labels and num_labels if None.

    For logits [B, C], labels are [B] or [B, 1] (regression, C = 1), [B, C] (regression, C > 1), ints [B] or [B, 1] (single
    label, -100 ignored) or [B, C] in [0, 1] (multi-label, -100 ignored)."""
    B, C = logits.shape
    labels = labels.to(logits.device)
    one_each = list(labels.shape) in ([B], [B, 1])
    problem = config.problem_type
    if problem is None:
        several = "single_label_classification" if one_each else "multi_label_classification"
        problem = "regression" if C == 1 else several
    is_single = problem == "single_label_classification"
    expects_one = is_single or C == 1
    if not (one_each if expects_one else list(labels.shape) == [B, C]):
        raise ValueError(
            f"labels of shape {list(labels.shape)} do not fit {B} rows, num_labels = {C} and problem_type = {problem!r}: "
            "pass [B] or [B, 1] for one label per row, [B, num_labels] for several"
        )
    if is_single:
        check_integers(f"labels for problem_type = {problem!r}", labels)
    elif problem == "multi_label_classification":
        check_fractions(labels)
    # Only set after the checks, because it applies to all later calls.
    config.problem_type = problem
    if is_single:
        return cross_entropy(logits, labels, num_items_in_batch)
    logits, labels = logits.float(), labels.reshape(logits.shape).float()
    if problem == "regression":
        return mean_loss(functional.mse_loss(logits, labels, reduction="none"), labels.numel(), num_items_in_batch)
    return binary_loss(logits, labels, labels != -100, num_items_in_batch)


def binary_loss(logits: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor, num_items_in_batch=None) -> torch.Tensor:
    """Return the mean float32 binary cross-entropy of logits and labels of equal shape, where `counted` is True."""
    labels = labels.float().where(counted, 0.0)
    losses = functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")
    return mean_loss(losses.masked_fill(~counted, 0.0), counted.sum(), num_items_in_batch)


def check_fractions(labels: torch.Tensor):
    """Raise a ValueError if a label on CPU is neither in [0, 1] nor -100: the loss would be unbounded."""
    if has_known_values(labels):
        wrong = ~(((labels >= 0) & (labels <= 1)) | (labels == -100))
        if bool(wrong.any()):
            raise ValueError(f"labels must be in [0, 1], or -100 (ignored), got {labels[wrong][0].item()}")


class DebertaExtEmbeddings(nn.Module):
    """Embeddings: word (+ token type) (+ position) -> embed_proj if E != hidden -> LayerNorm -> padding to 0 -> dropout."""

    def __init__(self, config):
        super().__init__()
        E = config.embedding_size
        self.embedding_size = E
        self.max_positions = config.max_position_embeddings
        self.position_biased_input = config.position_biased_input
        self.word_embeddings = nn.Embedding(config.vocab_size, E, padding_idx=config.pad_token_id)
        if config.has_absolute_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, E)
        self.has_token_types = config.type_vocab_size > 0
        if self.has_token_types:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, E)
        self.embed_proj = nn.Linear(E, config.hidden_size, bias=False) if config.hidden_size != E else None
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def absolute_positions(
        self,
        length: int,
        position_ids: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        packed: PackedSequences | None = None,
        *,
        device: torch.device,
    ) -> torch.Tensor:
        """Return [1 or B, N, E] rows of the absolute position table. If `position_ids` is None, positions count from the
        first real token of a row (left padding has no effect), or from the first token of each document if packed.

        `device` is the device of the states. Offloaded weights are on another device until their module runs.
        """
        if position_ids is None:
            longest = length if packed is None else max(packed.lengths)
            if longest > self.max_positions:
                raise ValueError(
                    f"the input must have at most max_position_embeddings = {self.max_positions} tokens, got {longest}; "
                    f"shorten the input or call model.extend_position_embeddings({longest})"
                )
            if packed is not None:
                return self.position_embeddings(packed.positions[None])
            position_ids = torch.arange(length, device=device)[None]
            if token_mask is not None:
                first = token_mask.int().argmax(1, keepdim=True)
                position_ids = (position_ids - first).clamp(min=0)
        return self.position_embeddings(position_ids)

    def project(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Project [..., E] -> [..., hidden]."""
        return embeddings if self.embed_proj is None else self.embed_proj(embeddings)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        packed: PackedSequences | None = None,
    ) -> torch.Tensor:
        """Embed ids [B, N] or `inputs_embeds` [B, N, E] -> [B, N, hidden]; `token_mask` [B, N] bool, False = padding."""
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
        # Another shape would be broadcast silently.
        if inputs_embeds.shape[-1] != self.embedding_size:
            raise ValueError(
                f"inputs_embeds must have embedding_size = {self.embedding_size} columns, got {list(inputs_embeds.shape)}"
            )
        embeddings = inputs_embeds.to(self.LayerNorm.weight.dtype)
        if self.position_biased_input:
            N, device = embeddings.shape[1], embeddings.device
            embeddings = embeddings + self.absolute_positions(N, position_ids, token_mask, packed, device=device)
        if self.has_token_types:
            if token_type_ids is None:
                token_type_ids = embeddings.new_zeros(embeddings.shape[:2], dtype=torch.long)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        embeddings = self.LayerNorm(self.project(embeddings))
        if token_mask is not None:
            embeddings = embeddings * token_mask[..., None].to(embeddings.dtype)
        return self.dropout(embeddings)


class ConvLayer(nn.Module):
    """Convolution after layer 0: LN(states + act(dropout(conv(embeddings)))), zero at padding."""

    def __init__(self, config):
        super().__init__()
        size, kernel = config.hidden_size, config.conv_kernel_size
        self.conv = nn.Conv1d(size, size, kernel, padding=(kernel - 1) // 2, groups=config.conv_groups)
        self.LayerNorm = nn.LayerNorm(size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.activation = ACT2FN[config.conv_act]

    def forward(
        self,
        embeddings: torch.Tensor,
        states: torch.Tensor,
        token_mask: torch.Tensor | None,
        packed: PackedSequences | None = None,
    ) -> torch.Tensor:
        if packed is None:
            out = self.conv(embeddings.transpose(1, 2)).transpose(1, 2)
        else:
            # Zeros between the documents, like padding.
            places, length = packed.windows(self.conv.padding[0])
            spaced = embeddings.new_zeros(1, length, embeddings.shape[2]).index_copy(1, places, embeddings)
            out = self.conv(spaced.transpose(1, 2)).transpose(1, 2).index_select(1, places)
        if token_mask is not None:
            out = out.masked_fill(~token_mask[..., None], 0.0)
        out = self.LayerNorm(states + self.activation(self.dropout(out)))
        return out if token_mask is None else out * token_mask[..., None].to(out.dtype)


class FeedForward(nn.Module):
    """The first half of the feed-forward network: act(dense(x))."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))


class DebertaExtLayer(GradientCheckpointingLayer):
    """Encoder layer. If `share_layers` is "ffn" or "attention", all layers use the feed-forward or attention of layer 0."""

    def __init__(self, config, index: int = 0):
        super().__init__()
        self.owns_attention = index == 0 or config.share_layers != "attention"
        self.owns_feed_forward = index == 0 or config.share_layers != "ffn"
        if self.owns_attention:
            self.attention = DebertaExtAttention(config)
        if self.owns_feed_forward:
            self.intermediate = FeedForward(config)
            self.output = ResidualOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rel_embeddings: torch.Tensor | None = None,
        query_states: torch.Tensor | None = None,
        *,
        first: Callable[[], "DebertaExtLayer"] | None = None,
        passes: int = 1,
        **options,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the layer `passes` times. The output of each pass is the query of the next pass; keys and values are fixed.

        Returns the states and probabilities of the last pass. `first()` returns layer 0, which has the shared modules. For
        reentrant checkpointing, pass tensors with gradients as positional arguments. `options`: `DisentangledSelfAttention`.
        """
        attention = self.attention if self.owns_attention else first().attention
        feed_forward = self if self.owns_feed_forward else first()
        if passes > 1:
            options["keys_values"] = attention.self.keys_and_values(hidden_states)
        for _ in range(passes):
            states, probs = attention(hidden_states, attention_mask, rel_embeddings, query_states, **options)
            query_states = feed_forward.output(feed_forward.intermediate(states), states)
        return query_states, probs


class DebertaExtEncoder(PositionCache):
    """Encoder: `num_hidden_layers` layers, the relative table that they share, and the convolution.

    As in ALBERT (Lan et al. 2020, section 3.1), `share_layers` = "all" stores only layer 0 and runs it every time. "ffn" and
    "attention" store all layers, but only layer 0 has a feed-forward network or an attention module, which all layers use.
    """

    def __init__(self, config):
        super().__init__()
        stored = 1 if config.share_layers == "all" else config.num_hidden_layers
        self.layer = nn.ModuleList([DebertaExtLayer(config, index) for index in range(stored)])
        self.repeats = config.num_hidden_layers // stored
        self.relative_table_size = config.relative_table_size
        if self.relative_table_size:
            self.rel_embeddings = nn.Embedding(self.relative_table_size, config.hidden_size)
            self.relative_position = RelativePosition(buckets=config.position_buckets, max_distance=config.relative_distance)
            if config.norm_rel_ebd == "layer_norm":
                self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.conv = ConvLayer(config) if config.conv_kernel_size > 0 else None

    def get_rel_embedding(self, length: int | None = None, device: torch.device | None = None) -> torch.Tensor | None:
        """Return the relative table [R, hidden], looked up so that it is an activation and not a parameter. If `length` is
        given, return only the rows that sequences of this length read. `device` is the device of the states."""
        if not self.relative_table_size:
            return None
        first, end = 0, self.relative_table_size
        if length is not None:
            first, end = self.relative_position.row(1 - length), self.relative_position.row(length - 1) + 1
        P = self.rel_embeddings(torch.arange(first, end, device=device or self.rel_embeddings.weight.device))
        return self.LayerNorm(P) if hasattr(self, "LayerNorm") else P

    def positions(self, length: int, device: torch.device) -> tuple[torch.Tensor | None, dict]:
        """Return relative embeddings [R, hidden], and a dict of delta and max_distance, for up to `length` tokens. If
        gradients are enabled, return only the table rows that these tokens read, otherwise the whole table."""
        if not self.relative_table_size:
            return None, {}
        delta, max_distance = self.relative_position(length), self.relative_position.max_distance
        traced = is_traced()
        if torch.is_grad_enabled() and not traced:
            delta = delta - self.relative_position.row(1 - length)
            return self.get_rel_embedding(length, device), dict(delta=delta, max_distance=max_distance)
        # At inference, the same object is returned until its values change, because the layers cache its projections.
        if device.type == "cpu" and not traced and hasattr(self, "kept_table"):
            P = self.kept_table(lambda: self.get_rel_embedding(device=device))
        else:
            P = self.get_rel_embedding(device=device)
        return P, dict(delta=delta, max_distance=max_distance)

    def run_layer(self, index: int, *tensors: torch.Tensor | None, **options) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run layer `index`; see `DebertaExtLayer` for arguments and results."""
        layer = self.layer[index // self.repeats]
        if not (layer.owns_attention and layer.owns_feed_forward):
            # A function, because accelerate moves arguments, including modules, to the device of the layer.
            options["first"] = lambda: self.layer[0]
        return layer(*tensors, **options)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        token_mask: torch.Tensor | None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        skip_last_layer: bool = False,
        packed: PackedSequences | None = None,
    ) -> BaseModelOutput:
        """Run the layers on the output of the embeddings, [B, N, hidden], or [1, T, hidden] with `packed` documents.

        `attention_masks` returns the two masks. `skip_last_layer`: the Enhanced Mask Decoder runs the last layer itself.
        """
        embeddings = hidden_states
        longest = hidden_states.shape[1] if packed is None else max(packed.lengths)
        rel_embeddings, options = self.positions(longest, hidden_states.device)
        options.update(packed=packed, output_attentions=output_attentions)
        all_states, all_probs = [hidden_states], []
        for index in range(len(self.layer) * self.repeats - skip_last_layer):
            hidden_states, probs = self.run_layer(index, hidden_states, attention_mask, rel_embeddings, **options)
            if index == 0 and self.conv is not None:
                hidden_states = self.conv(embeddings, hidden_states, token_mask, packed)
            if output_hidden_states:
                all_states.append(hidden_states)
            if output_attentions:
                all_probs.append(probs)
        return BaseModelOutput(
            last_hidden_state=hidden_states,
            hidden_states=tuple(all_states) if output_hidden_states else None,
            attentions=tuple(all_probs) if output_attentions else None,
        )


class ContextPooler(nn.Module):
    """Pooler of the [CLS] state: act(dense(dropout(x))), [B, hidden] -> [B, hidden]."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.activation = ACT2FN[config.pooler_hidden_act]

    def forward(self, cls_state: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(self.dropout(cls_state)))


class EnhancedMaskDecoder(nn.Module):
    """Enhanced Mask Decoder: the encoder's last layer, run n = `num_layers` times on queries with absolute positions.

    With H the input of the last layer and I the first query (`input`):
    Q_1 = layer(query = I, keys and values = H), Q_{t+1} = layer(query = Q_t, keys and values = H). All passes share the
    layer's weights. The released models use n = 2 and I = positions + H. n = 1 and I = H is BERT's decoder.
    """

    def __init__(self, num_layers: int = 2, input: str = "position+hidden"):
        super().__init__()
        self.num_layers, self.input = num_layers, input

    def forward(
        self,
        hidden_states: torch.Tensor,
        positions: torch.Tensor | None,
        layer: Callable[[torch.Tensor, torch.Tensor | None, int], torch.Tensor],
        query_positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the decoder on `hidden_states` H [B, N, hidden], the input of the last layer; return [B, Q, hidden].

        Args:
            positions (`torch.Tensor`, *optional*): absolute positions [1 or B, N, hidden]; unused if `input` = "hidden".
            layer (`Callable`): `layer(query_states, query_positions, n)` -> [B, Q, hidden], n passes of the last layer on H.
            query_positions (`torch.LongTensor`, *optional*): [B, Q] positions to decode; default: all N. States are the same
                as if all were decoded, because queries do not attend to each other.
        """
        queries = hidden_states
        if self.input != "hidden":
            queries = positions.expand_as(hidden_states)
            if self.input == "position+hidden":
                queries = queries + hidden_states
        if query_positions is not None:
            index = query_positions[..., None].expand(-1, -1, queries.shape[-1])
            queries = queries.gather(1, index)
        return layer(queries, query_positions, self.num_layers)


def labelled_positions(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions [B, Q] of labels [B, N] other than -100, in order, and a mask [B, Q] that is False at padding.
    Q is the largest number of such labels in a row, at least 1; rows with fewer labels are padded."""
    labelled = labels != -100
    counts = labelled.sum(1)
    Q = max(int(counts.max()), 1)
    positions = (~labelled).to(torch.uint8).argsort(dim=1, stable=True)[:, :Q]
    return positions, torch.arange(Q, device=labels.device) < counts[:, None]


class LMTransform(nn.Module):
    """Masked-language-model head: dense (hidden -> E), activation, LayerNorm, decoder tied to the word embeddings [V, E]."""

    def __init__(self, config):
        super().__init__()
        E = config.embedding_size
        self.dense = nn.Linear(config.hidden_size, E)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(E, config.layer_norm_eps)
        # `bias` has its official name, and is not also decoder.bias, because FSDP does not shard a parameter of two modules.
        self.decoder = nn.Linear(E, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: torch.Tensor, transformed: bool = False) -> torch.Tensor:
        """Return logits [..., V] for states [..., hidden], or [..., E] that another head has already `transformed`."""
        if not transformed:
            states = self.LayerNorm(self.activation(self.dense(states)))
        return self.decoder(states) + self.bias


class DebertaExtPreTrainedModel(package_mixin("checkpoints.loading", "LoadingMixin"), PreTrainedModel):
    """Base class of all models: initialisation, choice of the attention backend, packing."""

    config: DebertaExtConfig
    config_class = DebertaExtConfig
    base_model_prefix = "deberta"
    supports_gradient_checkpointing = True
    # Without the embeddings, because the Enhanced Mask Decoder and the tied head read their tables directly.
    _no_split_modules = ["DebertaExtLayer"]  # noqa: RUF012
    # Every head divides by num_items_in_batch, so Trainer must not also divide by the accumulation steps.
    accepts_loss_kwargs = True
    # True if forward reads the absolute position table although the input does not (EMD).
    _decodes_absolute_positions = False

    def __init__(self, config: DebertaExtConfig, *args, **kwargs):
        # Only the joint model has no base_model_prefix.
        if getattr(config, "is_joint", False) and self.base_model_prefix:
            source = config.name_or_path or "the configuration"
            raise ValueError(
                f"{type(self).__name__} needs a single model, but {source} has a generator and a discriminator: pass "
                "subfolder='generator' or 'discriminator', or use export_discriminator() or export_generator() of "
                "DebertaExtForPreTraining"
            )
        super().__init__(config, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        """Load a model as in transformers. If hf_deberta_ext is installed, also load official `deberta` and `deberta-v2`
        checkpoints, and set `model.loading_report`: the loaded, converted, newly initialised and unused tensors."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        # Freeze again, because loading replaced the parameters.
        model._freeze_unread_positions()
        return loaded

    def save_pretrained(self, save_directory, *args, **kwargs):
        """Save the model as in transformers, and its code (`DebertaExtConfig.save_pretrained`)."""
        # True would write v1's fused layout, which Trainer does not convert back when it resumes.
        kwargs["save_original_format"] = False
        super().save_pretrained(save_directory, *args, **kwargs)

    def post_init(self):
        super().post_init()
        self._freeze_unread_positions()

    def _freeze_unread_positions(self):
        """Freeze the position table if neither the input nor EMD reads it; DDP raises an error for unused parameters."""
        embeddings = self.base_model.embeddings
        if hasattr(embeddings, "position_embeddings") and not embeddings.position_biased_input:
            embeddings.position_embeddings.requires_grad_(self._decodes_absolute_positions)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, RelativePosition):
            init.copy_(module.rows, module.compute_rows())
        elif isinstance(module, LMTransform):
            init.zeros_(module.bias)
        elif getattr(module, "begins_at_zero", False):
            init.zeros_(module.weight)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str | None:
        """Check the backend without transformers' loader of Hub kernels, so that a configuration cannot run code of the Hub.
        transformers has no public method to override."""
        return self.get_correct_attn_implementation(attn_implementation)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str | None:
        """Check `attn_implementation`; None or "auto" chooses the best backend for each call. transformers'
        AttentionInterface is not used, because its functions take no relative table."""
        if requested_attention in (None, "auto"):
            return None
        # Weights are moved to their device after this check. Each call checks its requirements again.
        check_backend(requested_attention)
        head_size = self.config.hidden_size // self.config.num_attention_heads
        if backend_unavailable(requested_attention, torch.device("cpu"), torch.float32, head_size) is not None:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            choose_backend(requested_attention, device, torch.float32, head_size, served="this model on this machine")
        return requested_attention

    def set_unpadding(self, unpadding: bool | None):
        """Set whether padded batches run as one stream of real tokens, with outputs of 0 at padding. True: always; False:
        never; None (default): on CPU if 10% or more is padding, unless the model is in eval mode and has a forward hook."""
        self.base_model.unpadding = None if unpadding is None else bool(unpadding)

    def pack(
        self,
        shape: tuple[int, int],
        attention_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None = None,
        output_attentions: bool = False,
        labels: torch.Tensor | None = None,
    ) -> PackedSequences | None:
        """Pack a batch of `shape` [B, N] into one stream of tokens; return None if it stays padded."""
        cannot = is_traced() or output_attentions
        if document_ids is not None:
            if list(document_ids.shape) != list(shape):
                raise ValueError(f"document_ids must have shape {list(shape)}, got {list(document_ids.shape)}")
            if cannot:
                raise ValueError(
                    "document_ids support neither output_attentions nor tracing; instead, pass position_ids and an "
                    "attention_mask [B, N, N] with a block of ones for each document"
                )
            if attention_mask is not None:
                if attention_mask.dim() != 2:
                    raise ValueError(f"document_ids need an attention_mask [B, N], got {list(attention_mask.shape)}")
                document_ids = document_ids * attention_masks(attention_mask, shape)[1]
            return PackedSequences.from_document_ids(document_ids)
        unpadding = self.base_model.unpadding
        if unpadding is False or cannot or attention_mask is None or attention_mask.dim() != 2:
            return None
        _, token_mask = attention_masks(attention_mask, shape)
        if unpadding is None:
            few = token_mask.device.type != "cpu" or token_mask.sum() > 0.9 * token_mask.numel()
            # Hooks read or replace outputs [B, N, ...]. In training, gradient checkpointing has a hook that does neither.
            if few or (not self.training and any(module._forward_hooks for module in self.modules())):
                return None
        if labels is not None and bool((labels.reshape(shape) != -100)[~token_mask].any()):
            return None
        return PackedSequences.from_mask(token_mask)

    def wanted(self, attentions: bool | None = None, hidden_states: bool | None = None) -> tuple[bool, bool]:
        """Return output_attentions and output_hidden_states; None is replaced by the configuration's value."""
        config = self.config
        return (
            config.output_attentions if attentions is None else attentions,
            config.output_hidden_states if hidden_states is None else hidden_states,
        )

    def encode(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        document_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        may_pack: bool = True,
        **options,
    ) -> tuple[BaseModelOutput, PackedSequences | None]:
        """Run `self.deberta` for a head; also return `PackedSequences` if last_hidden_state is a stream [1, T, hidden].

        A batch is not packed if `labels` [B, N] or [B * N] has targets on padding, or if `may_pack` is False.
        """
        shape = batch_shape(input_ids, inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids)
        if labels is not None:
            check_labels("labels", labels, list(shape), [shape.numel()])
        packed = None
        if may_pack:
            output_attentions, _ = self.wanted(options.get("output_attentions"))
            packed = self.pack(shape, attention_mask, document_ids, output_attentions, labels)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return self.deberta(*inputs, packed=packed, may_pack=False, return_dict=True, **options), packed

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.base_model.embeddings.word_embeddings = value


class DebertaExtModel(DebertaExtPreTrainedModel):
    """DeBERTa encoder without a head."""

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
            input_ids (`torch.LongTensor`, *optional*): [B, N]; or pass `inputs_embeds` [B, N, E].
            attention_mask (`torch.Tensor`, *optional*): int, float or bool, [B, N] (1 = real token), or [B, N, N] or
                [B, 1, N, N] (1 = query i (row) may attend to key j (column)).
            token_type_ids (`torch.LongTensor`, *optional*): [B, N]; ignored if `type_vocab_size` is 0.
            position_ids (`torch.LongTensor`, *optional*): [1 or B, N] rows of the absolute position table, if the input or
                EMD reads it; None counts from the first real token. Relative positions do not depend on position_ids.
                In the package, in a single row without a mask, positions that restart at 0 begin another document.
            document_ids (`torch.LongTensor`, *optional*): [B, N], for several documents in a row: each document has its own
                id > 0, and padding has 0. Documents do not attend to each other, and positions restart in each document.
            skip_last_layer (`bool`): omit the last layer, which EMD runs itself. For heads only, like `packed`.
            packed (`PackedSequences`, *optional*): pack the batch this way, and return last_hidden_state as a stream.
            may_pack (`bool`): pack the batch as `set_unpadding` and `document_ids` require, and pad the output again.

        Returns:
            `BaseModelOutput`: last_hidden_state [B, N, hidden]; num_hidden_layers + 1 hidden_states; attentions
            [B, H, N, N]. Do not use the states at padding. They are zeros if the batch ran as a stream (`set_unpadding`);
            otherwise, with a mask [B, N], padding attends to the real tokens (in the official code, to nothing).
        """
        B, N = batch_shape(input_ids, inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids)
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        output_attentions, output_hidden_states = self.wanted(output_attentions, output_hidden_states)
        returns_stream = packed is not None
        if packed is None and may_pack:
            packed = self.pack((B, N), attention_mask, document_ids, output_attentions)
        if packed is None:
            mask, token_mask = attention_masks(attention_mask, (B, N), self.config.num_attention_heads)
        else:
            mask = token_mask = None
            inputs = (input_ids, token_type_ids, position_ids, inputs_embeds)
            input_ids, token_type_ids, position_ids, inputs_embeds = (x if x is None else packed.unpad(x) for x in inputs)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds, token_mask, packed)
        options = dict(output_hidden_states=output_hidden_states, output_attentions=output_attentions)
        outputs = self.encoder(embedded, mask, token_mask, skip_last_layer=skip_last_layer, packed=packed, **options)
        if packed is not None:
            if outputs.hidden_states is not None:
                outputs.hidden_states = tuple(packed.pad(states) for states in outputs.hidden_states)
            if not returns_stream:
                outputs.last_hidden_state = packed.pad(outputs.last_hidden_state)
        return outputs


class MaskedLMPrediction(NamedTuple):
    """Result of `DebertaExtForMaskedLM.predict`: logits [n, V] (`masked_only`), [1, T, V] (packed) or [B, N, V], labels in
    the same order, outputs of the encoder, and the packing of the batch."""

    logits: torch.Tensor
    targets: torch.Tensor | None
    encoder: BaseModelOutput
    packed: PackedSequences | None


class DebertaExtForMaskedLM(DebertaExtPreTrainedModel):
    """Masked language model as published: Enhanced Mask Decoder and `lm_predictions` head with tied decoder."""

    _tied_weights_keys = {  # noqa: RUF012
        "lm_predictions.lm_head.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    }
    # Heads of other pre-training objectives.
    _keys_to_ignore_on_load_unexpected = [r"^span_boundary\.", r"^sentence_relationship\."]  # noqa: RUF012
    _decodes_absolute_positions = True

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config)
        self.deberta = DebertaExtModel(config)
        self.mask_decoder = EnhancedMaskDecoder(config.emd_layers, config.emd_input) if config.has_mask_decoder else None
        self.lm_predictions = nn.Sequential(OrderedDict(lm_head=LMTransform(config)))
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_predictions.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        # The size of the weight, not out_features, which transformers 5.4 does not update when the tied table grows.
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

        See `forward` for the arguments. `query_positions` [B, Q] are the positions to decode; None = every position. With
        `packed`, hidden_states, position_ids and query_positions refer to the stream, and there is no mask.
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
        last = len(encoder.layer) * encoder.repeats - 1

        def layer(queries, query_positions, passes):
            tensors = (hidden_states, mask, rel_embeddings, queries)
            return encoder.run_layer(last, *tensors, query_positions=query_positions, passes=passes, **options)[0]

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
            masked_only (`bool`, *optional*): compute queries, logits and loss only at labelled positions. None uses the
                configuration's value in training mode and False in evaluation mode.

        Returns:
            `MaskedLMOutput`: mean cross-entropy; logits [B, N, V] or, under `masked_only` with labels, [n, V] in the order
            of `labels[labels != -100]`.
        """
        if masked_only and labels is None:
            raise ValueError("masked_only=True requires labels, which mark the masked positions")
        if masked_only is None:
            # Metrics expect dense logits.
            masked_only = self.config.masked_only and self.training and labels is not None
        output_attentions, output_hidden_states = self.wanted(output_attentions, output_hidden_states)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        predicted = self.predict(*inputs, labels, document_ids, masked_only, output_attentions, output_hidden_states)
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
        labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        masked_only: bool = False,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> MaskedLMPrediction:
        """Run encoder, decoder and head, but compute no loss; see `forward` for the arguments.

        If EMD runs, the encoder's own pass of the last layer is only run for output_hidden_states or output_attentions.
        """
        # The encoder's own pass of the last layer returns the last attentions.
        output_hidden_states = output_hidden_states or output_attentions
        skip_last_layer = self.mask_decoder is not None and not output_hidden_states
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = dict(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        outputs, packed = self.encode(
            *inputs, document_ids=document_ids, labels=labels, skip_last_layer=skip_last_layer, **options
        )
        states = outputs.last_hidden_state
        if self.mask_decoder is not None and not skip_last_layer:
            states = outputs.hidden_states[-2]
            states = states if packed is None else packed.unpad(states)
        targets = None if labels is None else labels.reshape(batch_shape(input_ids, inputs_embeds))
        if packed is not None:
            attention_mask = None
            targets, position_ids = (x if x is None else packed.unpad(x) for x in (targets, position_ids))
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


class PooledClassifier(DebertaExtPreTrainedModel):
    """Encoder with a linear layer on the pooled [CLS] state, with `outputs` outputs (None = `config.num_labels`)."""

    def __init__(self, config: DebertaExtConfig, outputs: int | None = None):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.deberta = DebertaExtModel(config)
        self.pooler = ContextPooler(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if config.cls_dropout is None else config.cls_dropout)
        self.classifier = nn.Linear(config.hidden_size, outputs or config.num_labels)
        self.post_init()

    def classify(self, input_ids, attention_mask, *inputs, **options) -> tuple[torch.Tensor, BaseModelOutput]:
        """Return logits [B, outputs] and the outputs of the encoder; see `encode` for the arguments."""
        outputs, packed = self.encode(input_ids, attention_mask, *inputs, **options)
        cls = cls_states(outputs.last_hidden_state, attention_mask, packed)
        return self.classifier(self.dropout(self.pooler(cls))), outputs


class DebertaExtForSequenceClassification(PooledClassifier):
    """Model for classification or regression of a text or a pair, on the pooled [CLS] state."""

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **options: bool | None,
    ) -> SequenceClassifierOutput:
        """Classify texts. Returns the mean loss and logits [B, C]. `labels`: ints [B] or [B, 1] (single label), floats [B]
        or [B, 1] (regression, `num_labels` 1), or [B, C] (regression or multi-label, by `config.problem_type`)."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, outputs = self.classify(*inputs, **options)
        loss = None if labels is None else sequence_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class DebertaExtForTokenClassification(DebertaExtPreTrainedModel):
    """Model that classifies tokens. If `config.classifier_act` is set, a dense layer with this activation comes first."""

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
        num_items_in_batch: torch.Tensor | int | None = None,
        **options: bool | None,
    ) -> TokenClassifierOutput:
        """Classify tokens. Returns the mean cross-entropy and logits [B, N, C]. `labels` [B, N] or [B * N] ints, -100 =
        ignored."""
        options.update(document_ids=document_ids, labels=labels)
        outputs, packed = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        states = outputs.last_hidden_state
        if self.proj is not None:
            states = ACT2FN[self.config.classifier_act](self.proj(states))
        logits = self.classifier(self.dropout(states))
        if packed is not None and labels is not None:
            # Drop labels at padding.
            labels = packed.unpad(labels.reshape(packed.shape))
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        if packed is not None:
            logits = packed.pad(logits)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class DebertaExtForEntityScoring(DebertaExtPreTrainedModel):
    """Model that scores the entities of a text: the ReCoRD head of microsoft/DeBERTa. The tokens of an entity are averaged,
    weighted by the softmax of their scaled products with the [CLS] state."""

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
        num_items_in_batch: torch.Tensor | int | None = None,
        **options: bool | None,
    ) -> TokenClassifierOutput:
        """Score entities. Returns the mean binary cross-entropy and logits [B, E], -10,000 for an entity without tokens.
        `entity_indices` [B, E, T] ints: token indices of each entity, padded with 0. `labels` [B, E]: 1 = correct,
        0 = wrong, -100 = ignored (no tokens)."""
        if entity_indices is None:
            raise ValueError("entity_indices [B, E, T] is required: the token indices of each entity, padded with 0")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, _ = self.encode(*inputs, may_pack=False, **options)
        states = outputs.last_hidden_state
        places, is_token = entity_indices.long().clamp(min=0), entity_indices > 0
        cls = cls_states(states, attention_mask, None)
        scores = (states @ cls[:, :, None]).squeeze(-1) / states.shape[-1] ** 0.5
        scores = scores.gather(1, places.flatten(1)).view(places.shape).masked_fill(~is_token, EXCLUDED)
        weights = states.new_zeros(*places.shape[:2], states.shape[1])
        weights = weights.scatter_add(2, places, scores.softmax(-1).to(states.dtype))
        logits = self.classifier(self.dropout(ACT2FN["gelu"](self.proj(weights @ states)))).squeeze(-1).float()
        is_entity = is_token.any(-1)
        loss = None
        if labels is not None:
            check_labels("labels", labels, list(is_entity.shape))
            check_fractions(labels)
            loss = binary_loss(logits, labels, is_entity & (labels >= 0), num_items_in_batch)
        logits = logits.masked_fill(~is_entity, EXCLUDED)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class DebertaExtForQuestionAnswering(DebertaExtPreTrainedModel):
    """Model for extractive question answering: a start and an end logit for each token, for any `num_labels`."""

    # Trainer counts items in `labels`, which question answering does not have.
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
        **options: bool | None,
    ) -> QuestionAnsweringModelOutput:
        """Find answers. Returns the mean of both cross-entropies, and start and end logits [B, N] (if the batch ran as a
        stream, the dtype's minimum at padding). `start_positions` and `end_positions` [B] or [B, 1] are token indices; an
        index outside of [0, N) is ignored."""
        if (start_positions is None) != (end_positions is None):
            raise ValueError("expected both start_positions and end_positions, or neither; got one of them")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        # A batch with targets is not packed, because the softmax of the loss includes padding.
        outputs, packed = self.encode(*inputs, may_pack=start_positions is None, **options)
        logits = self.qa_outputs(outputs.last_hidden_state)
        if packed is not None:
            logits = packed.pad(logits).masked_fill(attention_mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None:
            loss = (span_loss(start_logits, start_positions) + span_loss(end_logits, end_positions)) / 2
        return QuestionAnsweringModelOutput(loss, start_logits, end_logits, outputs.hidden_states, outputs.attentions)


def span_loss(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of logits [B, N] and token indices [B] or [B, 1], ignoring indices outside of [0, N)."""
    B, N = logits.shape
    check_labels("start_positions and end_positions", positions, [B], [B, 1])
    positions = positions.reshape(-1).to(logits.device)
    return cross_entropy(logits, positions.where((positions >= 0) & (positions < N), -100))


class DebertaExtForMultipleChoice(PooledClassifier):
    """Model for multiple choice: one logit per choice, softmax over the choices."""

    def __init__(self, config: DebertaExtConfig):
        super().__init__(config, 1)

    @model_forward
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **options: bool | None,
    ) -> MultipleChoiceModelOutput:
        """Score choices. Returns the mean cross-entropy and logits [B, C]. All inputs are [B, C, N] (`inputs_embeds` is
        [B, C, N, E]); `labels` [B] are the indices of the correct choices."""
        batch = inputs_embeds if input_ids is None else input_ids
        if batch is None or batch.dim() < 3:
            shape = None if batch is None else list(batch.shape)
            raise ValueError(f"input_ids must have shape [batch, choices, length] for multiple choice, got {shape}")

        def flat(x):
            if x is not None and x.shape[:2] != batch.shape[:2]:
                raise ValueError(f"inputs must have shape [{batch.shape[0]}, {batch.shape[1]}, ...], got {list(x.shape)}")
            return None if x is None else x.flatten(0, 1)

        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        logits, outputs = self.classify(*map(flat, inputs), **options)
        logits = logits.view(batch.shape[:2])
        loss = None
        if labels is not None:
            check_labels("labels", labels, [len(batch)], [len(batch), 1])
            loss = cross_entropy(logits, labels, num_items_in_batch)
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)

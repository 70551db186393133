# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtPreTrainedModel`, which loads, saves and initialises, and the masks of all models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .adapters import AdapterMixin
from .attention import DisentangledSelfAttention
from .attention_backends import backend_unavailable, check_backend, choose_backend
from .checkpoint_layouts import LoadingReport
from .checkpoint_loading import LoadingMixin
from .configuration_deberta_ext import DebertaExtConfig
from .embedding_sharing import DeltaEmbedding
from .enhanced_mask_decoder import LMTransform
from .input_validation import check_labels, is_traced, values_at_hand
from .relative_position import RelativePosition
from .unpadding import PackedSequences

__all__ = ["DebertaExtPreTrainedModel", "attention_masks", "batch_shape", "cls_states", "in_eval_mode"]

PUSH_ARGUMENTS = (
    "repo_id", "tokenizer", "commit_message", "commit_description", "private", "token", "revision", "create_pr", "tags",
)  # fmt: skip


class DebertaExtPreTrainedModel(AdapterMixin, LoadingMixin, PreTrainedModel):
    """Loading, saving and initialisation that all models share."""

    config: DebertaExtConfig
    config_class = DebertaExtConfig
    base_model_prefix = "deberta"
    supports_gradient_checkpointing = True
    # Not the embeddings: the Enhanced Mask Decoder and the tied head read their tables from outside.
    _no_split_modules = ["DebertaExtLayer"]  # noqa: RUF012
    # Every head divides by num_items_in_batch, so Trainer must not divide by the accumulation steps as well.
    accepts_loss_kwargs = True
    # Whether forward reads the absolute position table even where the input does not (EMD).
    _decodes_absolute_positions = False

    def __init__(self, config: DebertaExtConfig, *args, **kwargs):
        # By name and not by class: remote code may bring a second copy of the class.
        if config.model_type != DebertaExtConfig.model_type:
            raise TypeError(
                f"{type(self).__name__} takes a DebertaExtConfig, got {type(config).__name__}; translate it with "
                "DebertaExtConfig.from_dict(config.to_dict())"
            )
        super().__init__(config, *args, **kwargs)
        self.loading_report: LoadingReport | None = None

    def post_init(self):
        super().post_init()
        self._freeze_unread_positions()

    def _freeze_unread_positions(self):
        """Freeze the table that only EMD reads where there is no EMD: distributed training stops at unused parameters."""
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
        elif isinstance(module, DeltaEmbedding):
            init.zeros_(module.weight)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str | None:
        """Check the backend, without transformers' loader of kernels from the Hub: no configuration chooses code. Private,
        because transformers has no public switch for it."""
        return self.get_correct_attn_implementation(attn_implementation)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str | None:
        """Check `attn_implementation`; None (also spelled "auto") chooses the best backend for each call.

        transformers' AttentionInterface is not asked: its functions have no place for a relative table.

        Raises:
            ValueError: there is no such backend, or it does not support this model on the available devices.
        """
        if requested_attention in (None, "auto"):
            return None
        # Weights come to their device after this check; what a call needs is checked when it is made.
        check_backend(requested_attention)
        head_size = self.config.hidden_size // self.config.num_attention_heads
        if backend_unavailable(requested_attention, torch.device("cpu"), torch.float32, head_size) is not None:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            choose_backend(requested_attention, device, torch.float32, head_size, served="this model here")
        return requested_attention

    def attention_backends(self) -> dict[str, tuple[str, str]]:
        """Return, for every attention module that has run, the backend that served its last call, and why it was chosen."""
        backends = {}
        for name, module in self.named_modules():
            if isinstance(module, DisentangledSelfAttention) and module.last_backend is not None:
                backends[name] = module.last_backend
        return backends

    def set_unpadding(self, unpadding: bool | None):
        """Let padded batches run as one stream of real tokens: always, never, or (None, the default) where it pays:
        on CPU, with at least a tenth of padding, and in evaluation mode without forward hooks. States and logits at padding
        are then zero."""
        self.base_model.unpadding = None if unpadding is None else bool(unpadding)

    def pack(
        self,
        shape: tuple[int, int],
        attention_mask: torch.Tensor | None,
        document_ids: torch.Tensor | None = None,
        output_attentions: bool = False,
        labels: torch.Tensor | None = None,
    ) -> PackedSequences | None:
        """Pack a batch of `shape` [B, N] into one stream of tokens; None where it stays as it is.

        Raises:
            ValueError: `document_ids` of another shape, or together with something that a stream has not.
        """
        cannot = is_traced() or output_attentions
        if document_ids is not None:
            if list(document_ids.shape) != list(shape):
                raise ValueError(f"document_ids must have shape {list(shape)}, got {list(document_ids.shape)}")
            if cannot:
                raise ValueError(
                    "packed documents have no attention probabilities and cannot be traced; give a mask [B, N, N] of "
                    "document blocks and position_ids instead of document_ids"
                )
            if attention_mask is not None:
                if attention_mask.dim() != 2:
                    raise ValueError("document_ids say who may attend to whom; an attention_mask with them must be [B, N]")
                document_ids = document_ids * attention_masks(attention_mask, shape)[1]
            return PackedSequences.from_document_ids(document_ids)
        unpadding = self.base_model.unpadding
        if unpadding is False or cannot or attention_mask is None or attention_mask.dim() != 2:
            return None
        if unpadding is None and attention_mask.device.type != "cpu":
            return None
        _, token_mask = attention_masks(attention_mask, shape)
        if unpadding is None and token_mask.sum() > 0.9 * token_mask.numel():
            return None
        if labels is not None and bool((labels.reshape(shape) != -100)[~token_mask].any()):
            return None
        if unpadding is None and not self.training and any(module._forward_hooks for module in self.modules()):
            # They read or replace outputs [B, N, ...]. In training, gradient checkpointing has one that does neither.
            return None
        return PackedSequences.from_mask(token_mask)

    def encode(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        output_attentions: bool | None,
        output_hidden_states: bool | None,
        document_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        may_pack: bool = True,
        **options,
    ):
        """Run `self.deberta` for a head.

        Args:
            labels (`torch.Tensor`, *optional*): [B, N] or [B * N]; a batch with labels on padding stays padded.
            may_pack (`bool`): False: the batch stays padded.
            options: further arguments of `DebertaExtModel`.

        Returns:
            its outputs, and `PackedSequences` if last_hidden_state is a stream [1, T, hidden], else None.

        Raises:
            ValueError: as `batch_shape`, or labels of another shape or dtype.
        """
        shape = batch_shape(input_ids, inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids)
        if labels is not None:
            check_labels("labels", labels, list(shape), [shape.numel()])
        packed = None
        if may_pack:
            attentions = self.config.output_attentions if output_attentions is None else output_attentions
            packed = self.pack(shape, attention_mask, document_ids, attentions, labels)
        outputs = self.deberta(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, output_attentions, output_hidden_states,
            packed=packed, may_pack=False, return_dict=True, **options,
        )  # fmt: skip
        return outputs, packed

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding):
        self.base_model.embeddings.word_embeddings = value

    def extend_position_embeddings(self, length: int):
        """Make the absolute position table `length` rows long; old rows stay, new ones are drawn as at initialisation.

        The relative table keeps its reach. The new rows are random until they are trained.

        Raises:
            ValueError: there is no such table, or it is longer already.
        """
        embeddings = self.base_model.embeddings
        old = getattr(embeddings, "position_embeddings", None)
        if old is None:
            raise ValueError("this model has no absolute position table; it takes inputs of any length as it is")
        if length <= old.num_embeddings:
            raise ValueError(f"the position table has {old.num_embeddings} rows, so {length} would not extend it")
        weight = old.weight
        new = nn.Embedding(length, old.embedding_dim, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            new.weight.normal_(std=self.config.initializer_range)
            new.weight[: old.num_embeddings] = weight
        new.weight.requires_grad_(weight.requires_grad)
        embeddings.position_embeddings = new
        embeddings.max_positions = length
        self.config.max_relative_positions = self.config.relative_distance
        self.config.max_position_embeddings = length

    def save_pretrained(self, save_directory, *args, push_to_hub: bool = False, **kwargs):
        """Save the model as in transformers; the weights keep our names, and the model's code goes with them
        (config.save_pretrained).

        With `push_to_hub`, arguments of `push_to_hub` are among `kwargs`, and `repo_id`: default is the folder's name.
        """
        pushed = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if push_to_hub and name in kwargs}
        # True would write v1's fused layout, which Trainer's resume does not convert back.
        kwargs["save_original_format"] = False
        super().save_pretrained(save_directory, *args, **kwargs)
        if push_to_hub and kwargs.get("is_main_process", True):
            self.push_to_hub(pushed.pop("repo_id", Path(save_directory).name), **pushed)

    def push_to_hub(self, repo_id: str, **options):
        """Publish weights, configuration, code and card in one commit; returns `huggingface_hub.CommitInfo`.

        Args:
            repo_id (`str`): "user/name" or "organisation/name"; created if it does not exist.
            options: of `hf_deberta_ext.publishing.push`, for example `tokenizer`, `private`, `revision`; where that package
                is not installed, of `PreTrainedModel.push_to_hub`.
        """
        try:
            from hf_deberta_ext.publishing import push
        except ImportError:
            return super().push_to_hub(repo_id, **options)
        return push(self, repo_id, **options).commit


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode within a context; afterwards each of its modules is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def batch_shape(
    input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, **others: torch.Tensor | None
) -> torch.Size:
    """Return B and N of a batch that is given as ids or as embeddings; `others` by name are [1 or B, N].

    Raises:
        ValueError: both or neither of ids and embeddings are given, or another tensor does not fit them.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give either input_ids or inputs_embeds, not both and not neither")
    batch = inputs_embeds if input_ids is None else input_ids
    B, N = batch.shape[:2]
    for name, x in others.items():
        if x is not None and list(x.shape[:2]) not in ([1, N], [B, N]):
            raise ValueError(f"{name} must have shape [1 or B, {N}], got {list(x.shape)}")
    return batch.shape[:2]


def attention_masks(
    attention_mask: torch.Tensor | None, shape: tuple[int, int], heads: int | None = None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the mask as attention reads it, broadcastable to [B, H, N, N], and the mask of real tokens [B, N]; both bool.
    On CPU the first is None where it is True everywhere.

    Takes [B, N] (1 = token), [B, N, N] or [B, 1 or H, N or 1, N] (1 = query i may attend to key j), int, float or bool.
    With 3 or 4 dimensions a token is real if anyone may attend to it. `heads` is H; None: any number.

    Raises:
        ValueError: another shape, or, on CPU, other values than 0 and 1: an additive mask, numbers of documents.
    """
    if attention_mask is None:
        return None, None
    B, N = shape
    sizes = list(attention_mask.shape)
    is_heads = len(sizes) == 4 and sizes[0] == B and sizes[1] in (1, heads or sizes[1]) and sizes[2:] in ([N, N], [1, N])
    if not (is_heads or sizes in ([B, N], [B, N, N])):
        raise ValueError(
            f"attention_mask must have shape [{B}, {N}], [{B}, {N}, {N}] or [{B}, 1 or heads, {N}, {N}] for input of shape "
            f"[{B}, {N}], got {sizes}"
        )
    mask = attention_mask != 0
    everything = False
    if values_at_hand(mask):
        everything = bool(mask.all())
        wrong = mask & (attention_mask != 1)
        if bool(wrong.any()):
            raise ValueError(
                f"attention_mask has the value {attention_mask[wrong][0].item()}; give 1 where attention is allowed and 0 "
                "elsewhere (document_ids separate several documents in a row)"
            )
    real = mask
    if mask.dim() == 2:
        mask = mask[:, None, None]
    else:
        if mask.dim() == 3:
            mask = mask[:, None]
        real = mask.any(-2).any(1)
    return None if everything else mask, real


def cls_states(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, packed: PackedSequences | None
) -> torch.Tensor:
    """Return [B, hidden], the state of each row's first real token (of each packed document's first token)."""
    if packed is not None:
        return hidden_states[0].index_select(0, packed.cu_seqlens[:-1].long())
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden_states[:, 0]
    first = (attention_mask != 0).int().argmax(1)
    # Not len(first), which would make a constant of the batch in an exported graph.
    return hidden_states[torch.arange(first.shape[0], device=first.device), first]

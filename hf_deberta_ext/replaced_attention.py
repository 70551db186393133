# SPDX-License-Identifier: Apache-2.0
"""Use the attention backends in transformers' DeBERTa models: `replace_attention` and `restore_attention`."""

import math
from types import MethodType
from typing import NamedTuple

import torch
from torch import nn
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2

from .kernels import PositionCache
from .model.attention_deberta_ext import AttentionInputs, DisentangledSelfAttention, choose_backend, is_traced

__all__ = ["ReplacedAttention", "replace_attention", "restore_attention"]


class ReplacedAttention(NamedTuple):
    """Result of `replace_attention`.

    Attributes:
        replaced (`list[str]`): names of the replaced self-attention modules.
        left_alone (`dict[str, str]`): names of the self-attention modules that were not replaced, with the reason.
    """

    replaced: list[str]
    left_alone: dict[str, str]


def replace_attention(model: nn.Module, attn_implementation: str | None = None) -> ReplacedAttention:
    """Make every DeBERTa (v1) and DeBERTa-v2/v3 self-attention of transformers inside `model` use this package's backends.

    Only the class of the modules changes, to a subclass: parameters, names, hooks and state dict stay the same, and LoRA can
    be added before or after. Outputs and gradients at real tokens equal the original model's at every length; states at
    padding differ. `save_pretrained` writes the same checkpoint; a pickle of the whole module needs this package to load.
    `restore_attention` undoes the replacement.

    `last_backend` of a replaced module is the backend of its last call and the reason for the choice. Calls with custom
    relative positions or a different number of queries run the original code.

    Args:
        model (`nn.Module`): any module with such attention: a task model, a peft model, a cross-encoder, a GLiNER model.
        attn_implementation (`str`, *optional*): a name in `ATTENTION_BACKENDS`; None or "auto" chooses the best backend for
            each call. Call the function again to choose another backend.

    Raises:
        ValueError: `model` has no such attention, or the backend does not exist or does not support a module; nothing is
            replaced then. A call that the named backend does not support also raises a ValueError.
    """
    if attn_implementation == "auto":
        attn_implementation = None
    replaced, left_alone = {}, {}
    for path, module in model.named_modules():
        if isinstance(module, tuple(ATTENTION)):
            reason = reason_to_leave_alone(module)
            if reason is None:
                replaced[path] = module
            else:
                left_alone[path] = reason
    if not replaced:
        raise ValueError(
            "expected a model with self-attention of transformers' DebertaModel or DebertaV2Model, got "
            f"{type(model).__name__} (not replaceable: {left_alone}); for DebertaExt models, use attn_implementation or "
            "set_attn_implementation"
        )
    for module in replaced.values():
        weight = next(weight for weight in module.parameters() if weight.is_floating_point())
        choose_backend(attn_implementation, weight.device, weight.dtype, module.attention_head_size)
    for module in replaced.values():
        _change_class(module, ATTENTION.get(type(module), type(module)))
        module.attn_implementation = attn_implementation
        if module.relative_attention:
            module.max_distance = _find_saturation(*_table_of(module))[1]
    for module in model.modules():
        if type(module) in ENCODERS:
            _change_class(module, ENCODERS[type(module)])
    return ReplacedAttention(list(replaced), left_alone)


def restore_attention(model: nn.Module) -> list[str]:
    """Undo `replace_attention`: change the modules back to transformers' classes.

    Returns:
        `list[str]`: names of the restored self-attention modules.
    """
    restored = []
    for path, module in model.named_modules():
        if isinstance(module, _Replaced):
            for attribute in ADDED:
                vars(module).pop(attribute, None)
            _change_class(module, module.stock_class)
            if isinstance(module, tuple(ATTENTION)):
                restored.append(path)
    return restored


def reason_to_leave_alone(module: nn.Module) -> str | None:
    """Return why a self-attention module cannot be replaced; None if it can be, or is already replaced."""
    if type(module) not in ATTENTION and not isinstance(module, _Replaced):
        return f"{type(module).__name__} is a subclass with custom code"
    # accelerate's hooks set a forward on the instance, and keep the old one as `_old_forward`.
    forward = vars(module).get("_old_forward", vars(module).get("forward"))
    if forward is not None and not _is_forward_of(forward, module):
        return "its forward was replaced by other code"
    if getattr(module, "talking_head", False):
        return "talking heads mix the scores of all heads"
    if module.relative_attention and not _find_saturation(*_table_of(module))[0]:
        return "its position_buckets and max_relative_positions give buckets that do not increase with the distance"
    return None


def _is_forward_of(function, module: nn.Module) -> bool:
    return getattr(function, "__self__", None) is module and function.__func__ is type(module).forward


def _change_class(module: nn.Module, cls: type):
    """Change the class of an instance, and the bound forward methods that hooks hold."""
    bound = [name for name in ("_old_forward", "forward") if _is_forward_of(vars(module).get(name), module)]
    module.__class__ = cls
    for name in bound:
        vars(module)[name] = MethodType(cls.forward, module)


def _table_of(module: nn.Module) -> tuple[int, int]:
    """Return b (-1 = no buckets) and M of an attention module or an encoder."""
    return getattr(module, "position_buckets", -1), module.max_relative_positions


def _relative_positions(length: int, buckets: int, max_distance: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the values of transformers' `build_relative_position` by offset i - j = 1 - N ... N - 1, [2N - 1]."""
    r = torch.arange(1 - length, length, device=device)
    if buckets > 0 and max_distance > 0:
        r = v2.make_log_bucket_position(r, buckets, max_distance).long()
    return r


def _as_stock(r: torch.Tensor) -> torch.Tensor:
    """Expand relative positions [2N - 1], one per offset, to transformers' shape [1, N, N]."""
    i = torch.arange((len(r) + 1) // 2, device=r.device)
    return r[i[:, None] - i + len(i) - 1][None]


def _table_rows(r: torch.Tensor, buckets: int, max_distance: int) -> tuple[torch.Tensor, int]:
    """Return delta [2N - 1] and half of the rows of the relative table. For r <= -M, transformers reads row 0, unlike
    `RelativePosition`, which reads the row of 1 - M."""
    span = buckets if buckets > 0 else max_distance
    return (r + span).clamp(0, 2 * span - 1), span


def _find_saturation(buckets: int, max_distance: int) -> tuple[bool, int | None]:
    """Return whether delta(i, j) never decreases with i - j, and the distance from which on it is constant (None: > 4M)."""
    if buckets == 1:
        return False, None
    far = 4 * max_distance
    delta, span = _table_rows(_relative_positions(far + 1, buckets, max_distance), buckets, max_distance)
    steps = delta.diff()
    rises = bool((steps >= 0).all()) and bool(steps.any())
    if not rises or delta[0] != 0 or delta[-1] != 2 * span - 1:
        return rises, None
    changes = steps.nonzero().squeeze(1) - far
    return True, max(-int(changes[0]), int(changes[-1]) + 1)


# Attributes of an instance that transformers' class does not have.
ADDED = ("attn_implementation", "max_distance", "last_backend", "position_cache")


class _Replaced(PositionCache):
    """Base class of the replacing classes. At inference on CPU, it caches the relative table and its projections."""

    stock_class: type

    def caches(self, device: torch.device) -> bool:
        return device.type == "cpu" and not (self.training or torch.is_grad_enabled() or is_traced())


class _ReplacedSelfAttention(_Replaced):
    """Self-attention with the original module's projections and this package's backends."""

    attn_implementation: str | None = None
    max_distance: int | None = None
    last_backend: tuple[str, str] | None = None

    project_positions = DisentangledSelfAttention.project_positions
    attend = DisentangledSelfAttention.attend
    dropout_p = DisentangledSelfAttention.dropout_p

    @property
    def terms(self) -> tuple[str, ...]:
        if not self.relative_attention:
            return ()
        return tuple(term for term in ("c2p", "p2c") if term in self.pos_att_type)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape [..., N, H·x] -> [..., H, N, x]."""
        return x.unflatten(-1, (self.num_attention_heads, -1)).transpose(-2, -3)

    def positions(
        self, N: int, rel_embeddings: torch.Tensor, relative_pos: torch.Tensor | None, device: torch.device
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
        """Return K_r, Q_r and delta, from the relative table and relative positions [2N - 1] or in transformers' form."""
        buckets, M = _table_of(self)
        if relative_pos is None or relative_pos.dim() > 1:
            relative_pos = _relative_positions(N, buckets, M, device)
        delta, span = _table_rows(relative_pos.to(device), buckets, M)
        half = span
        # Short sequences only need the middle of the table, where each distance has its own row.
        exact = buckets // 2 + 1 if buckets > 0 else M
        if not is_traced() and N <= exact and not self.caches(rel_embeddings.device):
            half = N
        if len(rel_embeddings) > 2 * half:
            rel_embeddings = rel_embeddings[span - half : span + half]
            delta = delta - (span - half)
        return *self.project_positions(rel_embeddings), delta

    def stock_only(self, N: int, query_states: torch.Tensor | None, relative_pos: torch.Tensor | None) -> str | None:
        """Return why only the original code supports a call, or None."""
        if query_states is not None and self.is_v1:
            # transformers calls query_states.t(), which fails for a batch.
            return "v1 with a query stream"
        if query_states is not None and query_states.shape[-2] != N:
            return f"{query_states.shape[-2]} queries of {N} keys"
        if self.relative_attention and relative_pos is not None and relative_pos.dim() != 1:
            standard = _as_stock(_relative_positions(N, *_table_of(self), relative_pos.device))
            if relative_pos.numel() != N * N or not torch.equal(relative_pos.long().view(1, N, N), standard):
                return "custom relative positions"
        return None

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        output_attentions: bool = False,
        query_states: torch.Tensor | None = None,
        relative_pos: torch.Tensor | None = None,
        rel_embeddings: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the same output as the original module; relative_pos may also be [2N - 1], by offset i - j.

        Raises:
            ValueError: the named backend does not support this call.
        """
        B, N = hidden_states.shape[:2]
        reason = self.stock_only(N, query_states, relative_pos)
        if reason is not None:
            if self.attn_implementation is not None:
                raise ValueError(
                    f"attn_implementation = {self.attn_implementation!r} does not support this call: {reason}; use None"
                )
            self.last_backend = "stock", reason
            if attention_mask is None:
                attention_mask = torch.ones(B, 1, 1, N, dtype=torch.bool, device=hidden_states.device)
            if relative_pos is not None and relative_pos.dim() == 1:
                relative_pos = _as_stock(relative_pos)
            others = output_attentions, query_states, relative_pos, rel_embeddings
            return super().forward(hidden_states, attention_mask, *others)

        Q_c, K_c, V_c = self.project(hidden_states, query_states)
        K_r = Q_r = delta = None
        terms = self.terms
        if self.is_v1 and (relative_pos is None or rel_embeddings is None):
            terms = ()
        if terms:
            K_r, Q_r, delta = self.positions(N, rel_embeddings, relative_pos, Q_c.device)
        if attention_mask is not None:
            attention_mask = attention_mask.bool()
        inputs = AttentionInputs(Q_c, K_c, V_c, self.scale, K_r, Q_r, delta, terms, attention_mask)
        inputs = inputs._replace(dropout_p=self.dropout_p, max_distance=self.max_distance)
        return self.attend(inputs, self.attn_implementation, output_attentions=output_attentions)


class ReplacedDebertaV2SelfAttention(_ReplacedSelfAttention, v2.DisentangledSelfAttention):
    """Self-attention of DeBERTa-v2, v3 and mDeBERTa with this package's backends."""

    stock_class = v2.DisentangledSelfAttention
    is_v1 = False

    position_projections = DisentangledSelfAttention.position_projections

    @property
    def scale(self) -> float:
        count = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        return 1 / math.sqrt(self.attention_head_size * count)

    def project(self, hidden_states: torch.Tensor, query_states: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return Q_c, K_c and V_c, [B, H, N, d] each."""
        queries = hidden_states if query_states is None else query_states
        states = self.query_proj(queries), self.key_proj(hidden_states), self.value_proj(hidden_states)
        return tuple(map(self.split_heads, states))


class ReplacedDebertaSelfAttention(_ReplacedSelfAttention, v1.DisentangledSelfAttention):
    """Self-attention of DeBERTa (v1) with this package's backends."""

    stock_class = v1.DisentangledSelfAttention
    is_v1 = True

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.attention_head_size * (1 + len(self.pos_att_type)))

    def position_projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the modules that compute K_r and Q_r; None for one that no term needs."""
        key = query = None
        if "c2p" in self.terms:
            key = self.pos_proj
        if "p2c" in self.terms:
            query = self.pos_q_proj
        return key, query

    def project(self, hidden_states: torch.Tensor, query_states: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return Q_c, K_c and V_c, [B, H, N, d] each, from the fused weight, in which they are adjacent for each head."""
        Q_c, K_c, V_c = self.split_heads(self.in_proj(hidden_states)).chunk(3, dim=-1)
        q_bias = self.split_heads(self.q_bias[None])  # [H, 1, d]
        v_bias = self.split_heads(self.v_bias[None])
        # Under autocast, the biases have a wider dtype.
        return (Q_c + q_bias).to(K_c.dtype), K_c, (V_c + v_bias).to(K_c.dtype)


class _ReplacedEncoder(_Replaced):
    """Encoder that passes its layers a key mask and relative positions [2N - 1] instead of [B, 1, N, N] and [1, N, N], if
    the self-attention of every layer is replaced."""

    def on_backends(self) -> bool:
        attentions = (getattr(getattr(layer, "attention", None), "self", None) for layer in self.layer)
        return all(isinstance(module, _ReplacedSelfAttention) for module in attentions)

    def get_attention_mask(self, attention_mask: torch.Tensor) -> torch.Tensor | None:
        """Expand a mask [B, N] to [B, 1, 1, N], or to None on CPU without padding; other masks as in transformers."""
        if attention_mask.dim() != 2 or not self.on_backends():
            return super().get_attention_mask(attention_mask)
        mask = attention_mask.bool()
        if mask.device.type == "cpu" and not is_traced() and bool(mask.all()):
            return None
        return mask[:, None, None]

    def get_rel_pos(self, hidden_states, query_states=None, relative_pos=None) -> torch.Tensor | None:
        """Return relative positions [2N - 1]; with query states or custom relative positions, as in transformers."""
        if query_states is not None or relative_pos is not None or not self.relative_attention or not self.on_backends():
            return super().get_rel_pos(hidden_states, query_states, relative_pos)
        return _relative_positions(hidden_states.shape[-2], *_table_of(self), hidden_states.device)

    def get_rel_embedding(self) -> torch.Tensor | None:
        """Return the relative table. At inference on CPU, it is the same object until its values change, because the layers
        cache its projections."""
        P = super().get_rel_embedding()
        if P is not None and self.caches(P.device):
            return self.kept_table(P)
        return P


class ReplacedDebertaV2Encoder(_ReplacedEncoder, v2.DebertaV2Encoder):
    stock_class = v2.DebertaV2Encoder


class ReplacedDebertaEncoder(_ReplacedEncoder, v1.DebertaEncoder):
    stock_class = v1.DebertaEncoder


ATTENTION = {
    v1.DisentangledSelfAttention: ReplacedDebertaSelfAttention,
    v2.DisentangledSelfAttention: ReplacedDebertaV2SelfAttention,
}
ENCODERS = {v1.DebertaEncoder: ReplacedDebertaEncoder, v2.DebertaV2Encoder: ReplacedDebertaV2Encoder}

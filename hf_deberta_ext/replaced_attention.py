# SPDX-License-Identifier: Apache-2.0
"""Make transformers' own DeBERTa models use this package's attention backends, and undo this replacement.

In this file, r is the relative position i - j after log buckets (`build_relative_position` in transformers), M is
`max_relative_positions`, N the sequence length, and "stock" means transformers' own code.
"""

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
        left_alone (`dict[str, str]`): {name of a self-attention module that was not replaced: reason}.
    """

    replaced: list[str]
    left_alone: dict[str, str]


def replace_attention(model: nn.Module, attn_implementation: str | None = None) -> ReplacedAttention:
    """Make the self-attention of transformers' DeBERTa (v1, v2, v3) modules in `model` use this package's backends.

    Only the class of each module changes, to a subclass. Parameters, names, hooks and state dict stay the same, and LoRA can
    be added before or after the replacement. Outputs and gradients at real tokens equal the original model's at every
    length; states at padding differ. `save_pretrained` writes the same checkpoint. A pickle of the whole module can only be
    loaded where this package is installed.
    `restore_attention` undoes the replacement.

    `last_backend` of a replaced module is the backend of its last call and the reason for the choice. Calls with custom
    relative positions or a different number of queries run the original code.

    Args:
        model (`nn.Module`): any module that contains such attention: a task model, peft model, cross-encoder, GLiNER model.
        attn_implementation (`str`, *optional*): a name in `ATTENTION_BACKENDS`; None or "auto" chooses the best backend for
            each call. Call `replace_attention` again to choose another backend.

    Raises:
        ValueError: `model` contains no DeBERTa self-attention, or the backend does not exist or does not support a module;
            then nothing is replaced. Later, a forward pass that the named backend does not support raises a ValueError.
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
        reasons = "".join(f", but {reason}" for reason in dict.fromkeys(left_alone.values()))
        raise ValueError(
            "expected a model with self-attention of transformers' DebertaModel or DebertaV2Model, got "
            f"{type(model).__name__}{reasons}; for DebertaExt models, use attn_implementation or set_attn_implementation"
        )
    for module in replaced.values():
        # Modules that torch quantised have no parameters, and compute in float32.
        weights = (weight for weight in module.parameters() if weight.is_floating_point())
        weight = next(weights, torch.empty(0))
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
    """Return the reason why a self-attention module cannot be replaced; None if it can be, or is already replaced."""
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
    """Return True if `function` is the bound forward method of the class of `module`."""
    return getattr(function, "__self__", None) is module and function.__func__ is type(module).forward


def _change_class(module: nn.Module, cls: type):
    """Change the class of `module` to `cls`. If accelerate's hooks have stored the forward method of the old class in
    attributes of `module`, replace it by the forward method of `cls`."""
    bound = [name for name in ("_old_forward", "forward") if _is_forward_of(vars(module).get(name), module)]
    module.__class__ = cls
    for name in bound:
        vars(module)[name] = MethodType(cls.forward, module)


def _table_of(module: nn.Module) -> tuple[int, int]:
    """Return `position_buckets` (-1 = no log buckets) and `max_relative_positions` of an attention module or an encoder."""
    return getattr(module, "position_buckets", -1), module.max_relative_positions


def _relative_positions(length: int, buckets: int, max_distance: int, device: torch.device | None = None) -> torch.Tensor:
    """Return r, in log buckets if `buckets` > 0, for each offset i - j = 1 - N ... N - 1, [2N - 1], as in transformers."""
    r = torch.arange(1 - length, length, device=device)
    if buckets > 0 and max_distance > 0:
        r = v2.make_log_bucket_position(r, buckets, max_distance).long()
    return r


def _as_stock(r: torch.Tensor) -> torch.Tensor:
    """Expand r [2N - 1], one value per offset i - j, to transformers' shape [1, N, N], one value per pair (i, j)."""
    i = torch.arange((len(r) + 1) // 2, device=r.device)
    return r[i[:, None] - i + len(i) - 1][None]


def _table_rows(r: torch.Tensor, buckets: int, max_distance: int) -> tuple[torch.Tensor, int]:
    """Return the row of the relative table for each r, [2N - 1], and half the number of the table's rows.

    For r <= -M, the row is 0, as in transformers; `RelativePosition` uses the row of r = 1 - M instead.
    """
    span = buckets if buckets > 0 else max_distance
    return (r + span).clamp(0, 2 * span - 1), span


def _find_saturation(buckets: int, max_distance: int) -> tuple[bool, int | None]:
    """Return whether the table row never decreases with i - j, and the distance |i - j| from which it is constant.

    The distance is None if the row still changes at the distance 4 * max_distance.
    """
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


# Attributes that replacement sets on a module, and restoring deletes.
ADDED = ("attn_implementation", "max_distance", "last_backend", "position_cache")


class _Replaced(PositionCache):
    """Base class of all replacement classes. At inference on CPU, it caches the relative table and its projections."""

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
        """Return K_r, Q_r and delta of `AttentionInputs`.

        `relative_pos` is [2N - 1], one value per offset. For None or transformers' shape [1, N, N], it is computed here.
        """
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
        """Return the reason why a call must run transformers' code; None if a backend can run it."""
        if query_states is not None and self.is_v1:
            # transformers calls query_states.t(), which fails for a batch.
            return "query_states of a v1 model"
        if query_states is not None and query_states.shape[-2] != N:
            return f"{query_states.shape[-2]} queries for {N} keys"
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
        """Compute the same output as transformers' module. `relative_pos` may also be [2N - 1], one value per offset i - j.

        Raises:
            ValueError: the named backend does not support this call.
        """
        B, N = hidden_states.shape[:2]
        reason = self.stock_only(N, query_states, relative_pos)
        if reason is not None:
            if self.attn_implementation is not None:
                raise ValueError(
                    f"attn_implementation = {self.attn_implementation!r} does not support this call: {reason}; call "
                    "replace_attention without attn_implementation to use transformers' code for such calls"
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
        """Return the modules that compute K_r and Q_r; None in place of a module that no position term needs."""
        key = query = None
        if "c2p" in self.terms:
            key = self.pos_proj
        if "p2c" in self.terms:
            query = self.pos_q_proj
        return key, query

    def project(self, hidden_states: torch.Tensor, query_states: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return Q_c, K_c and V_c, [B, H, N, d] each, from v1's fused projection, which is grouped by head."""
        Q_c, K_c, V_c = self.split_heads(self.in_proj(hidden_states)).chunk(3, dim=-1)
        q_bias = self.split_heads(self.q_bias[None])  # [H, 1, d]
        v_bias = self.split_heads(self.v_bias[None])
        # Under autocast, the biases have a wider dtype.
        return (Q_c + q_bias).to(K_c.dtype), K_c, (V_c + v_bias).to(K_c.dtype)


class _ReplacedEncoder(_Replaced):
    """Encoder that passes smaller tensors to its layers if the self-attention of every layer is replaced.

    The mask is [B, 1, 1, N] instead of [B, 1, N, N], and relative positions are [2N - 1] instead of [1, N, N].
    """

    def on_backends(self) -> bool:
        """Return True if the self-attention of every layer is replaced."""
        attentions = (getattr(getattr(layer, "attention", None), "self", None) for layer in self.layer)
        return all(isinstance(module, _ReplacedSelfAttention) for module in attentions)

    def get_attention_mask(self, attention_mask: torch.Tensor) -> torch.Tensor | None:
        """Convert a mask [B, N] to bool [B, 1, 1, N], or to None on CPU if there is no padding.

        If the mask has another shape, or a layer is not replaced, return what transformers returns.
        """
        if attention_mask.dim() != 2 or not self.on_backends():
            return super().get_attention_mask(attention_mask)
        mask = attention_mask.bool()
        if mask.device.type == "cpu" and not is_traced() and bool(mask.all()):
            return None
        return mask[:, None, None]

    def get_rel_pos(self, hidden_states, query_states=None, relative_pos=None) -> torch.Tensor | None:
        """Return one relative position per offset i - j, [2N - 1].

        If `query_states` or `relative_pos` is passed, or a layer is not replaced, return what transformers returns.
        """
        if query_states is not None or relative_pos is not None or not self.relative_attention or not self.on_backends():
            return super().get_rel_pos(hidden_states, query_states, relative_pos)
        return _relative_positions(hidden_states.shape[-2], *_table_of(self), hidden_states.device)

    def get_rel_embedding(self) -> torch.Tensor | None:
        """Return the relative table. At inference on CPU, return the same object until its values change, so that the layers
        can use their cached projections of it."""
        if self.relative_attention and self.caches(self.rel_embeddings.weight.device):
            return self.kept_table(super().get_rel_embedding)
        return super().get_rel_embedding()


class ReplacedDebertaV2Encoder(_ReplacedEncoder, v2.DebertaV2Encoder):
    stock_class = v2.DebertaV2Encoder


class ReplacedDebertaEncoder(_ReplacedEncoder, v1.DebertaEncoder):
    stock_class = v1.DebertaEncoder


ATTENTION = {
    v1.DisentangledSelfAttention: ReplacedDebertaSelfAttention,
    v2.DisentangledSelfAttention: ReplacedDebertaV2SelfAttention,
}
ENCODERS = {v1.DebertaEncoder: ReplacedDebertaEncoder, v2.DebertaV2Encoder: ReplacedDebertaV2Encoder}

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DisentangledSelfAttention`: projections with the names of deberta-v2, and the call of a backend."""

import math

import torch
from torch import nn

from .attention_backends import BACKENDS, choose_backend
from .input_validation import is_traced
from .position_cache import PositionCache, has_hooks, module_state, same_values
from .unpadding import PackedSequences

__all__ = ["DisentangledSelfAttention"]


class DisentangledSelfAttention(PositionCache):
    """Multi-head disentangled self-attention (DeBERTa section 3.1), without the output projection.

    `last_backend` is the name of the backend that served the last call, and the reason for the choice.

    Args:
        config: any object with `hidden_size`, `num_attention_heads`, `attention_probs_dropout_prob`, `hidden_dropout_prob`,
            `relative_attention`, `pos_att_type` (list) and `share_att_key`. Its `_attn_implementation`, where there is one,
            names the backend at each call; None or no such field: the best is chosen.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.terms = tuple(config.pos_att_type) if config.relative_attention else ()
        # Stock models count the terms that are named even where relative_attention is off.
        self.scale = 1 / math.sqrt(self.head_size * (1 + len(config.pos_att_type)))

        size = config.hidden_size
        self.query_proj = nn.Linear(size, size)
        self.key_proj = nn.Linear(size, size)
        self.value_proj = nn.Linear(size, size)
        self.share_att_key = config.share_att_key
        if not self.share_att_key:
            if "c2p" in self.terms or "p2p" in self.terms:
                self.pos_key_proj = nn.Linear(size, size)
            if "p2c" in self.terms or "p2p" in self.terms:
                self.pos_query_proj = nn.Linear(size, size)
        self.pos_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.last_backend: tuple[str, str] | None = None

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """[..., N, H·d] -> [..., H, N, d]; of a tensor-parallel process, the heads that it has."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(-2, -3)

    def position_projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The modules that compute K_r and Q_r; None where no term needs it."""
        key = query = None
        if "c2p" in self.terms or "p2p" in self.terms:
            key = self.key_proj if self.share_att_key else self.pos_key_proj
        if "p2c" in self.terms or "p2p" in self.terms:
            query = self.query_proj if self.share_att_key else self.pos_query_proj
        return key, query

    def project_positions(self, rel_embeddings: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """K_r and Q_r, [H, R, d] each, from the relative table [R, H·d]; None where no term needs it.

        At inference on CPU they are kept until another table comes or a module has changed (`module_state`). Modules with
        hooks are called with the table every time, and with nothing else: a calibration sees real inputs.
        """
        if not self.terms:
            return None, None
        modules = self.position_projections()
        cacheable = not (is_traced() or torch.is_grad_enabled() or self.pos_dropout.training)
        if not cacheable or rel_embeddings.device.type != "cpu" or any(map(has_hooks, modules)):
            P = self.pos_dropout(rel_embeddings)
            return tuple(module and self.split_heads(module(P)) for module in modules)
        states = [module_state(module, rel_embeddings) for module in modules if module is not None]
        versions = [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), *(state[0] for state in states)]
        samples = [state[1] for state in states]
        cache = self.position_cache
        if cache and cache[0] is rel_embeddings and cache[1] == versions and all(map(same_values, samples, cache[2])):
            return cache[3]
        projected = tuple(module and self.split_heads(module(rel_embeddings)) for module in modules)
        self.position_cache = rel_embeddings, versions, samples, projected
        return projected

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        rel_embeddings: torch.Tensor | None = None,
        query_states: torch.Tensor | None = None,
        delta: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
        *,
        reach: int | None = None,
        packed: PackedSequences | None = None,
        output_attentions: bool = False,
        keys_values: dict[str, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states (`torch.Tensor`): keys and values, [B, N, hidden].
            attention_mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, Q, N]; True = may attend.
            rel_embeddings (`torch.Tensor`, *optional*): the relative table P, [R, hidden].
            query_states (`torch.Tensor`, *optional*): a query stream of its own (EMD), [B, Q, hidden]; None = hidden_states.
            delta (`torch.LongTensor`, *optional*): [2L - 1], L >= N, offset table of `RelativePosition`.
            query_positions (`torch.LongTensor`, *optional*): [B, Q] positions of the queries, needed where Q != N; queries
                that share a position must be equal.
            reach (`int`, *optional*): delta is constant for i - j >= reach and for i - j <= -reach.
            packed (`PackedSequences`, *optional*): the documents of hidden_states [1, T, hidden], which do not see each
                other; without a mask.
            output_attentions (`bool`): return the probabilities.
            keys_values (`dict`, *optional*): K_c and V_c of an earlier call with these hidden_states; it is filled if empty.

        Returns:
            context [B, Q, hidden] and probabilities [B, H, Q, N] or None.

        Raises:
            ValueError: `config._attn_implementation` names a backend that cannot serve this call.
        """
        Q_c = self.split_heads(self.query_proj(hidden_states if query_states is None else query_states))
        keys_values = {} if keys_values is None else keys_values
        if not keys_values:
            keys_values["K_c"] = self.split_heads(self.key_proj(hidden_states))
            keys_values["V_c"] = self.split_heads(self.value_proj(hidden_states))
        K_r, Q_r = self.project_positions(rel_embeddings)
        requested = getattr(self.config, "_attn_implementation", None)
        call = dict(query_positions=query_positions, packed=packed, output_attentions=output_attentions)
        positions = dict(K_r=K_r, Q_r=Q_r, delta=delta, reach=reach, terms=self.terms)
        return self.attend(requested, Q_c, **keys_values, mask=attention_mask, scale=self.scale, **call, **positions)

    def attend(
        self,
        requested: str | None,
        Q_c: torch.Tensor,
        K_c: torch.Tensor,
        V_c: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
        packed: PackedSequences | None = None,
        output_attentions: bool = False,
        **options,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Context [B, Q, hidden] and probabilities or None, by the backend that is `requested` or the best for this call.

        Other arguments as in `forward` and `disentangled_attention_eager`.
        """
        N = K_c.shape[2]
        options["dropout_p"] = self.dropout.p if self.dropout.training else 0.0
        name, reason = choose_backend(
            requested,
            query_share=1.0 if query_positions is None or packed is not None else Q_c.shape[2] / N,
            device=Q_c.device,
            dtype=Q_c.dtype,
            head_size=Q_c.shape[-1],
            needs_probs=output_attentions,
            needs_grad=torch.is_grad_enabled() and Q_c.requires_grad,
            dropout_p=options["dropout_p"],
        )
        if not torch.compiler.is_compiling():
            self.last_backend = name, reason
        backend = BACKENDS[name]
        drop_others = query_positions is not None and (packed is not None or not backend.takes_query_positions)
        if drop_others:
            Q_c, mask = among_all_positions(Q_c, mask, query_positions, N)
        elif query_positions is not None:
            options["query_positions"] = query_positions

        def function(*tensors, **call):
            result = backend.function(*tensors, **options, **call)
            return result if backend.returns_probs else (result, None)

        probs = None
        if packed is None:
            context, probs = function(Q_c, K_c, V_c, mask=mask)
        elif backend.takes_cu_seqlens:
            context, _ = function(Q_c, K_c, V_c, cu_seqlens=packed.cu_seqlens)
        else:
            context = packed.attend(lambda *tensors, mask: function(*tensors, mask=mask)[0], Q_c, K_c, V_c)
        context = context.transpose(1, 2)
        if drop_others:
            context = context.gather(1, query_positions[:, :, None, None].expand(-1, -1, *context.shape[2:]))
        return context.flatten(2), probs if output_attentions else None


def among_all_positions(Q_c: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, N: int):
    """Queries [B, H, Q, d] and their rows of the mask at their positions among all N, with zeros and True elsewhere."""
    B, H, _, d = Q_c.shape
    index = positions[:, None, :, None]
    full = Q_c.new_zeros(B, H, N, d).scatter(2, index.expand(-1, H, -1, d), Q_c)
    if mask is not None and mask.shape[-2] > 1:
        rows = mask.new_ones(B, mask.shape[1], N, N)
        mask = rows.scatter(2, index.expand(-1, mask.shape[1], -1, N), mask.expand(B, -1, -1, -1))
    return full, mask

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DisentangledSelfAttention`: projections with the names of deberta-v2, and the call of a backend."""

import math

import torch
from torch import nn

from .attention_backends import BACKENDS, choose_backend
from .attention_inputs import AttentionInputs
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
        self.terms = ()
        if config.relative_attention:
            self.terms = tuple(config.pos_att_type)
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

    def keys_and_values(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K_c and V_c, [B, H, N, d] each, of hidden states [B, N, hidden]."""
        return self.split_heads(self.key_proj(hidden_states)), self.split_heads(self.value_proj(hidden_states))

    def position_projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        """Return the modules that compute K_r and Q_r; None where no term needs it."""
        key = query = None
        if "c2p" in self.terms or "p2p" in self.terms:
            key = self.key_proj if self.share_att_key else self.pos_key_proj
        if "p2c" in self.terms or "p2p" in self.terms:
            query = self.query_proj if self.share_att_key else self.pos_query_proj
        return key, query

    def project_positions(self, rel_embeddings: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return K_r and Q_r, [H, R, d] each, from the relative table [R, H·d]; None where no term needs it.

        At inference on CPU they are kept until another table comes or a module has changed (`module_state`). Modules with
        hooks are called with the table every time, and with nothing else: a calibration sees real inputs.
        """
        key, query = self.position_projections()
        modules = [module for module in (key, query) if module is not None]

        def project(P):
            K_r = Q_r = None
            if key is not None:
                K_r = self.split_heads(key(P))
            if query is not None:
                Q_r = self.split_heads(query(P))
            return K_r, Q_r

        if not modules:
            return None, None
        varies = is_traced() or torch.is_grad_enabled() or self.pos_dropout.training
        if varies or rel_embeddings.device.type != "cpu" or any(map(has_hooks, modules)):
            return project(self.pos_dropout(rel_embeddings))
        states = [module_state(module, rel_embeddings) for module in modules]
        versions = [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), *(state[0] for state in states)]
        samples = [state[1] for state in states]
        entry = self.position_cache
        if entry is not None:
            table, kept_versions, kept_samples, projected = entry
            if table is rel_embeddings and kept_versions == versions and all(map(same_values, kept_samples, samples)):
                return projected
        projected = project(rel_embeddings)
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
        keys_values: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Args:
            hidden_states (`torch.Tensor`): keys and values, [B, N, hidden].
            attention_mask (`torch.BoolTensor`, *optional*): broadcastable to [B, H, Q, N]; True = may attend.
            rel_embeddings (`torch.Tensor`, *optional*): the relative table P, [R, hidden].
            query_states (`torch.Tensor`, *optional*): a separate query stream (EMD), [B, Q, hidden]; None = hidden_states.
            delta (`torch.LongTensor`, *optional*): [2L - 1], L >= N, offset table of `RelativePosition`.
            query_positions (`torch.LongTensor`, *optional*): [B, Q] positions of the queries, needed where Q != N; queries
                that share a position must be equal.
            reach (`int`, *optional*): delta is constant for i - j >= reach and for i - j <= -reach.
            packed (`PackedSequences`, *optional*): the documents of hidden_states [1, T, hidden], which do not see each
                other; without a mask.
            output_attentions (`bool`): return the probabilities.
            keys_values (`tuple`, *optional*): K_c and V_c of these hidden_states, from `keys_and_values`; None = computed.

        Returns:
            context [B, Q, hidden] and probabilities [B, H, Q, N] or None.

        Raises:
            ValueError: `config._attn_implementation` names a backend that cannot serve this call.
        """
        queries = hidden_states if query_states is None else query_states
        Q_c = self.split_heads(self.query_proj(queries))
        K_c, V_c = self.keys_and_values(hidden_states) if keys_values is None else keys_values
        K_r, Q_r = self.project_positions(rel_embeddings)
        inputs = AttentionInputs(
            Q_c, K_c, V_c, self.scale, K_r, Q_r, delta, self.terms, attention_mask, query_positions, self.dropout_p, reach
        )
        requested = getattr(self.config, "_attn_implementation", None)
        return self.attend(inputs, requested, packed, output_attentions)

    @property
    def dropout_p(self) -> float:
        """The dropout of the probabilities in the mode of the `dropout` module."""
        return self.dropout.p if self.dropout.training else 0.0

    def attend(
        self,
        inputs: AttentionInputs,
        requested: str | None,
        packed: PackedSequences | None = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the context [B, Q, hidden], and probabilities or None, by the requested or else the best backend.

        Arguments as in `forward`; `inputs` describe the documents of `packed` as one stream without a mask.
        """
        Q_c, positions = inputs.Q_c, inputs.query_positions
        query_share = 1.0
        if positions is not None and packed is None:
            query_share = Q_c.shape[2] / inputs.K_c.shape[2]
        name, reason = choose_backend(
            requested, Q_c.device, Q_c.dtype, Q_c.shape[-1], needs_probs=output_attentions, query_share=query_share
        )
        if not torch.compiler.is_compiling():
            self.last_backend = name, reason
        backend = BACKENDS[name]
        drop_others = positions is not None and (packed is not None or not backend.takes_query_positions)
        if drop_others:
            inputs = among_all_positions(inputs)
        if packed is None:
            context, probs = backend.attend(inputs)
        else:
            context, probs = packed.attend(backend, inputs), None
        context = context.transpose(1, 2)
        if drop_others:
            context = context.gather(1, positions[:, :, None, None].expand(-1, -1, *context.shape[2:]))
        if not output_attentions:
            probs = None
        return context.flatten(2), probs


def among_all_positions(inputs: AttentionInputs) -> AttentionInputs:
    """Return inputs with a query at every position: zeros, and True in the mask, where there was none."""
    Q_c, mask, positions = inputs.Q_c, inputs.mask, inputs.query_positions
    B, H, _, d = Q_c.shape
    N = inputs.K_c.shape[2]
    index = positions[:, None, :, None]
    full = Q_c.new_zeros(B, H, N, d).scatter(2, index.expand(-1, H, -1, d), Q_c)
    if mask is not None and mask.shape[-2] > 1:
        rows = mask.new_ones(B, mask.shape[1], N, N)
        mask = rows.scatter(2, index.expand(-1, mask.shape[1], -1, N), mask.expand(B, -1, -1, -1))
    return inputs._replace(Q_c=full, mask=mask, query_positions=None)

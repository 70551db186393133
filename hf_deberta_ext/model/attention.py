# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DisentangledSelfAttention`: projections, named as in deberta-v2, around the backend that serves a call."""

import math
from collections.abc import Callable

import torch
from torch import nn

from .attention_eager import disentangled_attention_eager
from .unpadding import PackedSequences

__all__ = ["BACKENDS", "DisentangledSelfAttention", "backend_unavailable", "choose_backend"]

BACKENDS = ("eager", "sdpa", "blocked", "flex", "triton")
# Backends that take queries at chosen positions; the others compute all positions and drop what was not asked for.
TAKE_QUERY_POSITIONS = ("eager", "sdpa")
# Where fewer queries than this part of the keys are given, dropping costs more than the gathers of "eager".
FEW_QUERIES = 0.3


def backend_function(name: str) -> Callable[..., torch.Tensor]:
    """The function of a backend; all take the arguments of `disentangled_attention_eager` and return its first result."""
    if name == "eager":
        return lambda *tensors, reach=None, **options: disentangled_attention_eager(*tensors, **options)[0]
    if name == "sdpa":
        from .attention_sdpa import disentangled_attention_sdpa

        return lambda *tensors, reach=None, **options: disentangled_attention_sdpa(*tensors, **options)
    if name == "blocked":
        from .attention_blocked import disentangled_attention_blocked

        return disentangled_attention_blocked
    if name == "flex":
        from .attention_flex import disentangled_attention_flex

        return disentangled_attention_flex
    from .attention_triton import disentangled_attention_triton

    return disentangled_attention_triton


def backend_unavailable(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    needs_probs: bool = False,
    needs_grad: bool = False,
    dropout_p: float = 0.0,
) -> str | None:
    """Why a backend cannot serve a call, or None if it can."""
    if needs_probs and name != "eager":
        return "it does not return attention probabilities"
    if name == "blocked" and torch.compiler.is_compiling():
        return "torch.compile cannot trace it"
    if name == "flex":
        from .attention_flex import flex_unavailable

        return flex_unavailable(device, head_size, dtype, needs_grad, dropout_p)
    if name == "triton":
        from .attention_triton import triton_unavailable

        return triton_unavailable(device, head_size, dtype)
    return None


def choose_backend(requested: str | None, *, query_share: float = 1.0, what: str = "this", **call) -> tuple[str, str]:
    """The backend for a call and why.

    Args:
        requested (`str`, *optional*): one of `BACKENDS`; None: the best for this call, which never fails.
        query_share (`float`): queries / keys where queries stand at chosen positions.
        what (`str`): what is to be served, in the words of an error.
        call: arguments of `backend_unavailable`.

    Raises:
        ValueError: the backend that was asked for by name does not exist or cannot serve the call.
    """
    if requested not in (None, "auto"):
        if requested not in BACKENDS:
            raise ValueError(
                f"attn_implementation = {requested!r} is not one of {', '.join(map(repr, BACKENDS))}; without it the best "
                "one is chosen for each call"
            )
        reason = backend_unavailable(requested, **call)
        if reason is None:
            return requested, "asked for"
        others = [name for name in BACKENDS if name != requested and backend_unavailable(name, **call) is None]
        raise ValueError(
            f"attn_implementation = {requested!r} cannot serve {what}: {reason}; {', '.join(map(repr, others))} can, and "
            "without attn_implementation the best one is chosen for each call"
        )
    if call.get("needs_probs"):
        return "eager", "attention probabilities were asked for"
    device, compiling = call["device"], torch.compiler.is_compiling()
    # Not in torch 2.6.
    if compiling and getattr(torch.compiler, "is_exporting", bool)():
        return "eager", "exported: these operations go into any format"
    if not compiling and (torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()):
        return "eager", "traced or transformed"
    if device.type == "meta":
        return "eager", "nothing is computed"
    if query_share < FEW_QUERIES:
        return "eager", "few queries"
    if device.type == "cuda" and backend_unavailable("triton", **call) is None:
        return "triton", "best on CUDA"
    if compiling:
        return "sdpa", "best under torch.compile on this device"
    if device.type in ("cpu", "cuda"):
        return "blocked", f"best on {device.type}"
    return "sdpa", f"nothing was measured on {device.type}"


class DisentangledSelfAttention(nn.Module):
    """Multi-head disentangled self-attention (DeBERTa section 3.1), without the output projection.

    `last_backend` says which backend served the last call, and why.

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
        self.projected_positions = None

    def __getstate__(self):
        return super().__getstate__() | {"projected_positions": None}

    def train(self, mode: bool = True):
        self.projected_positions = None
        return super().train(mode)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """[..., N, H·d] -> [..., H, N, d]; of a tensor-parallel process, the heads that it has."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(-2, -3)

    def position_projections(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The modules that make K_r and Q_r; None where no term needs it."""
        key = query = None
        if "c2p" in self.terms or "p2p" in self.terms:
            key = self.key_proj if self.share_att_key else self.pos_key_proj
        if "p2c" in self.terms or "p2p" in self.terms:
            query = self.query_proj if self.share_att_key else self.pos_query_proj
        return key, query

    def project_positions(self, rel_embeddings: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """K_r and Q_r, [H, R, d] each, from the relative table [R, H·d]; None where no term needs it.

        At inference on CPU they are kept for as long as the same table comes, no weight of the modules has a new version,
        and the modules give the same answer to a probe: that notices what a version does not tell, such as adapters that are
        merged through `.data` or switched off.
        """
        if not self.terms:
            return None, None
        modules = self.position_projections()
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if traced or torch.is_grad_enabled() or self.pos_dropout.training or rel_embeddings.device.type != "cpu":
            P = self.pos_dropout(rel_embeddings)
            return tuple(module and self.split_heads(module(P)) for module in modules)
        probe = torch.arange(rel_embeddings.shape[1]).cos().to(rel_embeddings.dtype)[None]
        answers = [module(probe) for module in modules if module is not None]
        weights = [weight for module in modules if module is not None for weight in module.parameters()]
        versions = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
        kept = self.projected_positions
        if kept and kept[0] is rel_embeddings and kept[1] == versions and all(map(_same, answers, kept[2])):
            return kept[3]
        projected = tuple(module and self.split_heads(module(rel_embeddings)) for module in modules)
        self.projected_positions = rel_embeddings, versions, answers, projected
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

        Returns:
            context [B, Q, hidden] and probabilities [B, H, Q, N] or None.

        Raises:
            ValueError: `config._attn_implementation` names a backend that cannot serve this call.
        """
        Q_c = self.split_heads(self.query_proj(hidden_states if query_states is None else query_states))
        K_c = self.split_heads(self.key_proj(hidden_states))
        V_c = self.split_heads(self.value_proj(hidden_states))
        K_r, Q_r = self.project_positions(rel_embeddings)
        N = K_c.shape[2]
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        name, why = choose_backend(
            getattr(self.config, "_attn_implementation", None),
            query_share=1.0 if query_positions is None or packed is not None else Q_c.shape[2] / N,
            device=Q_c.device,
            dtype=Q_c.dtype,
            head_size=self.head_size,
            needs_probs=output_attentions,
            needs_grad=torch.is_grad_enabled() and Q_c.requires_grad,
            dropout_p=dropout_p,
        )
        if not torch.compiler.is_compiling():
            self.last_backend = name, why
        options = dict(K_r=K_r, Q_r=Q_r, delta=delta, terms=self.terms, scale=self.scale, dropout_p=dropout_p)
        if output_attentions:
            context, probs = disentangled_attention_eager(
                Q_c, K_c, V_c, **options, mask=attention_mask, query_positions=query_positions
            )
            return context.transpose(1, 2).flatten(2), probs

        chosen = None
        if query_positions is not None and (packed is not None or name not in TAKE_QUERY_POSITIONS):
            chosen, query_positions = query_positions, None
            Q_c, attention_mask = _spread(Q_c, attention_mask, chosen, N)
        attention = backend_function(name)
        options.update(reach=reach)
        if packed is None:
            if query_positions is not None:
                options.update(query_positions=query_positions)
            context = attention(Q_c, K_c, V_c, mask=attention_mask, **options)
        elif name == "triton":
            context = attention(Q_c, K_c, V_c, boundaries=packed.boundaries, **options)
        else:
            context = packed.attend(lambda *tensors, mask: attention(*tensors, mask=mask, **options), Q_c, K_c, V_c)
        context = context.transpose(1, 2)
        if chosen is not None:
            context = context.gather(1, chosen[:, :, None, None].expand(-1, -1, *context.shape[2:]))
        return context.flatten(2), None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _spread(Q_c: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, N: int):
    """Queries [B, H, Q, d] and their rows of the mask at their positions among all N; zeros and open rows elsewhere."""
    B, H, _, d = Q_c.shape
    index = positions[:, None, :, None]
    full = Q_c.new_zeros(B, H, N, d).scatter(2, index.expand(-1, H, -1, d), Q_c)
    if mask is not None and mask.shape[-2] > 1:
        rows = mask.new_ones(B, mask.shape[1], N, N)
        mask = rows.scatter(2, index.expand(-1, mask.shape[1], -1, N), mask.expand(B, -1, -1, -1))
    return full, mask

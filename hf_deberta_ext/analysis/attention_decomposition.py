# SPDX-License-Identifier: Apache-2.0
"""Decomposition of the attention of one layer for one text into content and position terms of the logits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..checkpoints.loading import in_eval_mode
from ..model.attention_deberta_ext import DisentangledSelfAttention
from ..model.modeling_deberta_ext import DebertaExtModel

__all__ = ["AttentionParts", "PositionProfile", "attention_parts", "position_profile"]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionParts:
    """The summands of a layer's attention logits, [H, N, N] each (queries are rows), on the CPU.

    Attributes:
        layer (`int`): counted from 0.
        terms (`tuple[str, ...]`): the position terms that the model has, of c2p, p2c, p2p.
        c2c (`torch.Tensor`): Q_c[i]·K_c[j] / sqrt(s·d), s = 1 + number of position terms.
        c2p (`torch.Tensor`, *optional*): Q_c[i]·K_r[delta(i, j)] / sqrt(s·d); None if the model lacks the term.
        p2c (`torch.Tensor`, *optional*): K_c[j]·Q_r[delta(i, j)] / sqrt(s·d).
        p2p (`torch.Tensor`, *optional*): Q_r[delta(i, j)]·K_r[delta(j, i)] / sqrt(s·d), in no released model.
        probabilities (`torch.Tensor`): softmax of the sum, as `output_attentions` returns it.
    """

    layer: int
    terms: tuple[str, ...]
    c2c: torch.Tensor
    c2p: torch.Tensor | None = None
    p2c: torch.Tensor | None = None
    p2p: torch.Tensor | None = None
    probabilities: torch.Tensor

    @property
    def logits(self) -> torch.Tensor:
        """Sum of the parts, [H, N, N]."""
        return sum((getattr(self, name) for name in self.terms), start=self.c2c)

    def of_head(self, head: int | None = None) -> dict[str, torch.Tensor]:
        """Return the probabilities and the parts that exist, by name, [N, N] each: of one head, or (None) the mean of all.

        The mean of the probabilities is not the softmax of the mean logits.

        Raises:
            ValueError: there is no such head.
        """
        H = len(self.c2c)
        if head is not None and not 0 <= head < H:
            raise ValueError(f"there is no head {head}: layer {self.layer} has heads 0 to {H - 1}; None is their mean")
        maps = {}
        for name in ("probabilities", "c2c", *self.terms):
            values = getattr(self, name)
            maps[name] = values.mean(0) if head is None else values[head]
        return maps


@dataclass(frozen=True, eq=False, kw_only=True)
class PositionProfile:
    """Position terms of the logits of each head, averaged over tokens, by the relative distance r = i - j, on the CPU.

    The softmax depends only on differences along r, not on a constant added to all of them.

    Attributes:
        layer (`int`): counted from 0.
        distances (`torch.Tensor`): r = -reach ... reach, [2·reach + 1]; positive if the key precedes the query.
        c2p (`torch.Tensor`, *optional*): mean over i of Q_c[i]·K_r[delta(r)] / sqrt(s·d), [H, 2·reach + 1]; None if the
            model lacks the term.
        p2c (`torch.Tensor`, *optional*): mean over j of K_c[j]·Q_r[delta(r)] / sqrt(s·d), [H, 2·reach + 1].
        p2p (`torch.Tensor`, *optional*): Q_r[delta(r)]·K_r[delta(-r)] / sqrt(s·d), [H, 2·reach + 1].
        total (`torch.Tensor`): their sum.
    """

    layer: int
    distances: torch.Tensor
    c2p: torch.Tensor | None = None
    p2c: torch.Tensor | None = None
    p2p: torch.Tensor | None = None
    total: torch.Tensor


@torch.no_grad()
def attention_parts(
    model: torch.nn.Module, inputs: torch.Tensor | Mapping[str, torch.Tensor], *, layer: int = -1
) -> AttentionParts:
    """Decompose the attention of one layer into its terms (DeBERTa Eq. (4), as `disentangled_attention_eager` computes it).

    The model's own projections are used, adapters included. Of a masked language model, the encoder's pass through the
    layer is decomposed; the passes of the Enhanced Mask Decoder, whose queries know absolute positions, are not.

    Args:
        model: one of this package, with any head, also inside a wrapper such as peft's. Of a joint model, the discriminator
            is used; pass `model.generator` for the generator. It runs in eval mode and is left as it was.
        inputs (`torch.LongTensor` or `dict`): input_ids [1, N], or the output of a tokenizer for one text: input_ids,
            attention_mask [1, N] and token_type_ids. Padding at either end is removed.
        layer (`int`): as an index of a list; -1 is the last.
    Returns:
        `AttentionParts`, in float32 (in float64 for a float64 model).
    Raises:
        TypeError: the model is not one of this package, or contains several encoders.
        ValueError: no such layer, inputs of more or less than one text, or more tokens than absolute positions.
    """
    x = _project(_encoder_of(model), inputs, layer)
    logits = {"c2c": x.Q_c @ x.K_c.transpose(-1, -2)}  # [H, N, N]
    if x.terms:
        positions = torch.arange(x.Q_c.shape[1])
        offset = positions[:, None] - positions + len(x.delta) // 2
        row = x.delta[offset].expand_as(logits["c2c"])
    if "c2p" in x.terms:
        logits["c2p"] = (x.Q_c @ x.K_r.transpose(-1, -2)).gather(-1, row)
    if "p2c" in x.terms:
        logits["p2c"] = (x.K_c @ x.Q_r.transpose(-1, -2)).gather(-1, row.transpose(-1, -2)).transpose(-1, -2)
    if "p2p" in x.terms:
        logits["p2p"] = (x.Q_r[:, x.delta] * x.K_r[:, x.delta.flip(0)]).sum(-1)[:, offset]
    return AttentionParts(layer=x.layer, terms=x.terms, probabilities=sum(logits.values()).softmax(-1), **logits)


@torch.no_grad()
def position_profile(
    model: torch.nn.Module,
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    *,
    layer: int = -1,
    reach: int | None = None,
) -> PositionProfile:
    """Average the position terms of the logits over a text's tokens, [CLS] and [SEP] included, for each head.

    Every token is a query, and a key, at every distance, so that distances beyond the text exist as well: the profile
    depends on the text's content, but not on its length.

    Args:
        model, inputs, layer: as in `attention_parts`.
        reach (`int`, *optional*): the largest distance; None is the largest one with its own embedding.
    Raises:
        TypeError, ValueError: as `attention_parts`; a model without relative positions; a reach below 1.
    """
    encoder = _encoder_of(model)
    if not encoder.config.relative_table_size or not encoder.config.pos_att_type:
        raise ValueError("the model has no relative positions (relative_attention, pos_att_type), so it has no profile")
    if reach is None:
        reach = encoder.config.relative_distance - 1
    if reach < 1:
        raise ValueError(f"reach = {reach} must be at least 1")
    x = _project(encoder, inputs, layer)
    # delta(r) for r = -reach ... reach.
    rows = encoder.encoder.relative_position(reach + 1).cpu()
    means = {}
    if "c2p" in x.terms:
        means["c2p"] = (x.K_r @ x.Q_c.mean(1)[:, :, None]).squeeze(-1)[:, rows]
    if "p2c" in x.terms:
        means["p2c"] = (x.Q_r @ x.K_c.mean(1)[:, :, None]).squeeze(-1)[:, rows]
    if "p2p" in x.terms:
        means["p2p"] = (x.Q_r[:, rows] * x.K_r[:, rows.flip(0)]).sum(-1)
    distances = torch.arange(-reach, reach + 1)
    return PositionProfile(layer=x.layer, distances=distances, total=sum(means.values()), **means)


@dataclass(eq=False)
class _Projections:
    """Scaled queries, and keys, of a text in one layer, on the CPU: Q_c, K_c [H, N, d]; if the model has the terms for them
    Q_r, K_r [H, R, d] and delta of `RelativePosition`."""

    layer: int
    terms: tuple[str, ...]
    Q_c: torch.Tensor = None
    K_c: torch.Tensor = None
    Q_r: torch.Tensor = None
    K_r: torch.Tensor = None
    delta: torch.Tensor = None


def _encoder_of(model: torch.nn.Module) -> DebertaExtModel:
    encoders = []
    model = getattr(model, "discriminator", model)
    if isinstance(model, torch.nn.Module):
        encoders = _instances(model, DebertaExtModel)
    if len(encoders) != 1:
        raise TypeError(
            f"{type(model).__name__} must contain one {DebertaExtModel.__name__}, got {len(encoders)}; load the checkpoint "
            "with a class of hf_deberta_ext"
        )
    return encoders[0]


def _instances(module: torch.nn.Module, kind: type) -> list:
    """Compare names of classes, because remote code brings a second copy of the class."""
    return [child for child in module.modules() if kind.__name__ in [base.__name__ for base in type(child).__mro__]]


def _one_text(inputs: torch.Tensor | Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Return input_ids and token_type_ids, [1, N] without padding."""
    if not isinstance(inputs, Mapping):
        inputs = {"input_ids": inputs}
    if "input_ids" not in inputs or not {*inputs} <= {*INPUTS}:
        raise ValueError(f"inputs must have input_ids and may have {', '.join(INPUTS[1:])}; got {', '.join(inputs)}")
    inputs = {name: torch.as_tensor(values, device=device) for name, values in inputs.items()}
    shape = inputs["input_ids"].shape
    if len(shape) != 2 or shape[0] != 1 or shape[1] == 0:
        raise ValueError(f"input_ids must have shape [1, N], the tokens of one text, got {list(shape)}")
    mask = inputs.pop("attention_mask", None)
    if mask is None:
        return inputs
    real = mask.flatten().nonzero()[:, 0]
    if mask.shape != shape or not len(real) or real[-1] - real[0] >= len(real):
        raise ValueError(f"attention_mask must be [1, {shape[1]}] with padding only at the ends, got {mask.tolist()}")
    return {name: values[:, real[0] : real[-1] + 1] for name, values in inputs.items()}


def _project(encoder: DebertaExtModel, inputs, layer: int) -> _Projections:
    """Run the encoder, and project the input of the attention of one layer."""
    L = encoder.config.num_hidden_layers
    if not -L <= layer < L:
        raise ValueError(f"there is no layer {layer}: the model has layers 0 to {L - 1} (-1 is the last)")
    layer %= L
    inputs = _one_text(inputs, encoder.device)
    calls: list[tuple] = []
    hooks = []
    for attention in _instances(encoder, DisentangledSelfAttention):
        hooks.append(attention.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True))
    try:
        with in_eval_mode(encoder):
            encoder(**inputs, may_pack=False)
            # Layers that share their attention are calls of one module.
            attention, (hidden_states, _, rel_embeddings, *_), options = calls[layer]
            K_r, Q_r = attention.project_positions(rel_embeddings)
            Q_c = attention.split_heads(attention.query_proj(hidden_states))[0]
            K_c = attention.split_heads(attention.key_proj(hidden_states))[0]
    finally:
        for hook in hooks:
            hook.remove()
    projections = _Projections(layer, attention.terms)
    wide = torch.promote_types(Q_c.dtype, torch.float32)
    projections.Q_c = Q_c.to("cpu", wide) * attention.scale
    projections.K_c = K_c.to("cpu", wide)
    if Q_r is not None:
        projections.Q_r = Q_r.to("cpu", wide) * attention.scale
    if K_r is not None:
        projections.K_r = K_r.to("cpu", wide)
    if attention.terms:
        projections.delta = options["delta"].cpu()
    return projections

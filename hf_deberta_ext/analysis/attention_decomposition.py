# SPDX-License-Identifier: Apache-2.0
"""Decomposition of the attention of one layer for one text into content and position terms of the logits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..model.attention import DisentangledSelfAttention
from ..model.base_model import DebertaExtModel
from ..model.pretrained_model import in_eval_mode

__all__ = ["AttentionParts", "PositionProfile", "attention_parts", "position_profile"]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, eq=False)
class AttentionParts:
    """The summands of a layer's attention logits, [H, N, N] each (queries are rows), on the CPU.

    Attributes:
        layer (`int`): counted from 0.
        terms (`tuple[str, ...]`): the position terms that the model has, of c2p, p2c, p2p.
        c2c (`torch.Tensor`): Q_c[i]·K_c[j] / sqrt(s·d), s = 1 + number of position terms.
        c2p (`torch.Tensor`, *optional*): Q_c[i]·K_r[delta(i, j)] / sqrt(s·d); None where the model lacks the term.
        p2c (`torch.Tensor`, *optional*): K_c[j]·Q_r[delta(i, j)] / sqrt(s·d).
        p2p (`torch.Tensor`, *optional*): Q_r[delta(i, j)]·K_r[delta(j, i)] / sqrt(s·d), in no released model.
        probabilities (`torch.Tensor`): softmax of the sum; as `output_attentions` gives them.
    """

    layer: int
    terms: tuple[str, ...]
    c2c: torch.Tensor
    c2p: torch.Tensor | None
    p2c: torch.Tensor | None
    p2p: torch.Tensor | None
    probabilities: torch.Tensor

    @property
    def logits(self) -> torch.Tensor:
        """[H, N, N], the sum of the parts."""
        return sum(getattr(self, name) for name in ("c2c", *self.terms))

    def of_head(self, head: int | None = None) -> dict[str, torch.Tensor]:
        """The probabilities and the parts that there are, by name, [N, N] each: of one head, or (None) the mean of all.

        The mean of the probabilities is not the softmax of the mean logits.

        Raises:
            ValueError: there is no such head.
        """
        maps = {name: getattr(self, name) for name in ("probabilities", "c2c", *self.terms)}
        if head is None:
            return {name: values.mean(0) for name, values in maps.items()}
        H = len(self.c2c)
        if not 0 <= head < H:
            raise ValueError(f"there is no head {head}: layer {self.layer} has heads 0 to {H - 1}; None is their mean")
        return {name: values[head] for name, values in maps.items()}


@dataclass(frozen=True, eq=False)
class PositionProfile:
    """Position terms of the logits of each head, averaged over tokens, by the relative distance r = i - j, on the CPU.

    The softmax sees differences along r alone, not a constant on all of them.

    Attributes:
        layer (`int`): counted from 0.
        distances (`torch.Tensor`): r = -reach ... reach, [2·reach + 1]; positive where the key stands before the query.
        c2p (`torch.Tensor`, *optional*): mean over i of Q_c[i]·K_r[delta(r)] / sqrt(s·d), [H, 2·reach + 1]; None where the
            model lacks the term.
        p2c (`torch.Tensor`, *optional*): mean over j of K_c[j]·Q_r[delta(r)] / sqrt(s·d), [H, 2·reach + 1].
        p2p (`torch.Tensor`, *optional*): Q_r[delta(r)]·K_r[delta(-r)] / sqrt(s·d), [H, 2·reach + 1].
        total (`torch.Tensor`): their sum.
    """

    layer: int
    distances: torch.Tensor
    c2p: torch.Tensor | None
    p2c: torch.Tensor | None
    p2p: torch.Tensor | None
    total: torch.Tensor


@torch.no_grad()
def attention_parts(
    model: torch.nn.Module, inputs: torch.Tensor | Mapping[str, torch.Tensor], *, layer: int = -1
) -> AttentionParts:
    """Decompose the attention of one layer into its terms (DeBERTa Eq. (4), as `disentangled_attention_eager` computes it).

    The model's own projections are used, adapters included. Of a masked language model it is the encoder's pass through
    the layer; the Enhanced Mask Decoder's passes, whose queries know absolute positions, are not shown.

    Args:
        model: one of ours, with any head, also inside of a wrapper such as peft's. Of a joint model it is the discriminator;
            give `model.generator` for the other. It runs in eval mode, and is left as it was.
        inputs (`torch.LongTensor` or `dict`): input_ids [1, N], or what a tokenizer returns for one text: input_ids,
            attention_mask [1, N] and token_type_ids. Padding at either end is left out.
        layer (`int`): as an index of a list; -1 is the last.
    Returns:
        `AttentionParts`, in float32 (in float64 of a float64 model).
    Raises:
        TypeError: the model is none of ours, or holds several encoders.
        ValueError: no such layer, inputs that are not those of one text, or more tokens than absolute positions.
    """
    encoder = _encoder_of(model)
    layer, names, (Q_c, K_c, Q_r, K_r), delta = _project(encoder, _one_text(encoder, inputs), layer)
    c2c = Q_c @ K_c.transpose(-1, -2)  # [H, N, N]
    terms = dict(c2c=c2c, c2p=None, p2c=None, p2p=None)
    if names:
        positions = torch.arange(c2c.shape[-1], device=c2c.device)
        offset = positions[:, None] - positions + len(delta) // 2
        row = delta[offset].expand_as(c2c)
    if "c2p" in names:
        terms["c2p"] = (Q_c @ K_r.transpose(-1, -2)).gather(-1, row)
    if "p2c" in names:
        terms["p2c"] = (K_c @ Q_r.transpose(-1, -2)).gather(-1, row.transpose(-1, -2)).transpose(-1, -2)
    if "p2p" in names:
        terms["p2p"] = (Q_r[:, delta] * K_r[:, delta.flip(0)]).sum(-1)[:, offset]
    terms = {name: values if values is None else values.cpu() for name, values in terms.items()}
    probabilities = sum(values for values in terms.values() if values is not None).softmax(-1)
    return AttentionParts(layer=layer, terms=names, probabilities=probabilities, **terms)


@torch.no_grad()
def position_profile(
    model: torch.nn.Module,
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    *,
    layer: int = -1,
    reach: int | None = None,
) -> PositionProfile:
    """Average the position terms of the logits over a text's tokens, [CLS] and [SEP] included, for each head.

    Every token is a query, and a key, at every distance, so that distances beyond the text exist as well: the content
    takes part, the text's length does not.

    Args:
        model, inputs, layer: as in `attention_parts`.
        reach (`int`, *optional*): the largest distance; None is the largest that the model tells from the next.
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
    layer, names, (Q_c, K_c, Q_r, K_r), _ = _project(encoder, _one_text(encoder, inputs), layer)
    # delta(r) for r = -reach ... reach.
    rows = encoder.encoder.relative_position(reach + 1)
    means = dict(c2p=None, p2c=None, p2p=None)
    if "c2p" in names:
        means["c2p"] = (K_r @ Q_c.mean(1)[:, :, None]).squeeze(-1)[:, rows]
    if "p2c" in names:
        means["p2c"] = (Q_r @ K_c.mean(1)[:, :, None]).squeeze(-1)[:, rows]
    if "p2p" in names:
        means["p2p"] = (Q_r[:, rows] * K_r[:, rows.flip(0)]).sum(-1)
    means = {name: values if values is None else values.cpu() for name, values in means.items()}
    total = sum(values for values in means.values() if values is not None)
    return PositionProfile(layer=layer, distances=torch.arange(-reach, reach + 1), total=total, **means)


def _encoder_of(model: torch.nn.Module) -> DebertaExtModel:
    model = getattr(model, "discriminator", model)
    encoders = _instances(model, DebertaExtModel) if isinstance(model, torch.nn.Module) else []
    if len(encoders) == 1:
        return encoders[0]
    if encoders:
        raise TypeError(f"{type(model).__name__} holds {len(encoders)} encoders; give the one that is to be explained")
    raise TypeError(
        f"{type(model).__name__} holds no {DebertaExtModel.__name__}; load the checkpoint with a class of hf_deberta_ext"
    )


def _instances(module: torch.nn.Module, kind: type) -> list:
    """By the class's name, because remote code brings a second copy of it."""
    return [child for child in module.modules() if kind.__name__ in (base.__name__ for base in type(child).__mro__)]


def _one_text(encoder: DebertaExtModel, inputs) -> dict[str, torch.Tensor]:
    """input_ids and token_type_ids, [1, N] without padding, on the encoder's device."""
    inputs = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    unknown = [name for name in inputs if name not in INPUTS]
    if unknown or "input_ids" not in inputs:
        raise ValueError(f"inputs must have input_ids and may have {', '.join(INPUTS[1:])}; got {', '.join(inputs)}")
    for name, values in inputs.items():
        shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        if not isinstance(values, torch.Tensor) or values.dim() != 2 or len(values) != 1 or not values.numel():
            raise ValueError(f"{name} must be a tensor [1, N], the tokens of one text, got {shape}")
    device = encoder.device
    inputs = {name: values.to(device) for name, values in inputs.items()}
    mask = inputs.pop("attention_mask", None)
    if mask is not None:
        real = (mask[0] != 0).nonzero().squeeze(1)
        if mask.shape != inputs["input_ids"].shape or not len(real) or real[-1] - real[0] >= len(real):
            raise ValueError(
                f"attention_mask must be [1, {inputs['input_ids'].shape[1]}] with padding at the ends alone, got "
                f"{mask.tolist()}"
            )
        inputs = {name: values[:, real[0] : real[-1] + 1] for name, values in inputs.items()}
    return inputs


def _project(
    encoder: DebertaExtModel, inputs: dict[str, torch.Tensor], layer: int
) -> tuple[int, tuple[str, ...], list[torch.Tensor | None], torch.Tensor | None]:
    """Runs the encoder, and projects what reached the attention of one layer.

    Returns:
        the layer, counted from 0; the names of its position terms; scaled queries, and keys, of the text: Q_c, K_c [H, N, d]
        and Q_r, K_r [H, R, d] or None; and delta of `RelativePosition`.
    """
    L = encoder.config.num_hidden_layers
    if not -L <= layer < L:
        raise ValueError(f"there is no layer {layer}: the model has layers 0 to {L - 1} (-1 is the last)")
    layer %= L
    calls: list[tuple] = []
    modules = _instances(encoder, DisentangledSelfAttention)
    hooks = [
        attention.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True) for attention in modules
    ]
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
    wide = torch.promote_types(Q_c.dtype, torch.float32)
    # Both factors of every summand but p2p's are a query and a key, one of which is scaled.
    scaled = ((Q_c, attention.scale), (K_c, 1), (Q_r, attention.scale), (K_r, 1))
    projections = [None if x is None else x.to(wide) * scale for x, scale in scaled]
    return layer, attention.terms, projections, options.get("delta")

# SPDX-License-Identifier: Apache-2.0
"""Decompose the attention logits of one layer for one text into content and position terms."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..checkpoints.loading import in_eval_mode
from ..model.attention_deberta_ext import AttentionInputs, DisentangledSelfAttention
from ..model.modeling_deberta_ext import DebertaExtModel

__all__ = ["AttentionParts", "PositionProfile", "attention_parts", "position_profile"]


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionParts:
    """Terms of the attention logits of a layer in the notation of DeBERTa Eq. (4), on the CPU.

    Tensors are [H, N, N] for H heads and N tokens, with a row for each query i and a column for each key j. delta(i, j) is
    the row of the relative position table for i and j.

    Attributes:
        layer (`int`): index of the layer, counted from 0.
        terms (`tuple[str, ...]`): names of the model's position terms, a subset of c2p, p2c, p2p.
        c2c (`torch.Tensor`): Q_c[i]·K_c[j] / sqrt(s·d), where s = 1 + number of position terms, d = size of a head.
        c2p (`torch.Tensor`, *optional*): Q_c[i]·K_r[delta(i, j)] / sqrt(s·d); None if the model lacks the term.
        p2c (`torch.Tensor`, *optional*): K_c[j]·Q_r[delta(i, j)] / sqrt(s·d).
        p2p (`torch.Tensor`, *optional*): Q_r[delta(i, j)]·K_r[delta(j, i)] / sqrt(s·d); no released model uses this term.
        probabilities (`torch.Tensor`): softmax of the sum of all terms, equal to the model's `attentions`.
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
        """Sum of the terms, [H, N, N]."""
        return sum((getattr(self, name) for name in self.terms), start=self.c2c)

    def of_head(self, head: int | None = None) -> dict[str, torch.Tensor]:
        """Return the probabilities and terms of one head, or their means over all heads (None), as {name: tensor [N, N]}.

        The mean of the probabilities is not the softmax of the mean logits.

        Raises:
            ValueError: the head does not exist.
        """
        H = len(self.c2c)
        if head is not None and not 0 <= head < H:
            raise ValueError(f"head must be in 0 to {H - 1} in layer {self.layer}, or None for the mean, got {head}")
        heads = slice(None)
        if head is not None:
            heads = slice(head, head + 1)
        return {name: getattr(self, name)[heads].mean(0) for name in ("probabilities", "c2c", *self.terms)}


@dataclass(frozen=True, eq=False, kw_only=True)
class PositionProfile:
    """Position terms of the attention logits for each head and distance r = i - j of query i and key j, on the CPU.

    Values are averaged over tokens. Only differences between distances matter: the softmax does not change if a constant is
    added to all values.

    Attributes:
        layer (`int`): index of the layer, counted from 0.
        distances (`torch.Tensor`): r = -D ... D for D = max_distance, [2·D + 1]; positive if the key precedes the query.
        c2p (`torch.Tensor`, *optional*): mean over i of Q_c[i]·K_r[delta(r)] / sqrt(s·d), [H, 2·D + 1]; None if the model
            lacks the term.
        p2c (`torch.Tensor`, *optional*): mean over j of K_c[j]·Q_r[delta(r)] / sqrt(s·d), [H, 2·D + 1].
        p2p (`torch.Tensor`, *optional*): Q_r[delta(r)]·K_r[delta(-r)] / sqrt(s·d), [H, 2·D + 1].
        total (`torch.Tensor`): sum of the terms, [H, 2·D + 1].
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
    """Decompose the attention logits of one layer into the terms of DeBERTa Eq. (4).

    The projections of the model are used, including adapters. In a masked language model, the Enhanced Mask Decoder runs the
    last layer again with queries from absolute positions; these additional passes are not decomposed.

    Args:
        model: model of this package with any head, also inside a wrapper such as peft's. For a joint model, the
            discriminator is used; pass `model.generator` for the generator. Runs in eval mode; then its mode is restored.
        inputs (`torch.LongTensor` or `dict`): input_ids [1, N], or the output of a tokenizer for one text: input_ids,
            attention_mask [1, N] and token_type_ids. Padding at either end is removed.
        layer (`int`, defaults to -1): index of the layer; negative indices count from the end.
    Returns:
        `AttentionParts`, in float32 (in float64 for a float64 model).
    Raises:
        TypeError: the model does not belong to this package, or contains several encoders.
        ValueError: the layer does not exist, the inputs are not exactly one text, or the text has more tokens than the model
            has absolute positions.
    """
    layer, x = _project(_encoder_of(model), inputs, layer)
    q, k = x.Q_c * x.scale, x.K_c
    logits = {"c2c": (q @ k.mT)[0]}
    for term in x.terms:
        logits[term] = x._replace(terms=(term,)).position_scores(q, k)[0]
    return AttentionParts(layer=layer, terms=x.terms, probabilities=sum(logits.values()).softmax(-1), **logits)


@torch.no_grad()
def position_profile(
    model: torch.nn.Module,
    inputs: torch.Tensor | Mapping[str, torch.Tensor],
    *,
    layer: int = -1,
    max_distance: int | None = None,
) -> PositionProfile:
    """Average the position terms of the logits over the tokens of a text, including [CLS] and [SEP], for each head.

    The terms c2p and p2c combine a token with a relative position, not with a second token. They are therefore computed for
    each token at every distance, even if the text has no other token at this distance. The profile depends on the content of
    the text, but not on its length.

    Args:
        model, inputs, layer: as in `attention_parts`.
        max_distance (`int`, *optional*): largest distance; default: the largest distance that the model does not clamp.
    Raises:
        TypeError, ValueError: as in `attention_parts`; also if the model has no relative positions.
    """
    encoder = _encoder_of(model)
    if not encoder.config.relative_table_size or not encoder.config.pos_att_type:
        raise ValueError("the model must have relative positions (relative_attention, pos_att_type), got none")
    if max_distance is None:
        max_distance = encoder.config.relative_distance - 1
    layer, x = _project(encoder, inputs, layer)
    # delta(r) for r = -max_distance ... max_distance.
    rows = encoder.encoder.relative_position(max_distance + 1).cpu()
    means = {}
    if "c2p" in x.terms:
        means["c2p"] = (x.K_r @ x.Q_c[0].mean(1)[:, :, None]).squeeze(-1)[:, rows] * x.scale
    if "p2c" in x.terms:
        means["p2c"] = (x.Q_r @ x.K_c[0].mean(1)[:, :, None]).squeeze(-1)[:, rows] * x.scale
    if "p2p" in x.terms:
        means["p2p"] = (x.Q_r[:, rows] * x.K_r[:, rows.flip(0)]).sum(-1) * x.scale
    distances = torch.arange(-max_distance, max_distance + 1)
    return PositionProfile(layer=layer, distances=distances, total=sum(means.values()), **means)


def _encoder_of(model: torch.nn.Module) -> DebertaExtModel:
    """Return the only encoder in a model or wrapper; for a joint model, the encoder of the discriminator."""
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
    """Return the submodules of class `kind`, compared by name, because remote code has its own copy of the class."""
    return [child for child in module.modules() if kind.__name__ in [base.__name__ for base in type(child).__mro__]]


def _one_text(inputs: torch.Tensor | Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Remove the padding from the inputs of one text; return input_ids and, if given, token_type_ids, [1, N]."""
    if not isinstance(inputs, Mapping):
        inputs = {"input_ids": inputs}
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


def _project(encoder: DebertaExtModel, inputs, layer: int) -> tuple[int, AttentionInputs]:
    """Run the encoder on a text, and compute the projections of one layer's attention.

    Return the layer's index, counted from 0, and its `AttentionInputs` on the CPU, in at least float32.
    """
    L = encoder.config.num_hidden_layers
    if not -L <= layer < L:
        raise ValueError(f"layer must be in 0 to {L - 1}, or negative to count from the end, got {layer}")
    layer %= L
    inputs = _one_text(inputs, encoder.device)
    calls: list[tuple] = []
    with contextlib.ExitStack() as hooks, in_eval_mode(encoder):
        for module in _instances(encoder, DisentangledSelfAttention):
            hook = module.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True)
            hooks.callback(hook.remove)
        encoder(**inputs, may_pack=False)
        # Take the call and not the module: layers with shared weights call the same module.
        attention, (hidden_states, _, rel_embeddings, *_), options = calls[layer]
        Q_c = attention.split_heads(attention.query_proj(hidden_states))
        tensors = [Q_c, *attention.keys_and_values(hidden_states), *attention.project_positions(rel_embeddings)]
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            tensors[place] = tensor.to("cpu", torch.promote_types(tensor.dtype, torch.float32))
    delta = options.get("delta")
    if delta is not None:
        delta = delta.cpu()
    Q_c, K_c, V_c, K_r, Q_r = tensors
    return layer, AttentionInputs(Q_c, K_c, V_c, attention.scale, K_r, Q_r, delta, attention.terms)

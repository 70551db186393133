# SPDX-License-Identifier: Apache-2.0
"""Span boundary objective (SpanBERT, Joshi et al. 2020, section 3.2): predict a masked span from adjacent tokens."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from ..model.configuration_deberta_ext import DebertaExtConfig

__all__ = ["SpanBoundaryHead", "span_boundaries"]

# Values of SpanBERT's released code: maximum predicted tokens of a span, and size of the position embeddings.
MAX_SPAN_TOKENS, POSITION_SIZE = 20, 200


def span_boundaries(
    labels: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    document_ids: torch.Tensor | None = None,
    max_span_tokens: int = MAX_SPAN_TOKENS,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find, for each token i of a masked span from s to e, the boundaries s - 1 and e + 1, and its position in the span.

    A span is a run of labels other than -100. The first `max_span_tokens` tokens of a span are targets, if both boundaries
    are real tokens of the same document as the span.

    Args:
        labels (`torch.LongTensor`): [B, N]; -100 = not masked.
        attention_mask (`torch.Tensor`, *optional*): [B, N], 1 = real token.
        document_ids (`torch.LongTensor`, *optional*): [B, N], document id of each token.
        max_span_tokens (`int`, default 20): maximum number of targets of a span.

    Returns:
        is_target [B, N] bool; and, for the n targets in row order, three tensors [n]: s - 1 and e + 1 (positions in the
        row), and i - s + 1 (position in the span, from 1).
    """
    B, N = labels.shape
    masked = labels != -100
    places = torch.arange(N, device=labels.device).expand(B, N)
    before = places.masked_fill(masked, -1).cummax(1).values
    after = places.masked_fill(masked, N).flip(1).cummin(1).values.flip(1)
    position = places - before
    is_target = masked & (before >= 0) & (after < N) & (position <= max_span_tokens)
    before, after = before.clamp(min=0), after.clamp(max=N - 1)
    if attention_mask is not None:
        real = attention_mask != 0
        is_target &= real.gather(1, before) & real.gather(1, after)
    if document_ids is not None:
        is_target &= (document_ids.gather(1, before) == document_ids) & (document_ids.gather(1, after) == document_ids)
    return is_target, before[is_target], after[is_target], position[is_target]


class SpanBoundaryHead(nn.Module):
    """Head of the span boundary objective, y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}) (SpanBERT section 3.2).

    h_0 = [x_{s-1}; x_{e+1}; p_{i-s+1}],  h_1 = LayerNorm(GeLU(W_1 h_0)),  y_i = LayerNorm(GeLU(W_2 h_1)).

    The position table p is [max_span_tokens, position_size]. The word embeddings, which decode y, have the size of y.
    """

    def __init__(
        self,
        hidden_size: int,
        embedding_size: int,
        max_span_tokens: int = MAX_SPAN_TOKENS,
        position_size: int = POSITION_SIZE,
        layer_norm_eps: float = 1e-7,
    ):
        super().__init__()
        self.max_span_tokens = max_span_tokens
        self.position_embeddings = nn.Embedding(max_span_tokens, position_size)
        self.dense_1 = nn.Linear(2 * hidden_size + position_size, hidden_size)
        self.LayerNorm_1 = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.dense_2 = nn.Linear(hidden_size, embedding_size)
        self.LayerNorm_2 = nn.LayerNorm(embedding_size, layer_norm_eps)

    def forward(self, x_before: torch.Tensor, x_after: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return y [n, embedding_size] for x_{s-1} and x_{e+1} [n, hidden_size] and i - s + 1 [n], 1 to max_span_tokens."""
        p = self.position_embeddings(position - 1)
        h = self.LayerNorm_1(functional.gelu(self.dense_1(torch.cat([x_before, x_after, p], -1))))
        return self.LayerNorm_2(functional.gelu(self.dense_2(h)))


def add_head(model: nn.Module, config: DebertaExtConfig):
    model.span_boundary = SpanBoundaryHead(config.hidden_size, config.embedding_size, layer_norm_eps=config.layer_norm_eps)


def count_targets(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    is_target, *_ = span_boundaries(batch["labels"], batch.get("attention_mask"), batch.get("document_ids"))
    return is_target.sum()


def predict_spans(
    model: nn.Module, states: torch.Tensor, batch: Mapping[str, torch.Tensor | None]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predict the tokens of masked spans from states [B, N, d]; return logits [n, V], labels [n] and row indices [n]."""
    labels = batch["labels"]
    is_target, before, after, position = span_boundaries(labels, batch["attention_mask"], batch["document_ids"])
    rows = is_target.nonzero()[:, 0]
    y = model.span_boundary(states[rows, before], states[rows, after], position)
    # Call the module instead of reading its weights, because ZeRO only gathers the bias when the module is called.
    return model.lm_predictions.lm_head(y, transformed=True), labels[is_target], rows

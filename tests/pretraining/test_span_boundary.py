# SPDX-License-Identifier: Apache-2.0
"""Test the span boundary objective: boundary tokens, and the output of its head."""

import itertools

import torch
from torch.nn import functional

from hf_deberta_ext.pretraining.span_boundary import SpanBoundaryHead, span_boundaries

NO = -100


def test_span_boundaries_agree_with_the_runs_of_every_short_mask():
    for bits in itertools.product([0, 1], repeat=7):
        labels = torch.tensor([bits]) * 105 - 100
        is_target, before, after, position = span_boundaries(labels)
        expected = []
        for i in range(7):
            if bits[i]:
                s = next((j + 1 for j in range(i, -1, -1) if not bits[j]), 0)
                e = next((j - 1 for j in range(i, 7) if not bits[j]), 6)
                if s > 0 and e < 6:
                    expected.append((i, s - 1, e + 1, i - s + 1))
        targets = is_target[0].nonzero().flatten()
        assert list(zip(targets.tolist(), before.tolist(), after.tolist(), position.tolist(), strict=True)) == expected


def test_padding_and_tokens_of_other_documents_are_no_boundaries_and_tokens_far_into_a_span_no_targets():
    labels = torch.tensor([[NO, 5, NO, 6, NO]])
    is_target, *_ = span_boundaries(labels, attention_mask=torch.tensor([[1, 1, 1, 1, 0]]))
    assert is_target.tolist() == [[False, True, False, False, False]]
    labels = torch.tensor([[NO, 5, NO, NO, 6, NO, 7, NO]])
    is_target, before, after, _ = span_boundaries(labels, document_ids=torch.tensor([[1, 1, 1, 2, 2, 2, 2, 3]]))
    assert is_target[0].nonzero().flatten().tolist() == [1, 4]
    assert (before.tolist(), after.tolist()) == ([0, 3], [2, 5])
    labels = torch.full((1, 30), NO)
    labels[0, 2:27] = 5
    is_target, _, _, position = span_boundaries(labels, max_span_tokens=20)
    assert is_target[0].nonzero().flatten().tolist() == list(range(2, 22))
    assert position.tolist() == list(range(1, 21))


def test_head_is_two_layers_of_linear_gelu_and_layer_norm():
    head = SpanBoundaryHead(hidden_size=4, embedding_size=3, max_span_tokens=5, position_size=2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    left, right = torch.randn(2, 6, 4, generator=generator)
    position = torch.tensor([1, 2, 3, 4, 5, 1])

    def norm(x, layer):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-7).sqrt() * layer.weight + layer.bias

    for i in range(6):
        h = torch.cat([left[i], right[i], head.position_embeddings.weight[position[i] - 1]])
        h = norm(functional.gelu(head.dense_1.weight @ h + head.dense_1.bias), head.LayerNorm_1)
        y = norm(functional.gelu(head.dense_2.weight @ h + head.dense_2.bias), head.LayerNorm_2)
        assert torch.allclose(head(left, right, position)[i], y, atol=1e-5)

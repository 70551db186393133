# SPDX-License-Identifier: Apache-2.0
"""torch.compile without graph breaks and torch.export with dynamic shapes."""

import pytest
import torch

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForSequenceClassification, DebertaExtModel


@pytest.mark.parametrize("head", [DebertaExtModel, DebertaExtForMaskedLM, DebertaExtForSequenceClassification])
def test_compile_has_no_graph_break_and_two_compilations_for_six_lengths(head, tiny_config, shake, batch):
    model = shake(head(tiny_config("v2")))
    # A traced model keeps padding.
    model.set_unpadding(False)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=count)
    for N in (5, 9, 17, 40, 33, 60):
        ids, mask = batch(2, N, [N, 3])
        with torch.no_grad():
            got, expected = compiled(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0]
        assert torch.allclose(got, expected, atol=1e-5)
    assert len(graphs) <= 2


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_export_with_dynamic_batch_and_length_equals_eager(kind, tiny_config, shake, batch):
    model = shake(DebertaExtModel(tiny_config(kind)))
    model.set_unpadding(False)
    ids, mask = batch(2, 20)
    dynamic = {0: torch.export.Dim("B", min=1, max=64), 1: torch.export.Dim("N", min=2, max=512)}
    exported = torch.export.export(
        model, (), dict(input_ids=ids, attention_mask=mask),
        dynamic_shapes=dict(input_ids=dynamic, attention_mask=dynamic), strict=False,
    ).module()  # fmt: skip
    # 150 is beyond the relative table.
    for B, N in ((1, 3), (3, 63), (4, 150)):
        ids, mask = batch(B, N, [N] * (B - 1) + [2])
        with torch.no_grad():
            got = exported(input_ids=ids, attention_mask=mask)["last_hidden_state"]
            assert torch.allclose(got, model(ids, attention_mask=mask)[0], atol=1e-5)

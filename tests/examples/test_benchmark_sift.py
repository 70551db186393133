# SPDX-License-Identifier: Apache-2.0
"""The benchmark of SiFT runs and reports its measurements."""

import pytest
import torch
from scripts import module_of

benchmark = module_of("benchmark_sift")


@pytest.mark.slow
def test_each_side_of_each_model_and_shape_is_measured(capsys):
    ratios = benchmark.main(["--layers", "1", "--shapes", "2x8", "1x16", "--repeats", "1"])
    assert {*ratios} == {
        (model, shape, side) for model in ("deberta-ext", "bert") for shape in ("2x8", "1x16") for side in benchmark.SIDES
    }
    assert all(ratio == 1.0 for (_, _, side), ratio in ratios.items() if side == "plain")
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(ratios) and all(row.count("|") == 7 for row in rows)


def test_a_step_trains():
    model = benchmark.build("bert", 1, 16)
    before = model.classifier.weight.detach().clone()
    benchmark.measure(model, (2, 8), 1)
    assert not torch.equal(model.classifier.weight, before) and not model.bert.embeddings.LayerNorm._forward_pre_hooks

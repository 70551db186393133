# SPDX-License-Identifier: Apache-2.0
"""The benchmark of SiFT runs and reports its measurements."""

import pytest
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

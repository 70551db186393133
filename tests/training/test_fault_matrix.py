# SPDX-License-Identifier: Apache-2.0
"""The short form of the fault matrix, and what it detects; tests/support/fault_matrix.py runs all faults."""

import sys

import fault_matrix
import pytest
import torch
from safetensors.torch import save_file
from scripts import ROOT, start

for package in ("accelerate", "datasets", "matplotlib", "sentencex"):
    pytest.importorskip(package)


def test_a_run_behind_a_fault_is_refused_or_ends_with_the_same_weights():
    process = start(sys.executable, str(ROOT / "tests" / "support" / "fault_matrix.py"), "--short")
    printed, _ = process.communicate(timeout=500)
    assert process.returncode == 0 and " 0 with an unexpected outcome" in printed, printed[-5000:]


@pytest.mark.parametrize(
    ("code", "printed", "value", "outcome"),
    [
        (0, "", 1.0, fault_matrix.SAME),
        (0, "", 2.0, fault_matrix.OTHER),
        (0, "", None, fault_matrix.OTHER),
        (2, "run_mlm.py: error: seed = 2, initially 1", None, fault_matrix.REFUSED),
        (2, "run_mlm.py: error: something else", None, fault_matrix.SILENT),
        (1, "KeyError: seed", None, fault_matrix.SILENT),
    ],
)
def test_the_matrix_tells_outcomes_apart(code, printed, value, outcome, tmp_path):
    case = fault_matrix.Case(tmp_path, "run_mlm", fault_matrix.Fault("a fault", "seed=2", words="seed"))
    for folder, number in ((case.reference, 1.0), (case.folder, value)):
        (folder / "run").mkdir(parents=True)
        (folder / "run" / "README.md").write_text("a card", encoding="utf-8")
        if number is not None:
            save_file({"weight": torch.full((2,), number)}, folder / "run" / "model.safetensors")
    case.printed.write_text(printed, encoding="utf-8")
    assert case.outcome(code)[0] == outcome

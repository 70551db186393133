# SPDX-License-Identifier: Apache-2.0
"""The short form of the fault matrix; tests/support/fault_matrix.py runs all faults."""

import sys

from scripts import ROOT, start


def test_a_run_behind_a_fault_is_refused_or_ends_with_the_same_weights():
    process = start(sys.executable, str(ROOT / "tests" / "support" / "fault_matrix.py"), "--short")
    printed, _ = process.communicate(timeout=500)
    assert process.returncode == 0 and " 0 with an unexpected outcome" in printed, printed[-5000:]

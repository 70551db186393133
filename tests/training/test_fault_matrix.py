# SPDX-License-Identifier: Apache-2.0
"""The short form of the fault matrix; tests/support/fault_matrix.py runs all faults."""

import sys

from mlm_script import finish
from scripts import ROOT, start


def test_a_run_behind_a_fault_is_refused_or_ends_with_the_same_weights():
    printed = finish(start(sys.executable, str(ROOT / "tests" / "support" / "fault_matrix.py"), "--short"))
    assert " 0 with an unexpected outcome" in printed, printed[-5000:]

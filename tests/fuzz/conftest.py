# SPDX-License-Identifier: Apache-2.0
"""Says at the end how many cases ran, and with what they run again."""

from strategies import COUNTED, SEED


def pytest_terminal_summary(terminalreporter):
    if COUNTED:
        each = ", ".join(f"{name} {count}" for name, count in COUNTED.items())
        terminalreporter.write_line(f"fuzz: {sum(COUNTED.values())} cases with DEBERTA_EXT_FUZZ_SEED={SEED} ({each})")

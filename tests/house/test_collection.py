# SPDX-License-Identifier: Apache-2.0
"""Test files can be run separately and in shares: helpers are in tests/support, and every test is in one share."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from shares import share

TESTS = Path(__file__).resolve().parents[1]


def test_tests_import_helpers_of_support_and_no_other_test():
    test_modules = {file.stem for file in TESTS.rglob("*.py") if file.parent.name != "support"}
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert test_modules.isdisjoint(names), f"{file.name}, line {node.lineno}"


def test_every_test_is_in_one_share_and_some_in_all():
    class Item(str):
        path = TESTS / "test_file.py"

        def iter_markers(self, name):
            return [pytest.mark.slow(**{self[:-1]: self[:-1] != "slow"}).mark]

    items = [Item(name) for name in ("slow1", "together1", "always1", "slow2", "slow3", "slow4", "together2", "slow5")]
    shares = [share(items, part, 3) for part in (1, 2, 3)]
    times = Counter(item for each in shares for item in each)
    assert times == dict.fromkeys(items, 1) | {"always1": 3}
    assert sorted(map(len, shares)) == [2, 3, 5] and any({"together1", "together2"} <= {*each} for each in shares)
    assert share(items, 1, 1) == items
    # Tests of other files are distributed separately.
    other = Item("slow0")
    other.path = TESTS / "test_other.py"
    assert share([other, *items], 2, 3)[-len(shares[1]) :] == shares[1]

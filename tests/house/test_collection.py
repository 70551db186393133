# SPDX-License-Identifier: Apache-2.0
"""Test files can be run separately: helpers are in tests/support."""

import ast
from pathlib import Path

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

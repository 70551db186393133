# SPDX-License-Identifier: Apache-2.0
"""The tables of tests/README.md: every test that they name is there, and no row is empty."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TEXT = (TESTS / "README.md").read_text(encoding="utf-8")
NAME = r"`[\w/]+\.py::\w+`"
# [number and criterion, tests, remark]; rows in bold are headings.
ROWS = [
    cells
    for line in TEXT.splitlines()
    if len(cells := [cell.strip() for cell in line.split("|")[1:-1]]) == 3
    and not set(cells[0]) <= {*"- "}
    and not cells[0].startswith("**")
    and cells[1] != "shown by"
]


@cache
def names_in(file):
    """Names of the test functions of a file, parametrised or not."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_that_is_named_exists():
    named = {tuple(name.strip("`").split("::")) for name in re.findall(NAME, TEXT)}
    gone = sorted(f"{file}::{name}" for file, name in named if not (TESTS / file).is_file() or name not in names_in(file))
    assert gone == [] and len(named) > 250
    # A slip in the form of a name would leave it out.
    assert len(re.findall(r"\.py::", TEXT)) == len(re.findall(NAME, TEXT))


def test_every_row_has_a_test_or_a_reason():
    for criterion, shown, reason in ROWS:
        assert re.match(r"[ABP][\w.]+ \S", criterion), criterion
        tests = re.fullmatch(rf"{NAME}(, {NAME})*", shown)
        assert tests or (not shown and len(reason) > 30), criterion


def test_every_criterion_has_a_row_and_only_one():
    numbers = [row[0].split()[0] for row in ROWS]
    assert len({*numbers}) == len(numbers)
    parts = {re.match(r"[AB]\d+|P\.?\w+", number).group() for number in numbers}
    wanted = {f"A{n}" for n in range(1, 22)} | {f"B{n}" for n in range(1, 11)}
    assert parts == wanted | {f"P{n}" for n in range(1, 20)} | {f"P.{letter}" for letter in "abcdefghijk"}


def test_programs_and_variables_that_are_named_are_there():
    for file in re.findall(r"python (tests/[\w/]+\.py)", TEXT):
        assert (TESTS.parent / file).is_file(), file
    readers = [TESTS / "conftest.py", *(TESTS / "support").glob("*.py")]
    sources = "".join(file.read_text(encoding="utf-8") for file in readers)
    for name in {"--run-slow", *re.findall(r"DEBERTA_EXT_FUZZ_\w+|--fuzz-\w+", TEXT)}:
        assert name in TEXT and name in sources, name

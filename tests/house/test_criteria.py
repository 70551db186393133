# SPDX-License-Identifier: Apache-2.0
"""Criteria and their markers: every criterion has its tests, and every marker names a criterion."""

import re
import subprocess
import sys

from criteria import TESTS, criteria, marked_tests

README = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_criterion_has_a_marked_test_or_a_reason():
    marked = marked_tests()
    assert [row.number for row in criteria() if not row.no_test and row.number not in marked] == []
    assert [row.number for row in criteria() if row.no_test and (row.number in marked or len(row.no_test) < 30)] == []


def test_every_marker_names_a_criterion():
    unknown = marked_tests().keys() - {row.number for row in criteria()}
    assert {number: marked_tests()[number] for number in unknown} == {}


def test_numbers_are_unique_and_none_was_lost():
    numbers = [row.number for row in criteria()]
    assert len({*numbers}) == len(numbers)
    sections = {re.match(r"[AB]\d+|P\.?\w+", number).group() for number in numbers}
    expected = {f"A{n}" for n in range(1, 22)} | {f"B{n}" for n in range(1, 11)}
    assert sections == expected | {f"P{n}" for n in range(1, 20)} | {f"P.{letter}" for letter in "abcdefghijk"}


def test_the_table_lists_tests_beside_their_criterion():
    command = [sys.executable, TESTS / "house/criteria.py", "P.k"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    last = printed.splitlines()[-1]
    assert last.startswith("| P.k every file") and "`house/test_collection.py::test_every_file_" in last


def test_the_readme_names_programs_and_variables_that_exist():
    for file in re.findall(r"python (tests/[\w/]+\.py)", README):
        assert (TESTS.parent / file).is_file(), file
    readers = [TESTS / "conftest.py", *(TESTS / "support").glob("*.py")]
    sources = "".join(file.read_text(encoding="utf-8") for file in readers)
    for name in {"--run-slow", *re.findall(r"DEBERTA_EXT_FUZZ_\w+|--fuzz-\w+", README)}:
        assert name in README and name in sources, name

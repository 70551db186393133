# SPDX-License-Identifier: Apache-2.0
"""The table of criteria and the tests that show each.

    python tests/house/criteria.py          # all of them
    python tests/house/criteria.py A1 P.d   # those whose number starts so

The criteria are in criteria.md, the tests carry their numbers: `@pytest.mark.criterion("A1.1")`.
"""

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["TESTS", "Criterion", "criteria", "marked_tests", "table", "test_functions"]

TESTS = Path(__file__).resolve().parents[1]


class Criterion(NamedTuple):
    number: str
    text: str
    remark: str
    # Why it has no test; empty where tests are expected.
    no_test: str


def criteria() -> list[Criterion]:
    """All rows of criteria.md, in its order."""
    text = (TESTS / "house/criteria.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- \*\*(\S+)\*\* (.+)((?:\n  - .+)*)", text, re.MULTILINE)
    remarks = [dict(re.findall(r"^  - (remark|no test): (.+)", lines, re.MULTILINE)) for _, _, lines in rows]
    return [
        Criterion(number, words, notes.get("remark", ""), notes.get("no test", ""))
        for (number, words, _), notes in zip(rows, remarks, strict=True)
    ]


def test_functions(file: Path) -> list[ast.FunctionDef]:
    """Test functions of a file, also those of classes."""
    bodies = [ast.parse(file.read_text(encoding="utf-8")).body]
    bodies += [node.body for node in bodies[0] if isinstance(node, ast.ClassDef)]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if node.name.startswith("test_")]


# Its name begins as that of a test does.
test_functions.__test__ = False


def marked_tests() -> dict[str, list[str]]:
    """Number of a criterion -> the tests that carry it, as "room/file.py::test"."""
    marked: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for function in test_functions(file):
            for decorator in function.decorator_list:
                if ast.unparse(decorator).startswith("pytest.mark.criterion("):
                    for number in map(ast.literal_eval, decorator.args):
                        marked.setdefault(number, []).append(f"{file.relative_to(TESTS).as_posix()}::{function.name}")
    return marked


def table(prefixes: tuple[str, ...] = ("",)) -> str:
    """The Markdown table of the criteria whose number starts with one of `prefixes`."""
    marked = marked_tests()
    lines = ["| criterion | shown by | remark, or why it has no test |", "| --- | --- | --- |"]
    for row in criteria():
        if row.number.startswith(prefixes):
            tests = ", ".join(f"`{name}`" for name in marked.get(row.number, []))
            lines.append(f"| {row.number} {row.text} | {tests} | {row.remark or row.no_test} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(tuple(sys.argv[1:]) or ("",)))

# SPDX-License-Identifier: Apache-2.0
"""Collection: every file under tests/ that defines tests is run, none needs another one, and no test hides another one."""

import ast
import fnmatch
import re
from collections import Counter
from pathlib import Path

import pytest
from shares import share

TESTS = Path(__file__).resolve().parents[1]
README = (TESTS / "README.md").read_text(encoding="utf-8")


def functions_of(file: Path) -> list[str]:
    """Names of the test functions of a file, also of those of classes."""
    bodies = [ast.parse(file.read_text(encoding="utf-8")).body]
    bodies += [node.body for node in bodies[0] if isinstance(node, ast.ClassDef)]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if node.name.startswith("test_")]


# run_transformers_mixins.py runs these beside the tests of transformers.
RUN_BY_A_PROGRAM = {"mixin_tests.py", "pipeline_tests.py"}
FILES = {file: names for file in sorted(TESTS.rglob("*.py")) if (names := functions_of(file))}


def test_every_file_that_defines_tests_is_collected(request):
    config = request.config
    files = [file for file in FILES if file.name not in RUN_BY_A_PROGRAM]
    patterns = config.getini("python_files")
    assert [str(file) for file in files if not any(fnmatch.fnmatch(file.name, pattern) for pattern in patterns)] == []
    ignored = config.getini("norecursedirs")
    rooms = {part for file in files for part in file.relative_to(TESTS).parent.parts}
    assert [room for room in rooms if any(fnmatch.fnmatch(room, pattern) for pattern in ignored)] == []
    assert config.getini("testpaths") == ["tests"]
    assert "collect_ignore" not in (TESTS / "conftest.py").read_text(encoding="utf-8")


def test_a_run_of_all_tests_has_some_of_every_file(request):
    config = request.config
    whole = [Path(argument).resolve() for argument in config.args] == [TESTS]
    if not whole or config.option.keyword or config.option.markexpr:
        pytest.skip("only a part of the tests was selected")
    collected = {item.path for item in request.session.items}
    # A package that is not installed skips the whole file, and `-ra` says so.
    optional = {file for file in FILES if "\npytest.importorskip(" in file.read_text(encoding="utf-8")}
    missing = {file for file in FILES if fnmatch.fnmatch(file.name, "test_*.py")} - collected - optional
    assert missing == set()


def test_no_two_files_have_one_name():
    """pytest imports by the base name, with folders that are no packages."""
    names = [file.name for file in TESTS.rglob("*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_test_has_the_name_of_another_one_of_its_file():
    repeated = {file.name: {name for name in names if names.count(name) > 1} for file, names in FILES.items()}
    assert {file: names for file, names in repeated.items() if names} == {}


def test_tests_import_helpers_of_support_and_no_other_test():
    """Each file runs alone, in any order; what two of them share is in tests/support."""
    test_modules = {file.stem for file in TESTS.rglob("*.py") if file.parent.name != "support"}
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not test_modules & {*names}, f"{file.name}, line {node.lineno}"


def test_every_test_is_in_one_share_and_some_in_all():
    class Item(str):
        path = TESTS / "test_file.py"

        def iter_markers(self, name):
            return [pytest.mark.slow(**{self[:-1]: True}).mark] if self[:-1] != "slow" else [pytest.mark.slow.mark]

    items = [*map(Item, ("slow1", "together1", "always1", "slow2", "slow3", "slow4", "together2", "slow5"))]
    shares = [share(items, part, 3) for part in (1, 2, 3)]
    times = Counter(item for each in shares for item in each)
    assert times == dict.fromkeys(items, 1) | {"always1": 3}
    assert sorted(map(len, shares)) == [2, 3, 5] and any({"together1", "together2"} <= {*each} for each in shares)
    assert share(items, 1, 1) == items
    # Tests of other files take turns of their own.
    other = Item("slow0")
    other.path = TESTS / "test_other.py"
    assert share([other, *items], 2, 3)[-len(shares[1]) :] == shares[1]


def test_the_readme_names_programs_and_variables_that_exist():
    for file in re.findall(r"python (tests/[\w/]+\.py)", README):
        assert (TESTS.parent / file).is_file(), file
    readers = [TESTS / "conftest.py", *(TESTS / "support").glob("*.py"), *(TESTS / "attention").glob("*.py")]
    sources = "".join(file.read_text(encoding="utf-8") for file in readers)
    for name in {"--run-slow", *re.findall(r"DEBERTA_EXT_(?:FUZZ|THREAD)_\w+|--fuzz-\w+", README)}:
        assert name in README and name in sources, name

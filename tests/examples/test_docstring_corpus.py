# SPDX-License-Identifier: Apache-2.0
"""The docstring task: collected docstrings, hidden names, disjoint splits."""

from collections import Counter

import docstring_corpus as task
import pytest

NAMES = {"xml", "dom", "email", "mime", "base_events", "asyncio"}


@pytest.fixture
def library(tmp_path):
    """Write a tiny standard library to disk."""
    files = {
        "xml/__init__.py": '"""Core XML support."""',
        "xml/dom.py": 'class Node:\n    """A node of the tree."""\n    def copy(self):\n        """Copy it."""\n',
        "xml/again.py": 'def f():\n    """Core XML support."""\n',
        "xml/nested.py": 'try:\n    pass\nexcept OSError:\n    def g():\n        """Deep inside."""\n',
        "_pydecimal.py": 'async def h():\n    """Round half up."""\n',
        "empty.py": 'def f():\n    """   """\n',
        "broken.py": '"""Lost."""\nthis is no python',
        "test/test_xml.py": '"""A test, left out."""',
        "xml/tests/deep.py": '"""A test, left out as well."""',
        "site-packages/numpy.py": '"""Not of the library."""',
    }
    for name, text in files.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "lib"


@pytest.fixture(scope="module")
def real_library():
    return task.collect_docstrings()


@pytest.fixture(scope="module")
def real_examples(real_library):
    return task.task_examples(real_library)


def test_docstrings_are_collected_once_without_tests(library, tmp_path):
    assert task.collect_docstrings(library) == [
        task.Docstring("Round half up.", "_pydecimal", "decimal"),
        task.Docstring("Core XML support.", "xml", "xml"),
        task.Docstring("A node of the tree.", "xml.dom", "xml"),
        task.Docstring("Copy it.", "xml.dom", "xml"),
        task.Docstring("Deep inside.", "xml.nested", "xml"),
    ]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no docstrings below"):
        task.collect_docstrings(empty)


@pytest.mark.parametrize(
    "text, masked",
    [
        ("Parse XML here.", "Parse module here."),
        ("See xml.dom.Node and email.MIME.", "See module.Node and module."),
        ("_xml_parser, XML's, xml2", "_module_parser, module's, xml2"),
        ("xmlfile and freedom stay", "xmlfile and freedom stay"),
        ("Two emails (e-mail) by asyncio.base_events", "Two module (e-mail) by module"),
        ("Nothing to hide.", "Nothing to hide."),
    ],
    ids=["case", "dotted", "underscore", "inside-words", "plural", "none"],
)
def test_mask_names_hides_names(text, masked):
    assert task.mask_names(text, NAMES) == masked


def test_task_examples_are_summaries_without_short_repeated_and_ambiguous_ones():
    def entries(package, texts):
        return [task.Docstring(text, package, package) for text in texts]

    numbers = [f"A long enough text, number {i}." for i in range(24)]
    repeated = "a  LONG enough text, number 3."
    one = entries("one", [*numbers[:12], "The one that both packages have", "Too short", repeated])
    more = "A long enough\n  text, number 23.\n\nAnd more about it."
    two = entries("two", [*numbers[12:23], more, "Too short.\n\nBut there is more", "The two that both packages have"])
    examples = task.task_examples(one + two, ("one", "two"))
    assert examples == [(text, int(i >= 12)) for i, text in enumerate(numbers)]
    with pytest.raises(ValueError, match="at least 10 docstrings of 'three'"):
        task.task_examples(one + two, ("one", "two", "three"))


def test_split_is_stratified_disjoint_and_decided_by_the_seed(real_examples):
    parts = task.split_by_package(real_examples, seed=0)
    texts = [text for part in parts for text, _ in part]
    assert sorted(texts) == sorted(text for text, _ in real_examples)
    assert len({" ".join(text.lower().split()) for text in texts}) == len(texts)
    total = Counter(label for _, label in real_examples)
    assert sorted(total) == list(range(len(task.PACKAGES)))
    for part, share in zip(parts, (0.55, 0.45), strict=True):
        for label, count in Counter(label for _, label in part).items():
            assert abs(count - share * total[label]) <= 1
        # The rows are not sorted by label.
        assert len({label for _, label in part[:20]}) > 3
    assert task.split_by_package(real_examples, seed=0) == parts
    assert task.split_by_package(real_examples, seed=1)[1] != parts[1]

# SPDX-License-Identifier: Apache-2.0
"""Make a text corpus from Python's docstrings, and a task: classify from which package a docstring's summary comes.

Both depend on the Python version (3.11: 8,200 docstrings with 270,000 words).
"""

import ast
import functools
import random
import re
import sysconfig
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# Classes of the task. They exist in every Python from 3.10 on, even if tkinter, idlelib and distutils are packaged
# separately.
PACKAGES = tuple("asyncio decimal email http importlib logging multiprocessing turtle unittest xml".split())
MASK_WORD = "module"

# decimal's own docstrings are in the Python version of its C module.
_ALIASES = {"_pydecimal": "decimal"}
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled", "lib-dynload", "__pycache__"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_STATEMENTS = (ast.mod, ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Docstring:
    """A docstring, the dotted name of its module, and that module's top-level package."""

    text: str
    module: str
    package: str


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file, or None for files with deliberate syntax errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return None


def _documented(node: ast.AST):
    """Yield the documented modules, classes and functions at and below `node`, in file order."""
    if isinstance(node, _DOCUMENTED):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _WITH_STATEMENTS):
            yield from _documented(child)


def collect_docstrings(root: Path | None = None) -> list[Docstring]:
    """Collect the docstrings below `root` (*optional*; default: the standard library), in the order of the sorted paths.

    Repeated docstrings are collected once. Files are parsed, never imported. Tests, installed packages and bundled wheels
    are skipped.

    Raises:
        ValueError: if there are no docstrings (a standard library without its sources).
    """
    root = Path(sysconfig.get_paths()["stdlib"] if root is None else root)
    entries: dict[str, Docstring] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _LEFT_OUT & set(parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        package = _ALIASES.get(parts[0], parts[0])
        for node in _documented(_parse(path) or ast.Module([], [])):
            text = ast.get_docstring(node)
            if text and text.strip():
                entries.setdefault(text, Docstring(text, module, package))
    if not entries:
        raise ValueError(f"no docstrings below {root}; expected a standard library with its .py files")
    return list(entries.values())


def class_names(docstrings: list[Docstring], packages: tuple[str, ...] = PACKAGES) -> set[str]:
    """Return the names that reveal a class: the packages and all their submodules, in lower case."""
    modules = [part for entry in docstrings if entry.package in packages for part in entry.module.split(".")]
    return {name.strip("_").lower() for name in (*packages, *modules)} - {"", "main", "init"}


def mask_names(text: str, names: set[str]) -> str:
    """Replace each of `names` by "module", also in the plural, in any case, and between dots or underscores.

    Several names joined by dots become one "module".
    `xml.dom.Node`, `_xml_parser`, `XML's` become `module.Node`, `_module_parser`, `module's`; `xmlfile` stays.
    """
    return _name_pattern(frozenset(names)).sub(MASK_WORD, text) if names else text


@functools.lru_cache(maxsize=8)
def _name_pattern(names: frozenset[str]) -> re.Pattern:
    any_name = "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name)))
    # Underscores separate words here, although \b treats them as letters.
    name = rf"(?<![^\W_])(?:{any_name})s?(?![^\W_])"
    return re.compile(rf"{name}(?:\.{name})*", flags=re.IGNORECASE)


def task_examples(docstrings: list[Docstring], packages: tuple[str, ...] = PACKAGES) -> list[tuple[str, int]]:
    """Return the classification examples (masked text, index of the package).

    Texts are summaries: the first paragraph of a docstring on one line. Summaries of fewer than 5 words, duplicates after
    masking, and texts that occur in several packages are dropped.

    Raises:
        ValueError: if a package has fewer than 10 examples.
    """
    names = class_names(docstrings, packages)
    owners: dict[str, set[str]] = {}
    texts: dict[str, tuple[str, int]] = {}
    for entry in docstrings:
        words = entry.text.split("\n\n")[0].split()
        if entry.package not in packages or len(words) < 5:
            continue
        text = mask_names(" ".join(words), names)
        # Texts with the same key cannot be distinguished by a lower-case model.
        key = text.lower()
        owners.setdefault(key, set()).add(entry.package)
        texts.setdefault(key, (text, packages.index(entry.package)))
    examples = [example for key, example in texts.items() if len(owners[key]) == 1]
    counts = Counter(label for _, label in examples)
    for label, package in enumerate(packages):
        if counts[label] < 10:
            raise ValueError(f"expected at least 10 docstrings of {package!r} in this library, got {counts[label]}")
    return examples


def split_by_package(
    examples: list[tuple[str, int]], seed: int = 0, test: float = 0.45
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Split texts for training and test. Every label has the same proportions, rounded, and at least one text in each part.

    Args:
        examples (`list[tuple[str, int]]`): texts and labels; each label needs two texts.
        seed (`int`): seed of the random split.
        test (`float`): share of the test part, in (0, 1).
    """
    rng = random.Random(seed)
    to_train, to_test = [], []
    for label in sorted({label for _, label in examples}):
        group = [example for example in examples if example[1] == label]
        rng.shuffle(group)
        count = max(1, round(test * len(group)))
        to_test.extend(group[:count])
        to_train.extend(group[count:])
    for part in (to_train, to_test):
        rng.shuffle(part)
    return to_train, to_test

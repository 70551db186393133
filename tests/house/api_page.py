# SPDX-License-Identifier: Apache-2.0
"""Print the page examples/guides/api.md from the docstrings of the public names.

python tests/house/api_page.py > examples/guides/api.md
"""

import importlib
import inspect
import re
from typing import Any

HEAD = """# API

Public classes and functions of the package and of its modules, with a summary; `help(name)` prints the whole docstring.
A parameter with `=` has a default. Written by `python tests/house/api_page.py > examples/guides/api.md`.
"""
# A longer list, such as the fields of transformers' arguments, does not help in a table.
MOST_PARAMETERS = 13
ROOMS = ("pretraining", "sift", "publishing", "export", "tokenization")


def parameters(value: Any) -> str:
    """Return the names of a callable's parameters, without types and default values; (...) where there are many."""
    found = inspect.signature(value).parameters.values()
    if len(found) > MOST_PARAMETERS:
        return "(...)"
    shown, marked = [], False
    for parameter in found:
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            shown.append("*")
        marked = marked or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        optional = "=" if parameter.default is not parameter.empty else ""
        shown.append(str(parameter.replace(annotation=parameter.empty, default=parameter.empty)) + optional)
    return f"({', '.join(shown)})"


def page() -> str:
    """Return the page: a table for each module, with a row for each public class or function."""
    lines = [HEAD]
    for room in ("", *ROOMS):
        module = importlib.import_module(f"hf_deberta_ext.{room}".rstrip("."))
        lines += [f"## `{module.__name__}`\n", "| name | |", "| --- | --- |"]
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if callable(value):
                paragraph = re.split(r"\n\n|\n?(?:Args|Returns|Raises):", inspect.getdoc(value) or "")[0]
                described = " ".join(paragraph.split()).replace("|", "\\|")
                lines.append(f"| `{name}{parameters(value)}` | {described} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")

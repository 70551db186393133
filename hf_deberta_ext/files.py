# SPDX-License-Identifier: Apache-2.0
"""Small functions: write files atomically, find unused file names, format sizes, check Hub ids, hide paths of sources."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .heads import PARTS

__all__ = ["as_list", "drop_none", "folder_files", "format_size", "free_name", "is_hub_id", "replace_text", "shown_source"]


def replace_text(file: Path, text: str) -> Path:
    """Write `text` with its line ends unchanged, atomically: readers of `file` see either the old or the new content."""
    part = file.with_name(f".{file.name}.part")
    with open(part, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    os.replace(part, file)
    return file


def folder_files(folder: str | os.PathLike) -> dict[str, Path]:
    """Return all files in a folder and its subfolders, by their path in the folder, sorted."""
    return {file.relative_to(folder).as_posix(): file for file in sorted(Path(folder).rglob("*")) if file.is_file()}


def free_name(place: Path) -> Path:
    """Return the first of PLACE.old-1, PLACE.old-2, ... that does not exist."""
    names = (place.with_name(f"{place.name}.old-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def format_size(size: int) -> str:
    """Format a number of bytes in decimal units as the Hub does, for example "812 B" or "1.2 MB"."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB"):
        # A value that would be rounded to 1000 takes the next unit.
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def shown_source(source: str | os.PathLike) -> str:
    """Return a name for `source` that may be published: a Hub id unchanged, a local file or folder without its path.

    The subfolders "generator" and "discriminator" of a joint model are shown with the name of the joint model's folder. For
    "NAME=FILE", the name of FILE is shown.
    """
    text = str(source)
    if Path(text).exists():
        names = [*Path(text).resolve().parts]
    else:
        text = text.partition("=")[2] or text
        names = [name for name in re.split(r"[/\\]", text) if name not in ("", ".", "..", "~")]
        is_local = text.startswith((".", "/", "~")) or "\\" in text or ":" in text or len(names) > 2 or Path(text).exists()
        if not is_local or not names:
            return text
    return "/".join(names[-2:] if names[-1] in PARTS else names[-1:])


def is_hub_id(name: str | None) -> bool:
    """Return True if a name has the form of a repository id, "name" or "owner/name"."""
    return name is not None and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None


def drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries whose value is not None."""
    return {name: value for name, value in values.items() if value is not None}


def as_list(value: Any) -> list[Any]:
    """Return a value as a list: None is empty, a list or tuple is copied, any other value is a single entry."""
    if value is None:
        return []
    return [*value] if isinstance(value, (list, tuple)) else [value]

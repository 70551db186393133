# SPDX-License-Identifier: Apache-2.0
"""Write small files atomically, find free names, format sizes."""

import itertools
import os
from pathlib import Path

__all__ = ["format_size", "free_name", "replace_text"]


def replace_text(file: Path, text: str) -> Path:
    """Write a text file atomically: readers see the old content or the new, never a part. Line ends are kept."""
    part = file.with_name(f".{file.name}.part")
    with open(part, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    os.replace(part, file)
    return file


def free_name(place: Path) -> Path:
    """Return NAME.old-1 beside a file or folder NAME, or the next number that is free."""
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

# SPDX-License-Identifier: Apache-2.0
"""Overlap of texts by n-grams of words: rows of an evaluation set that stand in the text of a pre-training."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["NgramIndex", "ngrams"]

WORD = re.compile(r"\w+")


def ngrams(text: str, n: int) -> Iterator[str]:
    """The runs of n words of a text, in lower case and without punctuation; none where it has fewer words."""
    words = WORD.findall(text.lower())
    return (" ".join(words[start : start + n]) for start in range(len(words) - n + 1))


class NgramIndex:
    """The n-grams of the rows of named sets, to look for in other texts; thirteen words as for GPT-3 (Brown et al. 2020).

    Args:
        sets (`dict[str, Iterable]`): the rows of each set, by its name; a row is a text, or several as of a pair.
        n (`int`): words of a run. Texts with fewer have none, and are never found.

    Attributes:
        checked (`dict[str, int]`): the rows of each set that have a text of n words or more.
    """

    def __init__(self, sets: Mapping[str, Iterable[str | Sequence[str]]], n: int = 13):
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        self.n, self.checked = n, dict.fromkeys(sets, 0)
        self._rows: dict[str, set[tuple[str, int]]] = {}
        for name, rows in sets.items():
            for row, texts in enumerate(rows):
                grams = {gram for text in ([texts] if isinstance(texts, str) else texts) for gram in ngrams(text, n)}
                self.checked[name] += bool(grams)
                for gram in grams:
                    self._rows.setdefault(gram, set()).add((name, row))

    def matches(self, text: str) -> set[tuple[str, int]]:
        """(set, number of the row from 0) of the rows that share an n-gram with a text."""
        return {found for gram in ngrams(text, self.n) for found in self._rows.get(gram, ())}

    def overlaps(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """For each set, the numbers of its rows that share an n-gram with one of the texts."""
        found = {match for text in texts for match in self.matches(text)}
        return {name: sorted(row for of, row in found if of == name) for name in self.checked}

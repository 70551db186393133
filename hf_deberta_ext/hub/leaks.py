# SPDX-License-Identifier: Apache-2.0
"""What must not be published with a model: tokens, and paths of the machine that it was trained on."""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["text_problems"]

# What a token is of -> how it looks. Long enough that no word and no piece of a vocabulary is one.
TOKENS = {
    "a token of Hugging Face": rb"\b(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "a token of GitHub": rb"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{22,}",
    "a token of GitLab": rb"\bglpat-[A-Za-z0-9_-]{20,}",
    "a key of AWS": rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a key of OpenAI or Anthropic": rb"\bsk-(?:(?:proj|svcacct|admin|ant)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})",
    "a key of Google": rb"\bAIza[A-Za-z0-9_-]{35}",
    "a token of Slack": rb"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "a private key": rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
}
# Not the middle of an address or of a relative path.
_BEGINS = rb"(?<![\w.~%/\\-])"
# At least one name, and what comes after it, to show it.
_REST = rb"[^\s\"'`<>]*"
_NAME = rb"[^\s/\\\"'`<>|:,;()\[\]{}]+" + _REST
PATHS = {
    "in a user's folder": _BEGINS + rb"/(?:home|Users|root)/" + _NAME,
    "in a user's folder of Windows": rb"\b[A-Za-z]:(?:/|\\{1,2})Users(?:/|\\{1,2})" + _NAME,
    "to a temporary file": _BEGINS + rb"/(?:tmp|var/folders)/" + _NAME,
    "to a file of one machine": rb"\bfile:///?" + _NAME,
}
PIECE, OVERLAP = 1 << 20, 1 << 12
SHOWN = 5


def text_problems(
    files: Mapping[str, Path], private_paths: Sequence[str | Path] = (), tokens: Sequence[str] = ()
) -> list[str]:
    """A line for each token and each path of this machine in the text files, and in ONNX graphs.

    A text file is one without a NUL byte, whatever its name. An ONNX graph names the source file of every node if its
    exporter was told to keep that.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
        private_paths (`Sequence`): paths that nobody else should read, besides the usual ones.
        tokens (`Sequence[str]`): tokens of any form, as that of the one who pushes.
    """
    secrets, paths = dict(TOKENS), dict(PATHS)
    if tokens:
        secrets["your own token"] = b"|".join(re.escape(token.encode()) for token in tokens)
    places = {str(path).rstrip("/\\") for path in (Path.home(), tempfile.gettempdir(), *private_paths)} - {""}
    if places:
        # The longest first, which is the most that can be said of a path.
        patterns = [_place_pattern(place) for place in sorted(places, key=len, reverse=True)]
        paths = {"on this machine": b"|".join(patterns)} | paths
    kinds = (*secrets, *paths)
    pattern = re.compile(b"|".join(b"(%s)" % part for part in (*secrets.values(), *paths.values())))
    problems = []
    for name, file in sorted(files.items()):
        is_graph = name.endswith(".onnx")
        found = []
        for line, group, text in _matches(file, pattern, is_graph):
            where = name if is_graph else f"{name}:{line}"
            if kinds[group] in secrets:
                found.append(f"{where} has {kinds[group]}, {_masked(text)}: take it out, and revoke it where it is from")
            else:
                shown = text.rstrip(".,;:()[]{}|")[:100]
                found.append(f"{where} has {shown!r}, a path {kinds[group]}: {_way_out(is_graph)}")
        found = list(dict.fromkeys(found))
        problems += found[:SHOWN]
        if len(found) > SHOWN:
            problems.append(f"{name} has {len(found) - SHOWN} more of these")
    return problems


def _place_pattern(place: str) -> bytes:
    beginning = _BEGINS + re.escape(place.encode())
    # The name of one folder is also a piece of a vocabulary; with a name in it, it is a path.
    return beginning + (rb"(?![\w-])" + _REST if len(Path(place).parts) > 2 else rb"[/\\]+" + _NAME)


def _way_out(is_graph: bool) -> str:
    return "export it again without the names of source files" if is_graph else "write a name or a Hub id in its place"


def _masked(token: str) -> str:
    return "a PEM block" if "PRIVATE" in token else token[:6] + "..."


def _matches(file: Path, pattern: re.Pattern[bytes], is_graph: bool) -> Iterator[tuple[int, int, str]]:
    """(line, number of the pattern's group from 0, text), read in pieces: a vocabulary may be large, and one line."""
    text, start, line, ended = b"", 0, 1, False
    with open(file, "rb") as stream:
        while not ended:
            piece = stream.read(PIECE)
            if b"\0" in piece and not is_graph:
                return
            ended, text = len(piece) < PIECE, text + piece
            # What touches the end is found whole with the next piece.
            end = len(text) if ended else len(text) - OVERLAP
            for match in pattern.finditer(text, start):
                if match.start() < end:
                    number = line + text.count(b"\n", start, match.start())
                    yield number, match.lastindex - 1, match.group().decode("utf-8", errors="replace")
            line += text.count(b"\n", start, end)
            # One byte before, for what a match must not follow.
            text, start = text[end - 1 :], 1

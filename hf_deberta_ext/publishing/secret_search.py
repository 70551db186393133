# SPDX-License-Identifier: Apache-2.0
"""Search for tokens, and for paths of the machine that a model was trained on, in files that are to be published."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

__all__ = ["text_problems"]

# Kind of token -> its form. Long enough that no word and no piece of a vocabulary is one.
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
    "to a file of one machine": rb"\bfile:///?" + _NAME + rb"|" + _BEGINS + rb"/(?:mnt|data|scratch|workspace)/" + _NAME,
}
# What a whole value in a JSON file may not be. Of POSIX at least two names: one alone may be anything.
ABSOLUTE = re.compile(r"/(?![/\s])[^/\n]+(?:/[^/\n]+)+/?|[A-Za-z]:[\\/][^\\/\n][^\n]*|\\\\[^\\\n]+\\[^\n]+")
# Words of a vocabulary, and names of classes (a relation may be /people/person/nationality), look like paths and are none.
WORDS = {"vocab", "merges", "content", "id2label", "label2id"}
VOCABULARIES = {"vocab.json", "added_tokens.json", "vocab.txt", "merges.txt"}
# Numbers alone, and many. Other binary files may hold objects, as training_args.bin does, which knows the token of its run.
NUMBERS = (
    "*.safetensors", "pytorch_model*.bin", "model*.bin", "adapter_model*.bin", "optimizer.*", "*.pt", "*.pth", "*.npz",
    "*.onnx.data", "*.onnx_data",
)  # fmt: skip
PIECE, OVERLAP = 1 << 20, 1 << 12
SHOWN = 5


def text_problems(
    files: Mapping[str, Path],
    private_paths: Sequence[str | Path] = (),
    tokens: Sequence[str] = (),
    *,
    tokens_alone: bool = False,
) -> list[str]:
    """A line for each token, and for each path of this machine in a text, in the values of a JSON file or in an ONNX graph.

    A text is a file without a NUL byte, whatever its name. An ONNX graph names the source file of every node if its
    exporter was told to keep that. Tokens are looked for in every file that is not of numbers alone, as weights are.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
        private_paths (`Sequence`): paths that nobody else should read, besides the usual ones.
        tokens (`Sequence[str]`): tokens of any form, as that of the one who pushes.
        tokens_alone (`bool`): do not look for paths.
    """
    secrets = _Kinds(
        TOKENS | ({"your own token": b"|".join(re.escape(token.encode()) for token in tokens)} if tokens else {})
    )
    places = {str(path).rstrip("/\\") for path in (Path.home(), tempfile.gettempdir(), *private_paths)} - {""}
    # The longest first, which is the most that can be said of a path.
    patterns = [place_pattern(place) for place in sorted(places, key=len, reverse=True)]
    paths = _Kinds(({"on this machine": b"|".join(patterns)} if patterns else {}) | PATHS)
    problems = []
    for name, file in sorted(files.items()):
        base, is_graph = name.rpartition("/")[2], name.endswith(".onnx")
        if any(fnmatchcase(base, pattern) for pattern in NUMBERS):
            continue
        findings = []
        for line, kind, text in secrets.in_file(file):
            shown = "a PEM block" if "PRIVATE" in text else text[:6] + "..."
            findings.append((line, f"has {kind}, {shown}: take it out, and revoke it where it is from"))
        way_out = "write a name or a Hub id in its place"
        if is_graph:
            way_out = "export it again without the names of source files"
        if not tokens_alone and base not in VOCABULARIES and (is_graph or is_text(file)):
            for line, kind, text in json_paths(file, paths) if name.endswith(".json") else paths.in_file(file):
                shown = text.rstrip(".,;:()[]{}|")[:100]
                findings.append((line, f"has {shown!r}, a path {kind}: {way_out}"))
        # Lines are of texts.
        is_binary = is_graph or not is_text(file)
        findings.sort(key=lambda finding: finding[0])
        lines = [f"{name} {text}" if is_binary or not line else f"{name}:{line} {text}" for line, text in findings]
        lines = list(dict.fromkeys(lines))
        problems += lines[:SHOWN]
        if len(lines) > SHOWN:
            problems.append(f"{name} has {len(lines) - SHOWN} more of these")
    return problems


def place_pattern(place: str) -> bytes:
    beginning = _BEGINS + re.escape(place.encode())
    # The name of one folder is also a piece of a vocabulary; with a name in it, it is a path.
    return beginning + (rb"(?![\w-])" + _REST if len(Path(place).parts) > 2 else rb"[/\\]+" + _NAME)


def is_text(file: Path) -> bool:
    with open(file, "rb") as stream:
        return b"\0" not in stream.read(PIECE)


class _Kinds:
    """Patterns with the name of what each finds; the first that fits says it."""

    def __init__(self, patterns: Mapping[str, bytes]):
        self.names = (*patterns,)
        self.pattern = re.compile(b"|".join(b"(%s)" % part for part in patterns.values()))

    def kind_of(self, match: re.Match[bytes]) -> str:
        return self.names[match.lastindex - 1]

    def in_file(self, file: Path) -> Iterator[tuple[int, str, str]]:
        """(line, kind, text), read in pieces: a vocabulary may be large, and one line."""
        text, start, line, ended = b"", 0, 1, False
        with open(file, "rb") as stream:
            while not ended:
                piece = stream.read(PIECE)
                ended, text = len(piece) < PIECE, text + piece
                # What touches the end is found whole with the next piece.
                end = len(text) if ended else len(text) - OVERLAP
                for match in self.pattern.finditer(text, start):
                    if match.start() < end:
                        number = line + text.count(b"\n", start, match.start())
                        yield number, self.kind_of(match), match.group().decode("utf-8", errors="replace")
                line += text.count(b"\n", start, end)
                # One byte before, for what a match must not follow.
                text, start = text[end - 1 :], 1


def json_paths(file: Path, paths: _Kinds) -> Iterator[tuple[int, str, str]]:
    """(line, kind, text) in values of a JSON file, and in names that are not words; line 0 where it is not found again."""
    data = file.read_bytes()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        # No JSON after all.
        yield from paths.in_file(file)
        return
    text = data.decode("utf-8", errors="replace")
    for string in json_strings(value):
        kinds = [
            (paths.kind_of(match), match.group().decode())
            for match in paths.pattern.finditer(string.encode("utf-8", "replace"))
        ]
        if not kinds and ABSOLUTE.fullmatch(string):
            kinds = [("to a file of one machine", string)]
        if kinds:
            place = max(text.find(json.dumps(string, ensure_ascii=ascii)) for ascii in (True, False))
            line = text.count("\n", 0, place) + 1 if place >= 0 else 0
            yield from ((line, kind, path) for kind, path in kinds)


def json_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in value:
            yield from json_strings(entry)
    elif isinstance(value, dict):
        for name, entry in value.items():
            if name not in WORDS:
                yield name
                yield from json_strings(entry)

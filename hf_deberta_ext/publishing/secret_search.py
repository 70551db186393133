# SPDX-License-Identifier: Apache-2.0
"""Search for secrets, and for paths of the machine that a model was trained on, in files that are to be published."""

import collections
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .secret_kinds import KINDS, Kind

__all__ = ["text_problems"]

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
# Numbers, and many: of these the header is searched. Other binary files may hold objects, as training_args.bin does.
NUMBERS = (
    "*.safetensors", "pytorch_model*.bin", "model*.bin", "adapter_model*.bin", "optimizer.*", "*.pt", "*.pth", "*.npz",
    "*.onnx.data", "*.onnx_data",
)  # fmt: skip
PIECE, OVERLAP = 1 << 20, 1 << 13
SHOWN = 5
# Values of documentation and tests; beside these, random characters have at least 3 bits each by their own frequencies.
PLACEHOLDER = re.compile(
    rb"(?i)example|x{6}|\*{3}|\.\.\.|0123456|1234567890|abcdefgh|your[_-]|eyJzdWIiOiIxMjM0NTY3ODkw|Eby8vdM02x"
)
PASSWORDS = re.compile(
    rb"(?i)[^a-z]*(?:my|your|a|the)?[_-]?(?:pass|passwd|password|passphrase|pwd|pw|p|secret|token|key|api_?key|user(?:name)?|"
    rb"login|tiger|hunter|foo|bar|baz|test(?:ing)?|admin|root|guest|postgres|mysql|changeme|hidden|redacted|x+|abc)[^a-z]*"
)
BITS = 3.0
# Bytes of text as they are, others as NUL; and the strings of a binary file.
TEXT, STRING = bytes(n if 32 <= n < 127 or 9 <= n < 14 else 0 for n in range(256)), re.compile(rb"[^\0]{8,}")
# Characters as \u0068, \x68, %68 and \/; ends of lines as \n, which are no lines of the file; colours of a terminal.
ESCAPE = re.compile(rb"(?:\\u00|\\x|%)([2-7][0-9a-fA-F])|\\([\"'/\\])|\\[nrtbf]|(?:\\u001[bB]|\x1b)\[[\d;]*m")
# Between the pieces of one value: a backslash at the end of a line, or the quotes of two strings, also of a list.
JOINT = re.compile(rb"\\[ \t]*[\r\n][\s\"',]{0,80}|[\"']\s{0,80}(?:[+.&,\\]\s{0,80}){0,2}[bBfFrRuU]{0,2}[\"']")


def text_problems(
    files: Mapping[str, Path],
    private_paths: Sequence[str | Path] = (),
    tokens: Sequence[str] = (),
    *,
    tokens_alone: bool = False,
) -> list[str]:
    """A line for each secret, and for each path of this machine in a text, in the values of a JSON file or in an ONNX graph.

    A text is a file without a NUL byte, whatever its name. An ONNX graph names the source file of every node if its
    exporter was told to keep that. Secrets (`secret_kinds.KINDS`) are looked for in every file, of weights in the header.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
        private_paths (`Sequence`): paths that nobody else should read, besides the usual ones.
        tokens (`Sequence[str]`): tokens of any form, as that of the one who pushes.
        tokens_alone (`bool`): do not look for paths.
    """
    places = {str(path).rstrip("/\\") for path in (Path.home(), tempfile.gettempdir(), *private_paths)} - {""}
    # The longest first, which is the most that can be said of a path.
    patterns = [place_pattern(place) for place in sorted(places, key=len, reverse=True)]
    paths = _Kinds(({"on this machine": b"|".join(patterns)} if patterns else {}) | PATHS)
    problems = []
    for name, file in sorted(files.items()):
        base, is_graph = name.rpartition("/")[2], name.endswith(".onnx")
        # Lines are of texts.
        is_binary = is_graph or not is_text(file)
        is_numbers = any(fnmatchcase(base, pattern) for pattern in NUMBERS)
        findings = []
        for line, kind, text in secrets_in(file, tokens, header_size(file) if is_numbers else math.inf):
            shown = "a PEM block" if text.startswith("-----") else text[:6] + "..."
            findings.append((line, f"has {kind}, {shown}: take it out, and revoke it where it is from"))
        way_out = "write a name or a Hub id in its place"
        if is_graph:
            way_out = "export it again without the names of source files"
        if not (tokens_alone or is_numbers) and base not in VOCABULARIES and (is_graph or not is_binary):
            for line, kind, text in json_paths(file, paths) if name.endswith(".json") else paths.in_file(file):
                shown = text.rstrip(".,;:()[]{}|")[:100]
                findings.append((line, f"has {shown!r}, a path {kind}: {way_out}"))
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


def header_size(file: Path) -> int:
    """Bytes of a file of weights before its numbers: the header of safetensors, or the first piece, with torch's pickle."""
    with open(file, "rb") as stream:
        length = 8 + int.from_bytes(stream.read(8), "little")
    return length if file.suffix == ".safetensors" and length <= file.stat().st_size else PIECE


def windows(file: Path, limit: float = math.inf) -> Iterator[tuple[bytes, int, int, bool]]:
    """(text, where to begin in it, number of its first line, whether the file ends with it): pieces that overlap.

    A vocabulary may be large, and one line.
    """
    text, start, line, ended = b"", 0, 1, False
    with open(file, "rb") as stream:
        while not ended:
            piece = stream.read(int(min(PIECE, limit)))
            limit -= len(piece)
            ended, text = len(piece) < PIECE or not limit, text + piece
            yield text, start, line, ended
            # One byte before, for what a match must not follow.
            end = max(len(text) - OVERLAP, 1)
            line += text.count(b"\n", 0, end - 1)
            text, start = text[end - 1 :], 1


def compiled(kind: Kind) -> tuple[list[bytes], re.Pattern[bytes], int]:
    return kind.words.encode().split(), re.compile(kind.pattern.encode()), kind.before


COMPILED = {name: compiled(kind) for name, kind in KINDS.items()}


def secrets_in(file: Path, tokens: Sequence[str] = (), limit: float = math.inf) -> Iterator[tuple[int, str, str]]:
    """(line, kind, text), one of a kind in a line, in the first `limit` bytes; `tokens` are the user's own."""
    own = compiled(Kind(" ".join(tokens), "|".join(map(re.escape, tokens))))
    seen = set()
    for window, start, first_line, ended in windows(file, limit):
        for view, breaks in views(window):
            for kind, match in matches(view, start, {"your own token": own} | COMPILED):
                # What touches the end is found whole with the next piece.
                if match.end() == len(view) and not ended:
                    continue
                begin = match.start()
                line = first_line + view.count(b"\n", 0, begin) + sum(n for place, n in breaks if place <= begin)
                if (line, kind) not in seen:
                    seen.add((line, kind))
                    yield line, kind, match.group().decode("utf-8", errors="replace")


def matches(view: bytes, start: int, kinds: Mapping[str, tuple]) -> Iterator[tuple[str, re.Match[bytes]]]:
    small = view.lower()
    for kind, (words, pattern, before) in kinds.items():
        text = small if pattern.pattern.startswith(b"(?i") else view
        for word in words:
            place = text.find(word, start)
            while place >= 0:
                if before:
                    match = pattern.search(view, max(place - before, start), place + 400)
                else:
                    match = pattern.match(view, place)
                if match and (kind == "your own token" or is_secret(kind, view, match)):
                    yield kind, match
                place = text.find(word, place + 1)


def is_secret(kind: str, view: bytes, match: re.Match[bytes]) -> bool:
    """True if a match is a value by itself, and no placeholder."""
    value = match[match.lastindex or 0]
    if "password" in kind:
        return not (PASSWORDS.fullmatch(value) or PLACEHOLDER.search(value))
    begin, end = match.span()
    is_part = view[end : end + 1].isalnum() or (not match.lastindex and view[max(begin - 1, 0) : begin].isalnum())
    if is_part or PLACEHOLDER.search(value):
        return False
    shares = [count / len(value) for count in collections.Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) >= BITS


def views(text: bytes) -> Iterator[tuple[bytes, Sequence[tuple[int, int]]]]:
    """The text, of a binary file its strings, also those of UTF-16; and the same with escapes resolved and pieces joined.

    With each comes (place, ends of lines) for what was taken out before that place.
    """
    if b"\0" in text:
        text = text.translate(TEXT)
        # Of the rest every other byte, as in UTF-16.
        rest = STRING.sub(lambda string: bytes(len(string[0])), text)
        text = b"\n".join(string for part in (text, rest[::2], rest[1::2]) for string in STRING.findall(part))
    yield text, ()
    whole = text
    # JSON may be in a string of JSON, as in a notebook.
    for _ in range(3):
        whole = ESCAPE.sub(unescaped, whole)
    breaks, gone = [], 0

    def join(match: re.Match[bytes]) -> bytes:
        nonlocal gone
        breaks.append((match.start() - gone, match.group().count(b"\n")))
        gone += match.end() - match.start()
        return b""

    whole = JOINT.sub(join, whole)
    if whole != text:
        yield whole, breaks


def unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 16)]) if match[1] else match[2] or b"\r"


class _Kinds:
    """Patterns with the name of what each finds; the first that fits says it."""

    def __init__(self, patterns: Mapping[str, bytes]):
        self.names = (*patterns,)
        self.pattern = re.compile(b"|".join(b"(%s)" % part for part in patterns.values()))

    def kind_of(self, match: re.Match[bytes]) -> str:
        return self.names[match.lastindex - 1]

    def in_file(self, file: Path) -> Iterator[tuple[int, str, str]]:
        """(line, kind, text)."""
        for text, start, line, ended in windows(file):
            # What touches the end is found whole with the next piece.
            end = len(text) if ended else len(text) - OVERLAP
            for match in self.pattern.finditer(text, start):
                if match.start() < end:
                    number = line + text.count(b"\n", 0, match.start())
                    yield number, self.kind_of(match), match.group().decode("utf-8", errors="replace")


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

# SPDX-License-Identifier: Apache-2.0
"""Checks of a model card, without the Hub: metadata, text, code and pictures."""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..data.languages import language_problem, primary_language
from .card_metadata import as_list, is_hub_id, license_problem

__all__ = ["card_problems", "linked_pictures", "metadata_problems", "missing_metadata", "split_card"]

METADATA_BLOCK = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*(\w*)")
HEADING = re.compile(r"(#{1,6})[ \t]+(.*)")
# Placeholders of templates; "{{" is Jinja's.
PLACEHOLDERS = re.compile(
    r"\[?(?i:more information needed)\]?|\{\{.*?\}\}|\bTODO\b|\bTBD\b|(?i:lorem ipsum)|Model Card for Model ID"
)
IMAGE = re.compile(r"!\[[^\]]*\]\(\s*<?([^)\s>]+)|<img\b[^>]*?\bsrc\s*=\s*[\"']([^\"']+)", re.IGNORECASE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]+:|//|#", re.IGNORECASE)
LOADS = re.compile(r"\.from_pretrained\(|\bpipeline\(")
# Fields that a reader looks for, and how to give them.
WANTED = {"language": "--language en", "license": "--license apache-2.0"}


def card_problems(text: str, folder: str | os.PathLike | None = None) -> list[str]:
    """Problems of a model card, a sentence each; none for a good card.

    Looked at are the metadata (YAML, licence, languages, ids, model index), headings without text, what a template left to
    fill in, and whether Python code parses.

    Args:
        text (`str`): the whole card, metadata included.
        folder (`str` or path, *optional*): of the model: pictures must be in it, and the code that loads it must have
            `trust_remote_code=True` and a revision if, and only if, it holds code of its own.
    """
    _, body, first_line = split_card(text)
    problems = [problem for _, problem in metadata_problems(text)]
    lines = [*text_lines(body, first_line)]
    if not any(line.strip() for _, line, _ in lines):
        return [*problems, "it says nothing below its metadata"]
    problems += heading_problems(lines)
    for number, line, code in lines:
        if code is None and (placeholder := PLACEHOLDERS.search(line)):
            problems.append(f"line {number} has {placeholder[0]!r}, which is still to be filled in")
    codes = [*python_blocks(lines)]
    for number, code in codes:
        # Sessions and notebooks are no programs.
        if not re.search(r"^\s*(>>>|!|%)", code, re.MULTILINE):
            try:
                ast.parse(code)
            except SyntaxError as error:
                problems.append(f"line {number + (error.lineno or 0)}: the code does not parse: {error.msg}")
    if folder is not None:
        problems += loading_problems(codes, Path(folder)) + picture_problems(linked_pictures(body, first_line), Path(folder))
    return problems


def missing_metadata(text: str) -> list[str]:
    """Fields of the metadata that readers look for and that the card does not have, with what gives them."""
    data = _parsed(split_card(text)[0] or "")
    if not isinstance(data, dict):
        data = {}
    missing = [f"{name} ({flag})" for name, flag in WANTED.items() if not data.get(name)]
    languages = [name for name in as_list(data.get("language")) if isinstance(name, str)]
    for name in languages:
        if (language := primary_language(name)) and language not in languages:
            missing.append(f"language {language} beside {name}: the Hub lists models by the language alone")
            languages.append(language)
    if data.get("license") == "other" and not data.get("license_name"):
        missing.append("license_name, beside license: other")
    return missing


def split_card(text: str) -> tuple[str | None, str, int]:
    """(the YAML of the metadata or None, what is below it, the number of its first line)."""
    match = METADATA_BLOCK.match(text)
    if match is None:
        return None, text, 1
    return match[1], text[match.end() :], text[: match.end()].count("\n") + 1


def _parsed(block: str) -> Any:
    """The YAML, or the error that it raises."""
    import yaml

    try:
        return yaml.safe_load(block)
    except yaml.YAMLError as error:
        return error


def metadata_problems(text: str) -> list[tuple[str, str]]:
    """(field, problem) for each problem of the metadata of a card. The field is "" where the card has none,
    and "metadata" where they cannot be read."""
    block, *_ = split_card(text)
    if block is None:
        return [("", "it has no metadata: it must begin with lines of YAML between two lines ---")]
    data = _parsed(block)
    if isinstance(data, Exception):
        return [("metadata", f"its metadata is no YAML: {' '.join(str(data).split())}")]
    if not isinstance(data, dict):
        got = "nothing" if data is None else type(data).__name__
        return [("metadata", f"its metadata must be fields with values, got {got}")]
    problems = []
    for field, judge in (("license", license_problem), ("language", language_problem)):
        problems += [(field, problem) for name in as_list(data.get(field)) if (problem := judge(name))]
    for field in ("base_model", "datasets"):
        for name in as_list(data.get(field)):
            if not isinstance(name, str) or not is_hub_id(name):
                problems.append((field, f"{field} must hold ids of the Hub, got {name!r}"))
    for field in ("tags", "metrics"):
        if wrong := [name for name in as_list(data.get(field)) if not isinstance(name, str)]:
            problems.append((field, f"{field} must be texts, got {wrong[0]!r}"))
    if "model-index" in data:
        problems += [("model-index", problem) for problem in index_problems(data["model-index"])]
    return problems


def index_problems(index: Any) -> list[str]:
    from huggingface_hub.repocard_data import model_index_to_eval_results

    try:
        _, results = model_index_to_eval_results(index)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [f"its model-index is not what the Hub reads: {type(error).__name__} {error}"]
    return [
        f"its model-index has no value for {result.metric_type} of {result.dataset_name}, but {result.metric_value!r}"
        for result in results
        if not isinstance(result.metric_value, (int, float, str, dict)) or result.metric_value != result.metric_value
    ]


def text_lines(body: str, first: int) -> Iterator[tuple[int, str, str | None]]:
    """(number, line, None or the language of the code that it is in)."""
    fence, language = None, ""
    for number, line in enumerate(body.splitlines(), start=first):
        match = FENCE.match(line)
        if fence is None and match:
            fence, language = match[1], match[2].lower()
            yield number, "", None
        elif fence is not None and match and match[1].startswith(fence) and not match[2]:
            fence = None
            # Something stands here: a heading with code alone is not empty.
            yield number, "```", None
        else:
            yield number, line, None if fence is None else language


def heading_problems(lines: list[tuple[int, str, str | None]]) -> list[str]:
    """Headings behind which another of the same or a higher level comes, or the end."""
    problems, last = [], None
    for number, line, code in [*lines, (0, "# ", "end")]:
        heading = HEADING.match(line) if code is None else None
        if heading or code == "end":
            level = len(heading[1]) if heading else 1
            if last is not None and level <= last[1]:
                problems.append(f"line {last[0]}: the heading {last[2]!r} has no text")
            last = (number, level, heading[2].strip()) if heading else None
        elif line.strip() or code is not None:
            last = None
    return problems


def python_blocks(lines: list[tuple[int, str, str | None]]) -> Iterator[tuple[int, str]]:
    """(number of the line above, code) of each block of Python."""
    block: list[str] = []
    start = 0
    for number, line, code in [*lines, (0, "", None)]:
        if code in ("python", "py"):
            start = number - 1 if not block else start
            block.append(line)
        elif block:
            yield start, "\n".join(block)
            block = []


def loading_problems(codes: list[tuple[int, str]], folder: Path) -> list[str]:
    file = folder / "config.json"
    if not file.is_file():
        return []
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"{file} is no JSON: {error}"]
    loading = [code for _, code in codes if LOADS.search(code)]
    trusting = [code for code in loading if re.search(r"trust_remote_code\s*=\s*True", code)]
    if not isinstance(config, dict) or "auto_map" not in config:
        return ["its code has trust_remote_code=True, but the folder brings no code"] if trusting else []
    if not loading:
        return ["it has no Python code that loads the model"]
    if not trusting:
        return ["its code lacks trust_remote_code=True, without which the model's own code is not loaded"]
    if not any("revision=" in code for code in trusting):
        return ["its code loads no fixed revision: revision=... pins weights and code"]
    return []


def linked_pictures(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """(number of the line, link) of each picture in the text, but for those elsewhere in the web."""
    for number, line, code in text_lines(text, first_line):
        for link in map("".join, IMAGE.findall(line if code is None else "")):
            if not ELSEWHERE.match(link):
                yield number, link


def picture_problems(pictures: Iterable[tuple[int, str]], folder: Path) -> list[str]:
    """Pictures that are not in the folder."""
    problems = []
    for number, picture in pictures:
        if picture.startswith(("/", "\\", "~")):
            problems.append(f"line {number} shows {picture}, a place on one machine: give a name in the folder")
        elif not (folder / picture).is_file():
            problems.append(f"line {number} shows {picture}, which is not in the folder")
    return problems

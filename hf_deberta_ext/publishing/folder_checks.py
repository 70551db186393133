# SPDX-License-Identifier: Apache-2.0
"""Checks of a folder before it is published. Every problem says what to do."""

import contextlib
import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from huggingface_hub import get_token

from .card_checks import card_problems, linked_pictures

__all__ = ["check_folder", "link_or_copy", "readme_problems", "token_problems"]

# It begins with its letters, and not with \b, so that the search skips to them: 30 times as fast in weights.
TOKEN = re.compile(rb"hf_(?<=\bhf_)[A-Za-z0-9]{34}")
WEIGHTS = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")
# Problems of one card.
SHOWN = 5


def check_folder(
    folder: str | os.PathLike, files: Mapping[str, Path], token: str | None = None, *, needs_card: bool = True
) -> list[str]:
    """Return the problems of a folder that is to be published; nothing is sent or changed.

    Args:
        folder (`str` or path): the folder of a model or of an adapter.
        files (`dict[str, Path]`): what of it is published: path in the repository -> file.
        token (`str`, *optional*): the token of the push; it and the saved token must be in none of the files.
        needs_card (`bool`): False where the Hub has a card that stays.
    """
    return [
        *model_problems(Path(folder), files),
        *token_problems(files, token),
        *(readme_problems(folder, files) if needs_card or "README.md" in files else ()),
    ]


def model_problems(folder: Path, files: Mapping[str, Path]) -> list[str]:
    """Return what a saved model lacks: configuration or weights; or of an adapter, a base model that others can load."""
    if "adapter_config.json" in files:
        base = json.loads(files["adapter_config.json"].read_text(encoding="utf-8")).get("base_model_name_or_path")
        if base and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base) and not base.startswith(".") and not Path(base).exists():
            return []
        return [
            f"adapter_config.json: the base model {base!r} is not on the Hub: edit base_model_name_or_path to the id of "
            "the model that was adapted"
        ]
    if "config.json" not in files:
        return [f"config.json is not in {folder}: save the model with model.save_pretrained(folder), and push that folder"]
    if not any(name.endswith(WEIGHTS) for name in files):
        return [f"{folder} has no weights: save the model with model.save_pretrained(folder), and push that folder"]
    return []


def token_problems(files: Mapping[str, Path], *tokens: str | None) -> list[str]:
    """Return a line for each file that holds a token of the Hub: one of `tokens`, the saved one, or any other.

    Other kinds of secrets are searched by the Hub itself, after a push.
    """
    own = [token.encode() for token in (*tokens, get_token()) if token]
    problems = []
    for name, file in sorted(files.items()):
        if file.stat().st_size == 0:
            continue
        with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if TOKEN.search(data) or any(data.find(token) >= 0 for token in own):
                problems.append(f"{name} holds a token of the Hub: take it out, and revoke it in your account's settings")
    return problems


def readme_problems(folder: str | os.PathLike, files: Mapping[str, Path]) -> list[str]:
    """A model card that is missing or not valid, and pictures of it that are not published."""
    if "README.md" not in files:
        return [f"README.md, the model card, is not there: write it with `deberta-ext card {folder}`"]
    try:
        text = files["README.md"].read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return [f"README.md is not UTF-8 ({error}): save it as UTF-8"]
    problems = [f"README.md: {problem}" for problem in card_problems(text, folder)]
    if len(problems) > SHOWN:
        # A template that nobody has filled in has dozens.
        rest = f"README.md: {len(problems) - SHOWN} more; `deberta-ext card {folder} --overwrite` writes it anew"
        problems = [*problems[:SHOWN], rest]
    for number, link in linked_pictures(text):
        picture = os.path.normpath(link).replace(os.sep, "/")
        # One that is not in the folder is a problem of the card.
        if picture not in files and Path(folder, picture).is_file():
            problems.append(f"README.md: line {number} shows {link}, which is not published: --include {picture} adds it")
    return problems


def link_or_copy(file: Path, target: Path, link: Callable[[Path, Path], None] = os.symlink) -> Path:
    """The file under another name: a link where that is possible, because weights are large."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Links are not to be had in every file system, nor on Windows without developer mode.
    with contextlib.suppress(OSError):
        if file.stat().st_size > 1_000_000:
            link(file.resolve(), target)
            return target
    return Path(shutil.copyfile(file, target))

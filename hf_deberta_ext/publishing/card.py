# SPDX-License-Identifier: Apache-2.0
"""Model cards in Markdown: the frame, which pre-training and fine-tuning fill."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "LOADING_LINES", "base_model_names", "facts_table", "pin_loading_lines", "render_card", "shown_number", "shown_source",
    "write_card",
]  # fmt: skip

TEMPLATE = Path(__file__).with_name("model_card_template.md")
# How the code that loads a model begins; whoever publishes the model replaces both lines.
LOADING_LINES = """repo = "{repo}"  # the path of this folder, or its id on the Hub
revision = None  # on the Hub: a tag or commit, which pins weights and code"""
PUBLISHED_LINES = """repo = "{repo}"
revision = "{revision}"  # pins weights and code"""
UNPINNED_LINES = """repo = "{repo}"
revision = "{revision}"  # for good: the id of a commit, huggingface_hub.model_info(repo).sha, pins weights and code"""
_REPO_LINE = re.compile(r'^repo = ".*?".*\nrevision = .*$', re.MULTILINE)


def write_card(folder: str | os.PathLike, **content: Any) -> Path:
    """Writes README.md, the model card that the Hub shows, into the folder of a model; `content` is `render_card`'s."""
    folder = Path(folder)
    text = render_card(
        **{"title": folder.resolve().name, **{name: value for name, value in content.items() if value is not None}}
    )
    # Whole or not at all: a card is the last thing that a run writes.
    file, part = folder / "README.md", folder / "README.md.part"
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)
    return file


def render_card(
    *,
    title: str,
    opening: str,
    metadata: Mapping[str, Any],
    load: str | None = None,
    brings_code: bool = False,
    results: str | None = None,
    training: Mapping[str, Any] | str | None = None,
    hardware: Mapping[str, Any] | None = None,
    limits: Sequence[str] = (),
    more: str | None = None,
) -> str:
    """The text of a model card, from model_card_template.md. What is empty has no heading.

    Args:
        opening (`str`): what the model is and how it was made.
        metadata (`dict[str, Any]`): arguments of `huggingface_hub.ModelCardData`; those that are None are left out.
            `library_name` is transformers and `model_name`, where there are results, the title unless it says otherwise.
        load (`str`, *optional*): Python that loads it; begins with `LOADING_LINES` where it needs `repo` and `revision`.
        brings_code (`bool`): the folder holds code of its own; the card says so.
        results (`str`, *optional*): Markdown.
        training (`dict` or `str`, *optional*): facts of data and recipe for a table, or Markdown.
        hardware (`dict`, *optional*): facts of machine, time, versions.
        limits (`list[str]`): sentences.
        more (`str`, *optional*): Markdown with headings of its own, at the end.
    """
    from huggingface_hub import ModelCard, ModelCardData

    # The name belongs to the results: without any it would be a field that the Hub does not know.
    named = {"model_name": title} if metadata.get("eval_results") else {}
    data = ModelCardData(**{**named, "library_name": "transformers", **metadata})
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        title=title,
        opening=opening,
        load=load,
        brings_code=brings_code,
        results=results,
        training=training if isinstance(training, str) else facts_table(training) if training else None,
        hardware=facts_table(hardware) if hardware else None,
        limits="\n".join(f"- {limit}" for limit in limits),
        more=more,
    )
    # Paragraphs are apart by one empty line, wherever the template left something out.
    return re.sub(r"\n{3,}", "\n\n", str(card)).rstrip("\n") + "\n"


def pin_loading_lines(text: str, repo_id: str, revision: str, *, pinned: bool = True) -> str:
    """A card whose code loads `repo_id` at `revision` (a tag or commit, or if not `pinned` a branch) instead of a folder."""
    lines = (PUBLISHED_LINES if pinned else UNPINNED_LINES).format(repo=repo_id, revision=revision)
    return _REPO_LINE.sub(lambda _: lines, text)


def base_model_names(base_model: str | None) -> tuple[str | None, str | None]:
    """(the checkpoint's name for people, its Hub id or None): of a folder on this machine only the name is shown."""
    is_local = base_model is not None and Path(base_model).exists()
    return (shown_source(base_model), None) if is_local else (base_model, base_model)


def shown_source(source: str | os.PathLike) -> str:
    """A Hub id, or the name of a file or folder without its place on this machine: of a half of a joint model with the
    folder that it is in."""
    path = Path(source)
    if not path.exists():
        return str(source)
    parts = path.resolve().parts
    return "/".join(parts[-2:] if parts[-1] in ("discriminator", "generator") else parts[-1:])


def shown_number(count: int) -> str:
    """Of parameters: "12.3 million", and a small one in full."""
    return f"{count / 1e6:.1f} million" if count >= 100_000 else f"{count:,}"


def facts_table(facts: Mapping[str, Any]) -> str:
    """A row for each fact; a value is text, a number, a list, or a dictionary of these."""
    return "\n".join(["| | |", "| --- | --- |", *(f"| {fact} | {_cell(value)} |" for fact, value in facts.items())])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{name} {_cell(part)}" for name, part in value.items()]
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return " ".join(text.split()).replace("|", "\\|")

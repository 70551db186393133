# SPDX-License-Identifier: Apache-2.0
"""Model cards in Markdown: the frame, which pre-training and fine-tuning fill."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["base_model_names", "facts_table", "shown_source", "write_card"]

CODE_TRAVELS = (
    "The folder brings its code along; where hf_deberta_ext is installed and imported, `trust_remote_code` is not needed."
)


def write_card(
    folder: str | os.PathLike,
    *,
    opening: str,
    usage: str | None,
    sections: Mapping[str, str],
    metadata: Mapping[str, Any],
    title: str | None = None,
    brings_code: bool = True,
) -> Path:
    """Writes README.md, the model card that the Hub shows, into the folder of a model.

    Args:
        opening (`str`): what it is and how it was made.
        usage (`str`, *optional*): Python that loads it.
        sections (`dict[str, str]`): Markdown by its heading.
        metadata (`dict[str, Any]`): arguments of `huggingface_hub.ModelCardData`; those that are None are left out.
            `library_name` is transformers unless it says otherwise.
        title (`str`, *optional*): the folder's name.
        brings_code (`bool`): the folder holds code of its own; the card says so.
    """
    from huggingface_hub import ModelCardData

    folder = Path(folder)
    title = folder.resolve().name if title is None else title
    data = ModelCardData(**{"model_name": title, "library_name": "transformers", **metadata})
    parts = [f"# {title}", opening]
    if usage is not None:
        parts += ["## How to use it", f"```python\n{usage}\n```", *([CODE_TRAVELS] if brings_code else [])]
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    text = "\n\n".join(parts)
    # Whole or not at all: a card is the last thing that a run writes.
    file, part = folder / "README.md", folder / "README.md.part"
    part.write_text(f"---\n{data.to_yaml()}\n---\n\n{text}\n", encoding="utf-8")
    os.replace(part, file)
    return file


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

# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Remote code: the `auto_map` of a saved config.json, and the model's Python files beside it."""

import contextlib
import shutil
from pathlib import Path

from huggingface_hub import snapshot_download

from .heads import HEADS

__all__ = ["AUTO_MAP", "CODE_MARK", "copy_code", "is_model_code"]

# Auto class -> class here, for loading with trust_remote_code.
AUTO_MAP = {"AutoConfig": "configuration_deberta_ext.DebertaExtConfig"} | {
    head.auto_class: f"modeling_deberta_ext.{head.model_class}" for head in HEADS.values() if head.auto_class
}
CODE_MARK = "# hf_deberta_ext model code"
ENTRY = "modeling_deberta_ext.py"


def is_model_code(file: Path) -> bool:
    """Tell the model's Python files by the mark on their second line."""
    return CODE_MARK in file.read_text(encoding="utf-8", errors="replace")[:200]


def copy_code(folder: Path, loaded_from: str):
    """Copy the model's Python files into `folder`, all or none.

    They lie beside this one, unless transformers has put only this one into its module cache, for a configuration
    loaded without a model. Then they are fetched from where the configuration came from, if that still exists.

    Raises:
        ValueError: the folder holds a Python file of the same name that is not the model's.
    """
    source = Path(__file__).resolve().parent
    if not (source / ENTRY).exists() and not (folder / ENTRY).exists():
        if Path(loaded_from, ENTRY).is_file():
            source = Path(loaded_from).resolve()
        else:
            with contextlib.suppress(OSError, ValueError):
                # In the module cache, the code of a repo lies in a folder with the name of its commit.
                source = Path(snapshot_download(loaded_from, revision=source.name, allow_patterns="*.py"))
    files = [file for file in sorted(source.glob("*.py")) if is_model_code(file)]
    for file in files:
        target = folder / file.name
        if target.exists() and not is_model_code(target):
            raise ValueError(
                f"{target} exists and is not part of the model, which brings a file of that name; save to another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if (folder / file.name).resolve() != file:
            shutil.copyfile(file, folder / file.name)

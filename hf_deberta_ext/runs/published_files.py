# SPDX-License-Identifier: Apache-2.0
"""Which files of a model's folder go to the Hub, and why the others stay where they are."""

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["CODE_MARK", "MODEL_FILES", "MODEL_FOLDERS", "published_files", "stale_weights"]

# Second line of the code that goes with a model.
CODE_MARK = "# hf_deberta_ext model code"
# A joint model's parts, and its exports.
MODEL_FOLDERS = ("discriminator", "generator", "onnx")
# What is published of a model's folder and of these folders in it.
MODEL_FILES = (
    "config.json", "generation_config.json",
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json",
    "adapter_config.json", "adapter_model.*", "*.onnx", "*.onnx.data", "*.onnx_data",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "spm.model",
    "sentencepiece*.model", "vocab.json", "vocab.txt", "merges.txt", "chat_template*",
    "README.md", "LICENSE*", "*.png", "*.svg", "*_results.json", ".gitattributes",
)  # fmt: skip
# Why well-known files stay; the first that fits says it. Folders end in a slash.
LEFT_OUT = {
    "checkpoint-*/": "a checkpoint of the training, with the state of its optimizer",
    "training_args.bin": "Trainer's arguments, which name files of this machine; a pickle besides",
    "optimizer.*": "state of the training",
    "scheduler.*": "state of the training",
    "scaler.*": "state of the training",
    "rng_state*": "state of the training",
    "trainer_state.json": "log of the training, which names folders of this machine",
    "run_arguments.json": "the flags of the run, which name files of this machine",
    "run_report.json": "report of the run, which names files of this machine",
    "tokenizer/": "the run's own copy of the tokenizer, which lies beside the model",
    "runs/": "logs",
    "logs/": "logs",
    "wandb/": "logs",
    "*.log": "logs",
    "events.out.tfevents*": "logs",
    "*predict*": "predictions",
    "*_answers.*": "predictions",
    "*nbest*": "predictions",
    "*null_odds*": "predictions",
    "__pycache__/": "Python's cache",
    "*.part": "a file that was not written to its end",
}
# Weights of a model, whole or in shards, without variants (model.fp16.safetensors); and an adapter.
WEIGHTS = re.compile(r"(pytorch_)?model(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")
ADAPTER = re.compile(r"adapter_(config\.json|model\.(safetensors|bin))")
NOT_OURS = "not a file of a model: --include {} adds it"


def published_files(folder: str | os.PathLike, include: Iterable[str] = ()) -> tuple[dict[str, Path], dict[str, str]]:
    """Sorts the files in the folder of a model, or of a run that has trained one.

    Published are the files of a model (`MODEL_FILES`), in it and in `MODEL_FOLDERS`, and its code: Python with our mark.

    Args:
        include (`list[str]`): patterns of more files, for a path below `folder` or for a name alone ("*.txt",
            "figures/*"). Hidden files need a pattern that begins with a dot.

    Returns:
        (path in the repository -> file, what is left out -> why), both sorted. Folders end in a slash, and stand for all
        that is in them and not published.

    Raises:
        ValueError: `folder` is none, or a pattern fits no file.
    """
    folder, include = Path(folder), tuple(include)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    found, left_out, met = {}, {}, set()
    for path, file in _files(folder):
        asked = [pattern for pattern in include if _fits(path, pattern)]
        met |= {*asked}
        if asked or _is_of_model(path, file):
            found[path] = file
        else:
            name, reason = _reason(path)
            left_out[name] = reason
    if unmet := [pattern for pattern in include if pattern not in met]:
        raise ValueError(f"--include {' '.join(unmet)} fits no file in {folder}")
    return dict(sorted(found.items())), dict(sorted(left_out.items()))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(path with slashes, file) of all files below. Files may be links, as in the Hub's cache, and so may folders of the
    first level; links to folders below them might lead in a circle."""
    for entry in sorted(folder.iterdir()):
        if entry.is_file():
            yield entry.name, entry
        elif entry.is_dir():
            for place, _, names in os.walk(entry):
                for name in sorted(names):
                    if (file := Path(place, name)).is_file():
                        yield file.relative_to(folder).as_posix(), file


def _fits(path: str, pattern: str) -> bool:
    hidden = any(part.startswith(".") for part in path.split("/"))
    if hidden and not any(part.startswith(".") for part in pattern.split("/")):
        return False
    return fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern)


def _is_of_model(path: str, file: Path) -> bool:
    *folders, name = path.split("/")
    if len(folders) > 1 or not {*folders} <= {*MODEL_FOLDERS}:
        return False
    if name.endswith(".py"):
        return CODE_MARK in file.read_text(encoding="utf-8", errors="replace")[:200]
    return any(fnmatchcase(name, pattern) for pattern in MODEL_FILES)


def _reason(path: str) -> tuple[str, str]:
    """(the file, or the folder that it is in where that is left out as a whole; why)."""
    *folders, name = path.split("/")
    inside = f"{folders.pop(0)}/" if folders and folders[0] in MODEL_FOLDERS else ""
    # A folder is one entry, whatever it holds.
    shown = f"{folders[0]}/" if folders else name
    if shown.startswith("."):
        return f"{inside}{shown}", "hidden"
    for pattern, reason in LEFT_OUT.items():
        if fnmatchcase(shown, pattern) and pattern.endswith("/") == shown.endswith("/"):
            return f"{inside}{shown}", reason
    if shown.endswith(".py"):
        return f"{inside}{shown}", f"not of the model's code: --include {inside}{shown} adds it"
    wanted = f"{inside}{shown}*" if folders else f"{inside}{shown}"
    return f"{inside}{shown}", NOT_OURS.format(wanted)


def stale_weights(published: Iterable[str], new: Iterable[str]) -> list[str]:
    """Files in a repository that would be loaded instead of the `new` ones, or beside them, folder by folder: of a model its
    shards, index or whole file of earlier, and an adapter, which would be put on top; of an adapter only an older one."""
    new, gone = {*new}, []
    for name in sorted({*published} - new):
        folder, slash, file = name.rpartition("/")
        beside = {other.removeprefix(folder + slash) for other in new if other.rpartition("/")[0] == folder}
        is_adapter = "adapter_config.json" in beside
        if not is_adapter and not any(WEIGHTS.fullmatch(other) for other in beside):
            continue
        if ADAPTER.fullmatch(file) or (not is_adapter and WEIGHTS.fullmatch(file)):
            gone.append(name)
    return gone

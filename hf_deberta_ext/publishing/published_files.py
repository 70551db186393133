# SPDX-License-Identifier: Apache-2.0
"""Allow-list of published files: those of a model, with a reason for every other file of a folder."""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from ..model.checkpoint_files import TOKENIZER_PATTERNS, WEIGHT_PATTERNS
from ..model.remote_code import is_model_code
from .card_checks import linked_pictures

__all__ = ["MODEL_FILES", "MODEL_FOLDERS", "published_files"]
# A joint model's parts, and its exports.
MODEL_FOLDERS = ("discriminator", "generator", "onnx")
# Models of sentence-transformers have one for each module that modules.json lists, as 1_Pooling.
MODULE_FOLDER = re.compile(r"\d+_[A-Za-z]\w*")
# Published files of a model's folder and of these folders in it.
MODEL_FILES = (
    "config.json", "generation_config.json",
    *WEIGHT_PATTERNS, *TOKENIZER_PATTERNS, "*.onnx", "*.onnx.data", "*.onnx_data",
    "README.md", "LICENSE*", "*_results.json",
    "modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
)  # fmt: skip
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp")
# Why well-known files stay; the first that fits says it. Folders end in a slash.
LEFT_OUT = {
    ".gitattributes": "the Hub keeps its own",
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
NOT_OURS = "not a file of a model: --include {} adds it"


def published_files(folder: str | os.PathLike, include: Iterable[str] = ()) -> tuple[dict[str, Path], dict[str, str]]:
    """Sorts the files in the folder of a model, or of a run that has trained one.

    Published are the files of a model (`MODEL_FILES`) and its code (Python with our mark), in it, in `MODEL_FOLDERS` and in
    the module folders of sentence-transformers; and the pictures that a card among them shows.

    Args:
        include (`list[str]`): patterns of more files. One without a slash is for names in `folder` itself ("*.txt"), one
            with a slash for paths below it ("figures/*"). Files that are left out for a reason of their own (`LEFT_OUT`,
            hidden files) have to be named by their whole path.

    Returns:
        (path in the repository -> file, path that is left out -> reason), both sorted. Folders end in a slash, and stand for
        all files in them that are not published.

    Raises:
        ValueError: `folder` is none, or a pattern fits no file.
    """
    folder, include = Path(folder), tuple(include)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    files = dict(files_below(folder))
    published = {path: file for path, file in files.items() if is_of_model(path, file, files)}
    pictures = [path for path in shown_pictures(published) if path in files and specific_reason(path) is None]
    included = {pattern: [path for path in files if matches(path, pattern)] for pattern in include}
    if unmet := [pattern for pattern, paths in included.items() if not paths]:
        raise ValueError(
            f"--include {' '.join(unmet)} fits no file in {folder}; files that are hidden or left out for a reason of their "
            "own, and files in folders, have to be named by their path"
        )
    published |= {path: files[path] for paths in (pictures, *included.values()) for path in paths}
    left_out = dict(left_out_entry(path) for path in files if path not in published)
    return dict(sorted(published.items())), dict(sorted(left_out.items()))


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
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


def matches(path: str, pattern: str) -> bool:
    if path == pattern:
        return True
    if specific_reason(path) is not None:
        return False
    return ("/" in pattern or "/" not in path) and fnmatchcase(path, pattern)


def is_of_model(path: str, file: Path, paths: Iterable[str]) -> bool:
    """True for files of a model; `paths` are those of its whole folder."""
    *folders, name = path.split("/")
    if len(folders) > 1:
        return False
    if folders and folders[0] not in MODEL_FOLDERS and not (MODULE_FOLDER.fullmatch(folders[0]) and "modules.json" in paths):
        return False
    if name.endswith(".py"):
        return is_model_code(file)
    return any(fnmatchcase(name, pattern) for pattern in MODEL_FILES)


def shown_pictures(files: Mapping[str, Path]) -> Iterator[str]:
    """Paths of the pictures in the cards, whether they are there or not."""
    for path, file in files.items():
        if path.rpartition("/")[2] == "README.md":
            for _, link in linked_pictures(file.read_text(encoding="utf-8", errors="replace")):
                if link.lower().endswith(PICTURES):
                    yield posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def specific_reason(path: str) -> str | None:
    """The reason of `LEFT_OUT` for a file or for a folder that it is in; None without one."""
    *folders, name = path.split("/")
    for part in (*(f"{folder}/" for folder in folders), name):
        for pattern, reason in LEFT_OUT.items():
            if fnmatchcase(part, pattern) and pattern.endswith("/") == part.endswith("/"):
                return reason
        if part.startswith("."):
            return "hidden"
    return None


def left_out_entry(path: str) -> tuple[str, str]:
    """(the file, or the folder that it is in where that is left out as a whole; why)."""
    *folders, name = path.split("/")
    inside = f"{folders.pop(0)}/" if folders and folders[0] in MODEL_FOLDERS else ""
    # A folder is one entry, whatever it holds.
    shown = f"{inside}{folders[0]}/" if folders else f"{inside}{name}"
    # The reason of a folder is not that of one of its files.
    if reason := specific_reason(shown):
        return shown, reason
    if shown.endswith(PICTURES):
        return shown, f"a picture that no card shows: --include {shown} adds it"
    if shown.endswith(".py"):
        return shown, f"not of the model's code: --include {shown} adds it"
    return shown, NOT_OURS.format(f"{shown}*" if folders else shown)

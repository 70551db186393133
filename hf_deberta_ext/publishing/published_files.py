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

__all__ = ["published_files"]
# A joint model's parts, and its exports.
MODEL_FOLDERS = ("discriminator", "generator", "onnx")
# Models of sentence-transformers have one for each module that modules.json lists, as 1_Pooling.
MODULE_FOLDER = re.compile(r"\d+_[A-Za-z]\w*")
# Published files of a model's folder and of these folders in it.
MODEL_FILES = (
    "config.json", "generation_config.json",
    *WEIGHT_PATTERNS, *TOKENIZER_PATTERNS, "*.onnx", "*.onnx.data", "*.onnx_data",
    "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt",
    "all_results.json", "train_results.json", "eval*_results.json", "predict*_results.json",
    "modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
)  # fmt: skip
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp")
# Why well-known files stay; patterns of --include do not take them. Folders end in a slash.
LEFT_OUT = {
    "the Hub keeps its own": (".gitattributes",),
    "a checkpoint of the training, with the state of its optimizer": ("checkpoint-*/",),
    "names files of this machine": ("training_args.bin", "trainer_state.json", "run_arguments.json", "run_report.json"),
    "state of the training": ("optimizer.*", "scheduler.*", "scaler.*", "rng_state*"),
    "the run's own copy of the tokenizer, which lies beside the model": ("tokenizer/",),
    "logs": ("runs/", "logs/", "wandb/", "*.log", "events.out.tfevents*"),
    "predictions": ("*predict*", "*_answers.*", "*nbest*", "*null_odds*"),
    "Python's cache": ("__pycache__/",),
    "a file that was not written to its end": ("*.part",),
    "hidden": (".*", ".*/"),
}  # fmt: skip


def published_files(folder: str | os.PathLike, include: Iterable[str] = ()) -> tuple[dict[str, Path], dict[str, str]]:
    """Sorts the files in the folder of a model, or of a run that has trained one.

    Published are the files of a model (`MODEL_FILES`) and its code (Python with our mark), in it, in `MODEL_FOLDERS` and in
    the module folders of sentence-transformers; and the pictures that a card among them shows.

    Args:
        include (`list[str]`): patterns of more files. One without a slash is for names in `folder` itself ("*.txt"), one
            with a slash for paths below it ("figures/*"). Files of `LEFT_OUT` have to be named by their whole path.

    Returns:
        (path in the repository -> file, path that is not published -> why, and what adds it), both sorted. Folders end in a
        slash, and stand for all files in them that are not published.

    Raises:
        ValueError: a pattern fits no file, or a file to be published is a link that leaves the folder.
    """
    folder, include = Path(folder), tuple(include)
    files = dict(files_below(folder))
    outside = {path: target for path, file in files.items() if (target := target_outside(file, folder.resolve()))}
    published = {path: file for path, file in files.items() if is_of_model(path, file, files)}
    pictures = [path for path in shown_pictures(published) if path in files and specific_reason(path) is None]
    included = {pattern: [path for path in files if matches(path, pattern)] for pattern in include}
    if unmet := [pattern for pattern, paths in included.items() if not paths]:
        raise ValueError(
            f"--include {' '.join(unmet)} fits no file in {folder}; files that are hidden or left out for a reason of their "
            "own, and files in folders, have to be named by their path"
        )
    published |= {path: files[path] for paths in (pictures, *included.values()) for path in paths}
    if links := sorted(outside.keys() & published.keys()):
        raise ValueError(
            f"{links[0].rstrip('/')} is a link to {outside[links[0]]}, outside of {folder}, and is not followed: copy "
            "what it leads to into the folder, or take the link away"
        )
    left_out = dict(left_out_entry(path) for path in files if path not in published and path not in outside)
    left_out |= {path: f"a link to {target}, outside of the folder" for path, target in outside.items()}
    return dict(sorted(published.items())), dict(sorted(left_out.items()))


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """(path with slashes, file) of all files below. Folders of the first level may be links within `folder`; one that leaves
    it is an entry that ends in a slash. Links to folders below them might lead in a circle."""
    for entry in sorted(folder.iterdir()):
        if entry.is_file():
            yield entry.name, entry
        elif entry.is_dir() and target_outside(entry, folder.resolve()):
            yield f"{entry.name}/", entry
        elif entry.is_dir():
            for place, _, names in os.walk(entry):
                for name in sorted(names):
                    if (file := Path(place, name)).is_file():
                        yield file.relative_to(folder).as_posix(), file


def target_outside(file: Path, folder: Path) -> Path | None:
    """Target of a link that leaves `folder`, given without links; None for any other file.

    The Hub's cache has a folder of links for each commit, models--user--name/snapshots/COMMIT: those to the blobs of the
    same repository, and to the cache's own for all repositories, are files of the folder.
    """
    target, repo = file.resolve(), folder.parent.parent
    is_snapshot = folder.parent.name == "snapshots" and repo.name.startswith("models--")
    places = (folder, repo / "blobs", repo.parent / "blobs") if is_snapshot else (folder,)
    return None if any(target.is_relative_to(place) for place in places) else target


def matches(path: str, pattern: str) -> bool:
    if path == pattern or (path.endswith("/") and pattern.startswith(path)):
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
    if not name:
        # A link in place of the folder.
        return True
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
        for reason, patterns in LEFT_OUT.items():
            if any(fnmatchcase(part, pattern) and pattern.endswith("/") == part.endswith("/") for pattern in patterns):
                return reason
    return None


def left_out_entry(path: str) -> tuple[str, str]:
    """(the file, or the folder that it is in where that is left out as a whole; why, and what adds it)."""
    *folders, name = path.split("/")
    inside = f"{folders.pop(0)}/" if folders and folders[0] in MODEL_FOLDERS else ""
    # A folder is one entry, whatever it holds.
    shown = f"{inside}{folders[0]}/" if folders else f"{inside}{name}"
    # The reason of a folder is not that of one of its files.
    reason = specific_reason(shown)
    if reason is None:
        return shown, f"add --include {shown}{'*' if folders else ''}"
    return shown, f"{reason}: add --include {shown}{'NAME' if folders else ''}"

# SPDX-License-Identifier: Apache-2.0
"""Convert official, stock and own checkpoints into folders of this package or of stock deberta-v2, and check the result."""

import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.files import read_json
from ..files import free_name
from ..heads import model_class
from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from ..tokenization import check_tokenizer, load_tokenizer
from . import verification
from .checkpoint_contents import CheckpointContents, compare_with_class, fetch, read_contents
from .deberta_v2 import save_as_deberta_v2

__all__ = ["convert"]

# The half of a joint model that becomes each head.
HALVES = {"replaced-token-detection": "discriminator", "base": "discriminator", "masked-lm": "generator"}
# Files and folders of sentence-transformers.
MODULES = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]_*")


def convert(
    source: str,
    output: str,
    *,
    to: str = "deberta-ext",
    head: str = "auto",
    dtype: str | None = None,
    max_shard_size: str | None = None,
    lossy: bool = False,
    tokenizer: str | None = None,
    revision: str | None = None,
    overwrite: bool = False,
    full_report: bool = False,
    report: Callable[[str], None] = print,
) -> None:
    """Write a checkpoint as another folder, which appears once it is complete and checked; arguments as of the command.

    Args:
        full_report (`bool`): Print every line of the loading report, not only its summary and notes.
        report (`Callable`): Takes each line of the report.

    Raises:
        OSError: There is no such source, or the output exists.
        ValueError: The source is incomplete, the head is not in it, or the written folder differs from the source.
    """
    target = Path(os.path.abspath(output))
    if Path.cwd().is_relative_to(target):
        raise ValueError(f"OUTPUT {output} is or contains the working directory: choose another folder")
    if is_in_use(target) and not overwrite:
        raise OSError(f"{output} is there already: choose another folder, or give --overwrite to move it aside")
    if max_shard_size and to != "deberta-ext":
        raise ValueError("--max_shard_size is only for --to deberta-ext")
    contents = read_contents(source, revision=revision, weights=True)
    if contents.problems:
        raise ValueError("\n".join([f"{source} cannot be converted:", *contents.problems]))
    report(f"source: {source}, {contents.kind()}")
    is_chosen = head != "auto"
    if not is_chosen:
        head = choose_head(contents, to)
    if contents.is_joint and (head not in ("pretraining", *HALVES) or (head == "pretraining" and to == "deberta-v2")):
        raise ValueError(
            f"{source} holds a generator and a discriminator: choose --head replaced-token-detection (the discriminator), "
            "masked-lm (the generator) or base, and convert the result for another head"
        )
    _, resized = compare_with_class(contents, head)
    if resized:
        raise ValueError(f"{source}: {resized[0]}; is the number of labels (id2label) right?")
    dtype = dtype or choose_dtype(contents, head)
    others = ", ".join(name for name in contents.heads if name != head)
    report(f"head: {head}" + (f"; the files also hold {others}, see --head" if others else ""))
    report(f"dtype: {dtype}; the files have {', '.join(contents.dtypes)}")
    encoder = find_tokenizer(contents, tokenizer, report)
    model = load_source(contents, head, dtype)
    check_new_parameters(model, head, is_chosen, report)
    for line in str(model.loading_report).splitlines():
        if full_report or line == model.loading_report.summary() or line.startswith("note: "):
            report(f"report: {line}")
    if encoder is not None:
        try:
            check_tokenizer(encoder, model)
        except ValueError as error:
            raise ValueError(f"{error}; or give --tokenizer none") from error

    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        for note in write_folder(model, encoder, written, to=to, lossy=lossy, max_shard_size=max_shard_size):
            report(f"note: {note}")
        if not is_chosen:
            copy_modules(contents.folder, written, report)
        for check in verification.check_folder(model, written, to):
            report(f"checked: {check}")
        if encoder is not None:
            report(f"checked: {verification.check_written_tokenizer(encoder, written)}")
        aside = put_in_place(written, target)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    if aside is not None:
        report(f"moved aside: what was in {output} is in {aside.name} now")
    report(f"written: {output} ({to}, {read_json(target / 'config.json')['architectures'][0]})")


def choose_head(contents: CheckpointContents, to: str) -> str:
    """Return the head to write where the user chooses none."""
    heads = contents.heads
    if "pretraining" in heads and (to == "deberta-ext" or contents.is_joint):
        return "pretraining"
    # A discriminator as published also carries a masked-language-model head, which its training did not use.
    if {*heads[:2]} == {"masked-lm", "replaced-token-detection"}:
        return "replaced-token-detection"
    return heads[0] if heads else "base"


def choose_dtype(contents: CheckpointContents, head: str) -> str:
    """Return the dtype of the files; float32 for several, and for a difference of two tables in half precision."""
    if len(contents.dtypes) != 1 or (head == "pretraining" and not contents.is_joint):
        return "float32"
    return contents.dtypes[0]


def load_source(contents: CheckpointContents, head: str, dtype: str) -> DebertaExtPreTrainedModel:
    """Load the source as a model of this package, in eval mode, with a loading report."""
    if not contents.is_joint or head == "pretraining":
        return model_class(head).from_pretrained(str(contents.folder), dtype=getattr(torch, dtype)).eval()
    joint = model_class("pretraining").from_pretrained(str(contents.folder), dtype=getattr(torch, dtype))
    if HALVES[head] == "generator":
        model = joint.export_generator()
    else:
        model = joint.export_discriminator()
    if head == "base":
        model = model.deberta
    model.loading_report = joint.loading_report
    model.loading_report.notes.append(f"the {HALVES[head]} was taken out of the joint model")
    return model.eval()


def check_new_parameters(model: DebertaExtPreTrainedModel, head: str, is_chosen: bool, report: Callable[[str], None]):
    """Warn of a new head.

    Raises:
        ValueError: Parameters of the encoder would be drawn at random, or those of a head that the user did not choose.
    """
    new = model.loading_report.initialised
    encoder = [name for name in new if ".encoder." in name or ".embeddings." in name or name.startswith("encoder.")]
    if encoder:
        raise ValueError(f"{len(encoder)} parameters are not in the files and no part of a new head, such as {encoder[0]}")
    if new and not is_chosen:
        raise ValueError(f"{', '.join(new)} would be drawn at random; --head {head} writes them all the same")
    if new:
        report(f"warning: the head is new, drawn at random: {', '.join(new)}. Train it before you use it")


def find_tokenizer(contents: CheckpointContents, source: str | None, report: Callable[[str], None]) -> Any:
    """Return the tokenizer of `source` (None: of the checkpoint, if it has one; "none": no tokenizer)."""
    if source == "none":
        return None
    try:
        tokenizer = load_tokenizer(contents.folder if source is None else fetch(source))
    except OSError:
        if source is not None:
            raise
        report(f"tokenizer: there is none in {contents.source}; --tokenizer takes it from elsewhere")
        return None
    report(f"tokenizer: {len(tokenizer)} tokens, from {source or contents.source}")
    return tokenizer


def write_folder(
    model: DebertaExtPreTrainedModel, tokenizer: Any, folder: Path, *, to: str, lossy: bool, max_shard_size: str | None
) -> list[str]:
    """Write model and tokenizer into `folder`; return notes on what the format cannot hold."""
    notes = []
    if to == "deberta-v2":
        try:
            notes = save_as_deberta_v2(model, folder, lossy=lossy)
        except ValueError as error:
            raise ValueError(str(error).replace("pass lossy=True", "give --lossy")) from error
    elif max_shard_size:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    else:
        model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return notes


def copy_modules(source: Path, folder: Path, report: Callable[[str], None]):
    """Copy the settings of sentence-transformers (activation of the scores, prompts, ...) and its further modules."""
    if not (source / "modules.json").is_file():
        return
    for path in sorted(source.iterdir()):
        if not any(fnmatchcase(path.name, pattern) for pattern in MODULES):
            continue
        report(f"sentence-transformers: {path.name} is copied")
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy(path, folder / path.name)


def is_in_use(folder: Path) -> bool:
    """Tell anything but an empty folder."""
    if folder.is_dir() and not folder.is_symlink():
        return any(folder.iterdir())
    return folder.is_symlink() or folder.exists()


def put_in_place(written: Path, target: Path) -> Path | None:
    """Rename `written` to `target`; return the new name of an old `target`."""
    aside = None
    if is_in_use(target):
        aside = free_name(target)
        target.rename(aside)
    elif target.exists():
        target.rmdir()
    try:
        written.rename(target)
    except OSError:
        if aside is not None:
            aside.rename(target)
        raise
    return aside

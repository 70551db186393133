# SPDX-License-Identifier: Apache-2.0
"""Converting official, stock and own checkpoints into folders of this package or of stock deberta-v2, and checking them."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from ..files import free_name
from ..model.checkpoint_files import read_json
from ..model.pretrained_model import DebertaExtPreTrainedModel
from ..tokenization import check_tokenizer, load_tokenizer
from . import verification
from .checkpoint_contents import HEADS, CheckpointContents, fetch, read_contents
from .deberta_v2 import save_as_deberta_v2

__all__ = ["convert"]

DTYPES = ("float32", "float16", "bfloat16")
# The half of a joint model that becomes each head.
HALVES = {"replaced-token-detection": "discriminator", "base": "discriminator", "masked-lm": "generator"}
# Files and folders of sentence-transformers.
MODULES = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]_*")
# Of the loading report.
LINES_OF_A_KIND = 8


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
    """Write a checkpoint as another folder, which appears once it is whole and checked; arguments as those of the command.

    Args:
        full_report (`bool`): every line of the loading report.
        report (`Callable`): takes each line of the report.

    Raises:
        OSError: no such source, or the output exists.
        ValueError: the source is incomplete, the head is not in it, or the written folder differs from the source.
    """
    target = Path(os.path.abspath(output))
    if Path.cwd().is_relative_to(target):
        raise ValueError(f"OUTPUT {output} is the working directory, or around it: choose another folder")
    if is_in_use(target) and not overwrite:
        raise OSError(f"{output} is there already: choose another folder, or give --overwrite to move it aside")
    if max_shard_size and to != "deberta-ext":
        raise ValueError("--max_shard_size is for --to deberta-ext alone")
    contents = read_contents(source, revision=revision, weights=True)
    if contents.problems:
        raise ValueError("\n".join([f"{source} cannot be converted:", *contents.problems]))
    chosen_head, head_reason = (head, "as asked for") if head != "auto" else choose_head(contents, to)
    if head != "auto":
        check_head(contents, head)
    chosen_dtype, dtype_reason = (dtype, "as asked for") if dtype else choose_dtype(contents, chosen_head)
    report(f"source: {source}, {contents.kind()}")
    report(f"head: {chosen_head}, {head_reason}")
    report(f"dtype: {chosen_dtype}, {dtype_reason}")
    loaded_tokenizer = find_tokenizer(contents, tokenizer, report)
    model = load_source(contents, chosen_head, chosen_dtype)
    check_new_parameters(model, head, chosen_head, report)
    report_loading(model, full_report, report)
    if loaded_tokenizer is not None:
        try:
            check_tokenizer(loaded_tokenizer, model)
        except ValueError as error:
            raise ValueError(f"{error}; or give --tokenizer none") from error

    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        for note in write_folder(model, loaded_tokenizer, written, to=to, lossy=lossy, max_shard_size=max_shard_size):
            report(f"note: {note}")
        if head == "auto" and (modules := copy_modules(contents.folder, written)):
            report(f"sentence-transformers: {', '.join(modules)}, as in {source}")
        checks = verification.check_folder(model, written, to)
        wider = [name for name in contents.dtypes if chosen_dtype not in (name, "float32")]
        if wider and model.loading_report.initialised:
            checks.append("the effect of the narrower dtype was not measured: the head is new")
        elif wider:
            original = load_source(contents, chosen_head, "float32")
            checks.append(verification.measure_rounding(original, model, wider[0]))
        if loaded_tokenizer is not None:
            checks.append(verification.check_written_tokenizer(loaded_tokenizer, written))
        aside = put_in_place(written, target)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    for check in checks:
        report(f"checked: {check}")
    if aside is not None:
        report(f"moved aside: what was in {output} is in {aside.name} now")
    sizes = [file.stat().st_size for file in target.rglob("*") if file.is_file()]
    architecture = read_json(target / "config.json")["architectures"][0]
    report(f"written: {output} ({to}, {architecture}, {len(sizes)} files, {sum(sizes):,} bytes)")


def choose_head(contents: CheckpointContents, to: str) -> tuple[str, str]:
    """The head that is in the files, and the reason for it."""
    if contents.is_joint and to != "deberta-ext":
        raise ValueError(
            f"{contents.source} holds a generator and a discriminator, which together have no counterpart in transformers: "
            "choose --head replaced-token-detection (the discriminator), masked-lm (the generator) or base"
        )
    if "pretraining" in contents.heads and to == "deberta-ext":
        return "pretraining", "generator and discriminator are there"
    heads = [head for head in contents.heads if head != "pretraining"]
    if not heads:
        names = [name for name in contents.config.get("architectures") or [] if "For" in name]
        missing = f" (config.json names {names[0]}, whose head is not in the file)" if names else ""
        return "base", f"the file holds no whole head{missing}"
    # A discriminator as published also carries a masked-language-model head, which its training did not use.
    head = "replaced-token-detection" if {*heads[:2]} == {"masked-lm", "replaced-token-detection"} else heads[0]
    rest = [name for name in heads if name != head]
    alternatives = f"; {', '.join(rest)} is there as well: --head {rest[0]} writes that" if rest else ""
    return head, f"whose parameters are in the file ({HEADS[head].__name__}){alternatives}"


def check_head(contents: CheckpointContents, head: str):
    """
    Raises:
        ValueError: the head that the user chose is of another size in the files, or neither half of a joint model has it.
    """
    for name in contents.new.get(head, ()):
        if name in contents.converted:
            labels = "; is its number of labels (id2label) right?" if name.startswith("classifier") else ""
            raise ValueError(
                f"{name} has shape {list(contents.converted[name])} in {contents.source}, another than config.json makes it "
                f"for --head {head}{labels}"
            )
    if contents.is_joint and head not in ("pretraining", *HALVES):
        raise ValueError(
            f"{contents.source} holds a generator and a discriminator; --head {head} would be new. Take the "
            "discriminator out first, --head replaced-token-detection"
        )


def choose_dtype(contents: CheckpointContents, head: str) -> tuple[str, str]:
    """The dtype of the weights, and the reason for it."""
    dtypes = [dtype for dtype in contents.dtypes if dtype in DTYPES]
    if len(dtypes) != 1:
        return "float32", f"the file has {', '.join(contents.dtypes)}"
    if head == "pretraining" and not contents.is_joint and dtypes != ["float32"]:
        return "float32", f"the file's {dtypes[0]} cannot hold the difference of the two tables exactly"
    return dtypes[0], "that of the file"


def load_source(contents: CheckpointContents, head: str, dtype: str) -> DebertaExtPreTrainedModel:
    """The source as a model of this package, in evaluation mode, with a loading report."""
    model_class = HEADS["pretraining" if contents.is_joint else head]
    model = model_class.from_pretrained(str(contents.folder), dtype=getattr(torch, dtype))
    loading_report = model.loading_report
    loading_report.source = contents.source
    if contents.is_joint and head != "pretraining":
        model = model.export_generator() if HALVES[head] == "generator" else model.export_discriminator()
        model = model.deberta if head == "base" else model
        loading_report.notes.append(f"the {HALVES[head]} was taken out of the two")
    model.loading_report = loading_report
    return model.eval()


def report_loading(model: DebertaExtPreTrainedModel, full_report: bool, report: Callable[[str], None]):
    """The loading report; without `full_report` long lists are cut, and renamed or split tensors left out."""
    halves = [getattr(model, name, None) for name in ("generator", "discriminator")]
    reports = [half.loading_report for half in halves if half is not None and half.loading_report is not None]
    for loading_report in reports or [model.loading_report]:
        counts: Counter[str] = Counter()
        for line in str(loading_report).splitlines():
            kind = line.partition(": ")[0]
            counts[kind] += 1
            if full_report or (kind != "converted" and counts[kind] <= LINES_OF_A_KIND):
                report(f"report: {line}")
        for kind, lines in counts.items():
            if lines > LINES_OF_A_KIND and kind != "converted" and not full_report:
                report(f"report: {kind}: and {lines - LINES_OF_A_KIND} more; --debug lists all")


def check_new_parameters(model: DebertaExtPreTrainedModel, head: str, chosen_head: str, report: Callable[[str], None]):
    """
    Raises:
        ValueError: parameters of the encoder would be drawn at random, or those of a head that the user did not ask for.
    """
    new = model.loading_report.initialised
    encoder = [name for name in new if ".encoder." in name or ".embeddings." in name or name.startswith("encoder.")]
    if encoder:
        rest = f" and {len(encoder) - 1} more" if len(encoder) > 1 else ""
        raise ValueError(f"{encoder[0]}{rest} would be drawn at random: not in the files, and no part of a new head")
    if new and head == "auto":
        raise ValueError(f"{', '.join(new)} would be drawn at random; --head {chosen_head} writes them all the same")
    if new:
        report(f"warning: the head is new, drawn at random: {', '.join(new)}. Train it before you use it")


def find_tokenizer(contents: CheckpointContents, source: str | None, report: Callable[[str], None]) -> Any:
    """The tokenizer of `source` ("none": of nothing), by default the one of the checkpoint where it has one."""
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
    """Write model and tokenizer into `folder`; returns notes on the information that the format cannot hold."""
    notes = []
    if to == "deberta-v2":
        try:
            notes = save_as_deberta_v2(model, folder, lossy=lossy)
        except ValueError as error:
            raise ValueError(str(error).replace("pass lossy=True", "give --lossy")) from error
    else:
        model.save_pretrained(folder, **({"max_shard_size": max_shard_size} if max_shard_size else {}))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return notes


def copy_modules(source: Path, folder: Path) -> list[str]:
    """Copy the settings of sentence-transformers (activation of the scores, prompts, ...) and its further modules."""
    if not (source / "modules.json").is_file():
        return []
    found = [path for path in sorted(source.iterdir()) if any(fnmatchcase(path.name, name) for name in MODULES)]
    for path in found:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
    return [path.name for path in found]


def is_in_use(folder: Path) -> bool:
    """Tell anything but an empty folder."""
    return folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir())))


def put_in_place(written: Path, target: Path) -> Path | None:
    """Rename `written` to `target`; returns the new name of an old `target`."""
    aside = free_name(target) if is_in_use(target) else None
    if aside is not None:
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

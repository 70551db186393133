# SPDX-License-Identifier: Apache-2.0
"""Convert checkpoints to the format of this package, to int8, ONNX or transformers' deberta-v2; check the result."""

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.files import read_json
from ..export import export_onnx, quantise_onnx
from ..files import free_name
from ..heads import model_class
from ..int8 import quantise
from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from ..tokenization import check_tokenizer, load_tokenizer
from . import verification
from .checkpoint_contents import CheckpointContents, compare_with_class, read_contents
from .deberta_v2 import save_as_deberta_v2

__all__ = ["convert"]

# Head to write -> which of the two models in a joint model has this head.
HALVES = {"replaced-token-detection": "discriminator", "base": "discriminator", "masked-lm": "generator"}
# Files and folders of sentence-transformers: activation function of the scores, prompts, further modules.
MODULES = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]_*")

# Formats that are made from a single float32 model; the result is compared with this model on texts.
FROM_FLOAT32 = ("int8", "onnx", "onnx-int8")
ONNX_FILE = "model.onnx"


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
    texts: str | None = None,
) -> None:
    """Convert a checkpoint, write the result to the folder `output`, and print a report.

    The result is written to a temporary folder, checked, and then renamed to `output`.

    `deberta-ext convert --help` describes the arguments.

    Raises:
        OSError: If `source` does not exist, or `output` exists and `overwrite` is False.
        ValueError: If `source` lacks weights of the encoder, or lacks weights of the head and `head` is "auto"; or if the
            written folder has other tensors or outputs than `source`.
    """
    target = Path(os.path.abspath(output))
    if is_in_use(target) and not overwrite:
        raise OSError(f"{output} already exists: choose another folder, or pass --overwrite to rename the existing one")
    if max_shard_size and to != "deberta-ext":
        raise ValueError(f"--max_shard_size requires --to deberta-ext, got --to {to}")
    if to in FROM_FLOAT32 and dtype not in (None, "float32"):
        raise ValueError(f"--to {to} requires --dtype float32, got {dtype}; remove --dtype")
    if texts and to not in FROM_FLOAT32:
        raise ValueError(f"--texts requires one of --to {', '.join(FROM_FLOAT32)}, got --to {to}; remove --texts")
    compared = Path(texts).read_text(encoding="utf-8").splitlines() if texts else None
    contents = read_contents(source, revision=revision, weights=True)
    if contents.problems:
        raise ValueError("\n".join([f"{source} cannot be converted:", *contents.problems]))
    print(f"source: {source}, {contents.kind()}")
    is_chosen = head != "auto"
    if not is_chosen:
        head = choose_head(contents, to)
    if contents.is_joint and (head not in ("pretraining", *HALVES) or (head == "pretraining" and to == "deberta-v2")):
        raise ValueError(
            f"{source} contains generator and discriminator: choose --head replaced-token-detection (the discriminator), "
            "masked-lm (the generator) or base. For another head, convert to base, then convert the result to that head"
        )
    if to in FROM_FLOAT32 and head == "pretraining":
        raise ValueError(f"--to {to} converts a single model: choose --head replaced-token-detection or masked-lm")
    _, resized = compare_with_class(contents, head)
    if resized:
        raise ValueError(f"{source}: {resized[0]}; check the number of labels (id2label)")
    if to in FROM_FLOAT32:
        dtype = "float32"
    elif dtype is None:
        dtype = "float32"
        # Not for "pretraining": half precision would round E_delta, the difference between Microsoft's two embedding tables.
        if len(contents.dtypes) == 1 and (head != "pretraining" or contents.is_joint):
            dtype = contents.dtypes[0]
    print(f"head: {head}; the files contain {', '.join(contents.heads) or 'none'} (choose with --head)")
    print(f"dtype: {dtype}; the files contain {', '.join(contents.dtypes)}")
    encoder = find_tokenizer(contents, tokenizer)
    model = load_source(contents, head, dtype)
    check_new_parameters(model, head, is_chosen)
    print("\n".join([model.loading_report.summary(), *model.loading_report.notes]))
    if encoder is not None:
        check_tokenizer(encoder, model)
    original = model
    if to == "int8":
        model = quantise(copy.deepcopy(model))

    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        write_folder(model, encoder, written, to=to, lossy=lossy, max_shard_size=max_shard_size)
        if not is_chosen and (contents.folder / "modules.json").is_file():
            copy_modules(contents.folder, written)
        for check in checks(model, written, to):
            print(f"checked: {check}")
        if to in FROM_FLOAT32 and encoder is not None and head != "multiple-choice":
            converted = model if to == "int8" else verification.OnnxFile(written / ONNX_FILE)
            for line in verification.compare_on_texts(original, converted, to, encoder, compared):
                print(f"compared: {line}")
        if is_in_use(target):
            print(f"renamed: the previous {output} is now {target.rename(free_name(target)).name}")
        # Also replaces an empty folder.
        os.replace(written, target)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    print(f"written: {output} ({to}, {read_json(target / 'config.json')['architectures'][0]})")


def checks(model: DebertaExtPreTrainedModel, folder: Path, to: str) -> list[str]:
    """Compare the written folder with the model; return one line of text for each comparison."""
    if to == "onnx":
        return [verification.check_onnx(model, folder / ONNX_FILE)]
    if to == "onnx-int8":
        return []
    return verification.check_folder(model, folder, to)


def choose_head(contents: CheckpointContents, to: str) -> str:
    """Return the default head to write in format `to`: the head of the checkpoint, or "base" if it has none."""
    heads = contents.heads
    if "pretraining" in heads and (to == "deberta-ext" or contents.is_joint):
        return "pretraining"
    # Microsoft's discriminators also contain a masked-language-model head, which their training did not use.
    if {*heads[:2]} == {"masked-lm", "replaced-token-detection"}:
        return "replaced-token-detection"
    return (heads or ["base"])[0]


def load_source(contents: CheckpointContents, head: str, dtype: str) -> DebertaExtPreTrainedModel:
    """Load the checkpoint into the class of `head`, in eval mode.

    From a joint model, return the discriminator or generator, whichever has this head ("pretraining": the joint model)."""
    options = dict(dtype=getattr(torch, dtype))
    if not contents.is_joint or head == "pretraining":
        return model_class(head).from_pretrained(str(contents.folder), **options).eval()
    joint = model_class("pretraining").from_pretrained(str(contents.folder), **options)
    model = getattr(joint, f"export_{HALVES[head]}")()
    if head == "base":
        model = model.deberta
    model.loading_report = joint.loading_report
    model.loading_report.notes.append(f"the {HALVES[head]} was exported from the joint model")
    return model.eval()


def check_new_parameters(model: DebertaExtPreTrainedModel, head: str, is_chosen: bool) -> None:
    """Raise a ValueError for newly initialised parameters. If only the head has such parameters, and the user chose the
    head (`is_chosen`), print a warning instead."""
    new = model.loading_report.initialised
    encoder = [name for name in new if ".encoder." in name or ".embeddings." in name or name.startswith("encoder.")]
    if encoder:
        raise ValueError(f"{len(encoder)} parameters of the encoder are missing in the files, such as {encoder[0]}")
    if new and not is_chosen:
        raise ValueError(
            f"{', '.join(new)} would be newly initialised, because the files lack them; pass --head {head} to allow this"
        )
    if new:
        print(f"warning: the head is newly initialised: {', '.join(new)}. Train the head before you use the model")


def find_tokenizer(contents: CheckpointContents, source: str | None) -> Any:
    """Load the tokenizer from `source`, or from the checkpoint if `source` is None.

    Return None if `source` is "none", or if `source` is None and the checkpoint has no tokenizer.
    """
    if source == "none":
        return None
    try:
        tokenizer = load_tokenizer(source or contents.folder)
    except OSError:
        if source is not None:
            raise
        print(f"tokenizer: none in {contents.source}; pass --tokenizer to load it from another folder or repository")
        return None
    print(f"tokenizer: {len(tokenizer)} tokens, from {source or contents.source}")
    return tokenizer


def write_folder(
    model: DebertaExtPreTrainedModel, tokenizer: Any, folder: Path, *, to: str, lossy: bool, max_shard_size: str | None
) -> None:
    """Save model and tokenizer in `folder`; print a note for each feature that the format `to` does not support."""
    if to == "deberta-v2":
        for note in save_as_deberta_v2(model, folder, lossy=lossy):
            print(f"note: {note}")
    elif to in ("onnx", "onnx-int8"):
        write_onnx(model, folder, int8=to == "onnx-int8")
    elif max_shard_size:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    else:
        model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def write_onnx(model: DebertaExtPreTrainedModel, folder: Path, *, int8: bool) -> None:
    """Write model.onnx and the configuration."""
    if int8:
        with tempfile.TemporaryDirectory(dir=folder.parent) as exported:
            quantise_onnx(export_onnx(model, Path(exported, ONNX_FILE)), folder / ONNX_FILE)
    else:
        export_onnx(model, folder / ONNX_FILE)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)


def copy_modules(source: Path, folder: Path) -> None:
    """Copy files of sentence-transformers (`MODULES`) to `folder`; without these files, a cross-encoder's scores change."""
    for pattern in MODULES:
        for path in sorted(source.glob(pattern)):
            print(f"sentence-transformers: {path.name} is copied")
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                shutil.copy(path, folder)


def is_in_use(path: Path) -> bool:
    """Return True for a file or a non-empty folder."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists()

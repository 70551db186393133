# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext convert`: official, stock and own checkpoints as folders of this package or of stock deberta-v2, checked."""

import argparse
import copy
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ..conversion.checkpoint_contents import CheckpointContents
    from ..model.pretrained_model import DebertaExtPreTrainedModel

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "any official or stock DeBERTa checkpoint to this package's format and back to stock deberta-v2"
EXAMPLE = """\
deberta-ext convert microsoft/deberta-v3-base deberta-v3-base
deberta-ext convert microsoft/deberta-base deberta-base --head masked-lm --dtype float32
deberta-ext convert runs/mnli mnli-stock --to deberta-v2"""

TARGETS = ("deberta-ext", "deberta-v2")
HEAD_NAMES = (
    "base", "masked-lm", "replaced-token-detection", "sequence-classification", "token-classification",
    "question-answering", "multiple-choice", "pretraining",
)  # fmt: skip
DTYPE_NAMES = ("float32", "float16", "bfloat16")
# The parts of a joint model that can be taken out of it.
PARTS = {"replaced-token-detection": "discriminator", "base": "discriminator", "masked-lm": "generator"}
# Of the loading report.
LINES_OF_A_KIND = 8
# Of the outputs of transformers' class, relative to the largest: the same weights, summed in another order, in float32.
TOLERANCE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a folder, or the id of a Hub repository")
    parser.add_argument("output", metavar="OUTPUT", help="the folder to write")
    parser.add_argument("--to", choices=TARGETS, default=TARGETS[0], help="the format; default %(default)s")
    parser.add_argument("--head", choices=("auto", *HEAD_NAMES), default="auto", help="default: what the file holds")
    parser.add_argument("--dtype", choices=DTYPE_NAMES, help="default: that of the file")
    parser.add_argument("--max_shard_size", metavar="SIZE", help='of one weight file, such as "2GB"; --to deberta-ext alone')
    parser.add_argument("--lossy", action="store_true", help="--to deberta-v2 also where its classes compute something else")
    parser.add_argument("--tokenizer", metavar="SOURCE", help="where the tokenizer comes from, or none; default SOURCE")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--overwrite", action="store_true", help="an OUTPUT that is there is renamed to OUTPUT.old-1")


def run(arguments: argparse.Namespace) -> int:
    """Nothing is left behind where it fails, and OUTPUT appears when it is whole and checked.

    Raises:
        OSError: no such source, or OUTPUT is there.
        ValueError: the source is incomplete, the head is not in it, or what was written is not what was read.
    """
    from ..conversion.checkpoint_contents import read_contents
    from ..model.checkpoint_files import read_json

    output = Path(os.path.abspath(arguments.output))
    if Path.cwd().is_relative_to(output):
        raise ValueError(f"OUTPUT {arguments.output} is the working directory, or around it: choose another folder")
    if _is_in_use(output) and not arguments.overwrite:
        raise OSError(f"{arguments.output} is there already: choose another folder, or give --overwrite to move it aside")
    if arguments.max_shard_size and arguments.to != TARGETS[0]:
        raise ValueError("--max_shard_size is for --to deberta-ext alone")
    contents = read_contents(arguments.source, revision=arguments.revision, weights=True)
    if contents.problems:
        raise ValueError("\n".join([f"{arguments.source} cannot be converted:", *contents.problems]))
    head, why = _choose_head(contents, arguments.head, arguments.to)
    dtype, dtype_why = _choose_dtype(contents, arguments.dtype, head)
    print(f"source: {arguments.source}, {contents.kind()}")
    print(f"head: {head}, {why}")
    print(f"dtype: {dtype}, {dtype_why}")
    tokenizer = _load_tokenizer(contents, arguments.tokenizer)
    model = _load(contents, head, dtype)
    _check_new(model, head, asked=arguments.head != "auto")
    _print_report(model, everything=getattr(arguments, "debug", False))
    if tokenizer is not None:
        _check_tokenizer(tokenizer, model, contents)

    output.parent.mkdir(parents=True, exist_ok=True)
    written = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        notes = _write(model, tokenizer, written, arguments)
        for note in notes:
            print(f"note: {note}")
        checks = _verify(model, written, arguments.to)
        if rounded := [name for name in contents.dtypes if dtype not in (name, "float32")]:
            checks.append(_verify_rounding(model, contents, head, rounded[0]))
        if tokenizer is not None:
            checks.append(_verify_tokenizer(tokenizer, written))
        aside = _put_in_place(written, output)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    for check in checks:
        print(f"checked: {check}")
    if aside is not None:
        print(f"moved aside: what was in {arguments.output} is in {aside.name} now")
    sizes = [file.stat().st_size for file in output.iterdir()]
    architecture = read_json(output / "config.json")["architectures"][0]
    what = f"{arguments.to}, {architecture}, {len(sizes)} files, {sum(sizes):,} bytes"
    print(f"written: {arguments.output} ({what})")
    return 0


# ------- what to write


def _choose_head(contents: "CheckpointContents", wanted: str, to: str) -> tuple[str, str]:
    """The head, and why it was chosen."""
    from ..conversion.checkpoint_contents import HEADS

    heads = contents.heads
    if wanted != "auto":
        for name in [name for name in contents.new.get(wanted, ()) if name in contents.converted]:
            labels = "; is its number of labels (id2label) right?" if name.startswith("classifier") else ""
            raise ValueError(
                f"{name} has shape {list(contents.converted[name])} in {contents.source}, another than config.json makes it "
                f"for --head {wanted}{labels}"
            )
        if contents.is_joint and wanted != "pretraining" and wanted not in PARTS:
            raise ValueError(
                f"{contents.source} holds a generator and a discriminator; --head {wanted} would be new. Take the "
                "discriminator out first, --head replaced-token-detection"
            )
        return wanted, "as asked for"
    if contents.is_joint and to != "deberta-ext":
        raise ValueError(
            f"{contents.source} holds a generator and a discriminator, which together have no counterpart in transformers: "
            "choose --head replaced-token-detection (the discriminator), masked-lm (the generator) or base"
        )
    if "pretraining" in heads and to == "deberta-ext":
        return "pretraining", "generator and discriminator are there"
    heads = [head for head in heads if head != "pretraining"]
    if not heads:
        named = [name for name in contents.config.get("architectures") or [] if "For" in name]
        beside = f" (config.json names {named[0]}, whose head is not in the file)" if named else ""
        return "base", f"the file holds no whole head{beside}"
    # A discriminator as published also carries a masked-language-model head, which its training did not use.
    head = "replaced-token-detection" if {*heads[:2]} == {"masked-lm", "replaced-token-detection"} else heads[0]
    others = [name for name in heads if name != head]
    beside = f"; {', '.join(others)} is there as well: --head {others[0]} writes that" if others else ""
    return head, f"whose parameters are in the file ({HEADS[head].__name__}){beside}"


def _choose_dtype(contents: "CheckpointContents", wanted: str | None, head: str) -> tuple[str, str]:
    if wanted is not None:
        return wanted, "as asked for"
    found = [dtype for dtype in contents.dtypes if dtype in DTYPE_NAMES]
    if len(found) != 1:
        return "float32", f"the file has {', '.join(contents.dtypes)}"
    if head == "pretraining" and not contents.is_joint and found != ["float32"]:
        return "float32", f"the file's {found[0]} cannot hold the difference of the two tables exactly"
    return found[0], "that of the file"


def _load(contents: "CheckpointContents", head: str, dtype: str) -> "DebertaExtPreTrainedModel":
    """The source as a model of ours, in evaluation mode, with a loading report."""
    import torch

    from ..conversion.checkpoint_contents import HEADS
    from ..model.checkpoint_layouts import LoadingReport

    model_class = HEADS["pretraining" if contents.is_joint else head]
    options = dict(dtype=getattr(torch, dtype), output_loading_info=True)
    model, info = model_class.from_pretrained(str(contents.folder), **options)
    report = model.loading_report
    if report is None:
        report = LoadingReport("")
        report.complete({*model.state_dict()}, info)
    report.source = contents.source
    if contents.is_joint and head != "pretraining":
        model = model.export_generator() if PARTS[head] == "generator" else model.export_discriminator()
        model = model.deberta if head == "base" else model
        report.notes.append(f"the {PARTS[head]} was taken out of the two")
    model.loading_report = report
    return model.eval()


def _print_report(model: "DebertaExtPreTrainedModel", everything: bool):
    """The loading report; tensors that were split or renamed, and the end of long lists, only with `everything`."""
    parts = [getattr(model, name, None) for name in ("generator", "discriminator")]
    reports = [part.loading_report for part in parts if part is not None and part.loading_report is not None]
    for report in reports or [model.loading_report]:
        printed: Counter[str] = Counter()
        for line in str(report).splitlines():
            kind = line.partition(": ")[0]
            printed[kind] += 1
            if everything or (kind != "converted" and printed[kind] <= LINES_OF_A_KIND):
                print(f"report: {line}")
        for kind, lines in printed.items():
            if lines > LINES_OF_A_KIND and kind != "converted" and not everything:
                print(f"report: {kind}: and {lines - LINES_OF_A_KIND} more; --debug lists all")


def _check_new(model: "DebertaExtPreTrainedModel", head: str, asked: bool):
    new = model.loading_report.initialised
    if not new:
        return
    if lost := [name for name in new if ".encoder." in name or ".embeddings." in name or name.startswith("encoder.")]:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ValueError(f"{lost[0]}{more} would be drawn at random: not in the files, and no part of a new head")
    if not asked:
        raise ValueError(f"{', '.join(new)} would be drawn at random; --head {head} writes them all the same")
    print(f"warning: the head is new, drawn at random: {', '.join(new)}. Train it before you use it")


# ------- tokenizer


def _load_tokenizer(contents: "CheckpointContents", wanted: str | None) -> Any:
    from ..conversion.checkpoint_contents import fetch
    from ..tokenization import load_tokenizer

    if wanted == "none":
        return None
    source = contents.folder if wanted is None else fetch(wanted)
    try:
        tokenizer = load_tokenizer(source)
    except OSError:
        if wanted is not None:
            raise
        print(f"tokenizer: there is none in {contents.source}; --tokenizer takes it from elsewhere")
        return None
    print(f"tokenizer: {len(tokenizer)} tokens, from {wanted or contents.source}")
    return tokenizer


def _check_tokenizer(tokenizer: Any, model: "DebertaExtPreTrainedModel", contents: "CheckpointContents"):
    from ..tokenization import check_tokenizer

    try:
        check_tokenizer(tokenizer, model)
    except ValueError as error:
        raise ValueError(f"{error}; or give --tokenizer none") from error


# ------- writing


def _is_in_use(output: Path) -> bool:
    return output.is_symlink() or (output.exists() and not (output.is_dir() and not any(output.iterdir())))


def _write(model: "DebertaExtPreTrainedModel", tokenizer: Any, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Writes everything into `folder`; returns what it does not carry."""
    from ..conversion.deberta_v2 import save_as_deberta_v2

    notes = []
    if arguments.to == "deberta-v2":
        try:
            notes = save_as_deberta_v2(model, folder, lossy=arguments.lossy)
        except ValueError as error:
            raise ValueError(str(error).replace("pass lossy=True", "give --lossy")) from error
    else:
        shards = {"max_shard_size": arguments.max_shard_size} if arguments.max_shard_size else {}
        model.save_pretrained(folder, **shards)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return notes


def _put_in_place(written: Path, output: Path) -> Path | None:
    """Renames `written` to `output`; returns where an `output` that was there is now."""
    aside, number = None, 1
    if _is_in_use(output):
        while (aside := output.with_name(f"{output.name}.old-{number}")).exists():
            number += 1
        output.rename(aside)
    elif output.exists():
        output.rmdir()
    try:
        written.rename(output)
    except OSError:
        if aside is not None:
            aside.rename(output)
        raise
    return aside


# ------- checking


def _verify(model: "DebertaExtPreTrainedModel", folder: Path, to: str) -> list[str]:
    """Reads the folder again and compares; returns in words what was compared.

    Raises:
        ValueError: a tensor or an output differs.
    """
    import torch

    # deberta-v2 has no place for these fields.
    names = ("emd_layers", "emd_input") if to == "deberta-v2" and hasattr(model, "lm_predictions") else ()
    decoder = {name: getattr(model.config, name) for name in names}
    again = type(model).from_pretrained(folder, dtype=model.dtype, **decoder).eval()
    ours, theirs = _comparable(model, to), _comparable(again, to)
    if names := sorted({*ours} ^ {*theirs}):
        raise ValueError(f"what was written has other tensors than the model: {', '.join(names[:3])}")
    for name, tensor in ours.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are not finite as {tensor.dtype}; choose another --dtype")
        if not torch.equal(tensor, theirs[name]):
            raise ValueError(f"{name} is not what was written")
    expected, got = _outputs(model), _outputs(again)
    worst = max(_largest_difference(expected[name], got[name]) for name in expected)
    if not worst <= TOLERANCE:
        raise ValueError(f"the outputs of what was written differ from the source's by {worst:.1g} of the largest")
    checks = [f"{len(ours)} tensors are equal; the outputs {_in_words(worst)}"]
    del again, theirs
    if to == "deberta-v2":
        checks.append(_verify_with_transformers(model, folder))
    return checks


def _comparable(model: "DebertaExtPreTrainedModel", to: str) -> dict[str, "torch.Tensor"]:
    from ..conversion.deberta_v2 import to_deberta_v2_state_dict

    return to_deberta_v2_state_dict(model) if to == "deberta-v2" else model.state_dict()


def _verify_with_transformers(model: "DebertaExtPreTrainedModel", folder: Path) -> str:
    """The encoder in transformers' own class, and the head where that class computes the same."""
    import torch
    import transformers

    names = ["DebertaV2Model"]
    if model.base_model is not model and not hasattr(model, "lm_predictions") and not hasattr(model, "mask_predictions"):
        names.append(type(model).__name__.replace("DebertaExt", "DebertaV2"))
    # Rounding in half precision depends on the order of the sums.
    reference = copy.deepcopy(model).float()
    worst = 0.0
    for name in names:
        stock = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
        expected = _outputs(reference.base_model if name == "DebertaV2Model" else reference)
        got = _outputs(stock, type(reference))
        worst = max(worst, *(_largest_difference(expected[key], got[key]) for key in expected))
    if not worst <= TOLERANCE:
        raise ValueError(f"the outputs of transformers' {names[-1]} differ from the source's by {worst:.1g} of the largest")
    return f"the outputs of transformers' {' and '.join(names)} {_in_words(worst)} (in float32)"


def _verify_rounding(model: "DebertaExtPreTrainedModel", contents: "CheckpointContents", head: str, dtype: str) -> str:
    """What a narrower dtype than the file's changes.

    Raises:
        ValueError: outputs that are not finite.
    """
    if model.loading_report.initialised:
        return "what the narrower dtype changes was not measured: the head is new"
    before, after = _outputs(_load(contents, head, "float32")), _outputs(model)
    worst = max(_largest_difference(before[name], after[name]) for name in before)
    if not worst < float("inf"):
        raise ValueError(f"the outputs are not finite in {model.dtype}; choose another --dtype")
    return f"{str(model.dtype).removeprefix('torch.')} instead of {dtype} changes the outputs by {worst:.1g} of the largest"


def _outputs(model: Any, like: type | None = None) -> dict[str, "torch.Tensor"]:
    """What the model computes for a fixed input of two rows, the second padded, in float32; padding left out."""
    import torch

    config = model.config
    length = min(16, config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7 + 5).view(2, length) % config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    with torch.no_grad():
        if "MultipleChoice" in type(model).__name__:
            return {"logits": model(ids[None], attention_mask=mask[None]).logits.float()}
        output = model(ids, attention_mask=mask)
        if hasattr(model, "generator"):
            output = {
                "discriminator_logits": output.discriminator_logits,
                "generator_logits": model.generator(ids, attention_mask=mask).logits,
            }
    names = ("last_hidden_state", "logits", "start_logits", "end_logits", "discriminator_logits", "generator_logits")
    tensors = {name: output[name].float() for name in names if output.get(name) is not None}
    real = mask.bool()
    return {name: x[real] if x.shape[:2] == real.shape else x for name, x in tensors.items()}


def _largest_difference(expected: "torch.Tensor", got: "torch.Tensor") -> float:
    """Relative to the largest expected value; not a number where one of them is none."""
    return ((expected - got).abs().max() / expected.abs().max().clamp(min=1e-12)).item()


def _in_words(difference: float) -> str:
    return f"differ by at most {difference:.1g} of the largest" if difference else "are equal"


def _verify_tokenizer(tokenizer: Any, folder: Path) -> str:
    from ..tokenization import load_tokenizer

    again = load_tokenizer(folder)
    text = "The new store, opened beside the new mall: naïve 1,234.5 [MASK]!"
    same = again.get_vocab() == tokenizer.get_vocab() and again(text, text).data == tokenizer(text, text).data
    if not same:
        raise ValueError("the tokenizer that was written does not encode as the one that was read")
    return f"the tokenizer has the same {len(tokenizer)} tokens and encodes alike"

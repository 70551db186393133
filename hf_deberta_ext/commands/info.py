# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext info`: what a folder or Hub repository is, how it is loaded, and what is missing in it."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..conversion.checkpoint_contents import CheckpointContents

__all__ = ["EXAMPLE", "HELP", "add_arguments", "describe", "run"]

HELP = "what a folder or Hub repository is: its sizes and heads, how it is loaded, what is missing"
EXAMPLE = """\
deberta-ext info runs/mnli
deberta-ext info microsoft/deberta-v3-base --download
deberta-ext info runs/mnli --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FOLDER_OR_ID", help="a folder, or the id of a Hub repository")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--download", action="store_true", help="download .bin weights too; safetensors need it not")
    parser.add_argument("--json", action="store_true", help="for machines")


def run(arguments: argparse.Namespace) -> int:
    """0 if it can be loaded, 1 if not; then the last lines say why."""
    facts = describe(arguments.source, revision=arguments.revision, download=arguments.download)
    print(json.dumps(facts, indent=2) if arguments.json else _text(facts))
    return 1 if facts["problems"] else 0


def describe(source: str, *, revision: str | None = None, download: bool = False) -> dict[str, Any]:
    """What `deberta-ext info --json` prints. "problems" are the reasons why it cannot be loaded, "missing" what else is not
    there, or not as it should be.

    Raises:
        OSError: no such folder or repository, or neither a model, an adapter, a tokenizer nor a run in it.
        ValueError: config.json is not JSON.
    """
    from ..conversion.checkpoint_contents import fetch, read_contents
    from ..model.checkpoint_files import tokenizer_files

    folder = fetch(source, revision=revision, weights=download)
    if (folder / "config.json").exists():
        return _model(read_contents(source, revision=revision, weights=download))
    if (folder / "adapter_config.json").exists():
        return _adapter(source, folder)
    if any(folder.glob("checkpoint-*")):
        problems = ["the run has saved no model of its own yet"]
        return dict(source=source, kind="the folder of a training run", problems=problems, missing=[]) | _run(folder)
    if tokenizer_files(folder):
        return dict(source=source, kind="a tokenizer alone", problems=[], missing=[]) | _tokenizer(source, folder, None)
    if (folder / "model_config.json").exists():
        raise OSError(
            f"{source} is as Microsoft's training code leaves it: rename model_config.json to config.json, with "
            '"model_type": "deberta-v2" in it, and pytorch.model-NNNNNN.bin to pytorch_model.bin'
        )
    raise OSError(f"{source} has no config.json: it holds no model, adapter, tokenizer or run")


def _model(contents: "CheckpointContents") -> dict[str, Any]:
    config = contents.ours
    facts: dict[str, Any] = dict(source=contents.source, kind=contents.kind(), preset=contents.preset)
    if config is not None:
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
        facts["sizes"] = {name: getattr(config, name) for name in (*names, "max_position_embeddings")}
        if contents.is_joint:
            generator = config.generator_config()
            facts["generator_sizes"] = {name: getattr(generator, name) for name in names}
            facts["embedding_sharing"] = config.embedding_sharing
    facts["parameters"] = contents.parameters()
    facts["weight_files"] = contents.weight_files
    facts["dtypes"] = contents.dtypes
    facts["heads"] = contents.heads
    facts["classes"] = _classes(contents)
    facts["loading"] = _loading(contents) if not contents.problems else []
    facts["unread"] = contents.unread
    facts["problems"] = list(contents.problems)
    facts["missing"] = list(contents.missing)
    _add(facts, _tokenizer(contents.source, contents.folder, config))
    _add(facts, _run(contents.folder))
    if contents.is_ours:
        facts["missing"] += _code(contents)
    if not (contents.folder / "README.md").exists():
        facts["missing"].append("README.md, the model card: deberta-ext card writes one")
    return facts


def _add(facts: dict[str, Any], more: dict[str, Any]):
    for name, value in more.items():
        facts[name] = [*facts[name], *value] if name in ("problems", "missing") else value


def _classes(contents: "CheckpointContents") -> dict[str, list[str]]:
    """Our class -> the parameters that would be new, or are of another size in the file, by the modules that hold them."""
    from ..conversion.checkpoint_contents import HEADS

    classes = {}
    for head, new in contents.new.items():
        sized = {name for name in new if name in contents.converted}
        words = [f"{name} is of another size" for name in sorted(sized)]
        modules = {_module(name) for name in {*new} - sized}
        classes[HEADS[head].__name__] = words + [f"{module} is new" for module in sorted(modules)]
        if head == "token-classification" and not new and head not in contents.heads:
            classes[HEADS[head].__name__] = ["classifier is that of a whole text"]
    return classes


def _module(parameter: str) -> str:
    """The part of the model that a user would name: pooler, generator.lm_predictions, deberta.embeddings."""
    parts = parameter.split(".")
    return ".".join(parts[: 2 if parts[0] in ("deberta", "discriminator", "generator") else 1])


def _loading(contents: "CheckpointContents") -> list[str]:
    """Lines of Python and what they need."""
    from ..conversion.checkpoint_contents import HEADS
    from ..model.remote_code import AUTO_MAP

    # Any of them, where nothing is known of the weights.
    heads = contents.heads or ["base"]
    where = repr(contents.source)
    lines = []
    auto = {entry.rpartition(".")[2]: name for name, entry in AUTO_MAP.items()}
    for head in heads:
        name = HEADS[head].__name__
        lines.append(f"from hf_deberta_ext import {name}; model = {name}.from_pretrained({where})")
        if contents.is_ours and name in auto:
            remote = auto[name] in contents.config.get("auto_map", {}) and not _code_files_missing(contents)
            how = ", without the package too" if remote else ", after `import hf_deberta_ext`"
            trust = ", trust_remote_code=True" if remote else ""
            lines.append(f"from transformers import {auto[name]}; {auto[name]}.from_pretrained({where}{trust}){how}")
    if contents.is_official:
        lines.append("the Auto classes of transformers give its own classes, which leave out what this package adds")
    return lines


def _code_files_missing(contents: "CheckpointContents") -> list[str]:
    """The files that auto_map names and those that they import, as far as they are not in the folder."""
    from transformers.dynamic_module_utils import get_relative_imports

    entries = contents.config.get("auto_map", {}).values()
    names = {entry.partition("--")[2] or entry for entry in entries if isinstance(entry, str)}
    todo, seen, missing = sorted({f"{name.split('.')[0]}.py" for name in names}), set(), []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        file = contents.folder / name
        if not file.is_file():
            missing.append(name)
            continue
        todo += [f"{module}.py" for module in get_relative_imports(file)]
    return sorted(missing)


def _code(contents: "CheckpointContents") -> list[str]:
    """What keeps a model of ours from loading without the package."""
    from ..model import remote_code

    auto_map = contents.config.get("auto_map") or {}
    without = "; it loads only where this package is installed: deberta-ext convert writes it anew"
    if not auto_map:
        return [f"auto_map in config.json{without}"]
    missing = []
    if lost := sorted({*remote_code.AUTO_MAP} - {*auto_map}):
        missing.append(f"{', '.join(lost)} in the auto_map of config.json: these do not load without the package")
    if files := _code_files_missing(contents):
        missing.append(f"model code: {', '.join(files)}{without}")
    own = Path(remote_code.__file__).parent
    changed = [
        file.name
        for file in sorted(contents.folder.glob("*.py"))
        if (own / file.name).is_file() and file.read_bytes() != (own / file.name).read_bytes()
    ]
    if changed:
        missing.append(f"the model code of this version of the package: {', '.join(changed)} differ")
    return missing


def _tokenizer(source: str, folder: Path, config: Any) -> dict[str, Any]:
    from ..model.checkpoint_files import tokenizer_files
    from ..tokenization import check_tokenizer, load_tokenizer

    there = tokenizer_files(folder)
    if not there:
        return dict(tokenizer=None, missing=["a tokenizer: spm.model, vocab.json with merges.txt, or tokenizer.json"])
    try:
        tokenizer = load_tokenizer(folder)
    except (ValueError, OSError, ImportError) as error:
        return dict(tokenizer=None, missing=[f"a tokenizer that can be loaded: {error}"])
    facts = dict(file=there[0], tokens=len(tokenizer), model_max_length=tokenizer.model_max_length)
    try:
        check_tokenizer(tokenizer, config)
    except ValueError as error:
        return dict(tokenizer=facts, missing=[f"a tokenizer of this model: {error}"])
    return dict(tokenizer=facts)


def _run(folder: Path) -> dict[str, Any]:
    """The checkpoints of a run, and whether this is one of them."""
    from ..model.checkpoint_files import checkpoint_step
    from ..training.run_folder import ARGUMENTS_FILE, resume_checkpoint

    facts: dict[str, Any] = {}
    # The folder of a finished run has a trainer_state.json too, and is no checkpoint.
    if (folder / "optimizer.pt").exists() or checkpoint_step(folder.resolve()) >= 0:
        facts["trainer_state"] = "whole"
        try:
            resume_checkpoint(folder, str(folder))
        except ValueError:
            facts["trainer_state"] = "cut off"
            facts["missing"] = ["a complete checkpoint: training cannot be resumed from here"]
    checkpoints = sorted((file for file in folder.glob("checkpoint-*") if checkpoint_step(file) >= 0), key=checkpoint_step)
    if not checkpoints and not (folder / ARGUMENTS_FILE).exists():
        return facts
    facts["checkpoints"] = [checkpoint.name for checkpoint in checkpoints]
    try:
        facts["last_whole_checkpoint"] = Path(resume_checkpoint(folder, "last") or "").name
    except ValueError:
        facts["last_whole_checkpoint"] = None
    return facts


def _adapter(source: str, folder: Path) -> dict[str, Any]:
    from ..model.checkpoint_files import ADAPTER_WEIGHT_FILES, read_json, read_tensors

    config = read_json(folder / "adapter_config.json")
    base = config.get("base_model_name_or_path")
    facts: dict[str, Any] = dict(
        source=source,
        kind=f"an adapter of peft ({config.get('peft_type', 'of no type')}), not a model",
        base_model=base,
        problems=[],
        missing=[],
    )
    weights = [folder / name for name in ADAPTER_WEIGHT_FILES if (folder / name).exists()]
    if weights:
        facts["weight_files"] = {file.name: file.stat().st_size for file in weights}
        try:
            tensors = read_tensors(weights[0])
            modules = {key.split(".")[-3] if ".lora_" in key else key.split(".")[-2] for key in tensors}
            facts["parameters"] = {"adapter": sum(tensor.size for tensor in tensors.values())}
            facts["modules"] = sorted(modules)
        except ValueError as error:
            facts["problems"].append(str(error))
    else:
        facts["problems"].append("adapter_model.safetensors is not there")
    if base and not Path(base).exists() and (base.startswith(("/", ".")) or base.count("/") > 1):
        facts["problems"].append(f"its base model {base} is not there")
    facts["loading"] = [
        f"model = DebertaExtFor....from_pretrained({base!r}), the class of its task; "
        f"model = peft.PeftModel.from_pretrained(model, {source!r})"
    ]
    return facts


# ------- text


def _text(facts: dict[str, Any]) -> str:
    from ..model.checkpoint_files import shown_size

    rows: list[tuple[str, str]] = [("what", facts["kind"])]
    if "preset" in facts:
        rows.append(("size", facts["preset"] or "of no published size"))
    for name, title in (("sizes", "shape"), ("generator_sizes", "generator")):
        if name in facts:
            rows.append((title, _shape(facts[name])))
    if facts.get("parameters"):
        parts = ", ".join(f"{part} {count:,}" for part, count in facts["parameters"].items())
        rows.append(("parameters", f"{sum(facts['parameters'].values()):,}: {parts}"))
    dtypes = facts.get("dtypes", {})
    names = ", ".join(dtypes) if len(dtypes) < 2 else ", ".join(f"{name} ({n} tensors)" for name, n in dtypes.items())
    for name, size in facts.get("weight_files", {}).items():
        rows.append(("weights", f"{name}, {shown_size(size)}{', ' + names if names else ''}"))
    if base := facts.get("base_model"):
        rows.append(("base model", base))
    if "heads" in facts:
        rows.append(("heads", ", ".join(facts["heads"]) or "none: the encoder alone"))
    classes = facts.get("classes", {})
    rows += [("whole in", ", ".join(name for name, new in classes.items() if not new))] if classes else []
    rows += [("new head", f"{name}: {'; '.join(new)}") for name, new in classes.items() if new]
    if facts.get("unread"):
        rows.append(("unread", _some(facts["unread"])))
    if tokenizer := facts.get("tokenizer"):
        of = f" for {facts['sizes']['vocab_size']} rows" if "sizes" in facts else ""
        rows.append(("tokenizer", f"{tokenizer['file']}, {tokenizer['tokens']} tokens{of}"))
    if "checkpoints" in facts:
        last = facts["last_whole_checkpoint"]
        whole = f"the last whole one is {last}" if last else "none is whole"
        rows.append(("checkpoints", f"{len(facts['checkpoints'])}, {whole}"))
        if last:
            rows.append(("", f"deberta-ext info {shlex.quote(str(Path(facts['source'], last)))}"))
    if facts.get("trainer_state"):
        rows.append(("training", f"a checkpoint of Trainer, trainer_state.json {facts['trainer_state']}"))
    rows += [("load", line) for line in facts.get("loading", [])]
    rows += [("missing", line) for line in facts["missing"]]
    rows += [("problem", line) for line in facts["problems"]]
    rows.append(("result", "cannot be loaded" if facts["problems"] else "can be loaded"))
    lines, last_title = [facts["source"]], None
    for title, text in rows:
        lines.append(f"  {'' if title == last_title else title:11}{text}".rstrip())
        last_title = title
    return "\n".join(lines)


def _shape(sizes: dict[str, int]) -> str:
    words = {
        "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
        "intermediate_size": "feed-forward", "vocab_size": "vocabulary", "max_position_embeddings": "positions",
    }  # fmt: skip
    return ", ".join(f"{words[name]} {value}" for name, value in sizes.items())


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

# SPDX-License-Identifier: Apache-2.0
"""Description of a folder or Hub repository: sizes, heads, lines that load it, and everything missing, as a dict or text."""

import shlex
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_imports

from ..files import format_size
from ..model import remote_code
from ..model.checkpoint_files import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHT_FILES,
    checkpoint_step,
    is_adapter_folder,
    read_json,
    read_tensors,
    tokenizer_files,
)
from ..model.heads import HEADS
from ..model.official_configurations import configuration_file
from ..tokenization import check_tokenizer, load_tokenizer
from ..training.run_folder import ARGUMENTS_FILE, resume_checkpoint
from .checkpoint_contents import CheckpointContents, fetch, read_contents

__all__ = ["describe", "description_text"]

# Fields of the configuration -> their names in the text.
SIZES = {
    "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
    "intermediate_size": "feed-forward", "vocab_size": "vocabulary",
}  # fmt: skip
POSITIONS = {"max_position_embeddings": "positions"}


def describe(source: str, *, revision: str | None = None, download: bool = False) -> dict[str, Any]:
    """Facts about a folder or repository, as `deberta-ext info --json` prints them.

    "problems" are the reasons why it cannot be loaded, "missing" is everything else that is absent or not as it should be.

    Raises:
        OSError: no such folder or repository, or neither a model, an adapter, a tokenizer nor a run in it.
        ValueError: config.json is not JSON.
    """
    folder = fetch(source, revision=revision, weights=download)
    if is_adapter_folder(folder):
        return describe_adapter(source, folder)
    if (folder / "config.json").exists() or configuration_file(folder):
        return describe_model(read_contents(source, revision=revision, weights=download))
    facts: dict[str, Any] = dict(source=source, problems=[], missing=[])
    if any(folder.glob("checkpoint-*")):
        facts |= dict(kind="the folder of a training run", problems=["the run has saved no model of its own yet"])
        return facts | run_facts(folder)
    if tokenizer_files(folder):
        return facts | dict(kind="a tokenizer alone") | tokenizer_facts(folder, None)
    raise OSError(f"{source} has no config.json: it holds no model, adapter, tokenizer or run")


def describe_model(contents: CheckpointContents) -> dict[str, Any]:
    """Facts about a folder with a config.json."""
    config = contents.model_config
    facts: dict[str, Any] = dict(source=contents.source, kind=contents.kind(), preset=contents.preset)
    if config is not None:
        facts["sizes"] = {name: getattr(config, name) for name in SIZES | POSITIONS}
        if contents.is_joint:
            generator = config.generator_config()
            facts["generator_sizes"] = {name: getattr(generator, name) for name in SIZES}
            facts["embedding_sharing"] = config.embedding_sharing
    facts |= dict(
        parameters=contents.parameters(),
        weight_files=contents.weight_files,
        dtypes=contents.dtypes,
        heads=contents.heads,
        classes=new_modules(contents),
        loading=loading_lines(contents) if not contents.problems else [],
        unread=contents.unread,
        problems=list(contents.problems),
        missing=list(contents.missing),
    )
    for extra in (tokenizer_facts(contents.folder, config), run_facts(contents.folder)):
        facts["missing"] += extra.pop("missing", [])
        facts |= extra
    if contents.is_ours:
        facts["missing"] += missing_code(contents)
    if not (contents.folder / "README.md").exists():
        facts["missing"].append("README.md, the model card: deberta-ext card writes one")
    return facts


def new_modules(contents: CheckpointContents) -> dict[str, list[str]]:
    """Model class -> its parameters of another size in the file, and its modules that are not in the file."""
    classes = {}
    for head, new in contents.new.items():
        resized = {name for name in new if name in contents.converted}
        modules = set()
        for name in {*new} - resized:
            # As a user would name them: pooler, generator.lm_predictions, deberta.embeddings.
            path = name.split(".")
            modules.add(".".join(path[: 2 if path[0] in ("deberta", "discriminator", "generator") else 1]))
        differences = [f"{name} is of another size" for name in sorted(resized)]
        differences += [f"{module} is new" for module in sorted(modules)]
        if head == "token-classification" and not new and head not in contents.heads:
            differences = ["classifier is that of a whole text"]
        classes[HEADS[head].model_class] = differences
    return classes


def loading_lines(contents: CheckpointContents) -> list[str]:
    """Lines of Python that load the model, and their requirements."""
    source, lines = repr(contents.source), []
    # Any class, where nothing is known of the weights.
    for head in [HEADS[name] for name in contents.heads or ["base"]]:
        name, auto = head.model_class, head.auto_class
        lines.append(f"from hf_deberta_ext import {name}; model = {name}.from_pretrained({source})")
        if contents.is_ours and auto:
            remote = auto in contents.config.get("auto_map", {}) and not missing_code_files(contents)
            condition = ", without the package too" if remote else ", after `import hf_deberta_ext`"
            trust = ", trust_remote_code=True" if remote else ""
            lines.append(f"from transformers import {auto}; {auto}.from_pretrained({source}{trust}){condition}")
    if contents.is_official:
        lines.append("the Auto classes of transformers give its own classes, which leave out what this package adds")
    return lines


def missing_code_files(contents: CheckpointContents) -> list[str]:
    """Files that auto_map names, and files that those import, as far as they are not in the folder."""
    entries = contents.config.get("auto_map", {}).values()
    names = {entry.partition("--")[2] or entry for entry in entries if isinstance(entry, str)}
    pending, visited, missing = sorted({f"{name.split('.')[0]}.py" for name in names}), set(), []
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        if (contents.folder / name).is_file():
            pending += [f"{module}.py" for module in get_relative_imports(contents.folder / name)]
        else:
            missing.append(name)
    return sorted(missing)


def missing_code(contents: CheckpointContents) -> list[str]:
    """The reasons why a model of this package does not load without it, or not with the code of this version."""
    auto_map = contents.config.get("auto_map") or {}
    without = "; it loads only where this package is installed: deberta-ext convert writes it anew"
    if not auto_map:
        return [f"auto_map in config.json{without}"]
    missing = []
    if absent := sorted({*remote_code.AUTO_MAP} - {*auto_map}):
        missing.append(f"{', '.join(absent)} in the auto_map of config.json: these do not load without the package")
    if files := missing_code_files(contents):
        missing.append(f"model code: {', '.join(files)}{without}")
    installed = Path(remote_code.__file__).parent
    pairs = [(file, installed / file.name) for file in sorted(contents.folder.glob("*.py"))]
    if changed := [file.name for file, copy in pairs if copy.is_file() and file.read_bytes() != copy.read_bytes()]:
        missing.append(f"the model code of this version of the package: {', '.join(changed)} differ")
    return missing


def tokenizer_facts(folder: Path, config: Any) -> dict[str, Any]:
    """The tokenizer of a folder, checked against the configuration of its model."""
    files = tokenizer_files(folder)
    if not files:
        return dict(tokenizer=None, missing=["a tokenizer: spm.model, vocab.json with merges.txt, or tokenizer.json"])
    try:
        tokenizer = load_tokenizer(folder)
    except (ValueError, OSError, ImportError) as error:
        return dict(tokenizer=None, missing=[f"a tokenizer that can be loaded: {error}"])
    facts = dict(file=files[0], tokens=len(tokenizer), model_max_length=tokenizer.model_max_length)
    try:
        check_tokenizer(tokenizer, config)
    except ValueError as error:
        return dict(tokenizer=facts, missing=[f"a tokenizer of this model: {error}"])
    return dict(tokenizer=facts)


def run_facts(folder: Path) -> dict[str, Any]:
    """The checkpoints of a run, and the state of this one if the folder is a checkpoint."""
    facts: dict[str, Any] = {}
    # The folder of a finished run has a trainer_state.json too, and is no checkpoint.
    if (folder / "optimizer.pt").exists() or checkpoint_step(folder.resolve()) >= 0:
        facts["trainer_state"] = "whole"
        try:
            resume_checkpoint(folder, str(folder))
        except ValueError:
            facts["trainer_state"] = "incomplete"
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


def describe_adapter(source: str, folder: Path) -> dict[str, Any]:
    """Facts about a folder with an adapter of peft."""
    config = read_json(folder / ADAPTER_CONFIG_FILE)
    base = config.get("base_model_name_or_path")
    model_config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    model_class = (model_config.get("architectures") or ["DebertaExtFor..."])[0]
    labelled = f", config={source!r}, ignore_mismatched_sizes=True)" if model_config else "), the class of its task"
    facts: dict[str, Any] = dict(
        source=source,
        kind=f"an adapter of peft ({config.get('peft_type', 'of no type')}), not a model",
        base_model=base,
        problems=[],
        missing=[],
        loading=[
            f"model = {model_class}.from_pretrained({base!r}{labelled}; "
            f"model = peft.PeftModel.from_pretrained(model, {source!r})"
        ],
    )
    weights = [folder / name for name in ADAPTER_WEIGHT_FILES if (folder / name).exists()]
    if weights:
        facts["weight_files"] = {file.name: file.stat().st_size for file in weights}
        try:
            tensors = read_tensors(weights[0])
            facts["parameters"] = {"adapter": sum(tensor.size for tensor in tensors.values())}
            facts["modules"] = sorted({key.split(".")[-3 if ".lora_" in key else -2] for key in tensors})
        except ValueError as error:
            facts["problems"].append(str(error))
    else:
        facts["problems"].append("adapter_model.safetensors is not there")
    if labels := model_config.get("id2label"):
        facts["labels"] = [*labels.values()]
    if base and not Path(base).exists() and (base.startswith(("/", ".")) or base.count("/") > 1):
        facts["problems"].append(f"its base model {base} is not there")
    return facts


def description_text(facts: dict[str, Any]) -> str:
    """The facts of `describe` as a table of titles and lines."""
    rows: list[tuple[str, str]] = [("what", facts["kind"])]
    if "preset" in facts:
        rows.append(("size", facts["preset"] or "of no published size"))
    for name, title in (("sizes", "shape"), ("generator_sizes", "generator")):
        if name in facts:
            words = SIZES | POSITIONS
            rows.append((title, ", ".join(f"{words[field]} {value}" for field, value in facts[name].items())))
    if counts := facts.get("parameters"):
        modules = ", ".join(f"{module} {count:,}" for module, count in counts.items())
        rows.append(("parameters", f"{sum(counts.values()):,}: {modules}"))
    dtypes = facts.get("dtypes", {})
    names = ", ".join(dtypes) if len(dtypes) < 2 else ", ".join(f"{name} ({n} tensors)" for name, n in dtypes.items())
    for name, size in facts.get("weight_files", {}).items():
        rows.append(("weights", f"{name}, {format_size(size)}{', ' + names if names else ''}"))
    if base := facts.get("base_model"):
        rows.append(("base model", base))
    if "labels" in facts:
        rows.append(("labels", ", ".join(facts["labels"])))
    if "heads" in facts:
        rows.append(("heads", ", ".join(facts["heads"]) or "none: the encoder alone"))
    if classes := facts.get("classes", {}):
        rows.append(("whole in", ", ".join(name for name, new in classes.items() if not new)))
        rows += [("new head", f"{name}: {'; '.join(new)}") for name, new in classes.items() if new]
    if unread := facts.get("unread"):
        rest = f" and {len(unread) - 4} more" if len(unread) > 4 else ""
        rows.append(("unread", ", ".join(unread[:4]) + rest))
    if tokenizer := facts.get("tokenizer"):
        model_rows = f" for {facts['sizes']['vocab_size']} rows" if "sizes" in facts else ""
        rows.append(("tokenizer", f"{tokenizer['file']}, {tokenizer['tokens']} tokens{model_rows}"))
    if "checkpoints" in facts:
        last = facts["last_whole_checkpoint"]
        state = f"the last whole one is {last}" if last else "none is whole"
        count = len(facts["checkpoints"])
        rows.append(("run", f"{count} checkpoint{'s' * (count != 1)}, {state}"))
        if last:
            rows.append(("", f"deberta-ext info {shlex.quote(str(Path(facts['source'], last)))}"))
    if facts.get("trainer_state"):
        rows.append(("training", f"a checkpoint of Trainer, trainer_state.json {facts['trainer_state']}"))
    rows += [("load", line) for line in facts.get("loading", [])]
    if attention := facts.get("attention"):
        rows.append(("attention", attention))
    rows += [("missing", line) for line in facts["missing"]]
    rows += [("problem", line) for line in facts["problems"]]
    rows.append(("result", "cannot be loaded" if facts["problems"] else "can be loaded"))
    lines, last_title = [facts["source"]], None
    for title, text in rows:
        lines.append(f"  {'' if title == last_title else title:11}{text}".rstrip())
        last_title = title
    return "\n".join(lines)

# SPDX-License-Identifier: Apache-2.0
"""Check of the folder of a killed run: everything in it is of the undisturbed run at that step, or is refused."""

import json
import re
from pathlib import Path

__all__ = ["CARD", "RESULTS", "STATE", "TIMES", "WEIGHTS", "compare_ended", "look", "losses", "read"]

# What Trainer measures of the machine, and what is lost with the part of the run before a kill.
TIMES = re.compile(r".*_(runtime|per_second)|train_loss|train_resumed_at_step")
WEIGHTS, RESULTS, CARD, STATE = "model.safetensors", "all_results.json", "README.md", "trainer_state.json"


def same(first, second) -> bool:
    """Equal to the last bit: tensors, and what holds them."""
    import torch
    from torch.utils._pytree import tree_flatten

    (leaves, structure), (other_leaves, other_structure) = tree_flatten(first), tree_flatten(second)
    if structure != other_structure or [*map(type, leaves)] != [*map(type, other_leaves)]:
        return False
    pairs = zip(leaves, other_leaves, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in pairs)


def read(file: Path):
    return json.loads(file.read_text(encoding="utf-8"))


def without_times(values: dict) -> dict:
    return {name: value for name, value in values.items() if not TIMES.fullmatch(name)}


def losses(state: Path) -> list[dict]:
    """Logged losses, without times and the sums over the whole training."""
    return [without_times(entry) for entry in read(state)["log_history"] if "train_runtime" not in entry]


def loaded(folder: Path):
    """The model in a folder as its configuration says, or the error that refused it."""
    import hf_deberta_ext

    try:
        kind = getattr(hf_deberta_ext, read(folder / "config.json")["architectures"][0], None)
        kind = kind or hf_deberta_ext.DebertaExtForMaskedLM
        model, facts = kind.from_pretrained(folder, output_loading_info=True)
    except Exception as error:
        return error
    return model.state_dict(), sorted(facts["missing_keys"])


def loaded_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        return error
    ids = tokenizer("The cat sees it.")["input_ids"]
    return tokenizer.get_vocab(), tokenizer.special_tokens_map, tokenizer.model_max_length, ids


def look(folder: Path, reference: Path) -> tuple[list[str], list[str]]:
    """Problems in the folder of a killed run, and its contents, which must be the undisturbed run's, or be refused."""
    wrong, contents = [], []
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        wrong += [f"{checkpoint.name}: {problem}" for problem in look_at_checkpoint(checkpoint, reference / checkpoint.name)]
        files = sum(file.is_file() for file in checkpoint.rglob("*"))
        all_files = sum(file.is_file() for file in (reference / checkpoint.name).iterdir())
        contents.append(f"{checkpoint.name} {'whole' if is_whole(checkpoint) else f'cut ({files} of {all_files} files)'}")
    for part in ("", "discriminator", "generator", "tokenizer"):
        if not (reference / part).is_dir() or not (folder / part).is_dir():
            continue
        problems, kinds = look_at_model(folder / part, reference / part)
        wrong += [f"{part or 'output folder'}: {problem}" for problem in problems]
        contents += [f"{part or 'output folder'}: {kinds}"] if kinds else []
    if (folder / CARD).exists():
        contents.append("card")
        if not (folder / WEIGHTS).exists() or not (folder / RESULTS).exists():
            wrong.append("a card without model or results")
    return wrong, contents or ["no folder" if not folder.exists() else "nothing"]


def is_whole(checkpoint: Path) -> bool:
    from hf_deberta_ext.training.run_folder import resume_checkpoint

    try:
        resume_checkpoint(checkpoint.parent, str(checkpoint))
    except ValueError:
        return False
    return True


def look_at_checkpoint(checkpoint: Path, reference: Path) -> list[str]:
    import torch

    wrong, _ = look_at_model(checkpoint, reference)
    if not is_whole(checkpoint):
        return wrong
    if isinstance(loaded(checkpoint), Exception):
        wrong.append("taken as whole, but its model cannot be loaded")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        try:
            states = [torch.load(folder / name, weights_only=False) for folder in (checkpoint, reference)]
        except Exception as error:
            wrong.append(f"taken as whole, but {name} cannot be loaded: {type(error).__name__}")
            continue
        # The number generators depend on how often the run began; what a step draws is compared by the weights.
        if name != "rng_state.pth" and not same(*states):
            wrong.append(f"{name} is another")
    if read(checkpoint / STATE)["global_step"] != read(reference / STATE)["global_step"]:
        wrong.append("the state is of another step")
    if losses(checkpoint / STATE) != losses(reference / STATE):
        wrong.append("the log is another")
    return wrong


def look_at_model(folder: Path, reference: Path) -> tuple[list[str], str]:
    from safetensors.torch import load_file

    wrong, kinds = [], []
    if any(folder.glob("*.safetensors*")) or (folder / "config.json").exists():
        loaded_model = loaded(folder)
        kinds.append("model refused" if isinstance(loaded_model, Exception) else "model")
        if not isinstance(loaded_model, Exception) and not same(loaded_model, loaded(reference)):
            wrong.append(f"the model loads as another ({len(loaded_model[1])} weights missing)")
    if (folder / WEIGHTS).exists():
        try:
            if not same(*(load_file(place / WEIGHTS) for place in (folder, reference))):
                wrong.append("the weights are others")
        except Exception as error:
            kinds.append(f"weights cut ({type(error).__name__})")
    if any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        loaded_model = loaded_tokenizer(folder)
        kinds.append("tokenizer refused" if isinstance(loaded_model, Exception) else "tokenizer")
        if not isinstance(loaded_model, Exception) and loaded_model != loaded_tokenizer(reference):
            wrong.append("the tokenizer loads as another")
    return wrong, ", ".join(kinds)


def files_of(folder: Path) -> set[str]:
    """Paths of all files but those in checkpoints."""
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return {name for name in files if not name.startswith("checkpoint-")}


def compare_ended(folder: Path, reference: Path) -> list[str]:
    """Differences between a run that has ended and the undisturbed one."""
    wrong, _ = look(folder, reference)
    for part in ("", "discriminator", "generator"):
        if (reference / part).is_dir() and not (folder / part / WEIGHTS).is_file():
            wrong.append(f"no weights in {part or 'the output folder'}")
    first, second = (without_times(read(place / RESULTS)) for place in (folder, reference))
    differing = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    wrong += [f"{name} = {first.get(name)}, not {second.get(name)}" for name in differing]
    if losses(folder / STATE) != losses(reference / STATE):
        wrong.append("the log of the losses is another")
    wrong += [f"left behind: {name}" for name in sorted(files_of(folder) - files_of(reference))]
    wrong += [f"missing: {name}" for name in sorted(files_of(reference) - files_of(folder))]
    checkpoints = sorted(folder.glob("checkpoint-*"))
    if len(checkpoints) > 2 or not all(map(is_whole, checkpoints)) or not checkpoints:
        wrong.append(f"checkpoints left: {', '.join(path.name for path in checkpoints)}")
    return wrong

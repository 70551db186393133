# SPDX-License-Identifier: Apache-2.0
"""The model card of any folder with a model: built from what its files tell, or completed; no weights are loaded."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .card import facts_table, shown_number, shown_source, write_card
from .card_checks import card_problems, metadata_problems, missing_metadata, split_card
from .card_metadata import as_list, check_metadata, is_hub_id, one_or_list
from .facts import ModelFolder, read_folder, shown_path
from .loading_code import AUTO_MODELS, loading_code
from .results import (
    eval_results,
    examples_sentence,
    is_score,
    measured_metrics,
    number_of_examples,
    results_table,
    set_names,
)

__all__ = ["card_problems", "metadata_problems", "missing_metadata", "write_model_card"]

CARD = "README.md"
WHAT = {
    "fill-mask": "masked language model",
    "text-classification": "model for text classification",
    "token-classification": "model for token classification",
    "question-answering": "model for question answering",
    "multiple-choice": "model for multiple choice",
    "fine-tune": "discriminator of replaced token detection",
    "joint": "generator and discriminator of replaced token detection",
    "encoder": "encoder",
}
FAMILIES = {"deberta-ext": "DeBERTa", "deberta-v2": "DeBERTa v2 or v3", "deberta": "DeBERTa"}
PEFT_KINDS = {
    "SEQ_CLS": "text-classification", "TOKEN_CLS": "token-classification", "QUESTION_ANS": "question-answering",
}  # fmt: skip
# Flags of a run -> rows of the table of the training, in this order; a value of "", 0, false or [] has no row.
RECIPE = {
    "task_name": "task", "dataset_name": "data set", "train_file": "data", "train_data": "data", "recipe": "recipe",
    "max_seq_length": "longest input, tokens", "max_length": "longest example, tokens", "packing": "packing",
    "masking": "masking", "masking_rate": "share of masked tokens", "per_device_train_batch_size": "batch of a device",
    "gradient_accumulation_steps": "accumulation steps", "world_size": "processes", "optim": "optimizer",
    "learning_rate": "learning rate", "lr_scheduler_type": "schedule", "warmup_steps": "warm-up",
    "weight_decay": "weight decay", "sift_weight": "weight of SiFT", "seed": "seed",
}  # fmt: skip
SOURCES = ("dataset_name", "train_file", "train_data")
FEW = 1000


def write_model_card(
    folder: str | os.PathLike,
    *,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
    base_model: str | None = None,
    datasets: str | Sequence[str] | None = None,
    tags: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Writes README.md into the folder of a model, from what its files tell; where there is one, it keeps its text, and gets
    the metadata that are given here.

    A card is built from config.json (or adapter_config.json), the headers of the .safetensors, and as far as they are there
    from what a run leaves: *_results.json, trainer_state.json, run_arguments.json, run_report.json. Of a joint model its
    folders discriminator and generator get cards too, where they have none.

    Args:
        language (`str` or `list[str]`, *optional*): ISO 639 codes, with a region or without (pt, pt-BR): the Hub lists
            models by the language alone, so give both.
        license (`str`, *optional*): as the Hub calls it.
        base_model (`str`, *optional*): the Hub id of the model that this one began as.
        datasets (`str` or `list[str]`, *optional*): ids on the Hub of the data that it was trained on.
        tags (`list[str]`): more of them.
        overwrite (`bool`): build the card anew though there is one, whose text, unless it is the one that is built, is kept
            beside it as README.md.old-1 (-2, ...).

    Returns:
        `Path`: the card.

    Raises:
        ValueError: it is no folder of a model, one of its files is damaged, a name is none that the Hub knows, or the
            metadata of the card that is there cannot be read.
    """
    folder = Path(folder)
    check_metadata(language=language, license=license)
    for name, ids in (("base_model", base_model), ("datasets", datasets)):
        if wrong := [one for one in as_list(ids) if not is_hub_id(one)]:
            raise ValueError(f"--{name}: {wrong[0]!r} is no id of the Hub, owner/name")
    given = dict(
        language=one_or_list(as_list(language)), license=license, base_model=base_model,
        datasets=as_list(datasets) or None, tags=as_list(tags) or None,
    )  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if not overwrite and (folder / CARD).is_file():
        return _complete(folder / CARD, given)
    model = read_folder(folder)
    card = _replace(model, given)
    if model.is_joint:
        for part in ("discriminator", "generator"):
            if (folder / part / "config.json").is_file() and (overwrite or not (folder / part / CARD).is_file()):
                _replace(read_folder(folder / part), given)
    return card


def _replace(model: ModelFolder, given: Mapping[str, Any]) -> Path:
    """Builds the card; the one that was there is moved aside, if somebody may have written in it."""
    file, number = model.folder / CARD, 1
    if not file.is_file():
        return _build(model, given)
    while (aside := file.with_name(f"{CARD}.old-{number}")).exists():
        number += 1
    old = file.read_bytes()
    aside.write_bytes(old)
    try:
        _build(model, given)
    except BaseException:
        aside.unlink()
        raise
    if _text(old) == _text(file.read_bytes()):
        aside.unlink()
    return file


def _text(card: bytes) -> str:
    """Below the metadata, which the flags of the command may have changed."""
    return split_card(card.decode("utf-8", errors="replace"))[1].strip()


def _complete(file: Path, given: Mapping[str, Any]) -> Path:
    """Sets metadata of a card; its text, its line ends and its other metadata stay.

    Raises:
        ValueError: its metadata cannot be read.
    """
    from huggingface_hub import ModelCard

    if not given:
        return file
    way_out = "mend it, or build the card anew with --overwrite, which keeps this one beside it"
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            text = stream.read()
        block, *_ = split_card(text)
        # Without metadata the client would warn that there are none.
        card = ModelCard(text if block is not None else f"---\n{{}}\n---\n\n{text}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}; {way_out}") from error
    except Exception as error:
        if not _is_of_metadata(error):
            raise
        raise ValueError(f"the metadata of {file} cannot be read: {' '.join(str(error).split())}; {way_out}") from error
    for name, value in given.items():
        if name == "tags":
            value = [*dict.fromkeys([*as_list(card.data.tags), *value])]
        card.data[name] = value
    _write(file, str(card))
    return file


def _is_of_metadata(error: Exception) -> bool:
    import yaml

    return isinstance(error, (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError))


def _write(file: Path, text: str):
    """Whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    with open(part, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    os.replace(part, file)


# ------- a card from files


def _build(model: ModelFolder, given: Mapping[str, Any]) -> Path:
    kind = PEFT_KINDS.get(str(model.adapter.get("task_type")), model.kind) if model.adapter else model.kind
    base, base_id = _base(model, given)
    measured = measured_metrics(model.results)
    data, hub_id = _data(model, given)
    sets = {name: (None, "validation") for name in set_names(model.results)}
    index = []
    if data is not None and kind in AUTO_MODELS:
        task = str(model.arguments.get("task_name") or data)
        index = eval_results(measured, task_type=kind, dataset=hub_id, dataset_name=task, sets=sets)
    adapter_base = model.adapter.get("base_model_name_or_path")
    tags = ["deberta", "hf_deberta_ext"] if model.config.get("model_type") == "deberta-ext" else []
    language = given.get("language") or model.arguments.get("card_language") or _pretraining_language(model)
    return write_card(
        model.folder,
        title=_title(model.folder),
        opening=_opening(model, kind, base),
        load=loading_code(
            kind, shown_source(model.folder), custom_code=model.custom_code or model.base_has_code,
            problem_type=model.config.get("problem_type"), adapter_base=adapter_base and shown_path(adapter_base),
            base_revision=model.adapter.get("revision"), own_config=bool(model.config), tokenizer=model.has_tokenizer,
        ),
        brings_code=model.custom_code,
        results=_results(model, measured, data),
        training=_training(model),
        hardware=_hardware(model),
        limits=_limits(model, kind, measured, data, base),
        more=_sizes(model, kind),
        metadata=dict(
            language=one_or_list(as_list(language)),
            license=given.get("license"),
            library_name="peft" if model.adapter else "transformers",
            pipeline_tag={"encoder": "feature-extraction"}.get(kind, kind if kind in AUTO_MODELS else None),
            tags=[*dict.fromkeys([*tags, *(["lora"] if model.adapter else []), *given.get("tags", [])])] or None,
            base_model=base_id,
            datasets=given.get("datasets") or ([hub_id] if hub_id else None),
            metrics=[*dict.fromkeys(result.metric_type for result in index)] or None,
            eval_results=index or None,
        ),
    )  # fmt: skip


def _title(folder: Path) -> str:
    """The folder's name; of a half of a joint model behind that of the joint one."""
    folder = folder.resolve()
    half = folder.name in ("discriminator", "generator") and (folder.parent / "config.json").is_file()
    return f"{folder.parent.name}: {folder.name}" if half else folder.name


def _base(model: ModelFolder, given: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(name for people, Hub id or None) of the model that this one began as."""
    if "base_model" in given:
        return given["base_model"], given["base_model"]
    arguments = model.arguments
    source = arguments.get("model_name_or_path") or arguments.get("model") or model.adapter.get("base_model_name_or_path")
    if not source or arguments.get("from_scratch"):
        return None, None
    return shown_path(source), _hub_id(model, source)


def _hub_id(model: ModelFolder, source: str) -> str | None:
    """What a run read, if it is owner/name and not a folder beside or above the model's."""
    local = any((place / source).exists() for place in (Path(), *model.folder.resolve().parents))
    return source if "/" in source and is_hub_id(source) and not local else None


def _data(model: ModelFolder, given: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(name for people, Hub id or None) of what was measured on."""
    arguments = model.arguments
    files = [shown_path(file) for file in as_list(arguments.get("validation_file") or arguments.get("validation_data"))]
    if files:
        return ", ".join(files), None
    if source := arguments.get("dataset_name"):
        return shown_path(source), _hub_id(model, source)
    if task := arguments.get("task_name"):
        return f"the validation data of {task}", None
    if arguments.get("train_data"):
        return "held-out documents of the data that it was trained on", None
    return None, None


def _pretraining_language(model: ModelFolder) -> str | None:
    """Of the text of a pre-training; the flag of this name of a task is of XNLI."""
    return model.arguments.get("language") if model.arguments.get("train_data") else None


def _opening(model: ModelFolder, kind: str, base: str | None) -> str:
    family = FAMILIES.get(str(model.config.get("model_type")), str(model.config.get("model_type") or "transformers"))
    article = "An" if family[:1].lower() in (*"aeiou",) else "A"
    what = WHAT[kind].capitalize() if kind == "joint" else f"{article} {family} {WHAT[kind]}"
    if model.adapter:
        method = str(model.adapter.get("peft_type") or "LORA").replace("LORA", "LoRA")
        what = f"An adapter ({method}) for {kind.replace('-', ' ')}"
    named = f" ({model.architecture})" if model.architecture else ""
    beginning = ""
    if base is not None:
        trained = "trained further from" if model.arguments.get("train_data") else "fine-tuned from"
        beginning = f", {trained} {base}" if not model.adapter else f", of {base}"
    text = f"{what}{named}{beginning}."
    if count := model.parameters().get("all"):
        text += f" {'The adapter' if model.adapter else 'It'} has {shown_number(count)} parameters."
    if model.labels and kind in ("text-classification", "token-classification"):
        text += f"\nIts labels are {', '.join(model.labels)}."
    return text


def _results(model: ModelFolder, measured: Mapping[str, float], data: str | None) -> str | None:
    parts = []
    if measured:
        parts.append(results_table(measured))
        told = [] if data is None else [f"Measured on {data}."]
        told += examples_sentence(model.results)
        parts += [" ".join(told)] if told else []
    if (model.folder / "curves.png").is_file():
        parts.append("![Losses and metrics during the training](curves.png)")
    return "\n\n".join(parts) or None


def _training(model: ModelFolder) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for flag, row in RECIPE.items():
        value = model.arguments.get(flag)
        if value in (None, "", [], 0, False):
            continue
        facts[row] = [shown_path(source) for source in as_list(value)] if flag in SOURCES else value
    if model.arguments.get("lora"):
        facts["LoRA"] = f"rank {model.arguments['lora_r']}, alpha {model.arguments['lora_alpha']:g}"
    elif model.adapter:
        facts["LoRA"] = f"rank {model.adapter.get('r')}, alpha {model.adapter.get('lora_alpha')}"
    packing = model.report.get("packing", {}).get("train", {})
    more = {
        "examples": model.results.get("train_samples") or packing.get("examples"),
        "tokens of text": packing.get("packed_tokens"),
        "steps": model.state.get("global_step"),
        "epochs": model.state.get("epoch"),
        "best checkpoint": _best(model.state),
    }
    return facts | {name: value for name, value in more.items() if value}


def _best(state: Mapping[str, Any]) -> str | None:
    metric, checkpoint = state.get("best_metric"), state.get("best_model_checkpoint")
    return f"{shown_path(checkpoint)}, {metric:.4g}" if checkpoint and isinstance(metric, (int, float)) else None


def _hardware(model: ModelFolder) -> dict[str, Any]:
    resumed = model.results.get("train_resumed_at_step")
    seconds = "seconds of training" + ("" if resumed is None else f", from step {resumed} on")
    half = next((half for half in ("bf16", "fp16") if model.arguments.get(half)), None)
    facts = {
        "precision": f"{half} autocast" if half else None,
        seconds: model.results.get("train_runtime"),
        "seconds of all stages": model.report.get("seconds"),
        "versions": model.report.get("versions"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _limits(model: ModelFolder, kind: str, measured: Mapping[str, float], data: str | None, base: str | None) -> list[str]:
    limits = []
    if model.adapter:
        limits.append("The folder holds an adapter alone: nothing works without the model that it was trained on.")
    elif not model.has_tokenizer:
        limits.append("The folder has no tokenizer: it needs the one that the model was trained with.")
    if kind == "fill-mask":
        limits.append("It fills masks: for any other task it has to be fine-tuned.")
    elif kind not in AUTO_MODELS or kind == "encoder":
        limits.append("It has no head for a task: it has to be fine-tuned for one.")
    rows = model.config.get("max_position_embeddings")
    if model.config.get("position_biased_input", True) and model.config.get("model_type") in FAMILIES and rows:
        limits.append(f"It has positions for {rows} tokens and takes no longer input.")
    if measured:
        if data is not None:
            limits.append(f"It was measured on {data} and nothing else: other texts may be harder.")
        few = min(number_of_examples(model.results).values(), default=FEW)
        if few < FEW and any(map(is_score, measured)):
            limits.append(f"{few} examples are few: small differences between models are chance there.")
    else:
        limits.append("Nothing was measured: how good it is is not known.")
    if (seed := model.arguments.get("seed")) is not None and measured:
        limits.append(f"It is one run, with the seed {seed}: how much the results differ from seed to seed is not known.")
    if not model.arguments and not model.state:
        limits.append("How it was trained is not in its folder.")
    if base is not None:
        limits.append(f"What the model that it began as ({base}) does not know, or has learned wrongly, stays.")
    return limits


def _sizes(model: ModelFolder, kind: str) -> str | None:
    """A section with the table of sizes."""
    if model.adapter:
        return None
    config, counts = model.config, model.parameters()
    names = {
        "num_hidden_layers": "layers", "hidden_size": "width", "num_attention_heads": "attention heads",
        "intermediate_size": "width of the feed-forward layers", "vocab_size": "vocabulary",
    }  # fmt: skip
    facts: dict[str, Any] = {}
    for half in ("generator", "discriminator") if kind == "joint" else ("",):
        if numbers := model.parameters(f"{half}." if half else ""):
            parts = {part: f"{numbers[part]:,}" for part in ("embeddings", "encoder", "heads") if numbers[part]}
            facts[f"parameters, {half}" if half else "parameters"] = f"{numbers['all']:,}: " + ", ".join(
                f"{part} {number}" for part, number in parts.items()
            )
    whose = ", discriminator" if kind == "joint" else ""
    facts |= {f"{row}{whose}": config[field] for field, row in names.items() if isinstance(config.get(field), int)}
    if counts:
        facts["type of the weights"] = model.dtypes
    return f"## Sizes\n\n{facts_table(facts)}" if facts else None

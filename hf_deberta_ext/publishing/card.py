# SPDX-License-Identifier: Apache-2.0
"""The model card of a folder: one template, filled with the facts that the files in the folder hold, or a card completed."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import free_name, replace_text
from ..model.checkpoint_files import read_json
from ..model.heads import HEADS
from .card_checks import split_card
from .card_metadata import DATASET_LANGUAGES, as_list, check_metadata, is_hub_id, one_or_list
from .facts import HALVES, REPORT_FILE, ModelFolder, RunFacts, read_folder, shown_source
from .loading_code import AUTO_MODELS, loading_code, render_template, sample_texts
from .results import (
    eval_results,
    is_score,
    learned_nothing,
    number_of_examples,
    objectives_table,
    replaced_token_table,
    results_table,
    summary_table,
)

__all__ = ["facts_table", "put_section", "render_card", "shown_number", "write_model_card", "write_run_card"]

CARD = "README.md"
TEMPLATE = Path(__file__).with_name("model_card_template.md")
NOUNS = {
    "encoder": "encoder",
    "fine-tune": "encoder with the head of replaced token detection (DeBERTaV3's discriminator)",
    "joint": HEADS["pretraining"].description,
} | {head.pipeline_tag: head.description.removeprefix("A DeBERTa ") for head in HEADS.values() if head.pipeline_tag}
FAMILIES = {"deberta-ext": "DeBERTa", "deberta-v2": "DeBERTa v2 or v3", "deberta": "DeBERTa"}


def write_run_card(folder: str | os.PathLike, facts: RunFacts) -> Path:
    """Keep the facts of a run in its run_report.json, and write the card of its model; of a joint model those of its halves
    too."""
    report = Path(folder, REPORT_FILE)
    values = {name: value for name, value in asdict(facts).items() if value not in (None, False, (), [], {})}
    replace_text(report, json.dumps(read_json(report) | {"card": values}, indent=2, default=str) + "\n")
    model = read_folder(folder)
    for half in HALVES if model.is_joint else ():
        replace_text(model.folder / half / CARD, card_text(read_folder(model.folder / half)))
    return replace_text(model.folder / CARD, card_text(model))


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
    """Write README.md, the model card, into the folder of a model; an existing card keeps its text and gets these metadata.

    A card is built from config.json (or adapter_config.json), the headers of the .safetensors, and as far as they are there
    from what a run leaves: *_results.json, run_report.json, or else trainer_state.json and run_arguments.json. Of a joint
    model its folders discriminator and generator get cards too, where they have none.

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
    for flag, ids in (("base_model", base_model), ("datasets", datasets)):
        if wrong := [name for name in as_list(ids) if not is_hub_id(name)]:
            raise ValueError(f"--{flag}: {wrong[0]!r} is no id of the Hub, owner/name")
    metadata = dict(
        language=one_or_list(as_list(language)), license=license, base_model=base_model,
        datasets=as_list(datasets) or None, tags=as_list(tags) or None,
    )  # fmt: skip
    metadata = {name: value for name, value in metadata.items() if value is not None}
    if not overwrite and (folder / CARD).is_file():
        return complete_card(folder / CARD, metadata)
    model = read_folder(folder)
    card = replace_card(model, metadata)
    for half in HALVES if model.is_joint else ():
        if (folder / half / "config.json").is_file() and (overwrite or not (folder / half / CARD).is_file()):
            replace_card(read_folder(folder / half), metadata)
    return card


def replace_card(model: ModelFolder, metadata: Mapping[str, Any]) -> Path:
    """Build the card; the existing one is moved aside, if its text differs."""
    file, text = model.folder / CARD, card_text(model, metadata)
    if file.is_file():
        old = file.read_bytes()
        # Below the metadata, which the flags of the command may have changed.
        before, after = (split_card(card)[1].strip() for card in (old.decode("utf-8", errors="replace"), text))
        if before != after:
            free_name(file).write_bytes(old)
    return replace_text(file, text)


def complete_card(file: Path, metadata: Mapping[str, Any]) -> Path:
    """Set metadata of a card; its text, its line ends and its other metadata stay.

    Raises:
        ValueError: its metadata cannot be read.
    """
    import yaml
    from huggingface_hub import ModelCard

    if not metadata:
        return file
    way_out = "correct it, or build the card anew with --overwrite, which keeps this one beside it"
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            text = stream.read()
        block, *_ = split_card(text)
        # Without metadata the client would warn that there are none.
        card = ModelCard(text if block is not None else f"---\n{{}}\n---\n\n{text}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}; {way_out}") from error
    except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"the metadata of {file} cannot be read: {' '.join(str(error).split())}; {way_out}") from error
    for name, value in metadata.items():
        if name == "tags":
            value = [*dict.fromkeys([*as_list(card.data.tags), *value])]
        card.data[name] = value
    return replace_text(file, str(card))


def put_section(card: Path, section: str):
    """Put a section of Markdown, whose first line is a heading of level 2, in place of the card's section of that name, or
    at the card's end."""
    heading, text = section.partition("\n")[0], card.read_text(encoding="utf-8")
    pattern = re.compile(rf"^{re.escape(heading)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if not pattern.search(text):
        text = f"{text.rstrip()}\n\n{heading}\n"
    text = pattern.sub(lambda _: f"{section.strip()}\n\n", text, count=1)
    replace_text(card, text.rstrip() + "\n")


def render_card(*, title: str, metadata: Mapping[str, Any], **parts: Any) -> str:
    """The text of a model card, from model_card_template.md. Empty parts have no heading.

    Args:
        metadata (`dict[str, Any]`): arguments of `huggingface_hub.ModelCardData`; those that are None are left out.
            `library_name` is transformers and `model_name`, where there are results, the title unless it says otherwise.
        parts: of the template: `opening` and `results` in Markdown; Python that loads the model (`load`), which begins with
            `LOADING_LINES`; `brings_code`, if the folder holds code of its own; rows of tables (`training`, `hardware` and
            `sizes`); sentences (`limits`).
    """
    from huggingface_hub import ModelCard, ModelCardData

    # The name belongs to the results: without any it would be a field that the Hub does not know.
    name = {"model_name": title} if metadata.get("eval_results") else {}
    data = ModelCardData(**{**name, "library_name": "transformers", **metadata})
    template = TEMPLATE.read_text(encoding="utf-8")
    card = ModelCard.from_template(data, template_str=template, title=title, facts_table=facts_table, **parts)
    # Paragraphs are apart by one empty line, wherever the template left something out.
    return re.sub(r"\n{3,}", "\n\n", str(card)).rstrip("\n") + "\n"


def shown_number(count: int) -> str:
    """Of parameters: "12.3 million", and a small one in full."""
    return f"{count / 1e6:.1f} million" if count >= 100_000 else f"{count:,}"


def facts_table(facts: Mapping[str, Any]) -> str:
    """A row for each fact; a value is text, a number, a list, or a dictionary of these."""
    return "\n".join(["| | |", "| --- | --- |", *(f"| {fact} | {table_cell(value)} |" for fact, value in facts.items())])


def table_cell(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{name} {table_cell(entry)}" for name, entry in value.items()]
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def card_text(model: ModelFolder, metadata: Mapping[str, Any] | None = None) -> str:
    """The card of a folder, built from its facts.

    Args:
        metadata (`dict`, *optional*): language, license, base_model, datasets and tags that win over those of the run.
    """
    metadata, run, kind = metadata or {}, model.run, model.kind
    base = metadata.get("base_model") or run.base_model
    measured = model.metrics
    index = model_index(model, measured)
    is_ours = model.config.get("model_type") == "deberta-ext" or "hf_deberta_ext" in run.hardware.get("versions", {})
    tags = ["deberta", "hf_deberta_ext"] if is_ours else []
    languages = as_list(run.language or DATASET_LANGUAGES.get((*run.datasets, None)[0]))
    adapter_base = model.adapter.get("base_model_name_or_path")
    return render_card(
        title=model.title,
        opening=(f"> **Warning.** {run.diverged}\n\n" if run.diverged else "") + (run.opening or opening_of(model, base)),
        load=loading_code(
            kind, shown_source(model.folder) + ("" if model.model_folder == model.folder else f"/{model.model_folder.name}"),
            custom_code=model.custom_code or model.base_has_code,
            texts=sample_texts(run.task, run.text_columns),
            problem_type=model.config.get("problem_type"), adapter_base=adapter_base and shown_source(adapter_base),
            base_revision=run.base_revision, own_config=bool(model.config), tokenizer=model.has_tokenizer,
        ),
        brings_code=model.custom_code,
        results=results_section(model, measured),
        training=run.training,
        hardware=run.hardware,
        limits=limits_of(model, measured, base, languages),
        sizes=size_rows(model),
        metadata=dict(
            language=metadata.get("language") or one_or_list(languages),
            license=metadata.get("license") or run.license,
            library_name="peft" if model.adapter else "transformers",
            pipeline_tag={"encoder": "feature-extraction"}.get(kind, kind if kind in AUTO_MODELS else None),
            tags=[*dict.fromkeys([*tags, *(["lora"] if model.adapter else []), *metadata.get("tags", [])])] or None,
            base_model=metadata.get("base_model") or run.base_model_id,
            datasets=metadata.get("datasets") or [*run.datasets] or None,
            metrics=[*dict.fromkeys(result.metric_type for result in index)] or None,
            eval_results=index or None,
        ),
    )  # fmt: skip


def model_index(model: ModelFolder, measured: Mapping[str, float]) -> list[Any]:
    """Results in the form of the Hub."""
    run, kind = model.run, model.kind
    if model.is_pretraining:
        prefix, names = "generator" if model.half == "generator" else "mlm", ("perplexity", "accuracy")
        task_type, task_name = "fill-mask", "masked-language modelling"
        if model.half == "discriminator":
            prefix, names = model.half, ("accuracy", "precision", "recall")
            task_type, task_name = "other", "replaced token detection"
        scores = {name: measured[f"{prefix}_{name}"] for name in names if f"{prefix}_{name}" in measured}
        held_out = dict(dataset=None, dataset_name="held-out text", sets={"": (None, None)})
        return eval_results(scores, task_type=task_type, task_name=task_name, **held_out) if kind != "joint" else []
    if run.measured_on is None or kind not in AUTO_MODELS:
        return []
    seeds = model.summary.get("seeds", ())
    return eval_results(
        measured, task_type=kind, dataset=(*run.datasets, None)[0], dataset_name=run.task or run.measured_on, sets=run.sets,
        note=f"mean of {len(seeds)} seeds" if len(seeds) > 1 else None,
    )  # fmt: skip


def opening_of(model: ModelFolder, base: str | None) -> str:
    run, kind = model.run, model.kind
    family = FAMILIES.get(str(model.config.get("model_type")), str(model.config.get("model_type") or "transformers"))
    text = NOUNS[kind] if kind == "joint" else f"{'An' if family[0] in 'aeiou' else 'A'} {family} {NOUNS[kind]}"
    if model.half == "generator":
        text += " (the generator of replaced token detection)"
    if model.adapter:
        method = str(model.adapter.get("peft_type") or "LORA").replace("LORA", "LoRA")
        text = f"An adapter ({method}) for {kind.replace('-', ' ')}"
    text += f" ({model.architecture})" if model.architecture else ""
    task = f" on {run.task}" if run.task not in (None, kind) else ""
    if base is not None:
        verb = "trained further" if model.is_pretraining else f"fine-tuned{task}"
        text += f", {verb} from {base}"
    elif run.from_scratch:
        text += f", trained{task} from random weights"
    text += ", with hf_deberta_ext" if "hf_deberta_ext" in run.hardware.get("versions", {}) else ""
    seeds = model.summary.get("seeds", ())
    if seeds:
        times = f"{len(seeds)} times with the seeds" if len(seeds) > 1 else "once, with the seed"
        text += f", {times} {', '.join(map(str, seeds))}:\nthe folder of each seed holds a model and its card"
    count = run.parameters if run.parameters and not model.half else model.parameters().get("all")
    if count and not seeds:
        text += f". {'The adapter' if model.adapter and not run.parameters else 'It'} has {shown_number(count)} parameters"
        if model.adapter and run.trained_parameters:
            text += f". {shown_number(run.trained_parameters)} of them were trained (low-rank adapters and the head)"
    if model.labels and kind in ("text-classification", "token-classification"):
        text += f".\nIts labels are {', '.join(model.labels)}"
    return f"{text}."


def results_section(model: ModelFolder, measured: Mapping[str, float]) -> str | None:
    counts = number_of_examples(model.results)
    text = render_template(
        "card_results.jinja", model=model, run=model.run, measured=measured,
        examples=", ".join(f"{count:,}{f' ({name})' if name else ''}" for name, count in counts.items()),
        results_table=results_table, summary_table=summary_table, objectives_table=objectives_table,
        replaced_token_table=replaced_token_table,
    )  # fmt: skip
    return text or None


def limits_of(model: ModelFolder, measured: Mapping[str, float], base: str | None, languages: Sequence[str]) -> list[str]:
    """Sentences on the bounds of the model and of its results."""
    config, metrics = model.config, [name for name in measured if not name.endswith("loss")]
    has_positions = config.get("model_type") in FAMILIES and config.get("position_biased_input", True)
    text = render_template(
        "card_limits.jinja", model=model, run=model.run, kind=model.kind, measured=measured, base=base, languages=languages,
        has_task_head=model.kind in AUTO_MODELS and model.kind != "encoder", learned_nothing=learned_nothing,
        positions=config.get("max_position_embeddings") if has_positions else None,
        fewest_examples=min(number_of_examples(model.results).values(), default=None),
        has_scores=any(map(is_score, metrics)), has_best_thresholds=not all(map(is_score, metrics)),
    )  # fmt: skip
    sentences = text.removeprefix("- ").split("\n- ") if text else []
    return [*model.run.limits, *(" ".join(sentence.split()) for sentence in sentences)]


def size_rows(model: ModelFolder) -> dict[str, Any]:
    """Rows of the table of sizes."""
    if model.adapter:
        return {}
    config, rows = model.config, {}
    names = {
        "num_hidden_layers": "layers", "hidden_size": "width", "num_attention_heads": "attention heads",
        "intermediate_size": "width of the feed-forward layers", "vocab_size": "vocabulary",
    }  # fmt: skip
    for half in ("generator", "discriminator") if model.is_joint else ("",):
        if counts := model.parameters(f"{half}." if half else ""):
            numbers = [f"{name} {counts[name]:,}" for name in ("embeddings", "encoder", "heads") if counts[name]]
            rows[f"parameters, {half}" if half else "parameters"] = f"{counts['all']:,}: {', '.join(numbers)}"
    suffix = ", discriminator" if model.is_joint else ""
    rows |= {f"{row}{suffix}": config[field] for field, row in names.items() if isinstance(config.get(field), int)}
    return rows | ({"type of the weights": model.dtypes} if model.tensors else {})

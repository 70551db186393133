# SPDX-License-Identifier: Apache-2.0
"""Render the model card of a folder from a template, the files of the folder, and what is known about the run."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData, metadata_load, metadata_save

from ..analysis import results
from ..checkpoints.files import read_json
from ..files import as_list, free_name, replace_text, shown_source
from ..heads import HEADS
from .facts import AUTO_MODELS, REPORT_FILE, ModelFolder, RunFacts, read_folder, read_halves

__all__ = ["CARD", "card_text", "put_section", "write_model_card", "write_run_card"]

CARD = "README.md"
TEMPLATE = Path(__file__).with_name("model_card.jinja")
NOUNS = {
    "encoder": "encoder",
    "fine-tune": "encoder with the head of replaced token detection (DeBERTaV3's discriminator)",
    "joint": HEADS["pretraining"].description,
}
for _head in HEADS.values():
    if _head.pipeline_tag is not None:
        NOUNS[_head.pipeline_tag] = _head.description.removeprefix("A DeBERTa ")
FAMILIES = {"deberta-ext": "DeBERTa", "deberta-v2": "DeBERTa v2 or v3", "deberta": "DeBERTa"}
# Languages of data sets on the Hub, taken from their cards.
ENGLISH = """allenai/swag aps/super_glue ehovy/race eriktks/conll2003 jaredfern/codah leondz/wnut_17 nyu-mll/glue
    rajpurkar/squad rajpurkar/squad_v2""".split()
DATASET_LANGUAGES = {"clue/clue": "zh"} | dict.fromkeys(ENGLISH, "en")


def write_run_card(folder: str | os.PathLike, facts: RunFacts) -> Path:
    """Write the card of a run's model, and store `facts` in run_report.json. For a joint model, also write the cards of its
    generator and discriminator."""
    report_file = Path(folder, REPORT_FILE)
    kept = {name: value for name, value in asdict(facts).items() if value not in (None, False, (), [], {})}
    report = read_json(report_file) | {"card": kept}
    replace_text(report_file, json.dumps(report, indent=2, default=str) + "\n")
    return write_cards(read_folder(folder, facts), {})


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
    """Write the model card (README.md) of a model's folder. If the card exists, only its metadata is updated.

    Args:
        language (`str` or `list[str]`, *optional*): ISO 639 codes, optionally with a region (pt-BR). The Hub's language
            filter ignores the region.
        license (`str`, *optional*): identifier of the licence on the Hub: apache-2.0, mit, other.
        base_model (`str`, *optional*): Hub id of the model that training started from.
        datasets (`str` or `list[str]`, *optional*): Hub ids of the training data.
        tags (`list[str]`, default ()): additional tags.
        overwrite (`bool`, default False): write a new card; an existing card is renamed to README.md.old-1 (-2, ...).

    Raises:
        ValueError: if the folder contains no model, or if one of its files is damaged.
    """
    values = {"language": language, "license": license, "base_model": base_model, "datasets": as_list(datasets)}
    metadata = {name: value for name, value in values.items() if value}
    card = Path(folder, CARD)
    if card.is_file() and not overwrite:
        known = metadata_load(card) or {}
        if tags:
            metadata["tags"] = [*dict.fromkeys([*as_list(known.get("tags")), *tags])]
        if metadata:
            metadata_save(card, known | metadata)
        return card
    model = read_folder(folder)
    if card.is_file():
        card.rename(free_name(card))
    return write_cards(model, metadata | {"tags": as_list(tags)})


def write_cards(model: ModelFolder, metadata: Mapping[str, Any]) -> Path:
    """Write the card of a folder and, for a joint model, the cards of its generator and discriminator."""
    texts = {each.folder / CARD: card_text(each, metadata) for each in (*read_halves(model), model)}
    for card, text in texts.items():
        replace_text(card, text)
    return model.folder / CARD


def put_section(card: Path, section: str) -> None:
    """Replace the section of a card that has the level-2 heading of `section`; without such a section, append `section`."""
    heading, text = section.partition("\n")[0], card.read_text(encoding="utf-8")
    pattern = re.compile(rf"^{re.escape(heading)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if not pattern.search(text):
        text = f"{text.rstrip()}\n\n{heading}\n"
    text = pattern.sub(lambda _: f"{section.strip()}\n\n", text, count=1)
    replace_text(card, text.rstrip() + "\n")


def card_text(model: ModelFolder, metadata: Mapping[str, Any]) -> str:
    """Render the card of a folder. `metadata` (language, license, ...) replaces the values of the run."""
    from jinja2 import Template

    run, kind, config = model.run, model.kind, model.config
    measured, counts = model.metrics, results.number_of_examples(model.results)
    base = metadata.get("base_model") or run.base_model
    languages = as_list(run.language)
    if not languages and run.datasets:
        languages = as_list(DATASET_LANGUAGES.get(run.datasets[0]))
    tags = [*metadata.get("tags", ())]
    if model.adapter:
        tags = ["lora", *tags]
    if config.get("model_type") == "deberta-ext" or "hf_deberta_ext" in run.hardware.get("versions", {}):
        tags = ["deberta", "hf_deberta_ext", *tags]
    index = model_index(model, measured)
    data = ModelCardData(
        model_name=model.title if index else None,
        language=metadata.get("language") or (languages[0] if len(languages) == 1 else languages or None),
        license=metadata.get("license") or run.license,
        library_name="peft" if model.adapter else "transformers",
        pipeline_tag={"encoder": "feature-extraction", "fine-tune": None, "joint": None}.get(kind, kind),
        tags=[*dict.fromkeys(tags)] or None,
        base_model=metadata.get("base_model") or run.base_model_id,
        datasets=metadata.get("datasets") or [*run.datasets] or None,
        metrics=[*dict.fromkeys(result.metric_type for result in index)] or None,
        eval_results=index or None,
    )
    auto_classes = AUTO_MODELS | {"joint": "AutoModelForPreTraining", "fine-tune": "AutoModelForSequenceClassification"}
    if not model.has_tokenizer:
        auto_classes["fine-tune"] = "AutoModel"
    has_positions = config.get("model_type") in FAMILIES and config.get("position_biased_input", True)
    template = Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
    text = template.render(
        {name: getattr(results, name) for name in results.__all__},
        card_data=data.to_yaml(),
        model=model,
        run=run,
        kind=kind,
        measured=measured,
        base=base,
        languages=languages,
        noun=NOUNS[kind],
        family=FAMILIES.get(str(config.get("model_type")), config.get("model_type") or "transformers"),
        parameters=(run.parameters if not model.half else None) or model.parameters,
        auto_class=auto_classes[kind],
        adapter_base=shown_source(model.adapter.get("base_model_name_or_path") or ""),
        examples=", ".join(f"{count:,} ({name})".removesuffix(" ()") for name, count in counts.items()),
        fewest_examples=min(counts.values(), default=None),
        has_best_thresholds=any(not name.endswith("loss") and not results.is_score(name) for name in measured),
        positions=config.get("max_position_embeddings") if has_positions else None,
        cell=table_cell,
        number=lambda value: f"{value or 0:,}",
        millions=lambda count: f"{count / 1e6:.1f} million" if count >= 100_000 else f"{count:,}",
    )
    text, heading, limits = text.partition("## Limits\n")
    return re.sub(r"\n{3,}", "\n\n", text) + f"{heading}\n" + re.sub(r"\n{2,}", "\n", limits).strip("\n") + "\n"


def table_cell(value: Any) -> str:
    """Format a table cell. `value` is text, a number, or a list or dictionary of texts and numbers."""
    if isinstance(value, Mapping):
        value = [f"{name} {table_cell(entry)}" for name, entry in value.items()]
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, as_list(value)))
    return " ".join(text.split()).replace("|", "\\|")


def model_index(model: ModelFolder, measured: Mapping[str, float]) -> list[EvalResult]:
    """Return the model index of the card: results on held-out text (pre-training) or on the data sets of a task."""
    run = model.run
    if model.kind == "joint" or not (model.is_pretraining or (run.measured_on and model.kind in AUTO_MODELS)):
        return []
    if model.is_pretraining:
        prefix, names = model.half or "mlm", ("perplexity", "accuracy", "precision", "recall")
        scores = {name: measured[f"{prefix}_{name}"] for name in names if f"{prefix}_{name}" in measured}
        if model.half == "discriminator":
            return eval_results(scores, task_type="other", task_name="replaced token detection")
        return eval_results(scores, task_type="fill-mask", task_name="masked-language modelling")
    index = eval_results(
        measured,
        task_type=model.kind,
        dataset_type=run.datasets[0] if run.datasets else "text",
        dataset_name=run.task or run.measured_on,
        sets=run.sets or {"": (None, "validation")},
    )
    seeds = model.summary.get("seeds", ())
    for result in index if len(seeds) > 1 else ():
        result.metric_name = f"{result.metric_name or result.metric_type} (mean of {len(seeds)} seeds)"
    return index


def eval_results(
    measured: Mapping[str, float], *, sets: Mapping[str, Sequence[str | None]] | None = None, **names: str | None
) -> list[EvalResult]:
    """Convert metrics to entries of a card's model index. Metrics that are not scores, such as losses, are skipped.

    Args:
        measured (`dict`): metrics by name, such as "accuracy"; "mm_accuracy" is the accuracy of the evaluation set "mm".
        sets (`dict`, *optional*): evaluation set ("" for the main one) -> its (configuration, split) on the Hub.
        names: task_type, task_name, dataset_type and dataset_name of the entries.
    """
    entries, sets = [], sets or {"": (None, None)}
    names = {"dataset_type": "text", "dataset_name": "held-out text"} | names
    for name, value in measured.items():
        if not results.is_score(name) or results.shown_metric(name, value).startswith(">"):
            continue
        own_set = next((prefix for prefix in sets if prefix and name.startswith(f"{prefix}_")), "")
        # Name of the metric on the Hub: "f1" for PER_f1 (an entity type) and macro_f1 (an average).
        metric = re.sub(r".*_(?=(accuracy|f1|precision|recall)$)", "", name.removeprefix(f"{own_set}_"))
        config, split = sets.get(own_set, (None, "validation"))
        own_name = name if name != metric else None
        place = {"dataset_config": config, "dataset_split": split}
        entries.append(EvalResult(metric_type=metric, metric_value=round(value, 4), metric_name=own_name, **names, **place))
    return entries

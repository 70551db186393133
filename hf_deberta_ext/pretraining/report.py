# SPDX-License-Identifier: Apache-2.0
"""What a pre-training run leaves beside its model: curves as PNG, and model cards in Markdown."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.plots import plot_curves
from ..publishing.card import base_model_names, shown_number, shown_source, write_card
from ..publishing.card_metadata import is_hub_id
from ..publishing.loading_code import loading_code
from ..publishing.results import eval_results
from .objectives import OBJECTIVES

__all__ = [
    "CURVES_FILE",
    "evaluation_table",
    "learned_nothing",
    "plot_objectives",
    "plot_replaced_tokens",
    "pretraining_limits",
    "replaced_token_table",
    "write_model_card",
    "write_replaced_token_cards",
]

CURVES_FILE = "curves.png"
# Published models have read billions: 78 GB of text (DeBERTa) to 160 GB (DeBERTaV3).
FEW_TOKENS = 10_000_000


def evaluation_table(metrics: Mapping[str, float], objectives: Sequence[str]) -> str:
    """What `PretrainingTrainer.evaluate` returned, a row an objective, as Markdown."""
    lines = ["| objective | loss | perplexity | accuracy | targets |", "| --- | --- | --- | --- | --- |"]
    for name in objectives:
        perplexity = metrics.get(f"eval_{name}_perplexity")
        shown = "" if perplexity is None else f"{perplexity:.2f}"
        lines.append(
            f"| {OBJECTIVES[name].title} | {metrics[f'eval_{name}_loss']:.4f} | {shown} "
            f"| {metrics[f'eval_{name}_accuracy']:.4f} | {metrics[f'eval_{name}_targets']:,} |"
        )
    return "\n".join(lines)


def replaced_token_table(metrics: Mapping[str, float]) -> str:
    """What `ReplacedTokenTrainer.evaluate` returned, a row for generator and discriminator, as Markdown."""

    def cell(name: str) -> str:
        value = metrics.get(f"eval_{name}")
        if value is None:
            return ""
        return f"{value:,}" if isinstance(value, int) else f"{value:.{2 if name.endswith('perplexity') else 4}f}"

    columns = ("loss", "perplexity", "accuracy", "precision", "recall", "targets")
    lines = [f"| part | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for part, reads in {"generator": "masked tokens", "discriminator": "all tokens"}.items():
        lines.append(f"| {part}, {reads} | {' | '.join(cell(f'{part}_{name}') for name in columns)} |")
    return "\n".join(lines)


def plot_objectives(history: Sequence[Mapping[str, Any]], path: str | os.PathLike, objectives: Sequence[str]) -> Path:
    """A panel with the training and the held-out loss of each objective."""
    panels = [(OBJECTIVES[name].title, ["run"], [f"{name}_loss", f"eval_{name}_loss"]) for name in objectives]
    return plot_curves({"run": history}, Path(path), panels=panels)


def plot_replaced_tokens(history: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> Path:
    """Panels with the losses of generator and discriminator, and the discriminator's precision and recall."""
    panels = [(part, ["run"], [f"{part}_loss", f"eval_{part}_loss"]) for part in ("generator", "discriminator")]
    names = [f"{prefix}discriminator_{name}" for name in ("precision", "recall") for prefix in ("", "eval_")]
    panels.append(("replaced tokens found", ["run"], names))
    return plot_curves({"run": history}, Path(path), panels=panels)


def write_model_card(
    folder: str | os.PathLike,
    *,
    metrics: Mapping[str, float],
    objectives: Mapping[str, float],
    facts: Mapping[str, Any],
    hardware: Mapping[str, Any] | None = None,
    limits: Sequence[str] = (),
    parameters: int,
    base_model: str | None = None,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
) -> Path:
    """Writes README.md, the model card that the Hub shows, into the folder of a trained model.

    Args:
        metrics (`dict[str, float]`): what the last evaluation returned.
        objectives (`dict[str, float]`): the objectives and their weights.
        facts (`dict[str, Any]`): rows of the table of the training: data, packing, masking, steps, ...; a value is text, a
            number, a list, or a dictionary of these.
        hardware (`dict[str, Any]`, *optional*): rows of the table of hardware and time.
        limits (`list[str]`): sentences, see `pretraining_limits`.
        parameters (`int`): of the model.
        base_model (`str`, *optional*): the checkpoint that was trained further, a Hub id or a folder, of which the card
            has the name only; None = from random weights.
        language (`str` or `list[str]`, *optional*): ISO codes for the Hub.
        license (`str`, *optional*): the Hub's name of it.
        datasets (`list[str]`): the data's ids on the Hub.
    """
    weights = ", ".join(f"{OBJECTIVES[name].title} (weight {weight:g})" for name, weight in objectives.items())
    results = [
        evaluation_table(metrics, [*objectives]),
        "Each loss is a mean over the targets of its objective, in held-out text. Perplexity is the exponential of the loss "
        "under the mask.",
        f"![Losses and held-out loss during the training]({CURVES_FILE})",
    ]
    return _write_card(
        Path(folder),
        "A DeBERTa masked language model",
        "fill-mask",
        results,
        facts={"objectives": weights} | dict(facts),
        limits=["It fills masks: for any other task it has to be fine-tuned.", *limits],
        scores={name: metrics[f"eval_mlm_{name}"] for name in ("perplexity", "accuracy")},
        task=("fill-mask", OBJECTIVES["mlm"].title),
        parameters=parameters,
        metadata=dict(base_model=base_model, language=language, license=license, datasets=datasets),
        hardware=hardware,
    )


def write_replaced_token_cards(
    folder: str | os.PathLike,
    *,
    metrics: Mapping[str, float],
    facts: Mapping[str, Any],
    hardware: Mapping[str, Any] | None = None,
    limits: Sequence[str] = (),
    parameters: Mapping[str, int],
    base_model: str | None = None,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
) -> list[Path]:
    """Writes the cards of a joint model and of the generator and the discriminator in the folders of these names in it.

    Args:
        metrics (`dict[str, float]`): what the last `ReplacedTokenTrainer.evaluate` returned.
        parameters (`dict[str, int]`): of the "joint" model, where what is shared counts once, of the "generator" and of the
            "discriminator".
        facts, hardware, limits, base_model, language, license, datasets: as in `write_model_card`.
    """
    folder = Path(folder)
    common = dict(
        facts=facts,
        hardware=hardware,
        metadata=dict(base_model=base_model, language=language, license=license, datasets=datasets),
    )
    table = replaced_token_table(metrics)
    explained = (
        "In held-out text. The generator's loss is a mean over masked tokens; perplexity is its exponential. The "
        f"discriminator tells which tokens were replaced, {metrics['eval_replaced_share']:.2%} of them: a sample that "
        "equals the original counts as original. Who knows only this share would have a loss of "
        f"{metrics['eval_discriminator_guess_loss']:.4f}. "
        "Precision and recall are those of the replaced tokens, at a probability of 1/2. The average cosine "
        f"similarity of word embeddings is {metrics['eval_generator_similarity']:.4f} in the generator and "
        f"{metrics['eval_discriminator_similarity']:.4f} in the discriminator."
    )
    found = [
        "The discriminator was tested on replacements of this generator alone: other errors in a text may look different "
        "to it."
    ]
    if learned_nothing(metrics):
        found.append("The discriminator's loss is that of a constant guess: it has learned nothing that helps fine-tuning.")
    proposes = "The generator was made to propose replacements: what to fine-tune is the discriminator."
    joint = _write_card(
        folder,
        "Generator and discriminator of replaced token detection (DeBERTaV3)",
        "joint",
        [table, explained, f"![Losses, precision and recall during the training]({CURVES_FILE})"],
        limits=[proposes, *found, *limits],
        scores={},
        parameters=parameters["joint"],
        **common,
    )
    discriminator = _write_card(
        folder / "discriminator",
        "A DeBERTa encoder with the head of replaced token detection (DeBERTaV3's discriminator)",
        "fine-tune",
        [table, explained],
        limits=["It has no head for masks, and none for a task: it has to be fine-tuned.", *found, *limits],
        scores={name: metrics[f"eval_discriminator_{name}"] for name in ("accuracy", "precision", "recall")},
        task=("other", "replaced token detection"),
        parameters=parameters["discriminator"],
        title=f"{folder.resolve().name}: discriminator",
        **common,
    )
    generator = _write_card(
        folder / "generator",
        "A DeBERTa masked language model (the generator of replaced token detection)",
        "fill-mask",
        [table, explained],
        limits=[proposes, *limits],
        scores={name: metrics[f"eval_generator_{name}"] for name in ("perplexity", "accuracy")},
        task=("fill-mask", OBJECTIVES["mlm"].title),
        parameters=parameters["generator"],
        title=f"{folder.resolve().name}: generator",
        **common,
    )
    return [joint, discriminator, generator]


def learned_nothing(metrics: Mapping[str, float]) -> bool:
    """Whether the discriminator of an evaluation is no better than a guess that knows only the share of replaced tokens."""
    return metrics["eval_discriminator_loss"] > 0.99 * metrics["eval_discriminator_guess_loss"]


def pretraining_limits(
    *,
    seed: int,
    max_length: int,
    held_out: str | None = None,
    tokens: int | None = None,
    language: str | None = None,
    base_model: str | None = None,
) -> list[str]:
    """What a card says of where a pre-trained model ends, as far as the run knows it.

    Args:
        max_length (`int`): tokens of the longest example.
        held_out (`str`, *optional*): what it was measured on; None = a part of the training data that was held out.
        tokens (`int`, *optional*): in the documents to train on.
        language (`str`, *optional*): ISO code of the data.
        base_model (`str`, *optional*): the checkpoint that was trained further.
    """
    source = held_out or "held-out documents of the data that it was trained on"
    limits = [
        f"Its results are of {source} and nothing else; how well it can be fine-tuned was not measured.",
        f"It was trained on examples of at most {max_length} tokens: what it does with longer texts is not known.",
        f"It is one run, with the seed {seed}: how much the results differ from seed to seed is not known.",
    ]
    if tokens is not None and tokens < FEW_TOKENS and base_model is None:
        limits.append(f"It has been trained on {tokens:,} tokens of text, far less than published models.")
    if language is not None:
        limits.append(f"The data is in {language}: nothing is known of other languages.")
    if base_model is not None:
        limits.append(
            f"What the model that it began as ({shown_source(base_model)}) does not know, or has learned wrongly, stays."
        )
    return limits


def _write_card(
    folder, what, kind, results, *, facts, hardware, limits, scores, parameters, metadata, task=None, title=None
) -> Path:
    """The card of one folder; `scores` of the `task` (type, name) go to the Hub's table of results."""
    name, base_id = base_model_names(metadata["base_model"])
    index = []
    if task is not None:
        index = eval_results(
            scores, task_type=task[0], task_name=task[1], dataset=None, dataset_name="held-out text", sets={"": (None, None)}
        )
    beginning = "trained from random weights" if name is None else f"trained further from {name}"
    return write_card(
        folder,
        title=title,
        opening=f"{what}, {beginning}, with hf_deberta_ext and\ntransformers' Trainer. "
        f"It has {shown_number(parameters)} parameters.",
        load=loading_code(kind, shown_source(folder), custom_code=True),
        brings_code=True,
        results="\n\n".join(results),
        training=facts,
        hardware=hardware,
        limits=limits,
        metadata=dict(
            language=metadata["language"], license=metadata["license"], tags=["deberta", "hf_deberta_ext"],
            pipeline_tag="fill-mask" if kind == "fill-mask" else None, base_model=base_id if is_hub_id(base_id) else None,
            datasets=[*metadata["datasets"]] or None,
            metrics=[*dict.fromkeys(result.metric_type for result in index)] or None, eval_results=index or None,
        ),
    )  # fmt: skip

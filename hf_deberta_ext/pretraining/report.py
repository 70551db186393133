# SPDX-License-Identifier: Apache-2.0
"""What a pre-training run leaves beside its model: curves as PNG, and model cards in Markdown."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..plots import plot_curves
from ..runs.card import base_model_names, facts_table, write_card

__all__ = [
    "CURVES_FILE",
    "evaluation_table",
    "plot_objectives",
    "plot_replaced_tokens",
    "replaced_token_table",
    "write_model_card",
    "write_replaced_token_cards",
]

CURVES_FILE = "curves.png"
NAMES = {
    "mlm": "masked-language modelling",
    "nsp": "next sentence prediction",
    "sop": "sentence order prediction",
    "sbo": "span boundary objective",
}

FILL_MASK = """from transformers import pipeline

fill_mask = pipeline("fill-mask", "{folder}", trust_remote_code=True)  # the path of this folder, or its Hub id
print(fill_mask("Paris is the [MASK] of France."))"""
FINE_TUNE = """from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "{folder}"  # the path of this folder, or its Hub id
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, num_labels=2)
tokenizer = AutoTokenizer.from_pretrained(folder)"""
JOINT = """from transformers import AutoModelForPreTraining

# The path of this folder, or its Hub id. Folders in it: discriminator is what to fine-tune, generator fills masks.
model = AutoModelForPreTraining.from_pretrained("{folder}", trust_remote_code=True)
discriminator, generator = model.export_discriminator(), model.export_generator()"""


def evaluation_table(metrics: Mapping[str, float], objectives: Sequence[str]) -> str:
    """What `PretrainingTrainer.evaluate` returned, a row an objective, as Markdown."""
    lines = ["| objective | loss | perplexity | accuracy | targets |", "| --- | --- | --- | --- | --- |"]
    for name in objectives:
        perplexity = metrics.get(f"eval_{name}_perplexity")
        lines.append(
            f"| {NAMES[name]} | {metrics[f'eval_{name}_loss']:.4f} | {'' if perplexity is None else f'{perplexity:.2f}'} "
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
    panels = [(NAMES[name], ["run"], [f"{name}_loss", f"eval_{name}_loss"]) for name in objectives]
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
    parameters: int,
    base_model: str | None = None,
    language: str | Sequence[str] | None = None,
) -> Path:
    """Writes README.md, the model card that the Hub shows, into the folder of a trained model.

    Args:
        metrics (`dict[str, float]`): what the last evaluation returned.
        objectives (`dict[str, float]`): the objectives and their weights.
        facts (`dict[str, Any]`): rows of the table of the training: data, packing, masking, steps, versions, ...; a value is
            text, a number, a list, or a dictionary of these.
        parameters (`int`): of the model.
        base_model (`str`, *optional*): the checkpoint that was trained further, a Hub id or a folder, of which the card
            has the name only; None = from random weights.
        language (`str` or `list[str]`, *optional*): ISO codes for the Hub.
    """
    weights = ", ".join(f"{NAMES[name]} (weight {weight:g})" for name, weight in objectives.items())
    results = [
        evaluation_table(metrics, [*objectives]),
        "Each loss is a mean over the targets of its objective. Perplexity is the exponential of the loss under the mask.",
        f"![Losses and held-out loss during the training]({CURVES_FILE})",
    ]
    return _write_card(
        Path(folder),
        "A DeBERTa masked language model",
        FILL_MASK,
        results,
        facts={"objectives": weights} | dict(facts),
        scores={name: metrics[f"eval_mlm_{name}"] for name in ("perplexity", "accuracy")},
        task=("fill-mask", NAMES["mlm"]),
        parameters=parameters,
        base_model=base_model,
        language=language,
    )


def write_replaced_token_cards(
    folder: str | os.PathLike,
    *,
    metrics: Mapping[str, float],
    facts: Mapping[str, Any],
    parameters: Mapping[str, int],
    base_model: str | None = None,
    language: str | Sequence[str] | None = None,
) -> list[Path]:
    """Writes the cards of a joint model and of the generator and the discriminator in the folders of these names in it.

    Args:
        metrics (`dict[str, float]`): what the last `ReplacedTokenTrainer.evaluate` returned.
        parameters (`dict[str, int]`): of the "joint" model, where what is shared counts once, of the "generator" and of the
            "discriminator".
        facts, base_model, language: as in `write_model_card`.
    """
    folder = Path(folder)
    common = dict(facts=facts, base_model=base_model, language=language)
    table = replaced_token_table(metrics)
    explained = (
        "The generator's loss is a mean over masked tokens; perplexity is its exponential. The discriminator tells which "
        f"tokens were replaced, {metrics['eval_replaced_share']:.2%} of them: a sample that equals the original counts as "
        "original. Who knows only this share would have a loss of "
        f"{metrics['eval_discriminator_guess_loss']:.4f}. "
        "Precision and recall are those of the replaced tokens, at a probability of 1/2. The average cosine "
        f"similarity of word embeddings is {metrics['eval_generator_similarity']:.4f} in the generator and "
        f"{metrics['eval_discriminator_similarity']:.4f} in the discriminator."
    )
    joint = _write_card(
        folder,
        "Generator and discriminator of replaced token detection (DeBERTaV3)",
        JOINT,
        [table, explained, f"![Losses, precision and recall during the training]({CURVES_FILE})"],
        scores={},
        parameters=parameters["joint"],
        **common,
    )
    discriminator = _write_card(
        folder / "discriminator",
        "A DeBERTa encoder with the head of replaced token detection (DeBERTaV3's discriminator)",
        FINE_TUNE,
        [table, explained],
        scores={name: metrics[f"eval_discriminator_{name}"] for name in ("accuracy", "precision", "recall")},
        task=("other", "replaced token detection"),
        parameters=parameters["discriminator"],
        title=f"{folder.resolve().name}: discriminator",
        **common,
    )
    generator = _write_card(
        folder / "generator",
        "A DeBERTa masked language model (the generator of replaced token detection)",
        FILL_MASK,
        [table, explained],
        scores={name: metrics[f"eval_generator_{name}"] for name in ("perplexity", "accuracy")},
        task=("fill-mask", NAMES["mlm"]),
        parameters=parameters["generator"],
        title=f"{folder.resolve().name}: generator",
        **common,
    )
    return [joint, discriminator, generator]


def _write_card(
    folder, what, usage, results, *, facts, scores, parameters, base_model, language, task=None, title=None
) -> Path:
    """The card of one folder; `scores` of the `task` (type, name) go to the Hub's table of results."""
    from huggingface_hub import EvalResult

    name, base_id = base_model_names(base_model)
    values = [
        EvalResult(
            task_type=task[0], task_name=task[1], dataset_type="text", dataset_name="held-out text",
            metric_type=metric, metric_value=round(value, 4),
        )
        for metric, value in scores.items()
    ]  # fmt: skip
    beginning = "trained from random weights" if base_model is None else f"trained further from {name}"
    return write_card(
        folder,
        opening=f"{what}, {beginning}, with hf_deberta_ext and\ntransformers' Trainer. "
        f"It has {parameters / 1e6:.1f} million parameters.",
        usage=usage.format(folder=folder.resolve().name),
        sections={"Results on held-out text": "\n\n".join(results), "Training": facts_table(facts)},
        metadata=dict(
            tags=["deberta", "hf_deberta_ext"], pipeline_tag="fill-mask" if task and task[0] == "fill-mask" else None,
            base_model=base_id, language=language, eval_results=values or None,
        ),
        title=title,
    )  # fmt: skip

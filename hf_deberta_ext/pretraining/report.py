# SPDX-License-Identifier: Apache-2.0
"""What a pre-training run leaves beside its model: curves as PNG, and a model card in Markdown."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..plots import plot_curves

__all__ = ["CURVES_FILE", "evaluation_table", "plot_objectives", "write_model_card"]

CURVES_FILE = "curves.png"
NAMES = {
    "mlm": "masked-language modelling",
    "nsp": "next sentence prediction",
    "sop": "sentence order prediction",
    "sbo": "span boundary objective",
}

CARD = """
# {title}

A DeBERTa masked language model, {beginning}, with hf_deberta_ext and
transformers' Trainer. {size}

## How to use it

```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", "{folder}", trust_remote_code=True)  # the path of this folder, or its Hub id
print(fill_mask("Paris is the [MASK] of France."))
```

The folder brings its code along; where hf_deberta_ext is installed and imported, `trust_remote_code` is not needed.

## Results on held-out text

{table}

Each loss is a mean over the targets of its objective. {targets}

![Losses and held-out loss during the training]({curves})

## Training

{training}
"""


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


def plot_objectives(history: Sequence[Mapping[str, Any]], path: str | os.PathLike, objectives: Sequence[str]) -> Path:
    """A panel with the training and the held-out loss of each objective."""
    panels = [(NAMES[name], ["run"], [f"{name}_loss", f"eval_{name}_loss"]) for name in objectives]
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
    from huggingface_hub import EvalResult, ModelCardData

    folder = Path(folder)
    title = folder.resolve().name
    is_local = base_model is not None and Path(base_model).exists()
    base_name = Path(base_model).resolve().name if is_local else base_model
    results = [
        EvalResult(
            task_type="fill-mask", task_name=NAMES["mlm"], dataset_type="text", dataset_name="held-out text",
            metric_type=name, metric_value=round(metrics[f"eval_mlm_{name}"], 4),
        )
        for name in ("perplexity", "accuracy")
    ]  # fmt: skip
    data = ModelCardData(
        model_name=title, library_name="transformers", pipeline_tag="fill-mask", tags=["deberta", "hf_deberta_ext"],
        base_model=None if is_local else base_model, language=language, eval_results=results,
    )  # fmt: skip
    weights = ", ".join(f"{NAMES[name]} (weight {weight:g})" for name, weight in objectives.items())
    rows = {"objectives": weights} | dict(facts)
    training = "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {_cell(value)} |" for name, value in rows.items())])
    card = CARD.format(
        title=title,
        folder=title,
        beginning="trained from random weights" if base_model is None else f"trained further from {base_name}",
        size=f"It has {parameters / 1e6:.1f} million parameters.",
        table=evaluation_table(metrics, [*objectives]),
        targets="Perplexity is the exponential of the loss under the mask.",
        curves=CURVES_FILE,
        training=training,
    )
    file = folder / "README.md"
    file.write_text(f"---\n{data.to_yaml()}\n---\n{card}", encoding="utf-8")
    return file


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{name} {_cell(part)}" for name, part in value.items()]
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return " ".join(text.split()).replace("|", "\\|")

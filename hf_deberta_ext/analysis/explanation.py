# SPDX-License-Identifier: Apache-2.0
"""Compute the data of the figures of `deberta-ext explain`; `PREPARE` maps a figure's name to its function.

Each function takes the model, the tokenized text and the flags, and returns numbers and a function that draws the numbers.
"""

import argparse
import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.configuration import is_joint
from ..checkpoints.files import checkpoint_step, is_adapter_folder, read_json
from ..heads import PARTS
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM
from ..model.replaced_tokens_deberta_ext import DebertaExtForPreTraining, DebertaExtForReplacedTokenDetection
from ..tokenization import check_tokenizer, load_tokenizer
from .attention_decomposition import attention_parts, position_profile
from .embedding_similarity import average_cosine_similarity, word_tables
from .influence import Prediction, explain_prediction, load_classifier, model_inputs
from .plots import (
    plot_attention,
    plot_curves,
    plot_embedding_similarity,
    plot_influence,
    plot_position_profile,
    plot_replacement_probabilities,
)
from .plots.html import influence_page
from .sentence_scoring import TokenScore, token_replacement_probabilities

__all__ = ["EXAMPLE_TEXT", "FIGURES", "PREPARE", "FigureUnavailableError", "load_model", "tokenize_texts"]

FIGURES = {
    "attention": "attention map and the terms of its logits (c2c, c2p, p2c); a joint model's discriminator is used",
    "position_profile": "contribution of position to the attention logits of each head, by distance of query and key",
    "replacement_probabilities": "probability that each token was replaced; needs a replaced token detection head",
    "embedding_similarity": "similarity of the word embeddings; needs a generator and a discriminator",
    "curves": "training losses, from trainer_state.json in the folders given by --curves (default: in the folder --model)",
    "influence": "predicted label and each token's influence on this label; needs a text classifier or a regression model",
}
# The sentence of the figures in the DeBERTa paper.
EXAMPLE_TEXT = "a new store opened beside the new mall"
# Maximum numbers of labels and tokens that are printed; the output files contain all labels and tokens.
SHOWN_LABELS, SHOWN_TOKENS = 5, 24


@dataclass
class ExplainedModel:
    """Loaded model with its `encoder` and, if present, its `discriminator` and `generator`.

    `tokenizer` is the tokenizer's folder or Hub id; `sharing` is a joint model's method of embedding sharing, else ""."""

    name: str
    tokenizer: str
    encoder: Any
    discriminator: Any = None
    generator: Any = None
    sharing: str = ""


class FigureUnavailableError(ValueError):
    """Error for a figure that the model does not support."""


def load_model(source: str, revision: str | None = None) -> ExplainedModel:
    """Load a single model, a joint model, or a folder with the subfolders generator and discriminator.

    Raises:
        ValueError, OSError: the source cannot be read, or weights of the encoder are missing.
    """
    folder = Path(source)
    name = folder.resolve().name if folder.is_dir() else source
    if (folder / "generator" / "config.json").is_file() and not (folder / "config.json").is_file():
        generator, _ = _load_with_encoder(DebertaExtForMaskedLM, str(folder / "generator"))
        half = str(folder / "discriminator")
        discriminator, _ = _load_with_encoder(DebertaExtForReplacedTokenDetection, half)
        return ExplainedModel(name, half, discriminator, discriminator, generator)
    revision = revision or "main"
    config, _ = DebertaExtConfig.get_config_dict(source, revision=revision)
    if is_joint(config):
        joint, _ = _load_with_encoder(DebertaExtForPreTraining, source, revision)
        sharing = joint.config.embedding_sharing
        return ExplainedModel(name, source, joint.discriminator, joint.discriminator, joint.generator, sharing)
    model, missing = _load_with_encoder(DebertaExtForReplacedTokenDetection, source, revision)
    explained = ExplainedModel(name, source, model.deberta)
    if "mask_predictions." not in " ".join(missing):
        explained.discriminator = model
    return explained


def _load_with_encoder(model_class, source: str, revision: str = "main") -> tuple[Any, list[str]]:
    """Load a model in float32; return the model and the names of its missing weights.

    An adapter (LoRA) is merged into the encoder of its base model; a head saved with the adapter is not loaded. A ValueError
    is raised if weights of the encoder are missing.
    """
    if is_adapter_folder(source):
        from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict

        config = PeftConfig.from_pretrained(source)
        config.modules_to_save = config.task_type = None
        model, missing = _load_with_encoder(model_class, config.base_model_name_or_path)
        adapted = get_peft_model(model, config)
        weights = {name: tensor for name, tensor in load_peft_weights(source, device="cpu").items() if ".encoder." in name}
        set_peft_model_state_dict(adapted, weights)
        return adapted.merge_and_unload().eval(), missing
    options = dict(dtype=torch.float32, output_loading_info=True, revision=revision)
    model, info = model_class.from_pretrained(source, **options)
    missing = sorted(map(str, info["missing_keys"]))
    of_encoder = [key for key in missing if ".encoder." in key or "word_embeddings" in key]
    if of_encoder:
        raise ValueError(
            f"the weights in {source} do not match its config.json: {len(of_encoder)} encoder weights are missing, such as "
            f"{of_encoder[0]}"
        )
    return model.eval(), missing


def tokenize_texts(model: ExplainedModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokenize `arguments.texts`, a text or a pair; return a dict with "tokenizer", "tensors" (model inputs), "tokens"."""
    if not all(map(str.strip, arguments.texts)):
        raise ValueError(f"--text must not be empty, got {arguments.texts}")
    revision = arguments.revision if arguments.tokenizer is None else None
    tokenizer = load_tokenizer(arguments.tokenizer or model.tokenizer, revision=revision)
    check_tokenizer(tokenizer, model.encoder.config)
    tensors = model_inputs(tokenizer(*arguments.texts, return_tensors="pt", verbose=False))
    tokens = tokenizer.convert_ids_to_tokens(tensors["input_ids"][0].tolist())
    return dict(tokenizer=tokenizer, tensors=tensors, tokens=tokens)


def _attention(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    decomposition = attention_parts(model.encoder, inputs["tensors"], layer=arguments.layer)
    head = "mean" if arguments.head is None else arguments.head
    numbers = {"layer": decomposition.layer, "head": head, "tokens": inputs["tokens"]}
    for name, values in decomposition.of_head(arguments.head).items():
        numbers[name] = values.tolist()
    return numbers, lambda paths: plot_attention(decomposition, inputs["tokens"], paths, head=arguments.head)


def _position_profile(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    config = model.encoder.config
    if not config.relative_table_size or not config.pos_att_type:
        raise FigureUnavailableError("the model has no relative positions")
    max_distance = arguments.max_distance
    if max_distance is None:
        # Longer distances do not occur in training, so their embeddings are not trained.
        max_distance = min(config.relative_distance, inputs["tokenizer"].model_max_length) - 1
    profile = position_profile(model.encoder, inputs["tensors"], layer=arguments.layer, max_distance=max_distance)
    heads = list(range(len(profile.total)))
    if arguments.head is not None:
        if arguments.head not in heads:
            raise ValueError(f"--head must be between 0 and {heads[-1]}, got {arguments.head}")
        heads = [arguments.head]
    numbers = {"layer": profile.layer, "heads": heads, "distances": profile.distances.tolist()}
    for name in ("c2p", "p2c", "p2p", "total"):
        values = getattr(profile, name)
        if values is not None:
            numbers[name] = values[heads].tolist()
    return numbers, lambda paths: plot_position_profile(profile, paths, heads=heads)


def _replacement_probabilities(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    if model.discriminator is None:
        raise FigureUnavailableError("the model has no head for replaced token detection (mask_predictions)")
    tokens = token_replacement_probabilities(model.discriminator, inputs["tokenizer"], arguments.texts[0])
    return list(map(TokenScore._asdict, tokens)), lambda paths: plot_replacement_probabilities(tokens, paths)


def _embedding_similarity(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    if model.generator is None:
        raise FigureUnavailableError("the model does not have both a generator and a discriminator")
    special = {*inputs["tokenizer"].all_special_ids, *(model.encoder.config.special_token_ids or ())}
    similarity = {}
    for part, table in word_tables(model.generator, model.discriminator, special).items():
        similarity[part] = average_cosine_similarity(table)
    name = f"{model.name}, {model.sharing.upper()}" if model.sharing else model.name
    return {name: similarity}, lambda paths: plot_embedding_similarity({name: similarity}, paths)


def _curves(model: ExplainedModel | None, inputs: dict | None, arguments: argparse.Namespace):
    folders = arguments.curves or [arguments.model]
    names = [Path(folder).resolve().name for folder in folders]
    if len({*names}) < len(names):
        names = list(map(str, folders))
    runs = {}
    for name, folder in zip(names, folders, strict=True):
        try:
            runs[name] = _history(Path(folder))
        except FileNotFoundError as error:
            if arguments.curves:
                raise
            raise FigureUnavailableError(str(error)) from error
    panels = _panels(runs)
    numbers: dict[str, dict[str, list]] = {}
    for _, chosen, metrics in panels:
        for name, metric in itertools.product(chosen, metrics):
            points = [[entry["step"], entry[metric]] for entry in runs[name] if metric in entry]
            if points:
                numbers.setdefault(name, {})[metric] = points
    return numbers, lambda paths: plot_curves(runs, paths, panels=panels)


def _influence(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    classifier = model.generator is None and load_classifier(arguments.model, arguments.revision)
    if not classifier:
        raise FigureUnavailableError("the model has no text classifier (pooler and classifier)")
    prediction = explain_prediction(classifier, inputs["tokenizer"], *arguments.texts, n_steps=arguments.n_steps)
    numbers = dataclasses.asdict(prediction) | {"tokens": [token._asdict() for token in prediction.tokens]}

    def draw(paths: list[Path]):
        print(_prediction_text(prediction))
        *figures, page = paths
        plot_influence(prediction, figures)
        page.write_text(influence_page(prediction), encoding="utf-8")

    return numbers, draw


def _prediction_text(prediction: Prediction) -> str:
    """Format the scores of a prediction, with the predicted label first, and a table of its most influential tokens."""
    best = sorted(prediction.scores, key=lambda score: (score[0] != prediction.label, -score[1]))[:SHOWN_LABELS]
    lines = [f"{name}: {score:.3f}" for name, score in best]
    kind = "score" if prediction.is_regression else "log-odds"
    evidence, masked = prediction.evidence, prediction.masked_evidence
    lines.append(f"{kind}: {evidence:.3f}; with all tokens masked: {masked:.3f}; difference: {evidence - masked:+.3f}")
    lines.append(f"sum of integrated gradients: {sum(token.gradients for token in prediction.tokens):+.3f}")
    influences = sorted((abs(token.gradients) for token in prediction.tokens), reverse=True)
    hidden = f", {SHOWN_TOKENS} of {len(influences)}" if len(influences) > SHOWN_TOKENS else ""
    lines.append(f"gradients  occlusion  token{hidden}")
    least = influences[:SHOWN_TOKENS][-1]
    for token in prediction.tokens:
        if abs(token.gradients) >= least:
            word = prediction.texts[token.number][token.start : token.end].strip()
            lines.append(f"{token.gradients:+9.3f}  {token.occlusion:+9.3f}  {word}")
    return "\n".join(lines)


def _history(folder: Path) -> list[dict]:
    """Read the logged metrics of a training run from trainer_state.json in its folder, or in its last checkpoint."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
    for place in (folder, *checkpoints):
        history = read_json(place / "trainer_state.json").get("log_history")
        if history is not None:
            return history
    raise FileNotFoundError(
        f"no trainer_state.json in {folder} or its checkpoint-* folders; pass the --output_dir of a training run"
    )


def _panels(runs: dict[str, list[dict]]) -> list[tuple[str, list[str], tuple[str, str]]]:
    """Return (title, names of runs, metrics) of each panel.

    Runs of replaced token detection are drawn in two panels, the generator's loss and the discriminator's loss. All other
    runs share one panel.
    """
    joint_runs, single_runs = [], []
    for name, history in runs.items():
        logged = set().union(*history)
        if logged & {"generator_loss", "eval_generator_loss"}:
            joint_runs.append(name)
        else:
            single_runs.append(name)
    if not joint_runs:
        return [("", single_runs, ("loss", "eval_loss"))]
    panels = [(part, joint_runs, (f"{part}_loss", f"eval_{part}_loss")) for part in PARTS]
    if single_runs:
        panels.append(("loss", single_runs, ("loss", "eval_loss")))
    return panels


# Figure -> function that returns (numbers, function that draws the figure and saves it to the given paths).
PREPARE = {
    "attention": _attention,
    "position_profile": _position_profile,
    "replacement_probabilities": _replacement_probabilities,
    "embedding_similarity": _embedding_similarity,
    "curves": _curves,
    "influence": _influence,
}

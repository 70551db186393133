# SPDX-License-Identifier: Apache-2.0
"""Figures that explain a model, and the numbers behind them: `PREPARE` maps the name of a figure to its function."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..model.checkpoint_files import checkpoint_step, is_adapter_folder
from ..model.configuration_deberta_ext import DebertaExtConfig, is_joint
from ..model.generator_and_discriminator import DebertaExtForPreTraining
from ..model.masked_language_model import DebertaExtForMaskedLM
from ..model.replaced_token_detection import DebertaExtForReplacedTokenDetection
from ..tokenization import check_tokenizer, load_tokenizer
from .attention_decomposition import attention_parts, position_profile
from .embedding_similarity import average_cosine_similarity
from .plots import (
    plot_attention,
    plot_curves,
    plot_embedding_similarity,
    plot_position_profile,
    plot_replacement_probabilities,
)
from .sentence_scoring import token_replacement_probabilities

__all__ = ["FIGURES", "PREPARE", "FigureUnavailableError", "load_model", "tokenize_text"]

FIGURES = {
    "attention": "the attention map and its parts c2c, c2p, p2c; of generator and discriminator, the latter's",
    "position_profile": "what position adds to the logits of each head, by distance",
    "replacement_probabilities": "how likely each token was replaced; needs the head of replaced token detection",
    "embedding_similarity": "how alike the word embeddings are; needs a generator and a discriminator",
    "curves": "the losses of finished or running runs, read from trainer_state.json; without a folder, those of --model",
}
PARTS = ("generator", "discriminator")


@dataclass
class ExplainedModel:
    """A loaded model: its encoder, the halves that only some models have, and the place of its tokenizer."""

    name: str
    tokenizer: str
    encoder: Any
    discriminator: Any = None
    generator: Any = None
    sharing: str = ""


class FigureUnavailableError(ValueError):
    """A figure that the model cannot provide."""


def load_model(arguments: argparse.Namespace) -> ExplainedModel:
    """Load the model of --model: a single model, a joint one, or a folder with a generator and a discriminator."""
    source, folder = arguments.model, Path(arguments.model)
    name = folder.resolve().name if folder.is_dir() else source
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--model {source} is a file: give the folder that it lies in")
    folders = [folder / part for part in PARTS]
    if not (folder / "config.json").is_file() and all((part / "config.json").is_file() for part in folders):
        generator, _ = _load_with_encoder(DebertaExtForMaskedLM, str(folders[0]))
        discriminator, _ = _load_with_encoder(DebertaExtForReplacedTokenDetection, str(folders[1]))
        return ExplainedModel(name, str(folders[1]), discriminator, discriminator, generator)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"{source} has no config.json: it is no folder of a model")
    revision = {} if arguments.revision is None else {"revision": arguments.revision}
    try:
        config, _ = DebertaExtConfig.get_config_dict(source, **revision)
    except OSError as error:
        if folder.is_dir():
            raise
        reason = str(error).partition("\n")[0]
        raise OSError(f"{source} is no folder, and cannot be read as a repository: {reason}") from error
    if is_joint(config):
        joint, _ = _load_with_encoder(DebertaExtForPreTraining, source, **revision)
        sharing = joint.config.embedding_sharing
        return ExplainedModel(name, source, joint.discriminator, joint.discriminator, joint.generator, sharing)
    model, missing = _load_with_encoder(DebertaExtForReplacedTokenDetection, source, **revision)
    has_head = not any(key.startswith("mask_predictions.") for key in missing)
    return ExplainedModel(name, source, model.deberta, model if has_head else None)


def _load_with_encoder(model_class, source: str, **options) -> tuple[Any, list[str]]:
    """Load a model in float32 with a pretrained encoder; returns it with the names of its missing weights.

    An adapter (LoRA) is merged into the encoder of its base model; a head that was saved with it is left out.
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
    model, info = model_class.from_pretrained(source, dtype=torch.float32, output_loading_info=True, **options)
    missing = sorted(key if isinstance(key, str) else key[0] for key in info["missing_keys"])
    of_encoder = [key for key in missing if ".encoder." in key or "word_embeddings" in key]
    if of_encoder:
        raise ValueError(
            f"the weights in {source} are not those of its config.json: {len(of_encoder)} of the encoder's are missing, "
            f"such as {of_encoder[0]}"
        )
    return model.eval(), missing


def tokenize_text(model: ExplainedModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokenize --text: the tokenizer, its tensors and the tokens."""
    if not arguments.text.strip():
        raise ValueError("--text is empty")
    if arguments.tokenizer is None:
        tokenizer = load_tokenizer(model.tokenizer, revision=arguments.revision)
    else:
        tokenizer = load_tokenizer(arguments.tokenizer)
    config = model.encoder.config
    check_tokenizer(tokenizer, config)
    tensors = tokenizer(arguments.text, return_tensors="pt", verbose=False)
    tensors = {name: tensors[name] for name in ("input_ids", "token_type_ids") if name in tensors}
    tokens = tokenizer.convert_ids_to_tokens(tensors["input_ids"][0].tolist())
    limit = tokenizer.model_max_length
    if config.position_biased_input:
        limit = min(limit, config.max_position_embeddings)
    if len(tokens) > limit:
        raise ValueError(f"--text has {len(tokens)} tokens, and the model reads at most {limit}: give a part of it")
    return dict(tokenizer=tokenizer, tensors=tensors, tokens=tokens)


def _attention(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    decomposition = attention_parts(model.encoder, inputs["tensors"], layer=arguments.layer)
    maps = decomposition.of_head(arguments.head)
    numbers = {
        "layer": decomposition.layer,
        "head": "mean" if arguments.head is None else arguments.head,
        "tokens": inputs["tokens"],
        **{name: values.tolist() for name, values in maps.items()},
    }
    return numbers, lambda paths: plot_attention(decomposition, inputs["tokens"], paths, head=arguments.head)


def _position_profile(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    config = model.encoder.config
    if not config.relative_table_size or not config.pos_att_type:
        raise FigureUnavailableError("the model has no relative positions")
    # Distances that no text of its training had are noise.
    longest = min(config.relative_distance, inputs["tokenizer"].model_max_length) - 1
    reach = longest if arguments.reach is None else arguments.reach
    profile = position_profile(model.encoder, inputs["tensors"], layer=arguments.layer, reach=reach)
    H = len(profile.total)
    if arguments.head is not None and not 0 <= arguments.head < H:
        raise ValueError(f"there is no head {arguments.head}: the model has heads 0 to {H - 1}")
    heads = list(range(H)) if arguments.head is None else [arguments.head]
    lines = {name: getattr(profile, name) for name in ("c2p", "p2c", "p2p", "total")}
    numbers = {
        "layer": profile.layer,
        "heads": heads,
        "distances": profile.distances.tolist(),
        **{name: values[heads].tolist() for name, values in lines.items() if values is not None},
    }
    return numbers, lambda paths: plot_position_profile(profile, paths, heads=heads)


def _replacement_probabilities(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    if model.discriminator is None:
        raise FigureUnavailableError("the model has no head for replaced token detection (mask_predictions)")
    tokens = token_replacement_probabilities(model.discriminator, inputs["tokenizer"], arguments.text)
    return [token._asdict() for token in tokens], lambda paths: plot_replacement_probabilities(tokens, paths)


def _embedding_similarity(model: ExplainedModel, inputs: dict, arguments: argparse.Namespace):
    if model.generator is None:
        raise FigureUnavailableError("it needs a generator and a discriminator, and the model is one of them or neither")
    special = sorted({*inputs["tokenizer"].all_special_ids, *(model.encoder.config.special_token_ids or ())})
    similarity = {}
    for part in PARTS:
        embedding = getattr(model, part).get_input_embeddings()
        # Under GDES, the sum of the generator's table and the discriminator's own.
        table = embedding.table() if hasattr(embedding, "table") else embedding.weight
        words = torch.ones(len(table), dtype=torch.bool)
        words[special] = False
        similarity[part] = average_cosine_similarity(table, words)
    name = f"{model.name}, {model.sharing.upper()}" if model.sharing else model.name
    return {name: similarity}, lambda paths: plot_embedding_similarity({name: similarity}, paths)


def _curves(model: ExplainedModel | None, inputs: dict | None, arguments: argparse.Namespace):
    if arguments.curves:
        folders = arguments.curves
        histories = [_history(Path(folder)) for folder in folders]
    else:
        folders = [arguments.model]
        try:
            histories = [_history(Path(arguments.model))]
        except FileNotFoundError as error:
            raise FigureUnavailableError(str(error)) from error
    names = [Path(folder).resolve().name for folder in folders]
    names = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    runs = dict(zip(names, histories, strict=True))
    if len(runs) < len(folders):
        raise ValueError("--curves names a folder twice")
    panels = _panels(runs)
    numbers = {
        name: {
            metric: [[entry["step"], entry[metric]] for entry in runs[name] if metric in entry]
            for _, chosen, metrics in panels
            for metric in metrics
            if name in chosen and any(metric in entry for entry in runs[name])
        }
        for name in runs
    }
    return numbers, lambda paths: plot_curves(runs, paths, panels=panels)


def _history(folder: Path) -> list[dict]:
    """Read the log of a run: that of its end, or of its last checkpoint."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
    files = [place / "trainer_state.json" for place in (folder, *checkpoints)]
    file = next((item for item in files if item.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{folder} is no folder of a run: there is no trainer_state.json in it or in a checkpoint-*")
    try:
        history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} has no log_history; was the run killed while it wrote it?") from error
    if not any("loss" in key for entry in history for key in entry):
        raise ValueError(f"{file} has no loss: the run stopped before its first, or logging_steps is too large")
    return history


def _panels(runs: dict[str, list[dict]]) -> list[tuple[str, list[str], tuple[str, str]]]:
    """Replaced token detection has two losses, whose weighted sum says little; all others have one."""
    logged = {name: {key for entry in history for key in entry} for name, history in runs.items()}
    joint_runs = [name for name in runs if any("generator_loss" in key for key in logged[name])]
    single_runs = [name for name in runs if name not in joint_runs]
    panels = [(part, joint_runs, (f"{part}_loss", f"eval_{part}_loss")) for part in PARTS if joint_runs]
    return panels + ([("loss" if joint_runs else "", single_runs, ("loss", "eval_loss"))] if single_runs else [])


# Figure -> function that returns (its numbers, a function that draws it into paths).
PREPARE = {
    "attention": _attention,
    "position_profile": _position_profile,
    "replacement_probabilities": _replacement_probabilities,
    "embedding_similarity": _embedding_similarity,
    "curves": _curves,
}

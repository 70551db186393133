# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext explain`: figures of what a model makes of a text, and the numbers behind them."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "Draws figures that explain a model: attention and its parts, positions, replaced tokens, embeddings, curves."
EXAMPLE = """\
deberta-ext explain --model my_model --text "a new store opened beside the new mall" --output_dir figures
deberta-ext explain --model my_model --attention --layer 1 --head 3 --formats png svg
deberta-ext explain --curves runs/first runs/second"""

# The sentence of the paper's figures.
TEXT = "a new store opened beside the new mall"
FIGURES = {
    "attention": "the attention map and its parts c2c, c2p, p2c; of generator and discriminator, the latter's",
    "position_profile": "what position adds to the logits of each head, by distance",
    "replacement_probabilities": "how likely each token was replaced; needs the head of replaced token detection",
    "embedding_similarity": "how alike the word embeddings are; needs a generator and a discriminator",
    "curves": "the losses of finished or running runs, read from trainer_state.json; without a folder, those of --model",
}
NUMBERS_FILE = "explain.json"
PARTS = ("generator", "discriminator")


@dataclass
class _Model:
    """A loaded model: what attention is taken from, and what only some have; and where its tokenizer lies."""

    name: str
    tokenizer: str
    encoder: Any
    discriminator: Any = None
    generator: Any = None
    sharing: str = ""


class _NotGivenError(ValueError):
    """A figure that this model cannot give."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or repository: an official checkpoint or one of ours, with any head")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--tokenizer", help="folder or repository of the tokenizer, where it is not the model's")
    parser.add_argument("--text", default=TEXT, help="the text that is looked at; default: %(default)r")
    parser.add_argument("--output_dir", type=Path, default=Path("figures"), help="folder to write to; default: figures")
    figures = parser.add_argument_group("figures; with none of these flags, every one that the model can give")
    for name, text in FIGURES.items():
        how = dict(nargs="*", metavar="RUN_FOLDER") if name == "curves" else dict(action="store_true")
        figures.add_argument(f"--{name}", help=text, **how)
    parser.add_argument("--layer", type=int, default=-1, help="counted from 0, or from the end; default: -1, the last")
    parser.add_argument("--head", type=int, help="counted from 0; default: the mean of all, and the profile of each")
    parser.add_argument("--reach", type=int, help="largest distance of the profile; default: the model's largest")
    parser.add_argument(
        "--formats", nargs="+", choices=("png", "svg", "pdf"), default=["png", "svg"], help="default: png svg"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace figures that are there already")


def run(arguments: argparse.Namespace) -> int | None:
    """Computes everything, then writes the figures and explain.json, and prints their paths.

    Raises:
        ValueError, OSError: figures are there already, the model cannot give one that was asked for by name, or what
            was given cannot be read or does not fit it.
        ImportError: matplotlib is not installed.
    """
    asked = [name for name in FIGURES if getattr(arguments, name) not in (None, False)]
    names = asked or list(FIGURES)
    formats = list(dict.fromkeys(arguments.formats))
    _refuse_existing(arguments, [f"{name}.{ending}" for name in names for ending in formats])
    if arguments.model is None and (names != ["curves"] or not arguments.curves):
        raise ValueError("--model is missing: a folder or repository; only --curves RUN_FOLDER does without")
    about = {} if names == ["curves"] else {"model": arguments.model, "text": arguments.text}
    earlier = _earlier_numbers(arguments, about, names)
    from ..analysis.plots.figure import new_figure

    # Says at once that matplotlib is missing, not after the model is loaded.
    new_figure(1)
    model = inputs = None
    if names != ["curves"]:
        model = _load(arguments)
        inputs = _encode(model, arguments)
    numbers, figures = {}, {}
    for name in names:
        try:
            numbers[name], figures[name] = _PREPARE[name](model, inputs, arguments)
        except _NotGivenError as error:
            if asked:
                raise
            print(f"no {name}: {error}", file=sys.stderr)
    for name, draw in figures.items():
        paths = [arguments.output_dir / f"{name}.{ending}" for ending in formats]
        draw(paths)
        print(*paths, sep="\n")
    print(_write_numbers(arguments.output_dir / NUMBERS_FILE, about | earlier | numbers))
    return None


def _refuse_existing(arguments: argparse.Namespace, names: Sequence[str]):
    there = [str(arguments.output_dir / name) for name in names if (arguments.output_dir / name).exists()]
    if there and not arguments.overwrite:
        raise ValueError(f"{', '.join(there)} would be overwritten: give --overwrite, or another --output_dir")


def _earlier_numbers(arguments: argparse.Namespace, about: dict, names: Sequence[str]) -> dict:
    """What explain.json has of other figures of the same model and text; it is kept.

    Raises:
        ValueError: it has numbers that would be lost.
    """
    file = arguments.output_dir / NUMBERS_FILE
    if not file.exists():
        return {}
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        is_of_this = all(there.get(name, value) == value for name, value in about.items())
    except (ValueError, AttributeError):
        there, is_of_this = {}, False
    if not arguments.overwrite and (not is_of_this or {*names} & {*there}):
        raise ValueError(f"numbers in {file} would be overwritten: give --overwrite, or another --output_dir")
    return {name: value for name, value in there.items() if name not in names} if is_of_this else {}


def _write_numbers(path: Path, numbers: dict) -> Path:
    """A line for each figure, and numbers as far as they mean something."""

    def short(value):
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {key: short(each) for key, each in value.items()}
        return [short(each) for each in value] if isinstance(value, (list, tuple)) else value

    lines = [f"{json.dumps(name)}: {json.dumps(short(value), ensure_ascii=False)}" for name, value in numbers.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


# ------- the model and the text


def _load(arguments: argparse.Namespace) -> _Model:
    from ..model.configuration_deberta_ext import DebertaExtConfig, is_joint
    from ..model.generator_and_discriminator import DebertaExtForPreTraining
    from ..model.masked_language_model import DebertaExtForMaskedLM
    from ..model.replaced_token_detection import DebertaExtForReplacedTokenDetection

    source, folder = arguments.model, Path(arguments.model)
    name = folder.resolve().name if folder.is_dir() else source
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--model {source} is a file: give the folder that it lies in")
    parts = [folder / part for part in PARTS]
    if not (folder / "config.json").is_file() and all((part / "config.json").is_file() for part in parts):
        generator, _ = _load_one(DebertaExtForMaskedLM, str(parts[0]))
        discriminator, _ = _load_one(DebertaExtForReplacedTokenDetection, str(parts[1]))
        return _Model(name, str(parts[1]), discriminator, discriminator, generator)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"{source} has no config.json: it is no folder of a model")
    revision = {} if arguments.revision is None else {"revision": arguments.revision}
    try:
        there, _ = DebertaExtConfig.get_config_dict(source, **revision)
    except OSError as error:
        if folder.is_dir():
            raise
        reason = str(error).partition("\n")[0]
        raise OSError(f"{source} is no folder, and cannot be read as a repository: {reason}") from error
    if is_joint(there):
        joint, _ = _load_one(DebertaExtForPreTraining, source, **revision)
        sharing = joint.config.embedding_sharing
        return _Model(name, source, joint.discriminator, joint.discriminator, joint.generator, sharing)
    model, missing = _load_one(DebertaExtForReplacedTokenDetection, source, **revision)
    has_head = not any(key.startswith("mask_predictions.") for key in missing)
    return _Model(name, source, model.deberta, model if has_head else None)


def _load_one(model_class, source: str, **options) -> tuple[Any, list[str]]:
    """A model in float32, whose encoder is none of random numbers, and the weights that it did not find."""
    import torch

    model, info = model_class.from_pretrained(source, dtype=torch.float32, output_loading_info=True, **options)
    missing = sorted(key if isinstance(key, str) else key[0] for key in info["missing_keys"])
    of_encoder = [key for key in missing if ".encoder." in key or "word_embeddings" in key]
    if of_encoder:
        raise ValueError(
            f"the weights in {source} are not those of its config.json: {len(of_encoder)} of the encoder's are missing, "
            f"such as {of_encoder[0]}"
        )
    return model.eval(), missing


def _encode(model: _Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """The tokenizer, its tensors for the text, and the tokens."""
    from ..tokenization import check_tokenizer, load_tokenizer

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


# ------- the figures: (numbers, what draws them into paths) each


def _attention(model: _Model, inputs: dict, arguments: argparse.Namespace):
    from ..analysis.attention_parts import attention_parts
    from ..analysis.plots import plot_attention

    parts = attention_parts(model.encoder, inputs["tensors"], layer=arguments.layer)
    maps = parts.of_head(arguments.head)
    numbers = {
        "layer": parts.layer,
        "head": "mean" if arguments.head is None else arguments.head,
        "tokens": inputs["tokens"],
        **{name: values.tolist() for name, values in maps.items()},
    }
    return numbers, lambda paths: plot_attention(parts, inputs["tokens"], paths, head=arguments.head)


def _position_profile(model: _Model, inputs: dict, arguments: argparse.Namespace):
    from ..analysis.attention_parts import position_profile
    from ..analysis.plots import plot_position_profile

    config = model.encoder.config
    if not config.relative_table_size or not config.pos_att_type:
        raise _NotGivenError("the model has no relative positions")
    profile = position_profile(model.encoder, inputs["tensors"], layer=arguments.layer, reach=arguments.reach)
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


def _replacement_probabilities(model: _Model, inputs: dict, arguments: argparse.Namespace):
    from ..analysis.plots import plot_replacement_probabilities
    from ..analysis.sentence_scoring import token_replacement_probabilities

    if model.discriminator is None:
        raise _NotGivenError("the model has no head for replaced token detection (mask_predictions)")
    tokens = token_replacement_probabilities(model.discriminator, inputs["tokenizer"], arguments.text)
    return [token._asdict() for token in tokens], lambda paths: plot_replacement_probabilities(tokens, paths)


def _embedding_similarity(model: _Model, inputs: dict, arguments: argparse.Namespace):
    import torch

    from ..analysis.embedding_similarity import average_cosine_similarity
    from ..analysis.plots import plot_embedding_similarity

    if model.generator is None:
        raise _NotGivenError("it needs a generator and a discriminator, and the model is one of them or neither")
    special = sorted({*inputs["tokenizer"].all_special_ids, *(model.encoder.config.special_token_ids or ())})
    found = {}
    for part in PARTS:
        embedding = getattr(model, part).get_input_embeddings()
        # Under GDES, the sum of the generator's table and the discriminator's own.
        table = embedding.table() if hasattr(embedding, "table") else embedding.weight
        words = torch.ones(len(table), dtype=torch.bool)
        words[special] = False
        found[part] = average_cosine_similarity(table, words)
    name = f"{model.name}, {model.sharing.upper()}" if model.sharing else model.name
    return {name: found}, lambda paths: plot_embedding_similarity({name: found}, paths)


def _curves(model: _Model | None, inputs: dict | None, arguments: argparse.Namespace):
    from ..analysis.plots import plot_curves

    if arguments.curves:
        folders = arguments.curves
        histories = [_history(Path(folder)) for folder in folders]
    else:
        folders = [arguments.model]
        try:
            histories = [_history(Path(arguments.model))]
        except FileNotFoundError as error:
            raise _NotGivenError(str(error)) from error
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
    """The log of a run: that of its end, or of its last checkpoint."""
    from ..model.checkpoint_files import checkpoint_step

    checkpoints = sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True)
    files = [place / "trainer_state.json" for place in (folder, *checkpoints)]
    file = next((each for each in files if each.is_file()), None)
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
    two = [name for name, history in runs.items() if any("generator_loss" in key for entry in history for key in entry)]
    one = [name for name in runs if name not in two]
    panels = [(part, two, (f"{part}_loss", f"eval_{part}_loss")) for part in PARTS if two]
    return panels + ([("loss" if two else "", one, ("loss", "eval_loss"))] if one else [])


_PREPARE = {
    "attention": _attention,
    "position_profile": _position_profile,
    "replacement_probabilities": _replacement_probabilities,
    "embedding_similarity": _embedding_similarity,
    "curves": _curves,
}

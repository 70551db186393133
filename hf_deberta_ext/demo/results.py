# SPDX-License-Identifier: Apache-2.0
"""Load a model with all heads of its checkpoint, and compute the results that the demo page shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..analysis.explanation import load_model
from ..analysis.influence import load_classifier, load_head, model_inputs
from ..checkpoints.files import is_adapter_folder
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM, DebertaExtForSequenceClassification
from ..tokenization import check_tokenizer, load_tokenizer

__all__ = ["DemoModel", "fill_mask", "given_texts", "load", "tokenize"]

MAX_TOKENS = 256
# Field of `DemoModel` -> what the page would show, and what is missing for it.
HEADS = {
    "masked": ("masked words", "the checkpoint has no masked-language-modelling head (lm_predictions)"),
    "discriminator": ("replaced words", "the checkpoint has no replaced-token-detection head (mask_predictions)"),
    "classifier": ("classification", "the checkpoint has no text classification head (pooler and classifier)"),
}


@dataclass
class DemoModel:
    """Encoder, tokenizer, and a model for each trained head; None for the other heads."""

    name: str
    tokenizer: Any
    encoder: Any
    masked: DebertaExtForMaskedLM | None = None
    discriminator: Any = None
    classifier: DebertaExtForSequenceClassification | None = None

    @property
    def absent(self) -> dict[str, str]:
        """Parts that the page cannot show: {title: reason}."""
        reasons = {}
        for name, (shown, reason) in HEADS.items():
            if getattr(self, name) is None:
                reasons[shown] = reason
        return reasons


def load(source: str, revision: str | None = None) -> DemoModel:
    """Load a model of Microsoft or of this package from a folder or Hub repository, with all heads in its weights."""
    explained = load_model(source, revision)
    tokenizer = load_tokenizer(explained.tokenizer, revision=revision)
    check_tokenizer(tokenizer, explained.encoder.config)
    model = DemoModel(explained.name, tokenizer, explained.encoder, explained.generator, explained.discriminator)
    if model.masked is None:
        if not is_adapter_folder(source):
            model.masked = load_head(DebertaExtForMaskedLM, ("lm_predictions.",), source, revision)
        model.classifier = load_classifier(source, revision)
    return model


def given_texts(texts: Iterable[str | None]) -> list[str]:
    """Return the texts that are not empty, without spaces at their ends."""
    return [text.strip() for text in texts if text and text.strip()]


def tokenize(model: DemoModel, *texts: str, limit: int = MAX_TOKENS) -> Any:
    """Tokenize a text or a pair; an empty second text is ignored."""
    texts = given_texts(texts)
    if not texts:
        raise ValueError("The text is empty: enter a text.")
    options = dict(return_offsets_mapping=True, return_special_tokens_mask=True, return_tensors="pt", verbose=False)
    encoded = model.tokenizer(*texts, **options)
    limit = min(limit, model.tokenizer.model_max_length)
    count = encoded["input_ids"].shape[1]
    if count > limit:
        raise ValueError(f"The text must have at most {limit} tokens, got {count}: use a part of it.")
    return encoded


@torch.no_grad()
def fill_mask(model: DemoModel, text: str, count: int = 5) -> list[dict[str, list[tuple[str, float]]]]:
    """Return the most probable words of each [MASK], with and without EMD, from one forward pass of the encoder.

    Without the Enhanced Mask Decoder (EMD), the head reads the encoder's last layer, which has no absolute positions.

    Returns:
        `list[dict]`: for each mask {"with EMD": [(word, probability), ...], "without EMD": [...]}; only "without EMD" if the
        model has no decoder.
    """
    encoded, masked, tokenizer = tokenize(model, text), model.masked, model.tokenizer
    places = (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    if not len(places):
        raise ValueError(f"The text must contain {tokenizer.mask_token}: write it in place of a word.")
    outputs = masked.deberta(**model_inputs(encoded), output_hidden_states=True)
    states = {"without EMD": outputs.last_hidden_state}
    if masked.mask_decoder is not None:
        # The decoder reads the input of the last layer.
        states = {"with EMD": masked.decode(outputs.hidden_states[-2])} | states
    words: list[dict[str, list[tuple[str, float]]]] = [{} for _ in places]
    for name, values in states.items():
        logits = masked.lm_predictions(values[0, places])  # [number of masks, V]
        # The vocabulary can be smaller than the model's embedding table.
        best = logits[:, : len(tokenizer)].softmax(-1).topk(count)
        for row, ids, probabilities in zip(words, best.indices, best.values.tolist(), strict=True):
            row[name] = [(tokenizer.decode([i]).strip(), p) for i, p in zip(ids, probabilities, strict=True)]
    return words

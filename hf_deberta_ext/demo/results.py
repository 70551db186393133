# SPDX-License-Identifier: Apache-2.0
"""Load a model with all heads of its checkpoint, and compute the results that the demo page shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..analysis.explanation import load_model, model_inputs
from ..checkpoints.files import is_adapter_folder
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM, DebertaExtForSequenceClassification
from ..tokenization import check_tokenizer, load_tokenizer

__all__ = ["DemoModel", "fill_mask", "given_texts", "load", "token_contributions", "tokenize"]

MAX_TOKENS = 256
BATCH = 32
# Field of `DemoModel` -> title of its tab, and the reason if there is none.
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
        """Titles of the missing tabs, with the reasons."""
        reasons = {}
        for name, (shown, reason) in HEADS.items():
            if getattr(self, name) is None:
                reasons[shown] = reason
        return reasons


class TokenContribution(NamedTuple):
    """Token `texts[number][start:end]`, and the decrease of the label's log-odds when the token is masked."""

    number: int
    start: int
    end: int
    contribution: float


def load(source: str, revision: str | None = None) -> DemoModel:
    """Load a folder or Hub repository, from Microsoft or of this package, with all heads in its weights."""
    explained = load_model(source, revision)
    tokenizer = load_tokenizer(explained.tokenizer, revision=revision)
    check_tokenizer(tokenizer, explained.encoder.config)
    model = DemoModel(explained.name, tokenizer, explained.encoder, explained.generator, explained.discriminator)
    if is_adapter_folder(source):
        model.classifier = _with_adapter(source)
    elif model.masked is None:
        model.masked = _with_head(DebertaExtForMaskedLM, ("lm_predictions.",), source, revision)
        config, _ = DebertaExtConfig.get_config_dict(source, revision=revision or "main")
        classes = config.get("architectures") or ["SequenceClassification"]
        # Heads of other tasks have the same parameter names.
        if "SequenceClassification" in " ".join(classes):
            head = ("pooler.", "classifier.")
            model.classifier = _with_head(DebertaExtForSequenceClassification, head, source, revision)
    return model


def _with_adapter(source: str) -> Any | None:
    """Load the text classifier of an adapter (LoRA) and its base model; return None for other tasks."""
    from peft import PeftConfig, PeftModel

    adapter = PeftConfig.from_pretrained(source)
    if adapter.task_type != "SEQ_CLS":
        return None
    # config.json in the adapter's folder has the labels.
    options = dict(config=DebertaExtConfig.from_pretrained(source), dtype=torch.float32, ignore_mismatched_sizes=True)
    model = DebertaExtForSequenceClassification.from_pretrained(adapter.base_model_name_or_path, **options)
    return PeftModel.from_pretrained(model, source).merge_and_unload().eval()


def _with_head(model_class: type, head: tuple[str, ...], source: str, revision: str | None) -> Any | None:
    """Load the model in float32; return None if the checkpoint has no weights with the prefixes `head`."""
    options = dict(dtype=torch.float32, output_loading_info=True, revision=revision or "main")
    model, info = model_class.from_pretrained(source, **options)
    if any(str(key).startswith(head) for key in info["missing_keys"]):
        return None
    return model.eval()


def given_texts(texts: Iterable[str | None]) -> list[str]:
    """Remove empty texts, and spaces around the others."""
    return [text.strip() for text in texts if text and text.strip()]


def tokenize(model: DemoModel, *texts: str, limit: int = MAX_TOKENS) -> Any:
    """Tokenize a text or a pair; an empty second text is ignored.

    Raises:
        ValueError: if the text is empty or too long.
    """
    texts = given_texts(texts)
    if not texts:
        raise ValueError("The text is empty: enter one.")
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


@torch.no_grad()
def token_contributions(model: DemoModel, *texts: str) -> tuple[list[tuple[str, float]], str, list[TokenContribution]]:
    """Classify a text or a pair, and compute the contribution of each token to the most likely label.

    The contribution of token t to label c is log-odds(c | text) - log-odds(c | text with t masked); for a regression, the
    difference of the scores. Tokens are masked one at a time, so two tokens with the same information may both contribute
    little.

    Returns:
        [(label, probability or regression score), ...]; the most likely label; a contribution for each non-special token.
    """
    encoded, config = tokenize(model, *texts), model.classifier.config
    inputs = model_inputs(encoded)
    positions = (encoded["special_tokens_mask"][0] == 0).nonzero()[:, 0]
    # One row with the text, and one for each masked token.
    rows = inputs.pop("input_ids").repeat(1 + len(positions), 1)
    rows[torch.arange(1, len(rows)), positions] = model.tokenizer.mask_token_id
    logits = []
    for part in rows.split(BATCH):
        types = {name: values.expand(len(part), -1) for name, values in inputs.items()}
        logits.append(model.classifier(input_ids=part, **types).logits)
    logits = torch.cat(logits)  # [1 + number of tokens, C]
    label = int(logits[0].argmax())
    values, evidence = logits[0], logits[:, label]
    if config.problem_type == "multi_label_classification":
        # The logit of a sigmoid is the log-odds of its label.
        values = values.sigmoid()
    elif config.problem_type != "regression" and config.num_labels > 1:
        values = values.softmax(0)
        others = torch.cat((logits[:, :label], logits[:, label + 1 :]), dim=1)
        evidence = evidence - others.logsumexp(1)
    contributions = []
    for position, value in zip(positions.tolist(), (evidence[0] - evidence[1:]).tolist(), strict=True):
        start, end = encoded["offset_mapping"][0, position].tolist()
        contributions.append(TokenContribution(encoded.token_to_sequence(position), start, end, value))
    scores = [(config.id2label[i], value) for i, value in enumerate(values.tolist())]
    return scores, config.id2label[label], contributions

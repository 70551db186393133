# SPDX-License-Identifier: Apache-2.0
"""Explain the prediction of a text classifier or regression model by the influence of each token."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..checkpoints.files import is_adapter_folder
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForSequenceClassification
from .thresholds import decide

__all__ = ["Prediction", "TokenInfluence", "explain_prediction", "load_classifier", "load_head", "model_inputs"]

BATCH = 32


class TokenInfluence(NamedTuple):
    """Influence of a token on the evidence for the predicted label (see `Prediction`).

    Attributes:
        token (`str`): token as spelled in the vocabulary.
        number, start, end (`int`): `texts[number][start:end]` is the token; `texts` is a field of `Prediction`.
        occlusion (`float`): decrease of the evidence if the token is replaced by [MASK].
        gradients (`float`, *optional*): integrated gradients of the evidence; None if not computed.
    """

    token: str
    number: int
    start: int
    end: int
    occlusion: float
    gradients: float | None


@dataclass(frozen=True)
class Prediction:
    """Prediction of a classifier for a text or a pair of texts.

    The evidence for a label is its log-odds, log(p / (1 - p)); for a regression, it is the score.

    Args:
        texts (`list[str]`): the text, or the two texts of a pair.
        scores (`list[tuple[str, float]]`): each label with its probability, or with the score of a regression.
        label (`str`): the predicted label: the label with the largest score or, if `config.decision_thresholds` is set, the
            label that these thresholds select.
        is_regression (`bool`): True for a regression model.
        evidence (`float`): evidence for the label.
        masked_evidence (`float`): evidence for the label if all tokens except special tokens are replaced by [MASK].
        tokens (`list[TokenInfluence]`): influence of each token except special tokens.
    """

    texts: list[str]
    scores: list[tuple[str, float]]
    label: str
    is_regression: bool
    evidence: float
    masked_evidence: float
    tokens: list[TokenInfluence]


def load_classifier(source: str, revision: str | None = None) -> Any | None:
    """Load the text classifier of a checkpoint or adapter (LoRA) in float32; return None if there is no classifier."""
    if is_adapter_folder(source):
        return _with_adapter(source)
    config, _ = DebertaExtConfig.get_config_dict(source, revision=revision or "main")
    # Heads of other tasks have weights with the same names.
    if "SequenceClassification" not in " ".join(config.get("architectures") or ["SequenceClassification"]):
        return None
    return load_head(DebertaExtForSequenceClassification, ("pooler.", "classifier."), source, revision)


def load_head(model_class: type, head: tuple[str, ...], source: str, revision: str | None) -> Any | None:
    """Load a model in float32; return None if weights with a prefix in `head` are missing in the checkpoint."""
    options = dict(dtype=torch.float32, output_loading_info=True, revision=revision or "main")
    model, info = model_class.from_pretrained(source, **options)
    if any(str(key).startswith(head) for key in info["missing_keys"]):
        return None
    return model.eval()


def _with_adapter(source: str) -> Any | None:
    """Load the text classifier of an adapter (LoRA) and its base model; return None for an adapter of another task."""
    from peft import PeftConfig, PeftModel

    adapter = PeftConfig.from_pretrained(source)
    if adapter.task_type != "SEQ_CLS":
        return None
    # The adapter's own config.json has its labels.
    options = dict(config=DebertaExtConfig.from_pretrained(source), dtype=torch.float32, ignore_mismatched_sizes=True)
    model = DebertaExtForSequenceClassification.from_pretrained(adapter.base_model_name_or_path, **options)
    return PeftModel.from_pretrained(model, source).merge_and_unload().eval()


def model_inputs(encoded: Any) -> dict[str, torch.Tensor]:
    """Return the entries of an encoded text that a model reads."""
    return {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}


def explain_prediction(model: Any, tokenizer: Any, *texts: str, gradients: bool = True, n_steps: int = 50) -> Prediction:
    """Predict the label of a text or a pair, and compute each token's influence on this prediction in two ways.

    Occlusion replaces one token at a time by [MASK]. If two tokens are redundant, both may have little influence.
    Integrated gradients (Sundararajan et al., 2017) start at a baseline in which all tokens except special tokens are
    [MASK]. Only word embeddings are interpolated; positions and token types stay the same. The influences of all tokens sum
    to `evidence - masked_evidence`, up to an error that decreases with `n_steps`.

    Args:
        model (`DebertaExtForSequenceClassification`): single-label or multi-label classifier, or regression model.
        tokenizer: fast tokenizer of the model.
        texts (`str`): one text, or the two texts of a pair.
        gradients (`bool`, defaults to True): also compute integrated gradients; requires captum.
        n_steps (`int`, defaults to 50): number of points between the baseline and the text.
    Raises:
        ImportError: `gradients` is True and captum is not installed.
    """
    options = dict(return_offsets_mapping=True, return_special_tokens_mask=True, return_token_type_ids=True)
    encoded = tokenizer(*texts, return_tensors="pt", verbose=False, **options)
    ids, types, config = encoded["input_ids"], encoded["token_type_ids"], model.config  # [1, N]
    positions = (encoded["special_tokens_mask"][0] == 0).nonzero()[:, 0]
    baseline = ids.clone()
    baseline[0, positions] = tokenizer.mask_token_id
    # The text, the baseline, and for each token a copy of the text with this token masked.
    rows = torch.cat((ids, baseline, ids.repeat(len(positions), 1)))
    rows[torch.arange(2, len(rows)), positions] = tokenizer.mask_token_id
    with torch.no_grad():
        batches = [model(part, token_type_ids=types.expand(len(part), -1)).logits for part in rows.split(BATCH)]
    logits = torch.cat(batches)  # [2 + number of tokens, C]
    label = _predicted_label(logits[0], config)
    evidence = _evidence(logits, label, config)
    values, is_regression = logits[0], config.problem_type == "regression" or config.num_labels == 1
    if config.problem_type == "multi_label_classification":
        values = values.sigmoid()
    elif not is_regression:
        values = values.softmax(0)
    shares: list[Any] = [None] * ids.shape[1]
    if gradients:
        shares = _integrated_gradients(model, ids, baseline, types, label=label, n_steps=n_steps).tolist()
    spelt = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    tokens = []
    for position, lost in zip(positions.tolist(), (evidence[0] - evidence[2:]).tolist(), strict=True):
        span = (encoded.token_to_sequence(position), *encoded["offset_mapping"][0, position].tolist())
        tokens.append(TokenInfluence(spelt[position], *span, lost, shares[position]))
    names = config.id2label
    if names == {0: "LABEL_0"}:
        # transformers gives the only output of a regression model this name.
        names = {0: "score"}
    scores = [(names[i], value) for i, value in enumerate(values.tolist())]
    return Prediction([*texts], scores, names[label], is_regression, *evidence[:2].tolist(), tokens)


def _predicted_label(logits: torch.Tensor, config: DebertaExtConfig) -> int:
    """Return the index of the predicted label: the label with the largest logit, unless `config.decision_thresholds` is set.

    With thresholds, a model with two classes predicts the class that the threshold selects (see `decide`). A multi-label
    model predicts the label with the largest logit among the labels that reach their thresholds; if none does, among all.
    """
    thresholds = getattr(config, "decision_thresholds", None)
    is_multi = config.problem_type == "multi_label_classification"
    if not thresholds or not (is_multi or config.num_labels == 2):
        return int(logits.argmax())
    names = [config.id2label[label] for label in range(config.num_labels)]
    probabilities = logits.sigmoid() if is_multi else logits.softmax(0)
    (decided,) = decide(probabilities[None].numpy(), names, thresholds, multi_label=is_multi)
    if not is_multi:
        return int(decided)
    predicted = torch.from_numpy(decided).bool()
    return int(logits.masked_fill(~predicted, -torch.inf).argmax() if predicted.any() else logits.argmax())


def _evidence(logits: torch.Tensor, label: int, config: DebertaExtConfig) -> torch.Tensor:
    """Compute the evidence [B] for a label from logits [B, C]; see `Prediction`."""
    # The logit of a sigmoid is the log-odds of its label.
    if config.num_labels == 1 or config.problem_type in ("regression", "multi_label_classification"):
        return logits[:, label]
    others = torch.cat((logits[:, :label], logits[:, label + 1 :]), dim=1)
    return logits[:, label] - others.logsumexp(1)


def _integrated_gradients(
    model: Any, ids: torch.Tensor, baseline: torch.Tensor, types: torch.Tensor, *, label: int, n_steps: int
) -> torch.Tensor:
    """Compute the integrated gradients [N] of the evidence for a label; ids, baseline and token types are [1, N]."""
    from captum.attr import LayerIntegratedGradients

    def evidence(ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        return _evidence(model(ids, token_type_ids=types).logits, label, model.config)

    method = LayerIntegratedGradients(evidence, model.get_input_embeddings())
    options = dict(additional_forward_args=types, n_steps=n_steps, internal_batch_size=BATCH)
    return method.attribute(ids, baselines=baseline, **options).sum(-1)[0].detach()

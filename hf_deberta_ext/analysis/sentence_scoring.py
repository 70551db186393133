# SPDX-License-Identifier: Apache-2.0
"""Scores of sentences without labels: which tokens look replaced, and which sentence reads better."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import logsigmoid

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.masked_language_model import DebertaExtForMaskedLM
from ..model.pretrained_model import in_eval_mode
from ..tokenization import check_tokenizer

__all__ = ["SentenceScore", "TokenScore", "pseudo_log_likelihood", "token_replacement_probabilities"]


class TokenScore(NamedTuple):
    """A token, and how likely it is a replacement.

    Attributes:
        token (`str`): as the vocabulary spells it.
        start, end (`int`): `text[start:end]` is what it stands for, without white space around it; None where the tokenizer
            keeps no offsets (`tokenizer.is_fast` is False).
        probability (`float`): that the token is not the original one, in [0, 1].
    """

    token: str
    start: int | None
    end: int | None
    probability: float


class SentenceScore(NamedTuple):
    """The pseudo-log-likelihood of a sentence.

    Attributes:
        total (`float`): the sum over its tokens, at most 0.
        tokens (`int`): their number, without special tokens.
        mean (`float`): total / tokens, by which sentences of different length are compared.
    """

    total: float
    tokens: int
    mean: float


class _Sentence(NamedTuple):
    """input_ids with special tokens [N]; where the others are [n]; their offsets [n], None without."""

    input_ids: list[int]
    positions: list[int]
    offsets: list[tuple[int, int]] | None


def token_replacement_probabilities(
    model: torch.nn.Module, tokenizer: Any, texts: str | Sequence[str], batch_size: int = 32, *, truncation: bool = False
) -> list[TokenScore] | list[list[TokenScore]]:
    """Probability of each token of a text to be a replacement, by a discriminator: sigmoid(logit).

    Args:
        model: a `DebertaExtForReplacedTokenDetection`, a joint model with a `discriminator`, or any other that gives logits
            [B, N], positive = replaced. It runs in eval mode, and is left as it was.
        tokenizer: that of the model.
        texts (`str` or `list[str]`): what to score.
        batch_size (`int`): texts that run together; texts of similar length do.
        truncation (`bool`): score the beginning of a text that is too long for the model, where otherwise it is an error.
    Returns:
        For each text its tokens without [CLS] and [SEP]; one list alone for one `str`.
    Raises:
        ValueError: the model is no discriminator, the tokenizer does not fit it, or a text is too long.
    """
    # Of a joint model, its discriminator.
    model = getattr(model, "discriminator", model)
    sentences = _encode(model, tokenizer, texts, batch_size, truncation)
    scores = []
    for text, sentence, logits in zip(
        _listed(texts), sentences, _judge(model, tokenizer, sentences, batch_size), strict=True
    ):
        tokens = tokenizer.convert_ids_to_tokens([sentence.input_ids[position] for position in sentence.positions])
        places = [(None, None)] * len(tokens)
        if sentence.offsets is not None:
            places = [_without_space(text, start, end) for start, end in sentence.offsets]
        probabilities = logits.sigmoid().tolist()
        cells = zip(tokens, places, probabilities, strict=True)
        scores.append([TokenScore(token, *place, probability) for token, place, probability in cells])
    return scores[0] if isinstance(texts, str) else scores


def pseudo_log_likelihood(
    model: torch.nn.Module, tokenizer: Any, texts: str | Sequence[str], batch_size: int = 32, *, truncation: bool = False
) -> SentenceScore | list[SentenceScore]:
    """A score to rank sentences by, higher = more natural to the model.

    Masked language models (Salazar et al. 2020, Eq. (1)): sum over t of log P(token t | the others), with token t masked, so
    that a sentence of n tokens takes n rows. Discriminators: sum over t of log P(token t is original) = logsigmoid(-logit),
    in one row; it is no likelihood of the sentence, and its numbers cannot be compared with those of the other kind.

    Compare sentences of different length by `mean`: each token makes `total` smaller.

    Args:
        model: any model for masked language modelling, logits [B, N, V]; or a discriminator, as in
            `token_replacement_probabilities`. It runs in eval mode, and is left as it was.
        tokenizer: that of the model.
        texts (`str` or `list[str]`): what to score.
        batch_size (`int`): rows that run together. Models of other packages compute logits of whole rows: lower it for
            long texts and large vocabularies.
        truncation (`bool`): score the beginning of a text that is too long for the model, where otherwise it is an error.
    Returns:
        A score for each text; one alone for one `str`.
    Raises:
        ValueError: the model is of neither kind, the tokenizer does not fit it, or a text is too long or has no tokens.
    """
    # Of a joint model, its discriminator.
    model = getattr(model, "discriminator", model)
    sentences = _encode(model, tokenizer, texts, batch_size, truncation)
    for number, sentence in enumerate(sentences):
        if not sentence.positions:
            raise ValueError(f"text {number} has no tokens to score: {_listed(texts)[number]!r}; leave it out")
    if not sentences:
        return []
    if isinstance(model, DebertaExtForMaskedLM) or _logits(model, tokenizer, [sentences[0].input_ids]).dim() == 3:
        logs = _masked_one_by_one(model, tokenizer, sentences, batch_size)
    else:
        logs = [logsigmoid(-logits) for logits in _judge(model, tokenizer, sentences, batch_size)]
    totals = [values.sum().item() for values in logs]
    scores = [SentenceScore(total, len(values), total / len(values)) for total, values in zip(totals, logs, strict=True)]
    return scores[0] if isinstance(texts, str) else scores


def _listed(texts) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """The place of what can be seen; unchanged where that is nothing."""
    visible = text[start:end].strip()
    if not visible:
        return start, end
    start = text.index(visible, start)
    return start, start + len(visible)


def _encode(model, tokenizer, texts, batch_size: int, truncation: bool) -> list[_Sentence]:
    """Every text with its special tokens, and where its other tokens are."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if isinstance(model.config, DebertaExtConfig):
        check_tokenizer(tokenizer, model.config)
    limit = _longest(model, tokenizer)
    options = dict(truncation=True, max_length=limit) if truncation and limit is not None else dict(verbose=False)
    sentences = []
    for number, text in enumerate(_listed(texts)):
        if not isinstance(text, str):
            raise ValueError(f"text {number} must be a str, got {type(text).__name__}: {text!r}")
        encoding = tokenizer(text, return_special_tokens_mask=True, return_offsets_mapping=tokenizer.is_fast, **options)
        ids = encoding["input_ids"]
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"text {number} has {len(ids)} tokens, and at most {limit} are read: give truncation=True to score its "
                "beginning, or split it"
            )
        positions = [position for position, special in enumerate(encoding["special_tokens_mask"]) if not special]
        offsets = [encoding["offset_mapping"][position] for position in positions] if tokenizer.is_fast else None
        sentences.append(_Sentence(ids, positions, offsets))
    return sentences


def _longest(model, tokenizer) -> int | None:
    """The most tokens that tokenizer and model take; None where nothing says so."""
    config = model.config
    if isinstance(config, DebertaExtConfig):
        decodes = isinstance(model, DebertaExtForMaskedLM) and config.has_absolute_positions
        absolute = config.position_biased_input or decodes
    else:
        # Models without this field, such as BERT, add absolute positions.
        absolute = getattr(config, "position_biased_input", True)
    rows = getattr(config, "max_position_embeddings", None) if absolute else None
    # transformers writes 1e30 where no length was set.
    limits = [limit for limit in (rows, tokenizer.model_max_length) if limit is not None and limit < 1e9]
    return min(limits, default=None)


def _padded(model, tokenizer, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """input_ids and attention_mask [B, N]; padded on the right whatever the tokenizer's side."""
    device = next(model.parameters(), torch.empty(0)).device
    length = max(map(len, rows))
    pad = tokenizer.pad_token_id or 0
    ids = [row + [pad] * (length - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (length - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _logits(model, tokenizer, rows: list[list[int]]) -> torch.Tensor:
    """Logits of rows of ids, [B, N] or [B, N, V]."""
    ids, mask = _padded(model, tokenizer, rows)
    with in_eval_mode(model), torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    if logits.dim() not in (2, 3) or logits.shape[:2] != ids.shape:
        raise ValueError(
            f"{type(model).__name__} gives logits {list(logits.shape)} for {list(ids.shape)} tokens: expected is one a "
            "token, as of a discriminator, or the vocabulary's, as of a masked language model"
        )
    return logits.float()


def _batches(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Numbers of rows, the longest first: those of similar length together, and memory runs out at once or never."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _judge(model, tokenizer, sentences: list[_Sentence], batch_size: int) -> list[torch.Tensor]:
    """A discriminator's logits for the tokens of each sentence, [n] each, on the CPU."""
    logits_by_sentence = [None] * len(sentences)
    for batch in _batches([len(sentence.input_ids) for sentence in sentences], batch_size):
        logits = _logits(model, tokenizer, [sentences[row].input_ids for row in batch])
        if logits.dim() != 2:
            raise ValueError(f"{type(model).__name__} gives logits {list(logits.shape)}, which is no discriminator's [B, N]")
        for row, values in zip(batch, logits.cpu(), strict=True):
            logits_by_sentence[row] = values[sentences[row].positions]
    return logits_by_sentence


def _masked_one_by_one(model, tokenizer, sentences: list[_Sentence], batch_size: int) -> list[torch.Tensor]:
    """log P(token | the others) for the tokens of each sentence, [n] each, on the CPU."""
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer has no mask token, which a masked language model needs: set tokenizer.mask_token")
    log_probabilities = [torch.zeros(len(sentence.positions)) for sentence in sentences]
    cases = [(row, token) for row, sentence in enumerate(sentences) for token in range(len(sentence.positions))]
    for batch in _batches([len(sentences[row].input_ids) for row, _ in cases], batch_size):
        chosen = [cases[case] for case in batch]
        rows = [list(sentences[row].input_ids) for row, _ in chosen]
        positions = [sentences[row].positions[token] for row, token in chosen]
        targets = [ids[position] for ids, position in zip(rows, positions, strict=True)]
        for ids, position in zip(rows, positions, strict=True):
            ids[position] = tokenizer.mask_token_id
        logits = _logits_at(model, tokenizer, rows, positions)
        logs = logits.log_softmax(dim=-1)[torch.arange(len(rows)), targets].cpu()
        for (row, token), value in zip(chosen, logs, strict=True):
            log_probabilities[row][token] = value
    return log_probabilities


def _logits_at(model, tokenizer, rows: list[list[int]], positions: list[int]) -> torch.Tensor:
    """The logits of one position a row, [B, V]."""
    if not isinstance(model, DebertaExtForMaskedLM):
        logits = _logits(model, tokenizer, rows)
        if logits.dim() != 3 or logits.shape[-1] < len(tokenizer):
            raise ValueError(
                f"{type(model).__name__} gives logits {list(logits.shape)}, which is neither a discriminator's [B, N] nor a "
                f"masked language model's for the {len(tokenizer)} tokens of the vocabulary"
            )
        return logits[torch.arange(len(rows)), positions]
    # Ours need compute no others.
    ids, mask = _padded(model, tokenizer, rows)
    labels = torch.full_like(ids, -100)
    labels[torch.arange(len(rows)), positions] = 0
    with in_eval_mode(model), torch.no_grad():
        logits, *_ = model.predict(ids, mask, None, None, None, False, False, None, labels, sparse=True)
    return logits.float()

# SPDX-License-Identifier: Apache-2.0
"""Scores of sentences without labels: which tokens look replaced, and which sentence reads better."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import logsigmoid
from tqdm.auto import tqdm

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.masked_language_model import DebertaExtForMaskedLM
from ..model.pretrained_model import in_eval_mode
from ..tokenization import check_tokenizer

__all__ = ["WORD", "SentenceScore", "TokenScore", "pseudo_log_likelihood", "token_replacement_probabilities"]

WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
"""A word, or a sign of punctuation."""


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
    """input_ids with special tokens [N]; where the others are [n]; their offsets [n], None without; the number of the word
    that each token is of [N], or of the token itself."""

    input_ids: list[int]
    positions: list[int]
    offsets: list[tuple[int, int]] | None
    words: list[int]


def token_replacement_probabilities(
    model: torch.nn.Module, tokenizer: Any, texts: str | Sequence[str], batch_size: int = 32, *, truncation: bool = False
) -> list[TokenScore] | list[list[TokenScore]]:
    """Probability of each token of a text to be a replacement, by a discriminator: sigmoid(logit).

    Args:
        model: a `DebertaExtForReplacedTokenDetection`, a joint model with a `discriminator`, or any other that gives logits
            [B, N], positive = replaced. It runs in eval mode, and is left as it was.
        tokenizer: that of the model.
        texts (`str` or `list[str]`): what to score.
        batch_size (`int`): texts that run together, which are of equal length: nothing is padded.
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
    for text, sentence, logits in zip(_listed(texts), sentences, _judge(model, sentences, batch_size), strict=True):
        tokens = tokenizer.convert_ids_to_tokens([sentence.input_ids[position] for position in sentence.positions])
        places = [(None, None)] * len(tokens)
        if sentence.offsets is not None:
            places = [_without_space(text, start, end) for start, end in sentence.offsets]
        probabilities = logits.sigmoid().tolist()
        cells = zip(tokens, places, probabilities, strict=True)
        scores.append([TokenScore(token, *place, probability) for token, place, probability in cells])
    return scores[0] if isinstance(texts, str) else scores


def pseudo_log_likelihood(
    model: torch.nn.Module, tokenizer: Any, texts: str | Sequence[str], batch_size: int = 32, *, truncation: bool = False,
    within_word: bool = False, show_progress: bool = False,
) -> SentenceScore | list[SentenceScore]:  # fmt: skip
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
        batch_size (`int`): rows that run together, which are of equal length: nothing is padded. Models of other packages
            compute logits of whole rows: lower it for long texts and large vocabularies.
        truncation (`bool`): score the beginning of a text that is too long for the model, where otherwise it is an error.
        within_word (`bool`): with a token, mask also the later tokens of its word (Kauf and Ivanova 2023, PLL-word-l2r), so
            that the end of a rare word does not give its beginning away. For masked language models.
        show_progress (`bool`): a progress bar on stderr.
    Returns:
        A score for each text; one alone for one `str`.
    Raises:
        ValueError: the model is of neither kind, the tokenizer does not fit it, or a text is too long or has no tokens; the
            tokenizer keeps no offsets, which `within_word` needs.
    """
    # Of a joint model, its discriminator.
    model = getattr(model, "discriminator", model)
    sentences = _encode(model, tokenizer, texts, batch_size, truncation, within_word)
    for number, sentence in enumerate(sentences):
        if not sentence.positions:
            raise ValueError(f"text {number} has no tokens to score: {_listed(texts)[number]!r}; leave it out")
    if not sentences:
        return []
    first = torch.tensor([sentences[0].input_ids])
    if isinstance(model, DebertaExtForMaskedLM) or _logits(model, first).dim() == 3:
        logs = _masked_one_by_one(model, tokenizer, sentences, batch_size, show_progress)
    else:
        logs = [logsigmoid(-logits) for logits in _judge(model, sentences, batch_size, show_progress)]
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


def _encode(model, tokenizer, texts, batch_size: int, truncation: bool, within_word: bool = False) -> list[_Sentence]:
    """Every text with its special tokens, and where its other tokens are."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if within_word and not tokenizer.is_fast:
        raise ValueError(f"within_word needs a fast tokenizer, which keeps offsets, got {type(tokenizer).__name__}")
    if isinstance(model.config, DebertaExtConfig):
        check_tokenizer(tokenizer, model.config)
    limit, texts = _longest(model, tokenizer), _listed(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} must be a str, got {type(text).__name__}: {text!r}")
    if not texts:
        return []
    options = dict(truncation=True, max_length=limit) if truncation and limit is not None else dict(verbose=False)
    encoded = tokenizer(texts, return_special_tokens_mask=True, return_offsets_mapping=tokenizer.is_fast, **options)
    sentences = []
    for number, (text, ids) in enumerate(zip(texts, encoded["input_ids"], strict=True)):
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"text {number} has {len(ids)} tokens, and at most {limit} are read: give truncation=True to score its "
                "beginning, or split it"
            )
        special = encoded["special_tokens_mask"][number]
        positions = [position for position in range(len(ids)) if not special[position]]
        offsets, words = None, list(range(len(ids)))
        if tokenizer.is_fast:
            offsets = [encoded["offset_mapping"][number][position] for position in positions]
        if within_word:
            # A token is of the first word that ends behind its start, also one of the space before it.
            ends, words = [match.end() for match in WORD.finditer(text)], [-1] * len(ids)
            for position, (start, _) in zip(positions, offsets, strict=True):
                words[position] = bisect_right(ends, start)
        sentences.append(_Sentence(ids, positions, offsets, words))
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


def _logits(model, ids: torch.Tensor) -> torch.Tensor:
    """Logits of rows of ids [B, N] without padding, [B, N] or [B, N, V]."""
    ids = ids.to(_device(model))
    with in_eval_mode(model), torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    if logits.dim() not in (2, 3) or logits.shape[:2] != ids.shape:
        raise ValueError(
            f"{type(model).__name__} gives logits {list(logits.shape)} for {list(ids.shape)} tokens: expected is one a "
            "token, as of a discriminator, or the vocabulary's, as of a masked language model"
        )
    return logits.float()


def _device(model) -> torch.device:
    return next(model.parameters(), torch.empty(0)).device


def _same_lengths(sentences: list[_Sentence]) -> Iterator[list[int]]:
    """Numbers of the sentences of each length, the longest first: memory runs out at once or never."""
    numbers: dict[int, list[int]] = {}
    for number, sentence in enumerate(sentences):
        numbers.setdefault(len(sentence.input_ids), []).append(number)
    for length in sorted(numbers, reverse=True):
        yield numbers[length]


def _judge(model, sentences: list[_Sentence], batch_size: int, show_progress: bool = False) -> list[torch.Tensor]:
    """A discriminator's logits for the tokens of each sentence, [n] each, on the CPU."""
    logits_by_sentence = [None] * len(sentences)
    with tqdm(total=len(sentences), unit="sentence", disable=not show_progress) as bar:
        for numbers in _same_lengths(sentences):
            for start in range(0, len(numbers), batch_size):
                batch = numbers[start : start + batch_size]
                logits = _logits(model, torch.tensor([sentences[number].input_ids for number in batch]))
                if logits.dim() != 2:
                    raise ValueError(
                        f"{type(model).__name__} gives logits {list(logits.shape)}, which is no discriminator's [B, N]"
                    )
                for number, values in zip(batch, logits.cpu(), strict=True):
                    logits_by_sentence[number] = values[sentences[number].positions]
                bar.update(len(batch))
    return logits_by_sentence


def _masked_one_by_one(
    model, tokenizer, sentences: list[_Sentence], batch_size: int, show_progress: bool
) -> list[torch.Tensor]:
    """log P(token | the others, but for the later tokens of its word) for the tokens of each sentence, [n] each."""
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer has no mask token, which a masked language model needs: set tokenizer.mask_token")
    log_probabilities = [None] * len(sentences)
    total = sum(len(sentence.positions) for sentence in sentences)
    with tqdm(total=total, unit="token", disable=not show_progress) as bar:
        for numbers in _same_lengths(sentences):
            ids = torch.tensor([sentences[number].input_ids for number in numbers])  # [S, N]
            words = torch.tensor([sentences[number].words for number in numbers])  # [S, N]
            cases = [(row, position) for row, number in enumerate(numbers) for position in sentences[number].positions]
            logs = []
            for part in torch.tensor(cases).split(batch_size):
                sentence, position = part[:, :1], part[:, 1:]  # [B, 1] each
                rows, words_of_rows = ids[sentence[:, 0]], words[sentence[:, 0]]  # [B, N]
                targets = rows.gather(1, position)
                later = torch.arange(ids.shape[1]) >= position
                rows[(words_of_rows == words_of_rows.gather(1, position)) & later] = tokenizer.mask_token_id
                logits = _logits_at(model, tokenizer, rows, position)
                logs.append(logits.log_softmax(dim=-1).gather(1, targets.to(logits.device))[:, 0].cpu())
                bar.update(len(part))
            counts = [len(sentences[number].positions) for number in numbers]
            for number, values in zip(numbers, torch.cat(logs).split(counts), strict=True):
                log_probabilities[number] = values
    return log_probabilities


def _logits_at(model, tokenizer, rows: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The logits of one position [B, 1] of each row [B, N], [B, V]."""
    if not isinstance(model, DebertaExtForMaskedLM):
        logits = _logits(model, rows)
        if logits.dim() != 3 or logits.shape[-1] < len(tokenizer):
            raise ValueError(
                f"{type(model).__name__} gives logits {list(logits.shape)}, which is neither a discriminator's [B, N] nor a "
                f"masked language model's for the {len(tokenizer)} tokens of the vocabulary"
            )
        return logits[torch.arange(len(rows)), position[:, 0].to(logits.device)]
    # Ours need compute no others.
    labels = torch.full_like(rows, -100).scatter(1, position, 0).to(_device(model))
    rows = rows.to(labels.device)
    with in_eval_mode(model), torch.no_grad():
        predicted = model.predict(rows, torch.ones_like(rows), labels=labels, masked_only=True)
    return predicted.logits.float()

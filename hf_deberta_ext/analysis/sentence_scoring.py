# SPDX-License-Identifier: Apache-2.0
"""Score unlabelled sentences: the probability that each token was replaced, and the pseudo-log-likelihood."""

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import logsigmoid
from tqdm.auto import tqdm

from ..checkpoints.loading import in_eval_mode
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM
from ..tokenization import check_tokenizer

__all__ = ["WORD", "SentenceScore", "TokenScore", "pseudo_log_likelihood", "token_replacement_probabilities"]

WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
"""Pattern of a word or a punctuation mark."""


class TokenScore(NamedTuple):
    """Token with the probability that it was replaced.

    Attributes:
        token (`str`): token as spelled in the vocabulary.
        start, end (`int`): `text[start:end]` is the token in the text, without surrounding white space; None if the
            tokenizer has no offsets (`tokenizer.is_fast` is False).
        probability (`float`): probability that the token is not the original token, in [0, 1].
    """

    token: str
    start: int | None
    end: int | None
    probability: float


class SentenceScore(NamedTuple):
    """Pseudo-log-likelihood of a sentence.

    Attributes:
        total (`float`): sum over the tokens, at most 0.
        tokens (`int`): number of tokens, without special tokens.
        mean (`float`): total / tokens, to compare sentences of different lengths.
    """

    total: float
    tokens: int
    mean: float


class _Sentence(NamedTuple):
    """Encoded sentence.

    Attributes:
        input_ids: ids of all tokens, including special tokens.
        positions: indices in `input_ids` of the tokens that are not special.
        offsets: (start, end) of each token in the text; None without a fast tokenizer.
        words: for each token, the index of its word in the text; if words are not needed, the index of the token.
    """

    input_ids: list[int]
    positions: list[int]
    offsets: list[tuple[int, int]] | None
    words: list[int]


def token_replacement_probabilities(
    model: torch.nn.Module, tokenizer: Any, texts: str | Sequence[str], batch_size: int = 32
) -> list[TokenScore] | list[list[TokenScore]]:
    """Compute the probability that each token of a text was replaced, which is sigmoid(logit) of a discriminator.

    Args:
        model: a `DebertaExtForReplacedTokenDetection`, a joint model with a `discriminator`, or any other model that returns
            logits [B, N], which are positive for replaced tokens. Runs in eval mode; the mode is restored.
        tokenizer: tokenizer of the model.
        texts (`str` or `list[str]`): texts to score.
        batch_size (`int`, defaults to 32): maximum number of texts per batch; all texts of a batch have the same length, so
            that no padding is needed.
    Returns:
        For each text, a list of its tokens except [CLS] and [SEP]; only one list if `texts` is a `str`.
    Raises:
        ValueError: the model is not a discriminator, the tokenizer does not fit the model, or a text is too long.
    """
    if isinstance(texts, str):
        return token_replacement_probabilities(model, tokenizer, [texts], batch_size)[0]
    model = getattr(model, "discriminator", model)
    sentences = _encode(model, tokenizer, texts)
    all_logits = _discriminator_logits(model, sentences, batch_size)
    scores: list[list[TokenScore]] = []
    for text, sentence, logits in zip(texts, sentences, all_logits, strict=True):
        tokens = tokenizer.convert_ids_to_tokens(sentence.input_ids)
        scores.append([])
        for position, probability in zip(sentence.positions, logits.sigmoid().tolist(), strict=True):
            start = end = None
            if sentence.offsets is not None:
                start, end = _without_space(text, *sentence.offsets[position])
            scores[-1].append(TokenScore(tokens[position], start, end, probability))
    return scores


def pseudo_log_likelihood(
    model: torch.nn.Module,
    tokenizer: Any,
    texts: str | Sequence[str],
    batch_size: int = 32,
    *,
    within_word: bool = False,
    show_progress: bool = False,
) -> SentenceScore | list[SentenceScore]:
    """Compute a score to rank sentences; a higher score means that a sentence is more natural to the model.

    For a masked language model (Salazar et al. 2020, Eq. (1)), the score is the sum over t of log P(token t | other tokens),
    where token t is masked. The model reads a sentence of n tokens n times, with a different token masked each time.

    For a discriminator, the score is the sum over t of log P(token t is original) = logsigmoid(-logit). The model reads each
    sentence once. This score is not a likelihood of the sentence, and cannot be compared with scores of masked language
    models. Compare sentences of different lengths by `mean`, because each token makes `total` smaller.

    Args:
        model: masked language model of any package, which returns logits [B, N, V]; or a discriminator.
        tokenizer, texts: as in `token_replacement_probabilities`.
        batch_size (`int`, defaults to 32): maximum number of (masked) sentences per batch; all have the same length, so that
            no padding is needed. Masked language models of other packages compute logits for all tokens, not only for the
            masked token: use a smaller batch for long texts or large vocabularies.
        within_word (`bool`, defaults to False): also mask the later tokens of the same word (Kauf and Ivanova 2023,
            PLL-word-l2r), so that the end of a rare word does not reveal its beginning. Only for masked language models.
        show_progress (`bool`, defaults to False): show a progress bar on stderr.
    Returns:
        A score for each text; a single score if `texts` is a `str`.
    Raises:
        ValueError: the model is neither a masked language model nor a discriminator, the tokenizer does not fit the model,
            `within_word` is True and the tokenizer has no offsets, or a text is too long or has no tokens.
    """
    if isinstance(texts, str):
        options = dict(within_word=within_word, show_progress=show_progress)
        return pseudo_log_likelihood(model, tokenizer, [texts], batch_size, **options)[0]
    model = getattr(model, "discriminator", model)
    if within_word and not tokenizer.is_fast:
        raise ValueError(f"within_word needs a fast tokenizer, which has offsets, got {type(tokenizer).__name__}")
    sentences = _encode(model, tokenizer, texts, within_word)
    for number, sentence in enumerate(sentences):
        if not sentence.positions:
            raise ValueError(f"text {number} has no tokens to score: {texts[number]!r}; remove this text")
    if not sentences:
        return []
    if isinstance(model, DebertaExtForMaskedLM) or _logits(model, [sentences[0].input_ids], dims=(2, 3)).dim() == 3:
        logs = _masked_one_by_one(model, tokenizer, sentences, batch_size, show_progress)
    else:
        all_logits = _discriminator_logits(model, sentences, batch_size, show_progress)
        logs = [logsigmoid(-logits).tolist() for logits in all_logits]
    scores = []
    for values in logs:
        total = math.fsum(values)
        scores.append(SentenceScore(total, len(values), total / len(values)))
    return scores


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Shrink the span (start, end) of a text to exclude white space at its ends; keep a span of only white space."""
    visible = text[start:end].strip()
    if not visible:
        return start, end
    start = text.index(visible, start)
    return start, start + len(visible)


def _encode(model, tokenizer, texts, within_word: bool = False) -> list[_Sentence]:
    """Encode every text with its special tokens, and find the positions of the tokens that are not special."""
    if isinstance(model.config, DebertaExtConfig):
        check_tokenizer(tokenizer, model.config)
    limit = _longest(model, tokenizer)
    options = dict(return_special_tokens_mask=True, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    sentences = []
    for number, text in enumerate(texts):
        encoded = tokenizer(text, **options)
        ids = encoded["input_ids"]
        if len(ids) > limit:
            raise ValueError(f"text {number} must have at most {limit} tokens, got {len(ids)}; split or shorten this text")
        positions = [position for position, special in enumerate(encoded["special_tokens_mask"]) if not special]
        words = list(range(len(ids)))
        if within_word:
            # Take the first word that ends after the token's start: the space before a word belongs to the word.
            ends = [match.end() for match in WORD.finditer(text)]
            words = [-1] * len(ids)
            for position in positions:
                words[position] = bisect_right(ends, encoded["offset_mapping"][position][0])
        sentences.append(_Sentence(ids, positions, encoded.get("offset_mapping"), words))
    return sentences


def _longest(model, tokenizer) -> float:
    """Return the largest number of tokens that both tokenizer and model allow; infinity if neither has a limit."""
    limit = math.inf
    # transformers writes 1e30 if no length was set.
    if tokenizer.model_max_length < 1e9:
        limit = tokenizer.model_max_length
    # Models without this field, such as BERT, add absolute positions.
    reads_positions = getattr(model.config, "position_biased_input", True)
    decodes_positions = isinstance(model, DebertaExtForMaskedLM) and model.config.has_absolute_positions
    if reads_positions or decodes_positions:
        limit = min(limit, getattr(model.config, "max_position_embeddings", math.inf))
    return limit


def _batches(cases: Sequence, length: Callable[[Any], int], batch_size: int, show_progress: bool) -> Iterator[list]:
    """Yield batches of cases of the same length, the longest cases first, so that memory errors occur in the first batch."""
    with tqdm(total=len(cases), disable=not show_progress) as bar:
        for _, group in itertools.groupby(sorted(cases, key=length, reverse=True), length):
            while batch := list(itertools.islice(group, batch_size)):
                yield batch
                bar.update(len(batch))


def _logits(model, rows: list[list[int]] | torch.Tensor, *, dims: tuple[int, ...]) -> torch.Tensor:
    """Compute float32 logits of token ids `rows` [B, N] without padding.

    `dims` are the accepted numbers of dimensions of the logits: 2 for [B, N], 3 for [B, N, V]."""
    ids = torch.as_tensor(rows).to(next(model.parameters()).device)
    with in_eval_mode(model), torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    if logits.dim() not in dims or logits.shape[:2] != ids.shape:
        raise ValueError(
            f"{type(model).__name__} must return logits [B, N] (discriminator) or, for pseudo_log_likelihood only, "
            f"[B, N, V] (masked language model), got logits {list(logits.shape)} for input_ids {list(ids.shape)}"
        )
    return logits.float()


def _discriminator_logits(model, sentences: list[_Sentence], batch_size: int, show_progress: bool = False) -> list:
    """Compute a discriminator's logits for the tokens of each sentence, [n] each, on the CPU."""
    all_logits: dict[int, torch.Tensor] = {}
    numbers = range(len(sentences))
    for batch in _batches(numbers, lambda number: len(sentences[number].input_ids), batch_size, show_progress):
        logits = _logits(model, [sentences[number].input_ids for number in batch], dims=(2,)).cpu()
        for number, values in zip(batch, logits, strict=True):
            all_logits[number] = values[sentences[number].positions]
    return list(map(all_logits.get, numbers))


def _masked_one_by_one(model, tokenizer, sentences: list[_Sentence], batch_size: int, show_progress: bool) -> list:
    """Compute log P(token | other tokens) for each token of each sentence. Later tokens of the same word are masked, too."""
    if tokenizer.mask_token_id is None:
        raise ValueError("the tokenizer must have a mask token for a masked language model; set tokenizer.mask_token")
    cases = [(number, position) for number, sentence in enumerate(sentences) for position in sentence.positions]
    logs: list[list[float]] = [[] for _ in sentences]
    for batch in _batches(cases, lambda case: len(sentences[case[0]].input_ids), batch_size, show_progress):
        rows = torch.tensor([sentences[number].input_ids for number, _ in batch])  # [B, N]
        words = torch.tensor([sentences[number].words for number, _ in batch])  # [B, N]
        position = torch.tensor([[position] for _, position in batch])  # [B, 1]
        target = rows.gather(1, position)
        is_later = torch.arange(rows.shape[1]) >= position
        rows[is_later & (words == words.gather(1, position))] = tokenizer.mask_token_id
        logits = _logits_at(model, rows, position)
        values = logits.log_softmax(dim=-1).gather(1, target.to(logits.device))[:, 0].tolist()
        for (number, _), value in zip(batch, values, strict=True):
            logs[number].append(value)
    return logs


def _logits_at(model, rows: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Compute the logits [B, V] of one token in each of the `rows` [B, N]; `position` [B, 1] is this token's index."""
    if isinstance(model, DebertaExtForMaskedLM):
        # Models of this package can compute the logits of this position only. The forward of this class is called, because a
        # subclass may need other labels.
        labels = torch.full_like(rows, -100).scatter(1, position, 0).to(model.device)
        with in_eval_mode(model), torch.no_grad():
            logits = DebertaExtForMaskedLM.forward(model, rows.to(model.device), labels=labels, masked_only=True).logits
        return logits.float()
    logits = _logits(model, rows, dims=(3,))
    return logits[torch.arange(len(rows)), position[:, 0].to(logits.device)]

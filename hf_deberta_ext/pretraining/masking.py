# SPDX-License-Identifier: Apache-2.0
"""Mask tokens, whole words, n-grams or spans of a batch of examples, for masked-language modelling.

`units` divides rows into units (tokens or words), `choose` selects the units to mask, `replace` inserts [MASK] or random
tokens, and `mask` calls all three functions. B is the number of rows, N their length with padding, V the vocabulary size,
U the number of units of a row. The mask of a row depends only on the tokens and the seed of this row.

The default policy masks every position equally often. Microsoft's code selects 1/6 of the units, masks these units from left
to right, and stops when 15 % of the tokens are masked. Therefore, the end of a full sequence is never masked.
`policy="official"` does the same, with Microsoft's units: a word starts at a token with a word marker, or at a token of one
punctuation character. A token of several punctuation characters, such as `--` or `),`, belongs to the previous word, even
after [UNK], [SEP] or a line break. Random tokens are drawn from the whole vocabulary, including special tokens. Special
tokens other than [MASK], [CLS], [SEP], [PAD] and [UNK] are masked like words.
"""

import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import decoders

__all__ = ["POLICIES", "UNITS", "MaskingOptions", "MaskingVocabulary", "RowGenerator", "choose", "mask", "replace", "units"]

UNITS = ("token", "word", "ngram", "span")
POLICIES = ("uniform", "official")
IGNORED = -100


@dataclass(frozen=True, eq=False)
class MaskingVocabulary:
    """Properties of token ids that masking needs; cheaper to send to DataLoader workers than a tokenizer.

    Args:
        starts_word (`torch.BoolTensor`): [V], True for tokens that start a unit: tokens with the marker of a word start (for
            WordPiece: without ##), and punctuation.
        ends_word (`torch.BoolTensor`): [V], True for tokens after which a unit starts: special tokens, line breaks, tabs.
        special (`torch.BoolTensor`): [V], True for ids that are never masked: special tokens and unused ids.
        ordinary (`torch.LongTensor`): [K], ids from which random tokens are drawn: all ids that are not special.
        mask_id, pad_id (`int`): ids of [MASK] and [PAD].
        official (`MaskingVocabulary`, *optional*): vocabulary for `policy="official"`; default: this vocabulary.
    """

    starts_word: torch.Tensor
    ends_word: torch.Tensor
    special: torch.Tensor
    ordinary: torch.Tensor
    mask_id: int
    pad_id: int
    official: "MaskingVocabulary | None" = None

    def of(self, policy: str) -> "MaskingVocabulary":
        """Return the vocabulary for a policy."""
        if policy == "official" and self.official is not None:
            return self.official
        return self

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "MaskingVocabulary":
        """Read the vocabulary of a byte-level BPE (Ġ), SentencePiece (▁) or WordPiece (##) tokenizer."""
        for name in ("mask", "pad"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise ValueError(f"the tokenizer must have a {name}_token, such as [{name.upper()}], got None")
        vocab = tokenizer.get_vocab()
        marker = word_marker(tokenizer, vocab)
        added = tokenizer.added_tokens_decoder
        specials = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        V = max(vocab.values()) + 1
        starts = torch.zeros(V, dtype=torch.bool)
        ends, special, official_starts, official_special = torch.ones(4, V, dtype=torch.bool)
        for token, i in vocab.items():
            official_special[i] = False
            if i not in added:
                official_starts[i] = starts_official_unit(token, marker)
            if i not in specials:
                special[i] = False
                starts[i], ends[i] = True, False
                if i not in added:
                    starts[i], ends[i] = token_borders(token, marker)
        ordinary = (~special).nonzero()[:, 0]
        ids = (tokenizer.mask_token_id, tokenizer.pad_token_id)
        every_id = torch.tensor(sorted(vocab.values()))
        for i in (*ids, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id):
            if i is not None:
                official_special[i] = True
        official = cls(official_starts, torch.zeros(V, dtype=torch.bool), official_special, every_id, *ids)
        return cls(starts, ends, special, ordinary, *ids, official)


def word_marker(tokenizer: Any, vocab: Iterable[str]) -> str:
    """Return the most frequent word marker: "Ġ" (byte-level BPE), "▁" (SentencePiece) or "##" (WordPiece)."""
    counts = {marker: sum(token.startswith(marker) for token in vocab) for marker in ("Ġ", "▁", "##")}
    marker = max(counts, key=counts.get)
    if not counts[marker]:
        examples = sorted({*vocab} - {*tokenizer.all_special_tokens})[:5]
        raise ValueError(
            f"expected tokens with a word marker, Ġ (byte-level BPE), ▁ (SentencePiece) or ## (WordPiece), got {examples}"
        )
    return marker


def token_borders(token: str, marker: str) -> tuple[bool, bool]:
    """Return two bools: whether the token starts a unit, and whether every token that follows it starts a unit."""
    if marker not in ("Ġ", "▁"):
        text = token.removeprefix(marker)
        return text == token or _is_punctuation(text), False
    text = _text(token, marker)
    # Byte-level BPE splits before a word and its space, and after line breaks.
    line_break = text.isspace() and text[-1] != " "
    return text[:1].isspace() or _is_punctuation(text.strip()), line_break


def starts_official_unit(token: str, marker: str) -> bool:
    """Return True if Microsoft's code starts a word at the token. It lacks WordPiece: there, tokens without ## start one."""
    text = _text(token, marker)
    if len(text) == 1:
        category = unicodedata.category(text)
        if category == "Zs" or category[0] == "C" or _is_punctuation(text):
            return True
    if marker in ("Ġ", "▁"):
        return text.startswith(" ")
    return not token.startswith(marker)


def _text(token: str, marker: str) -> str:
    """Return the characters of a byte-level BPE or SentencePiece token, including its leading space."""
    if marker == "Ġ":
        return decoders.ByteLevel().decode([token])
    return token.replace("▁", " ")


def _is_punctuation(text: str) -> bool:
    """Return True if all characters are punctuation as in BERT: of the Unicode categories P*, or ASCII symbols."""
    return text != "" and all(c in string.punctuation or unicodedata.category(c)[0] == "P" for c in text)


@dataclass(frozen=True)
class MaskingOptions:
    """Options of masking: unit, rate and replacement.

    Args:
        unit (`str`): "token", "word", "ngram" (n words, P(n) proportional to 1/n; DeBERTa) or "span" (SpanBERT section 3.1).
        rate (`float`): share of the non-special tokens to mask; at most 0.9, or 0.5 for spans.
        max_ngram (`int`): maximum length of an n-gram, in words.
        span_p (`float`), max_span (`int`): parameters of the span length: a span has n <= `max_span` words, with P(n)
            proportional to (1 - span_p)^n.
        mask_share, random_share (`float`): shares of chosen tokens that become [MASK] or random tokens; others are kept.
        policy (`str`): "uniform" masks all positions equally often; "official" masks like Microsoft's code (see the module),
            and only supports the units "token" and "ngram".
        max_length (`int`): maximum example length; "official" masks at most ceil(max_length * rate / 10) * 10 tokens.
        final_rate (`float`, *optional*): rate at the end of training and in all evaluations. During the training, the rate
            falls from `rate` to `final_rate` (see `lower_rate`). Only for `policy="uniform"`.
    """

    unit: str = "token"
    rate: float = 0.15
    max_ngram: int = 3
    span_p: float = 0.2
    max_span: int = 10
    mask_share: float = 0.8
    random_share: float = 0.1
    policy: str = "uniform"
    max_length: int = 512
    final_rate: float | None = None

    def __post_init__(self):
        for name, choices in (("unit", UNITS), ("policy", POLICIES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if not 0 < self.rate <= 0.9:
            raise ValueError(f"rate must be above 0 and at most 0.9, got {self.rate}; pass a share, not a percentage")
        if self.final_rate is not None and not (0 < self.final_rate <= self.rate and self.policy == "uniform"):
            raise ValueError(
                f"final_rate must be above 0 and at most rate ({self.rate}), and needs policy='uniform', got "
                f"{self.final_rate} with policy={self.policy!r}"
            )
        if self.unit == "span" and self.rate > 0.5:
            raise ValueError(
                f"rate must be at most 0.5 for spans, got {self.rate}: unmasked words separate the spans; use unit='ngram'"
            )
        if not 0 < self.span_p < 1:
            raise ValueError(f"span_p must be above 0 and below 1, got {self.span_p}")
        for name in ("max_ngram", "max_span", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                "mask_share and random_share must be at least 0 and sum to at most 1, got "
                f"{self.mask_share} and {self.random_share}"
            )
        if self.policy == "official" and self.unit not in ("token", "ngram"):
            raise ValueError(f"policy='official' needs unit='token' or 'ngram', got {self.unit!r}; use policy='uniform'")

    @property
    def whole_words(self) -> bool:
        """True if units are whole words. Like Microsoft's code, the official policy masks tokens if max_ngram is 1."""
        return self.unit != "token" and not (self.policy == "official" and self.max_ngram == 1)


class RowGenerator:
    """Generator of uniform random numbers with a seed for each row: SplitMix64 (Steele, Lea and Flood 2014).

    A random number depends only on the seed of the row, on the column, and on the count of previous calls, not on other rows
    or the width. The seeds must be unrelated, such as seeds from `spread_seed`.
    """

    def __init__(self, seeds: Sequence[int]):
        self.seeds, self.calls = np.array(seeds, dtype=np.uint64)[:, None], 0

    def uniform(self, width: int) -> torch.Tensor:
        """Draw numbers in [0, 1), float64 [B, width]."""
        counter = np.arange(1, width + 1, dtype=np.uint64) + np.uint64(self.calls << 32)
        self.calls += 1
        z = self.seeds + counter * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return torch.from_numpy(((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53)


def mask(
    input_ids: torch.Tensor,
    vocabulary: MaskingVocabulary,
    options: MaskingOptions,
    generator: RowGenerator,
    lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mask a batch of examples.

    Args:
        input_ids (`torch.LongTensor`): [B, N], including special tokens.
        lengths (`torch.LongTensor`, *optional*): [B], see `choose`.
    Returns:
        masked ids [B, N]; labels [B, N], which are the original ids of all chosen tokens (also of tokens that are kept), and
        -100 elsewhere; and the thresholds [B, N] from `choose`.
    """
    vocabulary = vocabulary.of(options.policy)
    unit_ids = units(input_ids, vocabulary, options.whole_words)
    span_ids, rates = choose(unit_ids, options, generator, lengths)
    masked_ids = replace(input_ids, span_ids, vocabulary, options, generator)
    return masked_ids, input_ids.masked_fill(span_ids == 0, IGNORED), rates


def units(input_ids: torch.Tensor, vocabulary: MaskingVocabulary, whole_words: bool) -> torch.Tensor:
    """Return the index of the unit to which each token belongs; a unit is masked completely or not at all.

    A word starts at each token with `MaskingVocabulary.starts_word`, and after each token with `ends_word`. In the official
    policy's vocabulary, `vocabulary.of("official")`, no token has `ends_word`, so that special tokens and line breaks do not
    end a word. In text without spaces, a word extends to the next punctuation.

    Args:
        whole_words (`bool`): if True, units are words; otherwise tokens.
    Returns:
        `torch.LongTensor`: [B, N], unit indices from 0 in text order; -1 for special tokens and padding.
    """
    special = vocabulary.special[input_ids]
    starts = ~special
    if whole_words:
        after = torch.ones_like(starts)
        after[:, 1:] = vocabulary.ends_word[input_ids[:, :-1]]
        first = starts.cumsum(1) == 1
        starts &= vocabulary.starts_word[input_ids] | after | first
    return (starts.cumsum(1) - 1).masked_fill(special, -1)


def choose(
    unit_ids: torch.Tensor, options: MaskingOptions, generator: RowGenerator, lengths: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose units to mask in each row until the share `options.rate` of the row's tokens is reached.

    The last unit is included if the share is nearer to the rate with this unit than without it; at least one unit is chosen.
    To reach the rate, the last n-gram or span may be shortened, which slightly lowers the mean length.

    Args:
        unit_ids (`torch.LongTensor`): [B, N], from `units`.
        lengths (`torch.LongTensor`, *optional*): [B], number of tokens of each row, including special tokens, for the
            official policy; default: N.
    Returns:
        `torch.LongTensor`: [B, N], 0 = not masked, k > 0 = in the k-th masked unit, n-gram or span from the left. If a
        special token or the end of the text divides a span, its two parts count as two spans.
        `torch.FloatTensor`: [B, N], threshold of each token: with the same random numbers, each rate above the threshold
        masks this token. Therefore, a lower rate masks a subset of the tokens that a higher rate masks.
    """
    B, N = unit_ids.shape
    U = int(unit_ids.max()) + 1 if unit_ids.numel() else 0
    # The last column collects special tokens (unit -1).
    columns = unit_ids % (U + 1)
    rows = torch.arange(B)[:, None] * (U + 1)
    sizes = torch.bincount((rows + columns).flatten(), minlength=B * (U + 1)).view(B, U + 1)[:, :U]
    if U == 0:
        return torch.zeros_like(unit_ids), torch.full((B, N), torch.inf)
    if options.policy == "official":
        if lengths is None:
            lengths = torch.full((B,), N)
        order, owners, needed = official_order(sizes, lengths, options, generator)
    else:
        order, owners = random_order(sizes, options, generator)
        taken = sizes.gather(1, order) * (owners > 0)
        # Mask a unit if the masked share is nearer to the rate with this unit than without it. Always mask the first unit.
        needed = (taken.cumsum(1) - taken / 2) / sizes.sum(1, keepdim=True)
        needed[:, 0] = 0
        needed.masked_fill_(owners == 0, torch.inf)
    order = order.where(owners > 0, U)
    rates = torch.full((B, U + 1), torch.inf).scatter(1, order, needed.float()).gather(1, columns)
    owners = owners.new_zeros(B, U + 1).scatter(1, order, owners).gather(1, columns) * (rates < options.rate)
    starts = owners > 0
    starts[:, 1:] &= owners[:, 1:] != owners[:, :-1]
    return starts.cumsum(1) * (owners > 0), rates


def random_order(sizes: torch.Tensor, options: MaskingOptions, generator: RowGenerator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the order in which units are masked, and the index of the n-gram or span to which each unit belongs.

    N-grams and spans are placed on a circle, the row with its end joined to its start, so that all positions are equivalent.
    Lengths are drawn in units, but the rate is a share of tokens. To have enough tokens, more n-grams or spans are placed
    than are needed on average. If they still have too few tokens, the whole circle is filled.

    Args:
        sizes (`torch.LongTensor`): [B, U], number of tokens of each unit; 0 after the row's last unit.
    Returns:
        units in random order [B, U], and the index of the n-gram or span of each of these units [B, U], from 1; 0 = none.
    """
    width = sizes.shape[1]
    U = (sizes > 0).sum(1, keepdim=True)
    places = torch.arange(width)
    if options.unit in ("token", "word"):
        order = generator.uniform(width).masked_fill(sizes == 0, 2.0).argsort(1)
        return order, (order + 1) * (places < U)
    gap, longest = torch.zeros_like(U), options.max_ngram
    if options.unit == "span":
        gap, longest = (U > 1).long(), options.max_span
    lengths = _draw_lengths(U, gap, options, generator.uniform(width))
    draws, turn = generator.uniform(width), (generator.uniform(1) * U).long()
    is_laid = lengths.cumsum(1) - lengths < 1.5 * options.rate * U + 2 * longest
    for _ in range(2):
        laid = lengths * is_laid
        starts, ends = _lay_out(laid, gap, U, draws) + turn, laid.cumsum(1)
        # The n-th covered unit is in span k: the first span that ends after this unit.
        k = torch.searchsorted(ends, places.expand_as(ends).contiguous(), right=True).clamp(max=width - 1)
        order = (starts.gather(1, k) + places - (ends - laid).gather(1, k)) % U.clamp(min=1)
        owners = (k + 1) * (places < ends[:, -1:])
        too_few = (sizes.gather(1, order) * (owners > 0)).sum(1, keepdim=True) < options.rate * sizes.sum(1, keepdim=True)
        is_laid = is_laid | too_few
        if not too_few.any():
            break
    return order, owners


def _cumulative(options: MaskingOptions) -> torch.Tensor:
    """Return P(length <= n) for n = 1, 2, ...; P(n) is proportional to 1/n for n-grams, and to (1 - span_p)^n for spans."""
    if options.unit == "span":
        p = (1 - options.span_p) ** torch.arange(1, options.max_span + 1, dtype=torch.float64)
    else:
        longest = options.max_ngram if options.unit == "ngram" else 1
        p = 1 / torch.arange(1, 1 + longest, dtype=torch.float64)
    return p.cumsum(0) / p.sum()


def _draw_lengths(U: torch.Tensor, gap: torch.Tensor, options: MaskingOptions, draws: torch.Tensor) -> torch.Tensor:
    """Draw lengths [B, W] of spans that fill a circle of U [B, 1] units, with `gap` [B, 1] free units after each span. The
    last span is cut to fit, and all further lengths are 0. `draws` [B, W] are random numbers."""
    cumulative = _cumulative(options)
    limit = (U - gap).clamp(1, len(cumulative))
    lengths = torch.searchsorted(cumulative, draws * cumulative[limit - 1], right=True) + 1
    room = U - (lengths + gap).cumsum(1) + lengths
    return lengths.minimum(room).clamp(min=0)


def _lay_out(lengths: torch.Tensor, gap: torch.Tensor, U: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Arrange spans, each followed by `gap` free units, and the other free units in random order; return starts, [B, W]."""
    items = lengths + gap * (lengths > 0)
    spans, free = (lengths > 0).sum(1, keepdim=True), U - items.sum(1, keepdim=True)
    places = torch.arange(lengths.shape[1])
    items += (places >= spans) & (places < spans + free)
    order = draws.masked_fill(items == 0, 2.0).argsort(1)
    items = items.gather(1, order)
    return torch.empty_like(items).scatter(1, order, items.cumsum(1) - items)


def official_order(
    sizes: torch.Tensor, lengths: torch.Tensor, options: MaskingOptions, generator: RowGenerator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose units as NGramMaskGenerator of Microsoft's code does (microsoft/DeBERTa, apps/tasks/mlm_task.py).

    From left to right, draw a length n, and place an n-gram in the next n * int(1 / options.rate) units. Mask the n-grams in
    this order until the budget of masked tokens is reached.

    Returns:
        units and n-gram indices as in `random_order`; thresholds as in `choose`: 0 if masked, else infinity. All are [B, U].
    """
    width, window = sizes.shape[1], int(1 / options.rate)
    # The last cumulative probability, 1, is not needed: draws are below it.
    ngrams = (torch.searchsorted(_cumulative(options)[:-1], generator.uniform(width), right=True) + 1).tolist()
    draws = generator.uniform(width).tolist()
    order, owners = torch.zeros_like(sizes), torch.zeros_like(sizes)
    for row, U in enumerate((sizes > 0).sum(1).tolist()):
        chosen, numbers, offset = [], [], 0
        for k, (n, draw) in enumerate(zip(ngrams[row], draws[row], strict=True)):
            context = min(n * window, U - offset)
            if context <= 0:
                break
            start = offset + int(draw * context)
            end = min(start + n, U)
            chosen += range(start, end)
            numbers += [k + 1] * (end - start)
            offset = max(offset + context, end)
        order[row, : len(chosen)], owners[row, : len(chosen)] = torch.tensor(chosen), torch.tensor(numbers)
    tens = -int(-options.max_length * options.rate // 10)
    budgets = torch.tensor([min(tens * 10, max(1, round(N * options.rate))) for N in lengths.tolist()])
    taken = sizes.gather(1, order) * (owners > 0)
    needed = torch.where(taken.cumsum(1) - taken < budgets[:, None], 0.0, torch.inf)
    return order, owners, needed.masked_fill(owners == 0, torch.inf)


def replace(
    input_ids: torch.Tensor,
    span_ids: torch.Tensor,
    vocabulary: MaskingVocabulary,
    options: MaskingOptions,
    generator: RowGenerator,
) -> torch.Tensor:
    """Replace the chosen tokens by [MASK] (`mask_share`), by a random token (`random_share`), or not at all.

    This choice is made for each token; for `unit="span"`, once for each span (SpanBERT section 3.1), but the random tokens
    of a span are drawn separately.

    Args:
        input_ids, span_ids (`torch.LongTensor`): [B, N]; `span_ids` is from `choose`. The result has the same shape.
    """
    N = input_ids.shape[1]
    chance = generator.uniform(N)
    if options.unit == "span":
        # There are at most N spans: the chance of the k-th is at index k - 1.
        chance = chance.gather(1, (span_ids - 1) % max(N, 1))
    ordinary = vocabulary.ordinary[(generator.uniform(N) * len(vocabulary.ordinary)).long()]
    masked = span_ids > 0
    output = input_ids.masked_fill(masked & (chance < options.mask_share), vocabulary.mask_id)
    at_random = masked & (chance >= options.mask_share) & (chance < options.mask_share + options.random_share)
    return torch.where(at_random, ordinary, output)

# SPDX-License-Identifier: Apache-2.0
"""Masking of single tokens, whole words, n-grams or spans of one example, for masked-language modelling.

Pure functions of tensors and a generator, on CPU. `units` finds the words, `choose` the masked units, `replace` puts [MASK]
or a random token there, and `mask` is all three. N is the length of the example, V the number of ids, U that of units.

The default policy covers every position equally often. The official code masks 1/6 of the units and stops, from the left,
when 15 % of the tokens are masked: the end of a full sequence is never masked. `policy="official"` does the same, with the
same units: a word begins at its marker or at a single character that is punctuation, so `--` and `),` join the word before
them, also across [UNK], [SEP] and line breaks. Its random tokens are drawn from the whole vocabulary, special tokens
included, and special tokens beyond [MASK], [CLS], [SEP], [PAD] and [UNK] are masked as words are.
"""

import json
import string
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from tokenizers import decoders

__all__ = ["POLICIES", "UNITS", "MaskingOptions", "MaskingVocabulary", "choose", "mask", "replace", "units"]

UNITS = ("token", "word", "ngram", "span")
POLICIES = ("uniform", "official")
IGNORED = -100


@dataclass(frozen=True, eq=False)
class MaskingVocabulary:
    """Properties of each token id that masking reads. Holds no tokenizer, so that it is cheap to send to workers.

    Args:
        starts_word (`torch.BoolTensor`): [V], the token starts a unit: it has the marker of a word's start (or, for
            WordPiece, lacks ##), or is punctuation.
        ends_word (`torch.BoolTensor`): [V], whatever follows starts a unit: special tokens, line breaks, tabs.
        special (`torch.BoolTensor`): [V], never masked: special tokens, and ids that no token has.
        ordinary (`torch.LongTensor`): [K], the ids that may be put at random: all that are not special.
        mask_id, pad_id (`int`): ids of [MASK] and [PAD].
        official (`MaskingVocabulary`, *optional*): the same for `policy="official"`; None: as for "uniform".
    """

    starts_word: torch.Tensor
    ends_word: torch.Tensor
    special: torch.Tensor
    ordinary: torch.Tensor
    mask_id: int
    pad_id: int
    official: "MaskingVocabulary | None" = None

    def of(self, policy: str) -> "MaskingVocabulary":
        """The properties that a policy reads."""
        return self.official if policy == "official" and self.official is not None else self

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "MaskingVocabulary":
        """Read the vocabulary of a byte-level BPE (Ġ), SentencePiece (▁) or WordPiece (##) tokenizer.

        Raises:
            ValueError: it has no mask or pad token, no ordinary token, or marks words in none of these ways.
        """
        for name in ("mask", "pad"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise ValueError(f"masking needs a tokenizer with a {name}_token, expected [{name.upper()}], got None")
        vocab = tokenizer.get_vocab()
        marker = word_marker(tokenizer, vocab)
        added = tokenizer.added_tokens_decoder
        specials = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        V = max(vocab.values()) + 1
        starts, ends, special = [False] * V, [True] * V, [True] * V
        official_starts = [True] * V
        for token, i in vocab.items():
            if i not in added:
                official_starts[i] = starts_official_unit(token, marker)
            if i not in specials:
                special[i] = False
                starts[i], ends[i] = (True, False) if i in added else token_borders(token, marker)
        special = torch.tensor(special)
        ordinary = (~special).nonzero()[:, 0]
        if len(ordinary) == 0:
            raise ValueError(f"the tokenizer has special tokens only ({len(vocab)} of them): nothing can be masked")
        ids, every_id = (tokenizer.mask_token_id, tokenizer.pad_token_id), sorted(vocab.values())
        maskable = {*every_id} - {*ids, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id}
        never_masked = torch.tensor([i not in maskable for i in range(V)])
        never_ends = torch.zeros(V, dtype=torch.bool)
        official = cls(torch.tensor(official_starts), never_ends, never_masked, torch.tensor(every_id), *ids)
        return cls(torch.tensor(starts), torch.tensor(ends), special, ordinary, *ids, official)


def word_marker(tokenizer: Any, vocab: Iterable[str]) -> str:
    """ "Ġ" (byte-level BPE), "▁" (SentencePiece) or "##" (WordPiece), from the tokenizer's parts or its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        if state["model"]["type"] == "WordPiece":
            return state["model"]["continuing_subword_prefix"]
        components = json.dumps([state["pre_tokenizer"], state["decoder"]])
        for component, marker in (("ByteLevel", "Ġ"), ("Metaspace", "▁")):
            if f'"{component}"' in components:
                return marker
    counts = {marker: sum(token.startswith(marker) for token in vocab) for marker in ("Ġ", "▁", "##")}
    marker = max(counts, key=counts.get)
    if not counts[marker]:
        examples = sorted({*vocab} - {*tokenizer.all_special_tokens})[:5]
        raise ValueError(
            "cannot tell where words start: the tokenizer is neither byte-level BPE (Ġ) nor SentencePiece (▁) nor "
            f"WordPiece (##), its tokens are such as {examples}; use one of those"
        )
    return marker


def token_borders(token: str, marker: str) -> tuple[bool, bool]:
    """(the token starts a unit, whatever follows it starts one)"""
    if marker not in ("Ġ", "▁"):
        text = token.removeprefix(marker)
        return text == token or _is_punctuation(text), False
    text = _text(token, marker)
    # Byte-level BPE splits before a word and its space, and after line breaks, which stay alone.
    line_break = text.isspace() and text[-1] != " "
    return text[:1].isspace() or _is_punctuation(text.strip()), line_break


def starts_official_unit(token: str, marker: str) -> bool:
    """The token is no part of a whole word in the official code, which has no WordPiece tokenizer: there, it lacks ##."""
    text = _text(token, marker)
    if len(text) == 1 and (
        unicodedata.category(text) == "Zs" or unicodedata.category(text)[0] == "C" or _is_punctuation(text)
    ):
        return True
    return text.startswith(" ") if marker in ("Ġ", "▁") else not token.startswith(marker)


def _text(token: str, marker: str) -> str:
    """The characters of a token of byte-level BPE or SentencePiece, with the space before it."""
    return decoders.ByteLevel().decode([token]) if marker == "Ġ" else token.replace("▁", " ")


def _is_punctuation(text: str) -> bool:
    """BERT's punctuation: Unicode's, and all of ASCII that is neither letter, digit nor space."""
    return text != "" and all(c in string.punctuation or unicodedata.category(c)[0] == "P" for c in text)


@dataclass(frozen=True)
class MaskingOptions:
    """Unit, rate and replacement of masking.

    Args:
        unit (`str`): "token", "word", "ngram" (of words, P(n) proportional to 1/n; DeBERTa) or "span" (SpanBERT 3.1).
        rate (`float`): share of the tokens, specials not counted, that are masked; up to 0.9, for spans up to 0.5.
        max_ngram (`int`): longest n-gram, in words.
        span_p, max_span: lengths of spans are geometric with p, up to `max_span` words: P(n) proportional to (1 - p)^n.
        mask_share, random_share (`float`): shares that become [MASK] or a random token. The rest stays as it is.
        policy (`str`): "uniform" over positions, or "official", DeBERTa's masker with its units (see the module), for
            tokens and n-grams.
        max_length (`int`): only for "official", which masks at most ceil(max_length * rate / 10) * 10 tokens.
        final_rate (`float`, *optional*): `rate` falls to it in the course of the training, with `lower_rate`;
            evaluation has it from the start. Only for "uniform".
    Raises:
        ValueError: a value out of range, or two that exclude each other.
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
            raise ValueError(f"rate must be above 0 and at most 0.9, got {self.rate}; is it a percentage?")
        if self.final_rate is not None and not (0 < self.final_rate <= self.rate and self.policy == "uniform"):
            raise ValueError(
                f"final_rate must be above 0 and at most the rate {self.rate}, and the policy uniform, got "
                f"{self.final_rate} and {self.policy}"
            )
        if self.unit == "span" and self.rate > 0.5:
            raise ValueError(f"spans never touch, so rate must be at most 0.5 for them, got {self.rate}; take n-grams")
        if not 0 < self.span_p < 1:
            raise ValueError(f"span_p must be above 0 and below 1, got {self.span_p}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{field.name} must be a whole number of at least 1, got {value!r}")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                "mask_share and random_share must be at least 0 and sum to at most 1, the rest is kept; got "
                f"{self.mask_share} and {self.random_share}"
            )
        if self.policy == "official" and self.unit not in ("token", "ngram"):
            raise ValueError(f"the official masker knows the units token and ngram, got {self.unit!r}; take policy uniform")

    @property
    def whole_words(self) -> bool:
        """The official code masks whole words only where n-grams may be longer than one."""
        return self.unit != "token" and not (self.policy == "official" and self.max_ngram == 1)


def mask(
    input_ids: torch.Tensor, vocabulary: MaskingVocabulary, options: MaskingOptions, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mask one example.

    Args:
        input_ids (`torch.LongTensor`): [N], with its special tokens, better without padding (see `choose`).
    Returns:
        `torch.LongTensor`, `torch.LongTensor`: the masked ids [N], and the labels [N]: the original id where the model
        must predict (also where the token was kept), else -100.
    Raises:
        ValueError: `input_ids` is no vector, or has an id that the vocabulary lacks.
    """
    if input_ids.ndim != 1:
        raise ValueError(f"input_ids must be one example, [N], got shape {[*input_ids.shape]}; mask the rows of a batch")
    lowest, highest = map(int, input_ids.aminmax()) if len(input_ids) else (0, 0)
    if lowest < 0 or highest >= len(vocabulary.special):
        raise ValueError(
            f"input_ids must be in the vocabulary, 0..{len(vocabulary.special) - 1}, got {lowest}..{highest}; was the text "
            "encoded with another tokenizer?"
        )
    return mask_by_rate(input_ids, vocabulary, options, generator)[:2]


def mask_by_rate(
    input_ids: torch.Tensor, vocabulary: MaskingVocabulary, options: MaskingOptions, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `mask`, and for each token the lowest rate at which these draws mask it, [N] float32; 0 where it is not masked."""
    vocabulary = vocabulary.of(options.policy)
    span_ids, rates = choose_by_rate(units(input_ids, vocabulary, options.whole_words), options, generator)
    masked_ids = replace(input_ids, span_ids, vocabulary, options, generator)
    return masked_ids, input_ids.masked_fill(span_ids == 0, IGNORED), rates


def units(input_ids: torch.Tensor, vocabulary: MaskingVocabulary, whole_words: bool) -> torch.Tensor:
    """Number the units, which are masked as a whole or not at all.

    A word starts where its token says so (`MaskingVocabulary.starts_word`) and after special tokens and line breaks, which
    the official policy passes over (`vocabulary.of("official")`). Text without spaces is one word up to its punctuation.

    Args:
        input_ids (`torch.LongTensor`): [N].
        whole_words (`bool`): units are words; else each token is one.
    Returns:
        `torch.LongTensor`: [N], from 0 in order of the text; -1 for special tokens and padding.
    """
    special = vocabulary.special[input_ids]
    starts = ~special
    if whole_words:
        after = torch.ones_like(starts)
        after[1:] = vocabulary.ends_word[input_ids[:-1]]
        first = starts.cumsum(0) == 1
        starts &= vocabulary.starts_word[input_ids] | after | first
    return (starts.cumsum(0) - 1).masked_fill(special, -1)


def choose(unit_ids: torch.Tensor, options: MaskingOptions, generator: torch.Generator) -> torch.Tensor:
    """Choose what is masked: whole units until max(1, round(rate * number of tokens)) tokens are reached.

    The last unit is taken or not, whichever comes nearer to this budget; at least one is taken. So the last n-gram or span
    is cut short, and the mean length of the others is a little above that of all.

    Args:
        unit_ids (`torch.LongTensor`): [N], from `units`. With `policy="official"`, N itself counts (padding, too).
    Returns:
        `torch.LongTensor`: [N], 0 = not masked, k > 0 = in the k-th masked unit, n-gram or span from the left. One that
        meets a special token, or the end of the text, goes on behind it (or at the start) under a number of its own.
    """
    return choose_by_rate(unit_ids, options, generator)[0]


def choose_by_rate(
    unit_ids: torch.Tensor, options: MaskingOptions, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `choose`, and for each token the lowest rate at which these draws mask it, [N] float32; 0 where it is not."""
    # The first count is that of special tokens, whose unit is -1.
    sizes = torch.bincount(unit_ids + 1)[1:]
    if len(sizes) == 0:
        return torch.zeros_like(unit_ids), torch.zeros(len(unit_ids))
    if options.policy == "official":
        chosen, owners = official_units(sizes, len(unit_ids), options, generator)
    else:
        budget = max(1, round(options.rate * int(sizes.sum())))
        chosen, owners = candidate_units(sizes, budget, options, generator)
        count = int((sizes[chosen].cumsum(0) - budget).abs().argmin()) + 1
        chosen, owners = chosen[:count], owners[:count]
    # One entry more, 0, for special tokens: index -1.
    owner_of_unit, rate_of_unit = sizes.new_zeros(len(sizes) + 1), torch.zeros(len(sizes) + 1)
    owner_of_unit[chosen] = owners + 1
    # The budget to which it is as near to take a unit as to leave it; the first is taken at any rate.
    rate_of_unit[chosen[1:]] = ((sizes[chosen].cumsum(0) - sizes[chosen] / 2) / sizes.sum())[1:]
    return _number_pieces(owner_of_unit[unit_ids]), rate_of_unit[unit_ids]


def _number_pieces(owners: torch.Tensor) -> torch.Tensor:
    """[N] numbers, 0 = none -> [N] numbers from 1 in order of the text, one for each run of equal ones."""
    starts = owners > 0
    starts[1:] &= owners[1:] != owners[:-1]
    return starts.cumsum(0) * (owners > 0)


def candidate_units(
    sizes: torch.Tensor, budget: int, options: MaskingOptions, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Units in the order in which they are to be taken, and the number of the unit, n-gram or span that each is in.

    N-grams and spans are laid out on a circle, so that no position differs from another. More of them are laid out than
    are taken, as their numbers of tokens are not known before; a circle full of them where even these are too few.

    Args:
        sizes (`torch.LongTensor`): [U], tokens of each unit.
    """
    U = len(sizes)
    if options.unit in ("token", "word"):
        return torch.randperm(U, generator=generator), torch.arange(U)
    gap = 1 if options.unit == "span" and U > 1 else 0
    lengths = _draw_lengths(U, gap, options, generator)
    longest = options.max_span if options.unit == "span" else options.max_ngram
    enough = int((lengths.cumsum(0) < 1.5 * options.rate * U + 2 * longest).sum()) + 1
    for count in (enough, len(lengths)):
        chosen, owners = _lay_out_spans(lengths[:count], U, gap, generator)
        if int(sizes[chosen].sum()) >= budget:
            break
    return chosen, owners


def _probabilities(options: MaskingOptions, longest: int) -> torch.Tensor:
    """P(n), n = 1, 2, ...: proportional to 1/n for n-grams (DeBERTa), to (1 - p)^n for spans (SpanBERT 3.1)."""
    if options.unit == "ngram":
        p = [1 / n for n in range(1, min(options.max_ngram, longest) + 1)]
    else:
        p = [(1 - options.span_p) ** n for n in range(1, min(options.max_span, longest) + 1)]
    return torch.tensor([p_n / sum(p) for p_n in p])


def _draw_lengths(U: int, gap: int, options: MaskingOptions, generator: torch.Generator) -> torch.Tensor:
    """Independent lengths until a circle of U units is full; the last is cut to fit. Each needs `gap` units more."""
    p = _probabilities(options, U - gap)
    lengths = torch.multinomial(p, U, replacement=True, generator=generator) + 1
    room = U - (lengths + gap).cumsum(0)
    count = int((room >= 0).sum())
    last = int(room[count - 1]) - gap
    if last > 0:
        lengths[count] = last
        count += 1
    return lengths[:count]


def _lay_out_spans(lengths: torch.Tensor, U: int, gap: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Put spans, each with its gap behind it, and the free units in random order on a circle, and turn the circle.

    Args:
        lengths (`torch.LongTensor`): [J], in units.
    Returns:
        the units that the spans cover, span after span, and the number of the span (0..J-1) that each is in.
    """
    J, free = len(lengths), U - int(lengths.sum()) - gap * len(lengths)
    items = torch.cat([lengths + gap, lengths.new_ones(free)])
    order = torch.randperm(J + free, generator=generator)
    starts = torch.empty_like(items)
    starts[order] = items[order].cumsum(0) - items[order]
    starts += torch.randint(U, (1,), generator=generator)
    owners = torch.repeat_interleave(lengths)
    within = torch.arange(len(owners)) - (lengths.cumsum(0) - lengths)[owners]
    return (starts[owners] + within) % U, owners


def official_units(
    sizes: torch.Tensor, N: int, options: MaskingOptions, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """DeBERTa's NGramMaskGenerator (microsoft/DeBERTa, apps/tasks/mlm_task.py): masked units and the n-gram of each.

    One n-gram is placed in each context of n * int(1 / rate) units; they are taken from the left until the budget is met.
    """
    U, window = len(sizes), int(1 / options.rate)
    p = _probabilities(options, options.max_ngram) if options.unit == "ngram" else torch.ones(1)
    lengths = (torch.multinomial(p, U, replacement=True, generator=generator) + 1).tolist()
    places = torch.rand(U, generator=generator).tolist()
    chosen, owners, offset = [], [], 0
    for k, (n, place) in enumerate(zip(lengths, places, strict=True)):
        if offset >= U:
            break
        context = min(n * window, U - offset)
        start = offset + int(place * context)
        end = min(start + n, U)
        chosen += range(start, end)
        owners += [k] * (end - start)
        offset = max(offset + context, end)
    chosen, owners = torch.tensor(chosen), torch.tensor(owners)
    tens = -int(-options.max_length * options.rate // 10)
    budget = min(tens * 10, max(1, round(N * options.rate)))
    before = sizes[chosen].cumsum(0) - sizes[chosen]
    return chosen[before < budget], owners[before < budget]


def replace(
    input_ids: torch.Tensor,
    span_ids: torch.Tensor,
    vocabulary: MaskingVocabulary,
    options: MaskingOptions,
    generator: torch.Generator,
) -> torch.Tensor:
    """Put [MASK] (`mask_share`), a random token (`random_share`) or nothing else in the chosen places.

    Decided for each token, for spans once for all tokens of a span (SpanBERT 3.1), whose random tokens then differ.

    Args:
        input_ids, span_ids (`torch.LongTensor`): [N], the latter from `choose`.
    Returns:
        `torch.LongTensor`: [N].
    """
    N = len(input_ids)
    chance = torch.rand(N, generator=generator)
    if options.unit == "span":
        # There are at most N spans: the chance of the k-th is at index k - 1.
        chance = chance[span_ids - 1]
    ordinary = vocabulary.ordinary[torch.randint(len(vocabulary.ordinary), (N,), generator=generator)]
    masked = span_ids > 0
    output = input_ids.masked_fill(masked & (chance < options.mask_share), vocabulary.mask_id)
    at_random = masked & (chance >= options.mask_share) & (chance < options.mask_share + options.random_share)
    return torch.where(at_random, ordinary, output)

# SPDX-License-Identifier: Apache-2.0
"""Test masking: units of three kinds of vocabularies, budgets, lengths, shares, and coverage of positions by chi-square."""

import math
import random

import pytest
import torch
from scipy.stats import chisquare
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from hf_deberta_ext.pretraining import masking
from hf_deberta_ext.pretraining.masking import MaskingOptions, MaskingVocabulary, RowGenerator
from hf_deberta_ext.tokenization import wrap_tokenizer

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
BYTE_LEVEL = ["He", "llo", "Ġwor", "ld", ",", "Ġ(", "-", "bar", "Ċ", "ĉ", "New", "Ġ", "æ", "âĢĶ", "Ġ$", "'t", "ĠĊ", "12"]
BYTE_LEVEL += ["--"]
SENTENCE_PIECE = ["▁The", "re", "▁", "国", "、", "▁(", "a", ")", "<0x41>", "▁%", "'", "t", "),", "--", "▁--"]
WORD_PIECE = ["un", "##believ", "##able", ",", "$", "hello", "##s", "##,", "'", "t"]
UNITS = ["token", "word", "ngram", "span"]
# A correct program fails a test with this p-value once in 10,000 times; the seeds are fixed.
P_VALUE = 1e-4


def vocabulary_of(tokens):
    return {token: i for i, token in enumerate([*SPECIAL, *tokens])}


@pytest.fixture(scope="module")
def tokenizers():
    """Return {marker name: tokenizer with SPECIAL, the tokens above, and [MASK] at the end}."""
    byte_level = Tokenizer(models.BPE(vocabulary_of(BYTE_LEVEL), []))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    metaspace = Tokenizer(models.Unigram([(token, -1.0) for token in vocabulary_of(SENTENCE_PIECE)], 3))
    metaspace.pre_tokenizer, metaspace.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    word_piece = Tokenizer(models.WordPiece(vocabulary_of(WORD_PIECE), unk_token="[UNK]"))
    return {"Ġ": wrap_tokenizer(byte_level), "▁": wrap_tokenizer(metaspace), "##": wrap_tokenizer(word_piece)}


@pytest.fixture(scope="module")
def large_vocabulary():
    """Return a vocabulary of 1,000 ids: 0 to 9 are special, and half of the others start a word."""
    ids = torch.arange(1000)
    special = ids < 10
    return MaskingVocabulary((ids % 2 == 0) & ~special, special, special, ids[10:], mask_id=4, pad_id=0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def row_generator(g):
    """Return the generator of one row, seeded from `generator`."""
    return RowGenerator(torch.randint(2**62, (1,), generator=g).tolist())


def mask(ids, vocabulary, options, g):
    """Mask one example; return its masked ids and labels."""
    return [result[0] for result in masking.mask(ids[None], vocabulary, options, row_generator(g))[:2]]


def units(ids, vocabulary, whole_words):
    return masking.units(ids[None], vocabulary, whole_words)[0]


def choose(unit_ids, options, g):
    return masking.choose(unit_ids[None], options, row_generator(g))[0][0]


def replace(ids, span_ids, vocabulary, options, g):
    return masking.replace(ids[None], span_ids[None], vocabulary, options, row_generator(g))[0]


def word_units(N, g, *, sizes=(1, 1, 1, 2, 3, 5)):
    """Return [N] unit numbers of words of random sizes."""
    lengths = torch.tensor(sizes)[torch.randint(len(sizes), (N,), generator=g)]
    return torch.repeat_interleave(lengths)[:N]


def with_specials(unit_ids, places):
    """Insert special tokens (-1) before the given positions."""
    output = unit_ids.tolist()
    for place in sorted(places, reverse=True):
        output.insert(place, -1)
    return torch.tensor(output)


def coverage(unit, *, N=64, trials=1500, sizes=(1, 1, 1, 2, 3, 5), **options):
    """Count in how many trials each position is masked, [N]; each trial has other words."""
    options, g = MaskingOptions(unit=unit, **options), generator()
    counts = torch.zeros(N, dtype=torch.long)
    for _ in range(trials):
        words = torch.arange(N) if unit == "token" else word_units(N, g, sizes=sizes)
        counts += choose(words, options, g) > 0
    return counts


def unit_list(tokenizer, text, whole_words=True, policy="uniform"):
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(text.split()))
    assert tokenizer.convert_ids_to_tokens(ids.tolist()) == text.split()
    return units(ids, MaskingVocabulary.from_tokenizer(tokenizer).of(policy), whole_words).tolist()


def test_words_start_by_their_marker_and_at_punctuation_and_line_breaks(tokenizers):
    text = "[CLS] He llo Ġwor ld , Ġ( bar - 12 Ċ Ċ New Ġ æ âĢĶ [SEP] llo 't Ġ$ 12 ĉ æ ĠĊ bar [PAD] [PAD]"
    expected = [-1, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, -1, 10, 10, 11, 11, 12, 13, 14, 15, -1, -1]
    assert unit_list(tokenizers["Ġ"], text) == expected
    text = "[CLS] ▁The re ▁ 国 a 、 国 ▁( a ) [MASK] <0x41> ▁% 国 <0x41> ' t [SEP]"
    expected = [-1, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, -1, 5, 6, 6, 6, 7, 7, -1]
    assert unit_list(tokenizers["▁"], text) == expected
    text, expected = "[CLS] ▁The re 国 [UNK] ) [SEP] [PAD]", [-1, 0, 1, 2, -1, 3, -1, -1]
    assert unit_list(tokenizers["▁"], text, whole_words=False) == expected
    text = "[CLS] un ##believ ##able , hello ##s ##, ##s $ ' t [SEP] ##able [PAD]"
    assert unit_list(tokenizers["##"], text) == [-1, 0, 0, 0, 1, 2, 2, 3, 3, 4, 5, 6, -1, 7, -1]
    # The kind is recognised by the vocabulary.
    for words in (["▁The", "re"], ["ĠThe", "re"], ["the", "##re"]):
        tokenizer = wrap_tokenizer(Tokenizer(models.WordLevel(vocabulary_of(words), unk_token="[UNK]")))
        assert unit_list(tokenizer, f"[CLS] {' '.join(words * 2)} [SEP]") == [-1, 0, 0, 1, 1, -1]


@pytest.mark.parametrize(
    ("marker", "text", "expected"),
    [
        ("Ġ", "[CLS] He llo Ġwor ld , Ġ( bar -- 12 Ċ Ċ New Ġ æ âĢĶ [SEP] llo 't Ġ$ - 12 ĉ æ ĠĊ bar [UNK] ld [PAD] [PAD]",
         [-1, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 6, 7, -1, 7, 7, 8, 9, 9, 10, 10, 11, 11, -1, 11, -1, -1]),
        ("▁", "[CLS] ▁The re ▁ 国 a 、 国 ▁( a ), re [MASK] <0x41> ▁% 国 <0x41> ' t -- [UNK] re ) ▁-- [SEP] a",
         [-1, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, -1, 3, 4, 4, 4, 5, 5, 5, -1, 5, 6, 7, -1, 7]),
        ("##", "[CLS] ##able un ##believ [UNK] ##able , hello ##s $ ' t [SEP] ##s [PAD]",
         [-1, 0, 1, 1, -1, 1, 2, 3, 3, 4, 5, 6, -1, 6, -1]),
    ],
    ids=["byte-level", "SentencePiece", "WordPiece"],
)  # fmt: skip
def test_units_of_the_official_policy_are_those_of_the_official_code(marker, text, expected, tokenizers):
    """Compare with the units of NGramMaskGenerator.mask_tokens (microsoft/DeBERTa 4d7fe0b) and its tokenizers.

    Microsoft has no WordPiece tokenizer; there, a piece that starts with ## is part of a word. On 300,000 tokens of
    Wikipedia, manuals and code, no unit differed for any of the three.

    """
    assert unit_list(tokenizers[marker], text, policy="official") == expected


def test_specials_and_ids_without_a_token_are_special_and_added_words_are_not():
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4, "▁a": 5, "b": 9}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.add_tokens(["longword"])
    tokenizer.add_special_tokens([AddedToken("<extra>", special=True)])
    tokenizer = wrap_tokenizer(tokenizer)
    vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
    word, extra = tokenizer.convert_tokens_to_ids(["longword", "<extra>"])
    assert vocabulary.ordinary.tolist() == sorted([5, 9, word])
    assert (~vocabulary.special).nonzero()[:, 0].tolist() == vocabulary.ordinary.tolist()
    assert {word, extra} == {7, 8} and vocabulary.special[[6, extra]].all()
    assert (vocabulary.mask_id, vocabulary.pad_id) == (4, 0)
    ids = torch.tensor([9, 9, word, 9, extra, 9])
    assert units(ids, vocabulary, True).tolist() == [0, 0, 1, 1, -1, 2]
    # Microsoft's code masks special tokens other than its five, and draws from all ids that have a token.
    assert units(ids, vocabulary.of("official"), True).tolist() == [0, 0, 1, 1, 2, 2]
    assert vocabulary.of("official").ordinary.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_a_span_that_meets_a_special_token_or_the_end_is_numbered_in_pieces():
    """Mask two of four units: a span of two anywhere on the circle, or two spans with a unit between them."""
    options, seen = MaskingOptions(unit="span", rate=0.5), set()
    for seed in range(200):
        seen.add(tuple(choose(torch.tensor([-1, 0, 1, -1, 2, 3, -1]), options, generator(seed)).tolist()))
    one_span = {(0, 1, 1, 0, 0, 0, 0), (0, 0, 1, 0, 2, 0, 0), (0, 0, 0, 0, 1, 1, 0), (0, 1, 0, 0, 0, 2, 0)}
    assert seen == one_span | {(0, 1, 0, 0, 2, 0, 0), (0, 0, 1, 0, 0, 2, 0)}


@pytest.mark.parametrize("unit", UNITS)
def test_the_budget_is_exact_to_one_unit_for_all_lengths(unit):
    g = generator()
    lengths = [*range(1, 41), *range(41, 601, 13)]
    for N in lengths:
        for rate in (0.05, 0.15, 0.5) if unit == "span" else (0.05, 0.15, 0.5, 0.9):
            words = torch.arange(N) if unit == "token" else word_units(N, g)
            sizes = torch.bincount(words)
            places = torch.randint(N + 1, (3,), generator=g).tolist()
            # Insert only before a word, not within one.
            places = [p for p in places if p in (0, N) or words[p] != words[p - 1]]
            unit_ids = with_specials(words, places)
            span_ids = choose(unit_ids, MaskingOptions(unit=unit, rate=rate), g)
            masked = span_ids > 0
            assert not masked[unit_ids < 0].any()
            chosen = unit_ids[masked].unique()
            assert masked.sum() == sizes[chosen].sum() > 0, "a unit was masked in part"
            assert torch.equal(span_ids[masked].unique_consecutive(), torch.arange(1, int(span_ids.max()) + 1))
            error = abs(int(masked.sum()) - max(1, rate * N))
            # The last unit is included if that is nearer; spans, which never touch, can run out of units.
            nearest = unit != "span" and len(chosen) > 1
            assert error <= sizes.max() / (1 + nearest) + 1e-3, (N, rate)


@pytest.mark.parametrize("unit", UNITS)
def test_without_ordinary_tokens_nothing_is_masked_and_a_single_one_is(unit):
    options = MaskingOptions(unit=unit)
    assert choose(torch.full((5,), -1), options, generator()).tolist() == [0] * 5
    assert choose(torch.tensor([], dtype=torch.long), options, generator()).tolist() == []
    assert choose(torch.tensor([-1, 0, -1]), options, generator()).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        *((dict(unit="ngram", max_ngram=longest), [1 / n for n in range(1, longest + 1)]) for longest in (1, 2, 3, 5)),
        *((dict(unit="span", span_p=p, max_span=longest), [p * (1 - p) ** (n - 1) for n in range(1, longest + 1)])
          for p, longest in ((0.2, 10), (0.5, 4))),
    ],
)  # fmt: skip
def test_lengths_of_n_grams_go_by_1_over_n_and_those_of_spans_are_geometric_and_clipped(options, weights):
    """Measure in a text of 100,000 words, where all but two n-grams or spans have the drawn length."""
    lengths = torch.bincount(choose(torch.arange(100_000), MaskingOptions(**options), generator()))[1:]
    observed = torch.bincount(lengths)[1:]
    assert len(observed) == len(weights)
    expected = torch.tensor(weights, dtype=torch.float64) / sum(weights) * observed.sum()
    assert len(weights) == 1 or chisquare(observed, expected).pvalue > P_VALUE


def kinds(ids, output, mask_id):
    """Return [N], 0: [MASK], 1: another token, 2: kept."""
    return torch.where(output == mask_id, 0, torch.where(output != ids, 1, 2))


@pytest.mark.parametrize(
    ("mask_share", "random_share"), [(0.8, 0.1), (0.8, 0.2), (0.5, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]
)
def test_the_shares_are_those_asked_for(large_vocabulary, mask_share, random_share):
    n, g = 120_000, generator()
    # Id 10 is never drawn here, so a random token always differs.
    ids, span_ids = torch.full((n,), 10), torch.arange(1, n + 1)
    without = MaskingVocabulary(**{**vars(large_vocabulary), "ordinary": large_vocabulary.ordinary[1:]})
    options = MaskingOptions(mask_share=mask_share, random_share=random_share)
    counts = torch.bincount(kinds(ids, replace(ids, span_ids, without, options, g), 4), minlength=3).tolist()
    for count, share in zip(counts, (mask_share, random_share, 1 - mask_share - random_share), strict=True):
        assert abs(count - n * share) <= 4 * math.sqrt(n * max(share, 0) * (1 - share)) + 1e-6


def test_random_tokens_are_never_special_and_uniform_over_the_others():
    V = 60
    special = torch.zeros(V, dtype=torch.bool)
    special[[0, 1, 2, 3, 17, 59]] = True
    ordinary = (~special).nonzero()[:, 0]
    vocabulary = MaskingVocabulary(~special, special, special, ordinary, mask_id=59, pad_id=0)
    ids = torch.full((50_000,), 5)
    options = MaskingOptions(rate=0.9, mask_share=0.0, random_share=1.0)
    masked, labels = mask(ids, vocabulary, options, generator())
    counts = torch.bincount(masked[labels != -100], minlength=V)
    assert counts[special].sum() == 0
    assert chisquare(counts[ordinary]).pvalue > P_VALUE


def test_spans_are_replaced_as_a_whole_by_different_random_tokens_and_words_token_by_token(large_vocabulary):
    J, length = 30_000, 4
    ids = torch.full((J * length,), 10)
    span_ids = torch.arange(1, J + 1).repeat_interleave(length)
    without = MaskingVocabulary(**{**vars(large_vocabulary), "ordinary": large_vocabulary.ordinary[1:]})
    output = replace(ids, span_ids, without, MaskingOptions(unit="span"), generator())
    spans = kinds(ids, output, 4).view(J, length)
    assert (spans == spans[:, :1]).all()
    counts = torch.bincount(spans[:, 0], minlength=3)
    assert chisquare(counts, [0.8 * J, 0.1 * J, 0.1 * J]).pvalue > P_VALUE
    random_spans = output.view(J, length)[spans[:, 0] == 1]
    assert (random_spans[:, 1:] == random_spans[:, :-1]).float().mean() < 0.01
    words = kinds(ids, replace(ids, span_ids, without, MaskingOptions(unit="word"), generator()), 4).view(-1, 2)
    assert (words == 0).all(1).float().mean() == pytest.approx(0.64, abs=0.02)


@pytest.mark.parametrize("unit", UNITS)
def test_every_position_and_every_unit_of_a_short_text_is_masked_equally_often(unit):
    assert chisquare(coverage(unit)).pvalue > P_VALUE
    for N in (2, 3, 7, 13):
        assert chisquare(coverage(unit, N=N, trials=500, sizes=(1,), rate=0.3)).pvalue > P_VALUE, N


def official_mask(words, N, rate, max_gram, max_preds, rng):
    """Mask as NGramMaskGenerator.mask_tokens of microsoft/DeBERTa; `words` are lists of token positions."""
    ngrams = list(range(1, max_gram + 1))
    weights = [1 / n for n in ngrams]
    num_to_predict = min(max_preds, max(1, round(N * rate)))
    offset, mask_grams = 0, [False] * len(words)
    while offset < len(words):
        n = rng.choices(ngrams, weights)[0]
        ctx_size = min(n * int(1 / rate), len(words) - offset)
        m = rng.randint(0, ctx_size - 1)
        s, e = offset + m, min(offset + m + n, len(words))
        offset = max(offset + ctx_size, e)
        for k in range(s, e):
            mask_grams[k] = True
    masked = []
    for chosen, word in zip(mask_grams, words, strict=True):
        if chosen:
            masked += word
            if len(masked) >= num_to_predict:
                break
    return masked


# At a rate of 0.6, contexts are as long as n-grams, which then often extend into the next context.
@pytest.mark.parametrize(
    ("unit", "max_ngram", "rate"), [("token", 3, 0.15), ("ngram", 1, 0.15), ("ngram", 3, 0.15), ("ngram", 3, 0.6)]
)
def test_the_official_policy_covers_positions_as_a_transcription_of_the_official_code(unit, max_ngram, rate):
    g, rng, N, trials = generator(), random.Random(0), 80, 1500
    options = MaskingOptions(unit=unit, max_ngram=max_ngram, rate=rate, policy="official")
    ours, theirs = torch.zeros(N), torch.zeros(N)
    sizes_of_ours, sizes_of_theirs = [], []
    for _ in range(trials):
        unit_ids = torch.arange(N) if unit == "token" or max_ngram == 1 else word_units(N, g)
        words = [word.tolist() for word in torch.arange(N).split(torch.bincount(unit_ids).tolist())]
        masked = choose(unit_ids, options, g) > 0
        ours += masked
        sizes_of_ours.append(int(masked.sum()))
        picked = official_mask(words, N, rate, 1 if unit == "token" else max_ngram, 1000, rng)
        theirs[picked] += 1
        sizes_of_theirs.append(len(picked))
    spread = (2 * rate * (1 - rate) / trials) ** 0.5
    assert ((ours - theirs).abs() / trials).max() < 4.5 * spread
    assert max(sizes_of_ours) == max(sizes_of_theirs)
    assert sum(sizes_of_ours) / trials == pytest.approx(sum(sizes_of_theirs) / trials, abs=0.25)


def test_the_official_budget_counts_specials_and_max_length_and_its_words_are_whole_in_n_grams_alone():
    unit_ids = with_specials(torch.arange(510), [0, 510])

    def count(**options):
        return int((choose(unit_ids, MaskingOptions(**options), generator()) > 0).sum())

    assert count() == round(510 * 0.15) == 76
    assert count(policy="official") == round(512 * 0.15) == 77
    assert count(policy="official", max_length=100) == 20
    assert MaskingOptions(unit="ngram", policy="official").whole_words
    assert not MaskingOptions(unit="ngram", policy="official", max_ngram=1).whole_words
    assert MaskingOptions(unit="ngram", max_ngram=1).whole_words and not MaskingOptions(unit="token").whole_words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(unit="sentence"), "unit must be one of token, word, ngram, span, got 'sentence'"),
        (dict(rate=15), "got 15; pass a share"),
        (dict(unit="span", rate=0.6), "at most 0.5 for spans, got 0.6"),
        (
            dict(final_rate=0.2),
            r"final_rate must be above 0 and at most rate \(0.15\), and needs policy='uniform', got 0.2",
        ),
        (dict(final_rate=0.1, policy="official"), "got 0.1 with policy='official'"),
        (dict(max_span=0), "max_span must be at least 1, got 0"),
        (dict(span_p=1.0), "span_p must be above 0 and below 1, got 1.0"),
        (dict(mask_share=0.9, random_share=0.2), "sum to at most 1.* got 0.9 and 0.2"),
        (dict(policy="official", unit="span"), "policy='official' needs unit='token' or 'ngram', got 'span'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        MaskingOptions(**options)


def test_a_tokenizer_without_mask_or_marks_of_words_is_an_error(tokenizers):
    tokenizer = wrap_tokenizer(Tokenizer(models.WordLevel(vocabulary_of(["the", "cat"]), unk_token="[UNK]")))
    with pytest.raises(ValueError, match=r"expected tokens with a word marker.* got \['cat', 'the'\]"):
        MaskingVocabulary.from_tokenizer(tokenizer)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="the tokenizer must have a mask_token"):
        MaskingVocabulary.from_tokenizer(tokenizer)

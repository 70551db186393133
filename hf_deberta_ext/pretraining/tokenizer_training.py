# SPDX-License-Identifier: Apache-2.0
"""Training of tokenizers in the two published forms: byte-level BPE (v1, RoBERTa) and unigram (v2, v3, mDeBERTa).

Special ids are as published: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, and [MASK] last. Saved, they load with AutoTokenizer
and `load_tokenizer`. Texts are read once and lazily.

`tokenizers` trains the unigram model, but from words that are counted here: a piece never crosses a word, a script or a
digit (as in SentencePiece, and no long document without spaces becomes one word), rare characters stay out, and the
vocabulary can be put in an order of its own. The trainer goes through the words in an order that differs from run to run
(its hash maps are seeded at random), so the last bits of its scores and the scores of characters that it had lost do too.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tqdm.auto import tqdm

from ..tokenization import PreTrainedTokenizerFast, finish, tokenizer_from_vocab_and_merges

__all__ = ["tokenizer_report", "train_byte_level_bpe", "train_tokenizer", "train_unigram"]

FIRST_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Characters that are normalised and split at a time.
CUT = 10_000
# Noncharacters, never in a text: TILDE stands for the full-width tilde while NFKC runs; for ENDS see `_repeat_words`.
TILDE, *ENDS = map(chr, range(0xFDD2, 0xFDE0))


def train_tokenizer(kind: str, texts: Iterable[str], vocab_size: int, **options: Any) -> PreTrainedTokenizerFast:
    """`train_byte_level_bpe` or `train_unigram`, by name: kind is "byte-level-bpe" or "unigram".

    Raises:
        ValueError: another kind, and what the two functions raise.
    """
    kinds = {"byte-level-bpe": train_byte_level_bpe, "unigram": train_unigram}
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind](texts, vocab_size, **options)


def train_byte_level_bpe(
    texts: Iterable[str], vocab_size: int, *, model_max_length: int = 512, show_progress: bool = True
) -> PreTrainedTokenizerFast:
    """Train a tokenizer in the form of v1: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, the 256 bytes, merges, [MASK] last.

    All bytes are in, so nothing is ever unknown. The same texts give the same vocabulary. Merges seen only once are not
    made, so a short text gives fewer than `vocab_size` tokens.

    Raises:
        ValueError: no text, or `vocab_size` below 261.
        TypeError: `texts` is one string, or holds something else than strings.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(FIRST_TOKENS) + 1
    if vocab_size < smallest:
        raise ValueError(f"vocab_size must be at least {smallest} (256 bytes, 5 special tokens), got {vocab_size}")
    texts = _strings(texts)
    first = next((text for text in texts if text.strip()), None)
    if first is None:
        raise ValueError("there is no text to train on: texts is empty or blank")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        special_tokens=list(FIRST_TOKENS),
        initial_alphabet=alphabet,
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(itertools.chain([first], texts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"] | {"[MASK]": len(model["vocab"])}
    return tokenizer_from_vocab_and_merges(vocab, model["merges"], model_max_length=model_max_length)


def train_unigram(
    texts: Iterable[str],
    vocab_size: int,
    *,
    byte_fallback: bool = False,
    lowercase: bool = False,
    character_coverage: float = 0.9995,
    model_max_length: int = 512,
    show_progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer in the form of v2, v3 and mDeBERTa: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, pieces, [MASK] last.

    A unigram language model (Kudo 2018, arXiv:1804.10959) of pieces of at most 16 characters, within words that ▁ begins,
    after the normaliser `nmt_nfkc` of SentencePiece. A short text gives fewer than `vocab_size` tokens.

    Args:
        texts (iterable of `str`): read once; memory grows with the number of different words.
        vocab_size (`int`): with the special tokens and, if used, the 256 pieces of bytes.
        byte_fallback (`bool`): a character outside of the vocabulary becomes the pieces of its UTF-8 bytes, <0x00> to
            <0xFF> (ids 4 to 259), not [UNK].
        lowercase (`bool`): the tokenizer writes every text in lower case, so that "The" and "the" are one piece.
        character_coverage (`float`): share of the text whose characters must be pieces; rarer characters are left out.
            0.9995 is SentencePiece's own; 1 keeps every character.
        model_max_length (`int`): longest input, [CLS] and [SEP] included.
        show_progress (`bool`): draw progress bars.
    Raises:
        ValueError: no text, `vocab_size` below the number of characters and special tokens, or a coverage outside of (0, 1].
        TypeError: `texts` is one string, or holds something else than strings.
    """
    if not 0 < character_coverage <= 1:
        raise ValueError(f"character_coverage must be above 0 and at most 1, got {character_coverage}")
    normalizer = _nmt_nfkc(lowercase)
    words = count_words(_strings(texts), normalizer, show_progress)
    if not words:
        raise ValueError("there is no text to train on: texts is empty or blank")
    alphabet, words = cover_alphabet(words, character_coverage)
    reserved = len(FIRST_TOKENS) + 1 + (len(BYTE_PIECES) if byte_fallback else 0)
    if vocab_size < len(alphabet) + reserved:
        raise ValueError(
            f"vocab_size must be at least {len(alphabet) + reserved}: {len(alphabet)} characters make up "
            f"{character_coverage:.2%} of the text, {reserved} tokens are special{' or bytes' if byte_fallback else ''}; "
            f"got {vocab_size}. Enlarge it, or lower character_coverage"
        )
    pieces = fit_pieces(words, len(alphabet), vocab_size - reserved, show_progress)
    lowest = pieces[-1][1]
    # Never read from a text: worse than any way to spell them.
    first, mask = ([(name, (len(name) + 1) * (lowest - 10)) for name in names] for names in (FIRST_TOKENS, ["[MASK]"]))
    if byte_fallback:
        first += [(name, (len(name) + 1) * (lowest - 10)) for name in BYTE_PIECES]
    tokenizer = Tokenizer(models.Unigram([*first, *pieces, *mask], unk_id=3, byte_fallback=byte_fallback))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), tokenizer.decoder])
    return finish(tokenizer, model_max_length=model_max_length)


def tokenizer_report(tokenizer: Any, texts: Iterable[str]) -> dict[str, int | float]:
    """Statistics of a tokenizer on texts, special tokens left out.

    Returns:
        `dict`: characters, words (between spaces), tokens, unknown_tokens, unknown_rate (their share of the tokens; a run
        of unknown characters is one token), characters_per_token, tokens_per_word. The rates are 0 if there is no text.
    """
    count = Counter(characters=0, words=0, tokens=0, unknown_tokens=0)
    texts = _strings(texts)
    while batch := list(itertools.islice(texts, 100)):
        count["characters"] += sum(map(len, batch))
        count["words"] += sum(len(text.split()) for text in batch)
        for ids in tokenizer(batch, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]:
            count["tokens"] += len(ids)
            count["unknown_tokens"] += ids.count(tokenizer.unk_token_id)
    return dict(
        count,
        unknown_rate=count["unknown_tokens"] / max(1, count["tokens"]),
        characters_per_token=count["characters"] / max(1, count["tokens"]),
        tokens_per_word=count["tokens"] / max(1, count["words"]),
    )


def _strings(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise TypeError("texts must be an iterable of strings, got one string; pass [text]")
    return map(_string, texts)


def _string(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"texts must hold strings, got {type(text).__name__}; pass (row['text'] for row in rows)")
    return text


def _nmt_nfkc(lowercase: bool) -> normalizers.Normalizer:
    """SentencePiece's `nmt_nfkc` and its removal of spaces; marks that NFKC joins or sorts, as NFKC has it."""
    after = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([
        normalizers.Replace(Regex(r"[\x{01}-\x{08}\x{0b}\x{0e}-\x{1f}\x{7f}\x{8f}\x{9f}]"), ""),
        normalizers.Replace(
            Regex(r"[\t\n\f\r\x{61c}\x{1680}\x{200b}\x{200c}\x{200e}\x{200f}\x{2028}\x{2029}\x{2581}\x{feff}\x{fffd}]"), " "
        ),
        normalizers.Replace("～", TILDE),
        normalizers.NFKC(),
        normalizers.Replace(TILDE, "～"),
        normalizers.Replace(Regex(" {2,}"), " "),
        normalizers.Replace(Regex(r"\A +| +\z"), ""),
        *after,
    ])  # fmt: skip


def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Words with ▁ before them, split where SentencePiece ends a piece: at digits, at punctuation, at Chinese or Japanese.

    Marks and the zero-width joiner belong to what is before them. 256 characters at most, for scripts without spaces.
    """
    chinese_or_japanese, marks = r"\p{Han}\p{Hiragana}\p{Katakana}ー", r"\p{M}\x{200d}"
    classes = (
        f"[{chinese_or_japanese}{marks}]",
        rf"[\p{{N}}{marks}]",
        rf"[\p{{L}}{marks}&&[^{chinese_or_japanese}]]",
        r"[^▁\p{N}\p{L}]",
    )
    runs = Regex("▁?(?:" + "|".join(f"{letters}{{1,256}}" for letters in classes) + ")")
    return pre_tokenizers.Sequence([pre_tokenizers.Metaspace("▁", "always"), pre_tokenizers.Split(runs, "isolated")])


def _cut_text(text: str) -> Iterator[str]:
    """The text in chunks of at most CUT characters, divided at spaces or line ends where there are any."""
    start = 0
    while start < len(text):
        end = start + CUT
        if end < len(text):
            space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
            end = space if space > start else end
        yield text[start:end]
        start = end


def count_words(texts: Iterator[str], normalizer: normalizers.Normalizer, show_progress: bool) -> Counter[str]:
    splitter, words = word_splitter(), Counter()
    for text in tqdm(texts, desc="Counting words", unit=" texts", delay=3, disable=not show_progress):
        for part in _cut_text(text):
            words.update([word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(part))])
    return words


def cover_alphabet(words: Counter[str], coverage: float) -> tuple[list[str], Counter[str]]:
    """The most frequent characters that make up the share `coverage` of the text, and the words without the others."""
    count = Counter()
    for word, n in words.items():
        for character in word:
            count[character] += n
    for end in ENDS:
        del count[end]
    ranked = sorted(count, key=lambda character: (character != "▁", -count[character], character))
    before = itertools.accumulate((count[character] for character in ranked), initial=0)
    enough = coverage * count.total()
    alphabet = [character for character, covered in zip(ranked, before, strict=False) if covered < enough]
    rare = [*ranked[len(alphabet) :], *ENDS]
    pattern = re.compile(f"[{''.join(map(re.escape, rare))}]+")
    covered_words = Counter()
    for word, n in words.items():
        for part in pattern.split(word):
            if part:
                covered_words[part] += n
    return alphabet, covered_words


def fit_pieces(words: Counter[str], characters: int, size: int, show_progress: bool) -> list[tuple[str, float]]:
    """At most `size` pieces and their log probabilities, the likeliest first."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    ends = max(map(_number_of_ends, words.values()))
    trainer = trainers.UnigramTrainer(
        vocab_size=size + ends + 1, special_tokens=["[UNK]"], unk_token="[UNK]", show_progress=show_progress
    )
    tokenizer.train_from_iterator(_repeat_words(words), trainer)
    pieces = [item for item in json.loads(tokenizer.to_str())["model"]["vocab"][1:] if item[0] not in ENDS]
    # Characters that the trainer lost come back in random order, each 0.0001 above the one before.
    lowest = min(score for _, score in pieces)
    lost = lowest + 0.0001 * characters
    pieces = [(piece, lowest if len(piece) == 1 and score < lost else score) for piece, score in pieces]
    return sorted(((piece, round(score, 6)) for piece, score in pieces), key=lambda item: (-item[1], item[0]))


def _repeat_words(words: Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted, some of them with an END.

    The trainer takes its first pieces from the strings that go on in two ways within the list of different words, so it
    would never find a frequent word that is no part of another. (SentencePiece has the punctuation after words for that.)
    What holds an END goes on in one way only, so it is never a piece.
    """
    for word, n in sorted(words.items()):
        ends = _number_of_ends(n)
        yield from (word + end for end in ENDS[:ends])
        for start in range(0, n - ends, CUT):
            yield "\n".join([word] * min(CUT, n - ends - start))


def _number_of_ends(n: int) -> int:
    return min(n.bit_length() // 2, len(ENDS))

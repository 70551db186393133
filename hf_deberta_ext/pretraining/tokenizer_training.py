# SPDX-License-Identifier: Apache-2.0
"""Train tokenizers in the two published forms: byte-level BPE (v1, RoBERTa) and unigram (v2, v3, mDeBERTa).

Special tokens have the published ids: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, and [MASK] last. Texts are read lazily and once.
"""

import io
import itertools
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tqdm.auto import tqdm

from ..tokenization import PreTrainedTokenizerFast, tokenizer_from_spm, tokenizer_from_vocab_and_merges

__all__ = ["tokenizer_report", "train_byte_level_bpe", "train_tokenizer", "train_unigram"]

FIRST_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
# The same special tokens as arguments of SentencePiece.
SPECIAL = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3)
SPECIAL |= dict(pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")
# Lines of at most 999 characters, split at spaces if possible: SentencePiece ignores lines longer than 4,192 bytes.
LINE = re.compile(r"\S.{0,998}(?!\S)|\S{1,999}")


def train_tokenizer(kind: str, texts: Iterable[str], vocab_size: int, **options: Any) -> PreTrainedTokenizerFast:
    """Train a tokenizer; `kind` is "byte-level-bpe" (`train_byte_level_bpe`) or "unigram" (`train_unigram`)."""
    kinds = {"byte-level-bpe": train_byte_level_bpe, "unigram": train_unigram}
    return kinds[kind](texts, vocab_size, **options)


def train_byte_level_bpe(
    texts: Iterable[str], vocab_size: int, *, model_max_length: int = 512, show_progress: bool = True
) -> PreTrainedTokenizerFast:
    """Train a tokenizer in the format of v1: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, the 256 bytes, merges, [MASK] last.

    The vocabulary contains all bytes, so that no text is unknown. The same texts give the same vocabulary. Merges must occur
    at least twice, so short texts give fewer than `vocab_size` tokens. Raises a ValueError if there is no text, or if
    `vocab_size` is below 261.
    """
    if vocab_size < 261:
        raise ValueError(f"vocab_size must be at least 261 (256 bytes and 5 special tokens), got {vocab_size}")
    texts = _strings(texts)
    first = next((text for text in texts if text.strip()), None)
    if first is None:
        raise ValueError("texts must contain text to train on, got only empty or blank texts")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        special_tokens=list(FIRST_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
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
    sentences: int = 300_000,
    model_max_length: int = 512,
    show_progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer in the format of v2, v3 and mDeBERTa: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, pieces, [MASK] last.

    SentencePiece trains the unigram language model (Kudo 2018, arXiv:1804.10959), with its normalization rule `nmt_nfkc`.
    A small corpus may yield fewer than `vocab_size` tokens. The same texts give the same vocabulary.

    Args:
        texts (iterable of `str`): training texts, read once, line by line.
        vocab_size (`int`): number of tokens, including special tokens and, with `byte_fallback`, 256 bytes.
        byte_fallback (`bool`, default False): encode a character that is not in the vocabulary as its UTF-8 bytes, <0x00>
            to <0xFF> (ids 4 to 259), instead of [UNK].
        lowercase (`bool`, default False): lowercase all texts, so that "The" and "the" are one piece.
        character_coverage (`float`, default 0.9995): share of all characters in the texts that the vocabulary covers, from
            0.98 to 1; the rarest characters are not in the vocabulary.
        sentences (`int`, default 300,000): maximum number of lines to train on, sampled at random with a fixed seed.
            SentencePiece needs about 20 bytes of memory per character.
        model_max_length (`int`, default 512): maximum input length, including [CLS] and [SEP].
        show_progress (`bool`, default True): show a progress bar while reading the texts.
    Raises:
        ValueError: if there is no text, or SentencePiece fails, for example if `vocab_size` is below the number of
            characters.
    """
    from sentencepiece import SentencePieceTrainer

    texts = tqdm(_strings(texts), desc="Reading text", unit=" texts", delay=5, disable=not show_progress)
    lines = _sample(_lines(texts, lowercase), sentences)
    if not lines:
        raise ValueError("texts must contain text to train on, got only empty or blank texts")
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - 1,
            hard_vocab_limit=False,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            normalization_rule_name="nmt_nfkc",
            minloglevel=2,
            **SPECIAL,
        )
    except (RuntimeError, OSError) as error:
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise ValueError(
                f"vocab_size must be at least {int(needed[1]) + 1} for the characters of this text, got {vocab_size}; raise "
                "vocab_size, or train a byte-level-bpe tokenizer, which needs only 261"
            ) from error
        raise ValueError(f"SentencePiece cannot train {vocab_size} tokens (with [MASK]) on this text: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "spm.model")
        file.write_bytes(model.getvalue())
        return tokenizer_from_spm(file, do_lower_case=lowercase, model_max_length=model_max_length)


def _lines(texts: Iterable[str], lowercase: bool) -> Iterator[str]:
    for text in texts:
        if lowercase:
            text = text.lower()
        for match in LINE.finditer(text):
            yield match[0]


def _sample(lines: Iterable[str], count: int) -> list[str]:
    """Sample up to `count` lines uniformly with a fixed seed, because SentencePiece's own sample differs in each process."""
    generator = random.Random(0)
    sample = []
    for number, line in enumerate(lines):
        if number < count:
            sample.append(line)
            continue
        place = generator.randint(0, number)
        if place < count:
            sample[place] = line
    return sample


def tokenizer_report(tokenizer: Any, texts: Iterable[str]) -> dict[str, int | float]:
    """Compute statistics of a tokenizer on texts, without special tokens.

    Returns:
        `dict`: characters, words (separated by spaces), tokens, unknown_tokens (a run of unknown characters is one token),
        unknown_rate (share of unknown tokens), characters_per_token, tokens_per_word. The rates are 0 if there is no text.
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
    """Return an iterator over the texts; raise a TypeError for a single string, which is also iterable."""
    if isinstance(texts, str):
        raise TypeError("texts must be an iterable of strings, got one string; pass [text]")
    return iter(texts)

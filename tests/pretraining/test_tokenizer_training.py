# SPDX-License-Identifier: Apache-2.0
"""Test trained tokenizers: ids, sizes, pieces compared with sentencepiece, and texts that are too short."""

import functools
from types import SimpleNamespace

import pytest
import sentencepiece
from hard_texts import NASTY, plain_lines
from transformers import AutoTokenizer

from hf_deberta_ext.pretraining.tokenizer_training import tokenizer_report, train_byte_level_bpe, train_unigram
from hf_deberta_ext.tokenization import check_tokenizer

LINES = plain_lines(1500)
TRAIN = {
    "bpe": lambda texts: train_byte_level_bpe(texts, 1000, show_progress=False),
    "unigram": lambda texts: train_unigram(texts, 1000, show_progress=False),
    "bytes": lambda texts: train_unigram(texts, 1000, byte_fallback=True, show_progress=False),
}


@pytest.fixture(scope="module")
def trained():
    """Return a function (kind) that trains a tokenizer once: "bpe", "unigram" or "bytes" (unigram, byte fallback)."""
    return functools.cache(lambda kind: TRAIN[kind](LINES))


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(ids(tokenizer, text))


def state(tokenizer):
    return tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
def test_special_ids_are_as_published_bytes_follow_and_mask_is_last(kind, trained):
    tokenizer = trained(kind)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 999]) == ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    assert sorted(tokenizer.get_vocab().values()) == list(range(1000)) and len(tokenizer) == 1000
    check_tokenizer(tokenizer, SimpleNamespace(vocab_size=1000, pad_token_id=0), needs_mask=True)
    if kind == "bytes":
        assert tokenizer.convert_ids_to_tokens(range(4, 260)) == [f"<0x{byte:02X}>" for byte in range(256)]
        assert ids(tokenizer, "ꙮ")[1:] == [4 + byte for byte in "ꙮ".encode()]


def test_a_lowercase_tokenizer_reads_both_cases_as_one_and_is_saved_so(tmp_path):
    tokenizer = train_unigram([*LINES, "ÉLAN. THE Fox!"], 1000, lowercase=True, show_progress=False)
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert pieces(each, "THE Fox élan") == pieces(each, "the fox ÉLAN") and "▁the" in pieces(each, "THE")
        assert each.unk_token_id not in ids(each, "THE Fox ÉLAN")


def test_report_counts_by_hand():
    tokenizer = train_unigram(["ab cd"], 100, character_coverage=1, show_progress=False)
    report = tokenizer_report(tokenizer, iter(["ab cd", "", "ab xyz", "z"]))
    tokens = [pieces(tokenizer, "ab"), pieces(tokenizer, "cd"), pieces(tokenizer, "ab"), ["▁", "[UNK]"], ["▁", "[UNK]"]]
    count = sum(map(len, tokens))
    assert report == dict(
        characters=12, words=5, tokens=count, unknown_tokens=2, unknown_rate=2 / count,
        characters_per_token=12 / count, tokens_per_word=count / 5,
    )  # fmt: skip
    assert tokenizer_report(tokenizer, [])["unknown_rate"] == 0


@pytest.mark.parametrize("train, size", [(train_byte_level_bpe, 261), (train_byte_level_bpe, 700), (train_unigram, 2003)])
def test_vocabularies_have_exactly_the_size_that_is_asked_for(train, size):
    tokenizer = train(LINES, size, show_progress=False)
    assert sorted(tokenizer.get_vocab().values()) == list(range(size)) and tokenizer.mask_token_id == size - 1


@pytest.mark.parametrize("text", ["a", "!", "aaaa", "👩‍👩", "the fox", "a\0b\0 \0"])
def test_a_text_too_short_for_the_size_gives_a_smaller_vocabulary(text):
    for train in (train_unigram, train_byte_level_bpe):
        vocabulary = train([text], 700, show_progress=False).get_vocab()
        assert len(vocabulary) < 700 and sorted(vocabulary.values()) == list(range(len(vocabulary)))
        assert vocabulary["[MASK]"] == len(vocabulary) - 1


def test_parts_of_one_document_train_the_same_as_their_lines():
    """Train on all parts, although SentencePiece ignores lines longer than 4,192 bytes."""
    assert sum(map(len, LINES)) > 20_000
    one, other = (train_unigram(texts, 700, show_progress=False) for texts in (LINES, ["\n".join(LINES)]))
    assert state(one) == state(other)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_pieces_and_ids_are_those_of_sentencepiece(byte_fallback, trained, tmp_path):
    prefix = str(tmp_path / "spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=prefix, vocab_size=999, byte_fallback=byte_fallback, minloglevel=2,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3,
    )  # fmt: skip
    spm = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    tokenizer = trained("bytes" if byte_fallback else "unigram")
    assert tokenizer.convert_ids_to_tokens(range(4, 999)) == [spm.id_to_piece(i) for i in range(4, 999)]
    for text in [*LINES, *NASTY.values()]:
        if "[" not in text:
            assert ids(tokenizer, text) == spm.encode(text), text


def test_more_lines_than_are_learned_from_are_drawn_from_all(trained):
    texts = [f"{word} {word}s" for word in "abcdefgh" for _ in range(1000)]
    small = train_unigram(iter(texts), 100, sentences=200, show_progress=False)
    assert state(small) == state(train_unigram(texts, 100, sentences=200, show_progress=False))
    assert {*"abcdefgh"} <= {*small.get_vocab()}


@pytest.mark.parametrize("train", [train_byte_level_bpe, train_unigram])
def test_empty_text_one_string_and_impossible_sizes_are_refused(train):
    for texts in ([], ["  ", "\n"]):
        with pytest.raises(ValueError, match="must contain text to train on"):
            train(texts, 300, show_progress=False)
    with pytest.raises(TypeError, match=r"iterable of strings, got one string; pass \[text\]"):
        train("some text", 300, show_progress=False)
    with pytest.raises(ValueError, match=r"vocab_size must be at least (261|\d\d) .*, got 11"):
        train(["the fox"], 11, show_progress=False)

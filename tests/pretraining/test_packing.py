# SPDX-License-Identifier: Apache-2.0
"""Test packing: five formats by hand, every token exactly once and in order, correct sentence labels, exact reports."""

import dataclasses
import random
from itertools import chain, pairwise

import datasets
import pytest
from tiny_models import tiny_tokenizer
from tokenizers import pre_tokenizers

from hf_deberta_ext.pretraining import packing
from hf_deberta_ext.pretraining.packing import MODES, PAIR_MODES, pack
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe


def word_tokenizer(documents):
    words = dict.fromkeys(word for text in documents for word in (text or "").split())
    return tiny_tokenizer(words, pre_tokenizers.WhitespaceSplit())


def from_documents(documents):
    return datasets.Dataset.from_dict({"text": documents}, features=datasets.Features(text=datasets.Value("string")))


def pack_words(documents, mode, max_length, **options):
    """Pack documents; return (examples as text, data set, report)."""
    tokenizer = word_tokenizer(documents)
    packed, report = pack(from_documents(documents), tokenizer, mode=mode, max_length=max_length, **options)
    return [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in packed["input_ids"]], packed, report


def numbered(sentence_lengths):
    """Return documents of distinct words from sentence lengths: [[2, 1]] gives ["W0 w1. W2."]."""
    documents, n = [], 0
    for lengths in sentence_lengths:
        sentences = []
        for length in lengths:
            words = [f"w{n + i}" for i in range(length)]
            n += length
            sentences.append(" ".join([words[0].capitalize(), *words[1:]]) + ".")
        documents.append(" ".join(sentences))
    return documents


def random_lengths(generator, documents=12, sentences=9, words=12):
    """Draw sentence lengths of documents, including single sentences, single words and long sentences."""
    corpus = []
    for _ in range(documents):
        longest = generator.choice([1, 3, words, 4 * words])
        corpus.append([generator.randint(1, longest) for _ in range(generator.randint(1, sentences))])
    return corpus


def segments(example):
    """Return the words between the special tokens."""
    parts = example.replace("[CLS]", "[SEP]").split("[SEP]")
    return [part.split() for part in parts if part.strip()]


def number(word):
    return int(word.strip("Ww."))


def test_full_sentences_cross_documents_with_a_separator():
    documents = ["A1 a2 a3. A4 a5.", "B1 b2. B3 b4 b5 b6."]
    expected = ["[CLS] A1 a2 a3. A4 a5. [SEP] B1 b2. [SEP]", "[CLS] B3 b4 b5 b6. [SEP]"]
    assert pack_words(documents, "full_sentences", 10)[0] == expected
    # With one token less, B1 b2. starts a row, without separator.
    expected = ["[CLS] A1 a2 a3. A4 a5. [SEP]", "[CLS] B1 b2. B3 b4 b5 b6. [SEP]"]
    assert pack_words(documents, "full_sentences", 9)[0] == expected


def test_segment_pairs_fill_the_row_and_part_between_any_sentences():
    documents = ["A1 a2. B1. C1 c2. D1 d2 d3."]
    seen = {tuple(pack_words(documents, "segment_pair", 8, sentence_pairs="consecutive", seed=s)[0]) for s in range(12)}
    # D is the only sentence: split in the middle.
    last = "[CLS] D1 [SEP] d2 d3. [SEP]"
    assert seen == {("[CLS] A1 a2. [SEP] B1. C1 c2. [SEP]", last), ("[CLS] A1 a2. B1. [SEP] C1 c2. [SEP]", last)}


def test_sentence_pairs_are_single_sentences_and_a_third_left_over_joins():
    documents = ["A1 a2. B1 b2. C1 c2. D1. E1."]
    examples, packed, _ = pack_words(documents, "sentence_pair", 12, sentence_pairs="consecutive")
    assert examples == ["[CLS] A1 a2. [SEP] B1 b2. [SEP]", "[CLS] C1 c2. [SEP] D1. E1. [SEP]"]
    assert packed["token_type_ids"][:] == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert packed["sentence_labels"][:] == [0, 0]
    # Split in the middle if it does not fit.
    examples, *_ = pack_words(["A1 a2 a3. B1 b2. C1 c2 c3 c4 c5."], "sentence_pair", 8, sentence_pairs="consecutive")
    assert examples == ["[CLS] A1 a2 a3. [SEP] B1 b2. [SEP]", "[CLS] C1 c2 [SEP] c3 c4 c5. [SEP]"]


@pytest.mark.parametrize("mode", PAIR_MODES)
@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        (["A1 a2 a3 a4 a5.", "B1 b2"], ["[CLS] A1 a2 [SEP] a3 a4 a5. [SEP]", "[CLS] B1 [SEP] b2 [SEP]"]),
        (["A1 a2 a3. B1 b2. C1."], ["[CLS] A1 [SEP] a2 a3. [SEP]", "[CLS] B1 b2. [SEP] C1. [SEP]"]),
        (["A1 a2 a3 a4 a5. C1."], ["[CLS] A1 a2 [SEP] a3 a4 [SEP]", "[CLS] a5. [SEP] C1. [SEP]"]),
    ],
    ids=["one sentence is parted", "a token takes a sentence of the pair before", "a token takes a token"],
)
def test_pairs_of_few_sentences(documents, expected, mode):
    assert pack_words(documents, mode, 8, sentence_pairs="consecutive")[0] == expected


def test_nsp_exchanges_the_second_segments_of_two_documents():
    documents = ["A1 a2. B1 b2.", "C1 c2. D1 d2."]
    seen = {}
    for seed in range(16):
        examples, packed, report = pack_words(documents, "sentence_pair", 8, seed=seed)
        assert report.negative_pairs == sum(packed["sentence_labels"])
        seen[tuple(packed["sentence_labels"])] = examples
    assert seen == {
        (0, 0): ["[CLS] A1 a2. [SEP] B1 b2. [SEP]", "[CLS] C1 c2. [SEP] D1 d2. [SEP]"],
        (1, 1): ["[CLS] A1 a2. [SEP] D1 d2. [SEP]", "[CLS] C1 c2. [SEP] B1 b2. [SEP]"],
    }


def test_best_fit_puts_each_document_into_the_fullest_row_that_has_room():
    # With [CLS] and [SEP]: 6, 3, 5, 4 tokens. 6 opens a row; 5 opens another; 4 joins the 6 (exactly); 3 joins the 5.
    documents = ["A1 a2 a3 a4.", "B1.", "C1 c2 c3.", "D1 d2."]
    examples, packed, report = pack_words(documents, "best_fit", 10)
    assert examples == ["[CLS] A1 a2 a3 a4. [SEP] [CLS] D1 d2. [SEP]", "[CLS] B1. [SEP] [CLS] C1 c2 c3. [SEP]"]
    assert packed["document_ids"][:] == [[1] * 6 + [2] * 4, [1] * 3 + [2] * 5]
    assert report.fill == pytest.approx(18 / 20)


def test_sentence_starts_count_characters_leave_blanks_before_them_and_are_the_same_in_parts(monkeypatch):
    text = "Ünï 😀 ça.  Žb.\n\n\n最後。次の"
    starts = packing.sentence_starts(text, "ja")
    # The last of two spaces belongs to the word, line ends belong to the previous sentence.
    assert [text[a:b] for a, b in pairwise([0, *starts, len(text)])] == ["Ünï 😀 ça. ", " Žb.\n\n\n", "最後。", "次の"]
    assert packing.sentence_starts("\n\n A. \n", "en") == []
    # sentencex does not know de-AT, and split after the number.
    text = "Am 3. Mai kam er. Es regnete."
    assert packing.sentence_starts(text, "de-AT") == packing.sentence_starts(text, "de") == [17]
    text = " ".join(numbered([[3, 1, 7, 2, 5] * 20]))
    expected = packing.sentence_starts(text, "en")
    assert len(expected) == 99
    for size in (40, 61, 100):
        monkeypatch.setattr(packing, "SPLIT_TOGETHER", size)
        assert packing.sentence_starts(text, "en") == expected
    # Shorter than a sentence: there is no start inside.
    monkeypatch.setattr(packing, "SPLIT_TOGETHER", 3)
    assert set(packing.sentence_starts(text, "en")) <= set(expected)


@pytest.mark.parametrize("max_length", [8, 13, 32, 64])
@pytest.mark.parametrize("mode, pairs", [*[(m, "nsp") for m in MODES], *[(m, "consecutive") for m in PAIR_MODES]])
def test_every_token_comes_once_in_order_and_cuts_are_at_sentence_ends(mode, pairs, max_length):
    generator = random.Random(f"{mode} {max_length}")
    room = max_length - (3 if mode in PAIR_MODES else 2)
    for seed in range(3):
        lengths = random_lengths(generator)
        documents = numbered(lengths)
        examples, packed, report = pack_words(
            documents, mode, max_length, sentence_pairs=pairs, seed=seed, batch_size=generator.choice([5, 1000])
        )
        assert max(map(len, packed["input_ids"])) <= max_length
        document_of = [d for d, sentences in enumerate(lengths) for _ in range(sum(sentences))]
        sentence_of, starts, sizes = [], set(), [size for sentences in lengths for size in sentences]
        for s, size in enumerate(sizes):
            starts.add(len(sentence_of))
            sentence_of += [s] * size
        parts = [[[number(word) for word in segment] for segment in segments(example)] for example in examples]
        for part in (part for row in parts for part in row):
            assert part == list(range(part[0], part[-1] + 1)), "a segment is a run of tokens"
            assert document_of[part[0]] == document_of[part[-1]], "of one document"
            if mode not in PAIR_MODES and part[0] not in starts:
                assert sizes[sentence_of[part[0]]] > room, "only a sentence longer than a row is cut"
        seen = [token for row in parts for part in row for token in part]
        dropped = [d for d, sentences in enumerate(lengths) if mode in PAIR_MODES and sum(sentences) == 1]
        assert sorted(seen) == [i for i, d in enumerate(document_of) if d not in dropped], "each token once"
        if mode.endswith("sentences") or (pairs == "consecutive" and mode in PAIR_MODES):
            assert seen == sorted(seen), "in the order of the corpus"
        if mode in PAIR_MODES:
            for (A, B), label, types in zip(parts, packed["sentence_labels"], packed["token_type_ids"], strict=True):
                assert label == (document_of[A[0]] != document_of[B[0]])
                assert label or B[0] == A[-1] + 1
                assert types == [0] * (len(A) + 2) + [1] * (len(B) + 1)
        assert report.documents == len(documents) and report.short_documents == len(dropped)
        assert report.tokens == len(document_of) == report.packed_tokens + report.dropped_tokens
        assert report.packed_tokens == len(seen) and report.examples == len(packed)
        assert report.mean_length == pytest.approx(sum(map(len, packed["input_ids"])) / len(packed))


@pytest.mark.parametrize("mode", MODES)
def test_non_ascii_and_multi_line_documents_come_back_to_the_byte(mode):
    documents = [
        "Ünï 😀 wörld.\nNext line! «Ça va?»\n\n\tNew paragraph… e\u0301 end",
        "最後の文書。これは二番目です。\r\n三番目。",
        "  leading. Trailing.  \n",
        "Привет, мир. Как дела? \u200d👩‍👩‍👧 family. " * 5,
    ]
    tokenizer = train_byte_level_bpe(documents, 300, model_max_length=8, show_progress=False)
    for max_length in (8, 24, 512):
        options = dict(mode=mode, max_length=max_length, sentence_pairs="consecutive")
        packed, _ = pack(from_documents(documents), tokenizer, **options)
        special = set(tokenizer.all_special_ids)
        got = [id_ for ids in packed["input_ids"] for id_ in ids if id_ not in special]
        expected = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in documents]
        if mode == "best_fit":
            assert sorted(got) == sorted(list(chain(*expected)))
        else:
            assert got == list(chain(*expected))
            assert tokenizer.decode(got, clean_up_tokenization_spaces=False) == "".join(documents)


@pytest.mark.parametrize("mode", PAIR_MODES)
@pytest.mark.parametrize("max_length", [24, 128])
def test_about_half_of_the_pairs_are_negatives_of_the_lengths_of_positives(mode, max_length):
    """Compare lengths: otherwise, the label could be inferred from the length."""
    generator = random.Random(0)
    lengths = [[generator.randint(3, 20) for _ in range(generator.randint(1, 20))] for _ in range(600)]
    _, packed, report = pack_words(numbered(lengths), mode, max_length)
    n = len(packed)
    # Five standard deviations of n fair draws, and one pair in fifty without a partner.
    assert 0.5 * n - 2.5 * n**0.5 - 0.02 * n < report.negative_pairs < 0.5 * n + 2.5 * n**0.5
    for measure in (len, lambda types: types.count(0)) if (mode, max_length) == ("segment_pair", 128) else ():
        sizes = {label: [] for label in (0, 1)}
        for types, label in zip(packed["token_type_ids"], packed["sentence_labels"], strict=True):
            sizes[label].append(measure(types))
        means = [sum(s) / len(s) for s in sizes.values()]
        deviation = (sum((size - means[0]) ** 2 for size in sizes[0]) / len(sizes[0])) ** 0.5
        assert abs(means[0] - means[1]) < 3 * deviation * (1 / len(sizes[0]) + 1 / len(sizes[1])) ** 0.5


def test_empty_and_short_documents_are_dropped_and_counted():
    documents = ["", None, " \n\t ", "A1", "B1 b2.", "C1 c2 c3."]
    _, packed, report = pack_words(documents, "full_sentences", 8, min_tokens=3)
    assert len(packed) == 1
    assert dataclasses.asdict(report) == {
        "documents": 6, "empty_documents": 3, "short_documents": 2, "tokens": 6, "dropped_tokens": 3,
        "packed_tokens": 3, "negative_pairs": 0, "examples": 1, "max_length": 8, "mean_length": 5.0, "fill": 5 / 8,
    }  # fmt: skip
    assert report.summary() == (
        "6 documents (3 empty and 2 short ones dropped), 6 tokens (3 dropped) -> 1 examples of at most 8 tokens, "
        "5.0 on average (62.5% filled)"
    )
    # A pair needs two tokens.
    assert pack_words(documents, "sentence_pair", 8)[2].short_documents == 1


@pytest.mark.parametrize("mode", MODES)
def test_batches_without_a_kept_document_are_counted_and_leave_no_row(mode):
    documents = ["", "A1 a2.", None, " ", "B1 b2."]
    _, packed, report = pack_words(documents, mode, 8, batch_size=1)
    assert (report.documents, report.empty_documents, report.examples, len(packed)) == (5, 3, 2, 2)
    assert all(len(ids) >= 4 for ids in packed["input_ids"]) and "counts" not in packed.column_names
    tokenizer = train_byte_level_bpe(["some text"], 261, show_progress=False)
    _, report = pack(from_documents(["ab", "\n\n"]), tokenizer, mode=mode, max_length=8)
    assert (report.tokens, report.dropped_tokens, report.packed_tokens, report.empty_documents) == (4, 2, 2, 1)


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_and_streaming_give_the_same_examples_and_report(mode):
    documents = ["", *numbered(random_lengths(random.Random(4), documents=7))]
    examples, packed, report = pack_words(documents, mode, 16, batch_size=4)
    parallel, _, same_report = pack_words(documents, mode, 16, batch_size=4, num_proc=2)
    assert parallel == examples and same_report == report
    corpus = from_documents(documents).to_iterable_dataset()
    stream, report = pack(corpus, word_tokenizer(documents), mode=mode, max_length=16, batch_size=4)
    assert report is None and stream.column_names == packed.column_names and list(stream) == list(packed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(mode="sentences"), f"mode must be one of {', '.join(MODES)}, got 'sentences'"),
        (dict(mode="segment_pair", sentence_pairs="sop"), "sentence_pairs must be nsp or consecutive, got 'sop'"),
        (dict(max_length=7), "max_length must be at least 8, including special tokens, got 7"),
        (dict(min_tokens=5), "empty corpus: all 3 documents are empty or shorter than min_tokens = 5"),
    ],
)
def test_wrong_arguments_are_reported(arguments, message):
    with pytest.raises(ValueError, match=message):
        pack_words(["", "A b.", None], **(dict(mode="best_fit", max_length=8) | arguments))
    tokenizer = word_tokenizer(["A b."])
    tokenizer.sep_token = None
    with pytest.raises(ValueError, match=r"must have \[CLS\] and \[SEP\], got cls_token .\[CLS\]. and sep_token None"):
        pack(from_documents(["A b."]), tokenizer, mode="best_fit", max_length=8)


def test_the_cache_holds_for_one_release_and_for_all_seeds_where_nothing_is_drawn(tmp_path, monkeypatch):
    """Check the cache key: datasets identifies a function by name, and would not notice changed code."""
    corpus = from_documents(["a b c d"]).map(lambda row: row, cache_file_name=str(tmp_path / "a.arrow"))

    def file_of(version, **options):
        monkeypatch.setattr(packing, "__version__", version)
        return pack(corpus, word_tokenizer(["a b c d"]), max_length=8, **options)[0].cache_files[0]["filename"]

    assert file_of("1", mode="best_fit") == file_of("1", mode="best_fit", seed=1) != file_of("2", mode="best_fit")
    assert file_of("1", mode="segment_pair") != file_of("1", mode="segment_pair", seed=1)

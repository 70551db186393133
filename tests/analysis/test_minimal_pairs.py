# SPDX-License-Identifier: Apache-2.0
"""Minimal pairs: accuracies and frequencies by hand, the whole command, the within-word variant, and errors."""

import json
import math

import pytest
import torch

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.analysis import minimal_pairs
from hf_deberta_ext.analysis.minimal_pairs import MinimalPair
from hf_deberta_ext.analysis.sentence_scoring import pseudo_log_likelihood
from hf_deberta_ext.commands import main
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe, train_unigram

SENTENCES = ["The dogs bark.", "The dogs barks.", "A cat sleeps, doesn't it?", "A cat sleep, doesn't it?"]
ROWS = [
    dict(sentence_good=SENTENCES[0], sentence_bad=SENTENCES[1], UID="plural", linguistics_term="agreement"),
    dict(sentence_good=SENTENCES[2], sentence_bad=SENTENCES[3], UID="singular", linguistics_term="agreement"),
    dict(sentence_good="bark dogs the.", sentence_bad=SENTENCES[0], UID="order", linguistics_term="word order"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_unigram([*SENTENCES, "bark dogs the."] * 20, 70, show_progress=False)


@pytest.fixture
def files(tmp_path, tokenizer, tiny_config, shake):
    """Write folders "mlm" and "rtd" with tiny models, pairs.jsonl and text.txt."""
    config = tiny_config(vocab_size=len(tokenizer))
    for name, model_class in (("mlm", DebertaExtForMaskedLM), ("rtd", DebertaExtForReplacedTokenDetection)):
        shake(model_class(config)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    (tmp_path / "text.txt").write_text("the dogs bark. the dogs sleep.\n", encoding="utf-8")
    return tmp_path


def test_ties_count_one_half_paradigms_alike_and_thinning_keeps_all_parts():
    pairs = [MinimalPair("a", "b", "first", "x"), MinimalPair("c", "d", "first", "x"), MinimalPair("e", "e", "second", "x")]
    pairs.append(MinimalPair("d", "c", "third", "y"))
    found = minimal_pairs.pair_accuracies(pairs, dict(a=2.0, b=1.0, c=0.0, d=1.0, e=0.0))
    assert found["paradigms"] == dict(first=0.5, second=0.5, third=1.0) and found["ties"] == 1
    assert found["phenomena"] == dict(x=0.5, y=1.0) and found["accuracy"] == pytest.approx(2 / 3)
    # A phenomenon is its paradigm where that is missing.
    rows = [("row 1", dict(sentence_good="a", sentence_bad="b", linguistics_term="x"))]
    assert minimal_pairs.pairs_of_rows(rows, "file") == [MinimalPair("a", "b", "x", "x")]
    pairs = [MinimalPair(str(n), "", str(n // 10), "many") for n in range(40)] + [MinimalPair("x", "", "few", "few")]
    assert [pair.good for pair in minimal_pairs.thin_out(pairs, 4)] == ["0", "10", "20", "30", "x"]


def test_word_frequencies_by_hand():
    scores = minimal_pairs.word_frequency_scores(["The dogs bark.", "the cat"], ["The cat.", ". cat the", "mouse"])
    # Counts: "the" 2, dogs, bark, "." and cat 1; 6 words, 5 of them different, and one count for all unseen words.
    assert scores["The cat."] == pytest.approx(math.log(3 / 12) + 2 * math.log(2 / 12))
    assert scores["mouse"] == pytest.approx(math.log(1 / 12))
    # The same words in another order are a tie, in spite of rounding.
    assert scores[". cat the"] == scores["The cat."]


@pytest.mark.parametrize("kind", ["unigram", "byte_level"])
def test_within_word_masks_the_later_tokens_of_the_word(kind, tokenizer, tiny_config, shake):
    """Kauf and Ivanova 2023, token by token; words are split at spaces, and punctuation is separate."""
    if kind == "byte_level":
        tokenizer = train_byte_level_bpe(SENTENCES * 20, 280, show_progress=False)
    model = shake(DebertaExtForMaskedLM(tiny_config(vocab_size=len(tokenizer))))
    text, spans = "A cat sleeps, doesn't it?", [(0, 1), (2, 5), (6, 12), (12, 13), (14, 21), (22, 24), (24, 25)]
    encoded = tokenizer(text, return_offsets_mapping=True)
    ids, total, masked_together = torch.tensor(encoded["input_ids"]), 0.0, 0
    # By the last character, as the first may be the preceding space; a single space belongs to the next word.
    word = [next((n for n, (a, b) in enumerate(spans) if a < end <= b), None) for _, end in encoded["offset_mapping"]]
    word = [word[n + 1] if word[n] is None and n else word[n] for n in range(len(ids) - 1)]
    for place in range(1, len(ids) - 1):
        later = [n for n in range(place, len(ids) - 1) if word[n] == word[place]]
        rows = ids[None].clone()
        rows[0, later] = tokenizer.mask_token_id
        masked_together += len(later)
        with torch.no_grad():
            total += model(rows).logits[0, place].log_softmax(-1)[ids[place]].item()
    assert masked_together > len(ids)
    assert pseudo_log_likelihood(model, tokenizer, text, within_word=True).total == pytest.approx(total, rel=1e-4)
    assert pseudo_log_likelihood(model, tokenizer, text).total != pytest.approx(total, rel=1e-4)


def test_the_command_scores_as_the_functions_and_keeps_its_results(files, tokenizer, capsys):
    (files / "mlm" / "README.md").write_text("# A card\n\n## Minimal pairs\n\nold\n\n## Limits\n\nNone.\n", encoding="utf-8")
    (files / "folder").mkdir()
    pairs = (files / "pairs.jsonl").rename(files / "folder" / "pairs.jsonl").parent
    words = ["eval", "--model", str(files / "mlm"), "--pairs", str(pairs), "--scoring", "pll", "within_word", "--card"]
    words += ["--frequency_text", str(files / "text.txt"), "--output_dir", str(files / "out")]
    assert main(words) == 0
    printed, report = capsys.readouterr().out, json.loads((files / "out" / "minimal_pairs.json").read_text(encoding="utf-8"))
    model = DebertaExtForMaskedLM.from_pretrained(files / "mlm")
    for name, within_word in (("pll", False), ("within_word", True)):
        scores = [
            [pseudo_log_likelihood(model, tokenizer, row[f"sentence_{side}"], within_word=within_word).total for row in ROWS]
            for side in ("good", "bad")
        ]
        expected = [float(good > bad) for good, bad in zip(*scores, strict=True)]
        assert [*report["results"][name]["paradigms"].values()] == expected
    # "barks" and "sleeps" were not seen, and the third pair has the same words.
    assert report["results"]["word frequency"]["paradigms"] == dict(plural=1.0, singular=0.0, order=0.5)
    assert "| agreement | 2 |" in printed and "| mean over paradigms | 3 |" in printed and "text.txt" in printed
    card = (files / "mlm" / "README.md").read_text(encoding="utf-8")
    assert card.count("## Minimal pairs") == 1 and "old" not in card and "## Limits\n\nNone." in card
    assert (files / "out" / "minimal_pairs.md").read_text(encoding="utf-8") in card and "](minimal_pairs.png)" in card
    assert (files / "mlm" / "minimal_pairs.png").read_bytes()[:4] == b"\x89PNG"


def test_a_discriminator_is_scored_in_one_pass(files, capsys):
    words = ["eval", "--model", str(files / "rtd"), "--pairs", str(files / "pairs.jsonl"), "--scoring", "rtd"]
    assert main([*words, "--output_dir", str(files / "out"), "--max_pairs_per_phenomenon", "1"]) == 0
    assert "| mean over paradigms | 2 |" in (printed := capsys.readouterr().out) and "--frequency_text was not" in printed


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"--model": "rtd"}, "use --scoring rtd for a discriminator"),
        ({"--model": "adapter"}, "adapter, an adapter of user/base; merge the adapter first"),
        ({"--scoring": "rtd"}, "has no head for replaced token detection"),
        ({"--frequency_text": "typo.txt"}, "typo.txt"),
        ({"--pairs": "text.txt"}, "text.txt"),
        ({"--pairs": "wrong.jsonl"}, "wrong.jsonl must have a sentence in the column sentence_bad, got None"),
        ({"--pairs": "nothing.jsonl"}, "nothing.jsonl"),
        ({"--max_pairs_per_phenomenon": "0"}, "--max_pairs_per_phenomenon must be at least 1, got 0"),
        ({"--card": None}, "--card needs a README.md"),
    ],
    ids=str,
)
def test_mistakes_are_named(flags, message, files, capsys):
    (files / "wrong.jsonl").write_text('{"sentence_good": "a"}\n', encoding="utf-8")
    (files / "adapter").mkdir()
    (files / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "user/base"}', encoding="utf-8")
    given = {"--model": "mlm", "--pairs": "pairs.jsonl", "--output_dir": "out"} | flags
    paths = ("--model", "--pairs", "--output_dir")
    words = [str(files / value) if name in paths else value for name, value in given.items()]
    assert main(["eval", *(word for pair in zip(given, words, strict=True) for word in pair if word is not None)]) == 2
    assert message in capsys.readouterr().err and not (files / "out").exists()

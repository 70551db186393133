# SPDX-License-Identifier: Apache-2.0
"""Statistics of masks: sequences of generated text, and the report of all maskers."""

import json
import random
import sys

import pytest
from scripts import module_of

example = module_of("masking_statistics")
MASKERS = ["token", "word", "ngram", "span", "official token", "official ngram"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Return a file of 400 lines of generated words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(300)]
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n\n".join(" ".join(rng.choices(words, k=20)) + "." for _ in range(400)), encoding="utf-8")
    return path


def run(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["masking_statistics.py", *map(str, arguments)])
        example.main()


@pytest.fixture(scope="module", params=["byte-level-bpe", "unigram"])
def report(texts, tmp_path_factory, request):
    """Run the example on the file; return its report and its folder."""
    folder = tmp_path_factory.mktemp("statistics")
    sizes = ["--vocab_size", 400, "--tokens", 5000, "--length", 256, "--epochs", 12]
    run("--texts", texts, "--tokenizer", request.param, *sizes, "--output_dir", folder)
    return json.loads((folder / "masking_statistics.json").read_text(encoding="utf-8")), folder


def test_sequences_are_full_and_the_rest_is_left_out():
    class Tokenizer:
        cls_token_id, sep_token_id = 1, 2

        def __call__(self, text, **options):
            return {"input_ids": [int(word) for word in text.split()]}

    sequences = example.full_sequences(["10 11 12", "13 14", "15 16 17"], Tokenizer(), 100, 5)
    assert sequences.tolist() == [[1, 10, 11, 12, 2], [1, 13, 14, 15, 2]]
    assert example.full_sequences(["10 11 12", "13 14 15"], Tokenizer(), 4, 5).tolist() == [[1, 10, 11, 12, 2]]


def test_the_report_has_rates_shares_lengths_and_places_of_all_maskers(report):
    report, _ = report
    assert [*report["maskers"]] == MASKERS
    assert report["tokens"] == report["sequences"] * 254 <= 5000 < report["tokens"] + 254
    for name, row in report["maskers"].items():
        assert row["rate"] == pytest.approx(0.15, abs=0.01), name
        assert (row["mask"], row["random"], row["kept"]) == pytest.approx((0.8, 0.1, 0.1), abs=0.05)
        assert row["mask"] + row["random"] + row["kept"] == pytest.approx(1)
    rows = report["maskers"]
    assert [len(rows[name]["lengths_in_words"]) for name in MASKERS] == [1, 1, 3, 10, 1, 3]
    assert rows["token"]["mean_length"] == 1 < rows["ngram"]["mean_length"] < 2 < rows["span"]["mean_length"] < 4
    for name, row in rows.items():
        assert len(row["coverage"]) == 16 and len(row["masked_by_position"]) == 254
        draws = report["sequences"] * report["epochs"]
        assert sum(row["masked_by_position"]) / draws / 254 == pytest.approx(row["rate"])
        assert (row["p_value"] < 1e-4) == name.startswith("official"), name
    assert rows["official token"]["coverage"][-1] == 0 < rows["token"]["coverage"][-1]

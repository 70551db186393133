# SPDX-License-Identifier: Apache-2.0
"""Statistics of masks: counts by hand on generated text, output files and rejected arguments."""

import json
import random
import sys

import pytest
import torch
from scripts import module_of

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")
pytest.importorskip("tqdm")

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


def test_words_of_spans_are_counted_by_hand():
    unit_ids = torch.tensor([[-1, 0, 0, 1, 2, 2, 3, -1, 4], [0, 1, 1, 2, 3, 4, 5, -1, -1]])
    span_ids = torch.tensor([[0, 1, 1, 1, 0, 0, 2, 0, 3], [1, 1, 1, 0, 2, 2, 2, 0, 0]])
    assert example.words_of_spans(unit_ids, span_ids).tolist() == [2, 1, 1, 2, 3]


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


def test_the_figure_is_drawn_and_the_table_printed(report, texts, tmp_path, capsys):
    _, folder = report
    assert (folder / "masking_statistics.png").read_bytes()[:4] == b"\x89PNG"
    sizes = ["--vocab_size", 400, "--tokens", 300, "--length", 64, "--epochs", 1]
    run("--texts", texts, *sizes, "--output_dir", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("248 tokens in 4 sequences of 64")
    assert [line[:16].strip() for line in lines[1:8]] == ["masker", *MASKERS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", 100], "a sequence of --length 512 needs 510 tokens, got 100"),
        (["--rate", 15], "pass a share, not a percentage"),
        (["--epochs", 0], "--epochs at least 1"),
        (["--length", 10], "--length must be at least 18"),
        (["--tokenizer", "no_such_folder/here"], "no_such_folder/here"),
        (["--texts", "none.txt"], "none.txt"),
        (["--vocab_size", 10], "vocab_size must be at least 261"),
    ],
)
def test_what_cannot_be_done_is_an_error_of_one_line(texts, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit:
        run("--texts", texts, "--vocab_size", 400, *arguments, "--output_dir", tmp_path)
    assert exit.value.code == 2 and message in capsys.readouterr().err

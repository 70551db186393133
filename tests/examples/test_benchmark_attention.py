# SPDX-License-Identifier: Apache-2.0
"""The benchmark with its smallest sizes: output files, and ratios that match the times."""

import contextlib
import csv
import functools
import io
import sys

import pytest
import torch
from scripts import module_of

WAYS = ("padded", "unpadded", "packed")
benchmark = module_of("benchmark_attention")
measuring = benchmark.measuring
TINY = ["--preset", "v3-xsmall", "--layers", "1", "--vocab_size", "100", "--repeats", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run all parts; return the folder, the printed text, and the rows of each table."""
    folder = tmp_path_factory.mktemp("benchmark")
    texts = folder / "texts.txt"
    texts.write_text("\n".join("word " * n for n in (1, 5, 8, 3)) + "\n\n", encoding="utf-8")
    flags = ["--shapes", "1x24", "--batches", "2", "--lengths_from", texts, "--output_dir", folder / "out"]
    flags += ["--backends", "auto", "eager", "triton", "--parts", "attention", "model", "padded"]
    flags += ["--peers", "flashdeberta"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(sys, "argv", ["benchmark_attention.py", *map(str, [*TINY, *flags])])
        benchmark.main()
    rows = {}
    for part in ("attention", "model", "padded"):
        with (folder / "out" / f"{part}.csv").open(newline="", encoding="utf-8") as file:
            rows[part] = list(csv.DictReader(file))
    return folder / "out", printed.getvalue(), rows


def test_ratios_are_of_calls_of_the_same_turn_with_their_median_and_outer_tenths():
    assert measuring.spread([3.0, 1.0, 2.0, 5.0, 4.0]) == pytest.approx([3.0, 1.4, 4.6])
    times = {"transformers": [4.0, 6.0, 40.0], "auto": [2.0, 2.0, 10.0], "BERT + SDPA": [1.0, 2.0, 4.0]}
    compared = benchmark.compare("auto", times)
    # 4/2, 6/2, 40/10 and 2/1, 2/2, 10/4.
    assert [compared[f"speedup{end}"] for end in ("", "_p10", "_p90")] == pytest.approx([3.0, 2.2, 3.8])
    assert compared["seconds"] == compared["over_floor"] == 2.0


def test_useful_operations_by_hand():
    config = benchmark.DebertaExtConfig.from_preset("v3-xsmall", num_hidden_layers=3)
    h, N, attention = 384, 10, 4 * 384 * 100
    count = functools.partial(benchmark.useful_flops, config, [N, N])
    assert count("inference", whole_model=False, positions=False) == 2 * attention
    # c2p and p2c: N queries and N keys, times the 2N - 1 offsets.
    assert count("training", whole_model=False, positions=True) == 3.5 * 2 * (attention + 2 * 2 * h * N * 19)
    linear = 2 * N * 2 * (4 * h * h + 2 * h * 1536)
    assert count("training", whole_model=True, positions=False) == 3 * (3.5 * 2 * attention + 3 * linear)


def test_a_run_leaves_tables_and_figures_whose_ratios_follow_from_the_times(finished):
    folder, printed, rows = finished
    assert f"torch {torch.__version__}" in (folder / "environment.txt").read_text(encoding="utf-8")
    backends = ["auto", "eager", "triton"]
    sides_of = dict(
        attention=["transformers", *backends, "flashdeberta", "SDPA without positions"],
        model=["transformers", *backends, "flashdeberta", "BERT + SDPA"],
        padded=["transformers", *(f"auto, {way}" for way in WAYS), "flashdeberta", "BERT + SDPA"],
    )
    assert list(rows["model"][0]) == list(benchmark.COLUMNS)
    for part, sides in sides_of.items():
        assert (folder / f"{part}.png").stat().st_size > 0 and f"\n{part}\n" in printed
        assert [row["side"] for row in rows[part]] == 2 * sides
        for mode in ("inference", "training"):
            measured = [row for row in rows[part] if row["mode"] == mode and not row["skipped"]]
            seconds = {row["side"]: float(row["seconds"]) for row in measured}
            *_, floor = seconds
            for row in measured:
                own = seconds[row["side"]]
                assert float(row["speedup"]) == pytest.approx(seconds["transformers"] / own)
                assert float(row["over_floor"]) == pytest.approx(own / seconds[floor])
                assert float(row["speedup_p10"]) <= float(row["speedup"]) <= float(row["speedup_p90"])
                assert int(row["extra_bytes"]) > 0 and float(row["tflops"]) > 0


def test_a_run_says_what_it_skipped_compared_and_counted(finished):
    _, printed, rows = finished
    for part in ("attention", "model"):
        skipped = [row for row in rows[part] if row["skipped"]]
        assert {row["side"] for row in skipped} == {"triton", "flashdeberta"} and "does not support" in skipped[0]["skipped"]
    assert "not measured: triton, training" in printed
    for row in rows["attention"]:
        if row["side"] == "eager":
            assert row["backend"] == "eager" and float(row["bytes_over_eager"]) == 1
    assert "padded: 2 batches of 32 texts" in printed
    # 3, 8, 12 and 6 tokens.
    assert 0.2 < float(rows["padded"][0]["padding"]) < 0.7

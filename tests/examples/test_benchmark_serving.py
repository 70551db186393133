# SPDX-License-Identifier: Apache-2.0
"""examples/benchmarks/benchmark_serving.py with a model of one layer."""

import json

import pytest
from scripts import module_of

serving = module_of("benchmark_serving")
STOCK, OURS, ONNX = "transformers' DeBERTa", "this package", "ONNX Runtime, ours"
SIZES = ["--preset", "v3-xsmall", "--layers", "1", "--vocab_size", "100", "--repeats", "1", "--threads", "1"]


def test_sides_of_the_same_weights_agree_and_each_has_times(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serving, "measured_memory", lambda name, args, folder: (2_000_000, 3.0))
    texts = tmp_path / "texts.txt"
    texts.write_text("one two three four\nfive six\n")
    output = tmp_path / "out"
    flags = ["--shapes", "2x9", "--lengths_from", str(texts), "--batches", "1", "--output_dir", str(output)]
    sides = [STOCK, OURS, "this package, int8", ONNX, "BERT, SDPA", "OpenVINO, ours"]
    monkeypatch.setitem(serving.SIDES, "OpenVINO, ours", missing)
    serving.main([*SIZES, *flags, "--sides", *sides])
    rows = {row["side"]: row for row in json.loads((output / "serving.json").read_text())["rows"]}
    for name in sides[:-1]:
        assert rows[name]["2x9"]["seconds"] > 0 and rows[name]["32 texts"]["speedup"] > 0
    assert rows[OURS]["difference"] < 1e-5 and rows[ONNX]["difference"] < 1e-5 < rows["this package, int8"]["difference"]
    assert "difference" not in rows["BERT, SDPA"]
    assert "not measured: no openvino here" in capsys.readouterr().out


def missing(args, folder):
    raise ImportError("no openvino here")


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(tmp_path):
    args = serving.parse_args([*SIZES, "--shapes", "1x8", "--output_dir", str(tmp_path)])
    memory, seconds = serving.measured_memory(OURS, args, tmp_path)
    assert memory > 50e6 and seconds > 0

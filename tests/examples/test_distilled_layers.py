# SPDX-License-Identifier: Apache-2.0
"""The comparison of students of several depths: table, figure, and a second run that only reports."""

import random

import pytest
from scripts import module_of

from hf_deberta_ext import DebertaExtForMaskedLM
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

benchmark = module_of("distilled_layers")


@pytest.mark.slow
def test_students_are_compared_with_the_teacher_and_a_second_run_trains_nothing(tmp_path, tiny_config):
    draws = random.Random(0)
    words = [("bad", "poor"), ("good", "fine")]
    for name, count in (("train", 64), ("dev", 24)):
        rows = [f"a {draws.choice(words[row % 2])} film,{row % 2}\n" for row in range(count)]
        (tmp_path / f"{name}.csv").write_text("".join(["text,label\n", *rows]), encoding="utf-8")
    tokenizer = train_byte_level_bpe(["a good fine bad poor film"] * 5, vocab_size=270)
    tokenizer.save_pretrained(tmp_path / "model")
    DebertaExtForMaskedLM(tiny_config(vocab_size=len(tokenizer), num_hidden_layers=2)).save_pretrained(tmp_path / "model")
    output = tmp_path / "layers"

    def compare(*layers):
        flags = ["--layers", *layers, "--seeds", 1, 2, "--num_train_epochs", 1, "--repeats", 2, "--texts", 3]
        flags += ["--teacher", tmp_path / "model", "--student", tmp_path / "model", "--output_dir", output]
        flags += ["--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "dev.csv"]
        benchmark.main([*map(str, flags)])

    compare(2)
    files = {file: file.stat().st_mtime_ns for file in output.rglob("*.safetensors")}
    compare(1, 2)

    table = (output / "table.md").read_text("utf-8").splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    names = ["majority class", "TF-IDF + logistic regression", "teacher", "1 layers", "2 layers"]
    assert [row[0] for row in rows] == names
    assert all("±" in cell for row in rows[-2:] for cell in row[1:3])
    assert float(rows[-2][-1].split()[0]) <= float(rows[-1][-1].split()[0])
    assert (output / "layers.png").is_file()
    assert files and all(file.stat().st_mtime_ns == time for file, time in files.items())
    assert {part.name for part in (output / "layers-1").iterdir()} >= {"student", "without_teacher", "teacher"}

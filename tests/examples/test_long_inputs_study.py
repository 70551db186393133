# SPDX-License-Identifier: Apache-2.0
"""The study of long inputs masks the same tokens at each length and reports its measurements."""

import json

import pytest
from scripts import module_of

from hf_deberta_ext import DebertaExtForMaskedLM

long_inputs = module_of("long_inputs")
MODEL = "examples/models/deberta-ext-small-en"


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "texts.jsonl"
    words = [f"The miller of house {number} sold {number} sacks of flour to the town." for number in range(40)]
    file.write_text("\n".join(json.dumps({"text": " ".join(words[part:])}) for part in (0, 3)), encoding="utf-8")
    return file


def test_losses_of_the_same_tokens_are_compared(text_file, tmp_path):
    flags = ["--texts", str(text_file), "--lengths", "40", "120", "40", "--window", "30", "--draws", "1", "--repeats", "1"]
    long_inputs.main(["--models", f"small={MODEL}", *flags, "--output_dir", str(tmp_path / "study")])
    rows = json.loads((tmp_path / "study/results.json").read_text(encoding="utf-8"))
    assert [row["model"] for row in rows] == ["small"] * 3 + ["small, no buckets"] * 3
    short, long, again = rows[:3]
    assert short["losses"] == pytest.approx(again["losses"], rel=1e-5) and short["masked"] == long["masked"]
    assert abs(long["difference"]) > 1e-3 and 0 <= long["p"] <= 1
    table = (tmp_path / "study/table.md").read_text(encoding="utf-8")
    assert len(table.splitlines()) == 2 + len(rows) and (tmp_path / "study/long_inputs.png").stat().st_size > 1000


def test_absolute_positions_that_end_before_the_input_are_filled_and_extended(text_file, tmp_path):
    long_inputs.main(["--extend", MODEL, "600", "--output_dir", str(tmp_path / "longer")])
    assert DebertaExtForMaskedLM.from_pretrained(tmp_path / "longer").config.max_position_embeddings == 600
    flags = ["--texts", str(text_file), "--lengths", "550", "--draws", "1", "--repeats", "1"]
    models = [f"as it is={MODEL}", f"longer={tmp_path / 'longer'}"]
    long_inputs.main(["--models", *models, *flags, "--output_dir", str(tmp_path / "study")])
    rows = json.loads((tmp_path / "study/results.json").read_text(encoding="utf-8"))
    assert [row["length"] for row in rows] == [550] * 4 and all(row["loss"] < 20 for row in rows)

# SPDX-License-Identifier: Apache-2.0
"""Curves and model cards of pre-training runs."""

import pytest

from hf_deberta_ext.pretraining.report import evaluation_table, plot_objectives, write_model_card

pytest.importorskip("matplotlib")
METRICS = dict(
    eval_mlm_loss=2.0, eval_mlm_perplexity=7.389, eval_mlm_accuracy=0.5, eval_mlm_targets=1234, eval_sop_loss=0.3,
    eval_sop_accuracy=0.9, eval_sop_targets=10,
)  # fmt: skip


def test_table_has_a_row_for_each_objective():
    lines = evaluation_table(METRICS, ["mlm", "sop"]).splitlines()
    assert lines[2] == "| masked-language modelling | 2.0000 | 7.39 | 0.5000 | 1,234 |"
    assert lines[3] == "| sentence order prediction | 0.3000 |  | 0.9000 | 10 |"


def test_card_is_valid_and_says_what_was_trained(tmp_path):
    from huggingface_hub import ModelCard

    facts = {"data": ["a.txt", "b.txt"], "masking": {"unit": "span", "rate": 0.15}, "note": "a|b\nc", "fill": 0.123456}
    file = write_model_card(
        tmp_path,
        metrics=METRICS,
        objectives=dict(mlm=1.0, sop=0.5),
        facts=facts,
        parameters=2_500_000,
        base_model="org/a",
    )
    card = ModelCard.load(file)
    assert card.data.base_model == "org/a" and card.data.eval_results[0].metric_value == 7.389
    rows = [
        "| objectives | masked-language modelling (weight 1), sentence order prediction (weight 0.5) |",
        "| data | a.txt, b.txt |",
        "| masking | unit span, rate 0.15 |",
        "| note | a\\|b c |",
        "| fill | 0.1235 |",
    ]
    for text in ("trained further from org/a", "2.5 million parameters", *rows):
        assert text in card.text, text


def test_card_names_a_local_base_without_its_place(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    common = dict(metrics=METRICS, objectives=dict(mlm=1.0), facts={}, parameters=1)
    text = write_model_card(tmp_path, base_model=str(base), **common).read_text(encoding="utf-8")
    assert "trained further from base," in text and str(base) not in text and "base_model" not in text
    assert "from random weights" in write_model_card(tmp_path, **common).read_text(encoding="utf-8")


def test_each_objective_has_a_panel(tmp_path):
    history = [{"step": 1, "mlm_loss": 3.0, "sop_loss": 0.7}, {"step": 2, "eval_mlm_loss": 2.0, "eval_sop_loss": 0.6}]
    file = plot_objectives(history, tmp_path / "curves.png", ["mlm", "sop"])
    assert file.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="logged any of sbo_loss"):
        plot_objectives(history, tmp_path / "curves.png", ["mlm", "sbo"])

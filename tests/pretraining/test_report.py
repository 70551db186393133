# SPDX-License-Identifier: Apache-2.0
"""Test curves and model cards of pre-training runs."""

from types import SimpleNamespace

import pytest

from hf_deberta_ext.analysis.results import learned_nothing
from hf_deberta_ext.pretraining import (
    DataArguments,
    MaskingArguments,
    MaskingOptions,
    ModelArguments,
    PretrainingArguments,
)
from hf_deberta_ext.pretraining.report import plot_replaced_tokens
from hf_deberta_ext.pretraining.run_masked_lm import MaskedLMRun

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("loss", "recall", "expected"),
    [
        # A run that ended so was not reported.
        (0.402, 0.0, True),
        (0.407, 0.2, True),
        (0.402, 0.2, False),
        # It ranks replaced tokens first, but below the threshold of 1/2.
        (0.3, 0.0, False),
    ],
)
def test_a_collapsed_discriminator_is_told_by_recall_and_loss(loss, recall, expected):
    metrics = dict(eval_discriminator_loss=loss, eval_discriminator_recall=recall, eval_discriminator_guess_loss=0.408)
    assert learned_nothing(metrics) == expected


def test_flags_and_files_of_a_run_become_facts_of_its_card(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "held-out.txt").touch()
    (tmp_path / "all_results.json").write_text('{"train_runtime": 12.5, "train_resumed_at_step": 50}', encoding="utf-8")
    texts = dict(train_data=["org/texts", str(tmp_path)], validation_data=[str(tmp_path / "held-out.txt")])
    args = PretrainingArguments(str(tmp_path), use_cpu=True, seed=7)
    collator, state = SimpleNamespace(options=MaskingOptions()), SimpleNamespace(global_step=5)
    trainer = SimpleNamespace(args=args, data_collator=collator, state=state, divergence=lambda: None)

    def facts_of(**flags):
        run = MaskedLMRun(ModelArguments(**flags), DataArguments(**texts, card_language="de"), MaskingArguments(), args)
        return run.facts(trainer, 99.5, {"objectives": "tiny"}, {})

    facts = facts_of(license="mit", model=str(tmp_path))
    assert (facts.language, facts.license, facts.datasets) == (["de"], "mit", ["org/texts"])
    assert (facts.base_model, facts.base_model_id, facts.from_scratch) == (tmp_path.name, None, False)
    assert facts.hardware["seconds of training, from step 50 on"] == 12.5
    assert facts.hardware["seconds of all stages"] == 99.5
    assert (facts.measured_on, facts.seeds) == ("held-out.txt", [7]) and str(tmp_path) not in str(facts)
    assert [*facts.training][:3] == ["objectives", "data", "packing"] and facts.training["steps"] == 5
    # The total time of an interrupted run is unknown.
    args.resume_from_checkpoint = "last"
    assert "seconds of all stages" not in facts_of().hardware and facts_of().from_scratch


def test_the_discriminators_curve_has_the_loss_of_a_constant_guess(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("hf_deberta_ext.pretraining.report.plot_curves", lambda *_, **options: drawn.update(options))
    plot_replaced_tokens([{"step": step, "eval_discriminator_guess_loss": step / 10} for step in (3, 4)], tmp_path / "a.png")
    assert drawn["baselines"] == {"eval_discriminator_loss": {"constant guess": 0.4}}

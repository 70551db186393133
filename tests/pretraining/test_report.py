# SPDX-License-Identifier: Apache-2.0
"""Test the curves of replaced token detection, and how a discriminator that learned nothing is recognised."""

import pytest

from hf_deberta_ext.analysis.results import learned_nothing
from hf_deberta_ext.pretraining.report import plot_replaced_tokens


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


def test_the_discriminators_curve_has_the_loss_of_a_constant_guess(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("hf_deberta_ext.pretraining.report.plot_curves", lambda *_, **options: drawn.update(options))
    plot_replaced_tokens([{"step": step, "eval_discriminator_guess_loss": step / 10} for step in (3, 4)], tmp_path / "a.png")
    assert drawn["baselines"] == {"eval_discriminator_loss": {"constant guess": 0.4}}

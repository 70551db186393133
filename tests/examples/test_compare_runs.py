# SPDX-License-Identifier: Apache-2.0
"""The table and the figure of several runs."""

import json

import pytest
from scripts import module_of

compare_runs = module_of("compare_runs")


def finished(folder, *values):
    folder.mkdir()
    history = [{"step": 10 * (i + 1), "eval_mlm_perplexity": value, "eval_loss": 1.0} for i, value in enumerate(values)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}), encoding="utf-8")
    return folder


def test_table_gives_last_values_and_the_spread_over_seeds(tmp_path, capsys):
    a, b, c = (finished(tmp_path / name, 9.0, last) for name, last in dict(a=4.0, b=6.0, c=7.0).items())
    runs = [f"EMD={a}", f"EMD={b}", f"no EMD={c}"]
    output = ["--output_dir", str(tmp_path / "out")]
    compare_runs.main(["--runs", *runs, "--metrics", "eval_mlm_perplexity", *output])
    printed = capsys.readouterr().out
    assert "| EMD | 2 | 20 | 5 ± 1.4 |" in printed and "| no EMD | 1 | 20 | 7 | +2 (one seed: noise unknown) |" in printed
    assert (tmp_path / "out" / "comparison.md").read_text(encoding="utf-8") == printed
    assert (tmp_path / "out" / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    summary = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert summary["EMD"]["eval_mlm_perplexity"]["values"] == [4.0, 6.0]


def test_runs_of_replaced_token_detection_get_the_figure_of_their_embeddings(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(compare_runs, "plot_embedding_similarity", lambda values, path: drawn.update({path.name: values}))
    logs = {
        "gdes": [{"step": 1, "eval_generator_similarity": 0.9, "eval_discriminator_similarity": 0.8, "eval_loss": 1.0},
                 {"step": 2, "eval_generator_similarity": 0.4, "eval_discriminator_similarity": 0.3, "eval_loss": 1.0}],
        "mlm": [{"step": 2, "eval_loss": 1.0}],
    }  # fmt: skip
    for name, history in logs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"log_history": history}), encoding="utf-8")
    runs = [f"{name}={tmp_path / name}" for name in logs]
    compare_runs.main(["--runs", *runs, "--output_dir", str(tmp_path / "out")])
    assert drawn == {"embedding_similarity.png": {"gdes": {"generator": 0.4, "discriminator": 0.3}}}


def test_losses_of_different_objectives_are_not_ranked(tmp_path):
    """Previously, losses of different objectives were listed together, as if the lower one were better."""
    for name, part in dict(mlm="mlm", rtd="discriminator").items():
        log = [{"step": 1, "eval_loss": 1.0, f"eval_{part}_loss": 1.0, "eval_similar_accuracy": 0.5}]
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"log_history": log}), encoding="utf-8")
    given = ["--runs", *(f"{name}={tmp_path / name}" for name in ("mlm", "rtd")), "--output_dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"mlm: eval_mlm_loss; rtd: .*choose different --metrics"):
        compare_runs.main(given)
    compare_runs.main([*given, "--metrics", "eval_similar_accuracy"])

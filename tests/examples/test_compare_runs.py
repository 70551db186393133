# SPDX-License-Identifier: Apache-2.0
"""The table and the figure of several runs."""

import json

import pytest
from scripts import module_of

compare_runs = module_of("compare_runs")


def finished(folder, *history):
    """Write the folder of a run with these evaluations; return it."""
    folder.mkdir()
    entries = [{"step": 10 * number, "eval_loss": 1.0} | entry for number, entry in enumerate(history, 1)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": entries}), encoding="utf-8")
    return folder


def test_table_gives_last_values_and_the_spread_over_seeds(tmp_path, capsys):
    runs = []
    for number, (name, last) in enumerate([("EMD", 4.0), ("EMD", 6.0), ("no EMD", 7.0)]):
        folder = finished(tmp_path / str(number), {"eval_mlm_perplexity": 9.0}, {"eval_mlm_perplexity": last})
        runs.append(f"{name}={folder}")
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
    first = {"eval_generator_similarity": 0.9, "eval_discriminator_similarity": 0.8}
    last = {"eval_generator_similarity": 0.4, "eval_discriminator_similarity": 0.3}
    gdes, mlm = finished(tmp_path / "gdes", first, last), finished(tmp_path / "mlm", {})
    compare_runs.main(["--runs", f"gdes={gdes}", f"mlm={mlm}", "--output_dir", str(tmp_path / "out")])
    assert drawn == {"embedding_similarity.png": {"gdes": {"generator": 0.4, "discriminator": 0.3}}}


def test_losses_of_different_objectives_are_not_ranked(tmp_path):
    """Previously, losses of different objectives were listed together, as if the lower one were better."""
    mlm = finished(tmp_path / "mlm", {"eval_mlm_loss": 1.0, "eval_similar_accuracy": 0.5})
    rtd = finished(tmp_path / "rtd", {"eval_discriminator_loss": 1.0, "eval_similar_accuracy": 0.5})
    given = ["--runs", f"mlm={mlm}", f"rtd={rtd}", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"mlm: eval_mlm_loss; rtd: .*choose different --metrics"):
        compare_runs.main(given)
    compare_runs.main([*given, "--metrics", "eval_similar_accuracy"])

# SPDX-License-Identifier: Apache-2.0
"""The distillation of the small model: pairs of an evaluation-free text, four losses, and an exact resume."""

import importlib.util
import json

import pytest
import torch
from scripts import ROOT

SMALL = ROOT / "examples" / "models" / "deberta-ext-small-en"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("distil", ROOT / "examples" / "models" / "distil_small_english.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = dict(SENTENCES=150, NEIGHBOURS=100, RANDOM=5, NEXT=6, EDITED=30, PASSAGES=8, STEPS=4, FALLING=2)
    for name, size in sizes.items():
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(module, "ROWS", dict(pairs=4, embeddings=4, sentences=4, passages=2))
    return module


@pytest.mark.slow
def test_pairs_leave_out_evaluation_rows_and_an_interrupted_training_resumes_exactly(script, tmp_path, monkeypatch):
    corpus, evaluation = tmp_path / "corpus", tmp_path / "glue" / "task"
    corpus.joinpath("train").mkdir(parents=True)
    evaluation.mkdir(parents=True)
    guides = [file.read_text("utf-8") for file in sorted((ROOT / "examples" / "guides").glob("*.md"))]
    texts = [" ".join(part.split()) for guide in guides for part in guide.split("\n\n")]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    corpus.joinpath("train", "wikipedia_en.jsonl").write_text(rows, "utf-8")
    sentences = [sentence for text in texts for sentence in script.sentences_of(text)]
    evaluated = next(sentence for sentence in sentences if script.runs_of_words(sentence))
    evaluation.joinpath("validation.jsonl").write_text(json.dumps({"sentence": evaluated}), "utf-8")

    script.write_pairs(corpus, SMALL, tmp_path / "pairs", evaluation.parent)

    pairs = [json.loads(line) for line in (tmp_path / "pairs" / "pairs.jsonl").open(encoding="utf-8")]
    kinds = {"neighbour", "random", "next", "edited", "edited neighbour", "passage"}
    assert {pair["kind"] for pair in pairs} == kinds
    assert all(-5 <= pair["label"] <= 5.001 for pair in pairs)
    assert evaluated not in json.loads((tmp_path / "pairs" / "sentences.json").read_text("utf-8"))

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    save, saved_steps = script.save, []

    def save_every_step(*args):
        save(*args)
        saved_steps.append(len(args[4]))
        if args[0] == stopped and saved_steps[-1] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(script, "SAVE_STEPS", 2)
    monkeypatch.setattr(script, "save", save_every_step)
    script.train(corpus, tmp_path / "pairs", SMALL, whole)
    with pytest.raises(KeyboardInterrupt):
        script.train(corpus, tmp_path / "pairs", SMALL, stopped)
    script.train(corpus, tmp_path / "pairs", SMALL, stopped)

    assert saved_steps == [2, 4, 2, 4]
    first, second = (torch.load(folder / "state.pt") for folder in (whole, stopped))
    assert first["log"] == second["log"]
    assert {*first["log"][0]} == {"pairs", "embeddings", "sentences", "passages"}
    for name, weights in first["student"].items():
        assert torch.equal(weights, second["student"][name]), name

# SPDX-License-Identifier: Apache-2.0
"""The main job with its smallest sizes: output files, resuming, and rejected arguments."""

import json
import shutil
import sys
from pathlib import Path

import docstring_corpus
import pytest
from fine_tuning_scripts import save_model
from scripts import module_of
from transformers import pipeline

quickstart = module_of("quickstart")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Save a tiny pre-trained model without dropout; return its folder."""
    texts = ["Good and bad things, of which there are many."] * 3
    return save_model(tmp_path_factory.mktemp("model"), texts, 280, num_hidden_layers=1)


@pytest.fixture(scope="module")
def own_csv(tmp_path_factory):
    # Each text appears twice; one label appears once.
    rows = [f"{word} {number},{word}" for number in range(15) for word in ("good", "bad")] * 2 + ["odd,neither"]
    path = tmp_path_factory.mktemp("data") / "my.csv"
    path.write_text("\n".join(["review,stars", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(model, own_csv, tmp_path_factory):
    """Return the arguments and the folder of a run on a user's own file."""
    folder = tmp_path_factory.mktemp("quickstart") / "out"
    arguments = ["--model", str(model), "--train_file", str(own_csv), "--text_columns", "review", "--label_column", "stars"]
    arguments += ["--short", "--output_dir", str(folder)]
    quickstart.main(arguments)
    return arguments, folder


def test_a_run_on_own_texts_leaves_everything_that_it_promises_and_again_trains_nothing_twice(finished, capsys):
    arguments, folder = finished
    table = (folder / "table.md").read_text(encoding="utf-8")
    for name in ("majority class", "TF-IDF + logistic regression", *quickstart.NAMES):
        assert f"| {name} |" in table
    assert (folder / "results.png").stat().st_size > 10_000
    read = [(folder / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("train", "validation")]
    assert [len(part) for part in read] == [49, 12] and not {*read[0]} & {*read[1]} and "neither" in str(read[0])
    classifier = folder / "pre-trained" / "seed-1"
    text = (classifier / "README.md").read_text(encoding="utf-8")
    assert not any(place in text for place in (str(folder), sys.prefix))
    assert pipeline("text-classification", str(classifier))("good 3")[0]["label"] in ("good", "bad", "neither")
    configs = [json.loads((folder / name / "seed-1" / "config.json").read_text()) for name in quickstart.NAMES]
    assert all(config["hidden_dropout_prob"] == 0.1 for config in configs)
    weights = folder / "pre-trained" / "seed-1" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    quickstart.main(arguments)
    assert weights.stat().st_mtime_ns == before and "random weights" in capsys.readouterr().out


def test_folders_of_others_and_of_other_commands_are_left_alone(finished, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    arguments = finished[0]
    for flags, message in (
        ([*arguments, "--output_dir", str(tmp_path)], "not empty"),
        (["--from_text", "a.txt", *arguments[2:]], "is not empty (made with --model"),
    ):
        with pytest.raises(SystemExit) as exit:
            quickstart.main(flags)
        assert exit.value.code == 2 and message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow(always=True)
def test_from_a_text_to_a_classifier_of_docstrings(own_csv, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Text {n} of many short ones, and not the last." for n in range(300)), encoding="utf-8")
    folder = tmp_path / "out"
    quickstart.main(["--from_text", str(text), "--short", "--output_dir", str(folder)])
    config = json.loads((folder / "pre-trained" / "seed-1" / "config.json").read_text())
    assert {*config["label2id"]} == {*docstring_corpus.PACKAGES} and config["hidden_size"] == 192
    assert (folder / "pretrained" / "README.md").is_file()


def test_a_classifier_that_needs_this_package_is_refused(finished, tmp_path):
    """A model whose code imports hf_deberta_ext must not load, even if the package is installed."""
    broken = shutil.copytree(finished[1] / "pre-trained" / "seed-1", tmp_path / "broken")
    code = broken / "modeling_deberta_ext.py"
    code.write_text(code.read_text(encoding="utf-8") + "\nimport hf_deberta_ext\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"did not load in a fresh process(.|\n)*hf_deberta_ext"):
        quickstart.check_reload(broken, ["good"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--validation_file", "a.csv"], "--validation_file needs --train_file"),
        (["--from_text", "a.txt", "--model", "b"], "mutually exclusive"),
        (["--train_file", "missing.csv"], "the file missing.csv does not exist"),
        (["--train_file", "{csv}", "--label_column", "star", "--from_text", "{csv}"], "must have the columns 'star'"),
        (["--train_file", "{csv}", "--sedes", "1", "--model", "{model}"], "--sedes"),
    ],
)
def test_wrong_flags_are_refused_in_a_line(flags, message, own_csv, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        quickstart.main([flag.format(csv=own_csv, model=model) for flag in flags])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
    assert not [*Path().rglob("*.safetensors")]

# SPDX-License-Identifier: Apache-2.0
"""Card of a fine-tuning run and its metadata: languages, licence, sets, hardware and resumed runs."""

import json
import os

import datasets
import pytest
from huggingface_hub import ModelCard
from toy_task import read, run, run_classification


def card_of(folder):
    return ModelCard.load(folder / "README.md")


def texts(count):
    labels = [n % 3 for n in range(count)]
    return datasets.Dataset.from_list([dict(premise="the film was good", hypothesis="so", label=label) for label in labels])


def run_texts(model, folder, *argv, **given):
    return run_classification(model, folder, "--do_train", "--do_eval", *argv, max_steps=1, **given)


def test_a_run_gives_licence_languages_and_hardware(folder_of, tmp_path):
    folder = tmp_path / "run"
    argv = ("--do_train", "--do_eval", "--license", "mit", "--card_language", "en", "de", "--second_set")
    run(folder_of("bert"), folder, *argv, max_steps=1)
    card = card_of(folder)
    assert (card.data.license, card.data.language, card.data.metrics) == ("mit", ["en", "de"], ["accuracy"])
    assert [result.metric_name for result in card.data.eval_results] == [None, "mm_accuracy"]
    assert card.data.base_model is None and card.data.datasets is None
    for text in ("| device | CPU (", "| processes | 1 |", "| precision | float32 parameters |", "| seconds of training | "):
        assert text in card.text, text
    assert "hf_deberta_ext 0." in card.text and "seed 42" in card.text and str(tmp_path) not in card.content
    assert f"{os.cpu_count()} cores, threads of a process: " in card.text


def test_the_card_names_the_step_of_the_best_model(folder_of, tmp_path):
    """Bug: the figure ended at the score of the last step, but the card had the score of an earlier step."""
    argv = ("--do_train", "--do_eval", "--load_best_model_at_end")
    each = dict(eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1)
    best = dict(metric_for_best_model="loss", greater_is_better=True)
    run(folder_of("ours"), tmp_path / "run", *argv, max_steps=2, **each, **best)
    assert "| steps | 2, weights of step 1 |" in card_of(tmp_path / "run").text


@pytest.mark.parametrize("argv", [(), ("--seeds", "1", "2")], ids=["one run", "two seeds"])
def test_a_run_that_diverged_says_so_in_its_last_line_report_figure_and_card(argv, folder_of, tmp_path, capsys, caplog):
    """Bug: a run with a loss of 1e9 was reported as a success."""
    folder = tmp_path / "run"
    run(folder_of("bert"), folder, "--do_train", "--do_eval", *argv, learning_rate=100, max_grad_norm=0, max_steps=12)
    assert "The training diverged" in caplog.text
    assert "training diverged" in capsys.readouterr().out.strip().splitlines()[-1]
    for part in (folder, *folder.glob("seed-*")):
        assert "> **Warning.** " in card_of(part).text, part
        assert "diverged: its loss is " in read(part, "run_report.json")["card"]["diverged"]


def test_tasks_of_the_hub_have_its_data_set_languages_and_splits(folder_of, tmp_path, monkeypatch):
    def read_hub(name, config, splits, **download):
        return {ours: texts(9 if ours == "train" else 3) for ours in splits}

    monkeypatch.setattr("hf_deberta_ext.finetuning.tasks.text_classification.read_hub", read_hub)
    folder = tmp_path / "run"
    languages = ("--train_language", "en", "--eval_languages", "de", "en")
    run_texts(folder_of("bert"), folder, *languages, task_name="xnli")
    card = card_of(folder)
    assert card.data.datasets == ["facebook/xnli"] and card.data.language == ["en", "de"]
    found = {(result.metric_type, result.dataset_config, result.dataset_split) for result in card.data.eval_results}
    assert found == {("accuracy", "en", "validation"), ("accuracy", "de", "validation")}
    assert '"text_pair": "Another text."' in card.text and "(ISO codes): en, de." in card.text


def test_results_on_the_data_of_the_training_are_named(folder_of, tmp_path):
    texts(6).to_json(tmp_path / "rows.jsonl")
    texts(3).to_json(tmp_path / "other.jsonl")
    for name, said in (("rows", True), ("other", False)):
        files = dict(train_file=tmp_path / "rows.jsonl", validation_file=f"x={tmp_path}/{name}.jsonl")
        run_texts(folder_of("bert"), tmp_path / name, **files)
        assert ("the scores do not measure generalisation" in card_of(tmp_path / name).text) == said


def test_seeds_have_a_card_over_all_of_them(folder_of, tmp_path):
    folder = tmp_path / "run"
    argv = ("--do_train", "--do_eval", "--seeds", 1, 2, "--second_set", "--license", "mit")
    summary = run(folder_of("ours"), folder, *argv, max_steps=1)
    card = card_of(folder)
    assert card.data.license == "mit" and card.data.metrics == ["accuracy"]
    main, other = card.data.eval_results
    assert main.metric_value == round(summary["eval_accuracy"]["mean"], 4)
    assert (main.metric_name, other.metric_name) == ("accuracy (mean of 2 seeds)", "mm_accuracy (mean of 2 seeds)")
    assert "trust_remote_code=True" in card.text and 'repo = "run/seed-1"' in card.text
    assert "## Hardware and time" in card.text and "seconds of training" not in card.text and "one run" not in card.text
    assert "with seed 2" in card_of(folder / "seed-2").text


@pytest.mark.parametrize("argv", [(), ("--seeds", "1", "2")], ids=["one run", "two seeds"])
def test_majority_class_and_tfidf_stand_beside_the_score(argv, folder_of, tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.axes.Axes.axhline", lambda axes, value, *, label, **style: drawn.append((label, value)))
    for name, labels in (("train", "bbbbbgg"), ("dev", "bbgg")):
        rows = [json.dumps(dict(text=f"{dict(b='awful', g='great')[label]} film", label=label)) for label in labels]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    files = ("--train_file", str(tmp_path / "train.jsonl"), "--validation_file", str(tmp_path / "dev.jsonl"))
    run_texts(folder_of("bert"), tmp_path / "run", *files, *argv)
    # Two of four rows have the majority label: F1 2/3 and 0. One word determines the label.
    found = read(tmp_path / "run", "all_results.json")["baselines"]
    assert found["majority class"] == pytest.approx(dict(accuracy=0.5, macro_f1=1 / 3))
    assert found["TF-IDF + logistic regression"] == dict(accuracy=1.0, macro_f1=1.0)
    text = card_of(tmp_path / "run").text
    columns = "metric | mean | standard deviation | seed 1 | seed 2" if argv else "metric | value"
    assert f"| {columns} | majority class | TF-IDF + logistic regression |" in text
    [line] = [line for line in text.splitlines() if line.startswith(("| accuracy |", "| eval_accuracy |"))]
    assert line.endswith(" | 0.5000 | 1.0000 |") and "| training labels | b 5, g 2 |" in text
    printed = capsys.readouterr().out
    assert "labels: b 5, g 2" in printed and "majority class: accuracy 0.5000, macro_f1 0.3333" in printed
    assert drawn[-2:] == [("majority class (0.5)", 0.5), ("TF-IDF + logistic regression (1)", 1.0)]

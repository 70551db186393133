# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end with its smallest sizes: what it leaves behind, that it repeats, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from scripts import module_of
from transformers import TrainerControl, TrainerState

from hf_deberta_ext.publishing.card import write_run_card
from hf_deberta_ext.publishing.card_checks import card_problems, missing_metadata

pytest.importorskip("matplotlib")
pytest.importorskip("accelerate")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "quickstart.py"
quickstart = module_of("quickstart")
SMALLEST = ["--short", "--pretrain_steps", "6", "--finetune_epochs", "1", "--finetune_seeds", "3"]


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments):
    """The exit code, what was printed, and what was complained about."""
    process = start(*arguments)
    printed, complaints = process.communicate()
    return process.returncode, printed, complaints


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two runs side by side with one seed: the folder of the first, what it printed, and the results of both."""
    folders = [tmp_path_factory.mktemp("quickstart") for _ in range(2)]
    processes = [start("--output_dir", folder, *SMALLEST) for folder in folders]
    printed, complaints = zip(*[process.communicate() for process in processes], strict=True)
    assert [process.returncode for process in processes] == [0, 0], complaints[0][-3000:] + complaints[1][-3000:]
    results = [json.loads((folder / "all_results.json").read_text(encoding="utf-8")) for folder in folders]
    return folders[0], printed[0], results


@pytest.mark.criterion("B1.3")
def test_help_names_every_control():
    code, printed, _ = run("--help")
    controls = ("output_dir", "short", "seed", "pretrain_steps", "finetune_epochs", "finetune_seeds", "max_minutes")
    assert code == 0 and all(f"--{name}" in printed for name in controls)


@pytest.mark.criterion("A16.3")
@pytest.mark.slow
def test_short_run_leaves_everything_that_it_promises_and_repeats_with_its_seed(finished):
    folder, printed, (first, second) = finished
    assert first["results"] == second["results"] and first["timings"] != second["timings"]
    for name in ("model.safetensors", "tokenizer.json", "loss_curves.png", "modeling_deberta_ext.py"):
        assert (folder / name).stat().st_size > 0
    assert (folder / "pretrained" / "model.safetensors").exists()
    results = first["results"]
    assert first["status"] == "finished" and results["reload_check"]["passed"]
    assert results["majority_accuracy"] == pytest.approx(0.1)
    assert [len(values) for values in results["test_accuracy"].values()] == [1, 1]
    pretraining = results["pretraining"]
    assert pretraining["held_out_loss_end"] < pretraining["held_out_loss_start"] - 0.02
    assert json.loads((folder / "config.json").read_text())["id2label"]["2"] == "email"
    assert all(f"[{i}/8]" in printed for i in range(1, 9))


@pytest.mark.slow
def test_the_card_of_a_run_has_no_problem_and_holds_no_path(finished):
    folder, printed, (first, _) = finished
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert card_problems(text, folder) == [] and missing_metadata(text) == ["license (--license apache-2.0)"]
    assert f"{first['results']['mean']['pre-trained']:.3f}" in text and "README.md (the model card)" in printed
    assert first["results"]["comparison"]["verdict"] in text and "scores mean nothing" in text and "max_minutes" not in text
    assert "(loss_curves.png)" in text and "gave the same answers" in text and text.count("%) |") == 7
    assert not any(where in text for where in (str(folder), str(ROOT), sys.prefix, str(Path.home())))


def results_of(seeds, short=False):
    """As all_results.json has them."""
    random, trained = [0.7, 0.71, 0.72][: len(seeds)], [0.75, 0.76, 0.77][: len(seeds)]
    spread = 0.01 if len(seeds) > 1 else None
    results = dict(
        seed=0, finetune_seeds=seeds, pretrain_steps=1400, finetune_epochs=6, short=short, stopped_early=short,
        corpus=dict(docstrings=8255, topics=79, words=334224, vocabulary=6000, train=1000, validation=300, test=1200,
                    packages=["email", "xml"]),
        parameters=dict(masked_lm=2_500_000, classifier=2_400_000),
        test_accuracy={"random": random, "pre-trained": trained}, majority_accuracy=0.138,
        mean={"random": random[-1], "pre-trained": trained[len(seeds) // 2]},
        standard_deviation={"random": spread, "pre-trained": spread},
        pretraining=dict(held_out_loss_start=8.7, held_out_loss_end=3.2), reload_check=dict(passed=True),
        comparison=dict(verdict="Pre-training helped: +5.0 points."),
        versions=dict(python="3.11.7", torch="2.13", transformers="5.23"),
    )  # fmt: skip
    timings = dict(total_seconds=450.5, cpus=2, threads=2, machine="Linux x86_64")
    return results, timings


ANSWERS = [(("Return | it.", 1), torch.tensor([0.0, 3.0]))]


def test_the_card_tells_data_recipe_results_hardware_and_limits(tmp_path):
    (tmp_path / "loss_curves.png").touch()
    config = '{"auto_map": {}, "architectures": ["DebertaExtForSequenceClassification"]}'
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    write_run_card(tmp_path, quickstart.card_facts(*results_of([1, 2, 3]), quickstart.FULL, ANSWERS))
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card_problems(text, tmp_path) == [] and missing_metadata(text) == ["license (--license apache-2.0)"]
    data = ModelCard(text).data
    assert (data.language, data.pipeline_tag, data.tags) == ("en", "text-classification", ["deberta", "hf_deberta_ext"])
    (result,) = data.eval_results
    assert (result.dataset_name, result.dataset_split, result.metric_value) == ("docstrings of Python 3.11.7", "test", 0.76)
    assert result.metric_name == "accuracy (mean of 3 seeds)"
    for part in (
        "It has 2.4 million parameters.", "Its labels are email, xml.", "| majority class | 0.138 | |",
        "| fine-tuned from pre-trained weights | 0.760 ± 0.010 | 0.750, 0.760, 0.770 |", "+5.0 points",
        "of the\nseed 1: 0.750",
        "8,255 docstrings and 79 `pydoc` topics of Python 3.11.7", "1,400 steps of 32 blocks of 64 tokens, 40% masked",
        "epochs: 6, of 1,000 texts", "| seeds | 0 (split and pre-training), 1, 2, 3 (fine-tuning) |",
        "| seconds of all stages | 450.5 |", "transformers 5.23, ", "reads the first 64 tokens", "went from 8.70 to 3.20",
        "| `Return \\| it.` | xml | xml (95%) |", "The spread is over seeds",
    ):  # fmt: skip
        assert part.replace("\n", " ") in text.replace("\n", " "), part
    assert str(tmp_path.parent) not in text and "--short" not in text and "--max_minutes" not in text


def test_the_card_of_a_short_run_of_one_seed_says_so(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["DebertaExtForSequenceClassification"]}', encoding="utf-8")
    write_run_card(tmp_path, quickstart.card_facts(*results_of([3], short=True), quickstart.SHORT, ANSWERS))
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "its scores mean nothing" in text and "`--max_minutes` ended a training early" in text
    assert "It is one run" in text and "| 0.750 | 0.750 |" in text and "±" not in text
    assert ModelCard(text).data.eval_results[0].metric_name is None


def test_training_ends_when_its_time_is_over():
    def stopped_early(max_seconds, step):
        control, state = TrainerControl(), TrainerState(max_steps=10, is_world_process_zero=True)
        callback = quickstart.training_callback(max_seconds)
        callback.on_train_begin(None, state, control)
        state.global_step = step
        callback.on_step_end(None, state, control)
        callback.on_train_end(None, state, control)
        assert control.should_training_stop == callback.stopped_early
        return callback.stopped_early

    assert stopped_early(0.0, step=4)
    # The last step ends the training anyway; there is time; there is no limit.
    assert not stopped_early(0.0, step=10)
    assert not stopped_early(1e6, step=4)
    assert not stopped_early(None, step=4)


@pytest.mark.slow
def test_max_minutes_ends_a_run_and_says_so(tmp_path):
    folder = tmp_path / "out"
    code, _, complaints = run("--output_dir", folder, "--short", "--pretrain_steps", "100000", "--max_minutes", "0.05")
    assert code == 0, complaints[-3000:]
    assert json.loads((folder / "all_results.json").read_text(encoding="utf-8"))["results"]["stopped_early"]
    assert "depend on the speed of the machine" in (folder / "README.md").read_text(encoding="utf-8")


def test_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    code, _, complaints = run("--output_dir", tmp_path, "--short")
    assert code == 2 and "choose another --output_dir" in complaints and "Traceback" not in complaints
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("content", ["{}", "[]", "no json", '{"job": "another"}'])
def test_files_and_results_of_another_job_are_refused(tmp_path, content):
    marker = tmp_path / "all_results.json"
    marker.write_text(content, encoding="utf-8")
    for place in (tmp_path, marker):
        with pytest.raises(ValueError, match="not empty"):
            quickstart.claim_output_dir(place)
    assert marker.read_text(encoding="utf-8") == content


def test_new_empty_and_own_folders_are_taken(tmp_path):
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        quickstart.claim_output_dir(folder)
        (folder / "notes.txt").write_text("of the user", encoding="utf-8")
        assert json.loads((folder / "all_results.json").read_text(encoding="utf-8"))["status"] == "unfinished"


@pytest.mark.parametrize("flags", [["--max_minutes", "0"], ["--pretrain_steps", "-1"], ["--finetune_seeds"]])
def test_senseless_numbers_are_refused(flags, tmp_path):
    code, _, complaints = run("--output_dir", tmp_path / "out", *flags)
    assert code == 2 and "error:" in complaints
    assert not (tmp_path / "out").exists()

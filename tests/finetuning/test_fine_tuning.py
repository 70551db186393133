# SPDX-License-Identifier: Apache-2.0
"""Stages of a fine-tuning run: output files, refused flags, folders, resumed runs and several seeds."""

import contextlib

import numpy as np
import pytest
from fault_matrix import after_method
from toy_task import equal, main, read, run, weights

from hf_deberta_ext.finetuning.trainer import TaskTrainer

SAVING = dict(save_strategy="steps", save_steps=2)


@pytest.fixture(scope="module")
def finished(folder_of, tmp_path_factory):
    """Run all stages with two evaluation sets; return the folder and the metrics."""
    folder = tmp_path_factory.mktemp("runs") / "everything"
    argv = ("--do_train", "--do_eval", "--do_predict", "--second_set")
    return folder, run(folder_of("ours"), folder, *argv, eval_strategy="steps", eval_steps=2, **SAVING)


def test_run_leaves_results_predictions_model_and_card(finished):
    folder, metrics = finished
    for name in ("eval_mm_results.json", "predict_results.json", "run_arguments.json", "eval_mm_answers.json"):
        assert (folder / name).is_file(), name
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    everything = read(folder, "all_results.json")
    assert everything.items() >= metrics.items()
    assert {*metrics} >= {"train_loss", "eval_accuracy", "eval_mm_accuracy", "predict_samples"}
    assert read(folder, "eval_mm_results.json")["eval_mm_accuracy"] == metrics["eval_mm_accuracy"]
    assert not any(name.startswith("eval_mm") for name in read(folder, "eval_results.json"))
    assert (metrics["eval_samples"], metrics["eval_mm_samples"], metrics["predict_samples"]) == (10, 7, 6)
    assert len(read(folder, "predict_answers.json")) == 6
    # Four words between [CLS] and [SEP].
    assert "| longest input | 6 |" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("more", "name", "best"), [({}, "accuracy", max), ({"metric_for_best_model": "loss"}, "loss", min)])
def test_main_metric_chooses_the_best_checkpoint(more, name, best, folder_of, tmp_path):
    given = SAVING | dict(eval_strategy="steps", eval_steps=2) | more
    run(folder_of("ours"), tmp_path / "run", "--do_train", "--load_best_model_at_end", **given)
    state = read(tmp_path / "run", "trainer_state.json")
    scores = [entry[f"eval_{name}"] for entry in state["log_history"] if f"eval_{name}" in entry]
    assert state["best_metric"] == best(scores)


def missing_package(*_):
    raise ImportError("this task\nneeds a package")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(train_count=0), "error: --do_train has no data"),
        (dict(read=missing_package), "error: this task needs a package"),
        (dict(eval_strategy="steps", eval_steps=2, metric_for_best_model="acuracy"), "got acuracy"),
        (dict(optim="adamw_torch"), "error: this task needs a package"),
        # Shown with a traceback, because the training has started
        (dict(learning_rate=1e30, max_steps=20, max_grad_norm=0), "the learning rate 1e+30 is too high"),
    ],
    ids=["data", "package", "metric", "optimizer", "training"],
)
def test_errors_end_with_one_line(given, message, folder_of, tmp_path, capsys, monkeypatch):
    if "optim" in given:
        monkeypatch.setattr(TaskTrainer, "create_optimizer", missing_package)
    with pytest.raises(SystemExit) as ended:
        main(folder_of("bert"), tmp_path / "run", "--do_train", **given)
    text = capsys.readouterr().err
    assert ended.value.code == 2 and message in text.splitlines()[-1]
    assert ("Traceback" in text and "in training_step" in text) == ("max_grad_norm" in given)


@pytest.mark.parametrize(
    ("argv", "given", "message"),
    [
        (["--do_train", "--do_eval"], dict(evaluation_count=0), "--do_eval has no data: give --validation_file"),
        (["--do_predict"], dict(test_count=0), "--do_predict has no data: give --test_file"),
        (["--do_train"], dict(evaluation_count=0, eval_strategy="steps", eval_steps=1), "--do_eval has no data"),
        (["--do_train"], dict(prediction_loss_only="true"), "--prediction_loss_only must be False"),
        (["--do_eval"], dict(resume_from_checkpoint="last"), "--resume_from_checkpoint needs --do_train"),
        (["--do_train"], dict(resume_from_checkpoint="last"), "there is no checkpoint"),
        (["--do_train", "--overwrite_output_dir"], dict(resume_from_checkpoint="last"), "are mutually exclusive"),
        (["--do_train", "--seeds", 1], dict(resume_from_checkpoint="x"), "must be 'last' with --seeds, got 'x'"),
        (["--do_train", "--seeds", 1], dict(resume_from_checkpoint="last"), r"there is no run in .* to resume"),
    ],
)
def test_runs_that_cannot_do_what_they_are_told_write_nothing(argv, given, message, folder_of, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(folder_of("bert"), tmp_path / "run", *argv, **given)
    assert not (tmp_path / "run").exists()


@contextlib.contextmanager
def stopped(step):
    """Return a context in which a training is stopped behind a step, as if killed; it expects a KeyboardInterrupt."""

    def stop(trainer):
        if trainer.state.global_step == step:
            raise KeyboardInterrupt

    with after_method("training_step", stop), pytest.raises(KeyboardInterrupt):
        yield


def test_a_resumed_run_has_the_weights_of_one_that_was_not_stopped(folder_of, tmp_path):
    given = dict(max_steps=6, gradient_accumulation_steps=2, per_device_train_batch_size=2, sift_weight=1, **SAVING)
    whole = run(folder_of("ours"), tmp_path / "whole", "--do_train", "--do_eval", **given)
    with stopped(5):
        run(folder_of("ours"), tmp_path / "run", "--do_train", "--do_eval", **given)
    resumed = run(folder_of("ours"), tmp_path / "run", "--do_train", "--do_eval", **given, resume_from_checkpoint="last")
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "run"))
    for name in ("eval_loss", "eval_accuracy"):
        assert resumed[name] == whole[name]
    histories = [read(tmp_path / name, "trainer_state.json")["log_history"] for name in ("whole", "run")]
    losses = [[entry["loss"] for entry in history if "loss" in entry] for history in histories]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_a_folder_that_is_not_empty_is_neither_resumed_nor_wiped_nor_one_that_is_read_overwritten(
    finished, folder_of, tmp_path, monkeypatch
):
    folder, _ = finished
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    with pytest.raises(ValueError, match=r"is not empty; .*--overwrite_output_dir renames the folder"):
        run(folder_of("ours"), folder, "--do_train")
    for other in ("file.txt", "model.safetensors"):
        (tmp_path / other).mkdir()
        (tmp_path / other / other).write_text("x", encoding="utf-8")
        with pytest.raises(ValueError, match=r"is not empty[:;] .*choose another --output_dir"):
            run(folder_of("ours"), tmp_path / other, "--do_eval")
    with pytest.raises(ValueError) as refused:
        run(folder, folder, "--do_predict")
    assert "choose another --output_dir" in str(refused.value) and "--resume" not in str(refused.value)
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    with pytest.raises(ValueError, match=r"--overwrite_output_dir would rename .*everything"):
        run(folder, folder, "--do_train", "--overwrite_output_dir")
    with pytest.raises(ValueError, match=r"would rename .*train.csv"):
        run("x", tmp_path, "--do_train", "--overwrite_output_dir", train_file=tmp_path / "train.csv")
    monkeypatch.chdir(tmp_path)
    for place in (".", ".."):
        with pytest.raises(ValueError, match=r"would rename"):
            run("x", place, "--do_train", "--overwrite_output_dir")


def test_overwriting_moves_the_old_folder_aside(folder_of, tmp_path, capsys):
    folder = tmp_path / "run"
    for number in range(3):
        run(folder_of("bert"), folder, "--do_train", "--overwrite_output_dir", max_steps=1, seed=number)
    assert {file.name for file in tmp_path.iterdir()} == {"run", "run.old-1", "run.old-2"}
    assert "was not empty; renamed it to" in capsys.readouterr().out
    seeds = [read(tmp_path / name, "run_arguments.json")["seed"] for name in ("run.old-1", "run.old-2", "run")]
    assert seeds == [0, 1, 2]
    assert weights(folder) and weights(tmp_path / "run.old-1")


@pytest.mark.parametrize(
    "ends", [{}, dict(max_steps=6), dict(max_steps=-1, num_train_epochs=1)], ids=["in_an_epoch", "behind_it", "epochs"]
)
def test_a_finished_run_that_is_resumed_keeps_its_results(ends, folder_of, tmp_path):
    """Trainer would report a training of no steps, or train one more step within an epoch."""
    folder, given = tmp_path / "run", SAVING | dict(lr_scheduler_type="constant") | ends
    run(folder_of("ours"), folder, "--do_train", "--do_eval", **given)
    before, state, trained = read(folder, "all_results.json"), weights(folder), read(folder, "train_results.json")
    card = (folder / "README.md").read_text(encoding="utf-8")
    argv = ("--do_train", "--do_eval", "--do_predict")
    results = run(folder_of("ours"), folder, *argv, **given, resume_from_checkpoint="last")
    assert equal(weights(folder), state)
    after = read(folder, "all_results.json")
    assert read(folder, "train_results.json") == trained and after["eval_loss"] == before["eval_loss"]
    names = [name for name in before if name.startswith("train_")]
    assert "train_runtime" in names and [after[name] for name in names] == [before[name] for name in names]
    assert results["predict_samples"] == 6 and "train_loss" not in results
    assert (folder / "README.md").read_text(encoding="utf-8") == card
    history = read(folder, "trainer_state.json")["log_history"]
    assert [entry["train_loss"] for entry in history if "train_loss" in entry] == [before["train_loss"]]


def test_seeds_are_runs_of_their_own_and_a_summary(folder_of, tmp_path):
    summary = run(folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", "--seeds", 3, 5)
    runs = [read(tmp_path / "run" / f"seed-{seed}", "all_results.json") for seed in (3, 5)]
    losses = [results["eval_loss"] for results in runs]
    assert summary == read(tmp_path / "run", "all_results.json") and summary["seeds"] == [3, 5]
    assert summary["eval_loss"]["values"] == losses and losses[0] != losses[1]
    assert summary["eval_loss"]["mean"] == pytest.approx(np.mean(losses))
    assert summary["eval_loss"]["standard_deviation"] == pytest.approx(np.std(losses, ddof=1))
    assert (tmp_path / "run" / "seeds.png").is_file() and (tmp_path / "run" / "README.md").is_file()
    # Each seed gives the same results as a run with only this seed, with workers too.
    alone = run(folder_of("bert"), tmp_path / "alone", "--do_train", "--do_eval", seed=5, dataloader_num_workers=2)
    assert (alone["train_loss"], alone["eval_loss"]) == (runs[1]["train_loss"], losses[1])
    assert equal(weights(tmp_path / "alone"), weights(tmp_path / "run" / "seed-5"))


def test_resumed_seeds_skip_those_that_are_finished(folder_of, tmp_path, capsys):
    argv = (folder_of("ours"), tmp_path / "run", "--do_train", "--do_eval", "--seeds", 1, 2)
    whole = run(folder_of("ours"), tmp_path / "whole", *argv[2:])
    run(folder_of("ours"), tmp_path / "run", *argv[2:-1])
    finished_at = (tmp_path / "run" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"is not empty; .*resume its run with --resume_from_checkpoint last"):
        run(*argv)
    with stopped(3):
        run(*argv, resume_from_checkpoint="last", **SAVING)
    summary = run(*argv, resume_from_checkpoint="last")
    assert summary["eval_loss"] == whole["eval_loss"]
    assert (tmp_path / "run" / "seed-1" / "model.safetensors").stat().st_mtime_ns == finished_at
    for seed in (1, 2):
        same = [weights(tmp_path / name / f"seed-{seed}") for name in ("whole", "run")]
        assert equal(*same)
    assert "seed-1 is already complete" in capsys.readouterr().out


@pytest.mark.parametrize("lora", [[], ["--lora"]], ids=["whole", "lora"])
def test_resumed_seeds_do_what_those_that_are_finished_have_not_done(lora, folder_of, tmp_path):
    """Folders of finished seeds have no checkpoint; their saved models are evaluated, with the same results."""
    folder, argv = tmp_path / "run", ("--do_train", "--second_set", *lora, "--seeds", 1, 2)
    whole = run(folder_of("ours"), tmp_path / "whole", "--do_eval", "--do_predict", *argv)
    assert run(folder_of("ours"), folder, *argv) == {"seeds": [1, 2]}
    trained = [read(folder / f"seed-{seed}", "train_results.json") for seed in (1, 2)]
    saved = {file: file.stat().st_mtime_ns for file in folder.glob("seed-*/*.safetensors")}

    summary = run(folder_of("ours"), folder, *argv, "--do_eval", resume_from_checkpoint="last")
    assert summary == whole and summary == read(folder, "all_results.json")
    measured = {file: file.stat().st_mtime_ns for file in folder.glob("seed-*/eval_*")}
    run(folder_of("ours"), folder, *argv, "--do_eval", "--do_predict", resume_from_checkpoint="last")
    for seed in (1, 2):
        own, other = folder / f"seed-{seed}", tmp_path / "whole" / f"seed-{seed}"
        assert {file.name for file in own.iterdir()} == {file.name for file in other.iterdir()}
        for name in ("predict_answers.json", "eval_mm_answers.json"):
            assert read(own, name) == read(other, name)
        results = read(own, "all_results.json")
        assert {*results} - {*read(other, "all_results.json")} <= {
            f"{stem}_model_preparation_time" for stem in ("eval", "eval_mm", "predict")
        }
        assert {*results} >= {*read(other, "all_results.json")}
        assert results.items() >= trained[seed - 1].items()
        card = (own / "README.md").read_text(encoding="utf-8")
        assert f"| accuracy | {results['eval_accuracy']:.4f} |" in card and "| steps | 4 |" in card
    # Each file was written only once.
    assert all(file.stat().st_mtime_ns == time for file, time in {**saved, **measured}.items()) and len(saved) == 2

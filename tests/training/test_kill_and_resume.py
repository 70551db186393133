# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed: whatever is left of a checkpoint, the next start ends with the weights of an undisturbed run.

tests/support/kill_and_resume.py does the same with all scripts, and more kills at random; left_by_kills.py compares.
"""

import errno
import json
import logging
import os
import shutil
import threading
import time
from types import SimpleNamespace

import kill_and_resume
import left_by_kills
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_pretraining import Rows, build, train

from hf_deberta_ext.finetuning.reports import report_seeds
from hf_deberta_ext.pretraining.run_stages import train_and_evaluate
from hf_deberta_ext.pretraining.trainer import PretrainingTrainer
from hf_deberta_ext.training import manifest
from hf_deberta_ext.training.checkpoints import checkpoint_problem
from hf_deberta_ext.training.manifest import MANIFEST_FILE, manifest_problem, saved_with_manifest
from hf_deberta_ext.training.run_folder import resume_checkpoint

for package in ("accelerate", "datasets", "matplotlib", "sentencex"):
    pytest.importorskip(package)

STATE = "trainer_state.json"


def steps(folder):
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


def assert_same_end(folder, undisturbed):
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder, undisturbed))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    assert left_by_kills.losses(folder / STATE) == left_by_kills.losses(undisturbed / STATE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(folder)
    return folder


@pytest.fixture
def stopped(undisturbed, tmp_path):
    """The run as it is between steps 6 and 7, and the one that is to be compared with."""
    folder = tmp_path / "run"
    for step in (2, 4, 6):
        shutil.copytree(undisturbed / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    return folder


def test_a_checkpoint_that_lacks_any_file_or_half_of_it_is_not_resumed_from_as_another_one(stopped):
    """Each file in turn."""
    checkpoint = stopped / "checkpoint-6"
    names = sorted(path.name for path in checkpoint.iterdir())
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", STATE, "config.json"} < {*names}
    for name in names:
        content = (checkpoint / name).read_bytes()
        for left in (None, b"", content[: len(content) // 2], content[:-2]):
            (checkpoint / name).unlink() if left is None else (checkpoint / name).write_bytes(left)
            assert resume_checkpoint(stopped, "last") == str(stopped / "checkpoint-4")
            assert name in checkpoint_problem(checkpoint)
        (checkpoint / name).write_bytes(content)
    assert resume_checkpoint(stopped, "last") == str(checkpoint)


def flip_bit(file, _):
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def zero_most(file, _):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 6 // 10] + bytes(len(content) - len(content) * 6 // 10))


def take_other_step(file, other):
    shutil.copy(other, file)


def change_max_steps(file, _):
    file.write_text(file.read_text(encoding="utf-8").replace('"max_steps": 8', '"max_steps": 7'), encoding="utf-8")


@pytest.mark.parametrize(
    "name, damage",
    [
        ("model.safetensors", flip_bit),
        ("model.safetensors", zero_most),
        ("model.safetensors", take_other_step),
        ("optimizer.pt", flip_bit),
        ("optimizer.pt", take_other_step),
        ("rng_state.pth", take_other_step),
        (STATE, change_max_steps),
        ("training_args.bin", lambda file, _: file.unlink()),
        (MANIFEST_FILE, lambda file, _: file.write_bytes(b"")),
        (MANIFEST_FILE, lambda file, _: file.write_text('{"files": {"optimizer.pt": 3}}', encoding="utf-8")),
    ],
)
def test_a_checkpoint_that_is_not_as_it_was_saved_is_named_and_not_resumed_from(name, damage, stopped, caplog):
    """All of these were resumed from in silence, to another model."""
    checkpoint, before = stopped / "checkpoint-6", stopped / "checkpoint-4"
    assert resume_checkpoint(stopped, "last") == str(checkpoint) and not caplog.text
    damage(checkpoint / name, before / name)
    assert resume_checkpoint(stopped, "last") == str(before)
    assert f"checkpoint-6 is not a complete checkpoint: its {name} " in caplog.text
    assert "The run goes on from checkpoint-4" in caplog.text
    for resume in (lambda: resume_checkpoint(stopped, str(checkpoint)), lambda: build(stopped).train(str(checkpoint))):
        with pytest.raises(ValueError, match=rf"checkpoint-6 is not a complete checkpoint: its {name} (is|has) "):
            resume()


def test_people_who_resume_with_true_go_on_from_the_last_whole_checkpoint(stopped, undisturbed):
    flip_bit(stopped / "checkpoint-6" / "model.safetensors", None)
    trainer = build(stopped)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    trainer.save_state()
    assert_same_end(stopped, undisturbed)


def test_a_manifest_is_written_behind_its_files_which_are_on_the_disk_by_then(tmp_path, monkeypatch):
    synchronised, fsync = [], os.fsync

    def record(descriptor):
        synchronised.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    train(tmp_path / "run", max_steps=2)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    files = [file.stat().st_ino for file in checkpoint.rglob("*") if file.name != MANIFEST_FILE]
    written = synchronised.index((checkpoint / MANIFEST_FILE).stat().st_ino)
    assert {*files, checkpoint.stat().st_ino} <= {*synchronised[:written]}
    assert checkpoint.parent.stat().st_ino in synchronised[written:]
    listed = left_by_kills.read(checkpoint / MANIFEST_FILE)["files"]
    assert {*listed} == {file.name for file in checkpoint.iterdir()} - {MANIFEST_FILE}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "Input/output error")])
def test_a_failed_write_is_told_once_and_not_lost_by_the_thread_that_writes_back(error, tmp_path, monkeypatch):
    failed, fsync = threading.Event(), os.fsync

    def fail_once(descriptor):
        if not failed.is_set():
            failed.set()
            raise error
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    monkeypatch.setattr(manifest, "LARGE", 1)
    threads = threading.active_count()
    with pytest.raises(OSError, match=error.strerror), manifest.saved_with_manifest(tmp_path / "checkpoint-1"):
        (tmp_path / "checkpoint-1" / "optimizer.pt").write_bytes(b"some")
        assert failed.wait(60) and threading.active_count() > threads
    assert manifest.is_unfinished(tmp_path / "checkpoint-1") and threading.active_count() == threads
    assert torch.serialization.get_crc32_options()


def test_a_file_is_read_once_for_its_digest_until_it_changes(tmp_path, monkeypatch):
    """Resuming read a checkpoint in the script, again in `RunTrainer.train`, and once more for each seed."""
    opened, read = [], manifest.mmap.mmap
    monkeypatch.setattr(manifest.mmap, "mmap", lambda *args, **kwargs: opened.append(args) or read(*args, **kwargs))
    with manifest.saved_with_manifest(tmp_path / "checkpoint-1"):
        (file := tmp_path / "checkpoint-1" / "optimizer.pt").write_bytes(b"some")
    assert manifest_problem(file.parent) is None and len(opened) == 1
    file.write_bytes(b"same")
    os.utime(file, (1, 1))
    assert "optimizer.pt is damaged" in manifest_problem(file.parent) and len(opened) == 2


def test_a_new_run_that_is_refused_reads_no_digests(stopped, monkeypatch):
    """It read all of the last checkpoint for its advice."""
    monkeypatch.setattr(manifest, "digest_of", None)
    with pytest.raises(ValueError, match=r"is not empty: go on from .*checkpoint-6 with"):
        resume_checkpoint(stopped, None)


def test_a_run_goes_on_behind_code_that_was_copied_in_part(stopped, undisturbed):
    """A file of code without our mark is taken for somebody else's, and nothing is saved over it."""
    cut = stopped / "checkpoint-6"
    (cut / STATE).unlink()
    code = sorted(cut.glob("*.py"))
    assert code
    for file in code:
        file.write_text("", encoding="utf-8")
    last = resume_checkpoint(stopped, "last")
    assert last == str(stopped / "checkpoint-4")
    train(stopped, last)
    assert_same_end(stopped, undisturbed)
    assert all(file.stat().st_size for file in code) and checkpoint_problem(cut) is None


@pytest.mark.parametrize("resume", [4, 8])
def test_a_checkpoint_lacks_no_weights_that_are_tied_and_is_not_trained_on_without_others(
    resume, stopped, undisturbed, caplog, monkeypatch
):
    """Trainer named the decoder's table at every resume of a masked-language model, and went on with what it had drawn."""
    shutil.copytree(undisturbed / "checkpoint-8", stopped / "checkpoint-8")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    train(stopped, stopped / f"checkpoint-{resume}")
    assert "missing keys" not in caplog.text
    assert_same_end(stopped, undisturbed)
    file, name = stopped / f"checkpoint-{resume}" / "model.safetensors", "deberta.encoder.layer.0.output.dense.weight"
    save_file({key: weight for key, weight in load_file(file).items() if key != name}, file, metadata={"format": "pt"})
    with saved_with_manifest(file.parent):
        pass
    with pytest.raises(ValueError, match=f"the checkpoint lacks 1 weights, {name} for one: it is not the model that was"):
        train(stopped, stopped / f"checkpoint-{resume}")


def test_a_checkpoint_that_is_written_again_is_not_whole_meanwhile(stopped, monkeypatch):
    """Its old state would say so, beside half of the new weights."""
    seen = []
    save = PretrainingTrainer._save_optimizer_and_scheduler

    def look_and_save(self, output_dir):
        seen.append((os.path.basename(output_dir), checkpoint_problem(type(stopped)(output_dir))))
        save(self, output_dir)

    monkeypatch.setattr(PretrainingTrainer, "_save_optimizer_and_scheduler", look_and_save)
    train(stopped, stopped / "checkpoint-4", ["max_steps"], max_steps=6)
    assert seen == [("checkpoint-6", f"its {STATE} is missing or truncated")]


def test_the_last_checkpoints_stay_whenever_their_folders_were_changed(stopped):
    """Trainer keeps those that were changed last, as one is that was half removed."""
    (stopped / "checkpoint-2" / "optimizer.pt").unlink()
    later = time.time() + 1000
    os.utime(stopped / "checkpoint-2", times=(later, later))
    train(stopped, stopped / "checkpoint-6", save_total_limit=2)
    assert steps(stopped) == [6, 8]


def test_checkpoints_of_later_steps_go_before_those_that_a_resumed_run_can_need(stopped):
    train(stopped, stopped / "checkpoint-2", ["max_steps"], max_steps=4, save_total_limit=2)
    assert steps(stopped) == [2, 4]


def test_the_best_checkpoint_stays(tmp_path):
    trainer = build(tmp_path / "run", save_total_limit=2)
    trainer.state.best_model_checkpoint = str(tmp_path / "run" / "checkpoint-2")
    trainer.state.global_step = 8
    for step in (2, 4, 6, 8):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    trainer._remove_checkpoints(tmp_path / "run", tmp_path / "run" / "checkpoint-8")
    assert steps(tmp_path / "run") == [2, 8]


def test_a_limit_keeps_the_newest_checkpoints_and_is_saved_as_it_was_given(tmp_path):
    """A folder that is named after no step is left alone: int("best") ended the run at its first save."""
    folder = tmp_path / "run"
    (folder / "checkpoint-best").mkdir(parents=True)
    trainer = train(folder, save_total_limit=1)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-8", "checkpoint-best"]
    assert trainer.args.save_total_limit == 1 and not [*folder.rglob(".*")]
    for place in (folder, folder / "checkpoint-8"):
        assert torch.load(place / "training_args.bin", weights_only=False).save_total_limit == 1


def test_the_checkpoint_that_a_run_was_resumed_from_may_go(stopped):
    """As with --save_total_limit: what it says is read before the training."""
    trainer = build(stopped, save_total_limit=1)
    trainer.eval_dataset = Rows(2)
    metrics = train_and_evaluate(trainer, str(stopped / "checkpoint-6"))
    assert steps(stopped) == [8]
    results = json.loads((stopped / "all_results.json").read_text(encoding="utf-8"))
    assert results["train_resumed_at_step"] == 6 and results["eval_loss"] == metrics["eval_loss"]


def test_a_run_that_was_killed_behind_its_last_checkpoint_ends_with_the_names_of_one_that_was_not(tmp_path):
    names = []
    for resume in (None, "last"):
        trainer = build(tmp_path / "run", max_steps=2)
        trainer.eval_dataset = Rows(2)
        train_and_evaluate(trainer, resume_checkpoint(tmp_path / "run", resume))
        read = json.loads((tmp_path / "run" / "all_results.json").read_text(encoding="utf-8"))
        names.append({name for name in read if not left_by_kills.TIMES.fullmatch(name)})
        assert (tmp_path / "run" / "train_results.json").is_file()
        for file in (tmp_path / "run").glob("*_results.json"):
            file.unlink()
    assert names[0] == names[1]


def test_results_that_were_cut_are_written_anew(tmp_path):
    trainer = build(tmp_path / "run")
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "all_results.json").write_text('{"eval_lo', encoding="utf-8")
    trainer.save_metrics("train", dict(train_loss=1.0))
    trainer.save_metrics("eval", dict(eval_loss=2.0))
    for name, expected in dict(all=dict(train_loss=1.0, eval_loss=2.0), train=dict(train_loss=1.0)).items():
        assert json.loads((tmp_path / "run" / f"{name}_results.json").read_text(encoding="utf-8")) == expected


def test_a_summary_over_seeds_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    """It was written over: a run killed there left a part of it, which cards and figures are made from."""

    def killed(*args):
        raise KeyboardInterrupt

    file = tmp_path / "all_results.json"
    file.write_text(json.dumps(dict(seeds=[1])), encoding="utf-8")
    monkeypatch.setattr(os, "replace", killed)
    prepared = SimpleNamespace(data=None, task=None, args=SimpleNamespace(output_dir=tmp_path))
    with pytest.raises(KeyboardInterrupt):
        report_seeds(prepared, dict(seeds=[1, 2]))
    assert json.loads(file.read_text(encoding="utf-8")) == dict(seeds=[1])


@pytest.mark.parametrize("sign", ["train_runtime", "checkpoint"])
def test_what_is_measured_behind_the_training_stands_once_in_the_log(sign, tmp_path):
    """Also where an evaluation of the last step was part of the training."""
    trainer = build(tmp_path / "run")
    trainer.state.global_step = 2
    during = [dict(loss=1.0, step=1), dict(eval_loss=3.0, step=2)]
    if sign == "train_runtime":
        during.append(dict(train_runtime=1.0, step=2))
    else:
        (tmp_path / "run" / "checkpoint-2").mkdir(parents=True)
        (tmp_path / "run" / "checkpoint-2" / STATE).write_text(json.dumps(dict(log_history=during)), encoding="utf-8")
    for _ in range(2):
        trainer.state.log_history = [*during, *trainer.state.log_history[len(during) :]]
        trainer.state.log_history += [dict(eval_loss=3.0, step=2), dict(eval_mm_loss=4.0, step=2)]
        trainer.save_state()
        history = json.loads((tmp_path / "run" / STATE).read_text(encoding="utf-8"))["log_history"]
        assert history == [*during, dict(eval_loss=3.0, step=2), dict(eval_mm_loss=4.0, step=2)]


@pytest.mark.slow
def test_a_run_killed_while_it_writes_checkpoints_ends_as_an_undisturbed_one(tmp_path, monkeypatch):
    """New interpreters, each killed with SIGKILL a moment after a new checkpoint has appeared."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kill_and_resume.make_material(tmp_path / "material")
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "run"
    run = kill_and_resume.Run("run_glue", tmp_path / "material", undisturbed, fresh=True, save_total_limit=None)
    assert run.wait() == 0, run.output.read_text(encoding="utf-8")[-3000:]
    resume = False
    for aim in (kill_and_resume.Aim("checkpoint", number=3), kill_and_resume.Aim("checkpoint", 0.03, 2)):
        run = kill_and_resume.Run("run_glue", tmp_path / "material", folder, resume=resume, fresh=True)
        assert aim.wait(run), run.output.read_text(encoding="utf-8")[-3000:]
        assert run.kill() == -9
        wrong, _ = left_by_kills.look(folder, undisturbed)
        assert wrong == []
        resume = True
    run = kill_and_resume.Run("run_glue", tmp_path / "material", folder, resume=True, fresh=True)
    assert run.wait() == 0, run.output.read_text(encoding="utf-8")[-3000:]
    assert left_by_kills.compare_ended(folder, undisturbed) == []


def test_the_comparison_sees_what_a_kill_can_do(undisturbed, tmp_path):
    """Weights of another step, a state without weights, a log that is another."""
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    assert left_by_kills.look(folder, undisturbed)[0] == []
    shutil.copy(folder / "checkpoint-2" / "model.safetensors", folder / "checkpoint-4" / "model.safetensors")
    (folder / "checkpoint-6" / "optimizer.pt").unlink()
    shutil.copy(folder / "checkpoint-6" / "model.safetensors", folder / "model.safetensors")
    wrong, there = left_by_kills.look(folder, undisturbed)
    assert [problem.partition(":")[0] for problem in wrong] == ["checkpoint-4"] * 2 + ["output folder"] * 2
    assert any(text.startswith("checkpoint-6 cut") for text in there)


def test_a_moment_is_met_once_it_comes(tmp_path):
    checkpoint = tmp_path / "checkpoint-2"
    for kind, make in {
        "checkpoint": checkpoint.mkdir,
        "checkpoint-2/config.json": (checkpoint / "config.json").touch,
        "removal": (checkpoint / "config.json").unlink,
    }.items():
        came = kill_and_resume.moment(kind, tmp_path, 1)
        assert [next(came), next(came)] == [False, False], kind
        make()
        assert next(came), kind

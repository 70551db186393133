# SPDX-License-Identifier: Apache-2.0
"""Killed runs: whatever is left of a checkpoint, the next start ends with the weights of an undisturbed run.

tests/support/fault_matrix.py does the same with all scripts; left_by_kills.py compares the results.
"""

import logging
import os
import resource
import shutil
import time

import left_by_kills
import pytest
from safetensors.torch import load_file, save_file
from small_pretraining import SIZES, build, rows, train

from hf_deberta_ext.pretraining.run_stages import train_and_evaluate
from hf_deberta_ext.pretraining.trainer import PretrainingTrainer
from hf_deberta_ext.training.checkpoints import MANIFEST_FILE, write_manifest
from hf_deberta_ext.training.run_folder import resume_checkpoint

STATE = "trainer_state.json"


def steps(folder):
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(folder)
    return folder


@pytest.fixture
def stopped(undisturbed, tmp_path):
    """Return the run as of a stop between steps 6 and 7."""
    folder = tmp_path / "run"
    for step in (2, 4, 6):
        shutil.copytree(undisturbed / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    return folder


DAMAGES = {
    "missing": None,
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "a bit": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    "zeros": lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_checkpoint_with_any_damaged_file_is_named_and_not_resumed_from(damage, stopped, caplog):
    checkpoint = stopped / "checkpoint-6"
    names = sorted(path.name for path in checkpoint.iterdir() if path.stat().st_size > 100)
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", STATE, "config.json"} < {*names}
    for name in {*names} - {MANIFEST_FILE}:
        content = (checkpoint / name).read_bytes()
        if damage is None:
            (checkpoint / name).unlink()
        else:
            (checkpoint / name).write_bytes(damage(content))
        caplog.clear()
        assert resume_checkpoint(stopped, "last") == str(stopped / "checkpoint-4")
        assert f"checkpoint-6 is not a complete checkpoint: its {name} is" in caplog.text
        for resume in (lambda: resume_checkpoint(stopped, str(checkpoint)), lambda: build(stopped).train(str(checkpoint))):
            with pytest.raises(ValueError, match=rf"checkpoint-6 is not a complete checkpoint: its {name} is"):
                resume()
        (checkpoint / name).write_bytes(content)
    assert resume_checkpoint(stopped, "last") == str(checkpoint)
    for text in ("", "{}"):
        (checkpoint / MANIFEST_FILE).write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=f"its {MANIFEST_FILE} is missing or damaged"):
            resume_checkpoint(stopped, str(checkpoint))


def test_a_checkpoint_has_its_name_when_all_its_files_are_on_the_disk(tmp_path, monkeypatch):
    """A previous checkpoint with the same name is kept until then."""
    synchronised, seen, fsync, replace = set(), [], os.fsync, os.replace

    def record(descriptor):
        synchronised.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def look_and_replace(source, target):
        if os.path.basename(target) == "checkpoint-2":
            files = {file.stat().st_ino for file in [source, *source.rglob("*")]}
            seen.append(files <= synchronised and {*left_by_kills.read(source / MANIFEST_FILE)["files"]})
        replace(source, target)

    def saves(self, output_dir):
        seen.append(os.path.exists(tmp_path / "run" / "checkpoint-2" / MANIFEST_FILE))
        save(self, output_dir)

    save = PretrainingTrainer._save_optimizer_and_scheduler
    monkeypatch.setattr(PretrainingTrainer, "_save_optimizer_and_scheduler", saves)
    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", look_and_replace)
    for _ in range(2):
        train(tmp_path / "run", max_steps=2)
    names = {file.name for file in (tmp_path / "run" / "checkpoint-2").iterdir()} - {MANIFEST_FILE}
    assert seen == [False, names, True, names] and not [*(tmp_path / "run").glob(".*")]


@pytest.mark.parametrize("size", [100_000, 300_000], ids=["model", "optimizer"])
def test_a_checkpoint_that_cannot_be_written_is_named_and_leaves_what_was_there(size, tmp_path, monkeypatch):
    """As on a full disk: the run then resumes from the previous checkpoint."""
    # Weights of 270 kB, and optimizer states of twice that size.
    monkeypatch.setitem(SIZES, "vocab_size", 4000)
    train(tmp_path, max_steps=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(OSError, match=r"/checkpoint-4 could not be written: .* Earlier complete checkpoints are"):
            train(tmp_path, tmp_path / "checkpoint-2", ["max_steps"], max_steps=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert resume_checkpoint(tmp_path, "last") == str(tmp_path / "checkpoint-2") and not [*tmp_path.glob(".*")]


def test_a_checkpoint_lacks_no_tied_weights_and_is_not_trained_on_without_others(stopped, undisturbed, caplog, monkeypatch):
    """Trainer warned about the decoder's tied table at every resume, and trained random weights if others lacked."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    train(stopped, stopped / "checkpoint-4")
    assert "missing keys" not in caplog.text
    assert left_by_kills.same(stopped / "model.safetensors", undisturbed / "model.safetensors")
    assert left_by_kills.losses(stopped / STATE) == left_by_kills.losses(undisturbed / STATE)
    file, name = stopped / "checkpoint-4" / "model.safetensors", "deberta.encoder.layer.0.output.dense.weight"
    save_file({key: weight for key, weight in load_file(file).items() if key != name}, file, metadata={"format": "pt"})
    write_manifest(file.parent)
    with pytest.raises(ValueError, match=f"the checkpoint lacks 1 weights, such as {name}; start a new run"):
        train(stopped, stopped / "checkpoint-4")


# Trainer keeps the most recently changed checkpoints. Checkpoints of later steps are deleted before those a resumed run
# needs.
KEPT = [(6, dict(), [6, 8]), (2, dict(max_steps=4), [2, 4]), (6, dict(save_total_limit=1), [8])]


@pytest.mark.parametrize(("resume", "arguments", "left"), KEPT)
def test_the_checkpoints_that_a_resumed_run_can_need_stay(resume, arguments, left, stopped):
    (stopped / "checkpoint-best").mkdir()
    later = time.time() + 1000
    os.utime(stopped / "checkpoint-2", times=(later, later))
    train(stopped, stopped / f"checkpoint-{resume}", ["max_steps"], **dict(save_total_limit=2) | arguments)
    (stopped / "checkpoint-best").rmdir()
    assert steps(stopped) == left


def test_the_best_checkpoint_stays_and_is_known_by_its_name(tmp_path):
    best = dict(load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=True)
    trainer = train(tmp_path / "run", save_total_limit=2, eval_strategy="steps", eval_steps=2, **best)
    step = trainer.state.best_global_step
    assert step < 8 and steps(tmp_path / "run") == [step, 8]
    for checkpoint in (tmp_path / "run").glob("checkpoint-*"):
        found = left_by_kills.read(checkpoint / STATE)["best_model_checkpoint"]
        assert found == str(tmp_path / "run" / f"checkpoint-{step}") == trainer.state.best_model_checkpoint


def test_a_run_that_was_killed_behind_its_last_checkpoint_ends_with_the_names_and_the_log_of_one_that_was_not(tmp_path):
    ends = []
    for resume in (None, "last", "last"):
        # The checkpoint that a run is resumed from may be deleted when the run ends.
        trainer = build(tmp_path, max_steps=2, save_total_limit=1)
        trainer.eval_dataset = rows(2)
        train_and_evaluate(trainer, resume_checkpoint(tmp_path, resume), {})
        results = left_by_kills.read(tmp_path / "all_results.json")
        ends.append(({*left_by_kills.without_times(results)}, left_by_kills.losses(tmp_path / STATE)))
    assert ends[0] == ends[1] == ends[2]

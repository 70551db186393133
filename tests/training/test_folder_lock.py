# SPDX-License-Identifier: Apache-2.0
"""One run in one folder: a second process is refused, and nobody by a process that is gone."""

import contextlib
import errno
import os
import signal
import socket
from types import SimpleNamespace

import pytest
from hf_deberta_ext.publishing.published_files import published_files
from scripts import module_of
from small_pretraining import build, train

from hf_deberta_ext.finetuning.run_folders import begin_folder, begin_seed
from hf_deberta_ext.training import folder_lock
from hf_deberta_ext.training.folder_lock import LOCK_FILE, lock_folder, locked_folder, unlock_folders
from hf_deberta_ext.training.run_folder import claim_folder, resume_checkpoint

pytest.importorskip("accelerate")


@contextlib.contextmanager
def other_process(folder):
    """A process that has locked the folder; its id."""
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            lock_folder(folder)
            os.write(tell, b"x")
            signal.pause()
        os._exit(1)
    try:
        assert os.read(ready, 1)
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready), os.close(tell)


def overwriting(folder):
    return SimpleNamespace(output_dir=str(folder), overwrite_output_dir=True, resume_from_checkpoint=None, resume_anyway=[])


def prepare(folder):
    with module_of("prepare_corpus").in_folder(str(folder)):
        pass


STARTS = {
    "trainer": lambda folder: build(folder).train(),
    "script": lambda folder: claim_folder(folder, is_new=True),
    "resumed script": lambda folder: claim_folder(folder, is_new=False),
    "first look": lambda folder: resume_checkpoint(folder, None),
    "overwriting": lambda folder: begin_folder(overwriting(folder), dict(seed=1)),
    "seed": lambda folder: begin_seed(overwriting(folder), dict(seed=1)),
    "preparation": prepare,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_second_run_in_a_folder_is_refused_before_it_writes_until_the_first_is_gone(start, tmp_path):
    """Both ended with exit status 0, and one model was lost; --overwrite_output_dir moved the other's folder aside."""
    folder = tmp_path / "run"
    with other_process(folder) as owner:
        (folder / "notes.txt").write_text("mine", encoding="utf-8")
        with pytest.raises(
            ValueError, match=rf"run is in use: process {owner} on {socket.gethostname()}, since .* works in it"
        ):
            start(folder)
        assert sorted(os.listdir(folder)) == [LOCK_FILE, "notes.txt"] and os.listdir(tmp_path) == ["run"]
    # Killed: its file is there, its lock is not.
    (folder / "notes.txt").unlink()
    assert (folder / LOCK_FILE).exists() and resume_checkpoint(folder, None) is None
    start(folder)
    unlock_folders()
    with locked_folder(folder):
        pass
    assert not (folder / LOCK_FILE).exists()


def test_a_process_may_train_in_a_folder_again_and_leaves_no_lock_behind(tmp_path):
    folder = tmp_path / "run"
    with locked_folder(folder):
        with locked_folder(folder):
            pass
        assert (folder / LOCK_FILE).exists()
        assert LOCK_FILE not in published_files(folder)[0]
        claim_folder(folder, is_new=True)
        train(folder, max_steps=4)
        train(folder, folder / "checkpoint-2", max_steps=4)
        assert not [*folder.glob(f"*/{LOCK_FILE}")] and (folder / LOCK_FILE).exists()
    train(folder, folder / "checkpoint-2", max_steps=4)
    assert not (folder / LOCK_FILE).exists()


def test_a_folder_that_another_run_has_filled_meanwhile_is_refused(tmp_path):
    """Between the first look and the begin, a script reads and encodes its data."""
    assert resume_checkpoint(tmp_path, None) is None
    train(tmp_path, max_steps=2)
    with pytest.raises(ValueError, match=r"is not empty: go on from .*checkpoint-2 with --resume_from_checkpoint last"):
        claim_folder(tmp_path, is_new=True)
    unlock_folders()


def test_a_file_system_without_locks_is_told_and_trained_on(tmp_path, monkeypatch):
    def no_locks(opened):
        raise OSError(errno.ENOLCK, "No locks available")

    said = []
    monkeypatch.setattr(folder_lock, "_lock", no_locks)
    monkeypatch.setattr(folder_lock.logger, "warning", said.append)
    train(tmp_path, max_steps=2)
    assert len(said) == 1 and "has no locks (No locks available): start no second run in it" in said[0]


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Its last owner removed the file after we had opened it: a third process would make another one."""
    lock, seen = folder_lock._lock, []

    def removed_first(opened):
        if not seen:
            (tmp_path / LOCK_FILE).unlink()
        seen.append(opened)
        lock(opened)

    monkeypatch.setattr(folder_lock, "_lock", removed_first)
    with locked_folder(tmp_path):
        assert len(seen) == 2 and str(os.getpid()) in (tmp_path / LOCK_FILE).read_text(encoding="utf-8")

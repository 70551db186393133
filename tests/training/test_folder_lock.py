# SPDX-License-Identifier: Apache-2.0
"""One run per folder: a second process is rejected, but the lock of a dead process is ignored."""

import contextlib
import os
import signal
from types import SimpleNamespace

import pytest
from small_pretraining import build, train

from hf_deberta_ext.finetuning.run_folders import begin_folder, begin_seed
from hf_deberta_ext.training import folder_lock
from hf_deberta_ext.training.folder_lock import LOCK_FILE, lock_folder, locked_folder, unlock_folders


@contextlib.contextmanager
def other_process(folder):
    """Start a process that has locked the folder."""
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
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def arguments(folder):
    given = dict(overwrite_output_dir=True, resume_from_checkpoint=None, allow_changed_args=[], seeds=[])
    return SimpleNamespace(output_dir=str(folder), **given)


def prepare(folder):
    with locked_folder(folder):
        pass


STARTS = {
    "trainer": lambda folder: build(folder).train(),
    "script": lock_folder,
    "overwriting": lambda folder: begin_folder(arguments(folder), dict(seed=1)),
    "seed": lambda folder: begin_seed(arguments(folder)),
    "preparation": prepare,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_second_run_in_a_folder_is_refused_before_it_writes_until_the_first_is_gone(start, tmp_path):
    """Previously, both runs ended with status 0 and one model was lost, or one folder was moved aside."""
    folder = tmp_path / "run"
    with other_process(folder):
        (folder / "notes.txt").write_text("mine", encoding="utf-8")
        with pytest.raises(ValueError, match="run is locked by another run; wait until it ends, or pass another"):
            start(folder)
        assert sorted(os.listdir(folder)) == [LOCK_FILE, "notes.txt"] and os.listdir(tmp_path) == ["run"]
    # After a kill, the lock file exists but is not locked.
    (folder / "notes.txt").unlink()
    start(folder)
    unlock_folders()
    assert not (folder / LOCK_FILE).exists()


def test_a_process_may_train_in_a_folder_again_also_without_locks_and_leaves_none_behind(tmp_path, monkeypatch):
    with locked_folder(tmp_path):
        train(tmp_path, max_steps=2)
        assert (tmp_path / LOCK_FILE).exists()
    said = []
    # As on Windows.
    monkeypatch.setattr(folder_lock, "fcntl", None)
    monkeypatch.setattr(folder_lock.logger, "warning", said.append)
    train(tmp_path, tmp_path / "checkpoint-2", max_steps=2)
    assert not [*tmp_path.rglob(LOCK_FILE)] and "do not start a second run in it" in said[0]

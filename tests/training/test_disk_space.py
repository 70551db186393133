# SPDX-License-Identifier: Apache-2.0
"""Disks that are full, files that may not grow, folders that cannot be written: one line, and nothing is lost."""

import contextlib
import errno
import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from small_pretraining import SIZES, build, train

from hf_deberta_ext.files import format_size
from hf_deberta_ext.training import disk_space
from hf_deberta_ext.training.checkpoints import checkpoint_problem
from hf_deberta_ext.training.disk_space import DiskError, checkpoint_size, disk_errors
from hf_deberta_ext.training.run_folder import begin_run, claim_folder, resume_checkpoint
from hf_deberta_ext.training.user_errors import ExitOnUserError

pytest.importorskip("accelerate")
resource = pytest.importorskip("resource")


@contextlib.contextmanager
def longest_file(size):
    """Inside, no file of this process may be longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def wide(monkeypatch):
    """A model of which the weights have 270 kB and the optimizer twice as much, and each other file less than 60 kB."""
    monkeypatch.setitem(SIZES, "vocab_size", 4000)


@pytest.mark.parametrize("size", [100_000, 300_000], ids=["model", "optimizer"])
def test_a_first_checkpoint_that_cannot_be_written_blocks_nothing(size, wide, tmp_path, capsys):
    """It was a traceback of 57 lines that named no file, and then neither a resumed run nor a new one was let in."""
    claim_folder(tmp_path, is_new=True)
    with longest_file(size), pytest.raises(SystemExit) as ended, ExitOnUserError("run.py", show_traceback=True):
        train(tmp_path)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    line = printed.strip().splitlines()[-1]
    assert line.startswith(f"run.py: error: {tmp_path / 'checkpoint-2'} could not be written: ")
    needed = format_size(checkpoint_size(build(tmp_path).model))
    assert f"; about {needed} are needed, " in line and "hoose another --output_dir, then " in line
    assert line.endswith("then start again without --resume_from_checkpoint") and "Traceback" not in printed
    assert not [*tmp_path.glob("*checkpoint*")] and not [*tmp_path.glob(".*.part")]
    with pytest.raises(
        ValueError, match=r"there is no checkpoint-\* in .* to resume from; leave --resume_from_checkpoint out$"
    ):
        resume_checkpoint(tmp_path, "last")
    claim_folder(tmp_path, is_new=True)
    train(tmp_path)


def test_what_was_there_before_a_full_disk_stays(wide, tmp_path):
    def files():
        return {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}

    train(tmp_path, save_total_limit=1, max_steps=4)
    before, trainer = files(), build(tmp_path, save_total_limit=1, max_steps=4)
    trainer.state.global_step = 6
    trainer.create_optimizer_and_scheduler(4)
    with torch.no_grad():
        next(trainer.model.parameters()).zero_()
    with longest_file(100_000):
        with pytest.raises(
            DiskError, match=r"checkpoint-6 could .*, then go on with --resume_from_checkpoint \S*checkpoint-4$"
        ):
            trainer._save_checkpoint(trainer.model, None)
        with pytest.raises(DiskError, match=f"{tmp_path} could not be written: File too large; about .* are needed"):
            trainer.save_model()
    assert checkpoint_problem(tmp_path / "checkpoint-4", digests=True) is None
    assert files() == before


def test_a_full_disk_of_any_size_is_named(tmp_path):
    """A real file system, which is full at another file each time."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        train(disk / "run", max_steps=2)
        size = sum(file.stat().st_blocks * 512 for file in (disk / "run" / "checkpoint-2").iterdir())
        for share in (0.3, 0.9, 0.98):
            shutil.rmtree(disk / "run")
            subprocess.run(["mount", "-o", f"remount,size={int(size * share) // 4096 * 4096}", disk], check=True)
            with pytest.raises(DiskError, match=r"checkpoint-2 could not be written: (the disk is full|No space left)"):
                train(disk / "run", max_steps=2)
            assert os.listdir(disk / "run") == ["run_arguments.json"]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("begin", [lambda folder: claim_folder(folder, is_new=True), lambda folder: begin_run(folder, {})])
def test_a_folder_that_cannot_be_written_is_named_before_the_run(code, begin, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    remedy = "Free space or choose" if code == errno.ENOSPC else "Choose"
    message = rf"{tmp_path}/run\S* could not be written: {os.strerror(code)}; .* free\. {remedy} another"
    with pytest.raises(DiskError, match=message):
        begin(tmp_path / "run")


ELSEWHERE = PermissionError(errno.EACCES, "denied", "/elsewhere/train.csv")


@pytest.mark.parametrize(
    "error", [ValueError("unexpected pos 1 vs 2"), RuntimeError("no memory"), OSError("no model"), ELSEWHERE]
)
def test_other_errors_stay_as_they_are(error, tmp_path):
    with pytest.raises(type(error), match=re.escape(str(error))) as raised, disk_errors(tmp_path, tmp_path):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("limit, count", [(None, 2), (3, 4)])
def test_a_disk_that_the_checkpoints_will_not_fit_on_is_warned_of_before_the_first_step(limit, count, tmp_path, monkeypatch):
    said, size = [], checkpoint_size(build(tmp_path).model)
    monkeypatch.setattr(disk_space.logger, "warning", said.append)
    for free in (count * size, count * size - 1):
        monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        assert not said
        train(tmp_path / str(free), save_total_limit=limit, max_steps=2)
    assert len(said) == 1 and f"{count} checkpoints of about {format_size(size)} each" in said[0]


def test_the_size_of_a_checkpoint_is_that_of_weights_and_two_moments(wide, tmp_path):
    trainer = train(tmp_path, max_steps=2)
    written = sum((tmp_path / "checkpoint-2" / name).stat().st_size for name in ("model.safetensors", "optimizer.pt"))
    assert checkpoint_size(trainer.model) == pytest.approx(written, rel=0.05)
    trainer.model.requires_grad_(False)
    assert checkpoint_size(trainer.model) < written / 2

# SPDX-License-Identifier: Apache-2.0
"""The GPU study without a GPU: every stage by --dry_run; crashes, time limits and resuming; launches from invented times."""

import argparse
import copy
import csv
import importlib
import os
import signal
import sys
import time

import gpu_study as study
import pytest
import torch
from scripts import EXAMPLES, start

from hf_deberta_ext.kernels.triton_launches import LAUNCHES, find_launches

pytest.importorskip("triton")

stages = importlib.import_module("gpu_stages")


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Do a dry run; return its folder, and the output of a second dry run."""
    folder = tmp_path_factory.mktemp("study")
    for _ in range(2):
        process = start(sys.executable, EXAMPLES["gpu_study"], "--dry_run", "--minutes", "30", "--output_dir", folder)
        printed = process.communicate(timeout=900)[0]
        assert process.returncode == 0, printed
    return folder, printed


def test_a_dry_run_does_every_stage_and_leaves_tables_and_figures_a_second_one_finds_nothing(tried):
    folder, again = tried
    report = (folder / "report.md").read_text(encoding="utf-8")
    for name in study.STAGES:
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            assert [*csv.DictReader(file)], name
    for name in ("time", "share", "memory", "training"):
        assert (folder / f"{name}.png").stat().st_size > 5000 and f"({name}.png)" in report
    for text in (
        "| bfloat16 packed dropout 0.1 d 16 near | 7 | triton |", "## 1-layer model, training, float32",
        "## 1-layer model, inference, float32, torch.compile", "## texts of real lengths, inference, float32",
        "| auto, packed (",
        "| BERT + SDPA |", "| ModernBERT + SDPA |", "| bands | 16 | 16 |", "| run_mlm in transformers |", " skipped",
    ):  # fmt: skip
        assert text in report, text
    assert "Failed or missing" not in report
    assert all(f"{name}: 0 cases to run" in again for name in study.STAGES)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run({case: function}, limit): run these cases as a stage; return its problems and results."""

    def run(cases, limit=60.0):
        stage = stages.Stage(lambda args: list(cases), lambda case, args: cases[case]())
        monkeypatch.setitem(stages.STAGES, "times", stage)
        args = argparse.Namespace(output_dir=tmp_path, results=tmp_path / "results.jsonl", jobs=1)
        args.results.touch()
        problems = study.run_stage("times", limit, args)
        return problems, {case: line for (_, case), line in study.latest(args.results).items()}

    return run


def fails():
    raise ValueError("it cannot\nat all")


def test_an_error_and_a_crash_take_no_other_case_with_them(run):
    cases = dict(first=lambda: [dict(x=1)], wrong=fails, crash=lambda: os.kill(os.getpid(), signal.SIGKILL))
    problems, results = run(cases | dict(last=lambda: [dict(x=4)]))
    states = {case: line["state"] for case, line in results.items()}
    assert states == dict(first="done", wrong="failed", crash="failed", last="done")
    assert results["last"]["rows"] == [dict(x=4)]
    assert problems == ["times: wrong: it cannot", "times: crash: its process ended with status -9"]


def test_a_stage_ends_at_its_limit_with_all_that_it_started_and_goes_on_later(run, tmp_path):
    def slow():
        start(sys.executable, "-c", f"import time; time.sleep(4); open({str(tmp_path / 'alive')!r}, 'w')")
        time.sleep(60)

    cases = dict(first=lambda: [dict(x=1)], slow=slow, last=lambda: [dict(x=3)])
    problems, results = run(cases, limit=2)
    assert "stopped at the limit of 2 s, 1 cases are missing" in problems[0]
    assert results["slow"]["state"] == "failed" and "last" not in results and "slow: stopped at the limit" in problems[1]
    # Completed cases are not run again; the case that was stopped comes last.
    cases = {name: lambda name=name: [dict(x=name)] for name in cases}
    problems, results = run(cases)
    assert not problems and results["first"]["rows"] == [dict(x=1)] and list(results) == ["first", "slow", "last"]
    lines = [line for line in (tmp_path / "results.jsonl").read_text().splitlines() if '"began"' in line]
    order = [name for line in lines for name in cases if f'"case": "{name}"' in line]
    assert order == ["first", "slow", "last", "slow"]
    time.sleep(2.5)
    assert not (tmp_path / "alive").exists()


def timed(N, launch, seconds, **more):
    row = dict(kernel="forward", d=64, N=N, launch=launch, usual=[64, 4, 2, 1], capability=90, case="")
    return row | dict(seconds=seconds, seconds_of_table=1.0) | more


def test_the_fastest_launches_are_written_as_a_file_that_sets_them(tmp_path, monkeypatch):
    rows = [timed(N, [32, 4, 2, 1], seconds) for N, seconds in ((128, 0.5), (512, 0.8), (1024, 0.99), (2048, 1.5))]
    rows += [timed(N, [64, 8, 2, 1], 0.9) for N in (128, 512, 1024, 2048)]
    table = study.write_launches(rows, tmp_path)
    assert "| forward | 64 | 512 | [64, 4, 2, 1] | [32, 4, 2, 1] | 0.80 |" in table
    before = copy.deepcopy(LAUNCHES)
    # The fixture restores it.
    monkeypatch.setitem(LAUNCHES, ("forward", "half", 64), before["forward", "half", 64])
    exec((tmp_path / "triton_launches.py").read_text(encoding="utf-8"), {})

    def chosen(N, capability=(9, 0)):
        return find_launches("forward", torch.float16, 64, N, capability)[0]

    assert [chosen(N) for N in (100, 512, 513, 9000)] == [(32, 4, 2, 1)] * 2 + [(64, 8, 2, 1)] * 2
    # Other GPUs and kernels keep their results.
    assert chosen(512, (8, 0)) == before["forward", "half", 64][-1][-1]
    assert all(LAUNCHES[key] == before[key] for key in before if key != ("forward", "half", 64))

# SPDX-License-Identifier: Apache-2.0
"""A table of every fault that can meet a training run, and what came of it.

    python tests/support/fault_matrix.py --log faults.md                                # about ten minutes
    python tests/support/fault_matrix.py --short                                        # under a minute
    python tests/support/fault_matrix.py --script run_glue --fault optimizer --work runs   # a part, whose folders stay

Each script trains a tiny model once without a disturbance. Every fault of faults.py is then made in a copy of the folder as
it was behind the checkpoint in the middle, and the script is started again: it must be refused with a message that names
the cause, or end with the same weights. Exit status 1 where anything else came out, above all other weights with exit 0.
"""

import argparse
import collections
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
from faults import FAULTS, MATERIAL, OTHER, REFUSED, RUN, SAME, SHORT, STOPPED, TOLD, Fault, argv, flags, patched
from kill_and_resume import SCRIPTS, examine, in_child, make_material, preload, run_script
from left_by_kills import losses
from prepared_corpora import make_prepared
from scripts import ROOT

__all__ = ["main"]

SILENT, SLOW, NOT_TRIED = "without a message", "not ended in time", "not tried"


class Case:
    """A start of a script in a folder of its own: a fault, or the undisturbed run (None)."""

    def __init__(self, work: Path, script: str, begun_with: str, fault: Fault | None = None, number: int = 0):
        self.script, self.fault, self.begun_with = script, fault, begun_with
        self.reference = work / f"{script}-from-{begun_with}"
        self.folder = work / f"{script}-{number}" if fault else self.reference
        self.material, self.printed = work / "material", work / f"{self.folder.name}.printed"

    def start(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.material, self.folder / MATERIAL)
        if self.fault and not self.fault.new:
            shutil.copytree(self.reference / "stopped", self.folder / RUN)
        self.began, self.id = time.monotonic(), in_child(self.work, self.printed)

    def work(self):
        os.setsid()
        os.chdir(self.folder)
        os.environ["FAULT_REFERENCE"] = str(self.reference / RUN)
        fault = self.fault
        if fault is None:
            with patched("_save_checkpoint", after=lambda trainer: keep(trainer.state.global_step)):
                run_script(self.script, argv(self.script, False, self.begun_with))
            return
        function, *values = fault.damage or [lambda script: None]
        made = function(self.script, *values)
        with made if isinstance(made, contextlib.AbstractContextManager) else contextlib.nullcontext():
            run_script(self.script, argv(self.script, not fault.new, self.begun_with, **flags(fault.flags)))

    def ended(self, limit: float) -> int | None:
        """The exit status; None while it runs; -9 behind the time limit."""
        done, status = os.waitpid(self.id, os.WNOHANG)
        if not done and time.monotonic() - self.began > limit:
            os.killpg(self.id, signal.SIGKILL)
            done, status = os.waitpid(self.id, 0)
        return os.waitstatus_to_exitcode(status) if done else None

    def outcome(self, code: int) -> tuple[str, str]:
        """The outcome, and the line that was printed with it."""
        fault, text = self.fault, self.printed.read_text(encoding="utf-8", errors="replace")
        last = ([line for line in text.splitlines() if line.strip()] or [""])[-1]
        if code == -signal.SIGKILL:
            return SLOW, last
        if code == 0:
            told = self.line_with_words(text)
            if self.same_weights():
                return (SILENT if fault.words and fault.damage and not told else SAME), told
            told = self.line_with_words((self.folder / RUN / "README.md").read_text(encoding="utf-8"))
            return (TOLD, told) if TOLD in fault.allowed and told else (OTHER, last)
        if last.startswith("NotImplementedError"):
            return NOT_TRIED, last
        if code != 2 or not last.startswith(f"{self.script}.py: error") or not has_all(last, fault.words):
            return SILENT, f"exit status {code}: {last}"
        return (OTHER if fault.keeps and not self.same_weights() else REFUSED), last

    def line_with_words(self, text: str) -> str:
        """ "" where there is none, or no words."""
        lines = [line for line in text.splitlines() if self.fault.words and has_all(line, self.fault.words)]
        return lines[-1] if lines else ""

    def same_weights(self) -> bool:
        from safetensors.numpy import load_file

        folder = self.folder / flags(self.fault.flags).get("output_dir", RUN)
        try:
            if self.fault.by_losses:
                logs = (losses(place / "trainer_state.json") for place in (folder, self.reference / RUN))
                return all(np.isclose(a.get("loss", 0), b.get("loss", 0), rtol=1e-4) for a, b in zip(*logs, strict=True))
            ours, theirs = (load_file(place / "model.safetensors") for place in (folder, self.reference / RUN))
        except (OSError, ValueError):
            return False
        return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def keep(step: int):
    """Copy the folder of the undisturbed run as it is behind the checkpoint at which the others are stopped."""
    if step == STOPPED:
        shutil.copytree(RUN, "stopped")


def has_all(text: str, words: str) -> bool:
    return all(word in text.lower() for word in words.lower().split())


def run_all(cases: list[Case], jobs: int, limit: float):
    """Start the cases, some at a time; yield (case, exit status) as they end."""
    waiting, running = collections.deque(cases), []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(waiting.popleft())
            running[-1].start()
        for case in list(running):
            if (code := case.ended(limit)) is not None:
                running.remove(case)
                yield case, code
        time.sleep(0.01)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--script", nargs="+", default=SCRIPTS, choices=SCRIPTS)
    parser.add_argument("--fault", nargs="+", default=[""], help="only faults with one of these texts in their name")
    parser.add_argument("--short", action="store_true", help="a few faults of each kind, each with one script")
    parser.add_argument("--seed", type=int, default=0, help="of the bits that are flipped")
    parser.add_argument("--jobs", type=int, default=2, help="starts at a time")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a start")
    parser.add_argument("--log", type=Path, help="Markdown: what is printed, too")
    parser.add_argument("--work", type=Path, help="folder for the runs, which stays; default: a temporary one")
    args = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ["FAULT_SEED"] = str(args.seed)
    sys.path.insert(0, str(ROOT))
    preload()
    faults = [fault for fault in FAULTS if fault.name in SHORT or not args.short]
    faults = [fault for fault in faults if any(text in fault.name for text in args.fault)]
    chosen = [(script, fault) for script in args.script for fault in faults if script in fault.scripts]
    if args.short:
        # Each with one of its scripts in turn.
        chosen = [(fault.scripts[number % len(fault.scripts)], fault) for number, fault in enumerate(faults)]
    lines, outcomes, wrong = [], collections.Counter(), 0

    def say(line: str):
        lines.append(line)
        print(line, flush=True)
        if args.log is not None:
            args.log.write_text("\n".join(lines) + "\n", encoding="utf-8")

    # Drawing is a third of a start's time, and no fault's concern.
    drawing = mock.patch("matplotlib.figure.Figure.savefig")
    with drawing, tempfile.TemporaryDirectory() as temporary:
        work, began = (args.work or Path(temporary)).resolve(), time.monotonic()
        shutil.rmtree(work / "material", ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        examine(lambda: make_material(work / "material"), work / "material")
        if any(fault.begun_with == "prepared" for _, fault in chosen):
            examine(lambda: make_prepared(work / "material/text.txt", work / "material/prepared"), work / "material")
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "accelerate"))
        say(f"Seed {args.seed}, {len(chosen)} faults; {versions}.\n")
        say("| script | fault | outcome | message |\n| --- | --- | --- | --- |")
        starts = {
            (script, fault.begun_with) for script, fault in chosen if not fault.new or fault.keeps or SAME in fault.allowed
        }
        for case, code in run_all([Case(work, *start) for start in sorted(starts)], args.jobs, 5 * args.limit):
            if code:
                raise RuntimeError(f"the undisturbed run failed: {case.printed.read_text(encoding='utf-8')[-3000:]}")
        cases = [Case(work, script, fault.begun_with, fault, number) for number, (script, fault) in enumerate(chosen)]
        for case, code in run_all(cases, args.jobs, args.limit):
            outcome, message = case.outcome(code)
            is_right = outcome in (*case.fault.allowed, NOT_TRIED)
            outcomes[case.script, outcome], wrong = outcomes[case.script, outcome] + 1, wrong + (not is_right)
            shown = message.replace("|", "\\|").replace(str(work), "")
            say(f"| {case.script} | {case.fault.name} | {outcome if is_right else f'**{outcome}**'} | {shown[:300]} |")
            if args.work is None:
                shutil.rmtree(case.folder, ignore_errors=True)
        columns = [REFUSED, SAME, TOLD, NOT_TRIED, SILENT, SLOW, OTHER]
        say(f"\n| script | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
        for script in args.script:
            say(f"| {script} | {' | '.join(str(outcomes[script, column]) for column in columns)} |")
        say(f"\n{len(chosen)} faults, {wrong} with another outcome than they may have, in {time.monotonic() - began:.0f} s.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Kills runs of the training scripts with SIGKILL, starts them again, and compares what they end with.

    python tests/support/kill_and_resume.py --script run_mlm run_rtd run_glue --kills 10 --seed 0

Of each script there is one undisturbed run of a tiny model, which keeps all its checkpoints. Then the same run is killed
while a checkpoint, the tokenizer, the model, results or the card are written, and at random times, and resumed. After each
kill all that lies in its folder must be what the undisturbed run had at that step. A run that has ended must have the
weights, results and losses of the undisturbed one to the last bit, and leave nothing else behind. Exit status 1 where
anything differs. Processes are forked from this one, which has imported everything.
"""

import argparse
import functools
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import glue_script
import mlm_script
from left_by_kills import compare_ended, look, read
from scripts import ROOT, module_of

__all__ = [
    "SCRIPTS", "Run", "arguments", "examine", "in_child", "main", "make_material", "preload", "run_script",
]  # fmt: skip

SCRIPTS = ["run_mlm", "run_rtd", "run_glue"]
# What appears in the folder of a run when it may be killed; "" is a random time.
MOMENTS = [
    "", "run_arguments.json", "tokenizer", ".checkpoint-*.part", ".checkpoint-*.part/*/optimizer.pt", "checkpoint-*",
    ".*.removed.part", ".model.part", "config.json", "train_results.json", "eval_results.json", "generator",
]  # fmt: skip


def make_material(folder: Path):
    """Write a text, tables of reviews and a tiny model of random weights for run_glue.py."""
    folder.mkdir(parents=True)
    mlm_script.write_text(folder / "text.txt")
    glue_script.write_material(folder)


def arguments(script: str, material: Path, folder: Path, **more) -> list[str]:
    """Return the command line of a run of 18 steps."""
    flags = dict(max_steps=18, save_steps=2, save_total_limit=2, learning_rate=1e-3, eval_strategy="steps")
    flags |= dict(per_device_train_batch_size=4, eval_steps=10) | more
    if script == "run_glue":
        return glue_script.arguments(material, folder, do_train="true", do_eval="true", **flags)
    return mlm_script.arguments(material / "text.txt", folder, **flags)


def in_child(work: Callable[[], object], output: Path) -> int:
    """Run `work` in a copy of this process, which ends as a script does; return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def run_script(script: str, argv: list[str]):
    # The name that its errors begin with.
    sys.argv[0] = f"{script}.py"
    module_of(script).main(argv)


class Run:
    """A process of a script, whose output goes to a file beside its folder."""

    def __init__(self, script: str, material: Path, folder: Path, **more):
        self.folder, self.output = folder, folder.with_name(f"{folder.name}.printed")
        argv = arguments(script, material, folder, **more)
        self.id = in_child(lambda: run_script(script, argv), self.output)

    def has_ended(self) -> bool:
        """Without taking the exit status away."""
        return os.waitid(os.P_PID, self.id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill_at(self, moment: str, delay: float) -> bool:
        """Kill it so long after a path of the pattern `moment` has appeared; False if it ended before."""
        began, old = time.monotonic(), {*self.folder.glob(moment or "*")}
        while moment and not {*self.folder.glob(moment)} - old and not self.has_ended():
            began = time.monotonic()
        while time.monotonic() - began < delay and not self.has_ended():
            time.sleep(0.0005)
        if self.has_ended():
            return False
        os.kill(self.id, signal.SIGKILL)
        self.wait()
        return True

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])

    def printed(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


def examine(work: Callable[[], object], folder: Path):
    """Return the result of `work` in a copy of this process, so that this one starts no threads."""
    answer, printed = folder.with_name(f"{folder.name}.found"), folder.with_name(f"{folder.name}.examined")
    child = in_child(lambda: answer.write_text(json.dumps(work()), encoding="utf-8"), printed)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"the check failed: {printed.read_text(encoding='utf-8')[-2000:]}")
    return read(answer)


def preload():
    """Import what the scripts import late, so that forked runs start at once."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    sys.path.insert(0, str(ROOT))
    for name in ("accelerate", "datasets", "matplotlib.pyplot", "sentencex", "safetensors.torch", "torch", "hf_deberta_ext"):
        importlib.import_module(name)
    for name in SCRIPTS:
        module_of(name)
    # As in a new interpreter with OMP_NUM_THREADS=1: another number of threads rounds otherwise.
    sys.modules["torch"].set_num_threads(1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--script", nargs="+", default=SCRIPTS, choices=SCRIPTS)
    parser.add_argument("--kills", type=int, default=10, help="of each script, at least")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    preload()
    differences = 0

    print("| script | killed | found |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        material = Path(temporary, "material")
        examine(lambda: make_material(material), material)
        for script in args.script:
            rng, began = random.Random(f"{args.seed} {script}"), time.monotonic()
            reference, folder = Path(temporary, f"{script}-undisturbed"), Path(temporary, script)
            run = Run(script, material, reference, save_total_limit=None)
            if run.wait():
                raise RuntimeError(f"the undisturbed run failed: {run.printed()[-3000:]}")
            seconds, kills, ended = time.monotonic() - began, 0, 0
            moments = []
            while kills < args.kills or not ended:
                moments = moments or rng.sample(MOMENTS, len(MOMENTS))
                moment = moments.pop()
                delay = rng.uniform(0, 0.02)
                if not moment:
                    delay = rng.uniform(0, seconds)
                run = Run(script, material, folder, resume_from_checkpoint="auto")
                if kills < args.kills and run.kill_at(moment, delay):
                    kills += 1
                    event = f"{moment or 'random'} + {1000 * delay:.1f} ms"
                    wrong = examine(functools.partial(look, folder, reference), folder)
                else:
                    ended += 1
                    event, wrong = "ended", [f"failed: {run.printed()[-1000:]}"]
                    if run.wait() == 0:
                        wrong = examine(functools.partial(compare_ended, folder, reference), folder)
                    shutil.rmtree(folder)
                differences += len(wrong)
                print(f"| {script} | {event} | {'; '.join(wrong) or 'as it should be'} |", flush=True)
    print(f"\n{args.kills} kills of each script, {differences} differences.")
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Kills runs of the training scripts with SIGKILL, starts them again, and compares what they end with.

    python tests/support/kill_and_resume.py --script run_mlm run_rtd run_glue --kills 10 --seed 0 --log kills.md

Of each script there is one undisturbed run of a tiny model, which keeps all its checkpoints. Then the same run is killed:
while a checkpoint is being written or removed, the tokenizer trained, the text packed, the model saved, between evaluation
and card, and at random times. After each kill all that lies in its folder must load as what the undisturbed run had at that
step, or be refused; the next start is what the last one says. A run that has ended must have the weights, results and
losses of the undisturbed one to the last bit, and leave nothing else behind. Exit status 1 where anything differs.

Processes are forked from this one, which has imported everything, so that most kills fall where something is written; a
share of them (--fresh) are new interpreters.
"""

import argparse
import dataclasses
import functools
import gc
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import glue_script
import mlm_script
from left_by_kills import STATE, WEIGHTS, compare_ended, look, read
from scripts import ROOT, module_of

from hf_deberta_ext.training.manifest import is_unfinished

__all__ = ["SCRIPTS", "Aim", "Run", "main", "make_material", "moment", "undisturbed"]

SCRIPTS = ["run_mlm", "run_rtd", "run_glue"]
STEPS, SAVE_STEPS = 18, 2


def make_material(folder: Path):
    """A text, tables of reviews and a tiny model of random weights for run_glue.py."""
    folder.mkdir(parents=True)
    mlm_script.write_text(folder / "text.txt")
    glue_script.write_material(folder)


def arguments(script: str, material: Path, folder: Path, resume: bool, **more) -> list[str]:
    flags = dict(max_steps=STEPS, save_steps=SAVE_STEPS, save_total_limit=2, learning_rate=1e-3, eval_strategy="steps")
    flags |= dict(per_device_train_batch_size=4, eval_steps=10) | more
    flags |= dict(resume_from_checkpoint="last") if resume else {}
    if script == "run_glue":
        return glue_script.arguments(material, folder, do_train="true", do_eval="true", **flags)
    return mlm_script.arguments(material / "text.txt", folder, **flags)


class Run:
    """A process of a script, whose output goes to a file beside its folder."""

    def __init__(self, script: str, material: Path, folder: Path, *, resume: bool = False, fresh: bool = False, **more):
        self.folder, self.fresh = folder, fresh
        self.output = folder.with_name(f"{folder.name}.printed")
        argv = arguments(script, material, folder, resume, **more)
        if not fresh:
            self.id = in_child(lambda: run_script(script, argv), self.output)
            return
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.output.open("wb") as printed:
            program = [sys.executable, str(ROOT / "examples" / f"{script}.py"), *argv]
            self.id = subprocess.Popen(program, env=environment, stdout=printed, stderr=subprocess.STDOUT).pid

    def ended(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        done, status = os.waitpid(self.id, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])

    def kill(self) -> int:
        os.kill(self.id, signal.SIGKILL)
        return self.wait()

    def last_line(self) -> str:
        lines = self.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def in_child(work: Callable[[], object], output: Path) -> int:
    """Runs `work` in a copy of this process, which ends as a script does; returns its id."""
    sys.stdout.flush(), sys.stderr.flush()
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
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def run_script(script: str, argv: list[str]):
    # The name that its errors begin with.
    sys.argv[0] = f"{script}.py"
    module_of(script).main(argv)


@dataclasses.dataclass(frozen=True)
class Aim:
    """A moment, and how long after it the kill comes.

    kind: random, checkpoint (the n-th new one appears), removal (a checkpoint loses files), or a path that appears.
    """

    kind: str
    delay: float = 0.0
    number: int = 1

    def __str__(self):
        nth = f" {self.number}" if self.kind == "checkpoint" else ""
        return f"{self.kind}{nth} + {1000 * self.delay:.1f} ms" if self.kind != "random" else f"random, {self.delay:.2f} s"

    def wait(self, run: Run) -> bool:
        """True if the moment came before the run ended."""
        began, contents = time.perf_counter(), moment(self.kind, run.folder, self.number)
        while not (time.perf_counter() - began >= self.delay if self.kind == "random" else next(contents)):
            if finished(run):
                return False
        if self.kind != "random":
            until = time.perf_counter() + self.delay
            while time.perf_counter() < until:
                pass
        return not finished(run)


def finished(run: Run) -> bool:
    """Without taking its exit status away."""
    return os.waitid(os.P_PID, run.id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def checkpoints(folder: Path) -> dict[str, int]:
    """Name -> time of the last change."""
    return {path.name: changed(path) or 0 for path in folder.glob("checkpoint-*")}


def count_files(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except FileNotFoundError:
        return 0


def changed(place: Path) -> int | None:
    try:
        return place.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def moment(kind: str, folder: Path, number: int) -> Iterator[bool]:
    """Looks once for each value it yields."""
    old, appeared_names = checkpoints(folder), set()
    if kind == "checkpoint":
        # One that an earlier kill had cut is written again in place: its name is not new.
        cut = {name for name in old if not (folder / name / STATE).exists() or is_unfinished(folder / name)}
        while len(appeared_names) < number:
            yield False
            now = checkpoints(folder)
            appeared_names |= {name for name in now if name not in old or (name in cut and now[name] > old[name])}
    elif kind == "removal":
        sizes = {}
        while True:
            yield False
            names = {name: count_files(folder / name) for name in checkpoints(folder)}
            lost = [name for name, size in sizes.items() if names.get(name, 0) < size]
            if lost:
                break
            sizes = names
    else:
        was = changed(folder / kind)
        while changed(folder / kind) in (was, None):
            yield False
    while True:
        yield True


def aims(script: str, kills: int, rng: random.Random, seconds: float, writing: float) -> list[list[Aim]]:
    """Chains of moments, each for one run from its first start to its end; not less than `kills` in all.

    Args:
        seconds (`float`): of the undisturbed run.
        writing (`float`): seconds in which it writes a checkpoint.
    """

    def checkpoint(number=None):
        return Aim("checkpoint", rng.uniform(0, 1.1 * writing), number or rng.randint(1, 3))

    def at_random():
        return Aim("random", rng.uniform(0, seconds))

    begin = []
    if script != "run_glue":
        # While the tokenizer is trained, right behind that, and while the text is packed.
        begin.append(Aim("run_arguments.json", rng.uniform(0, 0.02 * seconds)))
        begin.append(Aim("tokenizer", rng.uniform(0, 0.01)))
        begin.append(Aim("tokenizer/training.json", rng.uniform(0, 0.02 * seconds)))
    end = [
        Aim(".model.part", rng.uniform(0, 0.3 * writing)),
        Aim("config.json", rng.uniform(0, 0.02)),
        Aim("train_results.json", rng.uniform(0, 0.02)),
        Aim("eval_results.json", rng.uniform(0, 0.2)),
    ]
    if script == "run_rtd":
        end.append(Aim("generator", rng.uniform(0, 0.05)))
    chains = [
        [*begin, checkpoint(1), checkpoint(), Aim("removal"), at_random(), checkpoint(2), *end],
        [
            at_random(), checkpoint(4), checkpoint(1), Aim("removal", rng.uniform(0, 0.005)), checkpoint(), at_random(),
            Aim(WEIGHTS, rng.uniform(0, 0.03)),
        ],
    ]  # fmt: skip
    while sum(map(len, chains)) < kills:
        chains.append([checkpoint(5), at_random(), checkpoint(), checkpoint()])
    return chains


def examine(work: Callable[[], object], folder: Path):
    """Result of `work` in a copy of this process, so that this one starts no threads."""
    answer, printed = folder.with_name(f"{folder.name}.found"), folder.with_name(f"{folder.name}.examined")
    child = in_child(lambda: answer.write_text(json.dumps(work()), encoding="utf-8"), printed)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError(f"the check failed: {printed.read_text(encoding='utf-8')[-2000:]}")
    return read(answer)


def undisturbed(script: str, material: Path, folder: Path) -> tuple[float, float]:
    """Seconds of the run, and of writing one checkpoint; it keeps all of them."""
    began = time.perf_counter()
    run = Run(script, material, folder, save_total_limit=None)
    appeared, writing = {}, []
    while not finished(run):
        for name in checkpoints(folder):
            now = time.perf_counter()
            if name not in appeared:
                appeared[name] = now
            if appeared[name] and (folder / name / STATE).exists():
                writing.append(now - appeared[name])
                appeared[name] = 0
    seconds = time.perf_counter() - began
    if run.wait():
        raise RuntimeError(f"the undisturbed run failed: {run.output.read_text(encoding='utf-8')[-3000:]}")
    return seconds, sorted(writing)[len(writing) // 2]


def advice_of(run: Run, resumed: bool) -> str:
    """The way out that a refused start prints: "elsewhere" (another folder), "anew" (without resuming), or ""."""
    last = run.last_line()
    if "choose another --output_dir" in last:
        return "elsewhere"
    return "anew" if resumed and "leave --resume_from_checkpoint out" in last else ""


def one_chain(
    script: str, chain: list[Aim], material: Path, work: Path, reference: Path, rng: random.Random, fresh: float, report
):
    """A run that is killed at each moment of the chain that comes, and goes on until it ends.

    Returns the number of kills, what was wrong, and the moments that the run ended before.
    """
    remaining, problems, resume, kills = list(chain), [], False, 0
    folder = work / "run-0"
    for start in range(4 * len(chain) + 8):
        aim = remaining.pop(0) if remaining else None
        run = Run(script, material, folder, resume=resume, fresh=rng.random() < fresh)
        if aim is not None and aim.wait(run):
            run.kill()
            wrong, contents = examine(functools.partial(look, folder, reference), folder)
            kills, problems = kills + 1, problems + wrong
            report(script, f"{'new interpreter, ' if run.fresh else ''}{aim}", "; ".join(contents), wrong)
            resume = True
            continue
        code = run.wait()
        if code == 0:
            wrong = examine(functools.partial(compare_ended, folder, reference), folder)
            report(script, "ended" + (f" before {aim}" if aim is not None else ""), f"after {start + 1} starts", wrong)
            return kills, problems + wrong, remaining
        if aim is not None:
            remaining.insert(0, aim)
        advice = advice_of(run, resume)
        wrong = [] if advice else [f"no way out is said: {run.last_line()}"]
        event = f"start {'with' if resume else 'without'} resuming: refused, {advice}"
        report(script, event, run.last_line().replace(str(work), ""), wrong)
        if wrong:
            return kills, problems + wrong, []
        if advice == "elsewhere":
            folder = work / f"run-{start + 1}"
        resume = False
    return kills, [*problems, "the run never ended"], []


def preload():
    """Import what the scripts import late, so that forked runs start at once."""
    for name in ("accelerate", "datasets", "matplotlib.pyplot", "sentencex", "safetensors.torch", "torch", "hf_deberta_ext"):
        importlib.import_module(name)
    for name in SCRIPTS:
        module_of(name)
    # As in a new interpreter with OMP_NUM_THREADS=1: another number of threads rounds otherwise.
    sys.modules["torch"].set_num_threads(1)
    # A collection in a copy of this process would copy all that is imported.
    gc.freeze()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--script", nargs="+", default=SCRIPTS, choices=SCRIPTS)
    parser.add_argument("--kills", type=int, default=10, help="of each script, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", type=float, default=0.1, help="share of the starts that are new interpreters")
    parser.add_argument("--log", type=Path, help="Markdown: what is printed, too")
    parser.add_argument("--work", type=Path, help="folder for the runs, which stays; default: a temporary one")
    args = parser.parse_args(argv)
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    sys.path.insert(0, str(ROOT))
    preload()
    lines = []

    def say(line: str):
        lines.append(line)
        print(line, flush=True)
        if args.log is not None:
            args.log.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def report(script, event, detail, wrong):
        say(f"| {script} | {event} | {detail} | {'; '.join(wrong) if wrong else 'as it should be'} |")

    with tempfile.TemporaryDirectory() as temporary:
        work, summary = args.work or Path(temporary), {}
        material = work / "material"
        shutil.rmtree(material, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        examine(lambda: make_material(material), material)
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "accelerate"))
        say(f"Seed {args.seed}, at least {args.kills} kills of each script; {versions}.\n")
        say("| script | killed | what there was | found |\n| --- | --- | --- | --- |")
        for script in args.script:
            rng, place = random.Random(f"{args.seed} {script}"), work / script
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            seconds, writing = undisturbed(script, material, place / "undisturbed")
            say(f"| {script} | not | {seconds:.1f} s, a checkpoint in {1000 * writing:.0f} ms | |")
            chains, kills, problems, ran = aims(script, args.kills, rng, seconds, writing), 0, [], 0
            while ran < len(chains):
                (place / f"chain-{ran}").mkdir()
                more, wrong, missed = one_chain(
                    script, chains[ran], material, place / f"chain-{ran}", place / "undisturbed", rng, args.fresh, report
                )
                kills, problems, ran = kills + more, problems + wrong, ran + 1
                if missed:
                    chains.append(missed)
                if ran == len(chains) and kills < args.kills and ran < 20:
                    # Some moments were over before they were met.
                    chains.append([Aim("checkpoint", rng.uniform(0, writing), number) for number in (4, 1)])
            summary[script] = (kills, ran, problems)
        say("\n| script | kills | runs | differences |\n| --- | --- | --- | --- |")
        for script, (kills, ran, problems) in summary.items():
            say(f"| {script} | {kills} | {ran} | {len(problems)} |")
    return int(any(problems for _, _, problems in summary.values()))


if __name__ == "__main__":
    sys.exit(main())

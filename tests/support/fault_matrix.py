# SPDX-License-Identifier: Apache-2.0
"""Table of faults that a training run can meet, and the outcome of each.

    python tests/support/fault_matrix.py                     # some minutes
    python tests/support/fault_matrix.py --short             # under a minute
    python tests/support/fault_matrix.py --script run_glue --fault optimizer
    python tests/support/fault_matrix.py --fault killed      # runs killed while they write

Each script first trains a tiny model without a fault; a copy of its folder is kept as of the checkpoint at step `STOPPED`.
Each fault is made in such a copy, and the script is started again. It must either stop with a message that names the cause,
or end with the same weights. The exit status is 1 for any other outcome; the worst one, other weights with exit 0, is the
last column.
"""

import argparse
import collections
import contextlib
import functools
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import glue_script
import mlm_script
import numpy as np
from left_by_kills import compare_ended, look
from mlm_script import TINY
from safetensors.numpy import load_file
from scripts import ROOT, module_of

SCRIPTS = ("run_mlm", "run_rtd", "run_glue")
STOPPED = 4
RUN, MATERIAL = Path("run"), Path("material")
EARLIER, LAST = RUN / "checkpoint-2", RUN / f"checkpoint-{STOPPED}"
REFUSED, SAME, TOLD = "refused with a message", "same weights", "reported in the card"
SILENT, OTHER = "without a message", "other weights with exit 0"
TEXTS, GLUE = ("run_mlm", "run_rtd"), ("run_glue",)


class Fault(NamedTuple):
    """A fault of a run that is resumed or, with `new`, of a new run."""

    name: str
    # "name=value ..." of the faulty start, in addition to the initial arguments.
    flags: str = ""
    # Called with the script's name in the folder of the case; may return a context manager for the run.
    damage: Callable = lambda script: None
    # Words that must all be in the error message, or in the card.
    words: str = ""
    allowed: str = REFUSED
    scripts: tuple[str, ...] = SCRIPTS
    new: bool = False


def make_material(folder: Path):
    """Write a text, review tables and a tiny model with random weights for run_glue.py."""
    folder.mkdir(parents=True)
    mlm_script.write_text(folder / "text.txt")
    glue_script.write_material(folder)


def argv(script: str, resume: bool, flags: str = "") -> list[str]:
    given = dict(max_steps=6, save_steps=2, per_device_train_batch_size=4, learning_rate=1e-3)
    if resume:
        given["resume_from_checkpoint"] = "last"
    given |= dict(word.split("=", 1) for word in flags.split())
    if script == "run_glue":
        return glue_script.arguments(MATERIAL, RUN, do_train="true", do_eval="true", **given)
    return mlm_script.arguments(MATERIAL / "text.txt", RUN, **given)


def in_child(work: Callable[[], object], output: Path) -> int:
    """Run `work` in a forked process, which exits as a script does; return its id."""
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
    # Prefix of its error messages.
    sys.argv[0] = f"{script}.py"
    module_of(script).main(argv)


def preload():
    """Import the modules that the scripts import late, so that forked runs start quickly."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    sys.path.insert(0, str(ROOT))
    for name in ("accelerate", "datasets", "matplotlib.pyplot", "sentencex", "safetensors.torch", "torch", "hf_deberta_ext"):
        importlib.import_module(name)
    for name in SCRIPTS:
        module_of(name)
    # As in a new interpreter with OMP_NUM_THREADS=1: another number of threads rounds differently.
    sys.modules["torch"].set_num_threads(1)


@contextlib.contextmanager
def after_method(name: str, action: Callable):
    """Return a context that calls `action` with the trainer after each call of the method `name`, in all trainers."""
    from hf_deberta_ext.training.trainer import RunTrainer

    method = getattr(RunTrainer, name)

    def wrapped(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        action(self)
        return result

    with mock.patch.object(RunTrainer, name, wrapped):
        yield


CHANGED = {
    SCRIPTS: """learning_rate=2e-3 per_device_train_batch_size=8 max_grad_norm=0.1 bf16=true attn_implementation=eager
        adam_beta2=0.9 weight_decay=0.5 warmup_steps=3 lr_scheduler_type=cosine optim=adafactor seed=1 max_steps=8
        max_train_samples=12 train_sampling_strategy=sequential
        """ + f"config_overrides={TINY},hidden_dropout_prob=0.3",
    TEXTS: "masking=span masking_rate=0.3 packing=document max_length=24 documents=line vocab_size=280 streaming=true",
    ("run_rtd",): "embedding_sharing=es rtd_lambda=10 temperature=0.5 discriminator_learning_rate=1e-4 stepping=decoupled",
    GLUE: "max_seq_length=8 lora=true sift_weight=1.0 label_smoothing_factor=0.1",
}  # fmt: skip
FREE = """logging_steps=2 save_steps=3 save_total_limit=1 license=mit dataloader_num_workers=1 eval_strategy=steps
    run_name=other"""
FAULTS = [
    Fault(f"--{text}", text, words=text.split("=")[0], scripts=scripts)
    for scripts, texts in CHANGED.items()
    for text in texts.split()
]
FAULTS += [Fault(f"--{text}", text, allowed=SAME) for text in FREE.split()]
FAULTS += [Fault("two batches in a step", "gradient_accumulation_steps=2", words="batch_size = 8")]
FAULTS += [
    Fault("--allow_changed_args", "max_grad_norm=0.1 allow_changed_args=max_grad_norm", words="max_grad_norm", allowed=TOLD)
]


def one_bit(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


KINDS = {
    "40 % zeros": lambda content: content[: len(content) // 2] + bytes(4 * len(content) // 10) + content[-5:],
    "one bit": one_bit,
    "cut": lambda content: content[: len(content) // 2],
}
FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "config.json")


def changed(file: Path, change: Callable[[bytes], bytes]) -> Callable:
    return lambda script: file.write_bytes(change(file.read_bytes()))


# The run resumes from the previous checkpoint, or stops with an error that names the damaged one.
for file in (LAST / name for name in FILES):
    FAULTS += [Fault(f"{file.name}: {kind}", "", changed(file, change), allowed=SAME) for kind, change in KINDS.items()]
    FAULTS += [Fault(f"{file.name}: missing", damage=lambda script, file=file: file.unlink(), allowed=SAME)]
    FAULTS += [Fault(f"{file.name}: named", f"resume_from_checkpoint={LAST}", changed(file, one_bit), file.name)]


def data_file(script: str) -> Path:
    return MATERIAL / dict(run_glue="train.tsv").get(script, "text.txt")


def with_rows(change: Callable[[list[str]], list[str]]) -> Callable:
    """Change documents or training rows, but not the modification time of their file."""

    def damage(script: str):
        file, separator = data_file(script), dict(run_glue="\n").get(script, "\n\n")
        times = file.stat()
        header, *rows = file.read_text("utf-8").rstrip("\n").split(separator)
        file.write_text(separator.join([header, *change(rows)]) + "\n", encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    return damage


FAULTS += [
    Fault("data: one letter", damage=with_rows(lambda rows: [*rows[:-1], rows[-1].replace("e", "i", 1)]), words="digest"),
    Fault("data: cut to 39 rows", damage=with_rows(lambda rows: rows[:39]), words="digest"),
    Fault("data: in another order", damage=with_rows(lambda rows: rows[::-1]), words="digest"),
    Fault("data: missing", damage=lambda script: data_file(script).unlink(), words="material/t"),
    Fault("checkpoint-2 as checkpoint-4", damage=lambda script: copied(EARLIER, LAST), allowed=SAME),
    Fault("no checkpoint", damage=lambda script: [shutil.rmtree(path) for path in (EARLIER, LAST)], words="checkpoint"),
    Fault("learning rate 1e30", "learning_rate=1e30", words="the loss of step", new=True),
    Fault("a new run in the folder of another", damage=lambda script: copied(MATERIAL, RUN), words="not empty", new=True),
]


def copied(source: Path, target: Path):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def other_start(script: str, resume: bool, in_step: Callable) -> int:
    """Start another process that runs the script in the same folder and calls a function in each step; return its id."""

    def start():
        with after_method("training_step", in_step):
            run_script(script, argv(script, resume))

    return in_child(start, Path("other.printed"))


@contextlib.contextmanager
def beside_another(script: str, resume: bool, kill: bool = False):
    """Start the same run in another process; it stays in a step until this process ends, or is killed in that step."""
    in_step, go_on = Path("in a step"), Path("go on")

    def wait(trainer):
        in_step.touch()
        while not go_on.exists():
            time.sleep(0.01)

    other = other_start(script, resume, wait)
    while not in_step.exists():
        time.sleep(0.01)
    if kill:
        os.kill(other, signal.SIGKILL)
    try:
        yield
    finally:
        go_on.touch()
        status = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the first run failed with exit status {status}")


def terminated(script: str):
    """Send SIGTERM, as a batch system does; there must be a checkpoint of the step in which the signal arrived."""
    other = other_start(script, True, lambda trainer: os.kill(os.getpid(), signal.SIGTERM))
    status = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
    if status != 143 or not (RUN / f"checkpoint-{STOPPED + 1}").exists():
        raise RuntimeError(f"exit status {status} after SIGTERM, and {sorted(path.name for path in RUN.iterdir())}")


@contextlib.contextmanager
def killed(script: str, moment: str, resume: bool):
    """Kill the run in another process when a path that matches `moment` has appeared, or at a random time.

    Everything that it leaves, and the result of this run, must be bit-identical to the undisturbed run.
    """
    reference = Path("..", f"{script}-reference", RUN)
    other = in_child(lambda: run_script(script, argv(script, resume, "save_total_limit=2")), Path("other.printed"))
    old, done, rng = {*RUN.glob(moment or "*")}, 0, random.Random(f"{script} {moment}")
    while moment and not done and not {*RUN.glob(moment)} - old:
        done, _ = os.waitpid(other, os.WNOHANG)
    time.sleep(rng.uniform(0, 0.02 if moment else 5))
    if not done:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    wrong = look(RUN, reference)
    yield
    wrong += compare_ended(RUN, reference)
    if wrong:
        raise RuntimeError("; ".join(wrong))


def small_files(script: str):
    """Limit the size of files, as a quota does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


FAULTS += [
    Fault("a second start during the resumed run", damage=lambda name: beside_another(name, True), words="locked"),
    Fault("a second start during a new run", damage=lambda name: beside_another(name, False), words="locked", new=True),
    Fault("after a run that was killed in a step", damage=lambda name: beside_another(name, True, True), allowed=SAME),
    Fault("after SIGTERM", damage=terminated, allowed=SAME),
    Fault("files of limited size", damage=small_files, words="run/checkpoint"),
    Fault("files of limited size, new run", damage=small_files, words="run/checkpoint", new=True),
]
# The run is killed when this path appears in the folder of a new run (False) or a resumed run (True); "" is a random time.
MOMENTS = {
    False: ["run_arguments.json", "tokenizer", ".checkpoint-2.part", ""],
    True: """.checkpoint-6.part .checkpoint-6.part/*/optimizer.pt checkpoint-6 .checkpoint-2.removed.part .model.part
        config.json train_results.json eval_results.json generator""".split(),
}
for resume, moments in MOMENTS.items():
    for moment in moments:
        damage = functools.partial(killed, moment=moment, resume=resume)
        name = f"killed at {moment or 'any time'}"
        flags = "save_total_limit=2 resume_from_checkpoint=auto"
        FAULTS.append(Fault(name, flags, damage, allowed=SAME, new=not resume))
# Faults of the short form.
SHORT = """--max_grad_norm=0.1|--logging_steps=2|--allow_changed_args|model.safetensors: one bit|optimizer.pt: 40 % zeros|
data: one letter|a second start during the resumed run|files of limited size|after SIGTERM|
killed at .checkpoint-6.part""".replace("\n", "").split("|")


class Case:
    """One run of a script in its own folder, with a fault, or undisturbed (None)."""

    def __init__(self, work: Path, script: str, fault: Fault | None = None, number: int = 0):
        self.script, self.fault = script, fault
        self.reference = work / f"{script}-reference"
        self.folder, self.material = self.reference, work / "material"
        if fault is not None:
            self.folder = work / f"{script}-{number}"
        self.printed = work / f"{self.folder.name}.printed"

    def start(self):
        shutil.copytree(self.material, self.folder / MATERIAL)
        if self.fault and not self.fault.new:
            shutil.copytree(self.reference / "stopped", self.folder / RUN)
        self.began, self.id = time.monotonic(), in_child(self.work, self.printed)

    def work(self):
        os.setsid()
        os.chdir(self.folder)
        with contextlib.ExitStack() as stack:
            if self.fault is None:
                stack.enter_context(after_method("_save_checkpoint", keep))
                run_script(self.script, argv(self.script, False))
                return
            made = self.fault.damage(self.script)
            if isinstance(made, contextlib.AbstractContextManager):
                stack.enter_context(made)
            run_script(self.script, argv(self.script, not self.fault.new, self.fault.flags))

    def ended(self, limit: float) -> int | None:
        """Return the exit status: None while the process runs, -9 after the time limit."""
        done, status = os.waitpid(self.id, os.WNOHANG)
        if not done and time.monotonic() - self.began > limit:
            os.killpg(self.id, signal.SIGKILL)
            done, status = os.waitpid(self.id, 0)
        if done:
            return os.waitstatus_to_exitcode(status)
        return None

    def outcome(self, code: int) -> tuple[str, str]:
        """Return the outcome, and the line that reports it."""
        lines = self.printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = [*lines, ""][len(lines) - 1]
        if code == 0 and self.same_weights():
            return SAME, last
        if code == 0:
            card = (self.folder / RUN / "README.md").read_text(encoding="utf-8")
            return (TOLD if self.fault.allowed == TOLD and self.fault.words in card else OTHER), last
        named_cause = last.startswith(f"{self.script}.py: error") and all(word in last for word in self.fault.words.split())
        if code == 2 and named_cause:
            return REFUSED, last
        return SILENT, f"exit status {code}: {last}"

    def same_weights(self) -> bool:
        files = [place / RUN / "model.safetensors" for place in (self.folder, self.reference)]
        if not all(file.exists() for file in files):
            return False
        ours, theirs = map(load_file, files)
        return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def keep(trainer):
    """Copy the folder of the undisturbed run at the checkpoint where the other runs are stopped."""
    if trainer.state.global_step == STOPPED:
        shutil.copytree(RUN, "stopped")


def run_all(cases: list[Case], limit: float):
    """Start the cases, two at a time; yield (case, exit status) when each ends."""
    waiting, running = [*cases], []
    while waiting or running:
        if waiting and len(running) < 2:
            running.append(waiting.pop(0))
            running[-1].start()
        for case in [*running]:
            code = case.ended(limit)
            if code is not None:
                running.remove(case)
                yield case, code
        time.sleep(0.01)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--script", nargs="+", default=SCRIPTS, choices=SCRIPTS)
    parser.add_argument("--fault", default="", help="only run faults whose name contains this text")
    parser.add_argument("--short", action="store_true", help="run a few faults of each kind, each with one script")
    args = parser.parse_args(arguments)
    preload()
    faults = [fault for fault in FAULTS if args.fault in fault.name and (fault.name in SHORT or not args.short)]
    chosen = [(script, fault) for script in args.script for fault in faults if script in fault.scripts]
    if args.short:
        # The scripts take turns.
        chosen = [(fault.scripts[number % len(fault.scripts)], fault) for number, fault in enumerate(faults)]
    outcomes, wrong = collections.Counter(), 0
    # Figures take a third of a start's time, and no fault concerns them.
    with mock.patch("matplotlib.figure.Figure.savefig"), tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        # In a separate process, because this one must not start threads.
        os.waitpid(in_child(lambda: make_material(work / "material"), work / "printed"), 0)
        print("| script | fault | outcome | message |\n| --- | --- | --- | --- |")
        references = [Case(work, script) for script in sorted({script for script, _ in chosen})]
        for case, code in run_all(references, 600):
            if code:
                raise RuntimeError(f"the undisturbed run failed: {case.printed.read_text(encoding='utf-8')[-3000:]}")
        cases = [Case(work, script, fault, number) for number, (script, fault) in enumerate(chosen)]
        for case, code in run_all(cases, 120):
            outcome, message = case.outcome(code)
            outcomes[case.script, outcome] += 1
            if outcome != case.fault.allowed:
                wrong += 1
                outcome = f"**{outcome}**"
            print(f"| {case.script} | {case.fault.name} | {outcome} | {message.replace('|', '/')[:300]} |", flush=True)
            shutil.rmtree(case.folder)
        columns = [REFUSED, SAME, TOLD, SILENT, OTHER]
        print(f"\n| script | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
        for script in args.script:
            print(f"| {script} | {' | '.join(str(outcomes[script, column]) for column in columns)} |")
    print(f"\n{len(chosen)} faults, {wrong} with an unexpected outcome.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

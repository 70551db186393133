# SPDX-License-Identifier: Apache-2.0
"""Faults that can meet a run of run_mlm.py, run_rtd.py or run_glue.py, and what may come of each: rows of the fault matrix.

A run has been stopped behind its checkpoint at step `STOPPED`; the fault is made in the working directory, which holds
`run/` and `material/` of that run alone, and the script is started again.
"""

import contextlib
import ctypes
import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import kill_and_resume
from kill_and_resume import in_child, run_script

__all__ = ["FAULTS", "MATERIAL", "OTHER", "REFUSED", "RUN", "SAME", "STOPPED", "TOLD", "Fault", "argv", "patched"]

STEPS, STOPPED = 6, 4
RUN, MATERIAL, MODEL = Path("run"), Path("material"), Path("material/model")
EARLIER, LAST = Path("run/checkpoint-2"), Path(f"run/checkpoint-{STOPPED}")
REFUSED, SAME, TOLD, OTHER = "refused with a message", "same weights", "told", "other weights with exit 0"
SCRIPTS, TEXTS, GLUE = tuple(kill_and_resume.SCRIPTS), ("run_mlm", "run_rtd"), ("run_glue",)


class Fault(NamedTuple):
    """A disturbance of a run.

    Args:
        flags (`dict`): of the disturbed start, beside those that the run began with.
        damage (`Callable`): script -> None, or a context manager around the start. Called in the folder of the case.
        words: in the message of a run that is refused, and in what one prints that goes on behind a damage: all of them.
        allowed: outcomes that are right.
        from_model (`bool`): the run began with weights and tokenizer of `MODEL`; in run_glue.py always.
        new (`bool`): a new run is started, in place of one that is resumed.
        keeps (`bool`): a refused start leaves the run in the folder, which ends with the same weights.
        by_losses (`bool`): the same up to the rounding of steps that are computed in another way.
        short (`bool`): also in the short form of the matrix.
    """

    name: str
    flags: Any = MappingProxyType({})
    damage: Callable[[str], Any] | None = None
    words: Sequence[str] = ()
    allowed: Sequence[str] = (REFUSED,)
    scripts: Sequence[str] = SCRIPTS
    from_model: bool = False
    new: bool = False
    keeps: bool = False
    by_losses: bool = False
    short: bool = False


def argv(script: str, resume: bool, from_model: bool, **more) -> list[str]:
    common = dict(max_steps=STEPS, save_steps=2, save_total_limit=None, eval_strategy="no", eval_steps=None)
    common |= dict(model=MODEL) if from_model and script != "run_glue" else {}
    return kill_and_resume.arguments(script, MATERIAL, more.pop("output_dir", RUN), resume, **(common | more))


@contextlib.contextmanager
def patched(name: str, before=lambda trainer: None, after=lambda trainer: None):
    """Context in which a method of every trainer of the package has something done before and after it."""
    from hf_deberta_ext.training.trainer import RunTrainer

    method = getattr(RunTrainer, name)

    def wrapped(self, *args, **kwargs):
        before(self)
        result = method(self, *args, **kwargs)
        after(self)
        return result

    with mock.patch.object(RunTrainer, name, wrapped):
        yield


# ------- flags


CHANGED = {
    SCRIPTS: dict(
        learning_rate=2e-3, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_grad_norm=0.1, bf16="true",
        attn_implementation="eager", adam_beta1=0.5, adam_beta2=0.9, adam_epsilon=1e-3, weight_decay=0.5, warmup_steps=3,
        lr_scheduler_type="cosine", optim="adafactor", seed=1, data_seed=1, max_steps=8, ignore_data_skip="true",
        neftune_noise_alpha=5, accelerator_config='{"use_seedable_sampler": false}', max_train_samples=12,
        train_sampling_strategy="sequential", config_overrides=f"{kill_and_resume.mlm_script.TINY},hidden_dropout_prob=0.3",
    ),
    TEXTS: dict(
        masking="span", masking_rate=0.3, mask_share=0.5, random_share=0.05, masking_policy="official", masking_duplicates=2,
        packing="document", max_length=24, min_tokens=30, documents="line", validation_documents=20, vocab_size=280,
        train_tokenizer="unigram", preset="v3-small", streaming="true",
    ),
    ("run_mlm",): dict(mlm_weight=2.0, sbo_weight=1.0),
    ("run_rtd",): dict(
        embedding_sharing="es", rtd_lambda=10, temperature=0.5, generator_layers=2, generator_overrides="hidden_size=16",
        loss_without_special_tokens="true", discriminator_learning_rate=1e-4, discriminator_max_grad_norm=0.1,
        discriminator_warmup_steps=3, stepping="decoupled",
    ),
    GLUE: dict(
        max_seq_length=8, pad_to_multiple_of=32, from_scratch="true", dtype="bfloat16", lora="true", sift_weight=1.0,
        label_smoothing_factor=0.1, dataloader_drop_last="true",
    ),
}  # fmt: skip
FREE = {
    SCRIPTS: dict(
        logging_steps=2, logging_strategy="epoch", save_steps=3, save_total_limit=1, save_strategy="no", license="mit",
        dataloader_num_workers=1, per_device_eval_batch_size=1, eval_strategy="steps", eval_on_start="true",
        disable_tqdm="false", log_level="error", run_name="other", cache_dir="other", torch_empty_cache_steps=1,
    ),
    TEXTS: dict(num_proc=2),
    GLUE: dict(preprocessing_num_workers=2, card_language="en", do_eval="false"),
}  # fmt: skip
UNUSED = {
    SCRIPTS: dict(num_train_epochs=9, max_eval_samples=5, auto_find_batch_size="true", full_determinism="true"),
    TEXTS: dict(language="de", max_span=3),
    GLUE: dict(sift_radius=0.5, test_file=MATERIAL / "test.csv", model_type="deberta-ext"),
}
EITHER = dict(allowed=(REFUSED, SAME))
SHORT = ("learning_rate", "max_grad_norm", "logging_steps", "one bit", "optimizer.pt: 40 % zeros")
FAULTS = [
    Fault(f"--{name} {value}", {name: value}, None, [name], allowed, scripts, short=name in SHORT)
    for table, allowed in ((CHANGED, [REFUSED]), (FREE, [SAME]), (UNUSED, [REFUSED, SAME]))
    for scripts, flags in table.items()
    for name, value in flags.items()
]
POLYNOMIAL = dict(lr_scheduler_type="polynomial", lr_scheduler_kwargs='{"power": 2}')
HALVES = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)
BEST = dict(load_best_model_at_end="true", eval_strategy="steps", eval_steps=2)
FAULTS += [
    Fault("--lr_scheduler_kwargs", POLYNOMIAL, words=["lr_scheduler_kwargs"]),
    Fault("two halves of a batch in a step", HALVES, by_losses=True, **EITHER),
    Fault("--gradient_checkpointing", {"gradient_checkpointing": "true"}, by_losses=True, **EITHER),
    Fault("--load_best_model_at_end", BEST, **EITHER),
]


# ------- files of the run


def zeroed(content: bytes, other: bytes = b"") -> bytes:
    start, count = 3 * len(content) // 10, 4 * len(content) // 10
    return content[:start] + bytes(count) + content[start + count :]


def one_bit(content: bytes, other: bytes = b"") -> bytes:
    bit = random.Random(f"{os.environ['FAULT_SEED']} {len(content)}").randrange(8 * len(content))
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def of_step_2(content: bytes, other: bytes) -> bytes:
    return other


def cut(content: bytes, other: bytes = b"") -> bytes:
    return content[: len(content) // 2]


KINDS = {"40 % zeros": zeroed, "one bit": one_bit, "cut": cut, "missing": None, "of step 2": of_step_2}
TENSORS = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
# They are the same at every step.
SETTINGS = ("config.json", "tokenizer.json", "training_args.bin")


def damaged(*files: Path, kind: str):
    def damage(script):
        for file in files:
            content, other = file.read_bytes(), EARLIER / file.name
            if KINDS[kind] is None:
                file.unlink()
            else:
                file.write_bytes(KINDS[kind](content, other.read_bytes() if other.exists() else b""))

    return damage


def edited(file: Path, **changes):
    def damage(script):
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), encoding="utf-8")

    return damage


def renamed(script):
    shutil.rmtree(LAST)
    EARLIER.rename(LAST)


FAULTS += [
    Fault(
        name := f"{file}: {kind}", {}, damaged(LAST / file, kind=kind), [file], **EITHER,
        short=name in SHORT or (file, kind) == ("model.safetensors", "one bit"),
    )
    for file in (*TENSORS, *SETTINGS)
    for kind in KINDS
    if not (file in SETTINGS and kind == "of step 2")
]  # fmt: skip
FAULTS += [
    Fault(
        f"{file}: one bit, its checkpoint named",
        dict(resume_from_checkpoint=LAST),
        damaged(LAST / file, kind="one bit"),
        [file],
    )
    for file in (*TENSORS, *SETTINGS)
]
FAULTS += [
    Fault(f"{file}: {kind}", {}, damaged(RUN / file, kind=kind), words, **EITHER, scripts=scripts)
    for file, scripts, words in (("run_arguments.json", SCRIPTS, ()), ("tokenizer/tokenizer.json", TEXTS, ["tokenizer"]))
    for kind in KINDS
    if kind != "of step 2"
]
MOMENTS = [LAST / file for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth")]
WEIGHTS = [folder / "model.safetensors" for folder in (EARLIER, LAST)]
FAULTS += [
    Fault("optimizer, schedule and generators of step 2", {}, damaged(*MOMENTS, kind="of step 2"), **EITHER, short=True),
    Fault("trainer_state.json: max_steps 100", {}, edited(LAST / "trainer_state.json", max_steps=100), **EITHER),
    Fault("checkpoint-2 as checkpoint-4", {}, renamed, **EITHER),
    Fault("checkpoint-4 as checkpoint-5 too", {}, lambda script: shutil.copytree(LAST, RUN / "checkpoint-5"), **EITHER),
    Fault("model.safetensors of all checkpoints: one bit", {}, damaged(*WEIGHTS, kind="one bit"), ["model.safetensors"]),
    Fault("no checkpoint", {}, lambda script: [shutil.rmtree(path) for path in (EARLIER, LAST)], ["checkpoint"]),
    Fault("the run's folder moved", {"output_dir": "moved"}, lambda script: RUN.rename("moved"), allowed=(SAME,)),
    Fault("another folder for the results", {"output_dir": "new", "resume_from_checkpoint": LAST, "learning_rate": 2e-3}),
]


# ------- data, tokenizer, starting weights


def data_file(script) -> Path:
    return MATERIAL / ("train.tsv" if script == "run_glue" else "text.txt")


def data(change: Callable[[list[str]], list[str]]):
    """Change documents or rows to train on, but not the time of their file."""

    def damage(script):
        file, separator = data_file(script), "\n" if script == "run_glue" else "\n\n"
        times = file.stat()
        header, *rows = file.read_text("utf-8").rstrip("\n").split(separator)
        file.write_text(separator.join([header, *change(rows)]) + "\n", encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    return damage


def copied(name: str, open_file=open):
    def damage(script):
        with open_file(MATERIAL / name, "wb") as file:
            file.write(data_file(script).read_bytes())

    return damage


def tensors(change: Callable[[Any], Any]):
    """Change each tensor of the starting model."""

    def damage(script):
        from safetensors.torch import load_file, save_file

        file = MODEL / "model.safetensors"
        save_file({name: change(tensor) for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})

    return damage


def misspelt(script):
    """One bit of a name."""
    file = MODEL / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"layer.1.output.dense.weight", b"layer.1.outpuu.dense.weight", 1))


def tokenizer_of(words: int | None):
    """A tokenizer of so many words in place of the model's; None: none at all."""

    def damage(script):
        from tiny_models import tiny_tokenizer

        for file in MODEL.glob("*token*"):
            file.unlink()
        if words is not None:
            tiny_tokenizer([f"w{number}" for number in range(words)]).save_pretrained(MODEL)

    return damage


def swapped(file: Path):
    def damage(script):
        content = json.loads(file.read_text("utf-8"))
        vocabulary = content["model"]["vocab"]
        vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
        file.write_text(json.dumps(content), encoding="utf-8")

    return damage


DATA = {
    "other words": lambda rows: [row.replace("river", "hotel").replace("film", "poem") for row in rows],
    "one letter": lambda rows: [*rows[:-1], rows[-1].replace("e", "i", 1)],
    "cut to 39 rows": lambda rows: rows[:39],
    "in another order": lambda rows: rows[::-1],
    "a row twice": lambda rows: [*rows, rows[0]],
}
LABELS = lambda rows: [row[:-1] + "10"[int(row[-1])] for row in rows]  # noqa: E731
FAULTS += [Fault(f"data: {name}", {}, data(change), short=name == "one letter") for name, change in DATA.items()]
FAULTS += [
    Fault(f"data: {name} with the same content", {flag: MATERIAL / name}, copied(name, opened), scripts=scripts, **EITHER)
    for scripts, flag, kind in ((TEXTS, "train_data", "txt"), (GLUE, "train_file", "tsv"))
    for name, opened in ((f"other.{kind}", open), (f"other.{kind}.gz", gzip.open))
]
RATE = dict(hidden_dropout_prob=0.3)
FAULTS += [
    Fault("data: labels swapped", {}, data(LABELS), scripts=GLUE, short=True),
    Fault("data: missing", {}, lambda script: data_file(script).unlink(), ["material/t"]),
    Fault("run/tokenizer: two ids swapped", {}, swapped(RUN / "tokenizer/tokenizer.json"), ["tokenizer"], scripts=TEXTS),
    Fault("tokenizer of the model: two ids swapped", {}, swapped(MODEL / "tokenizer.json"), ["tokenizer"], from_model=True),
    Fault("starting weights: changed", {}, tensors(lambda tensor: tensor + 0.5), from_model=True, **EITHER),
    Fault("starting config.json: dropout", {}, edited(MODEL / "config.json", **RATE), from_model=True),
]
STARTS = {
    "no file of a tokenizer": (tokenizer_of(None), ["tokenizer"]),
    "a tokenizer of 7 entries": (tokenizer_of(2), ["tokenizer"]),
    "a tokenizer of 900 entries": (tokenizer_of(895), ["tokenizer"]),
    "weights int64": (tensors(lambda tensor: (100 * tensor).long()), ["int64"]),
    "weights bool": (tensors(lambda tensor: tensor > 0), ["bool"]),
    "weights complex": (tensors(lambda tensor: tensor + 0j), ["complex"]),
    "weights not finite": (tensors(lambda tensor: tensor / 0), ["finite"]),
    "weights cut": (damaged(MODEL / "model.safetensors", kind="cut"), [str(MODEL)]),
    "config.json cut": (damaged(MODEL / "config.json", kind="cut"), [str(MODEL)]),
    "tokenizer.json cut": (damaged(MODEL / "tokenizer.json", kind="cut"), ["tokenizer"]),
    "one bit in the name of a weight": (misspelt, ["layer.1.outpuu.dense.weight", "layer.1.output.dense.weight"]),
}
ONE_WORD = ("weights int64", "no file of a tokenizer")
FAULTS += [
    Fault(
        f"start: {name}",
        {},
        *row,
        (REFUSED, TOLD) if "one bit" in name else (REFUSED,),
        SCRIPTS,
        True,
        True,
        short=name in ONE_WORD,
    )
    for name, row in STARTS.items()
]
FAULTS += [
    Fault("learning rate 100", {"learning_rate": 100}, None, ["diverge"], (REFUSED, TOLD), new=True, short=True),
    Fault("learning rate 1e30", {"learning_rate": 1e30}, None, ["finite"], new=True),
    Fault("a new run in the folder of another", {}, lambda script: shutil.copytree(MODEL, RUN), ["not empty"], new=True),
]


# ------- damaged data


def parquet(*names: str) -> bytes:
    import pyarrow
    from pyarrow import parquet

    columns = [pyarrow.array([0, 1] * 50 if name == "label" else ["the film was fine"] * 100) for name in names]
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns, names=list(names)), buffer)
    return buffer.getvalue().to_pybytes()


LINE = b'{"sentence": "a film", "text": "a film", "label": 1}\n'
TABLE = b"sentence,text,label\n" + b"a film,a film,1\n" * 50
DAMAGED = {
    "cut.parquet": lambda: parquet("sentence", "label", "text")[:-100],
    "zeros.parquet": lambda: zeroed(parquet("sentence", "label", "text")),
    "twice.parquet": lambda: parquet("sentence", "label", "text", "text"),
    "cut.jsonl": lambda: LINE * 50 + LINE[:20],
    "utf16.jsonl": lambda: (LINE * 50).decode().encode("utf-16"),
    "nested.json": lambda: b"[" * 5000,
    "deep.jsonl": lambda: LINE * 9 + b'{"text": ' + b"[" * 100_000,
    "quote.csv": lambda: TABLE + b'"a film,a film,1\n' * 3,
    "latin1.csv": lambda: TABLE + "un été,un été,1\n".encode("latin-1"),
    "twice.csv": lambda: TABLE.replace(b"text", b"text,text").replace(b"a film,", b"a film,b,"),
    "short.csv": lambda: TABLE + b"a film\n",
    "zeros.csv": lambda: zeroed(TABLE),
    "empty.csv": lambda: b"",
    "cut.jsonl.gz": lambda: gzip.compress(LINE * 50)[:-9],
    "bit.csv.gz": lambda: one_bit(gzip.compress(TABLE)),
    "not.csv.gz": lambda: TABLE,
    "bomb.jsonl.gz": lambda: gzip.compress(LINE * 1_000_000),
}


def written(name: str):
    return lambda script: MATERIAL.joinpath(name).write_bytes(DAMAGED[name]())


LIMIT = {"bomb.jsonl.gz": dict(max_file_bytes=1_000_000)}
FAULTS += [
    Fault(
        f"data: {name}",
        {flag: MATERIAL / name} | LIMIT.get(name, {}),
        written(name),
        [name],
        scripts=scripts,
        new=True,
        short=name in LIMIT,
    )
    for scripts, flag in ((TEXTS, "train_data"), (GLUE, "train_file"))
    for name in DAMAGED
]


# ------- other processes, signals, the disk


def other_start(
    script: str, resume: bool, before: Callable[[], Any], in_step: Callable[[Any], Any] = lambda trainer: None
) -> int:
    """The id of another process that runs the script in the same folder, and does something before it and in each step."""

    def start():
        before()
        with patched("training_step", in_step):
            run_script(script, argv(script, resume, False))

    return in_child(start, Path("other.printed"))


def end_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def beside_another(resume: bool, kill: bool = False):
    """The same run in another process, which is in a step until this one has ended, or until it is killed."""
    in_step, go_on = Path("in a step"), Path("go on")

    def wait(trainer):
        in_step.touch()
        while not go_on.exists():
            time.sleep(0.01)

    @contextlib.contextmanager
    def damage(script):
        other = other_start(script, resume, lambda: None, wait)
        while not in_step.exists():
            time.sleep(0.01)
        if kill:
            os.kill(other, signal.SIGKILL)
            end_of(other)
        try:
            yield
        finally:
            go_on.touch()
            if not kill and (status := end_of(other)):
                raise RuntimeError(f"the run that was there first has failed, exit status {status}")

    return damage


def terminated(script):
    """As a batch system ends a run; there is a checkpoint of the step in which it came."""
    status = end_of(other_start(script, True, lambda: None, lambda trainer: os.kill(os.getpid(), signal.SIGTERM)))
    if status not in (143, -signal.SIGTERM) or not (RUN / f"checkpoint-{STOPPED + 1}").exists():
        raise RuntimeError(f"exit status {status} after SIGTERM, and {sorted(path.name for path in RUN.iterdir())}")


def small_files(script=None):
    """Files cannot be larger than half of an optimizer's state, as with a quota."""
    size = Path(os.environ["FAULT_REFERENCE"], LAST.name, "optimizer.pt").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def behind_small_files(resume: bool):
    def damage(script):
        if not end_of(other_start(script, resume, small_files)):
            raise RuntimeError("the files were not limited")

    return damage


@contextlib.contextmanager
def mounted(*options: str):
    """The run's folder on a file system of its own, which this process alone sees."""
    RUN.mkdir(exist_ok=True)
    shutil.copytree(RUN, "before")
    if ctypes.CDLL(None).unshare(0x00020000) or subprocess.call(["mount", "--make-rprivate", "/"]):
        raise NotImplementedError("mounting needs root")
    for words in options:
        subprocess.check_call(["mount", *words.split(), "run"])
    if "tmpfs" in options[0]:
        shutil.copytree("before", RUN, dirs_exist_ok=True)
    try:
        yield
    finally:
        files = [file.relative_to("before") for file in Path("before").rglob("checkpoint-*/*")]
        if changed := [str(file) for file in files if (RUN / file).read_bytes() != Path("before", file).read_bytes()]:
            raise RuntimeError(f"not as they were: {changed}")


def small_disk(checkpoints: float):
    """A disk with room for so many more of them."""

    def damage(script):
        place = Path(os.environ["FAULT_REFERENCE"])
        sizes = [4096 + file.stat().st_size // 4096 * 4096 for file in (place / LAST.name).iterdir()]
        present = sum(4096 + file.stat().st_size // 4096 * 4096 for file in RUN.rglob("*"))
        return mounted(f"-t tmpfs -o size={int(present + checkpoints * sum(sizes))} none")

    return damage


FAULTS += [
    Fault("a second start beside the resumed run", {}, beside_another(True), ["process"], keeps=True, short=True),
    Fault("a second start beside a new run", {}, beside_another(False), ["process"], new=True, keeps=True),
    Fault(
        "--overwrite_output_dir beside a new run", {"overwrite_output_dir": "true"}, beside_another(False), ["process"],
        new=True, keeps=True, scripts=GLUE,
    ),
    Fault("behind a run that was killed in a step", {}, beside_another(True, kill=True), allowed=(SAME,)),
    Fault("behind SIGTERM", {}, terminated, allowed=(SAME,), short=True),
    Fault("files of limited size", {}, small_files, ["run/"], short=True),
    Fault("files of limited size, new run", {}, small_files, ["run/"], new=True),
    Fault("behind files of limited size", {}, behind_small_files(True), allowed=(SAME,)),
    Fault("behind files of limited size, new run", {}, behind_small_files(False), allowed=(SAME,), new=True),
    Fault("no room for a checkpoint", {}, small_disk(0.7), ["run/", "free"]),
    Fault("no room for a checkpoint, new run", {}, small_disk(0.7), ["run/", "free"], new=True),
    Fault("no room for the model", {}, small_disk(1.2), ["run", "free"]),
    Fault("read-only folder", {}, lambda script: mounted("--bind run", "-o remount,ro,bind"), ["run"]),
]  # fmt: skip

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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import kill_and_resume
from kill_and_resume import in_child, run_script
from prepared_corpora import other_shards

__all__ = [
    "FAULTS", "MATERIAL", "OTHER", "REFUSED", "RUN", "SAME", "SHORT", "STOPPED", "TOLD", "Fault", "argv", "flags", "patched",
]  # fmt: skip

STEPS, STOPPED = 6, 4
RUN, MATERIAL, MODEL, STARTING = (
    Path(name) for name in ("run", "material", "material/model", "material/model/model.safetensors")
)
PREPARED, SHARD = Path("material/prepared"), "train/00001.arrow"
FROM_PREPARED = dict(train_data=PREPARED, tokenizer=PREPARED / "tokenizer", validation_documents=None)
EARLIER, LAST = Path("run/checkpoint-2"), Path(f"run/checkpoint-{STOPPED}")
REFUSED, SAME, TOLD, OTHER = "refused with a message", "same weights", "told in the card", "other weights with exit 0"
EITHER = (REFUSED, SAME)
SCRIPTS, TEXTS, GLUE = tuple(kill_and_resume.SCRIPTS), ("run_mlm", "run_rtd"), ("run_glue",)


class Fault(NamedTuple):
    """A disturbance of a run.

    Args:
        flags (`str`): "name=value ..." of the disturbed start, beside those that the run began with.
        damage (`tuple`): a function and its arguments, called with the script before them in the folder of the case. What it
            returns may be a context manager around the start.
        words (`str`): all are in the message of a refused run, in what one prints that goes on behind a damage, or in the
            card.
        allowed: outcomes that are right.
        begun_with (`str`): what the run learns from: "text", "prepared", or "model", with weights and tokenizer of `MODEL`;
            in run_glue.py always that.
        new (`bool`): a new run is started, in place of one that is resumed.
        keeps (`bool`): a refused start leaves the run in the folder, which ends with the same weights.
        by_losses (`bool`): the same up to the rounding of steps that are computed in another way.
    """

    name: str
    flags: str = ""
    damage: tuple = ()
    words: str = ""
    allowed: tuple[str, ...] = (REFUSED,)
    scripts: tuple[str, ...] = SCRIPTS
    begun_with: str = "text"
    new: bool = False
    keeps: bool = False
    by_losses: bool = False


def flags(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


def argv(script: str, resume: bool, begun_with: str, **more) -> list[str]:
    common = dict(max_steps=STEPS, save_steps=2, save_total_limit=None, eval_strategy="no", eval_steps=None)
    if script != "run_glue":
        common |= dict(text={}, model=dict(model=MODEL), prepared=FROM_PREPARED)[begun_with]
    resume = resume and "resume_from_checkpoint" not in more
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


CHANGED = {
    SCRIPTS: """learning_rate=2e-3 per_device_train_batch_size=8 max_grad_norm=0.1 bf16=true
        attn_implementation=eager adam_beta1=0.5 adam_beta2=0.9 adam_epsilon=1e-3 weight_decay=0.5 warmup_steps=3
        lr_scheduler_type=cosine optim=adafactor seed=1 data_seed=1 max_steps=8 ignore_data_skip=true max_train_samples=12
        neftune_noise_alpha=5 accelerator_config={"use_seedable_sampler":false} train_sampling_strategy=sequential
        """ + f"config_overrides={kill_and_resume.mlm_script.TINY},hidden_dropout_prob=0.3",
    TEXTS: """masking=span masking_rate=0.3 mask_share=0.5 random_share=0.05 masking_duplicates=2
        packing=document max_length=24 min_tokens=30 documents=line validation_documents=20 vocab_size=280 preset=v3-small
        train_tokenizer=unigram streaming=true""",
    ("run_mlm",): "mlm_weight=2.0 sbo_weight=1.0",
    ("run_rtd",): """embedding_sharing=es rtd_lambda=10 temperature=0.5 generator_layers=2 discriminator_learning_rate=1e-4
        generator_overrides=hidden_size=16 loss_without_special_tokens=true discriminator_max_grad_norm=0.1
        discriminator_warmup_steps=3 stepping=decoupled masking_policy=official""",
    GLUE: """max_seq_length=8 pad_to_multiple_of=32 from_scratch=true dtype=bfloat16 lora=true sift_weight=1.0
        label_smoothing_factor=0.1 dataloader_drop_last=true""",
}  # fmt: skip
FREE = {
    SCRIPTS: """logging_steps=2 logging_strategy=epoch save_steps=3 save_total_limit=1 save_strategy=no license=mit
        dataloader_num_workers=1 per_device_eval_batch_size=2 eval_strategy=steps eval_on_start=true disable_tqdm=false
        log_level=error run_name=other cache_dir=other torch_empty_cache_steps=1""",
    TEXTS: "num_proc=2",
    GLUE: "preprocessing_num_workers=2 card_language=en",
}
# Of no effect on these runs: refused, or ended with the same weights.
UNUSED = {
    SCRIPTS: "num_train_epochs=9 max_eval_samples=5 auto_find_batch_size=true full_determinism=true",
    TEXTS: "language=de max_span=3",
    GLUE: "sift_radius=0.5 test_file=material/test.csv model_type=deberta-ext",
}
FAULTS = [
    Fault(f"--{text}", text, (), text.split("=")[0], allowed, scripts)
    for table, allowed in ((CHANGED, (REFUSED,)), (FREE, (SAME,)), (UNUSED, EITHER))
    for scripts, texts in table.items()
    for text in texts.split()
]
HALVES = "per_device_train_batch_size=2 gradient_accumulation_steps=2"
POLYNOMIAL = 'lr_scheduler_type=polynomial lr_scheduler_kwargs={"power":2}'
BEST = """load_best_model_at_end=true metric_for_best_model=eval_loss greater_is_better=true eval_strategy=steps eval_steps=1
    save_steps=1"""
FAULTS += [
    Fault("--lr_scheduler_kwargs", POLYNOMIAL, words="lr_scheduler_kwargs"),
    Fault("two halves of a batch", HALVES, by_losses=True, allowed=EITHER),
    Fault("--gradient_checkpointing", "gradient_checkpointing=true", by_losses=True, allowed=EITHER),
    Fault("two batches in a step", "gradient_accumulation_steps=2", words="begun with"),
    Fault("--resume_anyway", "max_grad_norm=0.1 resume_anyway=max_grad_norm", (), "resumed max_grad_norm", (TOLD,)),
    Fault("the best model", BEST, allowed=EITHER),
]


def zeroed(content: bytes, other: bytes = b"") -> bytes:
    start, count = 3 * len(content) // 10, 4 * len(content) // 10
    return content[:start] + bytes(count) + content[start + count :]


def one_bit(content: bytes, other: bytes = b"") -> bytes:
    bit = random.Random(f"{os.environ['FAULT_SEED']} {len(content)}").randrange(8 * len(content))
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def cut(content: bytes, other: bytes = b"") -> bytes:
    return content[: len(content) // 2]


KINDS = {"40 % zeros": zeroed, "one bit": one_bit, "cut": cut, "missing": None, "of step 2": lambda content, other: other}
BROKEN = [*KINDS][:4]
TENSORS = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
# They are the same at every step.
SETTINGS = ("config.json", "tokenizer.json", "training_args.bin")


def damaged(script: str, kind: str, *files: Path):
    for file in files:
        content, other = file.read_bytes(), EARLIER / file.name
        if KINDS[kind] is None:
            file.unlink()
        else:
            file.write_bytes(KINDS[kind](content, other.read_bytes() if other.exists() else b""))


def edited(script: str, file: Path, changes: dict[str, Any]):
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), encoding="utf-8")


def copied(script: str, source: Path, target: Path):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


FAULTS += [
    Fault(f"{file}: {kind}", "", (damaged, kind, LAST / file), f"{LAST.name} {file}", EITHER)
    for file in (*TENSORS, *SETTINGS)
    for kind in KINDS
    if kind != "of step 2" or file in TENSORS
]
FAULTS += [
    Fault(f"{file}: one bit, named", f"resume_from_checkpoint={LAST}", (damaged, "one bit", LAST / file), file)
    for file in (*TENSORS, *SETTINGS)
]
FAULTS += [
    Fault(f"{file}: {kind}", "", (damaged, kind, RUN / file), words, EITHER, scripts)
    for file, scripts, words in (("run_arguments.json", SCRIPTS, ""), ("tokenizer/tokenizer.json", TEXTS, "tokenizer"))
    for kind in BROKEN
]
MOMENTS = [LAST / file for file in TENSORS[1:4]]
FAULTS += [
    Fault("optimizer, schedule and generators of step 2", "", (damaged, "of step 2", *MOMENTS), "", EITHER),
    Fault("trainer_state.json: max_steps", "", (edited, LAST / "trainer_state.json", dict(max_steps=100)), "", EITHER),
    Fault("checkpoint-2 as checkpoint-4", "", (copied, EARLIER, LAST), "", EITHER),
    Fault("checkpoint-4 as checkpoint-5 too", "", (copied, LAST, RUN / "checkpoint-5"), "", EITHER),
    Fault("one bit in all weights", "", (damaged, "one bit", LAST / TENSORS[0], EARLIER / TENSORS[0]), TENSORS[0]),
    Fault("no checkpoint", "", (lambda script: [shutil.rmtree(path) for path in (EARLIER, LAST)],), "checkpoint"),
    Fault("the run's folder moved", "output_dir=moved", (lambda script: RUN.rename("moved"),), allowed=(SAME,)),
    Fault("another folder for the results", f"output_dir=new resume_from_checkpoint={LAST} learning_rate=2e-3"),
]


def data_file(script: str) -> Path:
    return MATERIAL / ("train.tsv" if script == "run_glue" else "text.txt")


def rows(script: str, change: Callable[[list[str]], list[str]]):
    """Change documents or rows to train on, but not the time of their file."""
    file, separator = data_file(script), "\n" if script == "run_glue" else "\n\n"
    times = file.stat()
    header, *old = file.read_text("utf-8").rstrip("\n").split(separator)
    file.write_text(separator.join([header, *change(old)]) + "\n", encoding="utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def tensors(script: str, change: Callable[[Any], Any]):
    """Change each tensor of the starting model."""
    from safetensors.torch import load_file, save_file

    changed = {name: change(tensor) for name, tensor in load_file(STARTING).items()}
    save_file(changed, STARTING, metadata={"format": "pt"})


def misspelt(script: str):
    """One bit of a tensor's name."""
    STARTING.write_bytes(STARTING.read_bytes().replace(b"layer.1.output.dense.weight", b"layer.1.outpuu.dense.weight", 1))


def tokenizer_of(script: str, words: int | None):
    """A tokenizer of so many words in place of the model's; None: no tokenizer at all."""
    from tiny_models import tiny_tokenizer

    for file in MODEL.glob("*token*"):
        file.unlink()
    if words is not None:
        tiny_tokenizer([f"w{number}" for number in range(words)]).save_pretrained(MODEL)


def swapped(script: str, file: Path):
    """Two ids of a tokenizer."""
    content = json.loads(file.read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    file.write_text(json.dumps(content), encoding="utf-8")


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
}


def written(script: str, name: str):
    """A file of `DAMAGED`, or the same rows in another one."""
    rows = gzip.compress(data_file(script).read_bytes()) if name.endswith(".gz") else data_file(script).read_bytes()
    (MATERIAL / name).write_bytes(DAMAGED[name]() if name in DAMAGED else rows)


def other_corpus(script: str, with_manifest: bool):
    other_shards(PREPARED, with_manifest)


DATA = {
    "other words": lambda old: [row.replace("river", "hotel").replace("film", "poem") for row in old],
    "one letter": lambda old: [*old[:-1], old[-1].replace("e", "i", 1)],
    "cut to 39 rows": lambda old: old[:39],
    "in another order": lambda old: old[::-1],
    "a row twice": lambda old: [*old, old[0]],
}
STARTS = {
    "no tokenizer": ("tokenizer", tokenizer_of, None),
    "a tokenizer of 7 entries": ("tokenizer", tokenizer_of, 2),
    "a tokenizer of 900 entries": ("tokenizer", tokenizer_of, 895),
    "weights int64": ("int64", tensors, lambda tensor: (100 * tensor).long()),
    "weights bool": ("bool", tensors, lambda tensor: tensor > 0),
    "weights complex": ("complex", tensors, lambda tensor: tensor * (1 + 1j)),
    "weights not finite": ("finite", tensors, lambda tensor: tensor / 0),
    "weights cut": (str(MODEL), damaged, "cut", STARTING),
    "config.json cut": (str(MODEL), damaged, "cut", MODEL / "config.json"),
    "tokenizer.json cut": ("tokenizer", damaged, "cut", MODEL / "tokenizer.json"),
    "a bit in a weight's name": ("layer.1.outpuu.dense.weight layer.1.output.dense.weight", misspelt),
}
FAULTS += [Fault(f"data: {name}", "", (rows, change)) for name, change in DATA.items()]
FAULTS += [
    Fault(f"data: {name}, the same rows", f"{flag}=material/{name}", (written, name), "", EITHER, scripts)
    for scripts, flag, kind in ((TEXTS, "train_data", "txt"), (GLUE, "train_file", "tsv"))
    for name in (f"other.{kind}", f"other.{kind}.gz")
]


def from_prepared(name: str, damage: tuple = (), words: str = "", allowed: tuple[str, ...] = (REFUSED,)) -> Fault:
    flag = name[2:] if name.startswith("--") else ""
    return Fault(f"prepared: {name}", flag, damage, words or flag.split("=")[0], allowed, TEXTS, "prepared")


FAULTS += [
    from_prepared("--shuffle_buffer=5"),
    from_prepared("--max_length=24"),
    from_prepared("--dataloader_num_workers=2", allowed=(SAME,)),
    *(from_prepared(f"manifest.json: {kind}", (damaged, kind, PREPARED / "manifest.json"), "prepared") for kind in BROKEN),
    *(from_prepared(f"a shard: {kind}", (damaged, kind, PREPARED / SHARD), SHARD) for kind in BROKEN[2:]),
    from_prepared("every shard another one", (other_corpus, False), "shard"),
    from_prepared("another corpus", (other_corpus, True), "data_digest"),
    from_prepared("two ids of the tokenizer", (swapped, PREPARED / "tokenizer/tokenizer.json"), "tokenizer"),
]
FAULTS += [
    Fault("data: labels swapped", "", (rows, lambda old: [row[:-1] + "10"[int(row[-1])] for row in old]), "", scripts=GLUE),
    Fault("data: missing", "", (lambda script: data_file(script).unlink(),), "material/t"),
    Fault("run/tokenizer: two ids", "", (swapped, RUN / "tokenizer/tokenizer.json"), "tokenizer", scripts=TEXTS),
    Fault("start: two ids of the tokenizer", "", (swapped, MODEL / "tokenizer.json"), "tokenizer", begun_with="model"),
    Fault("start: other weights", "", (tensors, lambda tensor: tensor + 0.5), "", EITHER, begun_with="model"),
    Fault(
        "start: another config.json", "", (edited, MODEL / "config.json", dict(hidden_dropout_prob=0.3)), begun_with="model"
    ),
    Fault("learning rate 100", "learning_rate=100", (), "diverge", (REFUSED, TOLD), new=True),
    Fault("learning rate 1e30", "learning_rate=1e30", (), "the loss of step", new=True),
    Fault("a new run in the folder of another", "", (copied, MODEL, RUN), "is not empty", new=True),
]
FAULTS += [
    Fault(
        f"new run, {name}", "", damage, words, (REFUSED, TOLD) if damage == (misspelt,) else (REFUSED,), begun_with="model",
        new=True,
    )
    for name, (words, *damage) in STARTS.items()
]  # fmt: skip
FAULTS += [
    Fault(
        f"data: {name}", f"{flag}=material/{name}", (written, name), name, scripts=scripts, new=True,
    )
    for scripts, flag in ((TEXTS, "train_data"), (GLUE, "train_file"))
    for name in DAMAGED
]  # fmt: skip


def other_start(
    script: str, resume: bool, before: Callable[[], Any], in_step: Callable[[Any], Any] = lambda trainer: None
) -> int:
    """The id of another process that runs the script in the same folder, and does something before it and in each step."""

    def start():
        before()
        with patched("training_step", in_step):
            run_script(script, argv(script, resume, "text"))

    return in_child(start, Path("other.printed"))


def end_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@contextlib.contextmanager
def beside_another(script: str, resume: bool, kill: bool = False):
    """The same run in another process, which is in a step until this one has ended, or until it is killed."""
    in_step, go_on = Path("in a step"), Path("go on")

    def wait(trainer):
        in_step.touch()
        while not go_on.exists():
            time.sleep(0.01)

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


def terminated(script: str):
    """As a batch system ends a run; there is a checkpoint of the step in which the signal came."""
    status = end_of(other_start(script, True, lambda: None, lambda trainer: os.kill(os.getpid(), signal.SIGTERM)))
    if status != 143 or not (RUN / f"checkpoint-{STOPPED + 1}").exists():
        raise RuntimeError(f"exit status {status} after SIGTERM, and {sorted(path.name for path in RUN.iterdir())}")


def small_files(script: str = ""):
    """Files cannot be larger than half of an optimizer's state, as with a quota."""
    size = Path(os.environ["FAULT_REFERENCE"], LAST.name, "optimizer.pt").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def behind_small_files(script: str, resume: bool):
    if not end_of(other_start(script, resume, small_files)):
        raise RuntimeError("the files were not limited")


@contextlib.contextmanager
def mounted(script: str, *options: str):
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


def small_disk(script: str, checkpoints: float):
    """A disk with room for so many more of them."""

    def pages(folder):
        return sum(4096 + file.stat().st_size // 4096 * 4096 for file in folder.rglob("*"))

    size = pages(RUN) + checkpoints * pages(Path(os.environ["FAULT_REFERENCE"], LAST.name))
    return mounted(script, f"-t tmpfs -o size={int(size)} none")


FAULTS += [
    Fault("a second start beside the resumed run", "", (beside_another, True), "process", keeps=True),
    Fault("a second start beside a new run", "", (beside_another, False), "process", new=True, keeps=True),
    Fault(
        "--overwrite_output_dir beside a new run", "overwrite_output_dir=true", (beside_another, False), "process",
        new=True, keeps=True, scripts=GLUE,
    ),
    Fault("behind a run that was killed in a step", "", (beside_another, True, True), allowed=(SAME,)),
    Fault("behind SIGTERM", "", (terminated,), allowed=(SAME,)),
    Fault("files of limited size", "", (small_files,), "run/"),
    Fault("files of limited size, new run", "", (small_files,), "run/", new=True),
    Fault("behind files of limited size", "", (behind_small_files, True), allowed=(SAME,)),
    Fault("behind files of limited size, new run", "", (behind_small_files, False), allowed=(SAME,), new=True),
    Fault("no room for a checkpoint", "", (small_disk, 0.7), "run/ free"),
    Fault("no room for a checkpoint, new run", "", (small_disk, 0.7), "run/ free", new=True),
    Fault("no room for the model", "", (small_disk, 1.2), "run free"),
    Fault("read-only folder", "", (mounted, "--bind run", "-o remount,ro,bind"), "run"),
]  # fmt: skip
# Those of the short form.
SHORT = {
    "--max_grad_norm=0.1", "--logging_steps=2", "model.safetensors: one bit", "optimizer.pt: 40 % zeros",
    "optimizer, schedule and generators of step 2", "data: one letter", "learning rate 100", "new run, no tokenizer",
    "new run, weights int64", "data: cut.jsonl.gz", "a second start beside the resumed run", "files of limited size",
    "behind SIGTERM",
}  # fmt: skip

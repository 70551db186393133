# SPDX-License-Identifier: Apache-2.0
"""Runs that resume with other processes, or are restarted by torchrun, have the losses of an undisturbed run."""

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import glue_script
import mlm_script as mlm
import pytest
import torch
from accumulation import exact_accumulation
from prepared_corpora import make_prepared
from scripts import EXAMPLES, ROOT, module_of, start

from hf_deberta_ext.training.checkpoints import checkpoint_problem

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")]
text, material = mlm.text, glue_script.material
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
STEPS, NAMES = 40, ("loss", "mlm_loss", "generator_loss", "discriminator_loss", "grad_norm")
# 16 rows a step, with fewer rows at the end of an epoch; with dropout.
BATCH = dict(
    max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2, save_steps=10, logging_steps=1,
    learning_rate=1e-3, max_train_samples=90,
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(text):
    """Return the rows for run_mlm.py; run_rtd.py packs the rows of `text`."""
    make_prepared(text, text.parent / "prepared")
    return text.parent / "prepared"


@pytest.fixture(scope="module")
def command(request):
    """Return command(script, folder, *more): the arguments of a run, without the launcher's."""

    def words(script, folder, *more):
        if script == "run_glue":
            flags = glue_script.arguments(request.getfixturevalue("material"), folder, "--do_train", *more, **BATCH)
        elif script == "run_mlm":
            rows = request.getfixturevalue("prepared")
            prepared_flags = dict(tokenizer=rows / "tokenizer", validation_documents=None, shuffle_buffer=16)
            flags = mlm.arguments(rows, folder, *more, **prepared_flags, **BATCH)
        else:
            flags = mlm.arguments(request.getfixturevalue("text"), folder, *more, **BATCH)
        return [str(EXAMPLES[script]), *flags]

    return words


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """Return whole(script): the folder of an undisturbed run of two processes."""

    @functools.cache
    def run(script):
        folder = tmp_path_factory.mktemp("whole") / script
        mlm.finish(start(*mlm.TORCHRUN, *command(script, folder)))
        return folder

    return run


def losses(folder):
    """Return {step: values} of the log."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return {entry["step"]: [entry[name] for name in NAMES if name in entry] for entry in history if "loss" in entry}


def assert_same_losses(folder, expected, first):
    found, expected = losses(folder), losses(expected)
    assert [*found] == [*expected] == [*range(1, STEPS + 1)]
    for step in range(first, STEPS + 1):
        assert found[step] == pytest.approx(expected[step], rel=1e-4), step


@exact_accumulation
@pytest.mark.parametrize("script", ["run_mlm", "run_rtd", pytest.param("run_glue", marks=pytest.mark.slow(always=True))])
def test_two_processes_then_one_then_two_have_the_losses_of_two(script, command, whole, tmp_path, caplog):
    """Each run has the same flags; the number of accumulation steps follows the number of processes."""
    resume = ("--resume_from_checkpoint", "last")
    one = mlm.copy_checkpoint(whole(script), tmp_path / "one", 10)
    module_of(script).main(command(script, one, *resume)[1:])
    assert "gradient_accumulation_steps is set to 4, to keep the 16 examples per step of this run" in caplog.text
    assert_same_losses(one, whole(script), first=11)
    two = mlm.copy_checkpoint(one, tmp_path / "two", 20)
    mlm.finish(start(*mlm.TORCHRUN, *command(script, two, *resume)))
    assert_same_losses(two, whole(script), first=21)


@pytest.fixture
def agent(command, tmp_path):
    """Return agent(number): torchrun on one of two nodes, each with one process, in its own session."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    running = []

    def begin(number):
        words = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", "--max_restarts", "3",
            "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{port}", "--rdzv_conf", f"is_host={int(number == 0)}",
            "--rdzv_id", "run", "--local_addr", "localhost",
        ]  # fmt: skip
        words += command("run_glue", tmp_path / "run", "--resume_from_checkpoint", "auto")
        with (tmp_path / f"printed-{number}-{len(running)}").open("w") as printed:
            # Otherwise torch keeps the store of the first start, in which a restarted node finds no address.
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **FRESH_STORE}
            running.append(subprocess.Popen(words, env=environment, stdout=printed, stderr=printed, start_new_session=True))
        return running[-1]

    yield begin
    for process in running:
        kill([process.pid, *workers(process)])
        process.wait()


def workers(agent):
    """Return the ids of the processes that an agent has started."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    return [int(number) for number in children.read_text().split()] if children.is_file() else []


def kill(processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def wait_for(checkpoint, agents):
    end = time.monotonic() + 200
    while checkpoint_problem(checkpoint) is not None:
        assert time.monotonic() < end and all(agent.poll() is None for agent in agents)
        time.sleep(0.01)


@exact_accumulation
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find processes")
def test_two_nodes_of_which_one_dies_end_with_the_losses_of_two_left_alone(agent, whole, tmp_path):
    """torchrun restarts the workers when one dies; a dead node is restarted by hand while the other waits."""
    run, nodes = tmp_path / "run", [agent(0), agent(1)]
    wait_for(run / "checkpoint-10", nodes)
    first_workers = workers(nodes[0])
    kill(workers(nodes[1]))
    wait_for(run / "checkpoint-20", nodes)
    assert workers(nodes[0]) != first_workers
    kill([nodes[1].pid, *workers(nodes[1])])
    nodes[1].wait()
    nodes[1] = agent(1)
    for node in nodes:
        assert node.wait(timeout=300) == 0, [file.read_text()[-2000:] for file in tmp_path.glob("printed-*")]
    assert_same_losses(run, whole("run_glue"), first=1)
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    assert results["train_resumed_at_step"] >= 20


SLURM = {
    "scontrol": 'case $1 in show) echo localhost;; *) echo "$@" >> "$CALLS";; esac',
    # The command of a job step, here on two "nodes" on this machine: signals to srun reach its tasks.
    "srun": '"$@" & one=$!; "$@" & other=$!; trap "kill -TERM $one $other" TERM; wait $one; wait $one; wait $other',
}


@exact_accumulation
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, because the job is a shell script")
def test_a_slurm_job_told_to_end_saves_queues_again_and_goes_on(command, whole, tmp_path):
    for name, line in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    run, calls = tmp_path / "run", tmp_path / "calls"
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = dict(SLURM_JOB_NUM_NODES="2", SLURM_JOB_NODELIST="node[1-2]", SLURM_JOB_ID=str(os.getpid()), CALLS=str(calls))
    environment = job | {"PATH": path, "PET_LOCAL_ADDR": "localhost"}
    words = ["bash", str(ROOT / "examples" / "cluster" / "train.sbatch"), *command("run_glue", run)]
    first = start(*words, **environment)
    wait_for(run / "checkpoint-10", [first])
    first.send_signal(signal.SIGTERM)
    printed, _ = first.communicate(timeout=300)
    assert first.returncode == 0, printed[-3000:]
    assert calls.read_text(encoding="utf-8").split() == ["requeue", job["SLURM_JOB_ID"]]
    assert not (run / "model.safetensors").exists()
    mlm.finish(start(*words, **environment))
    assert_same_losses(run, whole("run_glue"), first=1)

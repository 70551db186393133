# SPDX-License-Identifier: Apache-2.0
"""Runs that go on with another number of processes, and those that torchrun restarts: the losses of one left alone."""

import json
import shutil
import sys

import glue_script
import mlm_script as mlm
import pytest
import torch
from accumulation import exact_accumulation
from scripts import EXAMPLES, start

pytest.importorskip("sentencex")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo"),
]
text, material = mlm.text, glue_script.material
STEPS, NAMES = 40, ("loss", "mlm_loss", "generator_loss", "discriminator_loss", "grad_norm")
# 16 rows a step, and a rest of them at the end of an epoch; with dropout.
BATCH = dict(
    max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2, save_steps=10, logging_steps=1,
    learning_rate=1e-3, max_train_samples=90,
)  # fmt: skip


@pytest.fixture
def command(request):
    """command(script, folder, *more): the words of a run, without those of its launcher."""

    def words(script, folder, *more):
        if script == "run_glue":
            flags = glue_script.arguments(request.getfixturevalue("material"), folder, "--do_train", *more, **BATCH)
        else:
            flags = mlm.arguments(request.getfixturevalue("text"), folder, *more, **BATCH)
        return [str(EXAMPLES[script]), *flags]

    return words


def losses(folder):
    """{step: values} of the log."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return {entry["step"]: [entry[name] for name in NAMES if name in entry] for entry in history if "loss" in entry}


def assert_same_losses(folder, expected, first):
    found, expected = losses(folder), losses(expected)
    assert [*found] == [*expected] == [*range(1, STEPS + 1)]
    for step in range(first, STEPS + 1):
        assert found[step] == pytest.approx(expected[step], rel=1e-4), step


def stopped(folder, place, step):
    """A copy of a run's folder as it was when checkpoint `step` had been saved."""
    place.mkdir()
    for name in (f"checkpoint-{step}", "run_arguments.json", "tokenizer"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, place / name)
        elif (folder / name).is_file():
            shutil.copy(folder / name, place / name)
    return place


@exact_accumulation
@pytest.mark.parametrize("script", ["run_mlm", "run_rtd", "run_glue"])
def test_two_processes_then_one_then_two_have_the_losses_of_two(script, command, tmp_path):
    """With the same flags each time: the accumulation follows the number of processes."""
    whole, resume = tmp_path / "whole", ("--resume_from_checkpoint", "last")
    mlm.finish(start(*mlm.TORCHRUN, *command(script, whole)))
    one = stopped(whole, tmp_path / "one", 10)
    printed = mlm.finish(start(sys.executable, *command(script, one, *resume)))
    assert "gradient_accumulation_steps = 4, for the 16 examples of a step that this run began with" in printed
    assert_same_losses(one, whole, first=11)
    two = stopped(one, tmp_path / "two", 20)
    mlm.finish(start(*mlm.TORCHRUN, *command(script, two, *resume)))
    assert_same_losses(two, whole, first=21)

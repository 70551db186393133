# SPDX-License-Identifier: Apache-2.0
"""SIGTERM in a training: a checkpoint at the end of the step, exit status 143, and the same weights when it goes on."""

import json
import os
import signal
import sys

import mlm_script
import pytest
from scripts import EXAMPLES
from small_pretraining import build, train
from transformers import TrainerCallback

from hf_deberta_ext.training.checkpoints import checkpoint_problem
from hf_deberta_ext.training.run_folder import resume_checkpoint
from hf_deberta_ext.training.termination import TERMINATED, Termination
from hf_deberta_ext.training.user_errors import ExitOnUserError

pytest.importorskip("accelerate")
text = mlm_script.text
SCRIPTS = EXAMPLES["run_mlm"].parent


class Terminate(TrainerCallback):
    """Sends SIGTERM to this process in the middle of a step."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def train_until_terminated(folder, step, capsys, **arguments):
    trainer = build(folder, **arguments)
    trainer.add_callback(Terminate(step))
    with pytest.raises(SystemExit) as ended, ExitOnUserError():
        trainer.train()
    assert ended.value.code == TERMINATED == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert f"stopped by SIGTERM after step {step}: " in capsys.readouterr().err.strip().splitlines()[-1]


BEST = dict(save_strategy="best", eval_strategy="steps", eval_steps=1, metric_for_best_model="eval_loss")


@pytest.mark.parametrize(
    "step, arguments",
    [
        (3, {}),
        (4, {}),
        (8, {}),
        (3, dict(save_strategy="no")),
        # Trainer removes all checkpoints but the best when a training ends.
        (5, dict(save_total_limit=1, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2)),
        (3, BEST | dict(greater_is_better=True)),
        (3, BEST | dict(greater_is_better=False)),
    ],
)
def test_a_terminated_run_goes_on_to_the_weights_of_one_that_was_not(step, arguments, tmp_path, capsys):
    train(tmp_path / "whole")
    train_until_terminated(tmp_path / "run", step, capsys, **arguments)
    last = resume_checkpoint(tmp_path / "run", "last")
    assert last == str(tmp_path / "run" / f"checkpoint-{step}")
    assert not (tmp_path / "run" / "model.safetensors").exists() and not (tmp_path / "run" / ".run.lock").exists()
    if "load_best_model_at_end" not in arguments:
        train(tmp_path / "run", last)
        mlm_script.assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_checkpoint_without_an_optimizer_is_not_promised_to_go_on(tmp_path, capsys):
    trainer = build(tmp_path, save_only_model=True)
    trainer.add_callback(Terminate(2))
    with pytest.raises(SystemExit):
        trainer.train()
    assert "no run can go on from it, with --save_only_model" in capsys.readouterr().err


def test_a_handler_of_somebody_else_stays():
    def theirs(number, frame):
        pass

    signal.signal(signal.SIGTERM, theirs)
    try:
        with Termination() as termination:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is theirs and not termination.requested
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("signals, ends_inside", [(1, False), (2, True)])
def test_a_signal_that_no_step_answers_ends_the_process_as_ever(signals, ends_inside):
    """Behind the last step, or a second time."""
    child = os.fork()
    if not child:
        with Termination():
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
            if ends_inside:
                os._exit(1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_script_is_terminated_in_all_of_its_processes(processes, text, tmp_path):
    """Only one of them gets the signal; all end behind the same step."""
    sender = tmp_path / "script.py"
    sender.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(EXAMPLES['run_mlm'].parent)!r})\n"
        "import run_mlm\n"
        "from hf_deberta_ext.training.trainer import RunTrainer\n"
        "step = RunTrainer.training_step\n"
        "def training_step(self, *args, **kwargs):\n"
        f"    if self.state.global_step == 2 and self.args.process_index == {processes - 1}:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return step(self, *args, **kwargs)\n"
        "RunTrainer.training_step = training_step\n"
        "run_mlm.main()\n",
        encoding="utf-8",
    )
    program = [sys.executable] if processes == 1 else mlm_script.TORCHRUN
    process = mlm_script.start(*program, str(sender), *mlm_script.arguments(text, tmp_path / "run", max_steps=40))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == (TERMINATED if processes == 1 else 1), printed[-3000:]
    assert printed.count("stopped by SIGTERM after step 3: go on with --resume_from_checkpoint last") == 1
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert checkpoint_problem(checkpoint) is None
    assert json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"] == 3
    states = [f"rng_state_{number}.pth" for number in range(processes)] if processes > 1 else ["rng_state.pth"]
    assert all((checkpoint / state).is_file() for state in states)

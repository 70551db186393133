# SPDX-License-Identifier: Apache-2.0
"""SIGTERM or Ctrl-C during training: a checkpoint at the end of the step, and the same weights after a resume."""

import os
import signal

import mlm_script
import pytest
from scripts import EXAMPLES, start
from small_pretraining import build, train
from transformers import TrainerCallback

from hf_deberta_ext.training.checkpoints import checkpoint_problem
from hf_deberta_ext.training.run_folder import resume_checkpoint
from hf_deberta_ext.training.termination import TERMINATED, Termination
from hf_deberta_ext.training.user_errors import ExitOnUserError, resume_advice

text = mlm_script.text
SCRIPTS = EXAMPLES["run_mlm"].parent


class Terminate(TrainerCallback):
    """Send a signal to this process in the middle of a step, perhaps several times."""

    def __init__(self, step, number=signal.SIGTERM, times=1):
        self.step, self.number, self.times = step, number, times

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


def train_until_stopped(folder, capsys, terminate, status, **arguments):
    """Train until the signal ends the run with this exit status; returns what was printed on stderr."""
    trainer = build(folder, **arguments)
    trainer.add_callback(terminate)
    with pytest.raises(SystemExit) as ended, ExitOnUserError() as errors:
        errors.resume_advice = resume_advice(["--max_steps", "8"], "train")
        trainer.train()
    assert ended.value.code == status
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return capsys.readouterr().err


def test_ctrl_c_saves_and_prints_the_command_that_resumes_the_same_run(tmp_path, capfd):
    train(tmp_path / "whole")
    printed = train_until_stopped(tmp_path / "run", capfd, Terminate(3, signal.SIGINT), 130)
    assert "Ctrl-C: saving a checkpoint after this step; press it again to stop at once" in printed
    assert printed.endswith("stopped; to resume: train --max_steps 8 --resume_from_checkpoint auto\n")
    assert printed.count("resume_from_checkpoint") == 1
    last = resume_checkpoint(tmp_path / "run", "auto")
    assert last == str(tmp_path / "run" / "checkpoint-3")
    train(tmp_path / "run", last)
    mlm_script.assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_second_ctrl_c_stops_at_once(tmp_path, capfd):
    train_until_stopped(tmp_path / "run", capfd, Terminate(3, signal.SIGINT, times=2), 130)
    assert resume_checkpoint(tmp_path / "run", "last") == str(tmp_path / "run" / "checkpoint-2")


def test_a_run_that_replaced_its_folder_is_resumed_in_it():
    """--overwrite_output_dir and --resume_from_checkpoint contradict each other."""
    advice = resume_advice(["--overwrite_output_dir", "--output_dir", "my run"], "train")
    flags = "--overwrite_output_dir false --resume_from_checkpoint auto"
    assert advice == f"; to resume: train --overwrite_output_dir --output_dir 'my run' {flags}"


BEST = dict(save_strategy="best", eval_strategy="steps", eval_steps=1, metric_for_best_model="eval_loss")
# Trainer removes all checkpoints except the best when a training ends.
LIMITED = dict(save_total_limit=1, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2)
CASES = [(3, {}), (8, {}), (5, LIMITED), (3, BEST | dict(greater_is_better=True)), (3, BEST | dict(greater_is_better=False))]


@pytest.mark.parametrize("step, arguments", CASES)
def test_a_terminated_run_goes_on_to_the_weights_of_one_that_was_not(step, arguments, tmp_path, capsys):
    train(tmp_path / "whole")
    printed = train_until_stopped(tmp_path / "run", capsys, Terminate(step), TERMINATED, **arguments)
    assert TERMINATED == 143 and f"stopped by SIGTERM after step {step}: " in printed.strip().splitlines()[-1]
    last = resume_checkpoint(tmp_path / "run", "last")
    assert last == str(tmp_path / "run" / f"checkpoint-{step}")
    assert not (tmp_path / "run" / "model.safetensors").exists() and not (tmp_path / "run" / ".run.lock").exists()
    if "load_best_model_at_end" not in arguments:
        train(tmp_path / "run", last)
        mlm_script.assert_same_weights(tmp_path / "whole", tmp_path / "run")


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
    """After the last step, or on a second signal."""
    child = os.fork()
    if not child:
        with Termination():
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
            if ends_inside:
                os._exit(1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


SENDER = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import run_mlm
from hf_deberta_ext.training.trainer import RunTrainer
step = RunTrainer.training_step
def training_step(self, *args, **kwargs):
    if self.state.global_step == 2 and self.args.process_index == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, *args, **kwargs)
RunTrainer.training_step = training_step
run_mlm.main()
"""


@pytest.mark.slow
def test_a_script_is_terminated_in_all_of_its_processes(text, tmp_path):
    """Only one process gets the signal; all end after the same step."""
    file = tmp_path / "script.py"
    file.write_text(SENDER.format(folder=str(SCRIPTS)), encoding="utf-8")
    process = start(*mlm_script.TORCHRUN, str(file), *mlm_script.arguments(text, tmp_path / "run", max_steps=40))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1, printed[-3000:]
    assert printed.count("stopped by SIGTERM after step 3: resume with --resume_from_checkpoint last") == 1
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert checkpoint_problem(checkpoint) is None and len([*checkpoint.glob("rng_state*.pth")]) == 2

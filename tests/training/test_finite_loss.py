# SPDX-License-Identifier: Apache-2.0
"""NaN and infinite losses stop a run at once, in every process; finite losses of a diverged training are reported."""

import math
import os

import pytest
import target_trainers
import torch
from mlm_script import TORCHRUN, finish
from safetensors.torch import load_file
from scripts import ROOT, start
from tiny_constants import SPECIAL

from hf_deberta_ext import DebertaExtForPreTraining
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM
from hf_deberta_ext.training.finite_loss import divergence

SAVING = dict(save_strategy="steps", save_steps=1, max_steps=8)


def saved(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.fixture(params=["masked lm", "joint", "decoupled"])
def trainer(request, tiny_config, shake, tmp_path):
    """Return trainer(**arguments): a trainer of each kind of pre-training that saves every step."""

    def build(**arguments):
        if request.param == "masked lm":
            model = shake(MultiObjectiveMaskedLM(tiny_config(), [*target_trainers.WEIGHTS]))
            return target_trainers.build(model, tmp_path, target_trainers.objective_rows(), **(SAVING | arguments))
        model = shake(DebertaExtForPreTraining(tiny_config(special_token_ids=SPECIAL)))
        rows = target_trainers.joint_rows()
        return target_trainers.build(model, tmp_path, rows, stepping=request.param, **(SAVING | arguments))

    return build


def test_weights_that_are_no_numbers_stop_the_first_step_and_a_rate_that_diverges_is_named(trainer, tmp_path):
    """Previously, Trainer logged a loss of 0, continued training, and saved NaN weights."""
    ours = trainer()
    with torch.no_grad():
        ours.model.get_input_embeddings().weight[7, 0] = torch.nan
    with pytest.raises(ValueError, match="the loss of step 1 is nan; training was stopped"):
        ours.train()
    assert ours.state.global_step == 0 and saved(tmp_path) == []
    ours = trainer(learning_rate=1e30)
    with pytest.raises(ValueError, match=r"learning rate 1e\+30 is too high"):
        ours.train()
    assert ours.state.global_step < 8 and len(saved(tmp_path)) == ours.state.global_step


def logged(*losses, held_out=None, mean=None):
    history = [{"step": 10 * number, "loss": loss} for number, loss in enumerate(losses, 1)]
    history += [] if held_out is None else [{"step": 90, "eval_loss": held_out}]
    return history + ([] if mean is None else [{"step": 90, "train_loss": mean}])


TWO, WORDS = math.log(2), math.log(32000)


@pytest.mark.parametrize(
    ("history", "uniform", "said"),
    [
        (logged(0.7, 1e5, 1e9), TWO, "its loss is 1e+05, above the loss of a guess or of the first steps (0.6931)"),
        (logged(mean=1.23456e9), TWO, "its loss is 1.235e+09"),
        (logged(11, 14, 15, held_out=14.0), WORDS, "first steps (10.37)"),
        (logged(3.0, 80.0, 90.0, 95.0), None, "its loss is 90, above the loss of a guess or of the first steps (3)"),
        (logged(0.7, 50.0, 0.6, 0.5, 0.4), TWO, None),
        (logged(0.7, 0.6, 7.0, 0.5), TWO, None),
        # Before it has learned anything, and after it has memorised the training data.
        (logged(10.5, held_out=10.5), WORDS, None),
        (logged(0.7, 0.1, 0.01, held_out=2.5), TWO, None),
        (logged(0.1, 0.9, 1.5), None, None),
        (logged(held_out=9.0), TWO, None),
    ],
)
def test_divergence_is_a_loss_far_above_that_of_a_guess(history, uniform, said):
    sentence = divergence(history, uniform)
    assert sentence is None if said is None else said in sentence and "lower the learning rate" in sentence


WORKER = """
import sys
from datetime import timedelta
import torch
from distributed_worker import make_trainer
saving = dict(save_strategy="steps", save_steps=1, ddp_timeout=30)
def train(wrapper, micro_batch):
    trainer = make_trainer("masked lm, v2", f"{sys.argv[1]}/{wrapper}-{micro_batch}", processes=2, wrapper=wrapper, **saving)
    batch_sums, rank = trainer.batch_sums, trainer.args.process_index
    def lost(model, inputs):
        outputs, sums = batch_sums(model, inputs)
        bad = rank == 1 and trainer.state.global_step == 2 and trainer._micro_batch == micro_batch
        return outputs, sums * (float("nan") if bad else 1.0)
    trainer.batch_sums = lost
    try:
        trainer.train()
    except ValueError as error:
        print(f"{wrapper}-{micro_batch}, rank {rank}: {error}", flush=True)
    torch.distributed.monitored_barrier(timeout=timedelta(seconds=30))
for wrapper in ("ddp", "fsdp"):
    for micro_batch in (0, 1):
        train(wrapper, micro_batch)
"""


@pytest.mark.slow
def test_a_loss_that_one_process_loses_stops_all_before_their_step(tmp_path):
    """Gradients are averaged over the processes, so the other process also trained on NaN, and saved a checkpoint of it.
    Before the last micro-batch only one process raised: the other waited for it. Under FSDP both waited, because checking
    sharded weights is a collective operation.
    """
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    printed = finish(start(*TORCHRUN, str(script), str(tmp_path), PYTHONPATH=paths))
    for name in ("ddp-0", "ddp-1", "fsdp-0", "fsdp-1"):
        assert f"{name}, rank 1: the loss of step 3 is nan" in printed
        assert f"{name}, rank 0: the loss of step 3 is not finite in another process" in printed
        assert saved(tmp_path / name) == ["checkpoint-1", "checkpoint-2"]
        for checkpoint in saved(tmp_path / name):
            weights = load_file(tmp_path / name / checkpoint / "model.safetensors").values()
            assert all(torch.isfinite(x).all() for x in weights)

# SPDX-License-Identifier: Apache-2.0
"""Losses that are not finite: a pre-training stops at once and says why, as fine-tuning does, in every process."""

import os
import subprocess
import sys
from pathlib import Path

import joint_trainer as replaced
import objective_trainer as pretraining
import pytest
import torch
from safetensors.torch import load_file
from tiny_constants import SPECIAL

from hf_deberta_ext import DebertaExtForPreTraining
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM

ROOT = Path(__file__).resolve().parents[2]
SAVING = dict(save_strategy="steps", save_steps=1, max_steps=8)


def saved(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.fixture(params=["masked lm", "joint", "decoupled"])
def trainer(request, tiny_config, shake, tmp_path):
    """trainer(**arguments): of each kind of pre-training, saving every step."""

    def build(**arguments):
        if request.param == "masked lm":
            model = shake(MultiObjectiveMaskedLM(tiny_config(), [*pretraining.WEIGHTS]))
            return pretraining.build(model, tmp_path, pretraining.rows(), **(SAVING | arguments))
        model = shake(DebertaExtForPreTraining(tiny_config(special_token_ids=SPECIAL)))
        return replaced.build(model, tmp_path, replaced.rows(), stepping=request.param, **(SAVING | arguments))

    return build


@pytest.mark.criterion("B7.3")
def test_weights_that_are_no_numbers_stop_the_first_step(trainer, tmp_path):
    """Trainer logged a loss of 0, trained on, and saved what was no model any more."""
    ours = trainer()
    with torch.no_grad():
        ours.model.get_input_embeddings().weight[7, 0] = torch.nan
    with pytest.raises(ValueError, match=r"the loss of step 1 is nan .*weights themselves are not finite in the checkpoint"):
        ours.train()
    assert ours.state.global_step == 0 and saved(tmp_path) == []


@pytest.mark.criterion("B7.3")
def test_a_learning_rate_that_diverges_is_named_and_nothing_lost_is_saved(trainer, tmp_path):
    ours = trainer(learning_rate=1e30)
    with pytest.raises(ValueError, match=r"learning rate of 1e\+30 is too high for 3 layers"):
        ours.train()
    assert ours.state.global_step < 8 and len(saved(tmp_path)) == ours.state.global_step


WORKER = """
import sys
from datetime import timedelta
import torch
from distributed_worker import make_trainer
folder, wrapper, micro_batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
saving = dict(save_strategy="steps", save_steps=1, ddp_timeout=30)
trainer = make_trainer("masked lm, v2", folder, processes=2, wrapper=wrapper, **saving)
batch_sums, rank = trainer.batch_sums, trainer.args.process_index
def lost(model, inputs):
    outputs, sums = batch_sums(model, inputs)
    bad = rank == 1 and trainer.state.global_step == 2 and trainer._micro_batch == micro_batch
    return outputs, sums * (float("nan") if bad else 1.0)
trainer.batch_sums = lost
try:
    trainer.train()
except ValueError as error:
    print(f"rank {rank}: {error}", flush=True)
    # torchrun kills the others when one ends badly: not before they have spoken.
    torch.distributed.monitored_barrier(timeout=timedelta(seconds=30))
    sys.exit(3)
"""


@pytest.mark.criterion("P12")
@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [0, 1], ids=["first micro-batch", "last micro-batch"])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_a_loss_that_one_process_loses_stops_all_before_their_step(wrapper, micro_batch, tmp_path):
    """Gradients are the mean over the processes: the other one stepped with them, and saved a checkpoint of NaN. Before the
    last micro-batch one process raised alone: the other waited for it, and under FSDP both did, for the look at sharded
    weights is collective."""
    script, folder = tmp_path / "worker.py", tmp_path / "run"
    script.write_text(WORKER, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command += [str(folder), wrapper, str(micro_batch)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "rank 1: the loss of step 3 is nan" in done.stdout, done.stderr[-3000:]
    assert "rank 0: the loss of step 3 is not finite in another process" in done.stdout
    assert saved(folder) == ["checkpoint-1", "checkpoint-2"]
    for name in saved(folder):
        assert all(torch.isfinite(x).all() for x in load_file(folder / name / "model.safetensors").values())

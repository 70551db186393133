# SPDX-License-Identifier: Apache-2.0
"""The joint model on two processes, by DistributedDataParallel and FSDP2: as one process with the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accumulation import exact_accumulation
from joint_distributed_worker import HALVES, OPTIMIZER, STEPPING, make_trainer
from joint_trainer import GREEDY, LAMBDA, rows
from tiny_constants import SHARING, SPECIAL, TINY

from hf_deberta_ext import DebertaExtConfig, DebertaExtForPreTraining

WORKER = Path(__file__).resolve().parents[1].joinpath("support", "joint_distributed_worker.py")
EXACT = dict(atol=1e-5, rtol=0)
TABLE = "generator.deberta.embeddings.word_embeddings.weight"
DELTA = "discriminator.deberta.embeddings.word_embeddings.delta.weight"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo"),
]
# fully_shard is there since 2.6, but torch.cpu.Stream could not yet record an event.
shards = pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 runs on CPUs from torch 2.7 on")
STEPS = [(sharing, "joint") for sharing in SHARING] + [(sharing, "decoupled") for sharing in ("gdes", "nes")]
TRAINER_STEPS = [("gdes", "joint"), ("gdes", "decoupled"), ("nes", "joint")]


def build(sharing):
    """A joint model with noise in every parameter."""
    config = DebertaExtConfig(
        **TINY, position_buckets=16, embedding_sharing=sharing, special_token_ids=SPECIAL, rtd_lambda=LAMBDA,
        rtd_temperature=GREEDY,
    )  # fmt: skip
    model, generator = DebertaExtForPreTraining(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.empty(parameter.shape).normal_(0, 0.3, generator=generator)
            parameter.copy_(1 + noise if name.endswith("LayerNorm.weight") else noise)
    return model.train()


def make_batches(targets=(5, 3, 2, 6)):
    """Three batches of four rows; halves have 33 tokens, 8 of them masked, each: the mean of their means is the mean."""
    lengths, generator, batches = (20, 13, 18, 15), torch.Generator().manual_seed(1), []
    for _ in range(3):
        ids = torch.randint(5, 63, (4, 20), generator=generator)
        mask = (torch.arange(20) < torch.tensor(lengths)[:, None]).long()
        labels = torch.full_like(ids, -100)
        for row, count in enumerate(targets):
            labels[row, 1 + row : 1 + row + count] = ids[row, 1 + row : 1 + row + count]
        batches.append(dict(input_ids=torch.where(labels != -100, 63, ids) * mask, attention_mask=mask, labels=labels))
    return batches


def without_targets():
    """The same, but no position of the second half is masked."""
    return make_batches(targets=(5, 3, 0, 0))


class Processes:
    """What two processes made of all jobs of this file: started together, since starting is what takes time."""

    def __init__(self, folder):
        self.folder, self.jobs = folder, {}
        data = {"batches": make_batches(), "without_targets": without_targets(), "examples": rows(24)}
        for name, content in data.items():
            torch.save(content, folder / f"{name}.pt")
        for sharing in SHARING:
            build(sharing).save_pretrained(folder / sharing)
            self.add("ddp", sharing, "joint")
        self.add("ddp", "gdes", "joint", "without_targets")
        if hasattr(torch.cpu.Stream, "record_event"):
            for sharing, stepping in STEPS:
                self.add("fsdp", sharing, stepping)
            for sharing, stepping in TRAINER_STEPS:
                self.add("trainer", sharing, stepping, "examples")
            self.add("fsdp", "gdes", "one_loss")
            self.add("fsdp", "gdes", "joint", "without_targets")
        self.start()

    def add(self, wrapper, sharing, stepping, data="batches"):
        key = (wrapper, sharing, stepping, data)
        paths = dict(model=sharing, data=f"{data}.pt", result=f"{'-'.join(key)}.pt")
        self.jobs[key] = dict(wrapper=wrapper, stepping=stepping, **{k: str(self.folder / p) for k, p in paths.items()})

    def start(self):
        jobs = self.folder / "jobs.json"
        jobs.write_text(json.dumps([*self.jobs.values()]), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
        command += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(WORKER), str(jobs)]
        path = os.pathsep.join(filter(None, [str(WORKER.parent.parent), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout[-5000:]

    def result(self, wrapper, sharing, stepping, data="batches"):
        result = torch.load(self.jobs[wrapper, sharing, stepping, data]["result"])
        assert "error" not in result, result["error"]
        return result


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return Processes(tmp_path_factory.mktemp("two_processes"))


def one_process(sharing, stepping):
    """A model after the same steps on whole batches, and the names with gradients."""
    model = build(sharing)
    return model, STEPPING[stepping](model, make_batches())


def assert_same_weights(state, expected, start):
    moved = {name for name, weight in expected.items() if (weight - start[name]).abs().max() > 1e-3}
    assert {name.split(".")[0] for name in moved} == {*HALVES} and len(moved) > 0.9 * len(expected)
    assert {*state} == {*expected}
    for name, weight in expected.items():
        torch.testing.assert_close(state[name], weight, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


# ------- what the comparison rests on


def test_both_halves_of_each_batch_have_as_many_targets_and_tokens():
    for batch in make_batches():
        for counts in (batch["labels"] != -100).sum(1), batch["attention_mask"].sum(1):
            assert counts[:2].sum() == counts[2:].sum() > 0 and len({*counts.tolist()}) == 4
    assert all(not (batch["labels"][2:] != -100).any() for batch in without_targets())


# ------- two processes


@pytest.mark.criterion("A8.3")
@pytest.mark.parametrize("sharing", SHARING)
def test_ddp_trains_as_one_process_and_finds_every_parameter_used(sharing, processes):
    result = processes.result("ddp", sharing, "joint")
    model, _ = one_process(sharing, "joint")
    assert_same_weights(result["state"], model.state_dict(), build(sharing).state_dict())


@shards
@pytest.mark.parametrize("sharing, stepping", STEPS)
def test_fsdp_trains_as_one_process(sharing, stepping, processes):
    result = processes.result("fsdp", sharing, stepping)
    model, trained = one_process(sharing, stepping)
    assert_same_weights(result["state"], model.state_dict(), build(sharing).state_dict())
    assert result["with_gradient"] == trained
    # Of one bias of size 1 there is no half.
    assert 0.5 <= result["kept"] < 0.51


@shards
@pytest.mark.parametrize("stepping", ["decoupled", "one_loss"])
def test_fsdp_keeps_the_discriminators_gradient_from_the_generators_table(stepping, processes):
    trained = processes.result("fsdp", "gdes", stepping)["with_gradient"]
    assert TABLE in trained["generator"] and DELTA in trained["discriminator"]
    for half in HALVES:
        assert trained[half] and all(name.startswith(half) for name in trained[half])


@shards
@pytest.mark.parametrize("sharing", SHARING)
def test_whole_state_of_fsdp_is_loaded_saved_and_loaded_again(sharing, processes, tmp_path):
    state = processes.result("fsdp", sharing, "joint")["state"]
    model = build(sharing)
    model.load_state_dict(state)
    model.save_pretrained(tmp_path)
    again = DebertaExtForPreTraining.from_pretrained(tmp_path)
    assert all(torch.equal(weight, state[name]) for name, weight in again.state_dict().items())
    assert len({id(p) for p in again.parameters()}) == len({id(p) for p in build(sharing).parameters()})
    exported = model.export_discriminator().get_input_embeddings().weight
    assert torch.equal(exported, state[TABLE] + state[DELTA] if sharing == "gdes" else state[DELTA.replace(".delta", "")])


@pytest.mark.parametrize("wrapper", ["ddp", pytest.param("fsdp", marks=shards)])
def test_a_process_without_a_masked_position_takes_part(wrapper, processes):
    """Its loss of the generator is 0, with a gradient of 0 for every parameter: nobody waits."""
    state = processes.result(wrapper, "gdes", "joint", "without_targets")["state"]
    model = build("gdes")
    start = {name: weight.clone() for name, weight in model.state_dict().items()}

    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    for batch in without_targets():
        optimizer.zero_grad()
        halves = [model(**{name: values.chunk(2)[half] for name, values in batch.items()}) for half in range(2)]
        assert halves[1].generator_loss == 0
        (sum(half.loss for half in halves) / 2).backward()
        optimizer.step()
    assert_same_weights(state, model.state_dict(), start)


@shards
@exact_accumulation
@pytest.mark.parametrize("sharing, stepping", TRAINER_STEPS)
def test_trainer_shards_and_trains_as_one_process(sharing, stepping, processes, tmp_path):
    pytest.importorskip("accelerate")
    result = processes.result("trainer", sharing, stepping, "examples")
    assert 0.5 <= result["kept"] < 0.51
    alone = make_trainer(build(sharing), rows(24), stepping, str(tmp_path), per_device_train_batch_size=4)
    alone.train()
    logs = [[entry for entry in log if "loss" in entry] for log in (result["log"], alone.state.log_history)]
    assert len(logs[1]) == 3
    for two, one in zip(*logs, strict=True):
        for name, value in one.items():
            assert two[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    trained = DebertaExtForPreTraining.from_pretrained(result["folder"]).state_dict()
    assert_same_weights(trained, alone.model.state_dict(), build(sharing).state_dict())

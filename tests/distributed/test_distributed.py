# SPDX-License-Identifier: Apache-2.0
"""Training on two processes equals training on one: DistributedDataParallel, FSDP2, DeepSpeed, tensor parallelism. Also the
conditions for sharding and offloading: no module reads the weights of another, and weights may be elsewhere until their
module runs.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import distributed_worker as worker
import pytest
import torch
from accumulation import exact_accumulation
from distributed_worker import STEPS, TRAININGS, joint_model, make_config, make_rows, make_trainer, shaken, train
from mlm_script import TORCHRUN, finish
from rounding import equal_outputs
from safetensors.torch import load_file
from scripts import start
from tiny_constants import SHARING
from transformers import BertConfig, BertForSequenceClassification, Trainer, default_data_collator

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining, DebertaExtForSequenceClassification
from hf_deberta_ext.finetuning.task import EncodedTask
from hf_deberta_ext.finetuning.trainer import TaskTrainer
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM
from hf_deberta_ext.sift import SiftArguments

# Largest measured differences: 1e-6 (losses) and 3e-7 (weights, which move by 1e-2).
LOSSES, WEIGHTS = dict(rel=1e-5, abs=1e-6), dict(atol=5e-6, rtol=0)
slow = pytest.mark.slow(together=True)
processes_talk = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
# fully_shard exists since 2.6, but torch.cpu.Stream could not yet record an event.
CAN_SHARD = hasattr(torch.cpu.Stream, "record_event")
shards = pytest.mark.skipif(not CAN_SHARD, reason="FSDP2 on CPUs needs torch 2.7")


def sharded(test):
    """Mark a slow test of FSDP2 on two processes."""
    return slow(shards(processes_talk(test)))


FSDP = {
    "masked lm, v2": dict(fsdp_config=dict(cpu_ram_efficient_loading=True, activation_checkpointing=True)),
    "masked lm, dropout": dict(save_strategy="steps", save_steps=2),
    "masked lm, three objectives": {},
    "masked lm, checkpointed": {},
    "replaced tokens, joint": {},
    "replaced tokens, decoupled": {},
    "replaced tokens, nes": {},
    "replaced tokens, nes decoupled": {},
    "replaced tokens, few targets": {},
    "task with sift": {},
}
RESUMED = "masked lm, dropout"
BORROWED = dict(training="masked lm, v2", fields=dict(share_layers="attention"))
BORROWS = "layers share weights. Set 'auto_wrap_policy': 'NO_WRAP' in fsdp_config"
DRAWS_ANEW = "activation_checkpointing in fsdp_config gives wrong gradients with dropout"
TWO_MODULES = "cannot run under FSDP, which cannot shard shared parameters; use 'gdes' or 'nes'"
REFUSED = {
    "layers that borrow": (BORROWED, BORROWS),
    "dropout drawn anew": (dict(training="masked lm, dropout", fsdp_config=dict(activation_checkpointing=True)), DRAWS_ANEW),
    "task": (dict(training="task", fields=dict(share_layers="attention")), BORROWS),
    "es": (dict(training="replaced tokens, es"), TWO_MODULES),
    "all": (dict(training="replaced tokens, all"), TWO_MODULES),
    "sift": (dict(training="sift", fields=worker.DROPOUT, fsdp_config=dict(activation_checkpointing=True)), DRAWS_ANEW),
}
ZERO, STAGES = (RESUMED, "replaced tokens, joint"), (1, 2, 3)
ONE_GROUP = BORROWED | dict(fsdp_config=dict(auto_wrap_policy="NO_WRAP"))
SAVED_AS = {"masked lm": DebertaExtForMaskedLM, "replaced tokens": DebertaExtForPreTraining}
BACKENDS = [None, "eager", "sdpa"]
# The others take a minute, most of it to start two processes.
SHORT = ("masked lm, v2", "task, uneven", "task, weighted")
SHORT_OR_SLOW = [name if name in SHORT else pytest.param(name, marks=slow) for name in TRAININGS]


class Processes:
    """Results of two processes for the jobs of this file, started together because starting takes most of the time."""

    def __init__(self, folder: Path, trainings: Iterable[str] = (), everything: bool = False, zero: bool = False):
        self.folder = folder
        jobs = self.zero_jobs() if zero else []
        for training in trainings:
            jobs.append(dict(training=training, wrapper="ddp", folder=self.place("ddp", training)))
        if everything:
            jobs += self.other_jobs()
        self.start(jobs)

    def other_jobs(self) -> list[dict]:
        """Return the results of FSDP2 and tensor parallelism."""
        jobs = []
        if CAN_SHARD:
            for training, more in FSDP.items():
                jobs.append(dict(training=training, wrapper="fsdp", folder=self.place("fsdp", training), **more))
            checkpoint = str(Path(self.place("fsdp", RESUMED), "checkpoint-2"))
            resumed = dict(training=RESUMED, folder=self.place("resumed", RESUMED), resume=checkpoint)
            jobs.append(dict(wrapper="fsdp", **resumed))
            for name, (more, _) in REFUSED.items():
                jobs.append(dict(wrapper="fsdp", folder=self.place("refused", name), **more))
            jobs.append(dict(wrapper="fsdp", folder=self.place("fsdp", "one group"), **ONE_GROUP))
            for sharing in SHARING:
                jobs.append(dict(wrapper="sharded", sharing=sharing, folder=self.place("sharded", sharing)))
        for backend in BACKENDS:
            jobs.append(dict(wrapper="tensor", backend=backend, folder=self.place("tensor", backend)))
        return jobs

    def zero_jobs(self) -> list[dict]:
        """Return the results of DeepSpeed."""
        jobs = [dict(training=training, stage=stage) for training in ZERO for stage in STAGES]
        jobs.append(dict(training="replaced tokens, decoupled", stage=1))
        for job in jobs:
            job |= dict(folder=self.place("zero", f"{job['training']} {job['stage']}"), save_strategy="steps", save_steps=2)
        for job in jobs[: len(STAGES)]:
            jobs.append(job | dict(folder=job["folder"] + " resumed", resume=str(Path(job["folder"], "checkpoint-2"))))
        return [job | dict(wrapper="deepspeed") for job in jobs]

    def start(self, jobs: list[dict]):
        file = self.folder / "jobs.json"
        file.write_text(json.dumps(jobs), encoding="utf-8")
        finish(start(*TORCHRUN, worker.__file__, str(file), CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu"))

    def place(self, wrapper: str, key: str | None) -> str:
        number = [*TRAININGS].index(key) if key in TRAININGS else key
        return str(self.folder / f"{wrapper}-{number}")

    def result(self, wrapper: str, key: str | None) -> dict:
        result = torch.load(Path(self.place(wrapper, key), "result.pt"))
        assert "error" not in result, result["error"]
        return result


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return Processes(tmp_path_factory.mktemp("two_processes"), TRAININGS, everything=True)


@pytest.fixture(scope="module")
def zero(tmp_path_factory):
    """Run DeepSpeed in a separate process, because it keeps its settings for the whole process."""
    pytest.importorskip("deepspeed")
    return Processes(tmp_path_factory.mktemp("zero"), zero=True)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return Processes(tmp_path_factory.mktemp("short"), SHORT)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return alone(training): the result of one process."""
    made = {}

    def run(training):
        if training not in made:
            made[training] = train(training, str(tmp_path_factory.mktemp("one_process")))
        return made[training]

    return run


def assert_same_log(entries: list[dict], expected: list[dict]):
    assert len(entries) == len(expected) == STEPS
    for entry, reference in zip(entries, expected, strict=True):
        # Trainer's epoch is the fraction of one process's micro-batches.
        names = {name for name in reference if not name.endswith(("runtime", "per_second", "epoch"))}
        assert names <= {*entry} and "loss" in names
        for name in names:
            # A small difference of large losses, so rounding shows.
            tolerance = dict(rel=1e-3) if name == "sift_change" else LOSSES
            assert entry[name] == pytest.approx(reference[name], **tolerance), name


def assert_same_weights(state: dict, expected: dict):
    assert {*state} == {*expected["state"]}
    for name, weight in expected["state"].items():
        torch.testing.assert_close(state[name], weight, **WEIGHTS, msg=lambda text, name=name: f"{name}: {text}")
    moved = [(expected["state"][name] - expected["start"][name]).abs().max() for name in expected["trainable"]]
    assert len(moved) > 8 and sum(distance > 1e-3 for distance in moved) > 0.8 * len(moved)


def assert_same_step(result: dict, expected: dict):
    assert result["loss"] == pytest.approx(expected["loss"], **LOSSES)
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(result["gradients"][name], gradient, atol=1e-6, rtol=1e-5)


@exact_accumulation
@processes_talk
@pytest.mark.parametrize("training", SHORT_OR_SLOW)
def test_ddp_trains_as_one_process_and_looks_for_no_unused_parameters(training, request, alone):
    """Our trainers turn this search off; without it, a parameter without a gradient stops the second step."""
    processes = request.getfixturevalue("short" if training in SHORT else "processes")
    result, expected = processes.result("ddp", training), alone(training)
    assert (result["wrapped"], result["find_unused"]) == ("DistributedDataParallel", False)
    assert_same_log(result["log"], expected["log"])
    assert_same_weights(result["state"], expected)


@pytest.mark.parametrize("arguments, expected", [({}, False), (dict(ddp_find_unused_parameters=True), True)])
@pytest.mark.parametrize("training", ["masked lm, v2", "replaced tokens, joint", "task", "task with sift"])
def test_our_trainers_turn_the_search_for_unused_parameters_off(training, arguments, expected, tmp_path):
    assert make_trainer(training, str(tmp_path), **arguments).args.ddp_find_unused_parameters is expected


def test_the_search_for_unused_parameters_in_other_models_is_left_to_transformers(tmp_path):
    """BERT's pooler, for example, is unused by a token head that a caller has built on top of it."""
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    task = EncodedTask(train=[], evaluation={}, test={}, collator=default_data_collator, metric="accuracy")
    args = SiftArguments(str(tmp_path), use_cpu=True, report_to="none")
    assert TaskTrainer(BertForSequenceClassification(config), args, task=task).args.ddp_find_unused_parameters is None


@sharded
@exact_accumulation
@pytest.mark.parametrize("training", FSDP)
def test_fsdp_shards_every_parameter_and_trains_as_ddp_and_as_one_process(training, processes, alone):
    result, expected = processes.result("fsdp", training), alone(training)
    assert result["whole"] == [] and result["wrapped"].startswith("FSDP")
    assert result["in no group"] == []
    # A single bias of odd size cannot be halved.
    assert 0.5 <= result["kept"] < 0.51
    for other in (expected, processes.result("ddp", training)):
        assert_same_log(result["log"], other["log"])
    assert_same_weights(load_file(Path(processes.place("fsdp", training), "model.safetensors")), expected)


@sharded
@pytest.mark.parametrize("training", ["masked lm, dropout", "replaced tokens, joint"])
def test_fsdp_evaluates_as_ddp(training, processes):
    """Evaluation caches the projections of the relative table, and reads whole embedding tables."""
    evaluations = [processes.result(wrapper, training)["evaluations"] for wrapper in ("fsdp", "ddp")]
    assert len(evaluations[0]) == len(evaluations[1]) == STEPS
    for two, one in zip(*evaluations, strict=True):
        for name in one:
            if not name.endswith(("runtime", "per_second")):
                assert two[name] == pytest.approx(one[name], **LOSSES), name


@sharded
@exact_accumulation
def test_fsdp_goes_on_from_its_checkpoint_to_the_same_weights(processes, alone):
    result = processes.result("resumed", RESUMED)
    assert_same_log(result["log"], alone(RESUMED)["log"])
    assert_same_weights(load_file(Path(processes.place("resumed", RESUMED), "model.safetensors")), alone(RESUMED))


@sharded
@pytest.mark.parametrize("training", [name for name in FSDP if name.split(",")[0] in SAVED_AS])
def test_what_fsdp_saves_is_loaded_as_any_model(training, processes):
    folder = Path(processes.place("fsdp", training))
    folders = [folder, folder / "checkpoint-2"] if training == RESUMED else [folder]
    for place in folders:
        model, info = SAVED_AS[training.split(",")[0]].from_pretrained(place, output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"]
        stored = load_file(place / "model.safetensors")
        assert all(torch.equal(weight, stored[name]) for name, weight in model.state_dict().items() if name in stored)
        assert len(stored) > 40


@sharded
@exact_accumulation
def test_fsdp_of_layers_that_borrow_weights_makes_one_group(processes, tmp_path):
    result = processes.result("fsdp", "one group")
    assert 0.5 <= result["kept"] < 0.51 and result["whole"] == []
    assert_same_log(result["log"], train(folder=str(tmp_path), **BORROWED)["log"])


@sharded
@pytest.mark.parametrize("name", REFUSED)
def test_fsdp_is_refused_where_it_fails_or_computes_something_else(name, processes):
    """accelerate's checkpointing does not restore the random state: gradients have other dropout masks."""
    error = torch.load(Path(processes.place("refused", name), "result.pt"))["error"].splitlines()[-1]
    assert error.startswith("ValueError: ") and REFUSED[name][1] in error.replace('"', "'")


@slow
@exact_accumulation
@processes_talk
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("training, goes_on", [*((training, False) for training in ZERO), (RESUMED, True)])
def test_deepspeed_trains_as_one_process_and_saves_a_model_that_loads(training, goes_on, stage, zero, alone):
    key = f"{training} {stage} resumed" if goes_on else f"{training} {stage}"
    result, folder = zero.result("zero", key), Path(zero.place("zero", key))
    assert result["wrapped"] == "DeepSpeedEngine"
    assert_same_log(result["log"], alone(training)["log"])
    model, info = SAVED_AS[training.split(",")[0]].from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert_same_weights(model.state_dict(), alone(training))


@slow
@processes_talk
def test_decoupled_steps_are_refused_under_deepspeed(zero):
    error = torch.load(Path(zero.place("zero", "replaced tokens, decoupled 1"), "result.pt"))["error"].splitlines()[-1]
    assert error.startswith("ValueError: decoupled steps cannot run under DeepSpeed")


@sharded
@pytest.mark.parametrize("sharing", SHARING)
def test_a_joint_model_can_be_sharded_by_hand(sharing, processes):
    assert_same_step(processes.result("sharded", sharing), worker.sharded_step(parallel=False, sharing=sharing))


@pytest.fixture
def pretend_to_shard(monkeypatch):
    """Return pretend_to_shard(**plugin), which makes accelerate act as with FSDP, in this process only."""
    from accelerate.state import AcceleratorState

    create = Trainer.create_accelerator_and_postprocess

    def pretend(**plugin):
        def create_and_shard(trainer):
            create(trainer)
            trainer.accelerator.state.fsdp_plugin = SimpleNamespace(**plugin)
            trainer.is_fsdp_enabled = True

        monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", create_and_shard)

    yield pretend
    # There is one state for the whole process.
    AcceleratorState._shared_state.pop("fsdp_plugin", None)


@pytest.mark.parametrize("training", ["masked lm, v2", "sift", "task", "task with sift"])
def test_every_trainer_refuses_what_fsdp_would_make_of_these_models(training, pretend_to_shard, tmp_path):
    """Previously, only the pre-training trainer rejected these settings."""
    borrowing, dropping = dict(share_layers="attention"), dict(hidden_dropout_prob=0.1)
    pretend_to_shard(activation_checkpointing=True, auto_wrap_policy=print)
    with pytest.raises(ValueError, match=DRAWS_ANEW):
        make_trainer(training, str(tmp_path), fields=dropping)
    with pytest.raises(ValueError, match=r"share_layers = 'attention' cannot run under FSDP with a group per layer"):
        make_trainer(training, str(tmp_path), fields=borrowing)
    make_trainer(training, str(tmp_path))
    pretend_to_shard(activation_checkpointing=False, auto_wrap_policy=None)
    make_trainer(training, str(tmp_path), fields=borrowing | dropping)


@slow
@processes_talk
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_and_feed_forward_networks_split_over_processes_change_nothing(backend, processes):
    """Attention with separate projections for position terms, convolution, and the passes of the Enhanced Mask Decoder."""
    result, expected = processes.result("tensor", backend), worker.tensor_step(parallel=False, backend=backend)
    assert len(result["split"]) == 3 * 16
    assert_same_step(result, expected)


def models():
    """Yield (name, model to train, its inputs) for every head, objective and kind of embedding sharing."""
    for name, training in worker.HEADS.items():
        model_class = training.build.keywords["model_class"]
        yield name, shaken(model_class(make_config(training.build.keywords["family"]))), make_rows(model_class)
    objectives = shaken(MultiObjectiveMaskedLM(make_config(), [*worker.OBJECTIVES]))
    yield "three objectives", objectives, make_rows(MultiObjectiveMaskedLM)
    for sharing in ("gdes", "es", "nes"):
        yield sharing, joint_model(sharing, rtd_temperature=1e-6), make_rows(DebertaExtForMaskedLM)
    joint = joint_model("all", generator=dict(num_hidden_layers=3), rtd_temperature=1e-6)
    yield "all", joint, make_rows(DebertaExtForMaskedLM)
    for share in ("all", "attention", "ffn"):
        shared = shaken(DebertaExtForMaskedLM(make_config(share_layers=share)))
        yield f"layers share {share}", shared, make_rows(DebertaExtForMaskedLM)


MODELS = {name: (model, rows) for name, model, rows in models()}


@pytest.fixture(params=MODELS)
def model_and_batch(request):
    model, rows = MODELS[request.param]
    return model.train(), default_data_collator(rows[:4])


def test_no_module_reads_weights_outside_of_their_own_module(model_and_batch):
    """As under ZeRO-3: a weight exists while its module runs, and is empty before and after."""
    model, batch = model_and_batch
    with torch.no_grad():
        expected = model(**batch).loss
    kept = {parameter: parameter.data for parameter in model.parameters()}
    hooks = []

    def gather(module, _):
        for parameter in module.parameters(recurse=False):
            parameter.data = kept[parameter]

    def release(module, *_):
        for parameter in module.parameters(recurse=False):
            parameter.data = kept[parameter].new_empty(0)

    for module in model.modules():
        hooks += [module.register_forward_pre_hook(gather), module.register_forward_hook(release)]
        release(module)
    try:
        with torch.no_grad():
            assert torch.equal(model(**batch).loss, expected)
        assert all(parameter.numel() == 0 for parameter in model.parameters())
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, weight in kept.items():
            parameter.data = weight


SAVED = {
    "masked lm": lambda: DebertaExtForMaskedLM(make_config("v2")),
    "classifier": lambda: DebertaExtForSequenceClassification(make_config("v1")),
    "shared attention": lambda: DebertaExtForMaskedLM(make_config(share_layers="attention")),
    "gdes": lambda: joint_model("gdes"),
    "all": lambda: joint_model("all", generator=dict(num_hidden_layers=3)),
}


def logits(model):
    row = default_data_collator(make_rows(DebertaExtForMaskedLM)[:3])
    with torch.no_grad():
        output = model(row["input_ids"], attention_mask=row["attention_mask"])
    return output.discriminator_logits if hasattr(output, "discriminator_logits") else output.logits


@pytest.fixture(params=SAVED)
def in_shards(request, tmp_path):
    """Yield (name, model, folder with its weights in several files)."""
    model = shaken(SAVED[request.param]()).eval()
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len([*(tmp_path / "shards").glob("model-*-of-*.safetensors")]) > 3
    return request.param, model, tmp_path / "shards"


@pytest.mark.parametrize("device_map", [None, pytest.param("cpu", marks=slow), "auto"])
def test_shards_are_loaded_with_and_without_a_device_map(device_map, in_shards):
    _, model, folder = in_shards
    loaded, info = type(model).from_pretrained(folder, device_map=device_map, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in model.state_dict().items())
    assert equal_outputs(logits(loaded), logits(model))


@pytest.mark.parametrize("room, buffers", [(20_000, True), (60_000, False)], ids=["nothing fits", "some fit"])
def test_weights_left_on_disk_are_read_where_they_are_needed(room, buffers, in_shards, tmp_path):
    """Bug: position ids were created on the meta device, where offloaded weights are until their module runs."""
    name, model, folder = in_shards
    if name == "all":
        pytest.skip("transformers cannot infer a device map where every weight of one half is tied to the other")
    options = dict(device_map="auto", max_memory={"cpu": room}, offload_folder=tmp_path / "disk", offload_buffers=buffers)
    loaded = type(model).from_pretrained(folder, **options)
    if not hasattr(loaded, "hf_device_map"):
        pytest.skip("this transformers ignores the device map if no part of the model fits")
    assert "disk" in loaded.hf_device_map.values()
    assert any(parameter.device.type == "meta" for parameter in loaded.parameters())
    for _ in range(2):
        assert equal_outputs(logits(loaded), logits(model))


def test_a_model_of_the_meta_device_is_filled_in_place(in_shards):
    _, model, _ = in_shards
    with torch.device("meta"):
        empty = type(model)(model.config)
    assert {tensor.device.type for tensor in (*empty.parameters(), *empty.buffers())} == {"meta"}
    # Initialisation creates the buffers, which are not in any file.
    empty.to_empty(device="cpu").init_weights()
    empty.load_state_dict(model.state_dict())
    assert torch.equal(logits(empty.eval()), logits(model))

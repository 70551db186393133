# SPDX-License-Identifier: Apache-2.0
"""Trains joint models on several CPU processes, each on its share of the rows: DistributedDataParallel, FSDP2, or Trainer.

    python -m torch.distributed.run --nproc_per_node 2 joint_distributed_worker.py jobs.json

A job is {"wrapper", "stepping", "model", "data", "result"}: "ddp", "fsdp" or "trainer"; "joint", "decoupled" or "one_loss";
the folder of a joint model; a file of batches (for "trainer" of examples); and where the result goes. That is the whole
state dict, the names of the parameters that had a gradient, and the share of all numbers that a process keeps; for "trainer"
the folder of the trained model, its log, and that share; or {"error": traceback}.
"""

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from hf_deberta_ext import DebertaExtForPreTraining
from hf_deberta_ext.model.encoder import DebertaExtLayer
from hf_deberta_ext.training.distributed import leave_together

# Adam divides a gradient by its own size: rounding of a gradient near zero must not decide its sign.
OPTIMIZER = dict(lr=1e-2, eps=1e-3)
HALVES = ("generator", "discriminator")


def with_gradient(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}


def joint_steps(model, batches: list[dict]) -> dict[str, set[str]]:
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    for batch in batches:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return {"loss": with_gradient(model)}


def decoupled_steps(model, batches: list[dict]) -> dict[str, set[str]]:
    named, trained = [*model.named_parameters()], {}
    optimizers = [torch.optim.AdamW([p for name, p in named if name.startswith(half)], **OPTIMIZER) for half in HALVES]
    for batch in batches:
        for half, optimizer in zip(HALVES, optimizers, strict=True):
            output = model(**batch, part=half)
            output.loss.backward()
            trained[half] = with_gradient(model)
            optimizer.step()
            model.zero_grad()
            batch = dict(batch, input_ids=output.corrupted_ids, labels=output.discriminator_labels)
    return trained


def gradients_of_each_loss(model, batches: list[dict]) -> dict[str, set[str]]:
    """Of a joint forward pass, backwards from one loss alone; nothing is changed."""
    trained = {}
    for half in HALVES:
        model.zero_grad()
        model(**batches[0])[f"{half}_loss"].backward()
        trained[half] = with_gradient(model)
    return trained


STEPPING = {"joint": joint_steps, "decoupled": decoupled_steps, "one_loss": gradients_of_each_loss}


def shard(model):
    """FSDP2 of each layer, and of what is left; layers with the same weights make one group, as torch wants it."""
    from torch.distributed.fsdp import fully_shard

    mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
    groups = {}
    for layer in model.modules():
        if isinstance(layer, DebertaExtLayer):
            groups.setdefault(next(layer.parameters()), []).append(layer)
    for layers in groups.values():
        fully_shard(layers if len(layers) > 1 else layers[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def share_of(batch: dict) -> dict:
    """The rows of this process: the first half, or the second."""
    return {name: values.chunk(distributed.get_world_size())[distributed.get_rank()] for name, values in batch.items()}


def kept_share(model) -> float:
    whole = sum(parameter.numel() for parameter in model.parameters())
    here = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return sum(parameter.numel() for parameter in here) / whole


def run_steps(job: dict) -> dict:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = DebertaExtForPreTraining.from_pretrained(job["model"]).train()
    batches = [share_of(batch) for batch in torch.load(job["data"])]
    wrapped = shard(model) if job["wrapper"] == "fsdp" else torch.nn.parallel.DistributedDataParallel(model)
    trained = STEPPING[job["stepping"]](wrapped, batches)
    kept = kept_share(model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {"state": get_model_state_dict(wrapped, options=options), "with_gradient": trained, "kept": kept}


def make_trainer(model, examples: list[dict], stepping: str, folder: str, **arguments):
    from transformers import default_data_collator

    from hf_deberta_ext.pretraining.replaced_token_trainer import ReplacedTokenArguments, ReplacedTokenTrainer

    args = ReplacedTokenArguments(
        output_dir=folder, stepping=stepping, learning_rate=OPTIMIZER["lr"], adam_epsilon=OPTIMIZER["eps"], max_steps=3,
        gradient_accumulation_steps=2, lr_scheduler_type="constant", report_to="none", logging_steps=1, disable_tqdm=True,
        save_strategy="no", use_cpu=True, **arguments,
    )  # fmt: skip
    if args.fsdp:
        from accelerate.utils import DistributedType

        # accelerate shards on accelerators alone: left to itself, it would run DistributedDataParallel without a word.
        args.distributed_state.distributed_type = DistributedType.MULTI_GPU
    return ReplacedTokenTrainer(model, args, train_dataset=examples, data_collator=default_data_collator)


def run_trainer(job: dict) -> dict:
    model = DebertaExtForPreTraining.from_pretrained(job["model"])
    folder = str(Path(job["result"]).with_suffix(""))
    options = dict(per_device_train_batch_size=2, fsdp="full_shard", fsdp_config={"version": 2})
    trainer = make_trainer(model, torch.load(job["data"]), job["stepping"], folder, **options)
    trainer.train()
    kept = kept_share(trainer.model)
    trainer.save_model(folder)
    return {"folder": folder, "log": trainer.state.log_history, "kept": kept}


def main(jobs: list[dict]):
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    for job in jobs:
        try:
            result = run_trainer(job) if job["wrapper"] == "trainer" else run_steps(job)
        except Exception:
            result = {"error": traceback.format_exc()}
        if distributed.get_rank() == 0:
            torch.save(result, job["result"])
    leave_together()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

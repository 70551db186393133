# SPDX-License-Identifier: Apache-2.0
"""Small training runs that give the same result on one process and on several, with DistributedDataParallel, FSDP2,
DeepSpeed or tensor parallelism.

    python -m torch.distributed.run --nproc_per_node 2 distributed_worker.py jobs.json

A job is {"training", "wrapper", "folder"} and more arguments of `train`: a name in `TRAININGS`; "ddp", "fsdp" or
"deepspeed"; and a folder for the result. The file result.pt holds the return value of `train`, or {"error": traceback}. For
the wrappers "tensor" and "sharded" it holds the return value of `tensor_step` or `sharded_step`. For the result of one
process, tests call these functions directly.
"""

import dataclasses
import json
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from every_head import CLASSES
from scripts import ROOT
from tiny_constants import random_weights
from torch import distributed
from transformers import Trainer, TrainingArguments, default_data_collator

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForMaskedLM,
    DebertaExtForPreTraining,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
)
from hf_deberta_ext.finetuning.class_weights import WeightedLoss
from hf_deberta_ext.finetuning.task import EncodedTask
from hf_deberta_ext.finetuning.trainer import TaskTrainer
from hf_deberta_ext.heads import HEADS as TABLE
from hf_deberta_ext.model.modeling_deberta_ext import DebertaExtLayer
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM
from hf_deberta_ext.pretraining.replaced_token_trainer import ReplacedTokenArguments, ReplacedTokenTrainer
from hf_deberta_ext.pretraining.trainer import PretrainingArguments, PretrainingTrainer
from hf_deberta_ext.sift import SiftArguments, SiftTrainer
from hf_deberta_ext.training.distributed import release_folder

STEPS, ROWS, LENGTH = 3, 24, 12
SIZES = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, position_buckets=16,
    max_position_embeddings=32, num_labels=3,
)  # fmt: skip
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
FAMILIES = {
    "v1": dict(position_buckets=-1, norm_rel_ebd="none", share_att_key=False, type_vocab_size=2, position_biased_input=True),
    "v2": dict(conv_kernel_size=3),
    "v3": {},
}
# Fields for heads that v3 does not have.
HEAD_FAMILIES = {"masked-lm": "v1", "token-classification": "v2"}
OBJECTIVES = dict(mlm=1.0, sop=0.5, sbo=2.0)


def shaken(model):
    """Add the same noise to every parameter of `model` in each run; return the model."""
    random_weights(model, std=0.2).tie_weights()
    return model.train()


def make_config(family: str = "v3", **fields) -> DebertaExtConfig:
    return DebertaExtConfig(**(SIZES | NO_DROPOUT | FAMILIES[family] | fields))


def joint_model(sharing: str = "gdes", **fields):
    special = dict(special_token_ids=[0, 1, 2, 3, 4, 63], rtd_lambda=5.0)
    return shaken(DebertaExtForPreTraining(make_config(embedding_sharing=sharing, **special, **fields)))


def make_rows(head) -> list[dict[str, torch.Tensor]]:
    """Return rows with very different numbers of targets and of padding tokens."""
    labels = next((entry.labels for name, entry in TABLE.items() if CLASSES[name] is head), "words")
    generator, rows = torch.Generator().manual_seed(1), []
    for index in range(ROWS):
        ids = torch.randint(5, 63, (LENGTH,), generator=generator)
        mask = (torch.arange(LENGTH) < LENGTH - index % 4).long()
        row = dict(input_ids=ids * mask, attention_mask=mask)
        targets = (torch.arange(LENGTH) >= 1) & (torch.arange(LENGTH) < 3 + index % 5)
        match labels:
            case "span":
                row |= dict(start_positions=torch.tensor(index % 3), end_positions=torch.tensor(3 + index % 4))
            case "row":
                row |= dict(labels=ids[0] % 3)
            case "choice":
                row = dict(input_ids=torch.stack([ids, ids.flip(0)]), labels=torch.tensor(index % 2))
            case "tokens":
                classes = 3 if head is DebertaExtForTokenClassification else 2
                row |= dict(labels=(ids % classes).where(targets, -100))
            case "entities":
                row |= dict(entity_indices=torch.tensor([[1, 2], [3, 0]]), labels=ids[:2] % 2)
            case "words":
                row |= dict(input_ids=torch.where(targets, 63, ids) * mask, labels=ids.where(targets, -100))
        if head is MultiObjectiveMaskedLM:
            row |= dict(sentence_labels=torch.tensor(-100 if index % 3 == 2 else index % 2))
        rows.append(row)
    return rows


def sharded(args: TrainingArguments) -> TrainingArguments:
    """Return arguments that shard the model if `fsdp` is set; on CPUs, accelerate would run DDP without a word."""
    if args.fsdp:
        from accelerate.utils import DistributedType

        args.distributed_state.distributed_type = DistributedType.MULTI_GPU
    return args


def datasets(args: TrainingArguments, rows: list[dict]) -> dict[str, Any]:
    evaluated = rows[:6] if args.do_eval else None
    return dict(train_dataset=rows, eval_dataset=evaluated, data_collator=default_data_collator)


def masked_lm(folder, objectives=("mlm",), family="v3", dropout=NO_DROPOUT, fields=None, **arguments):
    model = shaken(MultiObjectiveMaskedLM(make_config(family, **(dropout | (fields or {}))), objectives))
    weights = {f"{name}_weight": OBJECTIVES[name] for name in objectives}
    args = sharded(PretrainingArguments(folder, **weights, **arguments))
    rows = make_rows(MultiObjectiveMaskedLM)
    if "sop" not in objectives:
        rows = [{name: value for name, value in row.items() if name != "sentence_labels"} for row in rows]
    return PretrainingTrainer(model, args, **datasets(args, rows))


def replaced_tokens(folder, stepping="joint", sharing="gdes", fields=DROPOUT, few_targets=False, **arguments):
    args = sharded(ReplacedTokenArguments(folder, stepping=stepping, **arguments))
    rows = make_rows(DebertaExtForMaskedLM)
    for row in rows[3:] if few_targets else ():
        row["labels"] = torch.full_like(row["labels"], -100)
    return ReplacedTokenTrainer(joint_model(sharing, **fields), args, **datasets(args, rows))


def head(folder, model_class, family="v3", lora=False, **arguments):
    """Return transformers' own Trainer; only the model is ours."""
    model = shaken(model_class(make_config(family)))
    if lora:
        from peft import LoraConfig, get_peft_model

        model.enable_input_require_grads()
        modules = dict(target_modules=["query_proj", "value_proj"], modules_to_save=["pooler", "classifier"])
        model = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.0, **modules))
        # The second factor of LoRA is initialised with zeros.
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(0))
    args = sharded(TrainingArguments(folder, ddp_find_unused_parameters=False, **arguments))
    return Trainer(model, args, train_dataset=make_rows(model_class))


def sift(folder, form="virtual", fields=None, **arguments):
    args = sharded(SiftArguments(folder, sift_weight=1.0, sift_form=form, ddp_find_unused_parameters=False, **arguments))
    model = shaken(DebertaExtForTokenClassification(make_config(**(fields or {}))))
    return SiftTrainer(model, args, train_dataset=make_rows(DebertaExtForTokenClassification))


def task(folder, sift_weight, fields=None, count=ROWS, weights=None, **arguments):
    rows = [{name: value.tolist() for name, value in row.items()} for row in make_rows(DebertaExtForSequenceClassification)]
    rows = Dataset.from_list(rows[:count])
    encoded = EncodedTask(train=rows, evaluation={}, test={}, collator=default_data_collator, metric="accuracy")
    if weights is not None:
        encoded = dataclasses.replace(encoded, loss=WeightedLoss(weights), balanced_sampling=True)
    model = shaken(DebertaExtForSequenceClassification(make_config("v2", **(fields or {}))))
    return TaskTrainer(model, sharded(SiftArguments(folder, sift_weight=sift_weight, **arguments)), task=encoded)


@dataclass(frozen=True)
class Training:
    """A training run.

    Args:
        build (`Callable`): (folder, **arguments) -> Trainer.
        random (`bool`, defaults to `False`): a micro-batch draws random numbers (dropout, replacements, noise). If True,
            one process is compared with two at twice the accumulation steps; otherwise at twice the rows of a micro-batch.
        arguments (`tuple`, defaults to `()`): (name, value) pairs for Trainer.
    """

    build: Any
    random: bool = False
    arguments: tuple[tuple[str, Any], ...] = ()


CHECKPOINTED = (("gradient_checkpointing", True),)
EVALUATED = (("eval_strategy", "steps"), ("eval_steps", 1))
# Name -> function of (folder, arguments of Trainer) that returns a Trainer.
TRAININGS = {
    "masked lm, dropout": Training(partial(masked_lm, dropout=DROPOUT), random=True, arguments=EVALUATED),
    "masked lm, v2": Training(partial(masked_lm, family="v2")),
    "masked lm, three objectives": Training(partial(masked_lm, objectives=tuple(OBJECTIVES), dropout=DROPOUT), random=True),
    "masked lm, checkpointed": Training(partial(masked_lm, dropout=DROPOUT), random=True, arguments=CHECKPOINTED),
    "replaced tokens, joint": Training(replaced_tokens, random=True, arguments=EVALUATED),
    "replaced tokens, decoupled": Training(partial(replaced_tokens, stepping="decoupled"), random=True),
    "replaced tokens, checkpointed": Training(replaced_tokens, random=True, arguments=CHECKPOINTED),
    "replaced tokens, es": Training(partial(replaced_tokens, sharing="es"), random=True),
    "replaced tokens, nes": Training(partial(replaced_tokens, sharing="nes"), random=True),
    "replaced tokens, nes decoupled": Training(partial(replaced_tokens, sharing="nes", stepping="decoupled"), random=True),
    "replaced tokens, all": Training(partial(replaced_tokens, sharing="all"), random=True),
    # Most of the four micro-batches of a step have no masked position.
    "replaced tokens, few targets": Training(partial(replaced_tokens, few_targets=True), random=True),
    "sift": Training(sift, random=True),
    "sift, adversarial": Training(partial(sift, form="adversarial"), random=True, arguments=(("sift_steps", 2),)),
    "task": Training(partial(task, sift_weight=0.0)),
    # Of the last five rows, one process gets three and the other two.
    "task, uneven": Training(partial(task, sift_weight=0.0, count=21, fields=DROPOUT), random=True),
    "task, weighted": Training(
        partial(task, sift_weight=0.0, count=21, fields=DROPOUT, weights=(0.2, 5.0, 1.0)), random=True
    ),
    "task with sift": Training(partial(task, sift_weight=1.0), random=True),
    "lora, checkpointed": Training(
        partial(head, model_class=DebertaExtForSequenceClassification, lora=True), arguments=CHECKPOINTED
    ),
}
HEADS = {
    model_class.__name__: Training(partial(head, model_class=model_class, family=HEAD_FAMILIES.get(name, "v3")))
    for name, model_class in CLASSES.items()
    if name not in ("base", "pretraining")
}
TRAININGS |= HEADS


def make_trainer(
    training: str, folder: str, processes: int = 1, wrapper: str | None = None, stage: int = 0, **more
) -> Trainer:
    """Return a Trainer for three steps over 24 rows: eight rows a step, in two micro-batches on each of two processes."""
    recipe = TRAININGS[training]
    wide = processes == 1 and not recipe.random
    arguments = dict(
        # Adam divides a gradient by its magnitude, so rounding of a gradient near zero could decide its sign.
        learning_rate=1e-2, adam_epsilon=1e-3, lr_scheduler_type="constant", max_steps=STEPS, logging_steps=1, seed=3,
        per_device_train_batch_size=4 if wide else 2, gradient_accumulation_steps=4 if processes == 1 and not wide else 2,
        report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True,
    )  # fmt: skip
    if processes > 1:
        arguments |= dict(ddp_backend="gloo")
    if wrapper == "fsdp":
        arguments |= dict(fsdp="full_shard auto_wrap", fsdp_config={"version": 2} | more.pop("fsdp_config", {}))
    if wrapper == "deepspeed":
        zero = json.loads((ROOT / "examples" / "cluster" / "zero3.json").read_text(encoding="utf-8"))
        zero["zero_optimization"]["stage"] = stage
        arguments |= dict(deepspeed=zero)
    return recipe.build(folder, **(arguments | dict(recipe.arguments) | more))


def train(training: str, folder: str, processes: int = 1, wrapper: str | None = None, resume: str | None = None, **more):
    """Train and return the results: the log, the initial and final weights, and how the model was wrapped."""
    trainer = make_trainer(training, folder, processes, wrapper, **more)
    start = {name: weight.detach().clone() for name, weight in trainer.model.state_dict().items()}
    trainable = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    trainer.train(resume_from_checkpoint=resume)
    wrapped = trainer.model_wrapped
    result = dict(
        log=[entry for entry in trainer.state.log_history if "loss" in entry],
        evaluations=[entry for entry in trainer.state.log_history if "eval_loss" in entry], start=start, trainable=trainable,
        wrapped=type(wrapped).__name__, find_unused=getattr(wrapped, "find_unused_parameters", None),
    )  # fmt: skip
    if wrapper in ("fsdp", "deepspeed"):
        # This also reshards the parameters that an evaluation has gathered.
        trainer.save_model(folder)
        result |= shards(trainer.model) if wrapper == "fsdp" else {}
    else:
        result["state"] = {name: weight.detach().clone() for name, weight in trainer.model.state_dict().items()}
    return result


def shards(model) -> dict[str, Any]:
    """Return the fraction of numbers that this process keeps, unsharded parameters, and layers without a group."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    named = dict(model.named_parameters())
    local = sum(parameter.to_local().numel() for parameter in named.values() if isinstance(parameter, DTensor))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, DebertaExtLayer)}
    return {
        "kept": local / sum(parameter.numel() for parameter in named.values()),
        "whole": [name for name, parameter in named.items() if not isinstance(parameter, DTensor)],
        "in no group": [name for name, module in layers.items() if not isinstance(module, FSDPModule)],
    }


def tensor_step(parallel: bool, backend: str | None = None) -> dict[str, Any]:
    """Return loss and gradients of a masked language model whose heads and networks are split over the processes."""
    model = shaken(DebertaExtForMaskedLM(make_config("v2", share_att_key=False))).train()
    model.set_attn_implementation(backend)
    if parallel:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
        columns = [f"attention.self.{name}" for name in ("query_proj", "key_proj", "value_proj")]
        columns += ["attention.self.pos_key_proj", "attention.self.pos_query_proj", "intermediate.dense"]
        plan = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in ("attention.output.dense", "output.dense")}
        for layer in model.deberta.encoder.layer:
            parallelize_module(layer, mesh, plan)
    return loss_and_gradients(model)


def sharded_step(parallel: bool, sharing: str) -> dict[str, Any]:
    """Return loss and gradients of a joint model sharded by FSDP2, without Trainer, which rejects shared weights."""
    model = joint_model(sharing, rtd_temperature=1e-6).train()
    if parallel:
        from torch.distributed.fsdp import fully_shard

        mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
        groups = {}
        for layer in model.modules():
            if isinstance(layer, DebertaExtLayer):
                groups.setdefault(next(layer.parameters()), []).append(layer)
        for layers in groups.values():
            # Layers with shared weights must be in one group, as torch requires.
            fully_shard(layers if len(layers) > 1 else layers[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    return loss_and_gradients(model)


def loss_and_gradients(model) -> dict[str, Any]:
    loss = model(**default_data_collator(make_rows(DebertaExtForMaskedLM)[:4])).loss
    loss.backward()
    named = dict(model.named_parameters())
    gradients = {n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for n, p in named.items()}
    split = [name for name, parameter in named.items() if hasattr(parameter, "placements")]
    return {"loss": loss.item(), "gradients": gradients, "split": split}


def run(job: dict[str, Any]) -> dict[str, Any]:
    if job["wrapper"] == "tensor":
        return tensor_step(parallel=True, backend=job["backend"])
    if job["wrapper"] == "sharded":
        return sharded_step(parallel=True, sharing=job["sharing"])
    return train(processes=distributed.get_world_size(), **job)


def main(jobs: list[dict[str, Any]]):
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    for job in jobs:
        try:
            result = run(job)
        except Exception:
            result = {"error": traceback.format_exc()}
        if distributed.get_rank() == 0:
            Path(job["folder"]).mkdir(parents=True, exist_ok=True)
            torch.save(result, Path(job["folder"], "result.pt"))
    release_folder()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

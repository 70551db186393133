# SPDX-License-Identifier: Apache-2.0
"""The table of examples/guides/cluster.md: bytes that an accelerator sends in a step of joint RTD (GDES), and keeps.

    python tests/support/byte_plan.py

In a ring of n, a reduce-scatter of gradients or an all-gather of parameters of b bytes sends b (n - 1) / n.
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.multiprocessing
from torch import distributed

from hf_deberta_ext import DebertaExtConfig, DebertaExtForPreTraining
from hf_deberta_ext.model.modeling_deberta_ext import DebertaExtLayer

# Transfers of all numbers, bytes of one; bytes of a number that every accelerator keeps, and that are split over all:
# float32 parameters, gradients and AdamW's moments; ZeRO has bfloat16 parameters and gradients beside float32 ones.
STRATEGIES = {
    "DDP": (2, 4, 16, 0), "FSDP 2": (3, 2, 0, 16), "ZeRO 1": (2, 2, 4, 12), "ZeRO 2": (2, 2, 2, 14), "ZeRO 3": (3, 2, 0, 16),
}  # fmt: skip
SMALL = dict(
    num_hidden_layers=4, hidden_size=64, intermediate_size=256, num_attention_heads=2, vocab_size=1000, special_token_ids=[0]
)


def sent(numbers: int, strategy: str, processes: int, width: int | None = None) -> float:
    """Bytes that each process sends in a step; `width` of a number, where it is not that of bfloat16 training."""
    transfers, usual, *_ = STRATEGIES[strategy]
    return transfers * numbers * (width or usual) * (processes - 1) / processes


def kept(numbers: int, strategy: str, processes: int) -> float:
    """Bytes of parameters, gradients and optimizer of each process; activations come on top."""
    *_, whole, split = STRATEGIES[strategy]
    return numbers * (whole + split / processes)


def table() -> str:
    lines = ["| model, numbers | n | " + " | ".join(STRATEGIES) + " |", "| --- " * (2 + len(STRATEGIES)) + "|"]
    for preset in ("v3-base", "v3-large"):
        with torch.device("meta"):
            model = DebertaExtForPreTraining(DebertaExtConfig.from_preset(preset))
        numbers = sum(parameter.numel() for parameter in model.parameters())
        for n in (8, 64, 512):
            cells = [f"{sent(numbers, s, n) / 1e9:.2f} / {kept(numbers, s, n) / 1e9:.2f}" for s in STRATEGIES]
            lines.append(f"| {preset}, {numbers / 1e6:.1f}M | {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def count(rank: int, processes: int, folder: str):
    """Bytes of the tensors of one step's collectives, in float32, by strategy."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    counted = {}
    for strategy in ("DDP", "FSDP 2"):
        model, collectives = DebertaExtForPreTraining(DebertaExtConfig(**SMALL)), []
        counted[strategy] = (sum(parameter.numel() for parameter in model.parameters()), collectives)
        if strategy == "DDP":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            model = torch.nn.parallel.DistributedDataParallel(model)

            def hook(group, bucket, sizes=collectives):
                sizes.append(2 * bucket.buffer().nbytes)
                return allreduce_hook(group, bucket)

            model.register_comm_hook(None, hook)
        else:
            from torch.distributed.fsdp import fully_shard

            mesh = distributed.init_device_mesh("cpu", (processes,))
            for module in [*(m for m in model.modules() if isinstance(m, DebertaExtLayer)), model]:
                fully_shard(module, mesh=mesh, reshard_after_forward=True)
            # Names of torch 2.13, and older ones.
            for names in (
                ("all_gather_single", "all_gather_into_tensor"),
                ("reduce_scatter_single", "reduce_scatter_tensor"),
            ):
                name = next(name for name in names if hasattr(distributed, name))
                setattr(distributed, name, counting(getattr(distributed, name), collectives))
        ids = torch.arange(5, 37).reshape(2, 16)
        labels = torch.where(ids % 4 == 0, ids, -100)
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()
    if rank == 0:
        torch.save(counted, Path(folder, "counted"))
    distributed.destroy_process_group()


def counting(collective, sizes):
    def wrapped(*args, **kwargs):
        # The whole, beside the part of this process.
        sizes.append(max(value.nbytes for value in (*args, *kwargs.values()) if torch.is_tensor(value)))
        return collective(*args, **kwargs)

    return wrapped


def compare(processes: int) -> dict[str, tuple[float, float]]:
    """{strategy: (bytes of the plan, bytes counted)} for a small model and gloo."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(count, (processes, folder), nprocs=processes)
        counted = torch.load(Path(folder, "counted"))
    ring = (processes - 1) / processes
    return {s: (sent(numbers, s, processes, width=4), sum(sizes) * ring) for s, (numbers, sizes) in counted.items()}


if __name__ == "__main__":
    print(table())

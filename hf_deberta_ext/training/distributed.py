# SPDX-License-Identifier: Apache-2.0
"""Runs of several processes."""

import atexit
import hashlib
import time

import torch
from torch import distributed
from transformers import Trainer

from .folder_lock import unlock_folders

__all__ = ["check_sharding", "leave_together", "spread_seed"]


def spread_seed(*numbers: int) -> int:
    """Return 63 bits that neighbouring numbers do not share: torch draws related streams for neighbouring seeds."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def check_sharding(trainer: Trainer):
    """Refuse FSDP for a trainer whose model it would not shard, or would train wrongly."""
    if trainer.args.fsdp and not trainer.is_fsdp_enabled:
        raise ValueError(f"fsdp = {trainer.args.fsdp!r} has no effect here: accelerate shards on accelerators alone")
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        return
    has_dropout = is_borrowing = False
    for module in trainer.model.modules():
        has_dropout |= isinstance(module, torch.nn.Dropout) and module.p > 0
        # By what they have and not by class: remote code may bring a second copy of the class.
        is_borrowing |= hasattr(module, "owns_attention") and not (module.owns_attention and module.owns_feed_forward)
    if plugin.activation_checkpointing and has_dropout:
        raise ValueError(
            "activation_checkpointing in fsdp_config gives wrong gradients with dropout, which accelerate draws again in "
            "the backward pass: use gradient_checkpointing instead"
        )
    if plugin.auto_wrap_policy is not None and is_borrowing:
        raise ValueError(
            f"share_layers = {trainer.model.config.share_layers!r} cannot run under FSDP with a group for each layer: they "
            'borrow weights from the first. Set "auto_wrap_policy": "NO_WRAP" in fsdp_config, or train without fsdp'
        )


def leave_together():
    """End the processes of a run together, with their connections closed and its folders unlocked.

    torchrun stops all of them when one ends badly, also while the main one still writes.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        # gloo's thread needs the interpreter's lock to let go of this barrier; the end of the program holds the lock while
        # it waits for that thread. Asleep, this thread gives it away.
        time.sleep(0.1)
        atexit.register(_disconnect)
    unlock_folders()


def _disconnect():
    if distributed.is_initialized():
        distributed.destroy_process_group()

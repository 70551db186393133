# SPDX-License-Identifier: Apache-2.0
"""Runs with several processes: seeds, checks of FSDP, and the end of a run."""

import atexit
import hashlib
import time

import torch
from torch import distributed
from transformers import Trainer

from .folder_lock import unlock_folders

__all__ = ["check_sharding", "release_folder", "spread_seed"]


def spread_seed(*numbers: int) -> int:
    """Return a 63-bit hash of numbers as a seed, because torch draws correlated numbers for neighbouring seeds."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def check_sharding(trainer: Trainer):
    """Raise a ValueError if FSDP would not shard the trainer's model, or would train it incorrectly."""
    if trainer.args.fsdp and not trainer.is_fsdp_enabled:
        raise ValueError(f"fsdp = {trainer.args.fsdp!r} has no effect here: accelerate only shards on accelerators")
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        return
    has_dropout = is_borrowing = False
    for module in trainer.model.modules():
        has_dropout |= isinstance(module, torch.nn.Dropout) and module.p > 0
        # Check attributes instead of the class, because remote code may have its own copy of the class.
        is_borrowing |= hasattr(module, "owns_attention") and not (module.owns_attention and module.owns_feed_forward)
    if plugin.activation_checkpointing and has_dropout:
        raise ValueError(
            "activation_checkpointing in fsdp_config gives wrong gradients with dropout, because accelerate draws new masks "
            "in the backward pass; use gradient_checkpointing instead"
        )
    if plugin.auto_wrap_policy is not None and is_borrowing:
        raise ValueError(
            f"share_layers = {trainer.model.config.share_layers!r} cannot run under FSDP with a group per layer, because "
            'the layers share weights. Set "auto_wrap_policy": "NO_WRAP" in fsdp_config, or train without fsdp'
        )


def release_folder():
    """Wait for all processes of a run, then unlock its folders; the process group is destroyed when the process exits.

    The wait is needed because torchrun stops all processes when one fails, even if the main process is still writing.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        # gloo's thread needs the GIL to leave this barrier, but at exit the program holds the GIL while it waits for this
        # thread. Sleeping releases the GIL.
        time.sleep(0.1)
        atexit.register(_disconnect)
    unlock_folders()


def _disconnect():
    if distributed.is_initialized():
        distributed.destroy_process_group()

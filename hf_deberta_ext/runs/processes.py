# SPDX-License-Identifier: Apache-2.0
"""Runs of several processes."""

import atexit
import os
import time

import torch
from torch import distributed
from transformers import TrainingArguments

__all__ = ["leave_together", "use_cpu_without_accelerator"]


def use_cpu_without_accelerator(args: TrainingArguments):
    """Before `TrainingArguments.__post_init__`: `use_cpu` where there is no accelerator, and gloo for processes on CPU."""
    if not torch.accelerator.is_available():
        args.use_cpu = True
    if args.use_cpu and args.ddp_backend is None and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        args.ddp_backend = "gloo"


def leave_together():
    """Ends a run of several processes: none before the main one has written everything, since torchrun stops all of them
    when one ends badly; and with their connections closed."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        # gloo's thread needs the interpreter's lock to let go of this barrier; the end of the program holds the lock while
        # it waits for that thread. Asleep, this thread gives it away.
        time.sleep(0.1)
        atexit.register(_disconnect)


def _disconnect():
    if distributed.is_initialized():
        distributed.destroy_process_group()

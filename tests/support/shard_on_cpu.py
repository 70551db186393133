# SPDX-License-Identifier: Apache-2.0
"""Run a training script, the first argument, with FSDP on CPUs; by default accelerate shards on accelerators only."""

import runpy
import sys

from accelerate.utils import DistributedType
from transformers import TrainingArguments

finish_arguments = TrainingArguments.__post_init__


def shard_on_cpu(args: TrainingArguments):
    finish_arguments(args)
    args.distributed_state.distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    TrainingArguments.__post_init__ = shard_on_cpu
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")

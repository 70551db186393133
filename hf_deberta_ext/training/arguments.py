# SPDX-License-Identifier: Apache-2.0
"""`RunArguments`, what every training script adds to transformers' TrainingArguments."""

import math
import os
from collections.abc import Collection
from dataclasses import dataclass

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.utils import logging

from .batch_size import computes_bfloat16
from .flags import option
from .published_optimizer import OWN_OPTIMIZER

logger = logging.get_logger(__name__)

__all__ = ["RunArguments"]


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` of a run, whose trainer is a `RunTrainer`.

    On a machine without an accelerator `use_cpu` is set, and gloo is the backend of distributed runs.

    Raises:
        ValueError: no `output_dir`; an optimizer or schedule of Trainer's beside `published_optimizer`; a rate or number
            out of its range; or a tracker in `report_to` that is not installed.
    """

    output_dir: str | None = option(None, "folder of checkpoints, model, results and card; must be given")
    resume_from_checkpoint: str | None = option(
        None, "'last' checkpoint in output_dir, or the folder of a checkpoint, to go on from; 'auto': last if there is one"
    )
    resume_anyway: list[str] = option(
        list, "arguments that may differ from those that a resumed run began with; report and card name them"
    )
    published_optimizer: bool = option(
        False, "Adam without bias correction, whose rate falls as 1 - step / steps, as in microsoft/DeBERTa; recipes set it"
    )
    logging_steps: float = option(0.01, "log so often: steps, or below 1 a share of all steps")

    def __post_init__(self):
        if self.output_dir is None:
            raise ValueError("--output_dir is missing: say where checkpoints, model and results go")
        fields = TrainingArguments.__dataclass_fields__
        values = {name: getattr(self, name) for name in sorted(OWN_OPTIMIZER)}
        others = [f"--{name} {value}" for name, value in values.items() if value != fields[name].default]
        if self.published_optimizer and others:
            raise ValueError(f"{', '.join(others)} cannot be had with --published_optimizer: leave one of them out")
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "eval_steps", "save_steps"):
            if not 0 <= (value := float(getattr(self, name) or 0)) < math.inf:
                raise ValueError(f"--{name} must be 0 or a positive number, got {value:g}")
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.max_steps == 0:
            raise ValueError("--max_steps must be at least 1, or -1 for --num_train_epochs, got 0")
        if self.max_steps < 0 and not self.num_train_epochs > 0:
            raise ValueError(f"--num_train_epochs must be above 0, got {self.num_train_epochs:g}")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(f"--label_smoothing_factor must be in [0, 1), got {self.label_smoothing_factor:g}")
        self.use_cpu |= not torch.accelerator.is_available()
        if self.use_cpu and self.ddp_backend is None and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            self.ddp_backend = "gloo"
        super().__post_init__()
        if missing := {*self.report_to} - {*(installed := get_available_reporting_integrations())}:
            raise ValueError(
                f"--report_to {' '.join(sorted(missing))}: no such tracker is installed (there are "
                f"{', '.join(sorted(installed)) or 'none'}): install its package, or give --report_to none"
            )
        if self.bf16 and self.use_cpu and self.process_index == 0 and not computes_bfloat16():
            logger.warning(
                "--bf16 on a CPU without bfloat16 arithmetic (AMX, AVX512-BF16) is some 15 times slower: leave it out"
            )

    def find_best_metric(self, certain: Collection[str]):
        """Evaluate before the first step, which names all metrics, unless the best one is among those that are `certain`."""
        best = self.metric_for_best_model
        if self.eval_strategy != "no" and best is not None and not {best, f"eval_{best}"} & {*certain}:
            self.eval_on_start = True

# SPDX-License-Identifier: Apache-2.0
"""`RunArguments`, what every training script adds to transformers' TrainingArguments."""

import copy
import inspect
import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import SchedulerType, Trainer, TrainingArguments, get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from .flags import option
from .published_optimizer import OWN_OPTIMIZER

__all__ = ["RunArguments", "check_longer", "has_warmup"]

# Optimizers of projected gradients, the only ones that read optim_target_modules.
LOW_RANK = ("apollo", "galore")
LONGER = ("same_schedule", "new_schedule")
# The least values of arguments.
LEAST = dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "eval_steps", "save_steps"), 0)
LEAST |= dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), 1)


def has_warmup(schedule: str | SchedulerType) -> bool:
    """Return True if a schedule of Trainer's reads the number of warm-up steps."""
    return "num_warmup_steps" in inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(schedule)]).parameters


def check_longer(train_longer: str | None, schedule: str | SchedulerType, warmup_steps: float, published: bool = False):
    """Check that a schedule fits --train_longer: same_schedule needs one that is not computed from the number of steps.

    Raises:
        ValueError: it does not fit, or the choice is unknown.
    """
    if train_longer not in (None, *LONGER):
        raise ValueError(f"--train_longer must be same_schedule or new_schedule, got {train_longer!r}")
    kind = SchedulerType(schedule)
    has_end = "num_training_steps" in inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[kind]).parameters
    if train_longer == "same_schedule" and (has_end or published or 0 < warmup_steps < 1):
        raise ValueError(
            "--train_longer same_schedule needs a schedule that does not depend on the number of steps, such as constant or "
            f"constant_with_warmup, got {kind.value} with warmup_steps = {warmup_steps:g}; new_schedule takes any"
        )


def changes_optimizer(name: str) -> tuple[str, Callable[[Any], bool]]:
    """Return an entry of `needs`: the optimizer would be another one with the argument `name` at its default."""

    def changes(args: Any) -> bool:
        if args.published_optimizer or args.optim.value.startswith(LOW_RANK):
            return True
        others = copy.copy(args)
        setattr(others, name, TrainingArguments.__dataclass_fields__[name].default)
        return Trainer.get_optimizer_cls_and_kwargs(args) != Trainer.get_optimizer_cls_and_kwargs(others)

    return "with this --optim", changes


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` of a run, whose trainer is a `RunTrainer`.

    On a machine without an accelerator `use_cpu` is set, and gloo is the backend of distributed runs. Values that would
    have no effect or another one than they say raise a ValueError.
    """

    needs: ClassVar = {
        **{name: changes_optimizer(name) for name in ("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args")},
        "optim_target_modules": ("without GaLore or APOLLO", lambda args: args.optim.value.startswith(LOW_RANK)),
        "warmup_steps": (
            "without a schedule that has a warm-up (--lr_scheduler_type constant_with_warmup, linear, ...)",
            lambda args: args.published_optimizer or has_warmup(args.lr_scheduler_type),
        ),
        "seed": ("with --seeds", lambda args: not getattr(args, "seeds", None)),
        "resume_anyway": ("without --resume_from_checkpoint", lambda args: args.resume_from_checkpoint is not None),
        "train_longer": (
            "without --resume_from_checkpoint, or with --seeds",
            lambda args: args.resume_from_checkpoint is not None and not getattr(args, "seeds", None),
        ),
        "load_best_model_at_end": ("without --eval_strategy steps or epoch", lambda args: args.eval_strategy != "no"),
    }

    output_dir: str | None = option(None, "folder of checkpoints, model, results and card; must be given")
    resume_from_checkpoint: str | None = option(
        None, "'last' checkpoint in output_dir, or the folder of a checkpoint, to go on from; 'auto': last if there is one"
    )
    resume_anyway: list[str] = option(
        list, "arguments that may differ from those that a resumed run began with; report and card name them"
    )
    train_longer: str | None = option(
        None,
        "resume a run with more --max_steps or --num_train_epochs; same_schedule: as if it had begun with them, for "
        "constant schedules; new_schedule: from the reached step on with the learning rates of a run of the new length",
        choices=[*LONGER],
    )
    published_optimizer: bool = option(
        False, "Adam without bias correction, whose rate falls as 1 - step / steps, as in microsoft/DeBERTa; recipes set it"
    )
    logging_steps: float = option(0.01, "log so often: steps, or below 1 a share of all steps")

    def __post_init__(self):
        if self.output_dir is None:
            raise ValueError("--output_dir is missing: say where checkpoints, model and results go")
        fields = TrainingArguments.__dataclass_fields__
        for name in sorted(OWN_OPTIMIZER):
            if self.published_optimizer and getattr(self, name) != fields[name].default:
                raise ValueError(f"--{name} cannot be had with --published_optimizer: leave one of them out")
        for name, least in LEAST.items():
            value = float(getattr(self, name) or 0)
            if not least <= value < math.inf:
                raise ValueError(f"--{name} must be at least {least}, got {value:g}")
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
        check_longer(self.train_longer, self.lr_scheduler_type, self.warmup_steps, self.published_optimizer)
        if self.fp16 and self.use_cpu:
            raise ValueError("--fp16 needs an accelerator, a CPU would compute in float32: leave it out, or give --bf16")
        kind, options = self.lr_scheduler_type, self.lr_scheduler_kwargs or {}
        try:
            # Trainer drops the options of constant schedules.
            inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[kind]).bind_partial(None, **options)
            get_scheduler(kind, torch.optim.SGD([torch.zeros(1)], lr=1.0), 0, 1, options)
            Trainer.get_optimizer_cls_and_kwargs(self)
        except TypeError as error:
            raise ValueError(f"lr_scheduler_kwargs = {options!r} do not fit lr_scheduler_type: {error}") from error
        except ValueError as error:
            # Some optimizers ask for the model, too.
            if "model" not in str(error):
                raise

    def find_best_metric(self, certain: Collection[str]):
        """Enable `eval_on_start`, which names all metrics, unless `metric_for_best_model` is among the `certain` ones."""
        best = self.metric_for_best_model
        if self.eval_strategy != "no" and best is not None and not {best, f"eval_{best}"} & {*certain}:
            self.eval_on_start = True

# SPDX-License-Identifier: Apache-2.0
"""`RunArguments`: the options that every training script adds to `TrainingArguments`."""

import copy
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import SchedulerType, Trainer, TrainingArguments, get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from .flags import option
from .published_optimizer import OWN_OPTIMIZER

__all__ = ["RunArguments", "check_longer", "has_warmup"]

# Prefixes of the optimizers with projected gradients; no other optimizer reads optim_target_modules.
LOW_RANK = ("apollo", "galore")
LONGER = ("same_schedule", "new_schedule")
# Minimum values of arguments.
LEAST = dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "eval_steps", "save_steps"), 0)
LEAST |= dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), 1)


def has_warmup(schedule: str | SchedulerType) -> bool:
    """Return True if a `Trainer` schedule uses the number of warm-up steps."""
    return "num_warmup_steps" in inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(schedule)]).parameters


def check_longer(train_longer: str | None, schedule: str | SchedulerType, warmup_steps: float, published: bool = False):
    """Check `train_longer`. "same_schedule" is only possible with a schedule that does not depend on the number of steps.

    Raises:
        ValueError: `train_longer` is unknown, or not possible with this schedule.
    """
    if train_longer not in (None, *LONGER):
        raise ValueError(f"--train_longer must be same_schedule or new_schedule, got {train_longer!r}")
    kind = SchedulerType(schedule)
    has_end = "num_training_steps" in inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[kind]).parameters
    if train_longer == "same_schedule" and (has_end or published or 0 < warmup_steps < 1):
        raise ValueError(
            "--train_longer same_schedule needs a schedule that does not depend on the number of steps, such as constant or "
            f"constant_with_warmup, got {kind.value} with warmup_steps = {warmup_steps:g}; use new_schedule instead"
        )


def changes_optimizer(name: str) -> tuple[str, Callable[[Any], bool]]:
    """Return the entry of `RunArguments.needs` (see `refuse_idle`) for an argument that only some optimizers use."""

    def changes(args: Any) -> bool:
        if args.published_optimizer or args.optim.value.startswith(LOW_RANK):
            return True
        others = copy.copy(args)
        setattr(others, name, TrainingArguments.__dataclass_fields__[name].default)
        return Trainer.get_optimizer_cls_and_kwargs(args) != Trainer.get_optimizer_cls_and_kwargs(others)

    return "with this --optim", changes


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` for a `RunTrainer`.

    If there is no accelerator, `use_cpu` is set, and distributed runs use the gloo backend. Values that would have no effect
    or an unexpected effect raise a ValueError.
    """

    # Other values would silently change losses or metrics: the loss of a step is the mean over its micro-batches, metrics
    # are computed from all predictions at once, and the length of a row is the length of its input_ids.
    fixed: ClassVar[Mapping[str, Any]] = dict(
        batch_eval_metrics=False,
        eval_do_concat_batches=True,
        prediction_loss_only=False,
        include_for_metrics=[],
        average_tokens_across_devices=True,
        length_column_name="length",
    )
    needs: ClassVar = {
        **{name: changes_optimizer(name) for name in ("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args")},
        "optim_target_modules": ("without GaLore or APOLLO", lambda args: args.optim.value.startswith(LOW_RANK)),
        "warmup_steps": (
            "without a schedule that has a warm-up (--lr_scheduler_type constant_with_warmup, linear, ...)",
            lambda args: args.published_optimizer or has_warmup(args.lr_scheduler_type),
        ),
        "seed": ("with --seeds", lambda args: not getattr(args, "seeds", None)),
        "allow_changed_args": ("without --resume_from_checkpoint", lambda args: args.resume_from_checkpoint is not None),
        "train_longer": (
            "without --resume_from_checkpoint, or with --seeds",
            lambda args: args.resume_from_checkpoint is not None and not getattr(args, "seeds", None),
        ),
        "load_best_model_at_end": ("without --eval_strategy steps or epoch", lambda args: args.eval_strategy != "no"),
    }

    output_dir: str | None = option(None, "folder for checkpoints, model, results and card; required")
    resume_from_checkpoint: str | None = option(
        None, "checkpoint to resume from: a folder, 'last' (newest in output_dir), or 'auto' (last, or else a new run)"
    )
    allow_changed_args: list[str] = option(
        list, "names of arguments that may change when a run is resumed; listed in the report and the card"
    )
    train_longer: str | None = option(
        None,
        "resume a run with more --max_steps or --num_train_epochs; same_schedule: as if the run had started with this "
        "length, only for constant schedules; new_schedule: from now on, use the learning rates of a run of the new length",
        choices=[*LONGER],
    )
    published_optimizer: bool = option(
        False,
        "use Adam without bias correction, and decay learning rates as 1 - step / steps (microsoft/DeBERTa); set by recipes",
    )
    logging_steps: float = option(0.01, "number of steps between logs; a value below 1 is a share of all steps")

    def __post_init__(self):
        if self.output_dir is None:
            raise ValueError("--output_dir is missing; pass a folder for checkpoints, model and results")
        for name, value in self.fixed.items():
            if getattr(self, name) != value:
                raise ValueError(f"--{name} must be {value}, got {getattr(self, name)}; metrics and losses depend on it")
        fields = TrainingArguments.__dataclass_fields__
        for name in sorted(OWN_OPTIMIZER):
            if self.published_optimizer and getattr(self, name) != fields[name].default:
                raise ValueError(f"--{name} and --published_optimizer are mutually exclusive; remove one of them")
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
            raise ValueError("--fp16 needs an accelerator; a CPU would compute in float32. Remove --fp16, or use --bf16")
        kind, options = self.lr_scheduler_type, self.lr_scheduler_kwargs or {}
        try:
            # Trainer ignores lr_scheduler_kwargs for constant schedules.
            inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[kind]).bind_partial(None, **options)
            get_scheduler(kind, torch.optim.SGD([torch.zeros(1)], lr=1.0), 0, 1, options)
            Trainer.get_optimizer_cls_and_kwargs(self)
        except TypeError as error:
            raise ValueError(f"lr_scheduler_kwargs = {options!r} is invalid for lr_scheduler_type: {error}") from error
        except ValueError as error:
            # Not a wrong argument: some optimizers also require the model, which does not exist yet.
            if "model" not in str(error):
                raise

    def find_best_metric(self, certain: Collection[str]):
        """Unless `metric_for_best_model` is in `certain`, enable `eval_on_start`, so that a wrong name fails at once."""
        best = self.metric_for_best_model
        if self.eval_strategy != "no" and best is not None and not {best, f"eval_{best}"} & {*certain}:
            self.eval_on_start = True

# SPDX-License-Identifier: Apache-2.0
"""`RunTrainer`, the base of every trainer: atomic checkpoints, finite losses and exact resume."""

import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from logging import LogRecord, getLogger
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput
from transformers.utils import logging

from ..checkpoints.files import checkpoint_step, is_weight_file, read_json
from ..files import replace_text
from . import checkpoints, run_folder
from .batch_size import is_split_free
from .checkpoints import STATE_FILE
from .distributed import release_folder, spread_seed
from .finite_loss import check_loss, divergence
from .folder_lock import locked_folder
from .hub_trainer import HubTrainer
from .published_optimizer import PublishedAdam, published_schedule
from .run_folder import ARGUMENTS_FILE
from .termination import TERMINATED, Termination

logger = logging.get_logger(__name__)

__all__ = ["RunTrainer"]

RESULTS_FILE = "all_results.json"


class NewScheduleCallback(TrainerCallback):
    """Callback that applies the learning rates of --train_longer new_schedule when a run is resumed.

    A checkpoint contains the old schedule's rate of the next step, such as 0 at the end of a linear schedule.
    """

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        is_new = getattr(args, "train_longer", None) == "new_schedule"
        if is_new and state.global_step and isinstance(lr_scheduler, LambdaLR):
            lr_scheduler.last_epoch -= 1
            lr_scheduler.step()


class RunTrainer(HubTrainer):
    """Trainer that writes its files atomically, so that it can be killed at any time, and that stops at NaN losses.

    - Random numbers are seeded by (seed, number of the micro-batch in the order of the data). They are therefore the same
      for two processes as for one process with twice the accumulation steps, and the same when a run is resumed.
    - A NaN or infinite loss stops training in every process. If the loss diverges, a warning and "diverged" are logged.
    - After SIGTERM, the program finishes the current step, saves a checkpoint, and exits with status 143. After the first
      Ctrl-C, it also saves a checkpoint before it stops.
    - The output folder is locked, so that no other process trains in it at the same time.
    - Checkpoints are written to a temporary folder, flushed to disk and renamed. Before resuming, all files and weights are
      verified. Resuming a finished run loads its result. Models, results and states are replaced atomically.
    """

    # Loss of a uniform guess, if a subclass knows it.
    uniform_loss: float | None = None
    # Sum of the losses of a step's micro-batches that `check_loss` has not checked yet.
    unchecked_loss: torch.Tensor | float = 0.0
    # Flags of a script that are not arguments of the trainer, and the contents of run_arguments.json.
    flags: Mapping[str, Any] = MappingProxyType({})
    _record: Mapping[str, Any] = MappingProxyType({})
    _step = _micro_batch = _saved_step = -1
    # Temporary folder of a checkpoint while it is written.
    _aside: Path | None = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(NewScheduleCallback())

    def log(self, logs: dict[str, float], *args, **kwargs):
        """Log metrics. If the training has diverged, add "diverged" to the entry, and warn the first time."""
        if "loss" in logs:
            sentence = divergence([*self.state.log_history, logs], self.uniform_loss)
            if sentence and self.is_world_process_zero() and self.divergence() is None:
                logger.warning(f"step {self.state.global_step}: {sentence}")
            if sentence:
                logs = logs | {"diverged": 1.0}
        super().log(logs, *args, **kwargs)

    def divergence(self) -> str | None:
        """Return a message if the log shows that the training has diverged, else None."""
        return divergence(self.state.log_history, self.uniform_loss)

    def print_divergence(self):
        """Print the message of `divergence`, if there is one. Call this at the end, so that it is the last line."""
        sentence = self.divergence()
        if sentence and self.is_world_process_zero():
            print(sentence, flush=True)

    def train(self, resume_from_checkpoint=None, *args, allow_changed_args: Sequence[str] | None = None, **kwargs):
        """Train, or resume from a complete checkpoint (True: from the last one; see `resume_checkpoint`).

        Resuming a finished run only loads its model, whereas `Trainer` would take one more step. If model, state and metrics
        of the training are in the output folder, no metrics are returned. Otherwise, only the epoch is returned.

        Args:
            allow_changed_args (`list[str]`, *optional*): names of arguments that may differ from the initial arguments;
                default: the names in `args.allow_changed_args`, if this field exists.
        Raises:
            ValueError: an argument has changed (see `begin_run`), or a file of the checkpoint is damaged.
        """
        checkpoint, folder = None, Path(self.args.output_dir)
        if resume_from_checkpoint:
            checkpoint = run_folder.resume_checkpoint(folder, resume_from_checkpoint)
        if allow_changed_args is None:
            allow_changed_args = getattr(self.args, "allow_changed_args", ())
        if getattr(self.args, "train_longer", None) is not None:
            allow_changed_args = [*allow_changed_args, *run_folder.LENGTH]
        with contextlib.ExitStack() as stack:
            # Hide Trainer's warning about changed arguments, which newer versions of transformers log in trainer_utils.
            for name in ("trainer", "trainer_utils"):
                compares = getLogger(f"transformers.{name}")
                compares.addFilter(_is_no_comparison)
                stack.callback(compares.removeFilter, _is_no_comparison)
            if self.is_world_process_zero():
                stack.enter_context(locked_folder(folder))
            run_folder.sync_ranks(self.args, checkpoint)
            # As in newer versions of transformers: Trainer itself divides the loss. In 5.4, accelerate divides it again, by
            # the number of accumulation steps in the arguments when the Trainer was created.
            self.accelerator.gradient_accumulation_steps = 1
            if self.args.should_save:
                arguments = {**run_folder.repeated_arguments((), self.args), **run_folder.run_contents(self), **self.flags}
                self._record = run_folder.begin_run(folder, arguments, checkpoint, allow_changed_args)
            if checkpoint is None or not self.is_last(checkpoint):
                self._termination = stack.enter_context(Termination())
                return super().train(checkpoint, *args, **kwargs)
        files = {*os.listdir(folder)}
        # The weights of a model are written last.
        if not ({STATE_FILE, "train_results.json"} <= files and any(map(is_weight_file, files))):
            self.restore(checkpoint)
            return TrainOutput(self.state.global_step, 0.0, {"epoch": self.state.epoch})
        # With FSDP, Trainer can only load from checkpoints.
        if not self.is_fsdp_enabled:
            checkpoint = folder
        self.restore(checkpoint)
        # Remove the evaluations after the training, because the caller evaluates again.
        history = self.state.log_history
        while history and not {"train_runtime", "loss"} & {*history[-1]}:
            history.pop()
        return TrainOutput(self.state.global_step, 0.0, {})

    @staticmethod
    def get_optimizer_cls_and_kwargs(args, model=None):
        """Return `PublishedAdam` if --published_optimizer is set, else the optimizer of `Trainer`."""
        if getattr(args, "published_optimizer", False):
            betas = (args.adam_beta1, args.adam_beta2)
            return PublishedAdam, dict(lr=args.learning_rate, betas=betas, eps=args.adam_epsilon)
        return HubTrainer.get_optimizer_cls_and_kwargs(args, model)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Create the published schedule if --published_optimizer is set, else the schedule of `Trainer`."""
        if getattr(self.args, "published_optimizer", False) and self.lr_scheduler is None:
            self.lr_scheduler = published_schedule(optimizer or self.optimizer, num_training_steps, self.args.warmup_steps)
        return super().create_scheduler(num_training_steps, optimizer)

    def is_last(self, checkpoint: str | os.PathLike) -> bool:
        """Return True if this checkpoint is the end of the training."""
        state = TrainerState.load_from_json(str(Path(checkpoint, STATE_FILE)))
        if self.args.max_steps > 0:
            return state.global_step >= self.args.max_steps
        return (state.epoch or 0) >= self.args.num_train_epochs

    def restore(self, folder: str | os.PathLike):
        """Load the model and state of a finished run from its folder, or from its best or last checkpoint."""
        self.state = TrainerState.load_from_json(str(Path(folder, STATE_FILE)))
        best = self.state.best_model_checkpoint
        if Path(folder).name.startswith("checkpoint-") and self.args.load_best_model_at_end and best and os.path.isdir(best):
            folder = best
        # Private, but supports all forms of checkpoints: shards, adapters, FSDP.
        self._load_from_checkpoint(str(folder))

    def train_and_save(self, checkpoint: str | None, **facts: float) -> dict[str, float]:
        """Train or resume, and save the model, state and metrics; `facts` are added to the metrics.

        Returns:
            The metrics; empty if the run was already finished.
        """
        if checkpoint is not None:
            # Read before training, because the checkpoint may be removed at its end.
            facts["train_resumed_at_step"] = TrainerState.load_from_json(str(Path(checkpoint, STATE_FILE))).global_step
        metrics = self.train(resume_from_checkpoint=checkpoint).metrics
        if not metrics:
            return {}
        # Internal call, so that the model is only pushed once, at the end, with card and results.
        self.save_model(_internal_call=True)
        self.save_state()
        return self.record("train", metrics | facts)

    def record(self, stem: str, metrics: dict[str, float]) -> dict[str, float]:
        """Print metrics, write them to STEM_results.json in the output folder, and return them."""
        self.log_metrics(stem, metrics)
        self.save_metrics(stem, metrics)
        return metrics

    def training_step(self, model, inputs: dict[str, Any], num_items_in_batch=None) -> torch.Tensor:
        """Train on a micro-batch; raise a ValueError if the loss is NaN or infinite."""
        self.begin_micro_batch()
        loss = super().training_step(model, inputs, num_items_in_batch)
        check_loss(loss, self)
        return loss

    def begin_micro_batch(self) -> int:
        """Seed the next micro-batch of the current step, and return its number."""
        self._micro_batch += 1
        if self._step != self.state.global_step:
            self._step, self._micro_batch = self.state.global_step, 0
        self.seed_micro_batch(self._micro_batch)
        return self._micro_batch

    def seed_micro_batch(self, number: int, *further: int):
        """Seed torch for micro-batch `number` of the current step; `further` numbers give a different seed."""
        accumulated = self.state.global_step * self.args.gradient_accumulation_steps + number
        numbers = accumulated * self.args.world_size + self.args.process_index, *further
        torch.manual_seed(spread_seed(self.args.seed, *numbers))

    def without_repeated_rows(self, batches: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Remove rows that accelerate repeats at the end of an epoch. If none remains, one is kept, marked as "repeated"."""
        if self.args.world_size == 1 or not is_split_free(self.args) or not hasattr(self.train_dataset, "__len__"):
            return batches
        size, processes = self.args.train_batch_size, self.args.world_size
        rows = self.rows_left() - self.args.process_index * size
        return [first_rows(batch, rows - number * processes * size) for number, batch in enumerate(batches)]

    def rows_left(self) -> int:
        """Return the number of rows of the current epoch that are still to be read."""
        step_size = self.args.train_batch_size * self.args.world_size * self.args.gradient_accumulation_steps
        rows = len(self.train_dataset)
        return rows - self.state.global_step % math.ceil(rows / step_size) * step_size

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        """Evaluate without changing the random state of the training, from which data loaders draw."""
        with torch.random.fork_rng(devices=[]):
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        # Only processes that have not trained report this metric. Remove it, so that all report the same names.
        output.metrics.pop(f"{metric_key_prefix}_model_preparation_time", None)
        return output

    def check_best_metric(self, metrics: Mapping[str, float]):
        """Raise a ValueError if --metric_for_best_model is not among the metrics of an evaluation during the training."""
        best = self.args.metric_for_best_model
        if self.is_in_train and best is not None and not {best, f"eval_{best}"} & {*metrics}:
            raise ValueError(f"--metric_for_best_model must be one of {', '.join(metrics)}, got {best}")

    def _issue_warnings_after_load(self, load_result: Any):
        """Raise an error if weights are missing in the checkpoint; Trainer only warns.

        For example, transformers 5.4 saves some weights of BERT under old names, which its Trainer does not load. The method
        is private, because Trainer calls no public method after loading.
        """
        # Tied weights are only saved once.
        missing = sorted({*load_result.missing_keys} - {*(getattr(self.model, "all_tied_weights_keys", None) or ())})
        if missing:
            raise ValueError(f"the checkpoint lacks {len(missing)} weights, such as {missing[0]}; start a new run")
        super()._issue_warnings_after_load(type(load_result)([], load_result.unexpected_keys))

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        """Log, evaluate and save after a step; after SIGTERM, save and exit; after Ctrl-C, save and raise KeyboardInterrupt.

        A callback would save before the evaluation of this step, and the resumed run would skip this evaluation. Therefore,
        this class overrides a private method of Trainer.
        """
        stops = self._termination.requested
        if self.args.world_size > 1:
            # Any process may have received the signal, at a different step.
            stops = int(self.accelerator.gather(torch.tensor([stops], device=self.args.device)).max())
        self.control.should_save |= bool(stops)
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if not stops:
            return
        if self._saved_step != self.state.global_step:
            # With --save_strategy best, the call above may have saved nothing.
            self._save_checkpoint(self.model, None)
        self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.is_world_process_zero():
            message = f"stopped by {signal.Signals(stops).name} after step {self.state.global_step}"
            if stops == signal.SIGTERM:
                # After Ctrl-C, the command prints how to resume.
                message += ": resume with --resume_from_checkpoint last (not possible with --save_only_model)"
            print(message, file=sys.stderr, flush=True)
        release_folder()
        if stops == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(TERMINATED)

    def _get_output_dir(self, trial):
        """Return the folder for checkpoints. Overrides a private method, because Trainer has no public one for it."""
        if self._aside is not None:
            return str(self._aside.parent)
        return super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial):
        """Save a checkpoint to a temporary folder, flush it to disk and rename it. Overrides a private method, because
        Trainer has no public method that saves a checkpoint."""
        self._saved_step = self.state.global_step
        folder = Path(self._get_output_dir(trial))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        with contextlib.ExitStack() as stack:
            if self.args.should_save:
                stack.enter_context(checkpoints.replaced_folder(checkpoint))
            # All processes write to the new folder.
            self.accelerator.wait_for_everyone()
            new = self._aside = checkpoints.place_aside(checkpoint)
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            # Trainer has set a path in the temporary folder.
            best = folder / f"checkpoint-{self.state.best_global_step}"
            if best == checkpoint or best.is_dir():
                self.state.best_model_checkpoint = str(best)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.state.save_to_json(str(new / STATE_FILE))
                replace_text(new / ARGUMENTS_FILE, json.dumps(dict(self._record), indent=2) + "\n")
                checkpoints.write_manifest(new)
        if self.args.should_save:
            self._remove_checkpoints(folder, {checkpoint, Path(self.state.best_model_checkpoint or checkpoint)})
            checkpoints.remove_partial(folder)

    def _remove_checkpoints(self, folder: Path, kept: set[Path]):
        """Remove checkpoints beyond the limit, but not `kept`. Checkpoints of later steps, which exist if the run was
        resumed from an earlier checkpoint, are removed first; then the oldest checkpoints."""
        limit = self.args.save_total_limit or 0
        steps = {path: checkpoint_step(path) for path in folder.glob("checkpoint-*[0-9]")}
        removable = sorted({*steps} - kept, key=lambda path: (steps[path] <= self.state.global_step, steps[path]))
        excess = len(steps) - max(limit, len(kept & {*steps}))
        if limit > 0 and excess > 0:
            for path in removable[:excess]:
                checkpoints.remove_folder(path)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        """Save the model. Overrides a private method, to which Trainer passes gathered weights (FSDP, DeepSpeed)."""
        # Remove the token, because transformers does not mask it in the arguments that are saved with a model.
        token, self.args.hub_token = self.args.hub_token, None
        try:
            # Trainer calls this in all processes; a checkpoint is already in a temporary folder.
            if self._aside is not None or not self.args.should_save:
                super()._save(output_dir, state_dict)
            else:
                with checkpoints.replaced_model(Path(output_dir or self.args.output_dir)) as part:
                    super()._save(str(part), state_dict)
        finally:
            self.args.hub_token = token

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True):
        """Write the metrics of a split atomically. If `combined`, also add them to all_results.json."""
        files = {f"{split}_results.json": metrics}
        if combined:
            files[RESULTS_FILE] = read_json(Path(self.args.output_dir, RESULTS_FILE)) | metrics
        for name, values in files.items():
            if self.is_world_process_zero():
                replace_text(Path(self.args.output_dir, name), json.dumps(values, indent=4, sort_keys=True))

    def save_state(self):
        """Write the state of the trainer atomically."""
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            self.state.save_to_json(str(folder / f".{STATE_FILE}.part"))
            os.replace(folder / f".{STATE_FILE}.part", folder / STATE_FILE)
            checkpoints.remove_partial(folder)


def _is_no_comparison(record: LogRecord) -> bool:
    """Return False for Trainer's warning that arguments differ from the checkpoint. `begin_run` already compares them. The
    warning can also be wrong: a checkpoint stores --logging_steps 0.01 as a number of steps, which differs from 0.01."""
    return "do not match the ones in the `trainer_state.json`" not in record.getMessage()


def first_rows(batch: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return a batch's first `count` rows without excess padding. If `count` <= 0, return one row, marked as "repeated"."""
    if count >= len(next(iter(batch.values()))):
        return batch
    batch = {name: values[: max(count, 1)] for name, values in batch.items()}
    if "attention_mask" in batch:
        mask = batch["attention_mask"]
        width = int(mask.flatten(0, -2).any(0).nonzero().max()) + 1
        # Float labels of multi-label classification may have the same shape as the mask.
        padded = {name for name, values in batch.items() if values.shape == mask.shape and not values.is_floating_point()}
        batch |= {name: batch[name][..., :width] for name in padded}
    if count <= 0:
        batch["repeated"] = torch.tensor(True)
    return batch

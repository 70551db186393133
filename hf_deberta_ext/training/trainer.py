# SPDX-License-Identifier: Apache-2.0
"""`CheckpointTrainer`: what it writes is whole or not there, so that a killed run leaves nothing that is taken for more."""

import json
import os
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.utils import logging

from ..model.checkpoint_files import checkpoint_step
from .checkpoints import (
    STATE_FILE,
    checkpoint_problem,
    readable_checkpoint,
    remove_folder,
    remove_partial,
    replace_text,
    replaced_model,
)

logger = logging.get_logger(__name__)

__all__ = ["CheckpointTrainer"]

RESULTS_FILE = "all_results.json"


class CheckpointTrainer(Trainer):
    """Trainer whose files can be trusted when its process was killed at any moment.

    - A checkpoint that is written again, because the run was resumed from an earlier one, is removed before: Trainer would
      write into it, and its state, which is old, would say that it is whole.
    - Checkpoints beyond `save_total_limit` are renamed before they are removed. Those that are cut go first, then those of
      later steps than the present one, which a resumed run replaces, then the oldest. Trainer goes by the time of the
      folder, which a folder that is half removed has changed last.
    - A saved model takes the place of the one before in one go, as `replaced_model` says.
    - The arguments that are saved with a model are without `hub_token`: transformers masks it everywhere but there.
    - A checkpoint that lacks weights of the model is not trained on.
    - Results and state are replaced, not written over; train_results.json comes behind what all_results.json holds of it.
      What is measured behind the training stands once in the log, also of a run that was resumed there.
    """

    _limit: int | None = None

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As in transformers.

        Raises:
            ValueError: a file of the checkpoint holds pickled objects that would run code.
        """
        last = f"the last checkpoint of {self.args.output_dir}"
        with readable_checkpoint(last if resume_from_checkpoint is True else resume_from_checkpoint):
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint, *args, **kwargs):
        with readable_checkpoint(resume_from_checkpoint):
            return super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _issue_warnings_after_load(self, load_result: Any):
        """An error where Trainer warns and trains on with what it has: the run would not be the one that was stopped. No
        warning of tied weights, which no file holds twice.

        transformers 5.4 saves some weights of BERT in a checkpoint under old names, which its Trainer does not find again.
        """
        unsaved = {*(self.model._keys_to_ignore_on_save or ())}
        tied = {*(getattr(self.model, "all_tied_weights_keys", None) or ())}
        if missing := sorted({*load_result.missing_keys} - tied - unsaved):
            raise ValueError(
                f"the checkpoint lacks {len(missing)} weights, {missing[0]} for one: it is not the model that was trained; "
                "begin anew in another --output_dir, with a newer transformers if the run wrote it so"
            )
        if {*load_result.missing_keys} != unsaved:
            load_result = type(load_result)([], load_result.unexpected_keys)
        super()._issue_warnings_after_load(load_result)

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save and checkpoint.exists():
            remove_folder(checkpoint)
        if self.args.world_size > 1:
            # All processes write into it.
            self.accelerator.wait_for_everyone()
        # None: Trainer removes no checkpoints.
        self._limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._limit, self.args.save_total_limit = None, self._limit
        if self.args.should_save:
            self._remove_checkpoints(folder, checkpoint)
            remove_partial(folder)

    def _remove_checkpoints(self, folder: Path, newest: Path):
        limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
        if limit is None or limit <= 0:
            return
        kept = {newest.resolve()} | ({Path(best).resolve()} if best is not None and Path(best).is_dir() else set())
        present = self.state.global_step
        steps = {path: checkpoint_step(path) for path in folder.glob("checkpoint-*") if path.is_dir()}
        steps = {path: step for path, step in steps.items() if step >= 0}
        order = sorted(steps, key=lambda path: (checkpoint_problem(path) is None, steps[path] <= present, steps[path]))
        removable = [path for path in order if path.resolve() not in kept]
        for path in removable[: max(0, len(steps) - max(limit, len(kept)))]:
            remove_folder(path)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        if not self.args.should_save:
            super()._save(output_dir, state_dict)
            return
        # The arguments, which are saved with the model, have the limit that was given.
        limit, token = self.args.save_total_limit, self.args.hub_token
        self.args.save_total_limit, self.args.hub_token = limit if self._limit is None else self._limit, None
        try:
            with replaced_model(Path(self.args.output_dir if output_dir is None else output_dir)) as part:
                super()._save(str(part), state_dict)
        finally:
            self.args.save_total_limit, self.args.hub_token = limit, token

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True):
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        if combined:
            file, together = folder / RESULTS_FILE, {}
            try:
                together = json.loads(file.read_text(encoding="utf-8"))
            except FileNotFoundError:
                pass
            except ValueError:
                logger.warning(f"{file} is cut: it is written anew")
            replace_text(file, _json(together | metrics))
        replace_text(folder / f"{split}_results.json", _json(metrics))

    def save_state(self):
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        self.state.log_history = _measured_once(self.state.log_history, checkpoint / STATE_FILE)
        part = folder / f".{STATE_FILE}.part"
        self.state.save_to_json(str(part))
        os.replace(part, folder / STATE_FILE)
        remove_partial(folder)


def _measured_once(history: list[dict[str, Any]], checkpoint_state: Path) -> list[dict[str, Any]]:
    """The log, with the last of each kind of evaluation behind the end of the training.

    Args:
        checkpoint_state (`Path`): of the last checkpoint, if it is there: a run that was killed right behind it, and
            resumed, has no other sign in its log of where the training ends.
    """
    ends = [number + 1 for number, entry in enumerate(history) if "train_runtime" in entry]
    if not ends and checkpoint_state.is_file():
        ends = [len(json.loads(checkpoint_state.read_text(encoding="utf-8"))["log_history"])]
    end = max(ends, default=len(history))
    last = {tuple(sorted(entry)): number for number, entry in enumerate(history) if number >= end}
    return [entry for number, entry in enumerate(history) if number < end or number in last.values()]


def _json(metrics: dict[str, Any]) -> str:
    return json.dumps(metrics, indent=4, sort_keys=True)

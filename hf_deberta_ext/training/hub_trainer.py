# SPDX-License-Identifier: Apache-2.0
"""`--push_to_hub` for this package's trainers: pushes only the model's files, while `Trainer` pushes the output folder."""

import json
import os
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

from huggingface_hub import CommitInfo, run_as_future
from transformers import Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress, logging

from ..checkpoints.files import read_json
from ..files import drop_none, replace_text
from ..publishing.push import published_files, push
from .checkpoints import STATE_FILE, write_manifest

logger = logging.get_logger(__name__)

__all__ = ["HubTrainer"]

# Files that a resumed run needs in addition to the model. Trainer's arguments are excluded: they contain local paths.
RESUMED = (STATE_FILE, "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")


class HubTrainer(Trainer):
    """Trainer that publishes with `hf_deberta_ext.publishing.push`. If a background push fails, a warning is logged."""

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> CommitInfo | Future | None:
        """Save the model, and publish the output folder. If there is no card, create one with `create_model_card`."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if getattr(self, "hub_model_id", None) is None:
            # init_hf_repo does not accept `private` in older versions of transformers.
            if private is not None:
                self.args.hub_private_repo = private
            self.init_hf_repo(token=token)
        folder = Path(self.args.output_dir)
        has_card = (folder / "README.md").is_file()
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        if not has_card:
            self.create_model_card(**{"model_name": self.hub_model_id.rpartition("/")[2], **kwargs})
        job = self._start_push(folder, commit_message, token=token, revision=revision, private=private)
        return job.result() if blocking else job

    # Overrides a private method, because Trainer calls no public method for each checkpoint.
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        strategy, state = self.args.hub_strategy, self.state
        is_busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if not self.is_world_process_zero() or strategy == HubStrategy.END or (is_busy and not self.args.hub_always_push):
            return
        self.callback_handler.on_push_begin(self.args, state, self.control)
        done = f"step {state.global_step}"
        if self.args.save_strategy == SaveStrategy.EPOCH:
            done = f"epoch {int(state.epoch)}"
        places = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: Path(checkpoint_folder).name}
        place = places.get(strategy, "")
        folder = self._linked(Path(checkpoint_folder), place)
        options = {"include": [f"{place}/*"]} if place else {}
        job = self._start_push(folder, f"Training in progress, {done}", removed=folder.parent, **options)
        jobs = self.push_in_progress.jobs if is_busy else []
        self.push_in_progress = PushInProgress([*jobs, job])

    def _linked(self, checkpoint: Path, place: str) -> Path:
        """Link the model of a checkpoint into a new folder, because the checkpoint may be deleted before it is uploaded.

        If `place` is not empty, the model and the files that a resumed run needs are also linked into this subfolder."""
        files = published_files(checkpoint)[0]
        # The card in a checkpoint is only a template of peft.
        files.pop("README.md", None)
        if place:
            model = [file for path, file in files.items() if "/" not in path]
            resumed = [file for pattern in RESUMED for file in checkpoint.glob(pattern)]
            files |= {f"{place}/{file.name}": file for file in [*model, *resumed]}
        folder = Path(tempfile.mkdtemp(prefix=".pushed-", dir=self.args.output_dir), self.hub_model_id.rpartition("/")[2])
        for path, file in files.items():
            (folder / path).parent.mkdir(exist_ok=True, parents=True)
            try:
                os.link(file, folder / path)
            except OSError:
                shutil.copyfile(file, folder / path)
        if place:
            state_file = folder / place / STATE_FILE
            state = read_json(state_file)
            state["best_model_checkpoint"] = Path(state["best_model_checkpoint"] or "").name or None
            replace_text(state_file, json.dumps(state, indent=2) + "\n")
            write_manifest(folder / place)
        return folder

    def _start_push(self, folder: Path, message: str | None, removed: Path | None = None, **options) -> Future:
        """Push a folder in the background after all earlier pushes, and then delete the folder `removed`."""
        args = self.args
        given = dict(token=args.hub_token, revision=args.hub_revision, private=args.hub_private_repo)
        given |= drop_none(options)

        def send() -> CommitInfo:
            try:
                return push(folder, self.hub_model_id, commit_message=message, skip_checks=True, **given).commit
            except Exception as error:
                logger.warning(f"{message}: the push to {self.hub_model_id} failed: {error}")
                raise
            finally:
                if removed is not None:
                    shutil.rmtree(removed, ignore_errors=True)

        # A single thread runs all pushes, one after the other.
        return run_as_future(send)

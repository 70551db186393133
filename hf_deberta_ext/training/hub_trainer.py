# SPDX-License-Identifier: Apache-2.0
"""`--push_to_hub` of our trainers: the files of the model and no others, in one commit each time."""

import functools
import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress, logging

from ..model.publishing import refuse_other_privacy
from ..publishing.folder_checks import link_or_copy, token_problems
from ..publishing.hub_commit import REPOSITORY, HubCommit, compare_files
from ..publishing.hub_requests import PushError, RequestSteps, patient_session
from ..publishing.published_files import published_files
from ..publishing.push import pin_cards
from .manifest import MANIFEST_FILE, manifest_text

logger = logging.get_logger(__name__)

__all__ = ["HubTrainer"]

CARD, STATE_FILE = "README.md", "trainer_state.json"
# Files of a checkpoint that a resumed run needs beside the model.
RESUMED = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")


class HubTrainer(Trainer):
    """Trainer that pushes the files of `published_files`, where transformers' own pushes all of the output folder.

    That folder also holds predictions, arguments and logs, which name files of the machine. Its README.md is pushed too,
    with the repository in the code that loads the model; Trainer's own card is written only where there is none. Old weights
    in the repository that would be loaded instead of the new ones are removed in the same commit.

    A token of the Hub in one of the files refuses the push.

    With `hub_strategy` checkpoint or all_checkpoints, the files that a resumed run needs are pushed too, without Trainer's
    arguments, and without the folders in its state.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As Trainer's.

        Raises:
            ValueError: the repository is there, and not as private as asked.
            OSError: the Hub refuses it, or answers in another form.
        """
        # transformers 5.4 reads it from the arguments alone.
        flag = self.args.hub_private_repo
        self.args.hub_private_repo = flag if private is None else private
        try:
            make = functools.partial(super().init_hf_repo, token=token)
            name = self.args.hub_model_id or Path(self.args.output_dir).name
            with patient_session():
                RequestSteps(name, self.args.output_dir).step("making the repository", make, expected=REPOSITORY)
            if self.is_world_process_zero():
                self._check_privacy(self.args.hub_private_repo, token)
        finally:
            self.args.hub_private_repo = flag

    def _check_privacy(self, private: bool | None, token: str | None):
        if private is not None:
            read = functools.partial(self._hub.model_info, self.hub_model_id, token=token or self.args.hub_token)
            with patient_session():
                steps = RequestSteps(self.hub_model_id, self.args.output_dir)
                info = steps.step(f"reading {self.hub_model_id}", read, expected=REPOSITORY)
            refuse_other_privacy(self.hub_model_id, bool(info.private), private, "--hub_private_repo")

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> CommitInfo | Future | None:
        """Saves the model, and publishes the output folder; `kwargs` are for the card, if there is none.

        Args:
            private (`bool`, *optional*): of a repository that is made only now; default: `--hub_private_repo`.

        Raises:
            OSError: the push failed; says where the model is.
            ValueError: the repository is there, and not as private as asked.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token or self.args.hub_token
        if getattr(self, "hub_model_id", None) is None:
            self.init_hf_repo(token=token, private=private)
        elif private is not None and self.is_world_process_zero():
            self._check_privacy(private, token)
        folder = Path(self.args.output_dir)
        card = (folder / CARD).read_bytes() if (folder / CARD).is_file() else None
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        if card is None:
            self.create_model_card(**{"model_name": self.hub_model_id.rpartition("/")[2], **kwargs})
        else:
            # Saving an adapter writes into it.
            (folder / CARD).write_bytes(card)
        self._finish_current_push()
        try:
            files, left_out = published_files(folder)
            self._refuse_tokens(files, token)
            push = functools.partial(self._commit, files, commit_message, token, revision or self.args.hub_revision)
            commit = push() if blocking else self._hub.run_as_future(push)
        # Whatever the error is, the training is done, and its model is not lost.
        except Exception as error:
            raise OSError(
                f"the model is in {folder}, but was not pushed to {self.hub_model_id}: {str(error).rstrip('.')}. Or push "
                f"it later with deberta-ext push {folder} {self.hub_model_id}"
            ) from error
        if left_out:
            logger.info(f"not published, unless by deberta-ext push with --include: {', '.join(left_out)}")
        return commit

    def _push_from_checkpoint(self, checkpoint_folder: str):
        """As Trainer's, in the background: the files of the model in the checkpoint become those of the repository."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        state = self.state
        done = f"epoch {int(state.epoch)}" if self.args.save_strategy == SaveStrategy.EPOCH else f"step {state.global_step}"
        # Links, or copies where the file system has none: the checkpoint may be gone before it is sent.
        links = tempfile.TemporaryDirectory(prefix=".pushed-", dir=self.args.output_dir)
        try:
            # A card in a checkpoint is peft's template.
            found = {name: file for name, file in published_files(checkpoint_folder)[0].items() if name != CARD}
            files = {name: link_or_copy(file, Path(links.name, name), os.link) for name, file in found.items()}
            resumed: dict[str, Path] = {}
            if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                for pattern in RESUMED:
                    for file in sorted(Path(checkpoint_folder).glob(pattern)):
                        resumed[file.name] = link_or_copy(file, Path(links.name, file.name), os.link)
                resumed[STATE_FILE] = Path(links.name, STATE_FILE)
                resumed[STATE_FILE].write_bytes(portable_state(Path(checkpoint_folder, STATE_FILE)))
            self._refuse_tokens(files | resumed)
            if resumed:
                manifest = Path(links.name, MANIFEST_FILE)
                manifest.write_text(manifest_text(files | resumed), encoding="utf-8")
                resumed[MANIFEST_FILE] = manifest
        except (OSError, ValueError) as error:
            links.cleanup()
            logger.warning(f"there is no push at {done} to {self.hub_model_id}, and the training goes on: {error}")
            return
        if resumed:
            last = self.args.hub_strategy == HubStrategy.CHECKPOINT
            place = "last-checkpoint" if last else Path(checkpoint_folder).name
            files |= {f"{place}/{name}": file for name, file in (files | resumed).items()}

        def push() -> CommitInfo:
            # All of it in the job: a callback may come after whoever waits for the job has gone on.
            try:
                return self._commit(files, f"Training in progress, {done}", self.args.hub_token, self.args.hub_revision)
            except Exception as error:
                logger.warning(f"the push at {done} to {self.hub_model_id} failed, and the training goes on: {error}")
                raise
            finally:
                links.cleanup()

        job = self._hub.run_as_future(push)
        if busy:
            self.push_in_progress.jobs.append(job)
        else:
            self.push_in_progress = PushInProgress([job])

    @functools.cached_property
    def _hub(self) -> HfApi:
        """One for all pushes: what it does in the background, it does one after the other."""
        return HfApi()

    def _commit(self, files: Mapping[str, Path], message: str | None, token: str | None, revision: str | None) -> CommitInfo:
        """One commit on top of what others have pushed, unless they have changed the same files since the first look."""
        files, repo_id, branch = dict(files), self.hub_model_id, revision or "main"
        steps = RequestSteps(repo_id, self.args.output_dir)
        first = None
        with tempfile.TemporaryDirectory(prefix="hf_deberta_ext_push_") as cards, patient_session():
            pin_cards(files, Path(cards), repo_id, branch, pinned=False)
            hub = HubCommit(HfApi(token=token), steps, branch, create_pr=False, files=files)
            while True:
                remote = hub.prepare(hub.read(), self.args.hub_private_repo)
                changes = compare_files(files, remote.files)
                blobs = {change.path: getattr(remote.files.get(change.path), "blob_id", None) for change in changes}
                if changed := sorted(path for path in blobs if first is not None and blobs[path] != first.get(path)):
                    failure = f"somebody else has changed {', '.join(changed[:5])} in {repo_id} meanwhile"
                    raise steps.error(failure, "Look at that before you push again.")
                try:
                    return hub.commit(changes, remote, message or "End of training", None)
                except PushError as error:
                    # Somebody has pushed since the look: perhaps other files.
                    if error.status != 412 or first is not None:
                        raise
                    first = {path: getattr(file, "blob_id", None) for path, file in remote.files.items()}

    def _refuse_tokens(self, files: Mapping[str, Path], token: str | None = None):
        """
        Raises:
            ValueError: a file holds a token of the Hub.
        """
        if problems := token_problems(files, token, self.args.hub_token):
            raise ValueError("; ".join(problems))


def portable_state(state_file: Path) -> bytes:
    """A checkpoint's state, in which the best checkpoint is a name and not a folder of this machine."""
    state: Mapping[str, Any] = json.loads(state_file.read_text(encoding="utf-8"))
    best = state.get("best_model_checkpoint")
    return json.dumps({**state, "best_model_checkpoint": best and Path(best).name}, indent=2).encode() + b"\n"

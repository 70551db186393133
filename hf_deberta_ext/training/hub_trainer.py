# SPDX-License-Identifier: Apache-2.0
"""What `--push_to_hub` publishes of a run: the files of the model and no others, in one commit each time."""

import functools
import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError
from transformers import Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress, logging

from ..model.checkpoint_files import stale_weights
from ..publishing.loading_code import published_card
from ..publishing.published_files import PICTURES, published_files
from ..publishing.secret_search import text_problems

logger = logging.get_logger(__name__)

__all__ = ["HubTrainer"]

CARD, STATE_FILE = "README.md", "trainer_state.json"
# What a model loads without.
NOT_NEEDED = ("*README.md", "LICENSE*", "*_results.json", *(f"*{ending}" for ending in PICTURES))
# What a checkpoint needs to be resumed from, beside the model.
RESUMED = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth")


class HubTrainer(Trainer):
    """Trainer that pushes the files of `published_files`, where transformers' own pushes all of the output folder.

    That folder also holds predictions, arguments and logs, which name files of the machine. Its README.md goes along, with
    the repository in the code that loads the model; Trainer's own card is written only where there is none. Old weights in
    the repository that would be loaded instead of the new ones are removed in the same commit.

    What has a token in it, or a path of this machine, is not pushed: card, results and pictures are left out; where it is
    another file there is no push.

    With `hub_strategy` checkpoint or all_checkpoints, what a checkpoint needs to be resumed from is pushed too, without
    Trainer's arguments, and without the folders in its state.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As Trainer's.

        Raises:
            ValueError: the repository is there, and not as private as asked.
        """
        # transformers 5.4 reads it from the arguments alone.
        asked = self.args.hub_private_repo
        self.args.hub_private_repo = asked if private is None else private
        try:
            super().init_hf_repo(token=token)
            if self.is_world_process_zero():
                self._refuse_other_privacy(self.args.hub_private_repo, token)
        finally:
            self.args.hub_private_repo = asked

    def _refuse_other_privacy(self, private: bool | None, token: str | None):
        if private is None:
            return
        is_private = bool(self._hub.model_info(self.hub_model_id, token=token or self.args.hub_token).private)
        if is_private != private:
            state, asked = ("private", "public") if is_private else ("public", "private")
            raise ValueError(
                f"{self.hub_model_id} is there already and {state}, and a push does not make it {asked}: leave "
                "--hub_private_repo out, or change it in the settings of the repository; nothing was sent"
            )

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
            self._refuse_other_privacy(private, token)
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
            files = self._without_leaks(files, folder, token)
            given = (files, commit_message, token, revision or self.args.hub_revision)
            commit = self._commit(*given) if blocking else self._hub.run_as_future(self._commit, *given)
        # Whatever it was, the training is done, and its model is not lost.
        except Exception as error:
            raise OSError(
                f"the model is in {folder}, but was not pushed to {self.hub_model_id}: {error}; when that is mended, "
                f"deberta-ext push {folder} {self.hub_model_id} pushes it"
            ) from error
        if left_out:
            logger.info(f"not pushed: {', '.join(left_out)}")
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
        kept = tempfile.TemporaryDirectory(prefix=".pushed-", dir=self.args.output_dir)
        files: dict[str, Path | bytes] = {}
        # A card in a checkpoint is peft's template.
        for name, file in published_files(checkpoint_folder)[0].items():
            if name != CARD:
                files[name] = _keep(file, Path(kept.name, name))
        try:
            files = self._without_leaks(files, Path(checkpoint_folder), None)
        except OSError as error:
            kept.cleanup()
            logger.warning(f"there is no push at {done} to {self.hub_model_id}, and the training goes on: {error}")
            return
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            last = self.args.hub_strategy == HubStrategy.CHECKPOINT
            place = "last-checkpoint" if last else Path(checkpoint_folder).name
            files |= {f"{place}/{name}": file for name, file in files.items()}
            for pattern in RESUMED:
                for file in sorted(Path(checkpoint_folder).glob(pattern)):
                    files[f"{place}/{file.name}"] = _keep(file, Path(kept.name, file.name))
            files[f"{place}/{STATE_FILE}"] = _without_folders(Path(checkpoint_folder, STATE_FILE))

        given = (files, f"Training in progress, {done}", self.args.hub_token, self.args.hub_revision)

        def push() -> CommitInfo:
            # All of it in the job: a callback may come after whoever waits for the job has gone on.
            try:
                return self._commit(*given)
            except Exception as error:
                logger.warning(f"the push at {done} to {self.hub_model_id} failed, and the training goes on: {error}")
                raise
            finally:
                kept.cleanup()

        job = self._hub.run_as_future(push)
        if busy:
            self.push_in_progress.jobs.append(job)
        else:
            self.push_in_progress = PushInProgress([job])

    @functools.cached_property
    def _hub(self) -> HfApi:
        """One for all pushes: what it does in the background, it does one after the other."""
        return HfApi()

    def _commit(
        self, files: Mapping[str, Path | bytes], message: str | None, token: str | None, revision: str | None
    ) -> CommitInfo:
        api, repo_id, files = self._hub, self.hub_model_id, dict(files)
        for name in [name for name in files if name.rpartition("/")[2] == CARD]:
            text = Path(files[name]).read_text(encoding="utf-8")
            files[name] = published_card(text, name, repo_id, revision or "main", pinned=False).encode()
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True, token=token)
        seen: dict[str, str] | None = None
        while True:
            info = api.model_info(repo_id, revision=revision, files_metadata=True, token=token)
            there = {sibling.rfilename: sibling.blob_id for sibling in info.siblings or ()}
            stale = stale_weights(there, files)
            touched = {name: there.get(name) for name in (*files, *stale)}
            if seen is not None and (theirs := sorted(name for name in touched if touched[name] != seen.get(name))):
                names = ", ".join(theirs[:5])
                raise OSError(
                    f"somebody else has changed {names} in {repo_id} meanwhile; look at that before you push again"
                )
            operations = [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in stale]
            for name, file in files.items():
                data = file if isinstance(file, bytes) else str(file)
                operations.append(CommitOperationAdd(path_in_repo=name, path_or_fileobj=data))
            try:
                return api.create_commit(
                    repo_id, operations, commit_message=message or "End of training", revision=revision, token=token,
                    parent_commit=info.sha,
                )  # fmt: skip
            except HfHubHTTPError as error:
                # Somebody has pushed since the look: perhaps other files.
                if error.response.status_code != 412 or seen is not None:
                    raise
                seen = there

    def _without_leaks(self, files: dict[str, Path], folder: Path, token: str | None) -> dict[str, Path]:
        """The files without those that tell a token or a path, as far as the model loads without them.

        Raises:
            OSError: a token or a path in a file that it needs.
        """
        own = {own for own in (token, self.args.hub_token, get_token()) if own}
        place, kept = folder.resolve(), dict(files)
        for name, file in files.items():
            problems = text_problems({name: file}, [place, place.parent, Path.cwd()], sorted(own))
            if problems and not any(fnmatchcase(name, pattern) for pattern in NOT_NEEDED):
                raise OSError("; ".join(problems))
            if problems:
                logger.warning(f"{name} is not pushed: {'; '.join(problems)}")
                del kept[name]
        return kept


def _keep(file: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, place)
    except OSError:
        place.write_bytes(file.read_bytes())
    return place


def _without_folders(state_file: Path) -> bytes:
    """A checkpoint's state, in which the best checkpoint is a name and not a folder of this machine."""
    state: Mapping[str, Any] = json.loads(state_file.read_text(encoding="utf-8"))
    best = state.get("best_model_checkpoint")
    return json.dumps({**state, "best_model_checkpoint": best and Path(best).name}, indent=2).encode() + b"\n"

# SPDX-License-Identifier: Apache-2.0
"""The requests of a push: what is on the Hub, and how one commit gets there, once and no more."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from .changes import FileChange, is_same
from .transfer import Transfer

__all__ = ["CARD", "Remote", "Sending", "check_remote"]

CARD = "README.md"


@dataclasses.dataclass(frozen=True)
class Remote:
    """What is on the Hub. `head` and `files` are of the branch, or of main where the branch is not there yet."""

    exists: bool = False
    private: bool | None = None
    head: str | None = None
    branches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pull_requests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Sending:
    """The requests of a push. Each step that fails says how far it came."""

    api: HfApi
    transfer: Transfer
    branch: str
    create_pr: bool
    files: Mapping[str, Path]

    def look(self) -> Remote:
        """What is on the Hub; an empty `Remote` if there is no such repository, or the token may not see it."""
        repo_id, step = self.transfer.repo_id, self.transfer.step
        info = step(f"reading {repo_id}", self._info)
        if info is None:
            return Remote()
        refs = step(f"reading the branches of {repo_id}", self._refs)
        branches = {ref.name: ref.target_commit for ref in refs.branches}
        head = branches.get(self.branch, branches.get("main"))
        # huggingface_hub itself tries again to read a list of files.
        tree = functools.partial(self._tree, head)
        return Remote(
            exists=True,
            private=info.private,
            head=head,
            branches=branches,
            tags={ref.name: ref.target_commit for ref in refs.tags},
            pull_requests={ref.ref: ref.target_commit for ref in refs.pull_requests or ()},
            files={} if head is None else step(f"reading the files of {repo_id}", tree, waits=()),
        )

    def _info(self) -> Any | None:
        try:
            return self.api.model_info(self.transfer.repo_id, timeout=60)
        except RepositoryNotFoundError:
            return None

    def _refs(self) -> Any:
        return self.api.list_repo_refs(self.transfer.repo_id, include_pull_requests=self.create_pr)

    def _tree(self, commit: str) -> dict[str, Any]:
        entries = self.api.list_repo_tree(self.transfer.repo_id, recursive=True, revision=commit)
        # Folders have no blob.
        return {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}

    def card(self, remote: Remote, scratch: Path) -> Path:
        """The card on the Hub."""
        load = functools.partial(
            self.api.hf_hub_download, self.transfer.repo_id, CARD, revision=remote.head, cache_dir=scratch / "cache"
        )
        return Path(self.transfer.step("reading the card", load))

    def card_problems(self) -> list[str]:
        """What the Hub says against the metadata of the card, which would make it refuse the commit."""

        def ask() -> list[str]:
            response = get_session().post(
                f"{self.api.endpoint}/api/validate-yaml",
                json={"content": self.files[CARD].read_text(encoding="utf-8"), "repoType": "model"},
                headers=build_hf_headers(token=self.api.token),
            )
            if response.status_code == 400:
                return [str(error.get("message")) for error in response.json().get("errors", ())]
            hf_raise_for_status(response)
            return []

        return self.transfer.step("asking the Hub about the card", ask)

    def prepare(self, remote: Remote, private: bool | None) -> Remote:
        """Makes the repository and the branch where they are not there; what is on the Hub then."""
        repo_id, transfer = self.transfer.repo_id, self.transfer
        if not remote.exists:
            transfer.step(f"making the repository {repo_id}", functools.partial(self._make_repo, private))
            transfer.on_hub = f"The repository {repo_id} was made, and nothing is in it"
            remote = self.look()
            check_remote(remote, repo_id, self.branch, private)
        if self.branch not in remote.branches and not self.create_pr and remote.branches:
            make = functools.partial(
                self.api.create_branch, repo_id, branch=self.branch, revision=remote.head, exist_ok=True
            )
            transfer.step(f"making the branch {self.branch}", make)
            transfer.on_hub = f"The branch {self.branch} was made, with what main has"
        return remote

    def _make_repo(self, private: bool | None):
        try:
            self.api.create_repo(self.transfer.repo_id, private=private)
        except HfHubHTTPError as error:
            # Made meanwhile, perhaps by an earlier try; or there before, and hidden from this token.
            if error.response.status_code != 409 or self._info() is None:
                raise

    def commit(
        self, changes: Sequence[FileChange], remote: Remote, message: str, description: str | None
    ) -> tuple[str, str | None]:
        """Sends the changes as one commit on top of what was compared. Returns its id, and its pull request's address."""
        additions = [CommitOperationAdd(f.path, str(self.files[f.path])) for f in changes if f.change in ("new", "changed")]
        deletions = [CommitOperationDelete(file.path) for file in changes if file.change == "deleted"]
        self._upload(additions)
        settled = functools.partial(self._made_before, changes, remote, message)

        def commit() -> tuple[str, str | None]:
            try:
                info = self.api.create_commit(
                    self.transfer.repo_id, [*additions, *deletions], commit_message=message, commit_description=description,
                    revision=self.branch, create_pr=self.create_pr, parent_commit=remote.head,
                )  # fmt: skip
                return info.oid, info.pr_url
            except HfHubHTTPError as error:
                # The Hub's answers where the branch has moved on from the parent; perhaps by an earlier try.
                if error.response.status_code not in (409, 412):
                    raise
                if (made := settled()) is not None:
                    return made
                self._refuse_if_moved(remote, error)
                raise

        made = self.transfer.step("the commit", commit, settled=settled)
        self.transfer.commit, self.transfer.on_hub = made[0], f"The commit {made[0]} is made"
        return made

    def _upload(self, additions: Sequence[CommitOperationAdd]):
        """Large files, which nobody sees before a commit names them; and asks which ones are large."""
        upload = functools.partial(
            self.api.preupload_lfs_files, self.transfer.repo_id, additions, revision=self.branch,
            create_pr=self.create_pr, free_memory=False,
        )  # fmt: skip
        # huggingface_hub itself tries again.
        self.transfer.step("uploading", upload, waits=())
        if ignored := [each.path_in_repo for each in additions if getattr(each, "_should_ignore", False)]:
            failure = f"the .gitignore of {self.transfer.repo_id} keeps out {', '.join(ignored)}"
            raise self.transfer.error(failure, "Take the pattern out of it, and push again.")

    def _made_before(self, changes: Iterable[FileChange], remote: Remote, message: str) -> tuple[str, str | None] | None:
        """The commit, if it was made although its answer was lost or was an error.

        Raises:
            PushError: that cannot be found out.
        """
        before = self.transfer.on_hub
        self.transfer.on_hub = "Whether the commit was made is not known"
        advice = "Look at the connection and push again: that makes no second commit of the same files."
        read = functools.partial(self.transfer.step, "looking whether the commit was made", advice=advice)
        refs = read(self._refs)
        if self.create_pr:
            opened = {ref.ref: ref.target_commit for ref in refs.pull_requests or ()}
            found = [(commit, ref) for ref, commit in opened.items() if ref not in remote.pull_requests]
        else:
            # Whatever else was pushed on top of it since.
            commits = read(functools.partial(self.api.list_repo_commits, self.transfer.repo_id, revision=self.branch))
            ids = [commit.commit_id for commit in commits]
            newer = commits[: ids.index(remote.head)] if remote.head in ids else []
            found = [(commit.commit_id, None) for commit in newer[-1:] if commit.title == message]
        for commit, ref in found:
            tree = read(functools.partial(self._tree, commit))
            if all(self._is_done(change, tree) for change in changes):
                number = None if ref is None else ref.rpartition("/")[2]
                address = number and f"{self.api.endpoint}/{self.transfer.repo_id}/discussions/{number}"
                return commit, address
        self.transfer.on_hub = before
        return None

    def _is_done(self, change: FileChange, tree: Mapping[str, Any]) -> bool:
        if change.change == "deleted":
            return change.path not in tree
        return change.path in tree and is_same(self.files[change.path], tree[change.path])

    def _refuse_if_moved(self, remote: Remote, error: HfHubHTTPError):
        branches = {ref.name: ref.target_commit for ref in self.transfer.step("reading the branches", self._refs).branches}
        if branches.get(self.branch) != remote.head and not self.create_pr:
            failure = f"the commit failed: somebody else has pushed to {self.transfer.repo_id} meanwhile"
            advice = "Look what a push would change now, with a dry run, and push again."
            raise self.transfer.error(failure, advice, error.response.status_code) from error

    def make_tag(self, tag: str, commit: str):
        """A name for the commit.

        Raises:
            PushError: the commit is there without it.
        """
        repo_id, transfer = self.transfer.repo_id, self.transfer

        def target() -> str | None:
            return {ref.name: ref.target_commit for ref in self._refs().tags}.get(tag)

        def is_made() -> bool | None:
            return target() == commit or None

        def make() -> bool:
            try:
                self.api.create_tag(repo_id, tag=tag, revision=commit)
            except HfHubHTTPError as error:
                if error.response.status_code != 409 or (there := target()) is None:
                    raise
                if there != commit:
                    failure = f"making the tag {tag} failed: somebody else has made it meanwhile, at the commit {there[:12]}"
                    advice = "Choose another --tag: pushing again makes that alone, beside the card that names it."
                    raise transfer.error(failure, advice, 409) from error
            return True

        transfer.step(f"making the tag {tag}", make, settled=is_made, advice="Push again: that makes the tag alone.")


def check_remote(remote: Remote, repo_id: str, branch: str, private: bool | None):
    if remote.exists and private is not None and remote.private != private:
        state, asked = ("private", "--public") if remote.private else ("public", "--private")
        raise ValueError(
            f"{repo_id} is there already and {state}, and a push does not change that: leave {asked} out, or change it in "
            "the settings of the repository; nothing was sent"
        )
    if branch in remote.tags and branch not in remote.branches:
        raise ValueError(f"{branch} is a tag of {repo_id}, and a push goes to a branch: choose another --revision")

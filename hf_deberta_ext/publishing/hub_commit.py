# SPDX-License-Identifier: Apache-2.0
"""One commit to a repository of the Hub: read the repository, compare the files, send the changes exactly once."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from ..model.checkpoint_files import stale_weights
from ..model.publishing import refuse_other_privacy
from .hub_requests import AnswerError, RequestSteps

__all__ = ["CARD", "FileChange", "HubCommit", "Remote", "compare_files"]

CARD = "README.md"
# The forms of the answers, for messages.
REPOSITORY = 'a JSON object with "id" and "private", true or false'
REFS = 'a JSON object with "branches" and "tags", lists of "name" and "targetCommit", the id of a commit'
FILES = 'a JSON list of files, each with "path", "size" and "oid"'
COMMITS = 'a JSON list of commits, each with "id" and "title"'
UPLOADS = 'JSON with the "uploadMode" of each file, and with an address for each that goes over LFS'
COMMIT = 'a JSON object with "commitOid", the id of the commit, and "commitUrl"'


@dataclasses.dataclass(frozen=True)
class FileChange:
    """One file of a push. `change` is "new", "changed", "unchanged" or "deleted"; `size` is in bytes."""

    path: str
    size: int
    change: str


@dataclasses.dataclass(frozen=True)
class Remote:
    """State of a repository. `head` and `files` are of the branch, or of main where the branch does not exist yet."""

    exists: bool = False
    private: bool | None = None
    head: str | None = None
    branches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pull_requests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def compare_files(files: Mapping[str, Path], published: Mapping[str, Any]) -> tuple[FileChange, ...]:
    """The change of each file; of files that are only in the repository, the deletion of outdated weights.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
        published (`dict[str, RepoFile]`): path -> huggingface_hub's description of the file on the Hub.
    """
    changes = []
    for path, file in files.items():
        change = "new" if path not in published else "unchanged" if is_same(file, published[path]) else "changed"
        changes.append(FileChange(path, file.stat().st_size, change))
    return (*changes, *(FileChange(path, published[path].size, "deleted") for path in stale_weights(published, files)))


def is_same(file: Path, published: Any) -> bool:
    """Compare a file with one on the Hub by git's hash of a small file, or the SHA-256 of one in LFS."""
    size = file.stat().st_size
    if size != published.size:
        return False
    digest = hashlib.sha256() if published.lfs is not None else hashlib.sha1(b"blob %d\0" % size)
    with open(file, "rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest() == (published.blob_id if published.lfs is None else published.lfs.sha256)


def expect(*conditions: bool):
    """
    Raises:
        AnswerError: one of the conditions does not hold for the last answer.
    """
    if not all(conditions):
        raise AnswerError


def is_commit(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{40,64}", value) is not None


@dataclasses.dataclass
class HubCommit:
    """The requests of a push: `read`, `prepare`, `commit`, `make_tag`. An error of each says the state of the repository.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
    """

    api: HfApi
    steps: RequestSteps
    branch: str
    create_pr: bool
    files: Mapping[str, Path]

    @property
    def repo_id(self) -> str:
        return self.steps.repo_id

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{self.repo_id}"

    def read(self) -> Remote:
        """The repository; an empty `Remote` if there is none, or the token may not see it."""
        info = self.steps.step(f"reading {self.repo_id}", self.info, expected=REPOSITORY)
        if info is None:
            return Remote()
        refs = self.steps.step(f"reading the branches of {self.repo_id}", self.refs, expected=REFS)
        branches = {ref.name: ref.target_commit for ref in refs.branches}
        head = branches.get(self.branch, branches.get("main"))
        # huggingface_hub itself repeats requests for a list of files, but version 1 not that for its first page.
        options = dict(waits=(1,), expected=FILES)
        read_files = functools.partial(self.steps.step, f"reading the files of {self.repo_id}", **options)
        return Remote(
            exists=True,
            private=info.private,
            head=head,
            branches=branches,
            tags={ref.name: ref.target_commit for ref in refs.tags},
            pull_requests={ref.ref: ref.target_commit for ref in refs.pull_requests or ()},
            files={} if head is None else read_files(functools.partial(self.tree, head)),
        )

    def check(self, remote: Remote, private: bool | None, argument: str):
        """Refuse a repository that is not as private as asked for, and a tag in place of a branch.

        Args:
            argument (`str`): that asks for it, for the message.
        """
        if remote.exists:
            refuse_other_privacy(self.repo_id, remote.private, private, argument)
        if self.branch in remote.tags and self.branch not in remote.branches:
            raise ValueError(
                f"{self.branch} is a tag of {self.repo_id}, and a push goes to a branch: choose another --revision"
            )

    def info(self) -> Any | None:
        """huggingface_hub's description of the repository, None without one."""
        try:
            info = self.api.repo_info(self.repo_id, timeout=60)
        except RepositoryNotFoundError:
            return None
        expect(isinstance(info.private, bool))
        return info

    def refs(self) -> Any:
        """Branches, tags, and pull requests if one is to be opened."""
        refs = self.api.list_repo_refs(self.repo_id, include_pull_requests=self.create_pr)
        expect(*(isinstance(ref.name, str) and is_commit(ref.target_commit) for ref in (*refs.branches, *refs.tags)))
        return refs

    def history(self) -> list[Any]:
        """Commits of the branch, the newest first."""
        commits = self.api.list_repo_commits(self.repo_id, revision=self.branch)
        expect(bool(commits), *(is_commit(commit.commit_id) and isinstance(commit.title, str) for commit in commits))
        return commits

    def tree(self, commit: str) -> dict[str, Any]:
        """path -> huggingface_hub's description, for every file of a commit."""
        # Folders have no blob.
        files = [
            entry
            for entry in self.api.list_repo_tree(self.repo_id, recursive=True, revision=commit)
            if hasattr(entry, "blob_id")
        ]
        for file in files:
            expect(isinstance(file.path, str), isinstance(file.size, int), isinstance(file.blob_id, str))
        return {file.path: file for file in files}

    def download(self, name: str, remote: Remote, scratch: Path) -> Path:
        """A file that is on the Hub."""
        options = dict(revision=remote.head, cache_dir=scratch / "cache")
        load = functools.partial(self.api.hf_hub_download, self.repo_id, name, **options)
        return Path(self.steps.step(f"reading {'the card' if name == CARD else name}", load))

    def card_problems(self) -> list[str]:
        """The Hub's objections to the metadata of the card, for which it would refuse the commit."""

        def validate() -> list[str]:
            response = get_session().post(
                f"{self.api.endpoint}/api/validate-yaml",
                json={"content": self.files[CARD].read_text(encoding="utf-8"), "repoType": "model"},
                headers=build_hf_headers(token=self.api.token),
            )
            if response.status_code == 400:
                return [str(error.get("message")) for error in response.json().get("errors", ())]
            hf_raise_for_status(response)
            return []

        expected = 'a JSON object with "errors", a list of "message"'
        return self.steps.step("asking the Hub about the card", validate, expected=expected)

    def prepare(self, remote: Remote, private: bool | None) -> Remote:
        """Make the repository and the branch where they do not exist; returns the state after it."""

        def make_repo():
            try:
                self.api.create_repo(self.repo_id, private=private)
            except HfHubHTTPError as error:
                # Made meanwhile, perhaps by an earlier attempt; or it exists, and is hidden from this token.
                if error.response.status_code != 409 or self.info() is None:
                    raise

        steps = self.steps
        if not remote.exists:
            name, before = f"making the repository {self.repo_id}", steps.on_hub
            steps.step(name, make_repo, settled=self.info, expected='a JSON object with "url"')
            steps.on_hub = f"The repository {self.repo_id} was made, and nothing is in it"
            remote = self.read()
            if not remote.exists:
                steps.on_hub = before
                raise steps.error(f"{name} failed: the Hub agreed to it, but does not have it", "Push again later.")
            self.check(remote, private, "--private" if private else "--public")
        if self.branch not in remote.branches and not self.create_pr and remote.branches:

            def make_branch():
                self.api.create_branch(self.repo_id, branch=self.branch, revision=remote.head, exist_ok=True)
                expect(self.branch in [ref.name for ref in self.refs().branches])

            expected = "an empty JSON object, and the branch among those of the repository"
            steps.step(f"making the branch {self.branch}", make_branch, expected=expected)
            steps.on_hub = f"The branch {self.branch} was made, with what main has"
        return remote

    def commit(self, changes: Sequence[FileChange], remote: Remote, message: str, description: str | None) -> CommitInfo:
        """Send the changes as one commit on top of the compared one."""
        additions = [CommitOperationAdd(f.path, str(self.files[f.path])) for f in changes if f.change in ("new", "changed")]
        deletions = [CommitOperationDelete(file.path) for file in changes if file.change == "deleted"]
        self._upload(additions)
        find_earlier = functools.partial(self._find_commit, changes, remote, message, description)

        def create_commit() -> CommitInfo:
            try:
                info = self.api.create_commit(
                    self.repo_id, [*additions, *deletions], commit_message=message, commit_description=description,
                    revision=self.branch, create_pr=self.create_pr, parent_commit=remote.head,
                )  # fmt: skip
                expect(is_commit(info.oid), isinstance(info.pr_url, str) or not self.create_pr)
                return info
            except HfHubHTTPError as error:
                # The Hub's answers where the branch has moved on from the parent; perhaps by an earlier attempt.
                if error.response.status_code not in (409, 412):
                    raise
                if (earlier := find_earlier()) is not None:
                    return earlier
                refs = self.steps.step("reading the branches", self.refs, expected=REFS)
                branches = {ref.name: ref.target_commit for ref in refs.branches}
                if branches.get(self.branch) == remote.head or self.create_pr:
                    raise
                failure = f"the commit failed: somebody else has pushed to {self.repo_id} meanwhile"
                way_out = "Look what a push would change now, with a dry run, and push again."
                raise self.steps.error(failure, way_out, error.response.status_code) from error

        info = self.steps.step("the commit", create_commit, settled=find_earlier, expected=COMMIT)
        self.steps.commit, self.steps.on_hub = info.oid, f"The commit {info.oid} is made"
        return info

    def _upload(self, additions: Sequence[CommitOperationAdd]):
        """Upload large files, which are hidden until a commit names them; the Hub decides which ones are large."""
        upload = functools.partial(
            self.api.preupload_lfs_files, self.repo_id, additions, revision=self.branch, create_pr=self.create_pr,
            free_memory=False,
        )  # fmt: skip
        # huggingface_hub itself repeats uploads.
        self.steps.step("uploading", upload, waits=(), expected=UPLOADS)
        if ignored := [file.path_in_repo for file in additions if getattr(file, "_should_ignore", False)]:
            failure = f"the .gitignore of {self.repo_id} keeps out {', '.join(ignored)}"
            raise self.steps.error(failure, "Take the pattern out of it, and push again.")

    def _find_commit(
        self, changes: Iterable[FileChange], remote: Remote, message: str, description: str | None
    ) -> CommitInfo | None:
        """The commit, if it was made although its answer was lost or was an error.

        Raises:
            PushError: that cannot be found out.
        """

        def is_done(change: FileChange, tree: Mapping[str, Any]) -> bool:
            if change.change == "deleted":
                return change.path not in tree
            return change.path in tree and is_same(self.files[change.path], tree[change.path])

        before = self.steps.on_hub
        self.steps.on_hub = "Whether the commit was made is not known"
        way_out = "Look at the connection and push again: that makes no second commit of the same files."
        read = functools.partial(self.steps.step, "looking whether the commit was made", way_out=way_out)
        refs = read(self.refs, expected=REFS)
        if self.create_pr:
            opened = {ref.ref: ref.target_commit for ref in refs.pull_requests or ()}
            candidates = [(commit, ref) for ref, commit in opened.items() if ref not in remote.pull_requests]
        else:
            # Others may have pushed on top of it since.
            commits = read(self.history, expected=COMMITS)
            ids = [commit.commit_id for commit in commits]
            newer = commits[: ids.index(remote.head)] if remote.head in ids else []
            candidates = [(commit.commit_id, None) for commit in newer[-1:] if commit.title == message]
        for commit, ref in candidates:
            tree = read(functools.partial(self.tree, commit), expected=FILES)
            if all(is_done(change, tree) for change in changes):
                pr_url = ref and f"{self.url}/discussions/{ref.rpartition('/')[2]}"
                info = dict(commit_url=f"{self.url}/commit/{commit}", commit_message=message, oid=commit, pr_url=pr_url)
                return CommitInfo(**info, commit_description=description or "", _endpoint=self.api.endpoint)
        self.steps.on_hub = before
        return None

    def make_tag(self, tag: str, commit: str):
        """Name the commit.

        Raises:
            PushError: the commit exists without the tag.
        """

        def target() -> str | None:
            return {ref.name: ref.target_commit for ref in self.refs().tags}.get(tag)

        def is_made() -> bool | None:
            return target() == commit or None

        def create_tag() -> bool:
            try:
                self.api.create_tag(self.repo_id, tag=tag, revision=commit)
            except HfHubHTTPError as error:
                if error.response.status_code != 409 or (tagged := target()) is None:
                    raise
                if tagged != commit:
                    failure = (
                        f"making the tag {tag} failed: somebody else has made it meanwhile, at the commit {tagged[:12]}"
                    )
                    way_out = "Choose another --tag: pushing again makes that alone, beside the card that names it."
                    raise self.steps.error(failure, way_out, 409) from error
            expect(target() == commit)
            return True

        way_out = "Push again: that makes the tag alone."
        expected = "an empty JSON object, and the tag among those of the repository"
        self.steps.step(f"making the tag {tag}", create_tag, settled=is_made, way_out=way_out, expected=expected)

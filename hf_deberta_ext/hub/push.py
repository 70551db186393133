# SPDX-License-Identifier: Apache-2.0
"""A model's folder to the Hub: checked, compared with what is there, and sent as one commit."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id

from .._version import __version__
from ..model.publishing import AUTOMATIC, new_card
from ..runs.published_files import published_card, published_files
from .changes import FileChange, PushReport, compare_files, is_same, stale_graphs
from .checks import check_folder, leak_problems
from .model_card import write_model_card
from .transfer import PushError, Transfer, patient_session

__all__ = ["push"]

# The Hub makes this one by itself.
NOT_LISTED = {".gitattributes"}
CARD = "README.md"
# What messages call a source that is no folder.
MODEL = "the model"


def push(
    source: Any,
    repo_id: str,
    *,
    tokenizer: Any = None,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    tag: str | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    include: Iterable[str] = (),
    token: str | None = None,
    endpoint: str | None = None,
    dry_run: bool = False,
    skip_checks: bool = False,
) -> PushReport:
    """Publishes a model: weights, configuration, code, tokenizer and card, checked, and in one commit.

    Of a folder goes along what belongs to a model, so that the output folder of a run may be given as it is. The lines of
    the card that load the model get the repository and its tag or branch; the folder itself is never written to. Weights and
    adapters on the Hub that would be loaded instead of the new ones are deleted in the same commit. Where nothing differs,
    there is no commit.

    Args:
        source: the folder of a model or of an adapter; or a model, which is saved to a temporary one and gets a card, unless
            somebody has written one on the Hub.
        repo_id (`str`): "user/name" or "organisation/name"; is made if it is not there.
        tokenizer (*optional*): goes along with a model.
        private (`bool`, *optional*): of a repository that is made. None = the account's default.
        revision (`str`, *optional*): the branch, main by default; is made from main if it is not there.
        create_pr (`bool`): propose the commit as a pull request.
        tag (`str`, *optional*): a name for the commit, with which the card loads the model.
        commit_message, commit_description (`str`, *optional*): title and text of the commit; further lines of a message
            are text too.
        include (`Iterable[str]`): patterns of further files of the folder, as for `published_files`.
        token (`str`, *optional*): None = HF_TOKEN or that of `hf auth login`.
        endpoint (`str`, *optional*): of another Hub; None = HF_ENDPOINT or huggingface.co.
        dry_run (`bool`): send nothing, only say what would change and what the checks find.
        skip_checks (`bool`): send the folder without the checks of `hf_deberta_ext.hub.check_folder`, all but the search
            for tokens.

    Returns:
        `PushReport`: each file with its size and what becomes of it.

    Raises:
        ValueError: arguments that do not go together, a tag that is taken, or a folder with problems. Nothing was sent.
        PushError: the Hub or the connection failed; the message says what is on the Hub, and what to do.
    """
    branch = revision or "main"
    _check_arguments(source, repo_id, tokenizer, branch, create_pr, tag)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hf_deberta_ext_push_")))
        folder, named = _folder_of(source, tokenizer, scratch / repo_id.split("/")[1])
        files, left_out = published_files(folder, include)
        for path in [path for path in files if path.rpartition("/")[2] == CARD]:
            files[path] = _pinned_card(files[path], path, scratch, repo_id, branch, tag)
        stack.enter_context(patient_session())
        sending = _Sending(HfApi(endpoint=endpoint, token=token), Transfer(repo_id, named), branch, create_pr, files)
        notes = ["the folder was searched for tokens alone, and not checked"] if skip_checks else []
        remote = _look_without_need(sending, notes) if dry_run else sending.look()
        _check_remote(remote, repo_id, branch, private)
        if named == MODEL and CARD in remote.files and _is_written(sending.card(remote, scratch), files):
            # As model.push_to_hub does. A folder has a card that somebody has put there, and that one counts.
            del files[CARD]
            notes.append(
                "somebody has written the card on the Hub, and it stays; the README.md of a folder would replace it"
            )
        if skip_checks:
            problems = leak_problems(folder, files, token, tokens_alone=True)
        else:
            problems = check_folder(folder, files, token, needs_card=CARD not in remote.files)
        if problems and not dry_run:
            raise _refusal(named, problems)
        changes = compare_files(files, remote.files)
        is_unchanged = all(file.change == "unchanged" for file in changes)
        if tag in remote.tags and not (is_unchanged and remote.tags[tag] == remote.head):
            raise ValueError(
                f"{repo_id} has a tag {tag} already, at the commit {remote.tags[tag][:12]}, and what a tag names must not "
                "change: choose another --tag; nothing was sent"
            )
        kept = tuple(sorted({*remote.files} - {file.path for file in changes} - NOT_LISTED))
        if stale := stale_graphs(changes, kept):
            notes.append(f"perhaps of an older model, and not replaced: {', '.join(stale)}")
        if CARD in files and tag is None and not create_pr:
            notes.append(f"no tag: the card loads the moving branch {branch}; --tag NAME pins it")
        report = PushReport(
            repo_id, f"{sending.api.endpoint}/{repo_id}" + (f"/tree/{branch}" if branch != "main" else ""), branch,
            commit=remote.head, tag=tag, pull_request=None, files=changes, left_out=left_out,
            kept_on_hub=kept, problems=tuple(problems), dry_run=dry_run,
        )  # fmt: skip
        commit, pull_request = remote.head, None
        if is_unchanged:
            notes.append("nothing differs from what is on the Hub, so there is no new commit")
        if not dry_run:
            if any(file.path == CARD and file.change in ("new", "changed") for file in changes):
                # Before gigabytes are on their way, to be refused at their end.
                if refused := sending.card_problems():
                    raise _refusal(named, [f"{CARD}: the Hub says {problem}" for problem in refused])
            remote = sending.prepare(remote, private)
            if not is_unchanged:
                # The repository may have been made just now, and is not quite empty.
                changes = compare_files(files, remote.files)
                message, description = _split_message(commit_message, commit_description)
                commit, pull_request = sending.commit(changes, remote, message, description)
            if tag is not None and tag not in remote.tags:
                sending.make_tag(tag, commit)
        return dataclasses.replace(report, commit=commit, pull_request=pull_request, notes=tuple(notes))


# ------- before anything is sent


@dataclasses.dataclass(frozen=True)
class _Remote:
    """What is on the Hub. `head` and `files` are of the branch, or of main where the branch is not there yet."""

    exists: bool = False
    private: bool | None = None
    head: str | None = None
    branches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pull_requests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _check_arguments(source: Any, repo_id: str, tokenizer: Any, branch: str, create_pr: bool, tag: str | None):
    validate_repo_id(repo_id)
    if repo_id.count("/") != 1:
        raise ValueError(f"repo_id = {repo_id!r} must be user/name or organisation/name")
    if isinstance(source, (str, os.PathLike)):
        if not Path(source).is_dir():
            raise ValueError(f"{source} is not a folder; give that of a saved model, or the model itself")
        if tokenizer is not None:
            raise ValueError(f"tokenizer goes with a model, and {source} is a folder: save the tokenizer in it")
    elif not hasattr(source, "save_pretrained"):
        raise TypeError(f"source must be a folder or a model with save_pretrained, got {type(source).__name__}")
    if branch.startswith("refs/") or re.fullmatch("[0-9a-f]{40}", branch):
        raise ValueError(f"revision = {branch!r} must be the name of a branch; a pull request is opened with create_pr")
    if create_pr and tag is not None:
        raise ValueError(f"tag = {tag!r} does not go with create_pr: make it when the pull request is merged")
    if create_pr and branch != "main":
        raise ValueError(f"revision = {branch!r} does not go with create_pr, which proposes a commit to main")
    if tag is not None and not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*", tag):
        raise ValueError(f"tag = {tag!r} must be of letters, digits and . _ - /")


def _folder_of(source: Any, tokenizer: Any, scratch: Path) -> tuple[Path, str]:
    """The folder, and its name in messages."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source), str(source)
    for each in (source, tokenizer):
        if each is not None:
            each.save_pretrained(scratch)
    write_model_card(scratch)
    return scratch, MODEL


def _pinned_card(card: Path, path: str, scratch: Path, repo_id: str, branch: str, tag: str | None) -> Path:
    """The card as it is published. The one in the folder stays as it is."""
    try:
        text = card.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        # One of the problems that the checks find.
        return card
    published = scratch / "cards" / path
    published.parent.mkdir(parents=True, exist_ok=True)
    published.write_bytes(published_card(text, path, repo_id, tag or branch, pinned=tag is not None).encode("utf-8"))
    return published


def _is_written(there: Path, files: Mapping[str, Path]) -> bool:
    """Whether somebody has written in the card on the Hub: it is neither transformers' own nor one of those that this
    package writes, whatever its metadata, its numbers, and what it loads."""
    found = _words(there)
    config = json.loads(files["config.json"].read_text(encoding="utf-8")) if "config.json" in files else {}
    name = next(iter(config.get("architectures") or []), "")
    ours = [
        new_card(name, there.parent.name, revision="main", parameters=0, has_tokenizer=has_tokenizer, metadata={})
        for has_tokenizer in (True, False)
    ]
    return AUTOMATIC not in there.read_text(encoding="utf-8", errors="replace") and found not in map(
        _words, [files[CARD], *ours]
    )


def _words(card: Path | str) -> str:
    text = card if isinstance(card, str) else card.read_text(encoding="utf-8", errors="replace")
    body = ModelCard(text, ignore_metadata_errors=True).text
    # A title is the name of the folder that it was written in.
    body = re.sub(r"^(repo|revision) = .*$|^# .*$|\d[\d.,]*", "", body, flags=re.MULTILINE)
    return " ".join(body.split())


def _split_message(message: str | None, description: str | None) -> tuple[str, str | None]:
    """(title, text) of a commit, as git has them: the title is the first line."""
    title, _, rest = (message or "").strip().partition("\n")
    text = "\n\n".join(part for part in (rest.strip(), description) if part)
    return title.strip() or f"Upload a model with hf_deberta_ext {__version__}", text or None


def _refusal(named: str, problems: Iterable[str]) -> ValueError:
    lines = "".join(f"\n- {problem}" for problem in problems)
    return ValueError(f"{named} cannot be published as it is, and nothing was sent:{lines}")


def _look_without_need(sending: "_Sending", notes: list[str]) -> _Remote:
    """For a dry run: a Hub that cannot be reached is a note, and counts as an empty one."""
    try:
        remote = sending.look()
    except PushError as error:
        if error.status is not None:
            raise
        notes.append("the Hub was not reached, so nothing was compared, and every file counts as new")
        return _Remote()
    if not remote.exists:
        notes.append(f"{sending.transfer.repo_id} is not there, or this token may not see it: every file counts as new")
    return remote


def _check_remote(remote: _Remote, repo_id: str, branch: str, private: bool | None):
    if remote.exists and private is not None and remote.private != private:
        state, asked = ("private", "--public") if remote.private else ("public", "--private")
        raise ValueError(
            f"{repo_id} is there already and {state}, and a push does not change that: leave {asked} out, or change it in "
            "the settings of the repository; nothing was sent"
        )
    if branch in remote.tags and branch not in remote.branches:
        raise ValueError(f"{branch} is a tag of {repo_id}, and a push goes to a branch: choose another --revision")


# ------- sending


@dataclasses.dataclass
class _Sending:
    """The requests of a push. Each step that fails says how far it came."""

    api: HfApi
    transfer: Transfer
    branch: str
    create_pr: bool
    files: Mapping[str, Path]

    def look(self) -> _Remote:
        """What is on the Hub; an empty `_Remote` if there is no such repository, or the token may not see it."""
        repo_id, step = self.transfer.repo_id, self.transfer.step
        info = step(f"reading {repo_id}", self._info)
        if info is None:
            return _Remote()
        refs = step(f"reading the branches of {repo_id}", self._refs)
        branches = {ref.name: ref.target_commit for ref in refs.branches}
        head = branches.get(self.branch, branches.get("main"))
        # huggingface_hub itself tries again to read a list of files.
        tree = functools.partial(self._tree, head)
        return _Remote(
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

    def card(self, remote: _Remote, scratch: Path) -> Path:
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

    def prepare(self, remote: _Remote, private: bool | None) -> _Remote:
        """Makes the repository and the branch where they are not there; what is on the Hub then."""
        repo_id, transfer = self.transfer.repo_id, self.transfer
        if not remote.exists:
            transfer.step(f"making the repository {repo_id}", functools.partial(self._make_repo, private))
            transfer.on_hub = f"The repository {repo_id} was made, and nothing is in it"
            remote = self.look()
            _check_remote(remote, repo_id, self.branch, private)
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
        self, changes: Sequence[FileChange], remote: _Remote, message: str, description: str | None
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

    def _made_before(self, changes: Iterable[FileChange], remote: _Remote, message: str) -> tuple[str, str | None] | None:
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

    def _refuse_if_moved(self, remote: _Remote, error: HfHubHTTPError):
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

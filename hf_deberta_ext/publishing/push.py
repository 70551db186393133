# SPDX-License-Identifier: Apache-2.0
"""Publish a model's folder on the Hub: check it, compare it with the repository, and send one commit."""

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import validate_repo_id

from .._version import __version__
from ..files import format_size
from ..model.publishing import is_automatic_card
from .card import write_model_card
from .folder_checks import check_folder, token_problems
from .hub_commit import CARD, FileChange, HubCommit, Remote, compare_files
from .hub_requests import PushError, RequestSteps, patient_session
from .loading_code import published_card
from .published_files import published_files

__all__ = ["PushReport", "push"]

CHANGES = ("new", "changed", "deleted", "unchanged")
# The Hub makes this one by itself.
NOT_LISTED = {".gitattributes"}
# The name in messages of a source that is no folder.
MODEL = "the model"


@dataclasses.dataclass(frozen=True)
class PushReport:
    """Result of a push, or of a dry run. `str(report)` is a table.

    Attributes:
        url (`str`): of the repository, or of the branch in it.
        commit (`str`, *optional*): the one that was made; where nothing differed, and in a dry run, that of the branch.
        pull_request (`str`, *optional*): its address.
        left_out (`dict[str, str]`): files and folders that are not published -> why, or what adds them.
        kept_on_hub (`tuple[str]`): files that are only on the Hub, and stay.
        problems (`tuple[str]`): of a dry run, for which a push would be refused.
    """

    repo_id: str
    url: str
    branch: str
    commit: str | None
    tag: str | None
    pull_request: str | None
    files: tuple[FileChange, ...]
    left_out: Mapping[str, str]
    kept_on_hub: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    dry_run: bool = False

    def __str__(self) -> str:
        counts = {change: sum(file.change == change for file in self.files) for change in CHANGES}
        summary = ", ".join(f"{count} {change}" for change, count in counts.items() if count) or "no files"
        size = format_size(sum(file.size for file in self.files if file.change in ("new", "changed")))
        lines = [f"{self.repo_id}, branch {self.branch}: {summary}; {size} {'to send' if self.dry_run else 'sent'}"]
        lines += [f"  {change:<9}  {format_size(size):>8}  {name}" for change, size, name in self._rows()]
        lines += [f"{path} not published: {reason}" for path, reason in self.left_out.items()]
        lines += [f"only on the Hub, and kept: {path}" for path in self.kept_on_hub]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        if self.dry_run:
            refused = "; a push would be refused for the problems" if self.problems else ""
            lines.append(f"a dry run: nothing was sent{refused}")
        else:
            lines.append(
                f"{self.pull_request or self.url}: commit {self.commit}" + (f", tag {self.tag}" if self.tag else "")
            )
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, int, str]]:
        """Change, size and name of each file; code, some forty files, is one row for each change."""
        for change in CHANGES:
            files = sorted((file for file in self.files if file.change == change), key=lambda file: file.path)
            code = [file for file in files if file.path.endswith(".py")]
            if len(code) > 1:
                yield change, sum(file.size for file in code), f"{len(code)} files of code, *.py"
                files = [file for file in files if file not in code]
            yield from ((change, file.size, file.path) for file in files)


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

    Files that belong to a model are published, so that the output folder of a run may be given as it is. The lines of the
    card that load the model get the repository and its tag or branch; the folder itself is never written to. Weights and
    adapters on the Hub that would be loaded instead of the new ones are deleted in the same commit. Where nothing differs,
    there is no commit.

    Args:
        source: the folder of a model or of an adapter; or a model, which is saved to a temporary one and gets a card, unless
            somebody has written one on the Hub.
        repo_id (`str`): "user/name" or "organisation/name"; is made if it is not there.
        tokenizer (*optional*): is published with a model.
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
        skip_checks (`bool`): send the folder without the checks of `hf_deberta_ext.publishing.check_folder`, except for
            tokens.

    Returns:
        `PushReport`: each file with its size and what becomes of it.

    Raises:
        ValueError: arguments that do not go together, a tag that is taken, or a folder with problems. Nothing was sent.
        PushError: the Hub or the connection failed; the message says the state of the repository, and the way out.
    """
    branch = revision or "main"
    check_arguments(source, repo_id, tokenizer, branch, create_pr, tag)
    with tempfile.TemporaryDirectory(prefix="hf_deberta_ext_push_") as scratch, patient_session():
        scratch = Path(scratch)
        folder, source_name = folder_of(source, tokenizer, scratch / "model" / repo_id.split("/")[1])
        files, left_out = published_files(folder, include)
        pin_cards(files, scratch / "cards", repo_id, tag or branch, pinned=tag is not None)
        hub = HubCommit(HfApi(endpoint=endpoint, token=token), RequestSteps(repo_id, source_name), branch, create_pr, files)
        notes = ["only tokens were looked for in the folder: it was not checked"] if skip_checks else []
        remote = read_for_dry_run(hub, notes) if dry_run else hub.read()
        hub.check(remote, private, "--private" if private else "--public")
        if source_name == MODEL and CARD in remote.files:
            keep_written_card(hub.download(CARD, remote, scratch), files, notes)
        if skip_checks:
            problems = token_problems(files, token)
        else:
            problems = check_folder(folder, files, token, needs_card=CARD not in remote.files)
        if problems and not dry_run:
            raise refusal(source_name, problems)
        changes = compare_files(files, remote.files)
        is_unchanged = all(file.change == "unchanged" for file in changes)
        if tag in remote.tags and not (is_unchanged and remote.tags[tag] == remote.head):
            raise ValueError(
                f"{repo_id} has a tag {tag} already, at the commit {remote.tags[tag][:12]}, and what a tag names must not "
                "change: choose another --tag; nothing was sent"
            )
        kept_on_hub = tuple(sorted({*remote.files} - {file.path for file in changes} - NOT_LISTED))
        has_new_weights = any(
            file.change in ("new", "changed") and file.path.endswith((".safetensors", ".bin", ".onnx")) for file in changes
        )
        if has_new_weights and (graphs := [path for path in kept_on_hub if path.endswith(".onnx")]):
            notes.append(f"perhaps of an older model, and not replaced: {', '.join(graphs)}")
        if CARD in files and tag is None and not create_pr:
            notes.append(f"no tag: the card loads the moving branch {branch}; --tag NAME pins it")
        if is_unchanged:
            notes.append("nothing differs from what is on the Hub, so there is no new commit")
        commit, pull_request = remote.head, None
        if not dry_run:
            message, description = split_message(commit_message, commit_description)
            commit, pull_request = send_changes(hub, remote, changes, private, message, description)
            if tag is not None and tag not in remote.tags:
                hub.make_tag(tag, commit)
        url = hub.url + (f"/tree/{branch}" if branch != "main" else "")
        return PushReport(
            repo_id, url, branch, commit, tag, pull_request, changes, left_out, kept_on_hub, tuple(notes), tuple(problems),
            dry_run,
        )  # fmt: skip


def send_changes(
    hub: HubCommit,
    remote: Remote,
    changes: Sequence[FileChange],
    private: bool | None,
    message: str,
    description: str | None,
) -> tuple[str | None, str | None]:
    """Make repository and branch where they are not there, and one commit of what differs; the commit, and the address of
    its pull request."""
    if any(file.path == CARD and file.change in ("new", "changed") for file in changes):
        # Before gigabytes are on their way, to be refused at their end.
        if refused := hub.card_problems():
            raise refusal(hub.steps.source, [f"{CARD}: the Hub says {problem}" for problem in refused])
    remote = hub.prepare(remote, private)
    if all(file.change == "unchanged" for file in changes):
        return remote.head, None
    # The repository may have been made just now, and is not quite empty.
    info = hub.commit(compare_files(hub.files, remote.files), remote, message, description)
    return info.oid, info.pr_url


def pin_cards(files: dict[str, Path], scratch: Path, repo_id: str, revision: str, *, pinned: bool):
    """Replace each card among the files by one that loads the model from the Hub; the folder of the model stays as it is.

    Args:
        files (`dict[str, Path]`): path in the repository -> file.
        scratch (`Path`): folder for the new cards.
        revision, pinned: as for `published_card`.
    """
    for path, card in files.items():
        if path.rpartition("/")[2] == CARD:
            try:
                text = published_card(card.read_bytes().decode("utf-8"), path, repo_id, revision, pinned=pinned)
            except UnicodeDecodeError:
                # One of the problems that the checks find.
                continue
            files[path] = scratch / path
            files[path].parent.mkdir(parents=True, exist_ok=True)
            files[path].write_bytes(text.encode("utf-8"))


def check_arguments(source: Any, repo_id: str, tokenizer: Any, branch: str, create_pr: bool, tag: str | None):
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


def folder_of(source: Any, tokenizer: Any, scratch: Path) -> tuple[Path, str]:
    """The folder, and its name in messages."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source), str(source)
    source.save_pretrained(scratch)
    if tokenizer is not None:
        tokenizer.save_pretrained(scratch)
    write_model_card(scratch)
    return scratch, MODEL


def keep_written_card(published: Path, files: dict[str, Path], notes: list[str]):
    """A card on the Hub with text of somebody stays, as with model.push_to_hub; of an automatic one the metadata, as its
    licence. The card in a folder was put there by somebody, and wins."""
    config = json.loads(files["config.json"].read_text(encoding="utf-8")) if "config.json" in files else {}
    old_text, card = published.read_text(encoding="utf-8", errors="replace"), files[CARD]
    if not is_automatic_card(old_text, next(iter(config.get("architectures") or []), ""), card.read_text(encoding="utf-8")):
        del files[CARD]
        notes.append("somebody has written the card on the Hub, and it stays; that of a folder would replace it")
        return
    old = ModelCard(old_text, ignore_metadata_errors=True).data.to_dict()
    new = ModelCard(card.read_text(encoding="utf-8"))
    data = new.data.to_dict()
    tags = [*dict.fromkeys([*(data.get("tags") or []), *(old.get("tags") or [])])]
    if (merged := {**old, **data, "tags": tags}) != data:
        for name, value in merged.items():
            new.data[name] = value
        card.write_text(str(new), encoding="utf-8")


def split_message(message: str | None, description: str | None) -> tuple[str, str | None]:
    """(title, text) of a commit, as git has them: the title is the first line."""
    title, _, rest = (message or "").strip().partition("\n")
    text = "\n\n".join(part for part in (rest.strip(), description) if part)
    return title.strip() or f"Upload a model with hf_deberta_ext {__version__}", text or None


def refusal(source_name: str, problems: Iterable[str]) -> ValueError:
    lines = "".join(f"\n- {problem}" for problem in problems)
    return ValueError(f"{source_name} cannot be published as it is, and nothing was sent:{lines}")


def read_for_dry_run(hub: HubCommit, notes: list[str]) -> Remote:
    """For a dry run: a Hub that cannot be reached is a note, and counts as an empty one."""
    try:
        remote = hub.read()
    except PushError as error:
        if error.status is not None:
            raise
        notes.append("the Hub was not reached, so nothing was compared, and every file counts as new")
        return Remote()
    if not remote.exists:
        notes.append(f"{hub.repo_id} is not there, or this token may not see it: every file counts as new")
    return remote

# SPDX-License-Identifier: Apache-2.0
"""A model's folder to the Hub: checked, compared with what is there, and sent as one commit."""

import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id

from .._version import __version__
from ..model.publishing import AUTOMATIC, new_card
from .card import write_model_card
from .changes import PushReport, compare_files, stale_graphs
from .folder_checks import check_folder, leak_problems
from .loading_code import published_card
from .published_files import published_files
from .sending import CARD, Remote, Sending, check_remote
from .transfer import PushError, Transfer, patient_session

__all__ = ["push"]

# The Hub makes this one by itself.
NOT_LISTED = {".gitattributes"}
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
        skip_checks (`bool`): send the folder without the checks of `hf_deberta_ext.publishing.check_folder`, all but the
            search for tokens.

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
        folder, named = _folder_of(source, tokenizer, scratch / "model" / repo_id.split("/")[1])
        files, left_out = published_files(folder, include)
        for path in [path for path in files if path.rpartition("/")[2] == CARD]:
            files[path] = _pinned_card(files[path], path, scratch, repo_id, branch, tag)
        stack.enter_context(patient_session())
        sending = Sending(HfApi(endpoint=endpoint, token=token), Transfer(repo_id, named), branch, create_pr, files)
        notes = ["the folder was searched for tokens alone, and not checked"] if skip_checks else []
        remote = _look_without_need(sending, notes) if dry_run else sending.look()
        check_remote(remote, repo_id, branch, private)
        if not isinstance(source, (str, os.PathLike)) and CARD in remote.files:
            # As model.push_to_hub does. The card in a folder was put there by somebody, and counts.
            there = sending.card(remote, scratch)
            if _is_written(there, files):
                del files[CARD]
                notes.append("somebody has written the card on the Hub, and it stays; that of a folder would replace it")
            else:
                _keep_metadata(there, files[CARD])
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
    config = json.loads(files["config.json"].read_text(encoding="utf-8")) if "config.json" in files else {}
    name = next(iter(config.get("architectures") or []), "")
    unwritten: list[Path | str] = [
        files[CARD],
        str(ModelCard.from_template(ModelCardData(library_name="transformers"), model_description=AUTOMATIC)),
    ]
    for has_tokenizer in (True, False):
        about = dict(revision="main", parameters=0, has_tokenizer=has_tokenizer)
        unwritten.append(new_card(name, "user/name", **about, metadata={}))
    return _words(there) not in map(_words, unwritten)


def _keep_metadata(there: Path, card: Path):
    """What somebody has added to the metadata of an automatic card, as its licence, goes into the new one."""
    old = ModelCard(there.read_text(encoding="utf-8"), ignore_metadata_errors=True).data.to_dict()
    new = ModelCard(card.read_text(encoding="utf-8"))
    data = new.data.to_dict()
    tags = [*dict.fromkeys([*(data.get("tags") or []), *(old.get("tags") or [])])]
    if (merged := {**old, **data, "tags": tags}) != data:
        for name, value in merged.items():
            new.data[name] = value
        card.write_text(str(new), encoding="utf-8")


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


def _look_without_need(sending: "Sending", notes: list[str]) -> Remote:
    """For a dry run: a Hub that cannot be reached is a note, and counts as an empty one."""
    try:
        remote = sending.look()
    except PushError as error:
        if error.status is not None:
            raise
        notes.append("the Hub was not reached, so nothing was compared, and every file counts as new")
        return Remote()
    if not remote.exists:
        notes.append(f"{sending.transfer.repo_id} is not there, or this token may not see it: every file counts as new")
    return remote

# SPDX-License-Identifier: Apache-2.0
"""Publish a model's folder on the Hub: allow-listed files and a card, in one `HfApi.upload_folder` commit."""

import dataclasses
import mmap
import os
import posixpath
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, get_token
from huggingface_hub.utils import validate_repo_id

from ..checkpoints.files import ADAPTER_CONFIG_FILE, is_weight_file, read_json
from ..files import folder_files, format_size, is_hub_id, replace_text
from ..model.configuration_deberta_ext import CODE_FILES
from .card import CARD, write_cards
from .facts import read_folder

__all__ = ["PushReport", "published_files", "push"]

# Files are published from the folder itself, these subfolders, and folders of sentence-transformers modules (1_Pooling).
FOLDERS = re.compile(r"(discriminator/|generator/|onnx/|\d+_\w+/)?[^/]+")
ALLOWED = """config.json generation_config.json README.md LICENSE LICENSE.md LICENSE.txt
    model.safetensors model[.-]*.safetensors model*.safetensors.index.json
    pytorch_model.bin pytorch_model[.-]*.bin pytorch_model*.bin.index.json
    adapter_config.json adapter_model.safetensors adapter_model.bin *.onnx *.onnx.data *.onnx_data
    spm.model vocab.json vocab.txt merges.txt tokenizer.json tokenizer_config.json chat_template.jinja
    special_tokens_map.json added_tokens.json sentencepiece.model sentencepiece.bpe.model
    all_results.json train_results.json eval*_results.json predict*_results.json
    modules.json config_sentence_transformers.json sentence_*_config.json""".split()
PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp")
# Access token of the Hub. The pattern starts with letters instead of \b, which makes the search in weights 30 times faster.
TOKEN = re.compile(rb"hf_(?<=\bhf_)[A-Za-z0-9]{34}")
# The lines of code in generated cards that name the repository and the revision.
REPO_LINES = re.compile(r'^repo = ".*?".*\nrevision = .*$', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class PushReport:
    """Result of a push or of a dry run; `commit` is None after a dry run. `str(report)` is a list of the files."""

    repo_id: str
    # Path in the repository -> size in bytes.
    files: Mapping[str, int]
    # `left_out`: files and folders ("folder/") that are not published. `problems`: why a push would fail (dry run only).
    left_out: Sequence[str]
    problems: Sequence[str] = ()
    # Commit of the push; the last commit of the repository if nothing changed.
    commit: CommitInfo | None = None

    def __str__(self) -> str:
        lines = [f"{self.repo_id}: {len(self.files)} files, {format_size(sum(self.files.values()))}"]
        lines += [f"  {format_size(size):>8}  {path}" for path, size in self.files.items()]
        lines += [f"not published (--include adds it): {path}" for path in self.left_out]
        lines += [f"problem: {problem}" for problem in self.problems]
        address = "dry run: nothing was sent"
        if self.commit is not None:
            address = self.commit.pr_url or self.commit.commit_url
        return "\n".join([*lines, address])


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
    tags: Iterable[str] = (),
    token: str | None = None,
    endpoint: str | None = None,
    max_shard_size: int | str = "50GB",
    dry_run: bool = False,
    skip_checks: bool = False,
) -> PushReport:
    """Publish a model on the Hub: weights, configuration, code, tokenizer and card, in one commit.

    `source` can be the output folder of a run, because only files that belong to a model are published. Weights on the Hub
    that would be loaded instead of the new weights are deleted in the same commit. In the code of the published README.md,
    the repository id is filled in. If the folder has no README.md, the README.md on the Hub is kept; if the Hub has none
    either, a new README.md is written.

    Args:
        source (`str`, path or `PreTrainedModel`): the folder of a model or adapter, or a model.
        repo_id (`str`): "user/name" or "organisation/name"; created if it does not exist.
        tokenizer (*optional*): tokenizer to save in the folder and publish.
        private (`bool`, *optional*): visibility of a new repository; None: the account's default.
        revision (`str`, *optional*): branch, created if it does not exist; default "main".
        tag (`str`, *optional*): new tag for the commit.
        create_pr (`bool`, default False): open a pull request.
        include (`Iterable[str]`): patterns of additional files: "*.txt" in the folder, "figures/*" in a subfolder.
        tags (`Iterable[str]`): additional tags of a new card.
        token, endpoint (`str`, *optional*): access token and URL of the Hub; None: from the environment or a login.
        max_shard_size (`int` or `str`, default "50GB"): maximum size of a weights file if `source` is a model.
        dry_run (`bool`, default False): send nothing; report files and problems.
        skip_checks (`bool`, default False): publish even without configuration or weights; access tokens and links to other
            folders are still refused.

    Raises:
        OSError: if the folder does not exist.
        ValueError: if `repo_id` is invalid; if the folder contains an access token, a link to another folder, or an
            incomplete model; if `private` is set, but an existing repository has the other visibility; if the
            tag exists. Nothing is committed.
        huggingface_hub.errors.HfHubHTTPError: if the Hub rejects a request, or another commit was pushed meanwhile (412).
    """
    validate_repo_id(repo_id)
    with tempfile.TemporaryDirectory() as scratch:
        folder = source
        if hasattr(source, "save_pretrained"):
            folder = Path(scratch, repo_id.rpartition("/")[2])
            source.save_pretrained(folder, max_shard_size=max_shard_size)
            tags = [*(getattr(source, "model_tags", None) or ()), *tags]
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        if not Path(folder).is_dir():
            raise OSError(f"{folder}: there is no such folder")
        files, left_out = published_files(folder, include)
        problems, lacking = token_problems(files, token), model_problems(files)
        if not skip_checks:
            problems += lacking
        sizes = {path: file.stat().st_size for path, file in files.items()}
        if dry_run:
            return PushReport(repo_id, sizes, left_out, problems)
        if problems:
            raise ValueError(f"{folder} was not published:" + "".join(f"\n- {problem}" for problem in problems))

        api, branch = HfApi(endpoint=endpoint, token=token), revision or "main"
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch != "main" and not create_pr:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        info = api.model_info(repo_id, revision=branch)
        if private is not None and bool(info.private) != private:
            raise ValueError(f"expected private={private} for {repo_id}, got {info.private}: change the visibility")
        if tag is not None and tag in [ref.name for ref in api.list_repo_refs(repo_id).tags]:
            raise ValueError(f"the tag {tag} already exists in {repo_id}: choose another tag")
        published = [file.rfilename for file in info.siblings]
        if CARD not in files and CARD not in published and not lacking:
            files[CARD] = write_cards(read_folder(folder), {"tags": [*tags]})
        name_repository(files, repo_id, tag or branch)
        title, _, text = (commit_message or "Upload model").partition("\n")
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=[*files],
            delete_patterns=stale_weights(published, files),
            revision=branch,
            create_pr=create_pr,
            parent_commit=info.sha,
            commit_message=title,
            commit_description=commit_description or text.strip() or None,
        )
        if tag is not None:
            api.create_tag(repo_id, tag=tag, revision=commit.oid)
        return PushReport(repo_id, sizes, left_out, commit=commit)


def published_files(folder: str | os.PathLike, include: Iterable[str] = ()) -> tuple[dict[str, Path], list[str]]:
    """Return the files to publish (path in the repository -> file), and the paths that are left out ("folder/" or file)."""
    folder, files, card = Path(folder), folder_files(folder), ""
    if CARD in files:
        card = files[CARD].read_text(encoding="utf-8", errors="replace")
    published = {path: file for path, file in files.items() if is_of_model(path, card)}
    visible = [path for path in files if not re.search(r"(^|/)\.", path)]
    for pattern in include:
        fitting = [path for path in visible if path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)]
        if pattern in files:
            fitting = [pattern]
        if not fitting:
            raise ValueError(f"--include {pattern} matches no file in {folder}; give hidden files by their full path")
        published |= {path: files[path] for path in fitting}
    for path, file in published.items():
        if leaves(file, folder.resolve()):
            raise ValueError(f"{path} links to {file.resolve()}, outside of {folder}: replace it by a copy, or remove it")
    kept, left_out = {path.partition("/")[0] for path in published}, set()
    for path in files.keys() - published.keys():
        name, slash, _ = path.partition("/")
        if name in kept:
            left_out.add(path)
        else:
            left_out.add(name + slash)
    return dict(sorted(published.items())), sorted(left_out)


def is_of_model(path: str, card: str) -> bool:
    """Return True if a file belongs to a model: weights, configuration, tokenizer, code, results, card or its images."""
    if path.endswith(".py"):
        belongs = posixpath.basename(path) in CODE_FILES
    elif path.endswith(PICTURES):
        belongs = f"({path})" in card
    else:
        belongs = any(fnmatchcase(posixpath.basename(path), pattern) for pattern in ALLOWED)
    return belongs and FOLDERS.fullmatch(path) is not None


def leaves(file: Path, folder: Path) -> bool:
    """Return True if `file` is a link that leads out of `folder`; links of the Hub cache to its blobs are allowed."""
    places = [folder]
    if folder.parent.name == "snapshots":
        places += [folder.parents[1] / "blobs", folder.parents[2] / "blobs"]
    return not any(file.resolve().is_relative_to(place) for place in places)


def token_problems(files: Mapping[str, Path], *tokens: str | None) -> list[str]:
    """Return a message for each file that contains one of `tokens`, the user's token, or text in the form of a Hub token."""
    own = [token.encode() for token in (*tokens, get_token()) if token]
    problems = []
    for name, file in filter(lambda item: item[1].stat().st_size, files.items()):
        with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if TOKEN.search(data) or any(data.find(token) >= 0 for token in own):
                problems.append(f"{name} contains an access token: remove it, and revoke it in your account's settings")
    return problems


def model_problems(files: Mapping[str, Path]) -> list[str]:
    """Return a message for each missing part: configuration, weights, or the Hub id of an adapter's base model."""
    problems = []
    if ADAPTER_CONFIG_FILE in files:
        base = str(read_json(files[ADAPTER_CONFIG_FILE]).get("base_model_name_or_path"))
        if not is_hub_id(base) or Path(base).exists():
            problems.append(f"{ADAPTER_CONFIG_FILE}: base_model_name_or_path must be the id of a Hub model, got {base!r}")
    elif "config.json" not in files:
        problems.append("config.json is missing: publish a folder written by model.save_pretrained")
    if not any(map(is_weight_file, files)):
        problems.append("weights are missing: publish a folder written by model.save_pretrained")
    return problems


def name_repository(files: Mapping[str, Path], repo_id: str, revision: str) -> None:
    """Write the repository id and the revision into the code examples of the cards."""
    lines = f'repo = "{repo_id}"\nrevision = "{revision}"  # a tag or commit pins weights and code'
    for path, file in files.items():
        if posixpath.basename(path) == CARD:
            text = file.read_bytes().decode("utf-8")
            replace_text(file, REPO_LINES.sub(lambda _: lines, text))


def stale_weights(published: Iterable[str], new: Iterable[str]) -> list[str]:
    """Return `published` files that would be loaded instead of, or together with, the `new` files.

    For a new model, these are the earlier weights and adapter; for a new adapter, only the earlier adapter weights."""
    stale, new = [], [*new]
    for path in sorted({*published} - {*new}):
        folder, name = posixpath.split(path)
        siblings = [posixpath.basename(file) for file in new if posixpath.dirname(file) == folder]
        is_loaded = is_weight_file(name) or name == ADAPTER_CONFIG_FILE
        is_replaced = name.startswith("adapter_") or ADAPTER_CONFIG_FILE not in siblings
        if is_loaded and is_replaced and any(map(is_weight_file, siblings)):
            stale.append(path)
    return stale

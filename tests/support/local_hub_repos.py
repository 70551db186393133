# SPDX-License-Identifier: Apache-2.0
"""Storage of the Hub of the tests: users, repositories, commits, and the names that git and LFS give to a file."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml


@dataclass(frozen=True)
class User:
    """The owner of a token. `can_write` is a property of the token, not of the person."""

    name: str
    can_write: bool = True
    organizations: tuple[str, ...] = ()

    def owns(self, repo_id: str) -> bool:
        return repo_id.split("/")[-2] in (self.name, *self.organizations)


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    description: str
    author: str
    date: str
    files: Mapping[str, bytes]
    lfs: frozenset[str]


@dataclass
class PullRequest:
    num: int
    title: str
    description: str
    author: str
    head: str


@dataclass
class Repo:
    private: bool
    branches: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    pull_requests: dict[int, PullRequest] = field(default_factory=dict)

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag, a pull request, or of the start of its own id."""
        pull_requests = {f"refs/pr/{num}": request.head for num, request in self.pull_requests.items()}
        oid = {**pull_requests, **self.tags, **self.branches}.get(revision)
        if oid is None and re.fullmatch("[0-9a-f]{7,40}", revision):
            oid = next((oid for oid in self.commits if oid.startswith(revision)), None)
        return self.commits.get(oid)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return dict(self.find(revision).files)

    def history(self, revision: str = "main") -> list[Commit]:
        """Newest first."""
        commit, commits = self.find(revision), []
        while commit is not None:
            commits.append(commit)
            commit = self.commits.get(commit.parent)
        return commits


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_pointer(data: bytes) -> bytes:
    sha256 = hashlib.sha256(data).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n".encode()


def card_metadata(card: bytes) -> object:
    """The YAML between the `---` lines of a README.md."""
    match = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", card.decode("utf-8", errors="replace"), re.DOTALL)
    return (yaml.safe_load(match[1]) if match else None) or {}


def metadata_problem(card: bytes) -> str | None:
    """The Hub's reason to refuse a README.md, if it has one."""
    try:
        data = card_metadata(card)
    except yaml.YAMLError as error:
        return f"bad YAML: {error}"
    if not isinstance(data, dict):
        return "metadata must be a mapping"
    return None if isinstance(data.get("language", []), (str, list)) else '"language" must be a string or an array'


def file_entry(commit: Commit, path: str) -> dict:
    data = commit.files[path]
    entry = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
    if path in commit.lfs:
        pointer = lfs_pointer(data)
        entry["oid"] = blob_id(pointer)
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": len(pointer)}
    return entry

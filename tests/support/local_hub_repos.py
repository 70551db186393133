# SPDX-License-Identifier: Apache-2.0
"""What the Hub of the tests stores: users, repositories, commits, and how git and LFS name a file."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

__all__ = ["Commit", "PullRequest", "Repo", "User", "blob_id", "file_entry", "lfs_pointer", "metadata_problem"]


@dataclass(frozen=True)
class User:
    """Who a token belongs to. `can_write` is a property of the token, not of the person."""

    name: str
    can_write: bool = True
    organizations: tuple[str, ...] = ()

    def owns(self, repo_id: str) -> bool:
        return repo_id.partition("/")[0] in (self.name, *self.organizations)


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

    def refs(self) -> dict[str, str]:
        """Every name of a revision, except ids of commits."""
        pull_requests = {f"refs/pr/{num}": request.head for num, request in self.pull_requests.items()}
        heads = {f"refs/heads/{name}": oid for name, oid in self.branches.items()}
        return {"HEAD": self.branches["main"], **heads, **pull_requests, **self.tags, **self.branches}

    def find(self, revision: str) -> Commit | None:
        oid = self.refs().get(revision)
        if oid is None and re.fullmatch("[0-9a-f]{7,40}", revision):
            oid = next((oid for oid in self.commits if oid.startswith(revision)), None)
        return None if oid is None else self.commits[oid]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        commit = self.find(revision)
        if commit is None:
            raise KeyError(f"no revision {revision!r} among {', '.join(self.refs())}")
        return dict(commit.files)

    def history(self, revision: str = "main") -> list[Commit]:
        """Newest first."""
        commit, found = self.find(revision), []
        while commit is not None:
            found.append(commit)
            commit = self.commits.get(commit.parent or "")
        return found


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_pointer(data: bytes) -> bytes:
    sha256 = hashlib.sha256(data).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n".encode()


def metadata_problem(card: bytes) -> str | None:
    """Why the Hub refuses a README.md: metadata between its `---` lines that is no mapping in YAML."""
    found = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", card.decode("utf-8", errors="replace"), re.DOTALL)
    try:
        data = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        return f"bad YAML: {error}"
    if not isinstance(data or {}, dict):
        return "metadata must be a mapping"
    languages = (data or {}).get("language", [])
    if not isinstance(languages, (str, list)):
        return '"language" must be a string or an array'
    return None


def file_entry(repo: Repo, commit: Commit, path: str, expand: bool = False) -> dict:
    data = commit.files[path]
    entry = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
    if path in commit.lfs:
        pointer = lfs_pointer(data)
        entry["oid"] = blob_id(pointer)
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": len(pointer)}
    if expand:
        last = commit
        while last.parent is not None and repo.commits[last.parent].files.get(path) == data:
            last = repo.commits[last.parent]
        entry["lastCommit"] = {"id": last.oid, "title": last.title, "date": last.date}
    return entry

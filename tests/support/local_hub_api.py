# SPDX-License-Identifier: Apache-2.0
"""The endpoints of the Hub of the tests: a request in, an answer out, and nothing of HTTP's connections."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch

from local_hub_repos import Commit, PullRequest, Repo, User, blob_id, card_metadata, file_entry, metadata_problem

__all__ = ["Answer", "Call", "HubEndpoints", "Refusal"]

# What the real Hub stores as LFS in a new repository, as far as models have it.
LFS_PATTERNS = (
    "*.bin", "*.h5", "*.model", "*.msgpack", "*.npz", "*.onnx", "*.pkl", "*.pt", "*.pth", "*.safetensors", "*.zip",
)  # fmt: skip
LFS_FROM_SIZE = 10 * 1024**2


class Refusal(Exception):  # noqa: N818
    """An answer other than 200, in the real Hub's words."""

    def __init__(self, status: int, message: str, code: str | None = None, **more):
        super().__init__(message)
        self.answer = Answer(status, json.dumps({"error": message, **more}).encode(), {"X-Error-Message": message})
        if code is not None:
            self.answer.headers["X-Error-Code"] = code


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: object) -> "Answer":
        return cls(200, json.dumps(value).encode())


@dataclass(frozen=True)
class Call:
    """A request. `path` has its segments, unquoted."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    user: User | None

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def flag(self, name: str) -> bool:
        return self.query.get(name, ["false"])[-1].lower() in ("1", "true")


class HubEndpoints:
    """Answers calls from what it holds, all of it in memory."""

    # Where it is reached.
    endpoint: str

    def __init__(self):
        self.users = {
            "hf_write": User("user", organizations=("org",)),
            "hf_read": User("user", can_write=False, organizations=("org",)),
            "hf_stranger": User("stranger"),
        }
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.lock = threading.RLock()
        self._commits_made = 0

    def create_repo(self, repo_id: str, files: Mapping[str, bytes] | None = None, *, private: bool = False) -> Repo:
        attributes = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LFS_PATTERNS)
        with self.lock:
            repo = self.repos[repo_id] = Repo(private=private, branches={})
            commit = self._new_commit(repo, None, {".gitattributes": attributes.encode()}, frozenset(), "initial commit")
            repo.branches["main"] = commit.oid
            if files:
                self.commit(repo_id, files)
            return repo

    def commit(self, repo_id: str, files: Mapping[str, bytes], *, title="A commit", revision="main") -> str:
        """A commit that did not come by HTTP; its id."""
        with self.lock:
            repo = self.repos[repo_id]
            head = repo.find(revision)
            merged = head.files | files
            lfs = frozenset(path for path, data in merged.items() if self._is_lfs(path, len(data), head))
            self.lfs |= {hashlib.sha256(merged[path]).hexdigest(): merged[path] for path in lfs}
            commit = self._new_commit(repo, head.oid, merged, lfs, title)
            repo.branches[revision] = commit.oid
            return commit.oid

    # ------- storage

    def _new_commit(self, repo, parent, files, lfs, title, description="", author="user") -> Commit:
        self._commits_made += 1
        minutes, seconds = divmod(self._commits_made, 60)
        date = f"2026-01-01T{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.000Z"
        oid = hashlib.sha1(f"{parent} {title} {self._commits_made} {sorted(files)}".encode()).hexdigest()
        commit = Commit(oid, parent, title, description, author, date, files, lfs)
        repo.commits[oid] = commit
        return commit

    def _is_lfs(self, path: str, size: int, commit: Commit) -> bool:
        attributes = commit.files.get(".gitattributes", b"").decode()
        patterns = [line.split()[0] for line in attributes.splitlines() if "filter=lfs" in line]
        name = path.rpartition("/")[2]
        return size >= LFS_FROM_SIZE or any(fnmatch(path, p) or fnmatch(name, p) for p in patterns)

    # ------- who may do what

    def user_of(self, headers: Mapping[str, str]) -> User | None:
        token = headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if token and token not in self.users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.users.get(token)

    def _readable(self, repo_id: str, call: Call) -> Repo:
        repo = self.repos.get(repo_id)
        if repo is None or (repo.private and not (call.user and call.user.owns(repo_id))):
            # Nobody learns whether a private repository exists.
            raise Refusal(404 if call.user else 401, "Repository not found", "RepoNotFound")
        return repo

    def _writable(self, repo_id: str, call: Call, *, pull_request: bool = False) -> Repo:
        if call.user is None:
            raise Refusal(401, "Invalid username or password.")
        repo = self._readable(repo_id, call)
        if not call.user.can_write:
            raise Refusal(403, "Forbidden: you must use a write token to upload to a repository.")
        if not call.user.owns(repo_id) and not pull_request:
            raise Refusal(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
        return repo

    def _found(self, repo: Repo, revision: str) -> Commit:
        commit = repo.find(revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # ------- the endpoints

    def answer(self, call: Call) -> Answer:
        with self.lock:
            try:
                return self._route(call)
            except Refusal as refusal:
                return refusal.answer

    def _route(self, call: Call) -> Answer:
        method, path = call.method, call.path
        repo_id = "/".join(path[:2]).removesuffix(".git")
        if path == ("api", "validate-yaml"):
            problem = metadata_problem(call.json()["content"].encode())
            errors = [{"message": problem}] if problem else []
            return Answer(400 if problem else 200, json.dumps({"errors": errors, "warnings": []}).encode())
        if path == ("api", "repos", "create"):
            return self._create_repo(call)
        if path[:2] == ("api", "models") and len(path) >= 4:
            return self._repo_api(call, "/".join(path[2:4]), *(path[4:] or ("revision",)))
        if path[:1] == ("lfs",) and method == "PUT":
            return self._receive(call, path[1])
        if len(path) > 4 and path[1].endswith(".git") and path[2:5] == ("info", "lfs", "objects"):
            return self._lfs_verify(call, repo_id) if path[5] == "verify" else self._lfs_batch(call, repo_id)
        if len(path) > 4 and path[2] == "resolve" and method in ("GET", "HEAD"):
            return self._download(call, repo_id, path[3], "/".join(path[4:]))
        raise Refusal(404, f"the test Hub has no {method} /{'/'.join(path)}")

    def _repo_api(self, call: Call, repo_id: str, verb: str, *rest: str) -> Answer:
        revision = "/".join(rest)
        if verb == "preupload":
            return self._preupload(call, repo_id, revision)
        if verb == "commit":
            return self._receive_commit(call, repo_id, revision)
        if verb in ("branch", "tag") and call.method == "POST":
            repo = self._writable(repo_id, call)
            return (self._branch if verb == "branch" else self._tag)(call, repo, revision)
        repo = self._readable(repo_id, call)
        if verb == "revision":
            return self._model_info(call, repo_id, repo, revision or "main")
        if verb == "refs":
            return self._refs(call, repo)
        if verb == "commits":
            self._found(repo, revision)
            names = ("oid", "id"), ("title", "title"), ("description", "message"), ("date", "date")
            history = [{key: getattr(commit, name) for name, key in names} for commit in repo.history(revision)]
            return Answer.of([entry | {"authors": []} for entry in history])
        if verb == "tree":
            return self._tree(repo, rest[0], "/".join(rest[1:]))
        raise Refusal(404, f"the test Hub has no {call.method} {'/'.join(call.path)}")

    def _create_repo(self, call: Call) -> Answer:
        if call.user is None:
            raise Refusal(401, "Invalid username or password.")
        wishes = call.json()
        owner = wishes.get("organization") or call.user.name
        repo_id = f"{owner}/{wishes['name']}"
        url = f"{self.endpoint}/{repo_id}"
        if not (call.user.can_write and call.user.owns(repo_id)):
            raise Refusal(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        if repo_id in self.repos:
            raise Refusal(409, f"You already created this model repo: {repo_id}", url=url)
        self.create_repo(repo_id, private=wishes.get("visibility") == "private" or bool(wishes.get("private")))
        return Answer.of({"url": url, "name": repo_id, "id": repo_id})

    def _model_info(self, call: Call, repo_id: str, repo: Repo, revision: str) -> Answer:
        commit, siblings = self._found(repo, revision), []
        for path in commit.files:
            entry = file_entry(commit, path)
            blob = {"size": entry["size"], "blobId": entry["oid"]}
            if "lfs" in entry:
                blob["lfs"] = entry["lfs"] | {"sha256": entry["lfs"]["oid"]}
            siblings.append({"rfilename": path} | (blob if call.flag("blobs") else {}))
        card = card_metadata(commit.files.get("README.md", b""))
        about = {
            "id": repo_id,
            "author": repo_id.split("/")[-2],
            "sha": commit.oid,
            "private": repo.private,
        }
        about |= {"siblings": siblings, "lastModified": commit.date, "cardData": card, "tags": card.get("tags") or []}
        return Answer.of(about | {name: card.get(name) for name in ("pipeline_tag", "library_name")})

    def _refs(self, call: Call, repo: Repo) -> Answer:
        def listed(refs: Mapping[str, str], prefix: str) -> list[dict]:
            return [{"name": name, "ref": f"{prefix}{name}", "targetCommit": oid} for name, oid in refs.items()]

        refs = {"branches": listed(repo.branches, "refs/heads/"), "tags": listed(repo.tags, "refs/tags/"), "converts": []}
        if call.flag("include_prs"):
            requests = {str(num): request.head for num, request in repo.pull_requests.items()}
            refs["pullRequests"] = listed(requests, "refs/pr/")
        return Answer.of(refs)

    def _tree(self, repo: Repo, revision: str, folder: str) -> Answer:
        """All files and folders below a folder, as for a client that asks for the whole tree."""
        commit = self._found(repo, revision)
        files = [path for path in commit.files if f"/{path}".startswith(f"/{folder}/".replace("//", "/"))]
        if not files:
            raise Refusal(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
        folders = {path[:end] for path in files for end, letter in enumerate(path) if letter == "/"}
        entries = [{"type": "directory", "path": path, "oid": blob_id(path.encode())} for path in sorted(folders)]
        return Answer.of(entries + [file_entry(commit, path) for path in files])

    def _preupload(self, call: Call, repo_id: str, revision: str) -> Answer:
        repo = self._writable(repo_id, call, pull_request=call.flag("create_pr"))
        commit, answers = self._found(repo, revision), []
        for item in call.json()["files"]:
            path, there = item["path"], commit.files.get(item["path"])
            is_lfs = self._is_lfs(path, item["size"], commit)
            # For LFS the id of the content, not of the pointer.
            oid = None if there is None else hashlib.sha256(there).hexdigest() if path in commit.lfs else blob_id(there)
            answers.append({"path": path, "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False, "oid": oid})
        return Answer.of({"files": answers, "commitOid": commit.oid})

    def _lfs_batch(self, call: Call, repo_id: str) -> Answer:
        self._writable(repo_id, call, pull_request="ref" not in call.json())
        objects = []
        for item in call.json()["objects"]:
            oid = item["oid"]
            objects.append({"oid": oid, "size": item["size"]})
            if oid not in self.lfs:
                verify = {"href": f"{self.endpoint}/{repo_id}.git/info/lfs/objects/verify"}
                objects[-1]["actions"] = {"upload": {"href": f"{self.endpoint}/lfs/{oid}"}, "verify": verify}
        return Answer.of({"transfer": "basic", "objects": objects})

    def _receive(self, call: Call, oid: str) -> Answer:
        # No token: the address itself is the permission, as with the signed ones of the real Hub.
        if hashlib.sha256(call.body).hexdigest() != oid:
            raise Refusal(400, "The Content-SHA256 you specified did not match what we received.")
        self.lfs[oid] = call.body
        return Answer()

    def _lfs_verify(self, call: Call, repo_id: str) -> Answer:
        self._writable(repo_id, call, pull_request=True)
        if call.json()["oid"] not in self.lfs:
            raise Refusal(404, "Object not found")
        return Answer.of({})

    def _receive_commit(self, call: Call, repo_id: str, revision: str) -> Answer:
        makes_request = call.flag("create_pr")
        repo = self._writable(repo_id, call, pull_request=makes_request)
        lines = [json.loads(line) for line in call.body.splitlines() if line.strip()]
        header = lines[0]["value"]
        is_request = re.fullmatch(r"refs/pr/(\d+)", revision)
        if not makes_request and revision not in repo.branches and not is_request:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        base = self._found(repo, revision)
        parent = header.get("parentCommit")
        if parent is not None and not base.oid.startswith(parent):
            if not makes_request:
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            base = self._found(repo, parent)
        files, lfs = self._changed(base, lines[1:])
        card = files.get("README.md")
        problem = metadata_problem(card) if card is not None and card != base.files.get("README.md") else None
        if problem:
            raise Refusal(400, f"Invalid metadata in README.md: {problem}")
        # As git does it: the title is the first line.
        title, _, rest = header["summary"].partition("\n")
        text = "\n\n".join(part for part in (rest.strip(), header.get("description", "")) if part)
        words = (title, text, call.user.name)
        commit = self._new_commit(repo, base.oid, files, lfs, *words)
        answer = {"success": True, "commitOid": commit.oid, "commitUrl": f"{self.endpoint}/{repo_id}/commit/{commit.oid}"}
        if makes_request:
            num = len(repo.pull_requests) + 1
            repo.pull_requests[num] = PullRequest(num, *words, commit.oid)
            answer["pullRequestUrl"] = f"{self.endpoint}/{repo_id}/discussions/{num}"
        elif is_request:
            repo.pull_requests[int(is_request[1])].head = commit.oid
        else:
            repo.branches[revision] = commit.oid
        return Answer.of(answer | {"hookOutput": ""})

    def _changed(self, base: Commit, operations: list[dict]) -> tuple[dict[str, bytes], frozenset[str]]:
        files, lfs = dict(base.files), set(base.lfs)
        for operation in operations:
            kind, value = operation["key"], operation["value"]
            path = value["path"]
            lfs.discard(path)
            if kind == "file":
                files[path] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                if value["oid"] not in self.lfs:
                    raise Refusal(400, "Your push was rejected: an LFS pointer pointed to a file that does not exist.")
                files[path] = self.lfs[value["oid"]]
                lfs.add(path)
            elif kind == "deletedFile":
                del files[path]
        return files, frozenset(lfs)

    def _branch(self, call: Call, repo: Repo, name: str) -> Answer:
        if name.startswith("refs/"):
            raise Refusal(400, f"Invalid reference for a branch: refs/heads/{name}")
        if name in repo.branches:
            raise Refusal(409, f"Reference already exists: refs/heads/{name}")
        repo.branches[name] = self._found(repo, call.json().get("startingPoint") or "main").oid
        return Answer.of({})

    def _tag(self, call: Call, repo: Repo, name: str) -> Answer:
        tag = call.json()["tag"]
        if tag in repo.tags:
            raise Refusal(409, "Tag reference exists already")
        repo.tags[tag] = self._found(repo, name).oid
        return Answer.of({})

    def _download(self, call: Call, repo_id: str, revision: str, path: str) -> Answer:
        commit = self._found(self._readable(repo_id, call), revision)
        headers = {"X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if path not in commit.files:
            refusal = Refusal(404, "Entry not found", "EntryNotFound")
            refusal.answer.headers["X-Repo-Commit"] = commit.oid
            raise refusal
        data = commit.files[path]
        headers["ETag"] = f'"{blob_id(data)}"'
        if path in commit.lfs:
            # The real one redirects to its storage; what clients read is in these headers either way.
            headers["ETag"] = headers["X-Linked-ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(data))
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("Range", ""))
        if byte_range is None:
            return Answer(200, data, headers)
        first, last = int(byte_range[1]), min(int(byte_range[2] or len(data)), len(data) - 1)
        return Answer(206, data[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

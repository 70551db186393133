# SPDX-License-Identifier: Apache-2.0
"""A Hub on 127.0.0.1 for tests: it answers the requests of huggingface_hub from memory, and fails on demand.

with LocalHub() as hub:
    hub.fail("POST /api/models/user/name/commit", status=500)
    HfApi(endpoint=hub.endpoint, token="hf_write").upload_folder(repo_id="user/name", folder_path=folder)
    assert hub.repos["user/name"].files()["config.json"] == ...
"""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Commit:
    oid: str
    title: str
    description: str
    files: Mapping[str, bytes]


@dataclass
class Repo:
    """A repository: `refs` maps branches, tags and pull requests (refs/pr/1) to commits; `history` lists those of main."""

    private: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    commits: dict[str, Commit] = field(default_factory=dict)
    history: list[Commit] = field(default_factory=list)

    def find(self, revision: str = "main") -> Commit | None:
        return self.commits.get(self.refs.get(revision, revision))

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return dict(self.find(revision).files)

    def commit(self, files: Mapping[str, bytes], title: str = "Theirs", description: str = "", ref: str = "main") -> Commit:
        oid = hashlib.sha1(f"{title} {len(self.commits)}".encode()).hexdigest()
        commit = self.commits[oid] = Commit(oid, title, description, dict(files))
        self.refs[ref] = oid
        if ref == "main":
            self.history.append(commit)
        return commit


class Refusal(Exception):  # noqa: N818
    """A response with a status other than 200."""

    def __init__(self, status: int, message: str, code: str = "", **more):
        super().__init__(message)
        self.status, self.code, self.body = status, code, {"error": message, **more}


class LocalHub:
    """Server and context manager. `repos` by id, `tokens` of "user", and received `requests` as "METHOD path"."""

    def __enter__(self) -> "LocalHub":
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.tokens = {"hf_write"}
        self._faults: list[dict] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def create_repo(self, repo_id: str, files: Mapping[str, bytes] | None = None, *, private: bool = False) -> Repo:
        repo = self.repos[repo_id] = Repo(private=private)
        repo.commit({".gitattributes": b"", **(files or {})}, "initial commit")
        return repo

    def fail(self, match: str, status: int, message: str = "injected by the test", times: int | None = 1, body: bytes = b""):
        """Answer the next `times` requests (None: all) whose "METHOD path" contains `match` with an error."""
        self._faults.append({"match": match, "times": times or 10**9, "answer": (status, body or message.encode())})

    def before(self, match: str, action: Callable[[], object]):
        """Call `action` before the next request that contains `match` is answered."""
        self._faults.append({"match": match, "times": 1, "action": action})

    def sent(self, match: str) -> list[str]:
        return [request for request in self.requests if match in request]

    def environment(self, home: str | Path, token: str = "hf_write") -> dict[str, str]:
        """Return environment variables for a process that only knows this Hub; its caches are below `home`."""
        switched_off = dict.fromkeys(("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS"), "1")
        return switched_off | {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_TOKEN": token}

    def connect(self, monkeypatch, home: str | Path, token: str | None = "hf_write"):
        """Let this process, which has already imported huggingface_hub, use only this Hub until the test ends."""
        import transformers.utils.hub
        from huggingface_hub import constants, hf_api

        values = {"ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        values["HUGGINGFACE_CO_URL_TEMPLATE"] = self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        values |= {"HF_HUB_CACHE": str(Path(home, "hub")), "HF_TOKEN_PATH": str(Path(home, "token"))}
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)
        # These objects keep their endpoint: one for the functions of huggingface_hub, one for all of transformers.
        monkeypatch.setattr(hf_api.api, "endpoint", self.endpoint)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN", raising=False)

    # ------- responses

    def answer(self, method: str, path: list[str], query: Mapping[str, list[str]], body: bytes) -> object:
        """Return a JSON value, or (headers, bytes) of a file."""
        if path[:2] == ["api", "validate-yaml"]:
            return {"errors": [], "warnings": []}
        if path[:3] == ["api", "repos", "create"]:
            wishes = json.loads(body)
            repo_id = f"{wishes.get('organization') or 'user'}/{wishes['name']}"
            if repo_id in self.repos:
                raise Refusal(409, "You already created this model repo", url=f"{self.endpoint}/{repo_id}")
            self.create_repo(repo_id, private=wishes.get("visibility") == "private" or bool(wishes.get("private")))
            return {"url": f"{self.endpoint}/{repo_id}", "name": repo_id, "id": repo_id}
        if path[:2] == ["api", "whoami-v2"]:
            return {"name": "user", "type": "user", "orgs": []}
        start = 2 if path[0] == "api" else 0
        repo_id, verb, rest = "/".join(path[start : start + 2]), "".join(path[start + 2 : start + 3]), path[start + 3 :]
        if repo_id not in self.repos:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        repo = self.repos[repo_id]
        if verb == "resolve":
            return self._file(repo, rest[0], "/".join(rest[1:]))
        if verb == "refs":
            tags = [{"name": name, "ref": name, "targetCommit": repo.refs[name]} for name in repo.tags]
            return {"branches": [], "tags": tags, "converts": []}
        if verb == "branch":
            repo.refs.setdefault("/".join(rest), repo.refs["main"])
            return {}
        if verb == "tag":
            repo.tags.append(json.loads(body)["tag"])
            repo.refs[repo.tags[-1]] = repo.find("/".join(rest)).oid
            return {}
        revision = {"": "main", "tree": "".join(rest[:1])}.get(verb, "/".join(rest))
        commit = repo.find(revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files = {path: {"path": path, "size": len(data), "oid": blob_id(data)} for path, data in commit.files.items()}
        if verb == "tree":
            return [{"type": "file", **entry} for entry in files.values()]
        if verb == "preupload":
            asked = [item["path"] for item in json.loads(body)["files"]]
            oids = {path: files.get(path, {}).get("oid") for path in asked}
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": path, "oid": oid, **modes} for path, oid in oids.items()], "commitOid": commit.oid}
        if verb == "commit":
            return self._receive(repo, repo_id, revision, commit, query, body)
        siblings = [{"rfilename": path} for path in files]
        return {"id": repo_id, "sha": commit.oid, "private": repo.private, "siblings": siblings, "tags": []}

    def _receive(self, repo: Repo, repo_id: str, revision: str, base: Commit, query, body: bytes) -> dict:
        header, *operations = [json.loads(line) for line in body.splitlines() if line.strip()]
        if header["value"].get("parentCommit") not in (None, base.oid):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(base.files)
        for operation in operations:
            path = operation["value"]["path"]
            if operation["key"] == "deletedFile":
                del files[path]
            else:
                files[path] = base64.b64decode(operation["value"]["content"])
        answer = {}
        if query.get("create_pr") == ["1"]:
            revision = "refs/pr/1"
            answer = {"pullRequestUrl": f"{self.endpoint}/{repo_id}/discussions/1"}
        commit = repo.commit(files, header["value"]["summary"], header["value"].get("description", ""), revision)
        url = f"{self.endpoint}/{repo_id}/commit/{commit.oid}"
        return answer | {"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""}

    def _file(self, repo: Repo, revision: str, path: str) -> tuple[dict, bytes]:
        commit = repo.find(revision)
        if commit is None or path not in commit.files:
            raise Refusal(404, "Entry not found", "EntryNotFound" if commit else "RevisionNotFound")
        data = commit.files[path]
        return {"X-Repo-Commit": commit.oid, "ETag": f'"{blob_id(data)}"'}, data


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def log_message(self, *args):
        pass

    def _do(self):
        hub, line = self.hub, f"{self.command} {self.path}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.requests.append(line)
        status, headers, data = 200, {}, b""
        fault = next((fault for fault in hub._faults if fault["match"] in line and fault["times"] > 0), {"times": 0})
        fault["times"] -= 1
        if "action" in fault:
            fault["action"]()
        split = urlsplit(self.path)
        try:
            if self.headers.get("Authorization", "Bearer hf_write").removeprefix("Bearer ") not in hub.tokens:
                raise Refusal(401, "Invalid username or password.")
            segments = [unquote(segment) for segment in split.path.strip("/").split("/")]
            if "answer" in fault:
                status, data = fault["answer"]
                headers = {"X-Error-Message": data.decode(errors="replace")}
            else:
                answer = hub.answer(self.command, segments, parse_qs(split.query), body)
                headers, data = answer if isinstance(answer, tuple) else ({}, json.dumps(answer).encode())
        except Refusal as refusal:
            status, data = refusal.status, json.dumps(refusal.body).encode()
            headers = {"X-Error-Message": str(refusal), "X-Error-Code": refusal.code}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _do  # noqa: N815


def blob_id(data: bytes) -> str:
    """Return git's object name of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

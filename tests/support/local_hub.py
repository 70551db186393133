# SPDX-License-Identifier: Apache-2.0
"""A Hub on 127.0.0.1 for tests: it answers what huggingface_hub asks of the real one, from memory, and fails on demand.

    with LocalHub() as hub:
        hub.fail("PUT /lfs/", status=500, times=2)
        HfApi(endpoint=hub.endpoint, token="hf_write").upload_folder(repo_id="user/name", folder_path=folder)
        assert hub.repos["user/name"].files()["config.json"] == ...

Storage is LFS, not Xet: clients must run with HF_HUB_DISABLE_XET=1, as in `LocalHub.environment` and `LocalHub.connect`.
"""

import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from local_hub_api import Answer, Call, HubEndpoints, Refusal
from local_hub_repos import Commit, PullRequest, Repo, User

__all__ = ["Commit", "Fault", "LocalHub", "PullRequest", "Repo", "Request", "User"]


@dataclass(frozen=True)
class Request:
    """A request. `path` is as sent, with its query; `status` is None where the connection was cut before an answer."""

    method: str
    path: str
    status: int | None


@dataclass
class Fault:
    """The fate of the next `times` requests that match, after `skip` of them; `hits` counts those that it met."""

    match: str | re.Pattern
    status: int | None = None
    kind: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    message: str = "injected by the test"
    times: int | None = 1
    skip: int = 0
    action: Callable[[], object] | None = None
    hits: int = 0

    def meets(self, line: str) -> bool:
        matches = self.match in line if isinstance(self.match, str) else self.match.search(line) is not None
        if not matches or self.hits == self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class LocalHub(HubEndpoints):
    """The server, for use with `with`. Everything that it holds may be read, and changed, by the test:

    - `repos` by id, `lfs` by SHA-256, `users` by token: "hf_write" and "hf_read" of "user", "hf_stranger" of "stranger";
    - `requests` that came in, `faults` that were asked for.
    """

    def __init__(self):
        super().__init__()
        self.requests: list[Request] = []
        self.faults: list[Fault] = []

    def __enter__(self) -> "LocalHub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, match: str | re.Pattern, **fault) -> Fault:
        """Makes requests fail whose "METHOD path" contains `match`; see `Fault`.

        Either `status` (with `headers`, `message`, `body`; `kind="after"` does the work before that answer), or `kind`:
        "cut" closes the connection in the midst of the request's body, or of the answer where it has none; "cut_after" does
        the work and closes without an answer; "slow" reads the body, or sends the answer, in small pieces, about a second in
        all.
        """
        if (fault.get("status") is None) == (fault.get("kind") in (None, "after")):
            raise ValueError("a fault has either a status or a kind")
        if fault.get("kind") not in (None, "after", "cut", "cut_after", "slow"):
            raise ValueError(f"no such kind of fault: {fault['kind']!r}")
        self.faults.append(Fault(match, **fault))
        return self.faults[-1]

    def before(self, match: str | re.Pattern, action: Callable[[], object], **when) -> Fault:
        """Calls `action()` when such a request has come, before it is answered: what somebody else does meanwhile."""
        self.faults.append(Fault(match, kind="action", action=action, **when))
        return self.faults[-1]

    def sent(self, match: str) -> list[Request]:
        """The requests whose "METHOD path" contains `match`."""
        return [request for request in self.requests if match in f"{request.method} {request.path}"]

    def environment(self, home: str | Path, token: str | None = "hf_write") -> dict[str, str]:
        """Environment variables for a process that knows only this Hub; its caches are below `home`."""
        variables = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_OFFLINE": "0",
        }
        return variables | ({"HF_TOKEN": token} if token else {})

    def connect(self, monkeypatch, home: str | Path, token: str | None = "hf_write"):
        """The same for this process, which has imported huggingface_hub long ago, until the test ends."""
        import transformers.utils.hub
        from huggingface_hub import constants, hf_api

        for name, value in {
            "ENDPOINT": self.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(Path(home, "hub")),
            "HF_TOKEN_PATH": str(Path(home, "token")),
        }.items():
            monkeypatch.setattr(constants, name, value)
        # These remember their endpoint: one for the functions of huggingface_hub, one for all of transformers.
        monkeypatch.setattr(hf_api.api, "endpoint", self.endpoint)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN", raising=False)


class _Cut(Exception):  # noqa: N818
    """The connection ends here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: LocalHub

    def log_message(self, *args):
        pass

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, _Cut):
            # A client may go whenever it likes; a cut was asked for by the test.
            self.close_connection = True

    def _do(self):
        line = f"{self.command} {self.path}"
        with self.hub.lock:
            fault = next((fault for fault in self.hub.faults if fault.meets(line)), None)
        kind = fault.kind if fault else None
        body = self._body(kind)
        if kind == "action":
            fault.action()
        if kind == "after":
            self._answered(body)
        if fault is not None and fault.status is not None:
            data = json.dumps({"error": fault.message}).encode() if fault.body is None else fault.body
            answer = Answer(fault.status, data, {"X-Error-Message": fault.message, **fault.headers})
        else:
            answer = self._answered(body)
        if kind == "cut_after":
            self._cut()
        if kind == "cut":
            self._send(answer, up_to=len(answer.body) // 2)
        # A body was slow enough.
        self._send(answer, slowly=kind == "slow" and not body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _do  # noqa: N815

    def _answered(self, body: bytes) -> Answer:
        split = urlsplit(self.path)
        try:
            user = self.hub.user_of(self.headers)
        except Refusal as refusal:
            return refusal.answer
        path = tuple(unquote(segment) for segment in split.path.strip("/").split("/"))
        return self.hub.answer(Call(self.command, path, parse_qs(split.query), self.headers, body, user))

    def _body(self, kind: str | None) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
                if kind == "cut":
                    self._cut()
            self.rfile.readline()
            return b"".join(pieces)
        size = int(self.headers.get("Content-Length") or 0)
        if size and kind == "cut":
            self.rfile.read(size // 2)
            self._cut()
        if kind != "slow":
            return self.rfile.read(size)
        return b"".join(self.rfile.read(count) for count in _slowly(size))

    def _cut(self):
        self._note(None)
        # Closing alone would leave it open for as long as another reference lives.
        self.connection.shutdown(socket.SHUT_RDWR)
        raise _Cut

    def _note(self, status: int | None):
        self.hub.requests.append(Request(self.command, self.path, status))

    def _send(self, answer: Answer, slowly: bool = False, up_to: int | None = None):
        self.send_response(answer.status)
        headers = {"Content-Type": "application/json", "X-Request-Id": "test", **answer.headers}
        for name, value in {**headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        if up_to is None:
            # Before the client can act on the answer, so that a test finds every request of a finished call.
            self._note(answer.status)
        self.end_headers()
        body = io.BytesIO(b"" if self.command == "HEAD" else answer.body[:up_to])
        for count in _slowly(len(answer.body)) if slowly else [-1]:
            self.wfile.write(body.read(count))
        if up_to is not None:
            self._cut()


def _slowly(size: int) -> Iterator[int]:
    """Sizes of 20 pieces, with a pause of 0.05 s before each."""
    for start in range(20):
        time.sleep(0.05 if size else 0)
        yield size * (start + 1) // 20 - size * start // 20

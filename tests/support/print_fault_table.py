# SPDX-License-Identifier: Apache-2.0
"""Behaviour of a push when the Hub fails: every fault at every stage, the message, and the files afterwards.

    python tests/support/print_fault_table.py > fault_table.md

Prints a table in Markdown, each row of which test_push_faults.py checks. The uploads are those of LFS: what hf_xet does,
over which the real Hub takes large files, no server here can answer, and only its errors are tried there.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT)]

from local_hub import LocalHub  # noqa: E402

REPO, TAG = "user/deberta", "v1.0"
STAGES = {
    "create": "POST /api/repos/create",
    "preupload": f"POST /api/models/{REPO}/preupload/main",
    "upload": "PUT /lfs/",
    "commit": f"POST /api/models/{REPO}/commit/main",
    "tag": f"POST /api/models/{REPO}/tag/",
}
# Asked at most once more by push itself or by huggingface_hub, and of less interest one by one.
MORE_STAGES = {
    "look": re.compile(f"GET /api/models/{REPO}$"),
    "refs": f"GET /api/models/{REPO}/refs",
    "tree": f"GET /api/models/{REPO}/tree/",
    "card": "POST /api/validate-yaml",
    "batch": f"POST /{REPO}.git/info/lfs/objects/batch",
    "branch": f"POST /api/models/{REPO}/branch/",
}
PAGE = dict(
    status=502, message="Bad Gateway", headers={"Content-Type": "text/html"}, body=b"<html><h1>502 Bad Gateway</h1></html>"
)
FAULTS = {
    "401": dict(status=401, message="Invalid username or password."),
    "403": dict(status=403, message="Forbidden: you must use a write token to upload to a repository."),
    "409": dict(status=409, message="Conflict: another operation is in progress"),
    "413": dict(status=413, message="Payload Too Large"),
    "429, Retry-After: 20": dict(status=429, headers={"Retry-After": "20"}, message="Too many requests"),
    "429, Retry-After: 200, for ever": dict(
        status=429, headers={"Retry-After": "200"}, message="Too many requests", times=None
    ),
    "500": dict(status=500, message="Internal Error"),
    "500, for ever": dict(status=500, message="Internal Error", times=None),
    "502, a page of HTML": PAGE,
    "502, a page of HTML, for ever": PAGE | dict(times=None),
    "cut": dict(kind="cut"),
    "cut, for ever": dict(kind="cut", times=None),
    "cut after the work": dict(kind="cut_after"),
    "slow": dict(kind="slow"),
}
# Those that may strike any request.
COMMON = ("429, Retry-After: 20", "502, a page of HTML", "502, a page of HTML, for ever", "cut", "cut, for ever", "slow")
CASES = [(fault, stage) for fault in FAULTS for stage in STAGES]
CASES += [(fault, stage) for fault in COMMON for stage in MORE_STAGES]
# Answers of another form than the Hub's, in place of the work, for ever.
WRONG_TYPES = {
    "look": {"id": 3, "private": "yes", "sha": ["x"]},
    "refs": {"branches": [{"name": None, "ref": 3, "targetCommit": None}], "tags": [], "converts": []},
    "tree": [{"type": "file", "path": None, "oid": 3, "size": "x"}],
    "card": {"errors": 3},
    "create": {"url": 3, "name": None},
    "branch": "made",
    "preupload": {"files": [{"path": "model.safetensors", "uploadMode": 3, "shouldIgnore": None}]},
    "batch": {"transfer": 3, "objects": [{"oid": 3, "size": "x", "actions": {"upload": None}}]},
    "upload": {"etag": 3},
    "commit": {"success": True, "commitOid": None, "commitUrl": 3},
    "tag": [None],
}
SHAPES = {
    name: dict(status=200, body=name.encode(), times=None) for name in ("null", "[]", "{}", '{"sha": null}', "3", '"x"')
}
SHAPES |= {
    "a bare 302": dict(status=302, body=b"", times=None),
    "a page of HTML, 200": dict(status=200, headers={"Content-Type": "text/html"}, body=b"<html>Log in</html>", times=None),
    "truncated JSON": dict(status=200, body=b'{"branches": [{"na', times=None),
}
SHAPES |= {
    f"wrong types, {stage}": dict(status=200, body=json.dumps(body).encode(), times=None)
    for stage, body in WRONG_TYPES.items()
}
SHAPE_CASES = [
    (shape, stage)
    for shape in SHAPES
    for stage in STAGES | MORE_STAGES
    if not shape.startswith("wrong types") or shape.endswith(stage)
]
# The same answers after the work was done.
AFTER = {f"{shape}, after the work": fault | dict(kind="after") for shape, fault in SHAPES.items()}
AFTER_CASES = [(f"{shape}, after the work", stage) for shape, stage in SHAPE_CASES if stage in ("create", "commit", "tag")]
FAULTS |= SHAPES | AFTER
# What a push survives without the user's help.
SURVIVED = {"429, Retry-After: 20", "500", "502, a page of HTML", "cut", "cut after the work", "slow"}


class Server(NamedTuple):
    """The repository after a push: the number of commits of pushes, and the files and tags in it."""

    exists: bool
    commits: int
    files: set[str]
    tags: dict[str, str]


class Outcome(NamedTuple):
    """Result of a push with a fault, and of the next one (`again`) without.

    The messages are those of errors, "" where the push succeeds; `same_on_disk`: every file of the folder has its bytes
    and time; `waits`: seconds that the first push or huggingface_hub slept.
    """

    fault: str
    stage: str
    message: str
    server: Server
    waits: list[float]
    same_on_disk: bool
    again_message: str
    again: Server


def make_folder(folder: Path) -> Path:
    """Files of every kind of upload, without a model in them: the checks of a folder are not what is tried here."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "deberta-ext"}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "README.md").write_text(
        '---\nlibrary_name: transformers\n---\n\n# A model\n\n```python\nrepo = "here"\nrevision = None\n```\n',
        encoding="utf-8",
    )
    return folder


def on_disk(folder: Path) -> dict[str, tuple[str, int]]:
    """path -> hash and time of every file."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        str(file.relative_to(folder)): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in files
    }


@contextlib.contextmanager
def no_waiting() -> Iterator[list[float]]:
    """Inside, nobody who tries again waits; yields the seconds that they would have."""
    from huggingface_hub.utils import _http

    from hf_deberta_ext.publishing import hub_requests

    waits: list[float] = []
    with (
        mock.patch.object(_http, "time", types.SimpleNamespace(sleep=waits.append)),
        mock.patch.object(hub_requests, "sleep", waits.append),
    ):
        yield waits


def run_case(fault: str, stage: str, scratch: Path) -> Outcome:
    """One push of a new folder with the fault, one more without."""
    from hf_deberta_ext.publishing import PushError, push

    folder = make_folder(scratch / "model")
    before = on_disk(folder)
    branch = "fast" if stage == "branch" else None

    def push_once() -> tuple[str, Server]:
        message = ""
        try:
            push(folder, REPO, revision=branch, tag=TAG, token="hf_write", endpoint=hub.endpoint, skip_checks=True)
        except PushError as error:
            message = str(error).replace(str(folder), "FOLDER")
        repo = hub.repos.get(REPO)
        if repo is None:
            return message, Server(False, 0, set(), {})
        revision = branch if branch in repo.branches else "main"
        commits = [commit for commit in repo.history(revision) if commit.title != "initial commit"]
        return message, Server(True, len(commits), {*repo.files(revision)} - {".gitattributes"}, dict(repo.tags))

    with LocalHub() as hub, online(), no_waiting() as waits:
        hub.fail((STAGES | MORE_STAGES)[stage], **FAULTS[fault])
        first = push_once()
        first_waits = list(waits)
        hub.faults.clear()
        again = push_once()
    return Outcome(fault, stage, *first, first_waits, on_disk(folder) == before, *again)


def row(outcome: Outcome) -> str:
    """One line of the table."""
    server, waits = outcome.server, f" after {sum(outcome.waits):.0f} s" if outcome.waits else ""
    state = "an empty repository" if server.exists else "no repository"
    if server.commits:
        state = f"{server.commits} commit, {len(server.files)} files" + (f", {TAG}" if TAG in server.tags else "")
    user = outcome.message or f"the push goes through{waits}"
    again = f"{outcome.again.commits} commit, {len(outcome.again.files)} files, {', '.join(outcome.again.tags)}"
    disk = "as it was" if outcome.same_on_disk else "CHANGED"
    return f"| {outcome.fault} | {outcome.stage} | {user} | {state} | {disk} | {outcome.again_message or again} |"


@contextlib.contextmanager
def online() -> Iterator[None]:
    """This process may talk to a Hub, by plain uploads."""
    from huggingface_hub import constants

    with mock.patch.multiple(constants, HF_HUB_OFFLINE=False, HF_HUB_DISABLE_XET=True):
        yield


def main():
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    print("Large files go over LFS here. The real Hub takes them over Xet, whose errors are tried without a server.\n")
    print("| fault | stage | what the user sees | on the server | on disk | pushed again |")
    print("| --- | --- | --- | --- | --- | --- |")
    for fault, stage in CASES + SHAPE_CASES + AFTER_CASES:
        with tempfile.TemporaryDirectory() as scratch:
            print(row(run_case(fault, stage, Path(scratch))), flush=True)


if __name__ == "__main__":
    main()

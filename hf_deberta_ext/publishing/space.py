# SPDX-License-Identifier: Apache-2.0
"""Publish a Space, an app on the Hub: the page of `deberta-ext demo` for one commit of a model."""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from huggingface_hub import HfApi, RepoCard
from huggingface_hub.utils import validate_repo_id

from .._version import __version__
from .folder_checks import leak_problems
from .hub_commit import CARD, HubCommit, compare_files
from .hub_requests import RequestSteps, patient_session
from .push import PushReport, read_for_dry_run, refusal, send_changes

__all__ = ["GRADIO_VERSION", "push_space"]

PACKAGE = Path(__file__).resolve().parent.parent
# The package is in no registry that a Space could install it from: the files that the page needs are sent with it.
CODE = ("__init__.py", "_version.py", "tokenization.py", "native/__init__.py", "model/*.py", "analysis/**/*.py", "demo/*.py")
REQUIREMENTS = ("torch", "transformers", "tokenizers", "huggingface_hub", "safetensors", "sentencepiece", "protobuf")
GRADIO_VERSION = "6.31.0"
"""The version that the page was tested with, as in constraints.txt; a Space installs it by its card."""
MARK = "# Written by `deberta-ext push --space`, which replaces it."
APP = """\
{mark}
from hf_deberta_ext.demo.page import build_page, launch

launch(build_page({model}, {revision}))
"""
CARD_TEXT = """\
---
title: {name}
colorFrom: blue
colorTo: gray
license: apache-2.0
---
# {model}

[{model}](https://huggingface.co/{model}) at work: what its heads answer, and what its attention does.
"""


def push_space(
    space_id: str,
    model_id: str,
    revision: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    dry_run: bool = False,
) -> PushReport:
    """Publish the page that shows a model of the Hub as a Space, in one commit: app.py, its requirements, card and code.

    The Space is made if it is not there. Title, colours and text of a card on the Hub stay. Files are searched for secrets.

    Args:
        space_id, model_id (`str`): "user/name" or "organisation/name".
        revision (`str`): the commit of the model that is shown.
        private, token, endpoint, dry_run: as in `push`.

    Raises:
        ValueError: an id that is none, a Space with another app, or secrets in the files. Nothing was sent.
        PushError: the Hub or the connection failed; the message says the state of the Space, and the way out.
    """
    validate_repo_id(space_id)
    if space_id.count("/") != 1:
        raise ValueError(f"--space {space_id} must be user/name or organisation/name")
    with tempfile.TemporaryDirectory(prefix="hf_deberta_ext_push_") as scratch, patient_session():
        scratch = Path(scratch)
        files = {path.relative_to(PACKAGE.parent).as_posix(): path for part in CODE for path in sorted(PACKAGE.glob(part))}
        steps = RequestSteps(space_id, model_id, "Nothing was changed in the Space")
        hub = HubCommit(HfApi(endpoint=endpoint, token=token), steps, "main", False, files, "space")
        notes = ["a model that is private is read with a secret of the Space, HF_TOKEN, in its settings"]
        remote = read_for_dry_run(hub, notes) if dry_run else hub.read()
        hub.check(remote, private, "--private" if private else "--public")
        if "app.py" in remote.files and not hub.download("app.py", remote, scratch).read_text("utf-8").startswith(MARK):
            raise ValueError(f"the Space {space_id} has an app.py of another kind, which stays: choose another --space")
        card = RepoCard(CARD_TEXT.format(name=json.dumps(model_id.split("/")[1]), model=model_id))
        if CARD in remote.files and "app.py" in remote.files:
            card = RepoCard(hub.download(CARD, remote, scratch).read_text("utf-8"), ignore_metadata_errors=True)
        fields = dict(sdk="gradio", sdk_version=GRADIO_VERSION, app_file="app.py", models=[model_id])
        for name, value in (fields | {"python_version": f"{sys.version_info.major}.{sys.version_info.minor}"}).items():
            card.data[name] = value
        made = {
            "app.py": APP.format(mark=MARK, model=json.dumps(model_id), revision=json.dumps(revision)),
            "requirements.txt": "".join(f"{name}=={version(name).partition('+')[0]}\n" for name in REQUIREMENTS),
            CARD: str(card),
        }
        for name, text in made.items():
            files[name] = scratch / name
            files[name].write_text(text, encoding="utf-8")
        problems = leak_problems(scratch, files, token)
        if problems and not dry_run:
            raise refusal(f"the Space {space_id}", problems)
        changes, commit = compare_files(files, remote.files), remote.head
        if not dry_run:
            message = f"Show {model_id} with hf_deberta_ext {__version__}"
            commit, _ = send_changes(hub, remote, changes, private, message, None)
        return PushReport(
            f"Space {space_id}", hub.url, "main", commit, None, None, changes, {}, (), tuple(notes), tuple(problems), dry_run
        )

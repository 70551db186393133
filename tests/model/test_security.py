# SPDX-License-Identifier: Apache-2.0
"""The code saved with a model only accesses its checkpoint: no network, no processes, no other files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_head import labels_of
from tiny_models import HEADS, TINY, tiny_inputs, tiny_model
from transformers import BertConfig, BertModel

WORKER = Path(__file__).resolve().parents[1].joinpath("support", "security_worker.py")
# Audit events about files; functions of shutil also raise the events of os.
FILE_EVENTS = ("open", "os.", "shutil.", "tempfile.")
CHANGES = {
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
    "os.utime",
}  # fmt: skip
# Functions of os that start a process or change the environment.
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.putenv", "os.spawn", "os.startfile", "os.system",
          "os.unsetenv"}  # fmt: skip

# Prepended to a folder's modeling file: accesses that must be detected.
MALICE = """
import os, pickle, socket, subprocess
socket.socket().close()
subprocess.run(["true"])
open({outside!r}, "w").close()
pickle.loads(pickle.dumps(os.getcwd))
"""


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """Return the worker's notes by Auto class, for a model of transformers and for malicious code; and their folder."""
    folder = tmp_path_factory.mktemp("watched")
    sizes = {name: value for name, value in TINY.items() if name != "position_buckets"}
    BertModel(BertConfig(**sizes)).save_pretrained(folder / "bert")

    def job(name, auto, inputs):
        return dict(name=name, auto=auto, source=str(folder / name), inputs=inputs, again=str(folder / "saved" / name))

    ids = {"input_ids": tiny_inputs("AutoModel")["input_ids"]}
    bert = job("bert", "AutoModel", ids)
    # Files of late imports of transformers do not count as accesses by the model.
    jobs = [bert | dict(name="imports"), bert]
    for auto, model_class in HEADS.items():
        tiny_model(model_class, special_token_ids=[0, 1, 2, 3, 4]).save_pretrained(folder / auto)
        inputs = tiny_inputs(auto)
        inputs |= {name: x.tolist() for name, x in labels_of(auto, torch.tensor(inputs["input_ids"])).items()}
        jobs.append(job(auto, auto, inputs))
    shutil.copytree(folder / "AutoModel", folder / "malicious")
    with (folder / "malicious" / "modeling_deberta_ext.py").open("a", encoding="utf-8") as code:
        code.write(MALICE.format(outside=str(folder / "outside")))
    jobs.append(job("malicious", "AutoModel", ids))
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    # Online, so that network access would be detected.
    environment |= {"HF_HOME": str(folder / "hf"), "HF_MODULES_CACHE": str(folder / "modules")}
    command = [sys.executable, "-I", "-B", str(WORKER), str(folder / "jobs.json"), str(folder / "notes.json")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((folder / "notes.json").read_text(encoding="utf-8")), folder


def opened(events: list, writing: bool) -> set[Path]:
    """Return the files that were opened for writing, or only for reading."""
    found = set()
    for event, args, _ in events:
        # A number is a file descriptor.
        if event == "open" and isinstance(args[0], str):
            path, mode, flags = args
            writes = any(letter in "wax+" for letter in mode) if mode else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if bool(writes) == writing:
                found.add(Path(path))
    return found


def outside_of(paths: set[Path], *folders: Path) -> set[str]:
    """Return the paths outside of the folders, where both names of a link count as inside."""
    inside = {place for folder in folders for place in (folder, folder.resolve())}
    return {str(path) for path in paths if not any(path.is_relative_to(place) for place in inside)}


@pytest.mark.parametrize("auto", HEADS)
def test_a_model_from_the_hub_touches_its_folder_and_where_it_is_saved_alone(auto, notes):
    """No connection, process or pickle; only files of Python, of models, and the module cache are accessed."""
    found, folder = notes[0][auto], notes[1]
    assert "error" not in found, found["error"]
    assert found["module"].startswith("transformers_modules.")
    events = found["events"]
    assert {name for name, *_ in events if not name.startswith(FILE_EVENTS) or name in STARTS} == set()
    transformers_reads = opened(notes[0]["bert"]["events"], writing=False)
    cache, saved = folder / "modules", folder / "saved" / auto
    assert outside_of(opened(events, writing=True), cache, saved) == set()
    python = {Path(path) for path in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__))}
    read = opened(events, writing=False) - transformers_reads
    assert outside_of(read, folder / auto, cache, saved, *python) == set()
    assert folder / auto / "config.json" in opened(events, writing=False)
    # All paths that are renamed, removed, linked or created.
    changed = {Path(arg) for name, args, _ in events if name in CHANGES for arg in args if isinstance(arg, str)}
    assert outside_of(changed, cache, saved) == set()


def test_the_watch_sees_what_malicious_code_does(notes):
    found, folder = notes[0]["malicious"], notes[1]
    assert "error" not in found, found["error"]
    seen = {name for name, _, ours in found["events"] if ours}
    assert {"socket.__new__", "subprocess.Popen", "pickle.find_class"} <= seen
    assert folder / "outside" in opened(found["events"], writing=True)
    # Otherwise, the comparison would be meaningless.
    assert any(ours for name, _, ours in notes[0]["AutoModel"]["events"] if name == "open")

# SPDX-License-Identifier: Apache-2.0
"""Loads folders with trust_remote_code, runs and saves their models, and notes all that was touched meanwhile.

    python -I -B security_worker.py jobs.json notes.json

A job is {"name", "auto", "source", "inputs", "again"}: an Auto class, a folder, inputs of the model by name, a folder to
save into. The notes of a job, by name: "module" (of the model's class) or "error", "events" (the audit events below, with
their arguments, and whether code of the folder was under way), "environment" (what code of the folder read or changed
there). hf_deberta_ext cannot be imported here.
"""

import _collections_abc
import json
import os
import sys
import traceback

# Beginnings of names of audit events: files, networks, processes, machine code, pickles, the environment.
EVENTS = (
    "ctypes.dlopen", "ftplib.", "http.", "open", "os.", "pickle.", "pty.", "shutil.", "smtplib.", "socket.", "subprocess.",
    "tempfile.", "urllib.", "webbrowser.", "winreg.",
)  # fmt: skip
# Modules through which code reads the environment.
BETWEEN = ("<frozen os>", "<frozen _collections_abc>", os.__file__, _collections_abc.__file__)


class Watch:
    """Notes from `begin` to `end`.

    Args:
        code (`str`): the folder into which transformers puts the code of a model.
    """

    def __init__(self, code: str):
        self.code, self.watching, self.events, self.environment = code, False, [], []
        sys.addaudithook(self.hook)
        kind = type(os.environ)
        for name in ("__getitem__", "__iter__", "__setitem__", "__delitem__"):
            setattr(kind, name, self.noted(getattr(kind, name)))

    def begin(self):
        self.events, self.environment, self.watching = [], [], True

    def end(self) -> dict:
        self.watching = False
        return {"events": self.events, "environment": self.environment}

    def hook(self, event: str, args: tuple):
        if not (self.watching and event.startswith(EVENTS)):
            return
        frame = sys._getframe(1)
        while frame is not None and not self.is_ours(frame):
            frame = frame.f_back
        shown = [os.fsdecode(arg) if isinstance(arg, (bytes, os.PathLike)) else arg for arg in args]
        shown = [arg if isinstance(arg, (str, int, float, type(None))) else repr(arg) for arg in shown]
        self.events.append([event, shown, frame is not None])

    def is_ours(self, frame) -> bool:
        return frame.f_code.co_filename.startswith(self.code)

    def noted(self, method):
        def call(environ, *args):
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(BETWEEN):
                frame = frame.f_back
            if self.watching and self.is_ours(frame):
                self.environment.append([method.__name__, *(str(arg) for arg in args[:1])])
            return method(environ, *args)

        return call


def run(job: dict) -> str:
    """Loads, runs in both modes, saves; the name of the module that the model's class is in."""
    import torch
    import transformers

    auto_class = getattr(transformers, job["auto"])
    model = auto_class.from_pretrained(job["source"], trust_remote_code=True)
    inputs = {name: torch.tensor(value) for name, value in job["inputs"].items()}
    output = model.train()(**inputs)
    (output.loss if "labels" in inputs or "start_positions" in inputs else output[0].sum()).backward()
    with torch.no_grad():
        model.eval()(**inputs, output_hidden_states=True, output_attentions=True)
        model(**inputs)
    model.save_pretrained(job["again"])
    return type(model).__module__


def main():
    sys.modules["hf_deberta_ext"] = None
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    watch, notes = Watch(os.environ["HF_MODULES_CACHE"]), {}
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    for job in jobs:
        watch.begin()
        try:
            opened = {"module": run(job)}
        except Exception:
            opened = {"error": traceback.format_exc()}
        notes[job["name"]] = opened | watch.end()
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(notes, file)


if __name__ == "__main__":
    main()

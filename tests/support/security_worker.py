# SPDX-License-Identifier: Apache-2.0
"""Load folders with trust_remote_code, run and save their models, and record everything that is accessed meanwhile.

    python -I -B security_worker.py jobs.json notes.json

A job is {"name", "auto", "source", "inputs", "again"}: an Auto class, a folder, model inputs by name, and a folder to save
into. The notes of a job are "module" (of the model's class) or "error", and "events": the audit events below with their
arguments, and whether code from the folder was running. hf_deberta_ext cannot be imported here.
"""

import json
import os
import sys
import traceback

# Prefixes of audit event names: files, networks, processes, machine code, pickles.
EVENTS = (
    "ctypes.dlopen", "ftplib.", "http.", "open", "os.", "pickle.", "pty.", "shutil.", "smtplib.", "socket.", "subprocess.",
    "tempfile.", "urllib.", "webbrowser.", "winreg.",
)  # fmt: skip
# Events of the running job; None between jobs.
events: list | None = None


def note(event: str, args: tuple):
    if events is None or not event.startswith(EVENTS):
        return
    # Folder in which transformers stores a model's code.
    code, frame = os.environ["HF_MODULES_CACHE"], sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(code):
        frame = frame.f_back
    shown = [os.fsdecode(arg) if isinstance(arg, (bytes, os.PathLike)) else arg for arg in args]
    shown = [arg if isinstance(arg, (str, int, float, type(None))) else repr(arg) for arg in shown]
    events.append([event, shown, frame is not None])


def run(job: dict) -> str:
    """Load, run in train and eval mode, and save a model; return the name of its class's module."""
    import torch
    import transformers

    model = getattr(transformers, job["auto"]).from_pretrained(job["source"], trust_remote_code=True)
    inputs = {name: torch.tensor(value) for name, value in job["inputs"].items()}
    output = model.train()(**inputs)
    (output.loss if "labels" in inputs or "start_positions" in inputs else output[0].sum()).backward()
    with torch.no_grad():
        model.eval()(**inputs, output_hidden_states=True, output_attentions=True)
        model(**inputs)
    model.save_pretrained(job["again"])
    return type(model).__module__


def main():
    global events
    sys.modules["hf_deberta_ext"] = None
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    sys.addaudithook(note)
    notes = {}
    for job in jobs:
        events = []
        try:
            opened = {"module": run(job)}
        except Exception:
            opened = {"error": traceback.format_exc()}
        seen, events = events, None
        notes[job["name"]] = opened | {"events": seen}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(notes, file)


if __name__ == "__main__":
    main()

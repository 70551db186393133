# SPDX-License-Identifier: Apache-2.0
"""Jobs for a process that can import neither hf_deberta_ext nor triton: load from folders or the Hub, save, run code.

A job is {"name", "kind", "source", ...}, where the kind is one of `KINDS`. `run_without_package` starts the process and
returns the results by name: the return value of the kind's function, or {"error": class, "message": text, "traceback":
text}.
"""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import torch

BLOCKED = ("hf_deberta_ext", "triton")


def run_without_package(jobs: list[dict], folder: Path, environment: dict[str, str] | None = None) -> dict[str, dict]:
    """Return the results of the jobs in one new process in `folder`, offline unless `environment` says otherwise."""
    folder.mkdir(exist_ok=True)
    task, result = folder / "jobs.json", folder / "results.pt"
    task.write_text(json.dumps({"threads": torch.get_num_threads(), "jobs": jobs}), encoding="utf-8")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HF_"))}
    variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "HF_MODULES_CACHE": str(folder / "modules")}
    # -I: ignore PYTHONPATH, and search neither the working folder nor the script's folder.
    done = subprocess.run(
        [sys.executable, "-I", __file__, str(task), str(result)], cwd=folder, env=variables | (environment or {}),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    loaded = torch.load(result, weights_only=False)
    assert loaded["imported"] == []
    return loaded["results"]


def answers(model, inputs: dict) -> dict[str, torch.Tensor]:
    """Return every output of the model in eval mode by name, including hidden states and attentions."""
    with torch.no_grad():
        outputs = model.eval()(**inputs, output_hidden_states=True, output_attentions=True)
    flat = {}
    for name, value in outputs.items():
        tensors = {name: value} if torch.is_tensor(value) else {f"{name}.{i}": part for i, part in enumerate(value)}
        flat |= {part: tensor.clone() for part, tensor in tensors.items()}
    return flat


def state(model) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer: tied ones under each of their names, and also those that are not saved."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in tensors}


def run_model(job: dict) -> dict:
    """Load a model; save it to job["again"], if this is given."""
    import transformers

    auto_class = getattr(transformers, job["auto"])
    options = dict(trust_remote_code=True, output_loading_info=True, **job.get("kwargs", {}))
    model, info = auto_class.from_pretrained(job["source"], **options)
    inputs = {name: torch.tensor(value) for name, value in job["inputs"].items()}
    result = {"class": type(model).__name__, "module": type(model).__module__, "state": state(model)}
    result |= {"answers": answers(model, inputs), "missing": sorted(info["missing_keys"])}
    if "again" in job:
        model.save_pretrained(job["again"], **job.get("save", {}))
    return result


def run_config(job: dict) -> dict:
    """Load a configuration; save it to job["again"], or otherwise build a model from it."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(job["source"], trust_remote_code=True, **job.get("kwargs", {}))
    result = {"class": type(config).__name__, "module": type(config).__module__, "config": config.to_dict()}
    if "again" in job:
        config.save_pretrained(job["again"])
    else:
        model = transformers.AutoModelForMaskedLM.from_config(config, trust_remote_code=True)
        result |= {"class": type(model).__name__, "state": state(model)}
    return result


def run_refused(job: dict) -> dict:
    """Load without trust_remote_code=True; return the error."""
    import transformers

    try:
        model = getattr(transformers, job["auto"]).from_pretrained(job["source"], **job["kwargs"])
    except Exception as error:
        return {"raised": type(error).__name__, "message": str(error)}
    return {"raised": None, "message": f"loaded as {type(model)}"}


def run_code(job: dict) -> dict:
    """Run code, for example of a card, in job["source"]; return what it prints and the variables job["show"]."""
    variables: dict = {}
    printed = io.StringIO()
    os.chdir(job.get("source", "."))
    with contextlib.redirect_stdout(printed):
        exec(compile(job["code"], job["name"], "exec"), variables)
    return {"printed": printed.getvalue()} | {name: str(variables[name]) for name in job.get("show", ())}


def run_function(job: dict) -> dict:
    """Call the function job["function"] of a Python file with a folder."""
    return runpy.run_path(job["file"])[job["function"]](Path(job["source"]))


KINDS = {"model": run_model, "config": run_config, "refused": run_refused, "code": run_code, "function": run_function}


def main(task: str, result: str):
    # None in sys.modules: the import fails, and find_spec reports that the package does not exist.
    sys.modules.update(dict.fromkeys(BLOCKED))
    work = json.loads(Path(task).read_text(encoding="utf-8"))
    torch.set_num_threads(work["threads"])
    results = {}
    for job in work["jobs"]:
        try:
            results[job["name"]] = KINDS[job["kind"]](job)
        except Exception as error:
            message = dict(error=type(error).__name__, message=str(error), traceback=traceback.format_exc())
            results[job["name"]] = message
    imported = [name for name in sys.modules if name.split(".")[0] in BLOCKED and sys.modules[name] is not None]
    torch.save({"results": results, "imported": imported}, result)


if __name__ == "__main__":
    main(*sys.argv[1:])

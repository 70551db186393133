# SPDX-License-Identifier: Apache-2.0
"""Loads saved folders through the Auto classes where neither hf_deberta_ext nor triton can be imported.

    python -I remote_code_worker.py jobs.json results.pt

A job is {"name", "kind", "source", ...}; the results hold what came of each one, or {"error": traceback}.
"""

import json
import sys
import traceback

import torch

BLOCKED = ("hf_deberta_ext", "triton")


def answers(model, inputs: dict) -> dict[str, torch.Tensor]:
    """Every output of the model in eval mode, hidden states and attentions included, one tensor a name."""
    with torch.no_grad():
        outputs = model.eval()(**inputs, output_hidden_states=True, output_attentions=True)
    flat = {}
    for name, value in outputs.items():
        parts = {name: value} if torch.is_tensor(value) else {f"{name}.{i}": part for i, part in enumerate(value)}
        flat |= {part: tensor.clone() for part, tensor in parts.items()}
    return flat


def state(model) -> dict[str, torch.Tensor]:
    """Every parameter and buffer: tied ones under each of their names, those that are not saved as well."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in tensors}


def run_model(job: dict) -> dict:
    """Loads a model, saves it to job["again"] if that is given."""
    import transformers

    auto_class = getattr(transformers, job["auto"])
    model, info = auto_class.from_pretrained(
        job["source"], trust_remote_code=True, output_loading_info=True, **job.get("kwargs", {})
    )
    inputs = {name: torch.tensor(value) for name, value in job["inputs"].items()}
    result = {"class": type(model).__name__, "module": type(model).__module__, "state": state(model)}
    result |= {"answers": answers(model, inputs), "missing": sorted(info["missing_keys"])}
    if "again" in job:
        model.save_pretrained(job["again"], **job.get("save", {}))
    return result


def run_config(job: dict) -> dict:
    """Loads a configuration, saves it to job["again"] if that is given, or else builds a model from it."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(job["source"], trust_remote_code=True)
    result = {"module": type(config).__module__, "config": config.to_dict()}
    if "again" in job:
        config.save_pretrained(job["again"])
    else:
        model = transformers.AutoModelForMaskedLM.from_config(config, trust_remote_code=True)
        result |= {"class": type(model).__name__, "state": state(model)}
    return result


def run_pipeline(job: dict) -> dict:
    from transformers import pipeline

    pipe = pipeline(job["task"], model=job["source"], trust_remote_code=True)
    return {"module": type(pipe.model).__module__, "answers": pipe(job["text"])}


def run_refused(job: dict) -> dict:
    """Loads without trust_remote_code=True; what is raised is the result."""
    import transformers

    try:
        model = getattr(transformers, job["auto"]).from_pretrained(job["source"], **job["kwargs"])
    except Exception as error:
        return {"raised": type(error).__name__, "message": str(error)}
    return {"raised": None, "message": f"loaded as {type(model)}"}


def main():
    # None in sys.modules: importing it fails, and find_spec says that there is no such package.
    sys.modules.update(dict.fromkeys(BLOCKED))
    with open(sys.argv[1], encoding="utf-8") as file:
        work = json.load(file)
    torch.set_num_threads(work["threads"])
    kinds = {"model": run_model, "config": run_config, "pipeline": run_pipeline, "refused": run_refused}
    results = {}
    for job in work["jobs"]:
        try:
            results[job["name"]] = kinds[job["kind"]](job)
        except Exception:
            results[job["name"]] = {"error": traceback.format_exc()}
    imported = [name for name in sys.modules if name.split(".")[0] in BLOCKED and sys.modules[name] is not None]
    torch.save({"results": results, "imported": imported}, sys.argv[2])


if __name__ == "__main__":
    main()

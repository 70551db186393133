# SPDX-License-Identifier: Apache-2.0
"""Reads from the Hub, and pushes to it, where neither hf_deberta_ext nor triton can be imported.

    HF_ENDPOINT=... python -I hub_worker.py jobs.json results.pt

A job is {"name", "kind", "repo", ...}; the results hold what came of each one, or {"error": class, "message": text}.
"""

import json
import sys

import torch

BLOCKED = ("hf_deberta_ext", "triton")


def run_model(job: dict) -> dict:
    """Loads a model and answers job["inputs"]; pushes it to job["push"] if that is given."""
    import transformers

    auto_class = getattr(transformers, job["auto"])
    model, info = auto_class.from_pretrained(
        job["repo"], trust_remote_code=True, output_loading_info=True, **job.get("kwargs", {})
    )
    with torch.no_grad():
        outputs = model.eval()(**{name: torch.tensor(value) for name, value in job["inputs"].items()})
    answers = {name: value.clone() for name, value in outputs.items() if torch.is_tensor(value)}
    if "push" in job:
        model.push_to_hub(job["push"])
    return {"class": type(model).__name__, "answers": answers, "missing": sorted(info["missing_keys"])}


def run_tokenizer(job: dict) -> dict:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job["repo"], trust_remote_code=True, **job.get("kwargs", {}))
    return {"ids": tokenizer(job["text"])["input_ids"]}


def run_config(job: dict) -> dict:
    """Loads a configuration; pushes it to job["push"] if that is given."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(job["repo"], trust_remote_code=True, **job.get("kwargs", {}))
    if "push" in job:
        config.push_to_hub(job["push"])
    return {"class": type(config).__name__, "auto_map": config.auto_map, "hidden_size": config.hidden_size}


def run_card(job: dict) -> dict:
    from huggingface_hub import ModelCard

    card = ModelCard.load(job["repo"])
    return {"text": card.text, "data": card.data.to_dict()}


def run_code(job: dict) -> dict:
    """Runs Python, that of a card say; its variables by name are the answer."""
    variables: dict = {}
    exec(job["code"], variables)
    return {name: str(variables[name]) for name in job["show"]}


def main():
    # None in sys.modules: importing it fails, and find_spec says that there is no such package.
    sys.modules.update(dict.fromkeys(BLOCKED))
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    torch.set_num_threads(1)
    kinds = {"model": run_model, "tokenizer": run_tokenizer, "config": run_config, "card": run_card, "code": run_code}
    results = {}
    for job in jobs:
        try:
            results[job["name"]] = kinds[job["kind"]](job)
        except Exception as error:
            results[job["name"]] = {"error": type(error).__name__, "message": str(error)}
    imported = [name for name in sys.modules if name.split(".")[0] in BLOCKED and sys.modules[name] is not None]
    torch.save({"results": results, "imported": imported}, sys.argv[2])


if __name__ == "__main__":
    main()

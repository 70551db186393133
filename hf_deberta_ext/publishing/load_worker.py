# SPDX-License-Identifier: Apache-2.0
"""Loads folders as somebody does who has downloaded them: run by its path, in a process without hf_deberta_ext and triton.

    python -I load_worker.py jobs.json problems.json

The jobs are {"paths": where torch and transformers are, "folders": [...]}; the problems are a list for each folder.
"""

import copy
import json
import os
import sys

__all__ = ["main"]

BLOCKED = ("hf_deberta_ext", "triton")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "spm.model", "vocab.txt", "vocab.json")


def load(folder: str) -> list[str]:
    """Problems of loading the model in a folder."""
    from transformers import AutoConfig, AutoTokenizer

    problems: list[str] = []
    config = attempt("AutoConfig", problems, lambda: AutoConfig.from_pretrained(folder, trust_remote_code=True))
    if any(os.path.isfile(os.path.join(folder, name)) for name in TOKENIZER_FILES):
        attempt("AutoTokenizer", problems, lambda: AutoTokenizer.from_pretrained(folder, trust_remote_code=True)("a b"))
    if config is None:
        return problems
    auto_map = getattr(config, "auto_map", None) or {}
    architecture = next(iter(config.architectures or []), None)
    autos = {name: reference.split(".")[-1] for name, reference in auto_map.items() if name.startswith("AutoModel")}
    auto = next((name for name, class_name in autos.items() if class_name == architecture), None)
    if os.path.isfile(os.path.join(folder, "adapter_config.json")):
        # Its weights need those of another model.
        auto = None
    else:
        attempt(auto or architecture or "AutoModel", problems, lambda: run(folder, auto, architecture, auto_map, problems))
    for name in autos:
        if name != auto:
            attempt(name, problems, lambda name=name: build(name, config))
    return problems


def attempt(name: str, problems: list[str], action):
    try:
        return action()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        problems.append(f"{name}: {type(error).__name__}: {' '.join(lines)[:500]}")
        return None


def run(folder: str, auto: str | None, architecture: str | None, auto_map: dict, problems: list[str]):
    """The class of the weights, with its weights, on two tokens."""
    import torch
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    if auto is not None:
        model_class = getattr(transformers, auto)
    elif auto_map and architecture is not None:
        # A class without an Auto class of its own, which is in the same file as the others.
        module = auto_map.get("AutoModel", next(iter(auto_map.values()))).split(".")[0]
        model_class = get_class_from_dynamic_module(f"{module}.{architecture}", folder)
    else:
        model_class = getattr(transformers, architecture or "AutoModel", transformers.AutoModel)
    options = {} if auto is None and auto_map else {"trust_remote_code": True}
    # float32: not every operation has a half on a CPU.
    model, info = model_class.from_pretrained(folder, output_loading_info=True, dtype=torch.float32, **options)
    name = auto or architecture or "AutoModel"
    for kind, complaint in (("missing_keys", "not in the file"), ("mismatched_keys", "of another shape")):
        keys = sorted(str(key if isinstance(key, str) else key[0]) for key in info.get(kind) or ())
        if keys:
            problems.append(f"{name}: {len(keys)} weights are {complaint}: {', '.join(keys[:5])}")
    token_ids = torch.tensor([[1, 2]])
    if "MultipleChoice" in type(model).__name__:
        token_ids = token_ids[:, None].expand(1, 2, 2)
    with torch.no_grad():
        outputs = model.eval()(input_ids=token_ids, attention_mask=torch.ones_like(token_ids))
    for key, value in outputs.items():
        if torch.is_tensor(value) and not torch.isfinite(value).all():
            problems.append(f"{name}: {key} of two tokens is not finite")


def build(auto: str, config):
    """The class without weights and without memory."""
    import torch
    import transformers

    with torch.device("meta"):
        getattr(transformers, auto).from_config(copy.deepcopy(config), trust_remote_code=True)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    # Behind the interpreter's own: what is not on its path there, as with PYTHONPATH, is found here.
    sys.path.extend(path for path in jobs["paths"] if path not in sys.path)
    # None in sys.modules: importing it fails, and find_spec says that there is no such package.
    sys.modules.update(dict.fromkeys(BLOCKED))
    problems = [load(folder) for folder in jobs["folders"]]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(problems, file)


if __name__ == "__main__":
    main()

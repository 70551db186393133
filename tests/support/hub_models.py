# SPDX-License-Identifier: Apache-2.0
"""Models and runs on the tests' local Hub: uploads, trainers that push, and loading in a process without the package."""

import json

import torch
from huggingface_hub import HfApi, constants
from tiny_models import FILES, HEADS, TINY, save_tokenizer, tiny_inputs, tiny_model
from transformers import AutoTokenizer, TrainingArguments
from without_package import run_without_package

from hf_deberta_ext import DebertaExtForMaskedLM

TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}


def make_tokenizer(folder):
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def read_back(hub, folder, jobs):
    """Return the results of the jobs in a process that does not have the package and only knows this Hub."""
    return run_without_package(jobs, folder, hub.environment(folder / "home"))


def assert_code_in(files):
    """Check that a model on the Hub has all code files and an auto_map to them."""
    assert {name: data for name, data in files.items() if name.endswith(".py") and "/" not in name} == FILES
    assert json.loads(files["config.json"])["auto_map"].keys() == {"AutoConfig", *HEADS}


def job(name, repo="user/mlm", auto="AutoModelForMaskedLM", **more):
    kwargs = {key: more.pop(key) for key in ("revision", "token") if key in more}
    return dict(name=name, kind="model", source=repo, auto=auto, inputs=tiny_inputs(auto), kwargs=kwargs) | more


OLD = {
    "model.safetensors": b"1", "model.fp16.safetensors": b"2", "pytorch_model.bin": b"3", "onnx/model.onnx": b"4",
    "model-00001-of-00002.safetensors": b"5", "model-00002-of-00002.safetensors": b"6", "notes.txt": b"10",
    "pytorch_model-00001-of-00001.bin": b"7", "pytorch_model.bin.index.json": b"{}", "adapter_config.json": b"{}",
    "adapter_model.safetensors": b"8", "pytorch_model.generator.bin": b"9", "model.safetensors.index.json": b"{}",
}  # fmt: skip


def rows(count=8):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, TINY["vocab_size"], (count, 9), generator=generator).tolist()
    return [{"input_ids": row, "labels": row} for row in ids]


def make_trainer(kind, folder, **more):
    flags = dict(
        output_dir=str(folder), push_to_hub=True, hub_model_id="user/run", hub_always_push=True, save_steps=1, max_steps=2,
        report_to="none", use_cpu=True, disable_tqdm=True, per_device_train_batch_size=2, logging_steps=1,
    )  # fmt: skip
    args = TrainingArguments(**flags | more)
    model = tiny_model(DebertaExtForMaskedLM)
    return kind(model, args, train_dataset=rows(), processing_class=make_tokenizer(folder / "../words"))


def upload(folder, repo="user/name"):
    api = HfApi(endpoint=constants.ENDPOINT, token="hf_write")
    api.create_repo(repo)
    api.upload_folder(repo_id=repo, folder_path=folder)

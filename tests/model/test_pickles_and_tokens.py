# SPDX-License-Identifier: Apache-2.0
"""No way of loading runs pickled code; access tokens are in no file of a run, and are never printed, logged or raised."""

import contextlib
import io
import json
import logging
import os
import shutil
from pathlib import Path

import glue_script as glue
import mlm_script as mlm
import pytest
import torch
import transformers
from hub_models import make_trainer
from local_hub import LocalHub
from microsoft_checkpoints import microsoft, write
from safetensors.torch import load_file
from small_pretraining import build, train
from tiny_models import tiny_model
from transformers.utils import logging as transformers_logging

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining, DebertaExtForSequenceClassification, commands
from hf_deberta_ext.finetuning.arguments import ModelArguments as TaskModelArguments
from hf_deberta_ext.finetuning.models import load_model
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM
from hf_deberta_ext.training.checkpoints import write_manifest
from hf_deberta_ext.training.hub_trainer import HubTrainer
from hf_deberta_ext.training.run_folder import resume_checkpoint

material, text = glue.material, mlm.text


class Runs:
    """Pickle that creates a folder when it is loaded."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def poison(file: Path, marker: Path):
    """Put `Runs` into a file of torch, or create a file with it."""
    content = torch.load(file, weights_only=False) if file.is_file() else {}
    if isinstance(content, dict):
        content = content | {"deberta.spy": Runs(marker)}
    torch.save(content, file)


def as_bin(model, folder: Path) -> Path:
    """Save a model with its weights as pytorch_model.bin, and return the path of that file."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def ours(folder, marker):
    poison(as_bin(tiny_model(DebertaExtForMaskedLM), folder), marker)
    return folder


def bert(folder, marker):
    sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    poison(as_bin(transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)), folder), marker)
    return folder


def in_shards(folder, marker):
    # Under another name, it is only a shard.
    file = as_bin(tiny_model(DebertaExtForMaskedLM), folder).rename(folder / "pytorch_model-00001-of-00001.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(torch.load(file), file.name)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    poison(file, marker)
    return folder


def official(folder, marker, kind="v3"):
    folder.mkdir()
    poison(write(folder, kind, microsoft(kind)) / "pytorch_model.bin", marker)
    return folder


def official_with_generator(folder, marker):
    folder.mkdir()
    write(folder, "v3", microsoft("v3"))
    torch.save(microsoft("v3"), folder / "pytorch_model.generator.bin")
    poison(folder / "pytorch_model.generator.bin", marker)
    return folder


def adapter(folder, marker):
    import peft

    tiny_model(DebertaExtForSequenceClassification).save_pretrained(folder / "base")
    base = DebertaExtForSequenceClassification.from_pretrained(folder / "base")
    peft.get_peft_model(base, peft.LoraConfig(target_modules=["query_proj"])).save_pretrained(folder / "adapter")
    (folder / "adapter" / "adapter_model.safetensors").unlink()
    poison(folder / "adapter" / "adapter_model.bin", marker)
    return folder / "adapter"


def command(*argv):
    """Run a command of deberta-ext; raise an error with its output if the exit status is not 0."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        status = commands.main([*map(str, argv)])
    if status:
        raise ValueError(printed.getvalue())


# name -> (what makes the folder, what loads it).
WAYS = {
    "AutoModel": (ours, transformers.AutoModel.from_pretrained),
    "half precision": (
        ours,
        lambda folder: transformers.AutoModel.from_pretrained(folder, dtype=torch.float16, device_map="cpu"),
    ),
    "shards": (in_shards, transformers.AutoModelForMaskedLM.from_pretrained),
    "official v1": (lambda *place: official(*place, kind="v1"), DebertaExtForMaskedLM.from_pretrained),
    "official generator": (official_with_generator, DebertaExtForPreTraining.from_checkpoints),
    "joined discriminator": (ours, DebertaExtForPreTraining.from_checkpoints),
    "a pre-training's model": (ours, lambda folder: MultiObjectiveMaskedLM.from_pretrained(folder, objectives=["mlm"])),
    "adapter": (adapter, lambda folder: load_for_task(folder, folder.parent / "base")),
    "convert": (official, lambda folder: command("convert", folder, folder.parent / "out", "--tokenizer", "none")),
    "info": (ours, lambda folder: command("info", folder)),
    "explain": (ours, lambda folder: command("explain", "--model", folder, "--output_dir", folder.parent / "figures")),
    "another model in a task": (bert, lambda folder: load_for_task(folder, folder)),
}


def load_for_task(folder: Path, base: Path):
    """Load a model as the fine-tuning scripts do. An adapter's model has the configuration of its base."""
    config, model_args = transformers.AutoConfig.from_pretrained(base), TaskModelArguments(model_name_or_path=str(folder))
    return load_model(model_args, config, transformers.AutoModelForSequenceClassification)


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_loading_runs_pickled_code(way, tmp_path):
    make, load = WAYS[way]
    folder = make(tmp_path / "model", tmp_path / "ran")
    with pytest.raises(ValueError, match=r"pickled objects other than tensors|Weights only load failed"):
        load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """Create a run with a checkpoint at step 2 of 4."""
    folder = tmp_path_factory.mktemp("stopped")
    train(folder / "whole", max_steps=4)
    shutil.copytree(folder / "whole" / "checkpoint-2", folder / "run" / "checkpoint-2")
    return folder / "run"


# Files of a run that Trainer resumes with train(True), and of a finished run, from which only the model is loaded.
NAMES = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin", "training_args.bin"]


@pytest.mark.parametrize("case", [*NAMES, "train(True)", "finished"])
def test_a_checkpoint_with_pickled_code_is_not_resumed_from(case, stopped_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped_run.parent / "whole" if case == "finished" else stopped_run, folder)
    checkpoint = folder / ("checkpoint-4" if case == "finished" else "checkpoint-2")
    name = {"train(True)": "optimizer.pt", "finished": "pytorch_model.bin"}.get(case, case)
    if name == "pytorch_model.bin":
        torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / name)
        (checkpoint / "model.safetensors").unlink()
    poison(checkpoint / name, tmp_path / "ran")
    # An attacker who changes a file can also update the manifest.
    write_manifest(checkpoint)
    refused = pytest.raises(Exception, match=r"Weights only load failed|pickled objects")
    if case == "train(True)":
        with refused:
            build(folder, max_steps=4).train(True)
    elif case == "training_args.bin":
        # Nothing reads it.
        train(folder, resume_checkpoint(folder, "last"), max_steps=4)
    else:
        with refused:
            train(folder, checkpoint, max_steps=4)
    assert not (tmp_path / "ran").exists()


SECRET = "hf" + "_" + "sEcReT" * 6


@pytest.fixture
def everything_said(caplog, capfd):
    """Return a function that returns everything printed and logged, including all messages of this package."""
    transformers_logging.enable_propagation()
    with caplog.at_level(logging.INFO), caplog.at_level(logging.DEBUG, "hf_deberta_ext"):
        yield lambda: "".join([*capfd.readouterr(), caplog.text])
    transformers_logging.disable_propagation()


@pytest.mark.parametrize("script", ["run_glue", "run_mlm"])
def test_a_run_keeps_its_tokens_to_itself(script, run_glue, run_mlm, material, text, tmp_path, monkeypatch, everything_said):
    """Regression test: training_args.bin in every checkpoint contained --hub_token."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    given = dict(token=SECRET, hub_token=SECRET, max_steps=2, save_steps=1)
    if script == "run_glue":
        run_glue.main(glue.arguments(material, tmp_path / "run", "--do_train", "--do_eval", **given))
    else:
        run_mlm.main(mlm.arguments(text, tmp_path / "run", **given))
    assert {"README.md", "run_arguments.json", "checkpoint-2", "training_args.bin"} <= {*os.listdir(tmp_path / "run")}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file.name for file in files if SECRET.encode() in file.read_bytes()] == []
    said = everything_said()
    assert "eval_loss" in said and SECRET not in said


@pytest.mark.parametrize("what", ["model", "data"])
def test_what_cannot_be_downloaded_is_told_without_the_token(
    what, run_glue, material, tmp_path, monkeypatch, everything_said
):
    argv = ["--output_dir", tmp_path / "run", "--do_train", "--token", SECRET, "--report_to", "none"]
    if what == "model":
        argv += ["--model_name_or_path", "someone/nothing", "--train_file", material / "train.tsv"]
    else:
        argv += ["--model_name_or_path", material / "model", "--dataset_name", "someone/nothing"]
    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home", token=SECRET)
        with pytest.raises(SystemExit):
            run_glue.main([*map(str, argv)])
    said = everything_said()
    assert "someone/nothing" in said and SECRET not in said
    # The token was sent, and refused; `datasets` asks another server.
    assert what == "data" or "401 Unauthorized" in said


@pytest.mark.parametrize("way", ["command", "model", "trainer"])
def test_a_push_that_is_refused_does_not_say_the_token(way, tmp_path, monkeypatch, everything_said):
    model = tiny_model(DebertaExtForMaskedLM)
    model.save_pretrained(tmp_path / "model")
    ways = {
        "command": lambda: command("push", tmp_path / "model", "user/name", "--token", SECRET, "--skip_checks", "--debug"),
        "model": lambda: model.push_to_hub("user/name", token=SECRET),
        "trainer": lambda: make_trainer(HubTrainer, tmp_path / "run", hub_model_id="user/name", hub_token=SECRET),
    }
    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home", token=SECRET)
        with pytest.raises((ValueError, OSError), match=r"401|token") as error:
            ways[way]()
        assert hub.requests
    assert SECRET not in str(error.value) + everything_said()

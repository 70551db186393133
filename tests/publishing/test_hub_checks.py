# SPDX-License-Identifier: Apache-2.0
"""What is looked at before a folder is published: each problem is found, named with its place, and has a way out."""

import json
import os
import pickle
import re
import shutil
import subprocess
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_tokenizer
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

from hf_deberta_ext import DebertaExtConfig, DebertaExtForPreTraining, DebertaExtForSequenceClassification
from hf_deberta_ext.commands import main as deberta_ext
from hf_deberta_ext.publishing import check_folder
from hf_deberta_ext.publishing import folder_checks as checks
from hf_deberta_ext.publishing.card import write_model_card
from hf_deberta_ext.publishing.folder_checks import (
    code_problems,
    load_problems,
    readme_problems,
    size_problems,
    token_problems,
)
from hf_deberta_ext.publishing.load_worker import load
from hf_deberta_ext.publishing.published_files import published_files

TINY = dict(
    vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16, position_buckets=8,
)  # fmt: skip
# From parts, so that this file has none of them.
HOME = "/" + "home"
TOKEN = "hf" + "_" + "qXbRtYvLwKmZpNcJdHfGsAeUiOxTyBnMkQ"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as save_pretrained and `deberta-ext card` leave it."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    DebertaExtForSequenceClassification(DebertaExtConfig(**TINY)).save_pretrained(folder)
    tiny_tokenizer("ab").save_pretrained(folder)
    write_model_card(folder, language="en", license="mit")
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "model"))


def files_of(folder):
    return published_files(folder)[0]


@pytest.mark.parametrize("name", ["notes.txt", "training_args.bin", "spm.model", "model.safetensors", "README.md"])
@pytest.mark.parametrize("text", [TOKEN, "my.own.word", "the-saved-one"])
def test_tokens_of_the_hub_are_found_in_every_file_and_not_shown(text, name, tmp_path, monkeypatch):
    """A pickle of Trainer's arguments knows the token of its run."""
    monkeypatch.setattr(checks, "get_token", lambda: "the-saved-one")
    file, other = tmp_path / name, tmp_path / "other"
    file.write_bytes(pickle.dumps({"token": text, "numbers": bytes(200)}))
    other.write_text("hf_config and my-own-word")
    (problem,) = token_problems({name: file, "other": other}, "my.own.word", None)
    assert problem.startswith(f"{name} holds a token of the Hub") and text not in problem
    file.write_bytes(b"")
    assert token_problems({name: file}) == []


def test_a_saved_folder_has_no_problems(folder):
    assert code_problems(folder, files_of(folder)) == []
    assert readme_problems(folder, files_of(folder)) == []
    assert size_problems(files_of(folder)) == []
    assert token_problems(files_of(folder)) == []


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] |= changes.pop("auto_map", {})
    (folder / "config.json").write_text(json.dumps(config | changes))


def add_line(folder, line, name="losses.py"):
    with open(folder / name, "a") as file:
        file.write(f"\n{line}\n")


def only(folder):
    """The code problems, but for that of an edited file."""
    return [problem for problem in code_problems(folder, files_of(folder)) if "older or edited" not in problem]


def test_a_folder_without_a_model_is_refused_and_one_of_another_architecture_needs_no_code(tmp_path):
    (tmp_path / "report.md").write_text("a run")
    (problem,) = code_problems(tmp_path, files_of(tmp_path))
    assert problem.startswith("config.json is not in") and "save the model again" in problem
    DebertaV2ForSequenceClassification(DebertaV2Config(**TINY)).save_pretrained(tmp_path)
    assert code_problems(tmp_path, files_of(tmp_path)) == []


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_a_damaged_configuration_is_named(text, folder):
    (folder / "config.json").write_text(text)
    (problem,) = code_problems(folder, files_of(folder))
    assert problem.startswith("config.json is no JSON object")


def test_missing_weights_and_classes_of_the_auto_map_are_named(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]["AutoModel"], config["auto_map"]["AutoModelForMaskedLM"]
    (folder / "config.json").write_text(json.dumps(config))
    (problem,) = only(folder)
    assert problem.startswith("config.json: auto_map lacks AutoModel, AutoModelForMaskedLM: save")
    (folder / "model.safetensors").unlink()
    assert (
        "model.safetensors is not there, nor other weights: save the model again with model.save_pretrained(folder)"
        in only(folder)
    )


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("ann/model--modeling_deberta_ext.DebertaExtModel", "which is in another repository"),
        ("model.modeling_deberta_ext.DebertaExtModel", 'which is not "module.Class"'),
        (["modeling_deberta_ext.DebertaExtModel", None], 'which is not "module.Class"'),
        ("modeling_other.DebertaExtModel", "but modeling_other.py is not published with it"),
        ("modeling_deberta_ext.DebertaModel", "but modeling_deberta_ext.py has no class DebertaModel"),
    ],
)
def test_an_entry_of_the_auto_map_that_leads_nowhere_is_named(reference, reason, folder):
    edit_config(folder, auto_map={"AutoModel": reference})
    (problem,) = only(folder)
    assert problem.startswith(f"config.json: auto_map has AutoModel = {reference!r}, {reason}")


def test_a_class_is_looked_for_in_the_file_that_it_is_taken_from(folder):
    """As modeling_deberta_ext.py takes its model from base_model.py."""
    (folder / "base_model.py").write_text(f"{checks.CODE_MARK}\nfrom .modeling_deberta_ext import DebertaExtModel\n")
    assert "but modeling_deberta_ext.py has no class DebertaExtModel" in "".join(only(folder))


def test_a_missing_file_is_named_by_those_that_import_it(folder):
    (folder / "relative_position.py").unlink()
    problems = code_problems(folder, files_of(folder))
    assert problems and all(
        "imports .relative_position, but relative_position.py is not published with it" in p for p in problems
    )
    importer = re.match(r"(\w+\.py):(\d+) ", problems[0])
    assert "relative_position" in (folder / importer[1]).read_text().splitlines()[int(importer[2]) - 1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("from . import attention", "`from . import ...`, which the Hub's loader does not follow"),
        ("from .kernels.fast import x", "`from .kernels.fast import ...`, which the Hub's loader does not follow"),
        ("from ..model import x", "`from ..model import ...`, which the Hub's loader does not follow"),
        ("try:\n    from .fast import x\nexcept ImportError:\n    x = None", "imports .fast, but fast.py is not published"),
        ("import scipy", "imports scipy, which not everybody has"),
        ("def f():\n    import triton.language", "imports triton, which not everybody has"),
        ("if True:\n    import hf_deberta_ext", "imports hf_deberta_ext, which not everybody has"),
        ("def f(:", "is no Python"),
        ("try:\n    import triton\nexcept ImportError:\n    triton = None", None),
        ("import json, torch.nn", None),
        ("import numpy as np", None),
        ("from .losses import x", None),
    ],
)
def test_an_import_that_fails_elsewhere_is_named_with_its_line(line, problem, folder):
    count = len((folder / "losses.py").read_text().splitlines())
    add_line(folder, line)
    problems = only(folder)
    if problem is None:
        assert problems == []
        return
    (message,) = [each for each in problems if problem in each]
    assert int(re.match(r"losses\.py:(\d+) ", message)[1]) in (count + 2, count + 3)


def test_code_that_is_not_that_of_the_package_is_named(folder):
    add_line(folder, "# by hand")
    (folder / "attention_old.py").write_text(f"{checks.CODE_MARK}\n")
    (problem,) = code_problems(folder, files_of(folder))
    assert problem.startswith("attention_old.py, losses.py: not the code of hf_deberta_ext ") and "--skip_checks" in problem


def test_the_parts_of_a_joint_model_are_looked_at_too(tmp_path):
    model = DebertaExtForPreTraining(DebertaExtConfig(**TINY))
    model.save_pretrained(tmp_path)
    model.export_discriminator().save_pretrained(tmp_path / "discriminator")
    assert code_problems(tmp_path, files_of(tmp_path)) == []
    (tmp_path / "discriminator" / "losses.py").unlink()
    edit_config(tmp_path / "discriminator", auto_map={"AutoModel": "x.Y"})
    problems = code_problems(tmp_path, files_of(tmp_path))
    assert problems and all(problem.startswith("discriminator/") for problem in problems)


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("microsoft/deberta-v3-base", None),
        (f"{HOME}/ann/deberta", "is a folder of this machine"),
        ("./deberta", "is a folder of this machine"),
        ("runs/base/last", "is a folder of this machine"),
        ("there/base", "'there/base' is a folder of this machine"),
        ("C:" + r"\models\deberta", "is a folder of this machine"),
        ("", "names no base model"),
        (None, "names no base model"),
    ],
)
def test_an_adapter_names_a_base_model_that_everybody_has(base, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there" / "base").mkdir(parents=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    found = code_problems(tmp_path, files_of(tmp_path))
    assert [problem in each and "base_model_name_or_path" in each for each in found] == ([True] if problem else [])


def test_a_file_above_the_hubs_limit_is_named(folder, monkeypatch):
    monkeypatch.setattr(checks, "FILE_LIMIT", (folder / "model.safetensors").stat().st_size - 1)
    monkeypatch.setattr(checks, "CARD_LIMIT", 10)
    card, weights = size_problems({name: folder / name for name in ("README.md", "config.json", "model.safetensors")})
    assert card.startswith("README.md has 0.0 MB") and weights.startswith("model.safetensors has 0.0 GB")
    assert "max_shard_size" in weights


def test_a_card_that_is_missing_unreadable_or_an_empty_template_is_named_with_the_command_that_writes_it(folder):
    with open(folder / "README.md", "a") as file:
        file.write("\n[More Information Needed]" * 20)
    problems = readme_problems(folder, files_of(folder))
    assert len(problems) == 6
    assert problems[-1] == f"README.md: 15 more; `deberta-ext card {folder} --overwrite` writes it anew"
    (folder / "README.md").write_bytes(b"---\nlanguage: en\n---\n\xff")
    (problem,) = readme_problems(folder, files_of(folder))
    assert problem.startswith("README.md is not UTF-8")
    (folder / "README.md").unlink()
    (problem,) = readme_problems(folder, files_of(folder))
    assert problem == f"README.md, the model card, is not there: write it with `deberta-ext card {folder}`"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("![a](figures/loss.bmp)", "shows figures/loss.bmp, which is not published: --include figures/loss.bmp"),
        ("[More Information Needed]", "More Information Needed"),
        ("## Empty\n\n## Full\n\ntext", "the heading 'Empty' has no text"),
        ("![curves](lost.png)", "shows lost.png, which is not in the folder"),
        ("![a](loss.png) ![b](./loss.png) ![c](https://example.org/x.png)\n<img src='figures/loss.jpg'>", None),
    ],
)
def test_a_card_that_is_not_finished_is_named(text, problem, folder):
    (folder / "figures").mkdir()
    for name in ("loss.png", "figures/loss.jpg", "figures/loss.bmp"):
        (folder / name).write_bytes(b"\0")
    with open(folder / "README.md", "a") as file:
        file.write(f"\n{text}\n")
    found = readme_problems(folder, files_of(folder))
    assert [each.startswith("README.md: line ") and problem in each for each in found] == ([True] if problem else [])


@pytest.fixture(scope="module")
def loaded(saved, tmp_path_factory):
    """What one clean process says of three models: one that is whole, one that lacks a tensor, one with a NaN."""
    folder = Path(shutil.copytree(saved, tmp_path_factory.mktemp("loaded") / "model"))
    for part in ("discriminator", "generator"):
        shutil.copytree(saved, folder / part)
    lacking = load_file(folder / "discriminator" / "model.safetensors")
    del lacking["classifier.weight"]
    save_file(lacking, folder / "discriminator" / "model.safetensors", {"format": "pt"})
    (folder / "discriminator" / "tokenizer.json").write_text("{}")
    broken = load_file(folder / "generator" / "model.safetensors")
    broken["classifier.bias"][:] = torch.nan
    save_file(broken, folder / "generator" / "model.safetensors", {"format": "pt"})
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    problems = load_problems(files_of(folder))
    return types.SimpleNamespace(problems=problems, same={f: f.stat().st_mtime_ns for f in folder.rglob("*")} == before)


def test_a_model_that_does_not_load_without_the_package_is_named_and_its_folder_not_changed(loaded):
    # The whole one has no problem.
    lacking, tokenizer, broken = sorted(loaded.problems)
    assert lacking.startswith("discriminator/AutoModelForSequenceClassification") and "save the model again" in lacking
    assert "1 weights are not in the file: classifier.weight" in lacking
    assert tokenizer.startswith("discriminator/AutoTokenizer") and "save the model again" in tokenizer
    assert broken.startswith("generator/")
    assert "AutoModelForSequenceClassification: logits of two tokens is not finite" in broken
    assert loaded.same


@pytest.fixture
def process(monkeypatch):
    """Takes the place of the process that loads; `process.result` is what becomes of it."""
    process = types.SimpleNamespace(result=None)

    def run(command, **options):
        process.command, process.options = command, options
        process.seen = {file.name for file in Path(options["cwd"], "model").iterdir()}
        if isinstance(process.result, Exception):
            raise process.result
        return process.result

    monkeypatch.setattr(subprocess, "run", run)
    return process


def test_the_process_that_loads_has_no_secret_is_offline_and_sees_nothing_but_what_is_published(
    folder, process, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    for name in ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "WANDB_API_KEY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "secret")
    (folder / "training_args.bin").write_bytes(b"x")
    process.result = types.SimpleNamespace(returncode=1, stdout="Traceback\nOSError: no space\n")
    (problem,) = load_problems(files_of(folder))
    assert "status 1: OSError: no space" in problem
    environment = process.options["env"]
    assert "secret" not in environment.values() and "PYTHONPATH" not in environment
    assert environment["HF_HUB_OFFLINE"] == "1" and environment["PATH"] == os.environ["PATH"]
    assert environment["HOME"] == environment["USERPROFILE"] == str(process.options["cwd"])
    assert environment["HF_HOME"].startswith(process.options["cwd"]) and process.command[1] == "-I"
    assert process.seen == {*files_of(folder)} and "training_args.bin" not in process.seen


def test_what_takes_long_is_told_in_commands_too(folder, process, monkeypatch, capsys):
    """A push said nothing for 15 s."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    process.result = types.SimpleNamespace(returncode=1, stdout="")
    assert deberta_ext(["push", str(folder), "ann/x", "--dry_run"]) == 1 and hasattr(process, "command")
    assert "loading the model in a process without hf_deberta_ext; this may take a minute\n" == capsys.readouterr().err


def test_a_process_that_is_killed_or_too_slow_is_named(folder, process):
    process.result = types.SimpleNamespace(returncode=-9, stdout="")
    assert "ended with status -9, perhaps for want of memory: no message" in load_problems(files_of(folder))[0]
    process.result = subprocess.TimeoutExpired("python", 1)
    assert "took longer than 30 minutes" in load_problems(files_of(folder))[0]


def test_nothing_is_loaded_where_a_card_is_missing_that_the_hub_does_not_have(folder, process):
    (folder / "README.md").unlink()
    (problem,) = check_folder(folder, files_of(folder))
    assert problem.startswith("README.md") and not hasattr(process, "command")
    process.result = types.SimpleNamespace(returncode=1, stdout="")
    problems = check_folder(folder, files_of(folder), needs_card=False)
    assert hasattr(process, "command") and not any("README.md" in problem for problem in problems)


def test_all_kinds_of_problems_are_found_at_once(folder, process, monkeypatch):
    monkeypatch.setattr(checks, "FILE_LIMIT", 10_000)
    add_line(folder, "# my-own-token")
    (folder / "README.md").unlink()
    text = "\n".join(check_folder(folder, files_of(folder), token="my-own-token"))
    for part in ("older or edited", "GB of a file", "token of the Hub", "README.md"):
        assert part in text


def test_of_an_adapter_no_weights_are_loaded_with_a_configuration_or_without(folder, tmp_path, process):
    (tmp_path / "alone").mkdir()
    for place in (folder, tmp_path / "alone"):
        (place / "adapter_config.json").write_text('{"base_model_name_or_path": "ann/deberta"}')
    assert load_problems(files_of(tmp_path / "alone")) == [] and not hasattr(process, "command")
    (folder / "adapter_config.json").rename(folder / "adapter_model.safetensors")
    (folder / "model.safetensors").unlink()
    assert [problem.split(":")[0] for problem in load(str(folder))] == ["AutoModelForSequenceClassification"]
    shutil.copy(tmp_path / "alone" / "adapter_config.json", folder)
    assert load(str(folder)) == [] and code_problems(folder, files_of(folder)) == []

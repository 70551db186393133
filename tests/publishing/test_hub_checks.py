# SPDX-License-Identifier: Apache-2.0
"""What is looked at before a folder is published: each problem is found, named with its place, and has a way out."""

import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import tempfile
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
from hf_deberta_ext.publishing import secret_search as leaks
from hf_deberta_ext.publishing.card import write_model_card
from hf_deberta_ext.publishing.folder_checks import code_problems, load_problems, readme_problems, size_problems
from hf_deberta_ext.publishing.load_worker import load
from hf_deberta_ext.publishing.published_files import published_files
from hf_deberta_ext.publishing.secret_search import text_problems

TINY = dict(
    vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16, position_buckets=8,
)  # fmt: skip
# From parts, so that this file has none of them.
HOME, TMP, SLASH = "/" + "home", "/" + "tmp", "/"
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


def leaks_in(folder, text, name="notes.txt", **more):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return text_problems({name: file}, **more)


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ('"data": "', f"{HOME}/ann/data.txt", '"'), ("(", f"{SLASH}Users/ann/run", ")."),
        ("see ", f"{SLASH}root/run", ", and"), ("", "C:" + r"\Users\ann\run", ""),
        ('"', "C:" + r"\\Users\\ann", '"'), ("", "D:/Users/ann", ""), ("", f"{TMP}/run-1/x", ""),
        ("", f"{SLASH}var/folders/zz/x", ""), ("", f"file://{SLASH}data/x", ""), ("see ", f"{SLASH}mnt/disk1", ""),
        ("`", f"{SLASH}data/ann", "`"), ("", f"{SLASH}scratch/7/x", ""), ("", f"{SLASH}workspace/run", ""),
    ],
)  # fmt: skip
def test_a_path_of_a_machine_is_found_with_its_line(before, path, after, tmp_path):
    (problem,) = leaks_in(tmp_path, f"\n\n{before}{path}{after}\n")
    assert problem.startswith("notes.txt:3 has ") and repr(path) in problem and "in its place" in problem


@pytest.mark.parametrize(
    "text",
    [
        f"https://example.org{HOME}/ann/x", f"src{HOME}/ann", f"./x{TMP}/y", f"~{HOME}/x", f'"{HOME}"', f'"{SLASH}root"',
        f'"{TMP}/"', "/usr/bin/env python", "train/data/x", f"{SLASH}data", "https://e.org/mnt/x", "and/or", "profile: x",
    ],
)  # fmt: skip
def test_addresses_relative_paths_and_pieces_of_a_vocabulary_are_no_paths_of_a_machine(text, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path(SLASH + "root"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: TMP)
    assert leaks_in(tmp_path, text) == []


def test_private_paths_the_users_home_and_temporary_folder_are_found_wherever_they_are(tmp_path, monkeypatch):
    private = f"{SLASH}place/ann/run"
    found = leaks_in(tmp_path, f"from {private}/x.json, {private}\n{private}-other\n", private_paths=[private])
    way_out = "a path on this machine: write a name or a Hub id in its place"
    assert found == [f"notes.txt:1 has '{path}', {way_out}" for path in (f"{private}/x.json", private)]
    monkeypatch.setattr(Path, "home", lambda: Path(SLASH + "u1/ann"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: SLASH + "scratch/ann")
    assert len(leaks_in(tmp_path, f"{SLASH}u1/ann/x\n{SLASH}scratch/ann/y\n{SLASH}u1/bob")) == 2


def test_a_token_of_any_form_is_found_if_it_is_the_users_own_and_tokens_may_be_searched_alone(tmp_path):
    (problem,) = leaks_in(tmp_path, "my.secret.word", tokens=["my.secret.word"])
    assert "your own token" in problem and "my.secret.word" not in problem
    assert leaks_in(tmp_path, "my-secret-word", tokens=["my.secret.word"]) == []
    (problem,) = leaks_in(tmp_path, f"{HOME}/ann {TOKEN}", tokens_alone=True)
    assert "token of Hugging Face" in problem


def test_a_file_is_text_by_what_is_in_it(tmp_path):
    token, place = TOKEN.encode(), f"{HOME}/ann/model.py".encode()
    assert leaks_in(tmp_path, b"\0\1 " + place, name="notes.txt") == []
    assert len(leaks_in(tmp_path, token, name="weights.dat")) == 1
    # Graphs tell the source files of their nodes, where the exporter was told to.
    (problem,) = leaks_in(tmp_path, b"\0\1 " + place, name="model.onnx")
    assert problem.startswith("model.onnx has ") and "export it again" in problem


@pytest.mark.parametrize(
    "name",
    [
        "training_args.bin", "notes.txt", "spm.model", "curves.png", "model.onnx", "model.safetensors",
        "pytorch_model-00001-of-00002.bin", "optimizer.pt", "model.onnx.data",
    ],
)  # fmt: skip
def test_tokens_are_found_in_binary_files(name, tmp_path):
    """A pickle of Trainer's arguments knows the token of its run; of weights the beginning is searched."""
    data = pickle.dumps({"hub_token": TOKEN, "other": "my.own.word", "numbers": bytes(200)})
    assert b"\0" in data
    problems = leaks_in(tmp_path, data, name=name, tokens=["my.own.word"])
    assert len(problems) == 2 and all(problem.startswith(f"{name} has ") for problem in problems)


@pytest.mark.parametrize(
    "place",
    [
        f"{SLASH}models/deberta", f"{SLASH}srv/ann/a b/c.txt", f"{SLASH}opt/x/", "C:" + r"\models", "D:/models/x",
        r"\\server\share\x",
    ],
)  # fmt: skip
def test_a_value_of_a_json_file_is_no_absolute_path_wherever_it_is(place, tmp_path):
    deep = json.dumps({"a": {"b": [1, place]}}, indent=1)
    (problem,) = leaks_in(tmp_path, deep, name="config.json")
    assert problem.startswith(f"config.json:5 has {place!r}, a path to a file of one machine: ")
    other = json.dumps({"a": "é", "b": f"é{place}", "c": place}, indent=1, ensure_ascii=False)
    (problem,) = leaks_in(tmp_path, other, name="discriminator.json")
    assert problem.startswith("discriminator.json:4 has ")


@pytest.mark.parametrize(
    "value",
    [
        SLASH, f"{SLASH}usr", f"{SLASH}{SLASH}", "and/or", "a/b/c", "ann/deberta", "https://e.org/a/b",
        f"{SLASH} or {SLASH}", "./x/y", "", 3, None, "C:", "a: b", f"{SLASH}{SLASH}e.org/x",
    ],
)  # fmt: skip
def test_other_values_of_a_json_file_are_no_paths(value, tmp_path):
    assert leaks_in(tmp_path, json.dumps({"a": [value]}), name="config.json") == []


def test_words_of_a_vocabulary_and_names_of_classes_are_no_paths(tmp_path):
    word = f"{HOME}/usr/x"
    texts = {
        "tokenizer.json": {
            "model": {"vocab": {word: 1}, "merges": [[word, "a"], f"{word} b"]},
            "added_tokens": [{"id": 1, "content": word}],
        },
        "unigram/tokenizer.json": {"model": {"vocab": [[word, -1.5]]}},
        "tokenizer_config.json": {"added_tokens_decoder": {"1": {"content": word}}},
        "vocab.json": {word: 1},
        "added_tokens.json": {word: 1},
        "config.json": {"id2label": {"0": "/people/person"}, "label2id": {"/people/person": 0}},
        "vocab.txt": word,
        "merges.txt": f"{word} a",
    }  # fmt: skip
    for name, value in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        assert leaks_in(tmp_path, value if isinstance(value, str) else json.dumps(value), name=name) == [], name
        # Tokens are looked for there too.
        secret = {"id2label": {TOKEN: 1}}
        assert len(leaks_in(tmp_path, json.dumps(secret), name=name)) == 1, name


def test_names_of_a_json_file_paths_within_a_value_and_a_damaged_file_are_searched(tmp_path):
    text = json.dumps({f"{HOME}/ann/a": 1, "b": f"read from {HOME}/ann/b"}, indent=1)
    first, second = leaks_in(tmp_path, text, name="x.json")
    assert first.startswith(f"x.json:2 has '{HOME}/ann/a'") and second.startswith(f"x.json:3 has '{HOME}/ann/b'")
    (problem,) = leaks_in(tmp_path, '{"a": "' + f"{HOME}/ann", name="config.json")
    assert problem.startswith("config.json:1 has ")


def test_a_token_across_two_pieces_is_found_once_and_no_path_cut_out_of_an_address(tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, "PIECE", 96)
    monkeypatch.setattr(leaks, "OVERLAP", 48)
    for count in range(19):
        lines = ["x" * 6] * count
        found = leaks_in(tmp_path, "\n".join([*lines, TOKEN, "y" * 100, f"https://e.org{HOME}/ann"]))
        assert len(found) == 1 and found[0].startswith(f"notes.txt:{count + 1} has a token")
    for size, before in itertools.product((95, 96, 97, 192), range(40, 60)):
        assert leaks_in(tmp_path, ("." * before + f"https://e.org{HOME}/ann").ljust(size, ".")) == []


def test_many_problems_of_one_file_are_summed_up(tmp_path):
    found = leaks_in(tmp_path, "".join(f"{HOME}/user{i}/x\n" for i in range(12)))
    assert len(found) == 6 and found[-1] == "notes.txt has 7 more of these"


def test_a_saved_folder_has_no_problems(folder):
    assert code_problems(folder, files_of(folder)) == []
    assert readme_problems(folder, files_of(folder)) == []
    assert size_problems(files_of(folder)) == []
    assert text_problems(files_of(folder), [folder]) == []


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
    add_line(folder, f"# {folder}, {TOKEN}, my-own-token")
    (folder / "README.md").unlink()
    text = "\n".join(check_folder(folder, files_of(folder), token="my-own-token"))
    for part in (
        "older or edited",
        "GB of a file",
        "path on this machine",
        "token of Hugging Face",
        "your own",
        "README.md",
    ):
        assert part in text


def test_the_saved_token_and_the_folder_above_are_looked_for_beside_the_given_token(folder, process, monkeypatch):
    monkeypatch.setattr(checks, "get_token", lambda: "the-saved-one")
    for line in ("the-saved-one", "the-given-one", f"{folder.parent}/other"):
        add_line(folder, line, name="README.md")
    for token, count in (("the-given-one", 2), (None, 1)):
        *own, path = check_folder(folder, files_of(folder), token=token)
        assert len(own) == count and all("your own" in problem for problem in own)
        assert f"{folder.parent}/other" in path and "a path on this machine" in path


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

# SPDX-License-Identifier: Apache-2.0
"""What is looked at before a folder is published: each problem is found, named with its place, and has a way out."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from tiny_models import tiny_tokenizer

from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification
from hf_deberta_ext.publishing import check_folder
from hf_deberta_ext.publishing import folder_checks as checks
from hf_deberta_ext.publishing.card import write_model_card
from hf_deberta_ext.publishing.folder_checks import (
    readme_problems,
    token_problems,
)
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
    assert check_folder(folder, files_of(folder)) == []


def test_a_folder_without_a_model_or_weights_is_refused(tmp_path, folder):
    (tmp_path / "report.md").write_text("a run")
    (problem,) = check_folder(tmp_path, files_of(tmp_path), needs_card=False)
    assert problem.startswith("config.json is not in") and "save the model with" in problem
    (folder / "model.safetensors").unlink()
    (problem,) = check_folder(folder, files_of(folder))
    assert "has no weights: save the model" in problem


@pytest.mark.parametrize(
    ("base", "is_refused"),
    [
        ("microsoft/deberta-v3-base", False), (f"{HOME}/ann/deberta", True), ("./deberta", True), ("runs/base/last", True),
        ("there/base", True), ("C:" + r"\models\deberta", True), ("", True), (None, True),
    ],
)  # fmt: skip
def test_an_adapter_names_a_base_model_that_everybody_has(base, is_refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there" / "base").mkdir(parents=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    found = check_folder(tmp_path, files_of(tmp_path), needs_card=False)
    assert ["base_model_name_or_path" in each for each in found] == [True] * is_refused


def test_all_kinds_of_problems_are_found_at_once(folder):
    with open(folder / "losses.py", "a") as file:
        file.write("# my-own-token")
    (folder / "README.md").unlink()
    (folder / "model.safetensors").unlink()
    text = "\n".join(check_folder(folder, files_of(folder), token="my-own-token"))
    for part in ("no weights", "token of the Hub", "README.md"):
        assert part in text


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

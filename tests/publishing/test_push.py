# SPDX-License-Identifier: Apache-2.0
"""Test pushes of folders and models: published files, refused pushes, and the repository afterwards."""

import json

import pytest
import torch
from hub_models import OLD, TOKENIZER, assert_code_in, job, make_tokenizer, read_back
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from rounding import assert_equal_outputs
from tiny_models import HEADS, tiny_inputs, tiny_model
from without_package import answers

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
from hf_deberta_ext.commands import main
from hf_deberta_ext.model.configuration_deberta_ext import CODE_FILES
from hf_deberta_ext.publishing import push
from hf_deberta_ext.publishing.push import published_files, stale_weights

REPO = "user/name"
SECRET = "hf" + "_" + "qXbRtYvLwKmZpNcJdHfGsAeUiOxTyBnMkQ"
PUBLISHED = (
    "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
    "model.fp16.safetensors", "pytorch_model.generator.bin", "pytorch_model.bin", "adapter_config.json",
    "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "spm.model", "vocab.json", "merges.txt",
    "chat_template.jinja", "README.md", "LICENSE", "curves.png", "all_results.json", "eval_mm_results.json",
    "discriminator/config.json", "discriminator/model.safetensors", "generator/README.md", "onnx/model.onnx.data",
    "1_Pooling/config.json", "modules.json", "modeling_deberta_ext.py", "discriminator/modeling_deberta_ext.py",
)  # fmt: skip
# Files, and whole folders, that are not published.
LEFT_OUT = (
    "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "test_predictions.csv", "eval_nbest_predictions.json", "notes.txt",
    "train.py", "training_args.bin", "trainer_state.json", "run_arguments.json", "run_report.json", "training.log", ".env",
    "lost.png", "README.md.part", "train_embeddings.safetensors", "patients_results.json", "LICENSE_KEYS",
    "adapter_model.pt", "pytorch_models.bin", "discriminator/notes.txt", "checkpoint-5/model.safetensors",
    "tokenizer/tokenizer.json", ".cache/x", "runs/Jan01/events.out.tfevents.1", "figures/a.png",
)  # fmt: skip
FOLDERS = ("checkpoint-5/", "tokenizer/", ".cache/", "runs/", "figures/")


@pytest.fixture
def folder(tmp_path):
    """Write a folder with one file of every kind."""
    for name in (*PUBLISHED, *LEFT_OUT):
        file = tmp_path / "run" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (tmp_path / "run" / "README.md").write_text("![Curves](curves.png)")
    return tmp_path / "run"


@pytest.fixture
def saved(tmp_path):
    tiny_model(DebertaExtForMaskedLM).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_files_of_a_model_are_published_and_no_others(folder):
    published, left_out = published_files(folder)
    assert {*published} == {*PUBLISHED}
    assert left_out == sorted({*FOLDERS} | {name for name in LEFT_OUT if not name.startswith(FOLDERS)})


@pytest.mark.parametrize(
    ("pattern", "added"),
    [
        ("*.txt", {"notes.txt"}),
        ("*/notes.txt", {"discriminator/notes.txt"}),
        ("figures/*", {"figures/a.png"}),
        ("training_args.bin", {"training_args.bin"}),
        (".env", {".env"}),
        ("*", {name for name in LEFT_OUT if "/" not in name and name != ".env"}),
    ],
)
def test_include_adds_files_and_no_hidden_ones_by_a_pattern(folder, pattern, added):
    published, left_out = published_files(folder, [pattern])
    assert {*published} - {*PUBLISHED} == added and not added & {*left_out}
    for hidden in ("none*", ".*", "*/.*"):
        with pytest.raises(ValueError, match="matches no file"):
            published_files(folder, [hidden])


def test_a_link_out_of_the_folder_is_refused_and_one_into_the_hubs_cache_is_not(folder, tmp_path):
    (tmp_path / "private.json").write_text("{}")
    (folder / "vocab.json").unlink()
    (folder / "vocab.json").symlink_to(tmp_path / "private.json")
    with pytest.raises(ValueError, match=r"vocab\.json links to .*, outside of"):
        published_files(folder)
    blobs, snapshot = tmp_path / "models--user--name" / "blobs", tmp_path / "models--user--name" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("{}")
    (snapshot / "config.json").symlink_to(blobs / "1")
    assert [*published_files(snapshot)[0]] == ["config.json"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_token_in_a_file_is_refused_also_without_checks(hub, saved, name, monkeypatch):
    (saved / "LICENSE").write_text("my-own-token")
    assert push(saved, REPO, dry_run=True).problems == []
    monkeypatch.setenv("HF_TOKEN", "my-own-token")
    for token in (None, "hf_write"):
        with pytest.raises(ValueError, match="LICENSE contains an access token"):
            push(saved, REPO, token=token)
    with open(saved / name, "ab") as stream:
        stream.write(f"\n# {SECRET}\n".encode())
    with pytest.raises(ValueError, match=f"{name} contains an access token"):
        push(saved, REPO, skip_checks=True)
    assert not hub.requests


@pytest.mark.parametrize(
    ("removed", "message"), [("config.json", "config.json is missing"), ("model.safetensors", "weights are missing")]
)
def test_a_folder_without_a_whole_model_is_refused_unless_asked_for(hub, saved, removed, message):
    (saved / removed).unlink()
    with pytest.raises(ValueError, match=message):
        push(saved, REPO)
    assert push(saved, REPO, dry_run=True).problems and not hub.requests
    push(saved, REPO, skip_checks=True)
    assert removed not in hub.repos[REPO].files()


def test_a_wrong_name_of_repository_or_folder_is_refused_by_a_dry_run(hub, saved, tmp_path, capsys):
    """A dry run accepted the name, and listed an empty folder."""
    assert main(["push", str(saved), "me/my model", "--dry_run"]) == 2
    assert "Repo id must use alphanumeric chars" in capsys.readouterr().err
    assert main(["push", str(tmp_path / "none"), REPO, "--dry_run"]) == 2
    assert "none: there is no such folder" in capsys.readouterr().err and not hub.requests


def test_an_adapter_needs_a_base_model_of_the_hub(hub, tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    for base, is_right in (("org/base", True), (str(tmp_path), False), ("../base", False)):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        assert (push(tmp_path, REPO, dry_run=True).problems == []) is is_right


@pytest.mark.parametrize("auto", HEADS)
def test_a_model_is_one_commit_with_weights_code_tokenizer_and_card(hub, auto, tmp_path):
    model, tokenizer = tiny_model(HEADS[auto]), make_tokenizer(tmp_path / "tokenizer")
    commit = model.push_to_hub("name", tokenizer=tokenizer)
    repo = hub.repos[REPO]
    assert commit.oid == repo.refs["main"] and [made.title for made in repo.history] == ["initial commit", "Upload model"]
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    expected = {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}
    assert {name: data for name, data in repo.files().items() if name not in (".gitattributes", "README.md")} == expected
    assert_code_in(repo.files())
    assert TOKENIZER <= {*repo.files()} and not [data for data in repo.files().values() if str(tmp_path).encode() in data]
    assert f'repo = "{REPO}"\nrevision = "main"' in repo.files()["README.md"].decode()
    # A second push of the same files sends nothing.
    assert model.push_to_hub("name", tokenizer=tokenizer).oid == commit.oid and len(repo.history) == 2


@pytest.mark.slow
def test_pushed_models_are_read_back_equal_without_the_package(hub, tmp_path):
    models = {auto: tiny_model(HEADS[auto]) for auto in ("AutoModel", "AutoModelForMaskedLM", "AutoModelForPreTraining")}
    for auto, model in models.items():
        model.save_pretrained(tmp_path / auto, push_to_hub=True, repo_id=f"user/{auto}")
    results = read_back(hub, tmp_path, [job(auto, f"user/{auto}", auto) for auto in models])
    for auto, model in models.items():
        inputs = {name: torch.tensor(value) for name, value in tiny_inputs(auto).items()}
        assert_equal_outputs(results[auto]["answers"], answers(model, inputs))


def test_a_folders_card_is_published_and_names_the_repository(hub, saved):
    (saved / "README.md").write_text('# Mine\n\n```python\nrepo = "saved"  # here\nrevision = None  # any\n```\n')
    push(saved, REPO, tag="v1.0", commit_message="First\n\nMore text.")
    repo = hub.repos[REPO]
    assert repo.files()["README.md"].decode().startswith(f'# Mine\n\n```python\nrepo = "{REPO}"\nrevision = "v1.0"')
    assert repo.tags == ["v1.0"] and repo.refs["v1.0"] == repo.refs["main"]
    assert (repo.history[-1].title, repo.history[-1].description) == ("First", "More text.")
    with pytest.raises(ValueError, match=r"tag v1\.0 already exists"):
        push(saved, REPO, tag="v1.0")


def test_a_card_on_the_hub_stays_and_a_new_one_gets_the_tags(hub, saved):
    hub.create_repo(REPO, {"README.md": b"theirs"})
    push(saved, REPO, tags=["mine"])
    assert hub.repos[REPO].files()["README.md"] == b"theirs" and not (saved / "README.md").exists()
    push(saved, "user/other", tags=["mine"])
    card = ModelCard(hub.repos["user/other"].files()["README.md"].decode())
    assert card.data.tags == ["deberta", "hf_deberta_ext", "mine"]


def test_weights_that_would_be_loaded_instead_are_deleted_and_all_else_stays(hub, saved):
    hub.create_repo(REPO, OLD)
    push(saved, REPO)
    gone = {*OLD} - {*hub.repos[REPO].files()}
    assert gone == {
        "pytorch_model.bin", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "adapter_config.json",
        "adapter_model.safetensors", "model.safetensors.index.json",
    }  # fmt: skip
    new = ["adapter_config.json", "adapter_model.safetensors"]
    assert stale_weights(["model.safetensors", "adapter_model.bin", "a/adapter_model.bin"], new) == ["adapter_model.bin"]


def test_branches_and_pull_requests(hub, saved):
    push(saved, REPO, revision="dev")
    repo = hub.repos[REPO]
    assert "model.safetensors" in repo.files("dev") and "model.safetensors" not in repo.files()
    assert 'revision = "dev"' in repo.files("dev")["README.md"].decode()
    report = push(saved, REPO, create_pr=True)
    assert "model.safetensors" in repo.files("refs/pr/1") and "model.safetensors" not in repo.files()
    assert str(report).splitlines()[-1] == f"{hub.endpoint}/{REPO}/discussions/1"


@pytest.mark.parametrize("private", [True, False])
def test_a_repository_of_another_visibility_is_refused(hub, saved, private):
    hub.create_repo(REPO, private=not private)
    with pytest.raises(ValueError, match="visibility"):
        push(saved, REPO, private=private)
    assert len(hub.repos[REPO].history) == 1
    push(saved, "user/new", private=private)
    assert hub.repos["user/new"].private is private


def test_a_commit_of_somebody_else_in_the_meantime_is_not_overwritten(hub, saved):
    hub.create_repo(REPO)
    hub.before("/commit/", lambda: hub.repos[REPO].commit({"config.json": b"theirs"}))
    with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
        push(saved, REPO)
    assert hub.repos[REPO].files() == {"config.json": b"theirs"}


def test_the_command_pushes_lists_and_refuses(hub, saved, capsys):
    assert main(["push", str(saved), REPO, "--dry_run"]) == 0
    listed = capsys.readouterr().out
    assert not hub.repos and [name for name in ("model.safetensors", *CODE_FILES) if f" {name}\n" not in listed] == []
    assert main(["push", str(saved), REPO, "--private", "--tag", "v1"]) == 0
    assert hub.repos[REPO].private and hub.repos[REPO].tags == ["v1"]
    assert f"{hub.endpoint}/{REPO}/commit/" in capsys.readouterr().out
    (saved / "config.json").unlink()
    assert main(["push", str(saved), REPO, "--dry_run"]) == 1
    hub.fail("POST /api/repos/create", status=403, message="You have no rights here")
    DebertaExtConfig().save_pretrained(saved)
    assert main(["push", str(saved), "other/name"]) == 2
    assert "You have no rights here" in capsys.readouterr().err

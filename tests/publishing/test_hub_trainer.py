# SPDX-License-Identifier: Apache-2.0
"""Pushes of our trainers beside other people, and the files that they leave out; test_trainer_push.py has the rest."""

import json
import logging

import pytest
from hub_models import make_trainer

from hf_deberta_ext.training.hub_trainer import HubTrainer

REPO = "user/run"
PLACE = "/" + "home/ann/data.txt"
SECRET = "hf" + "_" + "aB3" * 12


@pytest.fixture
def warned(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return caplog


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def trainer(hub, folder):
    return make_trainer(HubTrainer, folder, hub_strategy="end")


def commits(hub):
    return [commit.title for commit in hub.repos[REPO].history()]


# ------- beside others


def test_what_somebody_pushes_beside_is_kept_and_the_push_goes_on_top(hub, trainer):
    """Without the parent commit nobody would notice; with it, one more look is enough."""
    hub.before("/commit/", lambda: hub.commit(REPO, {"notes.txt": b"theirs"}, title="Theirs"))
    trainer.push_to_hub()
    assert commits(hub) == ["End of training", "Theirs", "initial commit"]
    assert {"notes.txt", "model.safetensors"} <= {*hub.repos[REPO].files()}


@pytest.mark.parametrize("name", ["config.json", "pytorch_model.bin"])
def test_what_somebody_has_changed_meanwhile_is_not_overwritten(name, hub, trainer, folder):
    hub.before("/commit/", lambda: hub.commit(REPO, {name: b"theirs"}, title="Theirs"))
    told = rf"the model is in .*run, but was not pushed .*: somebody else has changed {name} in user/run meanwhile"
    with pytest.raises(OSError, match=told):
        trainer.push_to_hub()
    assert commits(hub) == ["Theirs", "initial commit"] and hub.repos[REPO].files()[name] == b"theirs"
    assert (folder / "model.safetensors").is_file()
    trainer.push_to_hub()
    assert commits(hub)[0] == "End of training"


def test_a_branch_that_never_rests_is_not_pushed_to_for_ever(hub, trainer):
    fault = hub.before("/commit/", lambda: hub.commit(REPO, {f"{fault.hits}.txt": b"x"}), times=None)
    with pytest.raises(OSError, match="somebody else has pushed to user/run meanwhile"):
        trainer.push_to_hub()
    assert fault.hits == 2


# ------- who may see it


@pytest.mark.parametrize("private", [True, False])
def test_a_repository_that_is_not_as_private_as_asked_is_refused_before_the_training(private, hub, folder):
    hub.create_repo(REPO, private=not private)
    state = "public" if private else "private"
    with pytest.raises(ValueError, match=f"{REPO} is there already and {state}.*--hub_private_repo"):
        make_trainer(HubTrainer, folder, hub_private_repo=private)
    assert len(hub.repos[REPO].commits) == 1 and hub.repos[REPO].private is not private
    make_trainer(HubTrainer, folder).push_to_hub()
    trainer = make_trainer(HubTrainer, folder, hub_private_repo=not private)
    with pytest.raises(ValueError, match="is there already and"):
        trainer.push_to_hub(private=private)
    trainer.push_to_hub(private=not private)
    assert hub.repos[REPO].private is not private


# ------- tokens and paths


def test_a_card_or_results_with_a_path_or_a_token_are_not_pushed(hub, trainer, folder, warned):
    (folder / "README.md").write_text(f"# A model\n\nRead from {PLACE}.\n")
    (folder / "all_results.json").write_text(json.dumps({"note": SECRET}))
    (folder / "eval_results.json").write_text(json.dumps({"accuracy": 1}))
    trainer.push_to_hub()
    files = hub.repos[REPO].files()
    assert {"model.safetensors", "eval_results.json"} <= {*files} and not {"README.md", "all_results.json"} & {*files}
    assert f"README.md is not pushed: README.md:3 has {PLACE!r}" in warned.text.replace("data.txt.", "data.txt")
    assert "all_results.json is not pushed" in warned.text and SECRET not in warned.text
    assert (folder / "README.md").is_file()


@pytest.mark.parametrize("text", [PLACE, SECRET, "hf_write"])
def test_a_model_whose_files_tell_a_path_or_a_token_is_not_pushed(text, hub, trainer, folder):
    trainer.model.config.task_specific_params = {"note": text}
    with pytest.raises(
        OSError, match=r"the model is in .*run, but was not pushed .*config\.json:\d+ has .*deberta-ext push"
    ):
        trainer.push_to_hub()
    assert commits(hub) == ["initial commit"] and (folder / "model.safetensors").is_file()


def test_a_checkpoint_that_tells_a_path_is_not_pushed_and_the_training_goes_on(hub, folder, warned):
    trainer = make_trainer(HubTrainer, folder)
    trainer.model.config.task_specific_params = {"note": PLACE}
    trainer.train()
    assert commits(hub) == ["initial commit"] and trainer.state.global_step == 2
    assert "there is no push at step 1 to user/run, and the training goes on: config.json:" in warned.text
    assert not [*folder.glob(".pushed-*")]


# ------- the model's own push


@pytest.mark.parametrize("private", [True, False])
def test_a_models_push_does_not_change_who_may_see_a_repository(private, hub, trainer):
    model = trainer.model
    hub.create_repo("user/other", private=not private)
    hub.requests.clear()
    with pytest.raises(ValueError, match=f"user/other is there already and .*leave private={private} out.*nothing was sent"):
        model.push_to_hub("user/other", private=private, revision="topic")
    assert not hub.sent("PUT") and not hub.sent("/commit/") and [*hub.repos["user/other"].branches] == ["main"]
    model.push_to_hub("user/other", private=not private)
    model.push_to_hub("user/other")
    assert hub.repos["user/other"].private is not private and "model.safetensors" in hub.repos["user/other"].files()

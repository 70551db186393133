# SPDX-License-Identifier: Apache-2.0
"""Test --push_to_hub of Trainer, this package's trainers and the scripts: which files each push publishes."""

import json
import logging
import shutil
from pathlib import Path

import glue_script as glue
import mlm_script as mlm
import pytest
import torch
from hub_models import TOKENIZER, assert_code_in, job, make_trainer, read_back
from huggingface_hub import ModelCard, snapshot_download
from rounding import equal_outputs
from safetensors.torch import load, load_file
from scripts import command_line
from tiny_models import FILES
from transformers import Trainer

from hf_deberta_ext import DebertaExtForSequenceClassification
from hf_deberta_ext.publishing.push import published_files
from hf_deberta_ext.training.hub_trainer import HubTrainer

material, text = glue.material, mlm.text
REPO = "user/run"
# Files of a run's folder that are never published.
PRIVATE = {"training_args.bin", "trainer_state.json", "run_arguments.json", "run_report.json", "optimizer.pt"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def commits(hub):
    return [commit.title for commit in hub.repos[REPO].history]


def pushes(repo):
    """Return the commits of a training by title, oldest first."""
    return {commit.title: commit for commit in repo.commits.values() if commit.title != "initial commit"}


def assert_loads(files):
    """Check that weights, configuration, code and tokenizer are complete."""
    assert_code_in(files)
    assert {"model.safetensors", *TOKENIZER} <= {*files}


def assert_nothing_private(files, *folders):
    assert not {name.rpartition("/")[2] for name in files} & PRIVATE
    assert not [name for name in files if "predictions" in name or name.startswith(("checkpoint-", "tokenizer/"))]
    for name, data in files.items():
        if b"\0" not in data:
            assert not [folder for folder in folders if str(folder) in data.decode()], name


def assert_card_of_the_run(files, folder, repo_id):
    assert files["README.md"] == (folder / "README.md").read_bytes()
    assert f'repo = "{repo_id}"\nrevision = "main"' in files["README.md"].decode()


def flags(repo_id, strategy, **more):
    given = dict(hub_model_id=repo_id, hub_strategy=strategy, hub_token="hf_write") | more
    return ["--push_to_hub", "--hub_always_push", *command_line(given)]


@pytest.mark.parametrize("kind", [Trainer, HubTrainer])
def test_the_model_of_a_training_is_pushed_with_its_code(hub, tmp_path, kind):
    trainer = make_trainer(kind, tmp_path / "run")
    trainer.train()
    trainer.push_to_hub()
    files = hub.repos["user/run"].files()
    assert_loads(files)
    weights = load(files["model.safetensors"])
    assert all(torch.equal(weights[name], value) for name, value in trainer.model.state_dict().items() if name in weights)


def test_our_trainers_push_the_model_and_leave_the_rest(hub, folder):
    trainer = make_trainer(HubTrainer, folder, hub_strategy="every_save", save_total_limit=1)
    (folder / "notes.txt").write_text("mine")
    trainer.train()
    commit = trainer.push_to_hub("Done")
    repo = hub.repos[REPO]
    assert repo.refs["main"] == commit.oid and commits(hub)[-1] == "Done" and len(repo.history) == 4
    for made in pushes(repo).values():
        assert_loads(made.files)
        assert_nothing_private(made.files, folder.parent)
        assert "notes.txt" not in made.files
    # Trainer's card, because the run has written none.
    assert "generated" in repo.files()["README.md"].decode()
    assert {*repo.files()} == {".gitattributes", *published_files(folder)[0]}
    assert not [*folder.glob(".pushed-*")]


def test_checkpoints_are_pushed_if_asked_for_without_folders_of_this_machine(hub, folder):
    trainer = make_trainer(HubTrainer, folder, hub_strategy="checkpoint")
    trainer.train()
    # As with load_best_model_at_end.
    file = folder / "checkpoint-2" / "trainer_state.json"
    state = json.loads(file.read_text()) | {"best_model_checkpoint": str(folder / "checkpoint-1")}
    file.write_text(json.dumps(state))
    trainer._push_from_checkpoint(str(file.parent))
    trainer._finish_current_push()
    made = hub.repos[REPO].history[-1]
    kept = {name.removeprefix("last-checkpoint/"): data for name, data in made.files.items() if name.startswith("last-")}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= {*kept}
    assert "training_args.bin" not in kept
    assert json.loads(kept["trainer_state.json"]) == state | {"best_model_checkpoint": "checkpoint-1"}
    assert not any(str(folder).encode() in data for data in made.files.values())
    assert json.loads(file.read_text()) == state


def test_a_branch_is_made_for_the_pushes_and_all_checkpoints_are_kept_by_name(hub, folder):
    strategy = dict(hub_strategy="all_checkpoints", hub_revision="topic", hub_private_repo=True)
    trainer = make_trainer(HubTrainer, folder, **strategy)
    trainer.train()
    trainer.push_to_hub()
    repo = hub.repos[REPO]
    assert repo.private and [*repo.files()] == [".gitattributes"] and len(pushes(repo)) == 3
    files = repo.files("topic")
    assert_loads(files)
    assert {"checkpoint-1/optimizer.pt", "checkpoint-2/optimizer.pt", "checkpoint-2/model.safetensors"} <= {*files}


def test_a_push_that_fails_during_the_training_is_a_warning_and_the_next_one_goes(hub, folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    hub.fail("/commit/", status=403, message="busy")
    trainer = make_trainer(HubTrainer, folder)
    trainer.train()
    trainer._finish_current_push()
    assert "step 1: the push to user/run failed" in caplog.text and "busy" in caplog.text
    assert commits(hub) == ["initial commit", "Training in progress, step 2"]
    assert trainer.state.global_step == 2 and not [*folder.glob(".pushed-*")]


def test_a_push_does_not_wait_if_told_so(hub, folder):
    trainer = make_trainer(HubTrainer, folder, push_to_hub=False)
    job = trainer.push_to_hub(blocking=False, private=True)
    assert job.result().oid == hub.repos[REPO].refs["main"] and hub.repos[REPO].private


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint"])
def test_run_glue_pushes_model_card_and_results(hub, run_glue, material, tmp_path, strategy):
    folder = tmp_path / "sst2"
    more = [*flags("user/sst2", strategy), "--do_train", "--do_eval", "--do_predict", "--load_best_model_at_end"]
    times = dict(save_steps=2, eval_steps=2, eval_strategy="steps", task_name="sst2", test_file=material / "test.csv")
    run_glue.main(glue.arguments(material, folder, *more, **times))
    repo, files = hub.repos["user/sst2"], hub.repos["user/sst2"].files()
    during = [commit for title, commit in pushes(repo).items() if title != "End of training"]
    assert len(during) == (0 if strategy == "end" else 2)
    for commit in during:
        assert_loads(commit.files)
    published = {name: data for name, data in files.items() if not name.startswith("last-checkpoint/")}
    assert_loads(published)
    assert_nothing_private(published, tmp_path, material)
    assert {*published} == {".gitattributes", *published_files(folder)[0]}
    assert {"all_results.json", "eval_results.json", "curves.png"} <= {*published}
    assert_card_of_the_run(published, folder, "user/sst2")
    assert json.loads(published["config.json"])["id2label"] == {"0": "negative", "1": "positive"}
    lines = (folder / "SST-2.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "index\tprediction" and [line.partition("\t")[0] for line in lines[1:]] == [*"012345678"]
    kept = {name for name in files if name.startswith("last-checkpoint/")}
    assert bool(kept) == (strategy == "checkpoint")
    if kept:
        assert not any(str(part).encode() in files[name] for name in kept for part in (tmp_path, material))


def test_a_run_goes_on_from_a_checkpoint_of_the_hub(hub, run_glue, material, tmp_path):
    common = [*flags("user/sst2", "checkpoint"), "--do_train"]
    run_glue.main(glue.arguments(material, tmp_path / "whole", *common, max_steps=4, save_steps=2))
    first = pushes(hub.repos["user/sst2"])["Training in progress, step 2"]
    there = snapshot_download("user/sst2", revision=first.oid, allow_patterns="last-checkpoint/*")
    shutil.copytree(Path(there, "last-checkpoint"), tmp_path / "checkpoint-2")
    again = glue.arguments(material, tmp_path / "again", "--do_train", max_steps=4, save_steps=2)
    run_glue.main([*again, "--resume_from_checkpoint", str(tmp_path / "checkpoint-2")])
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_pretrained_and_fine_tuned_models_are_read_back_without_the_package(
    hub, run_mlm, run_rtd, run_glue, text, material, tmp_path
):
    run_mlm.main(mlm.arguments(text, tmp_path / "mlm", *flags("user/mlm", "end")))
    run_rtd.main(mlm.arguments(text, tmp_path / "rtd", *flags("user/rtd", "every_save"), save_steps=3))
    run_glue.main(glue.arguments(material, tmp_path / "sst2", *flags("user/sst2", "end"), "--do_train", "--do_eval"))
    for name in ("mlm", "rtd", "sst2"):
        files = hub.repos[f"user/{name}"].files()
        assert_loads(files)
        assert_nothing_private(files, tmp_path, text.parent, material)
        assert_card_of_the_run(files, tmp_path / name, f"user/{name}")
    joint = hub.repos["user/rtd"]
    assert [*pushes(joint)] == ["Training in progress, step 3", "Training in progress, step 4", "End of training"]
    for part in ("discriminator", "generator"):
        assert {f"{part}/{name}" for name in ("model.safetensors", "config.json", "README.md", *FILES)} <= {*joint.files()}
    jobs = [job("mlm", "user/mlm"), job("rtd", "user/rtd", "AutoModelForPreTraining")]
    jobs += [job("sst2", "user/sst2", "AutoModelForSequenceClassification"), job("part", "user/rtd", "AutoModel")]
    jobs[-1]["kwargs"] = {"subfolder": "discriminator"}
    for entry in jobs:
        entry["inputs"] = {"input_ids": [[1, 7, 9, 12, 2]]}
    results = read_back(hub, tmp_path / "worker", jobs)
    assert {name: result.get("missing", result) for name, result in results.items()} == {name: [] for name in results}
    model = DebertaExtForSequenceClassification.from_pretrained(tmp_path / "sst2").eval()
    with torch.no_grad():
        logits = model(torch.tensor(jobs[0]["inputs"]["input_ids"])).logits
    assert equal_outputs(results["sst2"]["answers"]["logits"], logits)


def test_an_adapter_is_pushed_for_a_model_of_the_hub_and_refused_for_one_of_this_machine(
    hub, run_glue, material, tmp_path, monkeypatch, capsys
):
    more = [*flags("user/adapter", "every_save"), "--do_train", "--do_eval", "--lora", "--save_steps", "2"]
    with pytest.raises(SystemExit):
        run_glue.main(glue.arguments(material, tmp_path / "run", *more))
    assert "--push_to_hub with --lora needs a base model on the Hub" in capsys.readouterr().err and not hub.repos
    hub.create_repo("user/base", {file.name: file.read_bytes() for file in (material / "model").iterdir()})
    run_glue.main(glue.arguments(material, tmp_path / "run", *more, model_name_or_path="user/base"))
    files = hub.repos["user/adapter"].files()
    assert {"adapter_config.json", "adapter_model.safetensors", "config.json", "tokenizer.json"} <= {*files}
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "user/base"
    assert_nothing_private(files, tmp_path, material)
    assert_card_of_the_run(files, tmp_path / "run", "user/adapter")
    assert ModelCard(files["README.md"].decode()).data.base_model == "user/base"
    for commit in pushes(hub.repos["user/adapter"]).values():
        assert "adapter_model.safetensors" in commit.files


def test_a_script_ends_with_one_line_where_the_push_fails(hub, run_mlm, text, tmp_path):
    hub.fail("/commit/", status=403, message="no more", times=None)
    with pytest.raises(SystemExit) as stopped:
        run_mlm.main(mlm.arguments(text, tmp_path / "mlm", *flags("user/mlm", "end"), max_steps=2))
    assert "no more" in str(stopped.value) and "\n" not in str(stopped.value)
    assert (tmp_path / "mlm" / "README.md").is_file() and len(hub.repos["user/mlm"].commits) == 1

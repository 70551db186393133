# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: new, resumed, or rejected."""

import os
from pathlib import Path

import pytest

from hf_deberta_ext.files import replace_text
from hf_deberta_ext.training.checkpoints import replaced_model, write_manifest
from hf_deberta_ext.training.run_folder import ARGUMENTS_FILE, TOKENIZER_FOLDER, begin_run, resume_checkpoint


def checkpoint(folder, step, names=("model.safetensors", "optimizer.pt")):
    made = folder / f"checkpoint-{step}"
    for name in names:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(f"{name} of {step}", encoding="utf-8")
    write_manifest(made)
    return made


def test_new_runs_begin_in_folders_without_results(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun" / TOKENIZER_FOLDER).mkdir(parents=True)
    (tmp_path / "begun" / ".checkpoint-2.part").mkdir()
    (tmp_path / "begun" / ARGUMENTS_FILE).write_text("{}", encoding="utf-8")
    for name in ("missing", "empty", "begun"):
        for resume in (None, False, "false", "False", "auto"):
            assert resume_checkpoint(tmp_path / name, resume) is None


@pytest.mark.parametrize("last", [True, "True", "true", "last", "auto"])
def test_the_last_checkpoint_is_found(last, tmp_path):
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 10)
    assert resume_checkpoint(tmp_path, last) == str(newest)
    assert resume_checkpoint(tmp_path, str(tmp_path / "checkpoint-9")) == str(tmp_path / "checkpoint-9")


def test_checkpoints_of_sharded_training_are_whole_and_those_of_the_model_alone_are_refused(tmp_path):
    """Trainer would resume them with a new optimizer."""
    for step, names in enumerate([("pytorch_model_fsdp_0/0", "optimizer_0/0"), ("global_step4/0",)]):
        made = checkpoint(tmp_path, step, names)
        assert resume_checkpoint(tmp_path, "last") == str(made)
    with pytest.raises(ValueError, match=r"its optimizer\.pt is missing \(--save_only_model does not save it\)"):
        resume_checkpoint(tmp_path, str(checkpoint(tmp_path, 4, ["model.safetensors"])))


FOLDERS = [
    ("full", None, "is not empty; choose another --output_dir, or resume its run with --resume_from_checkpoint last"),
    ("full", "elsewhere", "elsewhere is not a complete checkpoint"),
    ("other", None, "is not empty"),
    ("other", "auto", "checkpoint-5 is not a complete checkpoint: .*there is no checkpoint"),
    ("other", "last", "checkpoint-5 is not a complete checkpoint: .*there is no checkpoint"),
    ("results", "auto", "is not empty"),
    ("missing", "last", "there is no checkpoint"),
]


@pytest.mark.parametrize(("name", "resume", "message"), FOLDERS)
def test_a_full_folder_is_neither_resumed_nor_overwritten_silently(name, resume, message, tmp_path):
    checkpoint(tmp_path / "full", 9)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "other" / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(ValueError, match=message):
        resume_checkpoint(tmp_path / name, resume)


def test_a_text_is_the_old_one_until_it_is_the_new_one(tmp_path, monkeypatch):
    """Previously, truncated arguments were silently ignored on resume, and not distinguished from another run's."""

    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    file = tmp_path / "results.json"
    replace_text(file, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            replace_text(file, "new")
        with pytest.raises(KeyboardInterrupt):
            begin_run(tmp_path / "run", dict(seed=1))
    assert file.read_text(encoding="utf-8") == "old" and not (tmp_path / "run" / ARGUMENTS_FILE).exists()
    assert resume_checkpoint(tmp_path / "run", None) is None
    begin_run(tmp_path / "run", dict(seed=1))
    assert os.listdir(tmp_path / "run") == [ARGUMENTS_FILE]


def saved(folder, step, *more):
    """Save the parts of a model: settings, code, tokenizer, and weights named in `more`."""
    for name in ("config.json", "modeling.py", "tokenizer.json", *more):
        Path(folder, name).write_text(f"{name} of {step}", encoding="utf-8")


def which(folder):
    """Load the model from the folder, with one weight file or with an index and shards; return the step that saved it."""
    names = SHARDS
    if (folder / "model.safetensors").exists():
        names = ("model.safetensors",)
    if not all((folder / name).exists() for name in names):
        return "none"
    steps = {(folder / name).read_text(encoding="utf-8").split()[-1] for name in ("config.json", "modeling.py", *names)}
    return "+".join(sorted(steps))


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")


@pytest.mark.parametrize("new", [("model.safetensors",), SHARDS], ids=["one file", "shards"])
@pytest.mark.parametrize("old", [(), ("model.safetensors",), SHARDS], ids=["no model", "one file", "shards"])
def test_new_settings_never_lie_beside_old_weights(old, new, tmp_path, monkeypatch):
    """Stop before each change to the folder in turn: it must hold the old model, the new model, or none that loads."""
    outcomes = []
    for stop in range(20):
        folder = tmp_path / f"run-{stop}"
        folder.mkdir()
        if old:
            saved(folder, "old", *old)
        (folder / "notes.txt").touch()
        changes = iter(range(20))

        def counted(change, stop=stop, changes=changes):
            def change_unless_stopped(*args, **kwargs):
                if next(changes) == stop:
                    raise KeyboardInterrupt
                return change(*args, **kwargs)

            return change_unless_stopped

        with monkeypatch.context() as patch:
            try:
                with replaced_model(folder) as part:
                    saved(part, "new", *new)
                    patch.setattr(os, "replace", counted(os.replace))
                    patch.setattr(Path, "unlink", counted(Path.unlink))
            except KeyboardInterrupt:
                pass
        outcomes.append(which(folder))
    order = ["none", "new"]
    if old:
        order.insert(0, "old")
    assert outcomes[0] == order[0] and outcomes[-1] == "new" and {*outcomes} <= {*order}
    assert outcomes == sorted(outcomes, key=order.index)
    assert {*os.listdir(tmp_path / "run-19")} == {"config.json", "modeling.py", "tokenizer.json", "notes.txt", *new}


def test_the_card_of_a_run_stays_and_a_model_that_could_not_be_saved_leaves_the_one_before(tmp_path):
    saved(tmp_path, "old", "model.safetensors")
    (tmp_path / "README.md").write_text("the run's", encoding="utf-8")
    with pytest.raises(OSError, match="no space"), replaced_model(tmp_path) as part:
        saved(part, "new", "model.safetensors")
        raise OSError("no space")
    assert which(tmp_path) == "old"
    with replaced_model(tmp_path) as part:
        (part / "README.md").write_text("a template", encoding="utf-8")
        (part / "adapter_model.safetensors").touch()
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "the run's"

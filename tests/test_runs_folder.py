# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: new, resumed, or refused."""

import json

import pytest

from hf_deberta_ext.runs.folder import ARGUMENTS_FILE, TOKENIZER_FOLDER, begin_run, resume_checkpoint


def checkpoint(folder, step):
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    (made / "trainer_state.json").write_text("{}", encoding="utf-8")
    return made


def test_new_runs_begin_in_folders_without_results(tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / ARGUMENTS_FILE).write_text("{}", encoding="utf-8")
    (begun / TOKENIZER_FOLDER).mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty", "begun"):
        for resume in (None, False, "false", "False"):
            assert resume_checkpoint(tmp_path / name, resume) is None


@pytest.mark.parametrize("last", [True, "True", "true", "last"])
def test_the_last_checkpoint_is_found(last, tmp_path):
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 10)
    assert resume_checkpoint(tmp_path, last) == str(newest)
    assert resume_checkpoint(tmp_path, str(tmp_path / "checkpoint-9")) == str(tmp_path / "checkpoint-9")


def test_a_checkpoint_that_was_cut_off_by_a_kill_is_passed_over(tmp_path):
    whole = checkpoint(tmp_path, 9)
    for step, state in ((10, ""), (11, '{"log_history": [')):
        (checkpoint(tmp_path, step) / "trainer_state.json").write_text(state, encoding="utf-8")
    (tmp_path / "checkpoint-12").mkdir()
    assert resume_checkpoint(tmp_path, "last") == str(whole)
    with pytest.raises(ValueError, match=f"go on from {whole} with"):
        resume_checkpoint(tmp_path, None)
    with pytest.raises(
        ValueError, match=r"checkpoint-10 is no whole checkpoint: its trainer_state\.json is not there, or cut"
    ):
        resume_checkpoint(tmp_path, str(tmp_path / "checkpoint-10"))


def test_a_full_folder_is_neither_resumed_nor_overwritten_silently(tmp_path):
    made = checkpoint(tmp_path, 10)
    with pytest.raises(ValueError, match=f"is not empty: go on from {made} with --resume_from_checkpoint last, or choose"):
        resume_checkpoint(tmp_path, None)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="is not empty: choose another --output_dir"):
        resume_checkpoint(other, None)
    with pytest.raises(ValueError, match="is not empty"):
        resume_checkpoint(other / "notes.txt", None)


def test_resuming_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint"):
        resume_checkpoint(tmp_path, "last")
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(ValueError, match="checkpoint-5 is no whole checkpoint"):
        resume_checkpoint(tmp_path, "last")
    with pytest.raises(ValueError, match="elsewhere is no whole checkpoint"):
        resume_checkpoint(tmp_path, str(tmp_path / "elsewhere"))


def test_resumed_runs_keep_the_arguments_that_they_began_with(tmp_path):
    begun = dict(seed=1, train_data=["a.txt"], masking="span", objectives=("mlm", "sop"))
    begin_run(tmp_path / "run", begun, resuming=False)
    assert json.loads((tmp_path / "run" / ARGUMENTS_FILE).read_text(encoding="utf-8"))["masking"] == "span"
    begin_run(tmp_path / "run", begun, resuming=True)
    with pytest.raises(ValueError, match="masking = 'word', begun with 'span'; seed = 2, begun with 1"):
        begin_run(tmp_path / "run", begun | dict(masking="word", seed=2), resuming=True)

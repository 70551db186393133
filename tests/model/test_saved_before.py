# SPDX-License-Identifier: Apache-2.0
"""Folders that version 0.1 saved before the package was rearranged: they load, compute the same, and their runs resume.

tests/support/saved_before.tar.xz holds three unfinished runs of 4 steps with a checkpoint after the second (run_mlm, run_rtd
and run_glue, hidden size 8), a finished run, and their data; saved_before.json the command lines, and the outputs and
results of the version that saved them. Never make them anew: they stand for the folders that users have.
"""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from scripts import module_of
from without_package import answers, run_without_package

from hf_deberta_ext import DebertaExtPreTrainedModel
from hf_deberta_ext.commands import main as deberta_ext

SUPPORT = Path(__file__).resolve().parents[1] / "support"
FACTS = json.loads((SUPPORT / "saved_before.json").read_text(encoding="utf-8"))
RUNS = [*FACTS["commands"]]
INPUTS = {name: torch.tensor(rows) for name, rows in FACTS["inputs"].items()}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The unpacked archive, which is the working directory, as it was for the runs."""
    shutil.unpack_archive(SUPPORT / "saved_before.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path / "saved_before")
    return Path.cwd()


def assert_same_outputs(run: str, outputs: dict[str, torch.Tensor]):
    recorded = FACTS["outputs"][run]
    values, expected = outputs[recorded["name"]], torch.tensor(recorded["values"])
    if run != "classifier":
        # Real tokens alone, and of their logits every fortieth of the vocabulary.
        real = INPUTS["attention_mask"].bool()
        values, expected = (values if values.dim() < 3 else values[..., ::40])[real], expected[real]
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_saved_folder_loads_with_the_package_and_has_the_same_outputs(run, folders):
    auto_class = getattr(transformers, FACTS["outputs"][run]["auto_class"])
    model = auto_class.from_pretrained(folders / run / "checkpoint-2")
    assert isinstance(model, DebertaExtPreTrainedModel)
    assert_same_outputs(run, answers(model, INPUTS))


def test_saved_folders_load_with_their_own_code_where_the_package_is_not_installed(folders, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(folders / "hub_cache"))
    jobs = [
        dict(name=run, kind="model", auto=recorded["auto_class"], source=f"{run}/checkpoint-2", inputs=FACTS["inputs"])
        for run, recorded in FACTS["outputs"].items()
    ]
    for run, result in run_without_package(jobs, folders).items():
        assert "error" not in result, result["traceback"]
        assert result["module"].startswith("transformers_modules.")
        assert_same_outputs(run, result["answers"])


@pytest.mark.parametrize("run", RUNS)
def test_saved_run_resumes_with_its_arguments_and_ends_as_it_did(run, folders):
    pytest.importorskip("accelerate")
    program, *flags = shlex.split(FACTS["commands"][run])
    # Begun when masks were drawn otherwise, which has to be accepted by name.
    module_of(program).main([*flags, "--resume_from_checkpoint", "last", "--resume_anyway", "data_collator.draws"])
    before = FACTS["results"][run]
    history = json.loads(Path(run, "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    # Other versions of torch draw other dropout masks.
    assert losses == pytest.approx(before["losses"], rel=1e-2)
    results = json.loads(Path(run, "all_results.json").read_text(encoding="utf-8"))
    # Masks of the same rate are drawn otherwise since: their number differs in so small a file. After resuming, Trainer of
    # transformers 5.4 gives another mean of the losses above.
    left_out = {"eval_mlm_targets", "train_loss"}
    compared = {name: value for name, value in before["results"].items() if name not in left_out}
    assert {name: results[name] for name in compared} == pytest.approx(compared, rel=1e-2)
    weights = torch.cat([weight.flatten().double() for weight in load_file(Path(run, "model.safetensors")).values()])
    assert weights.norm().item() == pytest.approx(before["norm_of_weights"], rel=1e-3)


@pytest.mark.parametrize(("command", "last"), [("info", "can be loaded"), ("card --check", "no problems")])
def test_finished_run_is_described_and_its_card_has_no_problems(command, last, folders, capsys):
    assert deberta_ext([*command.split(), "finished"]) == 0
    assert capsys.readouterr().out.strip().endswith(last)

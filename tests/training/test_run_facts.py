# SPDX-License-Identifier: Apache-2.0
"""Hardware and versions of a run, for its model card, and the flags that a resumed run may change."""

import json
import platform
from dataclasses import dataclass

import pytest
import torch
from transformers import TrainingArguments

from hf_deberta_ext.training.batch_size import hardware_facts, versions
from hf_deberta_ext.training.run_folder import repeated_arguments

pytest.importorskip("accelerate")


def test_licence_and_languages_of_a_card_do_not_bind_a_resumed_run():
    @dataclass
    class Flags:
        license: str = "mit"
        card_language: str = "en"
        rate: float = 0.15

    fixed = repeated_arguments([Flags()], TrainingArguments("unused", use_cpu=True))
    assert fixed["rate"] == 0.15 and not {"license", "card_language"} & {*fixed}


def arguments(tmp_path, **more):
    return TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **more)


def test_hardware_is_described_without_the_name_of_the_machine(tmp_path):
    facts = hardware_facts(arguments(tmp_path), results={"train_runtime": 12.5})
    assert [*facts] == ["device", "processes", "precision", "seconds of training", "versions"]
    assert facts["device"].startswith(f"CPU ({platform.machine()}), ")
    assert (facts["processes"], facts["precision"], facts["seconds of training"]) == (1, "float32 parameters", 12.5)
    assert facts["versions"] == versions() and facts["versions"]["torch"] == torch.__version__
    assert platform.node() not in json.dumps(facts) and str(tmp_path) not in json.dumps(facts)


def test_half_precision_resumed_runs_and_accelerators_are_named(tmp_path, monkeypatch):
    results = {"train_runtime": 2.0, "train_resumed_at_step": 50}
    facts = hardware_facts(arguments(tmp_path, bf16=True), parameters="bfloat16", results=results)
    assert facts["precision"] == "bfloat16 parameters, bf16 autocast"
    assert facts["seconds of training, from step 50 on"] == 2.0 and "seconds of training" not in facts
    args = arguments(tmp_path)
    for name, value in dict(device=torch.device("cuda", 0), n_gpu=1, world_size=8).items():
        monkeypatch.setattr(TrainingArguments, name, value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    facts = hardware_facts(args)
    assert facts["device"].startswith("8 x NVIDIA H100 80GB HBM3, ") and facts["processes"] == 8
    assert not any(name.startswith("seconds") for name in facts)

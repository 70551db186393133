# SPDX-License-Identifier: Apache-2.0
"""Hardware and versions of a run, for its model card."""

import json
import platform

import torch
from transformers import TrainingArguments

from hf_deberta_ext.training.batch_size import hardware_facts, versions


def arguments(tmp_path, **more):
    return TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **more)


def test_hardware_is_described_without_the_name_of_the_machine(tmp_path, monkeypatch):
    facts = hardware_facts(arguments(tmp_path), results={"train_runtime": 12.5})
    assert [*facts] == ["device", "processes", "precision", "seconds of training", "versions"]
    assert facts["device"].startswith(f"CPU ({platform.machine()}), ")
    assert (facts["processes"], facts["precision"], facts["seconds of training"]) == (1, "float32 parameters", 12.5)
    assert facts["versions"] == versions() and facts["versions"]["torch"] == torch.__version__
    assert platform.node() not in json.dumps(facts) and str(tmp_path) not in json.dumps(facts)

    results = {"train_runtime": 2.0, "train_resumed_at_step": 50}
    facts = hardware_facts(arguments(tmp_path, bf16=True), parameters="bfloat16", results=results)
    assert facts["precision"] == "bfloat16 parameters, bf16 autocast"
    assert facts["seconds of training, from step 50 on"] == 2.0
    args = arguments(tmp_path)
    for name, value in dict(device=torch.device("cuda", 0), n_gpu=1, world_size=8).items():
        monkeypatch.setattr(TrainingArguments, name, value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    facts = hardware_facts(args)
    assert facts["device"].startswith("8 x NVIDIA H100 80GB HBM3, ") and facts["processes"] == 8
    assert not any(name.startswith("seconds") for name in facts)

# SPDX-License-Identifier: Apache-2.0
"""examples/cluster under `accelerate launch`."""

import json
import sys

import mlm_script as mlm
import pytest
import torch
from scripts import EXAMPLES, ROOT, start

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")]
text = mlm.text


def losses(text, folder, configuration, *program):
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"{ROOT}/examples/cluster/{configuration}"]
    words += ["--num_processes", "2", "--main_process_port", "0", "--mixed_precision", "no", *program, EXAMPLES["run_mlm"]]
    words = [str(word) for word in words] + mlm.arguments(text, folder)
    mlm.finish(start(*words, CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu"))
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.mark.parametrize("kind", ["fsdp2", "deepspeed"])
def test_configurations_of_accelerate_train_alike(kind, text, tmp_path, monkeypatch):
    if kind == "deepspeed":
        pytest.importorskip("deepspeed")
    monkeypatch.chdir(ROOT)
    program = [ROOT / "tests/support/shard_on_cpu.py"] if kind == "fsdp2" else []
    expected = losses(text, tmp_path / "ddp", "ddp.yaml")
    assert losses(text, tmp_path / kind, f"{kind}.yaml", *program) == pytest.approx(expected, rel=1e-5)
    assert len(expected) == 4
